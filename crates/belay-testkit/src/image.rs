//! Container images made by the tests themselves, around a static busybox: no registry is needed.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What pods' sandboxes run.
pub const PAUSE: &str = "belay.test/pause:1";
/// What tests' containers run.
pub const BUSYBOX: &str = "belay.test/busybox:1";
/// The same with a stop signal of its own, SIGQUIT.
pub const QUITTER: &str = "belay.test/quitter:1";
/// One program, `/busybox`, and nothing beside it: no shell, no `sleep`.
pub const BARE: &str = "belay.test/bare:1";
/// The program under test, for the roles that run as pods.
pub const BELAY: &str = "belay.test/belay:1";

/// What does nothing for long enough.
const SLEEP: [&str; 2] = ["/bin/sleep", "2147483647"];

const BUSYBOX_PROGRAM: &str = "/bin/busybox";

/// A directory that becomes an image's only layer.
#[derive(Debug)]
pub struct Image {
    root: tempfile::TempDir,
    /// Names, each with how it starts in the words of an image's configuration.
    tags: Vec<(String, Value)>,
    environment: Vec<String>,
}

/// Why no image can be made here, if none can.
pub fn missing() -> Option<String> {
    let busybox = Path::new(BUSYBOX_PROGRAM);
    if !busybox.exists() {
        return Some(format!(
            "{BUSYBOX_PROGRAM} is missing; install busybox-static"
        ));
    }
    // An image has no libraries but those of its own program.
    match libraries(busybox) {
        Ok(loaded) if loaded.is_empty() => None,
        Ok(_) => Some(format!(
            "{BUSYBOX_PROGRAM} loads libraries, which images do not have; install busybox-static"
        )),
        Err(error) => Some(format!("{error:#}")),
    }
}

fn static_busybox() -> anyhow::Result<&'static Path> {
    match missing() {
        Some(missing) => anyhow::bail!("{missing}"),
        None => Ok(Path::new(BUSYBOX_PROGRAM)),
    }
}

impl Image {
    /// A shell and what goes with it, under [`PAUSE`], [`BUSYBOX`] and [`QUITTER`].
    pub fn busybox() -> anyhow::Result<Self> {
        let root = tempfile::tempdir()?;
        for dir in ["bin", "etc", "srv", "tmp", "proc", "sys", "dev", "var/run"] {
            fs::create_dir_all(root.path().join(dir))?;
        }
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(root.path().join("tmp"), fs::Permissions::from_mode(0o1777))?;
        fs::write(
            root.path().join("etc/passwd"),
            "root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n\
             www-data:x:33:33::/:/bin/sh\n",
        )?;
        fs::write(
            root.path().join("etc/group"),
            "root:x:0:\napp:x:1000:\nwww-data:x:33:\nnogroup:x:65534:\n",
        )?;
        fs::write(root.path().join("etc/not-executable"), "#!/bin/sh\n")?;
        fs::copy(static_busybox()?, root.path().join("bin/busybox"))?;
        let applets = Command::new(BUSYBOX_PROGRAM).arg("--list").output()?;
        for applet in String::from_utf8(applets.stdout)?.split_whitespace() {
            if applet != "busybox" {
                symlink("busybox", root.path().join("bin").join(applet))?;
            }
        }
        let image = Self {
            root,
            tags: Vec::new(),
            environment: vec!["PATH=/bin".to_owned()],
        };
        Ok(image
            .tag(PAUSE, json!({"Cmd": SLEEP}))
            .tag(BUSYBOX, json!({"Cmd": SLEEP}))
            .tag(QUITTER, json!({"Cmd": SLEEP, "StopSignal": "SIGQUIT"})))
    }

    /// [`BARE`].
    pub fn bare() -> anyhow::Result<Self> {
        let root = tempfile::tempdir()?;
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        fs::copy(static_busybox()?, root.path().join("busybox"))?;
        let image = Self {
            root,
            tags: Vec::new(),
            environment: Vec::new(),
        };
        Ok(image.tag(
            BARE,
            json!({"Cmd": ["/busybox", "tail", "-f", "/dev/null"]}),
        ))
    }

    /// Puts `NAME=value` into the environment of every process.
    #[must_use]
    pub fn environment(mut self, entry: String) -> Self {
        self.environment.push(entry);
        self
    }

    /// A program with the libraries it loads, under `tag`, on top of a shell.
    pub fn of_program(program: &Path, tag: &str) -> anyhow::Result<Self> {
        let mut image = Self::busybox()?;
        image.tags.clear();
        let name = program.file_name().context("a program has a name")?;
        for library in libraries(program)? {
            let target = image
                .root
                .path()
                .join(library.strip_prefix("/").unwrap_or(&library));
            if let Some(dir) = target.parent() {
                fs::create_dir_all(dir)?;
            }
            fs::copy(&library, target)?;
        }
        let target = image.root.path().join("bin").join(name);
        fs::copy(program, &target)?;
        let entry = format!("/bin/{}", name.display());
        Ok(image.tag(tag, json!({"Entrypoint": [entry]})))
    }

    fn tag(mut self, tag: &str, start: Value) -> Self {
        self.tags.push((tag.to_owned(), start));
        self
    }

    /// Writes an archive that `ctr images import` takes.
    pub fn archive(&self, target: &Path) -> anyhow::Result<()> {
        let parts = tempfile::tempdir()?;
        let layer = parts.path().join("layer.tar");
        tar(self.root.path(), &layer, ".")?;
        let digest = hex(&Sha256::digest(fs::read(&layer)?));
        let mut manifest = Vec::new();
        for (tag, start) in &self.tags {
            let mut start = start.clone();
            start["Env"] = json!(self.environment);
            let config = serde_json::to_vec(&json!({
                "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
                "os": "linux",
                "config": start,
                "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
                "history": [],
            }))?;
            let name = format!("{}.json", hex(&Sha256::digest(&config)));
            fs::write(parts.path().join(&name), config)?;
            manifest.push(json!({"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}));
        }
        fs::write(
            parts.path().join("manifest.json"),
            serde_json::to_vec(&manifest)?,
        )?;
        tar(parts.path(), target, ".")
    }
}

/// The files a program is loaded with, as `ldd` names them.
pub(crate) fn libraries(program: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot run ldd")?;
    let listed = String::from_utf8(output.stdout)?;
    Ok(listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}

fn tar(from: &Path, to: &Path, what: &str) -> anyhow::Result<()> {
    let status = Command::new("tar")
        .args(["--numeric-owner", "--owner=0", "--group=0", "-C"])
        .arg(from)
        .arg("-cf")
        .arg(to)
        .arg(what)
        .status()
        .context("cannot run tar")?;
    anyhow::ensure!(status.success(), "tar of {} failed", from.display());
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
