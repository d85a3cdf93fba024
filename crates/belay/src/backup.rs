//! `belay backup` and `belay restore`: the objects of an instance as one file.
//!
//! A backup is a store itself, so restoring is putting it into place. Certificates and tokens are
//! not in it: an instance makes its own, and nodes join it anew.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use belay_store::{OpenError, Options, Store};

use crate::exit::Exit;
use crate::format;
use crate::place;

/// The store's file in a data directory.
const STORE: &str = "store.redb";

fn store_in(data_dir: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let dir = match data_dir {
        Some(dir) => dir,
        None => place::default_data_dir()?,
    };
    Ok(dir.join(STORE))
}

/// Opens a store to read it; what its values mean does not matter here.
fn open(path: &Path) -> Result<Store<()>, OpenError> {
    Store::open(path, Options::new(|_, _| ()))
}

/// `belay backup`.
pub(crate) async fn backup(data_dir: Option<PathBuf>, file: &Path) -> anyhow::Result<Exit> {
    let path = store_in(data_dir)?;
    ensure!(
        path.is_file(),
        "{} does not exist; name the instance's directory with --data-dir",
        path.display()
    );
    let store = match open(&path) {
        Ok(store) => store,
        Err(OpenError::Locked { .. }) => anyhow::bail!(
            "the instance on {} is running; stop it first (its containers go on), then make the backup",
            path.display()
        ),
        Err(error) => return Err(error.into()),
    };
    let revision = store.backup(file);
    store.shutdown().await;
    format::out(&format!(
        "{} holds everything up to revision {}\n",
        file.display(),
        revision?
    ))?;
    Ok(Exit::Done)
}

/// `belay restore`.
pub(crate) async fn restore(data_dir: Option<PathBuf>, file: &Path) -> anyhow::Result<Exit> {
    let path = store_in(data_dir)?;
    let dir = place::prepare_data_dir(path.parent().unwrap_or(Path::new(".")))?;
    ensure!(
        !path.exists(),
        "{} exists already and was left alone; move it away, or restore into another --data-dir",
        path.display()
    );
    // Copied beside its place and proved there, then put into place whole.
    let copy = tempfile::Builder::new()
        .prefix(".restore-")
        .tempfile_in(&dir)
        .with_context(|| format!("cannot write in {}", dir.display()))?;
    std::fs::copy(file, copy.path()).with_context(|| format!("cannot copy {}", file.display()))?;
    let store = match open(copy.path()) {
        Ok(store) => store,
        // The message would name the copy, which the user does not know.
        Err(OpenError::NotAStore { .. }) => {
            anyhow::bail!("{} is not a backup made by `belay backup`", file.display())
        }
        Err(error) => {
            return Err(
                anyhow::Error::new(error).context(format!("{} cannot be restored", file.display()))
            );
        }
    };
    let revision = store.revision();
    store.shutdown().await;
    copy.as_file().sync_all()?;
    copy.persist_noclobber(&path)
        .with_context(|| format!("cannot put {} into place", path.display()))?;
    std::fs::File::open(&dir)?.sync_all()?;
    format::out(&format!(
        "{} holds everything up to revision {revision}; start it with: belay up --data-dir {}\n",
        path.display(),
        dir.display()
    ))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_store::{Expect, Write};

    async fn instance(dir: &Path) {
        let store = open(&dir.join(STORE)).unwrap();
        let put = Write::put("/pods/a", Expect::Absent, |_| b"{}".to_vec().into());
        store.write(put).await.unwrap();
        store.shutdown().await;
    }

    #[tokio::test]
    async fn a_backup_is_restored_into_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::create_dir(&old).unwrap();
        instance(&old).await;
        let file = dir.path().join("backup");
        backup(Some(old), &file).await.unwrap();
        restore(Some(new.clone()), &file).await.unwrap();
        let store = open(&new.join(STORE)).unwrap();
        assert!(store.get("/pods/a").is_some());
        store.shutdown().await;
    }

    #[tokio::test]
    async fn nothing_is_overwritten_and_nothing_else_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        instance(dir.path()).await;
        let here = || Some(dir.path().to_owned());
        let file = dir.path().join("backup");
        std::fs::write(&file, "something").unwrap();
        assert!(backup(here(), &file).await.is_err());
        let refused = restore(here(), &file).await.unwrap_err();
        assert!(refused.to_string().contains("left alone"), "{refused}");
        let other = dir.path().join("other");
        let refused = restore(Some(other.clone()), &file).await.unwrap_err();
        assert!(refused.to_string().contains("not a backup"), "{refused:#}");
        assert!(!other.join(STORE).exists());
        let left = std::fs::read_dir(&other).unwrap().count();
        assert_eq!(left, 0, "a copy was left behind");
    }

    #[tokio::test]
    async fn a_running_instance_is_told_apart_from_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let here = || Some(dir.path().to_owned());
        let file = dir.path().join("backup");
        let missing = backup(here(), &file).await.unwrap_err();
        assert!(missing.to_string().contains("does not exist"), "{missing}");
        instance(dir.path()).await;
        let running = open(&dir.path().join(STORE)).unwrap();
        let refused = backup(here(), &file).await.unwrap_err();
        assert!(refused.to_string().contains("stop it first"), "{refused}");
        running.shutdown().await;
    }
}
