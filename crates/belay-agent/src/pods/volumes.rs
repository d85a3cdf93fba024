//! The volumes of a pod on this node: where they lie, how they come about, and how they go.
//!
//! ```text
//!   <data-dir>/pods/<uid>/                                          mode 0700
//!     volumes/emptyDir/<name>      a directory, or memory (tmpfs)
//!     volumes/configMap/<name>     files, written as a whole (see `writer`)
//!     volumes/secret/<name>        the same on a tmpfs, where the agent is root
//!     volume-subpaths/<volume>/<container>/<n>    what a `subPath` led to when it was mounted
//! ```
//!
//! Setting up is repeated until it succeeds, and again whenever an object changes: every step may
//! find that it was done before, wholly or in part.
//!
//! **Invariant:** nothing outside a pod's own directory is ever removed. What is mounted in it is
//! unmounted first, and a directory in which something stays mounted is left alone.

mod files;
mod host_path;
mod mount_table;
mod remove;
mod sub_path;
mod writer;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use belay_api::pod::{
    Container, EmptyDirSource, HostPathSource, Pod, ReferenceKind, VolumeMount, VolumeSource,
};
use belay_api::quantity::Quantity;
use belay_runtime::{ContainerConfig, Mount, Propagation};
use rustix::mount::{MountFlags, mount};

pub(crate) use files::NotYet;
pub(crate) use remove::{orphans, remove};

use super::environment::Environment;
use super::expand::expand;
use super::objects::Found;
use super::security;
use super::waiting::Waiting;
use files::Files;

/// Where the volumes of one pod lie.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(crate) fn new(data_dir: &Path, uid: &str) -> Self {
        Layout {
            dir: all(data_dir).join(uid),
        }
    }

    fn volume(&self, kind: &str, name: &str) -> PathBuf {
        self.dir.join("volumes").join(kind).join(name)
    }

    fn sub_path(&self, volume: &str, container: &str, index: usize) -> PathBuf {
        let dir = self.dir.join("volume-subpaths").join(volume);
        dir.join(container).join(index.to_string())
    }

    /// What a container that mounts the volume sees.
    fn base(&self, name: &str, source: VolumeSource<'_>) -> PathBuf {
        match source {
            VolumeSource::EmptyDir(_) => self.volume("emptyDir", name),
            VolumeSource::ConfigMap(_) => self.volume("configMap", name),
            VolumeSource::Secret(_) => self.volume("secret", name),
            VolumeSource::HostPath(source) => {
                PathBuf::from(source.path.as_deref().unwrap_or_default())
            }
            VolumeSource::Other(_) => PathBuf::new(),
        }
    }
}

/// Where everything of one pod lies.
pub(crate) fn dir(data_dir: &Path, uid: &str) -> PathBuf {
    Layout::new(data_dir, uid).dir
}

/// Where the directories of all pods lie.
fn all(data_dir: &Path) -> PathBuf {
    data_dir.join("pods")
}

/// One volume, with everything that it takes to set it up.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    name: String,
    /// In the pod's directory, or the host's path.
    path: PathBuf,
    what: What,
    group: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    EmptyDir(EmptyDirSource),
    HostPath(HostPathSource),
    Files { files: Files, secret: bool },
}

/// A volume that could not be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) volume: String,
    pub(crate) message: String,
}

/// What to set up of a pod, what has to wait for an object to be read, and what is wrong.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) volumes: Vec<Planned>,
    pub(crate) waits: bool,
    pub(crate) problems: Vec<Problem>,
}

