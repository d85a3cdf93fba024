//! The shim that this program carries, put where it can be executed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::RuntimeError;

/// Static, and a whole sandbox image by itself.
pub(crate) static SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/belay-shim"));
const PREFIX: &str = "belay-shim-";

/// Puts the shim into `dir` unless it is there. Its name has a hash of its content, so that an
/// upgrade does not touch the file that running shims were started from.
pub(crate) fn install(dir: &Path) -> Result<PathBuf, RuntimeError> {
    fs::create_dir_all(dir).map_err(RuntimeError::io("create", dir))?;
    let path = dir.join(format!("{PREFIX}{:016x}", hash(SHIM)));
    if !is_good(&path) {
        write(dir, &path).map_err(RuntimeError::io("install the shim as", &path))?;
    }
    remove_others(dir, &path);
    Ok(path)
}

fn is_good(path: &Path) -> bool {
    let mode = fs::metadata(path).map(|metadata| metadata.permissions().mode());
    mode.is_ok_and(|mode| mode & 0o100 != 0) && fs::read(path).is_ok_and(|bytes| bytes == SHIM)
}

fn write(dir: &Path, path: &Path) -> io::Result<()> {
    let temporary = dir.join(format!(".new-{}", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o700);
    let mut file = options.open(&temporary)?;
    file.write_all(SHIM)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}

/// Older shims keep running without their file; only the space is taken back.
fn remove_others(dir: &Path, keep: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && entry.path() != keep {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// FNV-1a. It only has to tell versions apart: the content itself is compared as well.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_shim_is_replaced_and_an_old_one_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("belay-shim-old"), "x").unwrap();
        let path = install(dir.path()).unwrap();
        fs::write(&path, "rubbish").unwrap();
        assert_eq!(install(dir.path()).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), SHIM);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
