//! Mounts of containers that run on the host's own file system.
//!
//! The host is not changed: a container with mounts has a mount namespace in which they are made on
//! paths that the host has.

use std::fs;
use std::path::Path;

use belay_shim::mounts::Mount as Made;

use crate::{ContainerConfig, Mount, Propagation, RuntimeError};

/// What the container's shim is to mount, or what has to be changed.
pub(super) fn mounts(config: &ContainerConfig) -> Result<Vec<Made>, RuntimeError> {
    if config.mounts.is_empty() {
        return Ok(Vec::new());
    }
    let refuse = |message: String| RuntimeError::StartFailed {
        reason: "InvalidConfig",
        message,
    };
    let name = &config.name;
    if !rustix::process::geteuid().is_root() {
        return Err(refuse(format!(
            "container \"{name}\" mounts volumes, which the process runtime can do as root only: run the agent as root, or with --runtime cri"
        )));
    }
    let mut mounts = Vec::with_capacity(config.mounts.len());
    for mount in &config.mounts {
        possible(mount).map_err(|why| refuse(format!("container \"{name}\": {why}")))?;
        mounts.push(Made {
            source: mount.host_path.clone(),
            target: mount.container_path.clone(),
            read_only: mount.read_only,
            follows_host: mount.propagation == Propagation::HostToContainer,
        });
    }
    // What is mounted in another mount comes after it.
    mounts.sort_by_key(|mount| mount.target.components().count());
    Ok(mounts)
}

fn possible(mount: &Mount) -> Result<(), String> {
    let (source, target) = (&*mount.host_path, &*mount.container_path);
    if mount.propagation == Propagation::Bidirectional {
        return Err(format!(
            "the mount on {} is Bidirectional, which the process runtime cannot do: use HostToContainer, or --runtime cri",
            target.display()
        ));
    }
    let is_dir = |path: &Path| fs::metadata(path).map(|found| found.is_dir());
    let from =
        is_dir(source).map_err(|error| format!("cannot mount {}: {error}", source.display()))?;
    let to = is_dir(target).map_err(|error| {
        format!(
            "cannot mount on {}: {error}; the process runtime runs on the host's file system and makes no paths in it: create it, or use --runtime cri",
            target.display()
        )
    })?;
    let kind = |dir: bool| if dir { "a directory" } else { "a file" };
    if from != to {
        return Err(format!(
            "cannot mount {}, which is {}, on {}, which is {}",
            source.display(),
            kind(from),
            target.display(),
            kind(to)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &Path, target: &Path, propagation: Propagation) -> Result<(), String> {
        possible(&Mount {
            host_path: source.to_owned(),
            container_path: target.to_owned(),
            read_only: false,
            propagation,
        })
    }

    #[test]
    fn what_cannot_be_mounted_is_said_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let (here, file, none) = (dir.path(), dir.path().join("f"), dir.path().join("none"));
        fs::write(&file, "").unwrap();
        check(here, here, Propagation::None).unwrap();
        check(&file, &file, Propagation::HostToContainer).unwrap();
        for (source, target, propagation, part) in [
            (
                here,
                &*none,
                Propagation::None,
                "create it, or use --runtime cri",
            ),
            (&none, here, Propagation::None, "No such file"),
            (here, &file, Propagation::None, "which is a directory, on"),
            (&file, here, Propagation::None, "which is a file, on"),
            (
                here,
                here,
                Propagation::Bidirectional,
                "use HostToContainer",
            ),
        ] {
            let why = check(source, target, propagation).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