/// Plans the volumes of a pod.
pub(crate) fn plan(pod: &Pod, layout: &Layout, found: &Found) -> Plan {
    let mut plan = Plan::default();
    let group = security::fs_group(pod);
    for volume in &pod.spec.volumes {
        let source = volume.source();
        let what = match source {
            VolumeSource::EmptyDir(source) => Ok(What::EmptyDir(source.clone())),
            VolumeSource::HostPath(source) => Ok(What::HostPath(source.clone())),
            VolumeSource::ConfigMap(source) => {
                files::files(ReferenceKind::ConfigMap, source, found).map(|files| What::Files {
                    files,
                    secret: false,
                })
            }
            VolumeSource::Secret(source) => {
                files::files(ReferenceKind::Secret, source, found).map(|files| What::Files {
                    files,
                    secret: true,
                })
            }
            VolumeSource::Other(field) => Err(NotYet::Problem(format!(
                "the source {field} is not supported; this agent knows emptyDir, hostPath, configMap and secret"
            ))),
        };
        let name = volume.name().to_owned();
        match what {
            Ok(what) => plan.volumes.push(Planned {
                path: layout.base(&name, source),
                name,
                what,
                group,
            }),
            Err(NotYet::Unread) => plan.waits = true,
            Err(NotYet::Problem(message)) => plan.problems.push(Problem {
                volume: name,
                message,
            }),
        }
    }
    plan
}

/// Sets up what is planned. Returns what could not be.
pub(crate) fn set_up(layout: &Layout, volumes: &[Planned]) -> Vec<Problem> {
    let failed = |volume: &Planned, error: io::Error| Problem {
        volume: volume.name.clone(),
        message: error.to_string(),
    };
    volumes
        .iter()
        .filter_map(|volume| {
            let result = private_directory(&layout.dir).and_then(|()| volume.set_up());
            Some(failed(volume, result.err()?))
        })
        .collect()
}

/// Nobody but the agent looks into a pod's directory; containers see what is mounted into them.
fn private_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

impl Planned {
    fn set_up(&self) -> io::Result<()> {
        match &self.what {
            What::EmptyDir(source) => self.empty_dir(source),
            What::HostPath(source) => {
                host_path::check(&self.path, source.type_.unwrap_or_default())
            }
            What::Files { files, secret } => {
                private_directory(&self.path)?;
                if *secret && is_root() {
                    self.in_memory("mode=0755")?;
                } else {
                    fs::set_permissions(&self.path, fs::Permissions::from_mode(0o755))?;
                }
                writer::write(&self.path, files, self.group)
            }
        }
    }

    fn empty_dir(&self, source: &EmptyDirSource) -> io::Result<()> {
        match source.medium.as_deref().unwrap_or_default() {
            "" => self.on_disk(),
            "Memory" => {
                private_directory(&self.path)?;
                let limit = source.size_limit.as_ref();
                let size = limit
                    .and_then(|limit| Quantity::read(limit).ok())
                    .map(Quantity::value)
                    .filter(|size| *size > 0)
                    .map(|size| format!(",size={size}"))
                    .unwrap_or_default();
                let owner = self.group.map(|gid| format!(",gid={gid}"));
                let mode = if owner.is_some() { "2777" } else { "0777" };
                let owner = owner.unwrap_or_default();
                self.in_memory(&format!("mode={mode}{owner}{size}"))
            }
            other => Err(io::Error::other(format!(
                "unknown storage medium {other:?}"
            ))),
        }
    }

    /// A directory with the right mode appears at once; one that is there keeps whatever its
    /// containers have made of it.
    fn on_disk(&self) -> io::Result<()> {
        if self.path.symlink_metadata().is_ok() {
            return Ok(());
        }
        let parent = self.path.parent().unwrap_or(&self.path);
        private_directory(parent)?;
        // No volume has a name with a dot.
        let new = parent.join(format!("{}.new", self.name));
        if new.symlink_metadata().is_ok() {
            fs::remove_dir(&new)?;
        }
        fs::create_dir(&new)?;
        let mut mode = 0o777;
        if let Some(group) = self.group {
            std::os::unix::fs::lchown(&new, None, Some(group))?;
            mode |= 0o2000;
        }
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
        fs::rename(&new, &self.path)
    }

