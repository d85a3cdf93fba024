//! Finding the program under test.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::Context;

/// The path of `belay`: `BELAY_BINARY` if set, else built from this source tree with the profile
/// and target directory of the running test, so that it is never older than the sources.
pub fn belay() -> anyhow::Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(|| locate().map_err(|error| format!("{error:#}"))) {
        Ok(path) => Ok(path),
        Err(error) => anyhow::bail!("{error}"),
    }
}

fn locate() -> anyhow::Result<PathBuf> {
    if let Some(given) = env::var_os("BELAY_BINARY") {
        let given = PathBuf::from(given);
        anyhow::ensure!(
            given.is_file(),
            "BELAY_BINARY={} is no file",
            given.display()
        );
        return Ok(given);
    }
    let (target_dir, profile) = place(&env::current_exe()?)?;
    let binary = target_dir.join(&profile).join("belay");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--quiet", "--package", "belay", "--manifest-path"])
        .arg(manifest);
    build.arg("--target-dir").arg(&target_dir);
    build.args([
        "--profile",
        if profile == "debug" { "dev" } else { &profile },
    ]);
    let built = build.output().context("cannot run cargo to build belay")?;
    anyhow::ensure!(
        built.status.success(),
        "`cargo build -p belay` failed; build it first, or name one in BELAY_BINARY:\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
    anyhow::ensure!(binary.is_file(), "cargo built no {}", binary.display());
    Ok(binary)
}

/// `<target>/<profile>/deps/<test>` and `<target>/<profile>/<program>` name both.
fn place(executable: &Path) -> anyhow::Result<(PathBuf, String)> {
    let mut dir = executable.parent();
    if dir.is_some_and(|dir| dir.ends_with("deps")) {
        dir = dir.and_then(Path::parent);
    }
    let dir = dir.with_context(|| format!("{} lies nowhere", executable.display()))?;
    let profile = dir
        .file_name()
        .and_then(|name| name.to_str())
        .map(str::to_owned);
    let target = dir.parent().map(Path::to_path_buf);
    target.zip(profile).with_context(|| {
        format!(
            "{} is not in a target directory; set BELAY_BINARY",
            executable.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_directory_and_profile_are_read_from_the_test_s_own_path() -> anyhow::Result<()> {
        assert_eq!(
            place(Path::new("/t/debug/deps/x-1"))?,
            ("/t".into(), "debug".into())
        );
        assert_eq!(
            place(Path::new("/t/release/bench"))?,
            ("/t".into(), "release".into())
        );
        Ok(())
    }
}
