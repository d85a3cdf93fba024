//! Logs that have grown too long. A CRI runtime writes them and never cuts them.

use std::io;
use std::path::PathBuf;

use tracing::{debug, info, warn};

use super::OWNER;
use super::translate::CONFIG;
use crate::blocking::blocking;
use crate::cri::Shared;
use crate::cri::protocol::runtime::v1::{Container, ContainerState};
use crate::{ContainerConfig, RuntimeError, rotation};

/// Renames the logs of running containers that have grown too long, and has the runtime open new
/// ones.
pub(super) async fn bound(shared: &Shared) -> Result<(), RuntimeError> {
    let node = shared.node()?;
    let labels = [(OWNER, node.owner.as_str())];
    let found = shared.client.containers_with(&labels).await;
    for container in found.map_err(|error| error.during("list the containers"))? {
        let Some(path) = written(&container) else {
            continue;
        };
        // The others grow all the same.
        if let Err(error) = bound_one(shared, &container.id, path).await {
            warn!(container = container.id, %error, "a log is not rotated");
        }
    }
    Ok(())
}

async fn bound_one(shared: &Shared, id: &str, path: PathBuf) -> Result<(), RuntimeError> {
    let log = path.clone();
    let renamed = blocking(move || renamed(&log).map_err(RuntimeError::io("rotate", &log)));
    if !renamed.await? {
        return Ok(());
    }
    match shared.client.reopen_log(id).await {
        Ok(()) => info!(container = id, path = %path.display(), "log rotated"),
        // It has ended, or the runtime is away: what it writes is in the renamed file until the
        // next look.
        Err(error) => debug!(container = id, %error, "a log is not opened anew"),
    }
    Ok(())
}

/// The log that a container is writing.
fn written(container: &Container) -> Option<PathBuf> {
    if container.state() != ContainerState::ContainerRunning {
        return None;
    }
    let config = container.annotations.get(CONFIG)?;
    let config: ContainerConfig = serde_json::from_str(config).ok()?;
    Some(config.log_path)
}

/// Whether a log has been renamed: now, or by somebody who did not come to having it opened anew.
fn renamed(path: &std::path::Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(log) if log.len() < rotation::LIMIT => Ok(false),
        Ok(_) => rotation::rotate(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}
