//! Packages of Debian, installed only when we are root there.

use std::{env, fs, io, os::unix::fs::MetadataExt, path::Path, process::Command};

/// Whether `program` can be found on the PATH.
pub(crate) fn on_path(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Installs the package that `program` comes from, where it is missing.
pub(crate) fn provide(program: &str, package: &str) -> anyhow::Result<()> {
    // Not everybody's PATH has the directories of the administrator's programs.
    let system = ["/usr/sbin", "/sbin"];
    if on_path(program)
        || system
            .iter()
            .any(|dir| Path::new(dir).join(program).is_file())
    {
        return Ok(());
    }
    install(package)
}

/// Installs `package`, or says why it cannot be done and what to type instead.
pub(crate) fn install(package: &str) -> anyhow::Result<()> {
    let by_hand = format!("install it by hand, on Debian with `apt-get install {package}`");
    anyhow::ensure!(
        Path::new("/etc/debian_version").exists() && on_path("apt-get"),
        "{package} is missing and this is not Debian; {by_hand}"
    );
    anyhow::ensure!(
        is_root(),
        "{package} is missing and we are not root; {by_hand}"
    );
    eprintln!("installing {package}");
    let apt = |arguments: &[&str]| {
        Command::new("apt-get")
            .args(["-q", "-y", "-o", "Dpkg::Use-Pty=0"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            // Progress: what the caller prints may be read by a script.
            .stdout(io::stderr())
            .status()
    };
    // The package lists of a fresh machine are empty or old, so a first failure is expected.
    if !apt(&["install", "--no-install-recommends", package])?.success() {
        apt(&["update"])?;
        let again = apt(&["install", "--no-install-recommends", package])?;
        anyhow::ensure!(
            again.success(),
            "apt-get could not install {package}; {by_hand}"
        );
    }
    Ok(())
}

/// The owner of our own entry in /proc is the effective user.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
