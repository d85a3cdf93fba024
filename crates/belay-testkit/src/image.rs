//! Images around a static busybox, made without a network.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};

/// The image of every sandbox and container in tests: it has a shell, and sleeps by default.
pub const BUSYBOX: &str = "localhost/belay-busybox:1";

const PROGRAM: &str = "/bin/busybox";

/// Why no image can be made here, if none can.
pub fn missing() -> Option<String> {
    let found = Path::new(PROGRAM).exists();
    (!found).then(|| format!("{PROGRAM} is missing; install busybox-static"))
}

/// Makes the image as an archive in `dir`, in the format of `docker save`. Every process of it has
/// `environment`.
pub fn build(dir: &Path, environment: &[String]) -> anyhow::Result<PathBuf> {
    let root = dir.join("rootfs");
    let bin = root.join("bin");
    for place in ["bin", "etc", "srv", "tmp"] {
        fs::create_dir_all(root.join(place))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n",
    )?;
    fs::write(root.join("etc/not-executable"), "#!/bin/sh\n")?;
    fs::copy(PROGRAM, bin.join("busybox"))?;
    let applets = Command::new(PROGRAM).arg("--list").output()?;
    for applet in String::from_utf8(applets.stdout)?.lines() {
        if applet != "busybox" {
            symlink("busybox", bin.join(applet))?;
        }
    }
    let layer = dir.join("layer.tar");
    tar(&layer, &root, &["."])?;
    let digest = Sha256::digest(fs::read(&layer)?);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut env = vec!["PATH=/bin".to_owned()];
    env.extend_from_slice(environment);
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": env, "Cmd": ["/bin/sleep", "1000000"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    fs::write(dir.join("config.json"), config.to_string())?;
    let manifest = json!([{
        "Config": "config.json", "RepoTags": [BUSYBOX], "Layers": ["layer.tar"],
    }]);
    fs::write(dir.join("manifest.json"), manifest.to_string())?;
    let archive = dir.join("image.tar");
    tar(
        &archive,
        dir,
        &["manifest.json", "config.json", "layer.tar"],
    )?;
    Ok(archive)
}

fn tar(archive: &Path, dir: &Path, members: &[&str]) -> anyhow::Result<()> {
    let done = Command::new("tar")
        .args(["--owner=0", "--group=0", "--numeric-owner", "-C"])
        .arg(dir)
        .arg("-cf")
        .arg(archive)
        .args(members)
        .output()
        .context("cannot run tar")?;
    ensure!(
        done.status.success(),
        "tar: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}