    /// Mounts memory onto the volume's directory, unless an agent before has.
    fn in_memory(&self, options: &str) -> io::Result<()> {
        let real = self.path.canonicalize()?;
        if mount_table::below(&real)?.contains(&real) {
            return Ok(());
        }
        let tmpfs = |options: String| {
            let options = std::ffi::CString::new(options)?;
            let flags = MountFlags::empty();
            mount(mount_table::OWN, &real, "tmpfs", flags, Some(&*options)).map_err(io::Error::from)
        };
        // What is in memory should stay there, where the kernel knows how.
        tmpfs(format!("{options},noswap"))
            .or_else(|_| tmpfs(options.to_owned()))
            .map_err(|error| {
                let why = format!("cannot mount memory on {}: {error}", real.display());
                io::Error::new(error.kind(), why)
            })
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A mount of a container, before its `subPath` has been looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    volume: String,
    /// Counts the container's mounts.
    index: usize,
    base: PathBuf,
    sub_path: Option<PathBuf>,
    container_path: PathBuf,
    read_only: bool,
    propagation: Propagation,
}

/// What a container mounts, or what is wrong with it.
pub(crate) fn wanted(
    pod: &Pod,
    container: &Container,
    layout: &Layout,
    env: &Environment,
) -> Result<Vec<Wanted>, Waiting> {
    let mounts = container.volume_mounts.iter().enumerate();
    mounts
        .map(|(index, mount)| {
            let name = mount.name.as_deref().unwrap_or_default();
            let volume = pod.spec.volumes.iter().find(|v| v.name() == name);
            let source = volume.map(belay_api::pod::Volume::source).ok_or_else(|| {
                Waiting::config(format!(
                    "cannot find volume {name:?} to mount into container {:?}",
                    container.name
                ))
            })?;
            let projected = matches!(source, VolumeSource::ConfigMap(_) | VolumeSource::Secret(_));
            Ok(Wanted {
                volume: name.to_owned(),
                index,
                base: layout.base(name, source),
                sub_path: sub_path(mount, env)?,
                container_path: Path::new("/")
                    .join(mount.mount_path.as_deref().unwrap_or_default()),
                read_only: projected || mount.read_only == Some(true),
                propagation: match mount.mount_propagation.as_deref() {
                    Some("Bidirectional") => Propagation::Bidirectional,
                    Some("HostToContainer") => Propagation::HostToContainer,
                    _ => Propagation::None,
                },
            })
        })
        .collect()
}

/// The part of the volume that a mount shows, if it is not the whole.
fn sub_path(mount: &VolumeMount, env: &Environment) -> Result<Option<PathBuf>, Waiting> {
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let path = match (set(&mount.sub_path), set(&mount.sub_path_expr)) {
        (Some(path), _) => path,
        (None, Some(expression)) => {
            let path = expand(&expression, &env.known);
            // An unknown variable would silently become a directory of that name.
            if expand(&path, &env.known).contains("$(") {
                return Err(Waiting::config(format!(
                    "the subPathExpr {expression:?} uses a variable that the container does not have"
                )));
            }
            path
        }
        (None, None) => return Ok(None),
    };
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(Waiting::config(format!(
            "the subPath {path:?} leads out of its volume"
        )));
    }
    Ok(Some(PathBuf::from(path)))
}

/// Makes the mounts of a container that is about to be started ready for its runtime.
pub(crate) async fn prepare(
    data_dir: &Path,
    config: &ContainerConfig,
    wanted: Vec<Wanted>,
) -> Result<Vec<Mount>, Waiting> {
    let layout = Layout::new(data_dir, &config.pod_uid);
    let container = config.name.clone();
    let made = tokio::task::spawn_blocking(move || mounts(&layout, &container, &wanted)).await;
    made.unwrap_or_else(|error| Err(Waiting::config(format!("cannot prepare mounts: {error}"))))
}

fn mounts(layout: &Layout, container: &str, wanted: &[Wanted]) -> Result<Vec<Mount>, Waiting> {
    wanted
        .iter()
        .map(|mount| {
            let host_path = match &mount.sub_path {
                None => mount.base.clone(),
                Some(sub) => {
                    let target = layout.sub_path(&mount.volume, container, mount.index);
                    sub_path::bind(&mount.base, sub, &target).map_err(|error| {
                        let volume = &mount.volume;
                        Waiting::config(format!(
                            "failed to prepare subPath for volumeMount {volume:?} of container {container:?}: {error}"
                        ))
                    })?;
                    target
                }
            };
            Ok(Mount {
                host_path,
                container_path: mount.container_path.clone(),
                read_only: mount.read_only,
                propagation: mount.propagation,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
