//! Starting a container, and clearing up what a start before it left.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_action::ContainerId;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::sandbox::is_taken;
use super::{OWNER, container_turn, settle, told, translate};
use crate::blocking::blocking;
use crate::cri::client::{CONTAINER_NAME, CallError, POD_UID};
use crate::cri::protocol::runtime::v1::{
    Container, ContainerState as State, CreateContainerRequest, Image,
};
use crate::cri::{CriRuntime, Shared, refusal};
use crate::{ContainerConfig, RuntimeError};

const START: &str = "start a container";
const CREATE: &str = "create a container";
/// How long a name may be taken by a call that somebody has given up.
const TAKEN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);

/// Starts a container, unless that has happened already.
pub(super) async fn start(
    runtime: &CriRuntime,
    config: &ContainerConfig,
) -> Result<ContainerId, RuntimeError> {
    let shared = &runtime.shared;
    let node = shared.node()?;
    let turn = container_turn(&config.pod_uid, &config.name);
    let _turn = node.turns.take(&turn).await;
    let request = request(shared, config).await?;
    let begin = Instant::now();
    let id = loop {
        let refused = match left(runtime, config).await {
            Ok(Some(id)) => return Ok(id),
            Ok(None) => match shared.client.create_container(request.clone()).await {
                Ok(id) => break id,
                Err(error) => error.during(CREATE),
            },
            Err(error) => error,
        };
        // Busy with a call of an agent before this one: that is about to come to something.
        let busy = matches!(&refused, RuntimeError::Call { problem, .. } if is_busy(problem));
        if !busy || begin.elapsed() >= TAKEN {
            return Err(refused);
        }
        sleep(PAUSE).await;
    };
    let id = ContainerId::new(id).map_err(|error| RuntimeError::Call {
        what: CREATE,
        problem: error.to_string(),
    })?;
    match shared.client.start_container(id.as_str()).await {
        Ok(()) => {}
        Err(CallError::Answer(status)) => {
            let removed = shared.client.remove_container(id.as_str()).await;
            if let Err(error) = removed {
                warn!(container = %id, %error, "a container that did not start is not removed");
            }
            return Err(refusal::of_container(status.message()).map_or_else(
                || CallError::Answer(status.clone()).during(START),
                |(reason, message)| RuntimeError::StartFailed { reason, message },
            ));
        }
        // It may have started all the same: then it is in the list.
        Err(error) => return Err(error.during(START)),
    }
    info!(container = %id, pod = config.pod_name, name = config.name, "container started");
    // From now on the kernel can be asked, whatever becomes of the runtime.
    let (runtime, started) = (runtime.clone(), id.clone());
    tokio::spawn(async move {
        if let Err(error) = runtime.container(&started).await {
            debug!(container = %started, %error, "the first process is not looked at yet");
        }
    });
    Ok(id)
}

/// Whether a container or its name is in use by a call that is under way.
fn is_busy(problem: &str) -> bool {
    let words = ["in starting state", "in removing state"];
    is_taken(problem) || words.iter().any(|words| problem.contains(words))
}

/// What is left of starts before: the container itself if it was started, nothing otherwise.
async fn left(
    runtime: &CriRuntime,
    config: &ContainerConfig,
) -> Result<Option<ContainerId>, RuntimeError> {
    let shared = &runtime.shared;
    let labels = [
        (OWNER, shared.node()?.owner.as_str()),
        (POD_UID, config.pod_uid.as_str()),
        (CONTAINER_NAME, config.name.as_str()),
    ];
    let found = shared.client.containers_with(&labels).await;
    for container in found.map_err(|error| error.during(START))? {
        let attempt = container.metadata.as_ref().map_or(0, |meta| meta.attempt);
        let this = attempt == config.restart_count;
        let id = ContainerId::new(&container.id).map_err(|error| RuntimeError::Call {
            what: START,
            problem: error.to_string(),
        })?;
        match container.state() {
            State::ContainerCreated | State::ContainerUnknown => discard(shared, &id).await?,
            State::ContainerExited if this => {
                let status = settle::status(&shared.client, &id).await?;
                if !settle::never_ran(&status) {
                    return Ok(Some(id));
                }
                discard(shared, &id).await?;
            }
            State::ContainerExited => {}
            State::ContainerRunning if this => return Ok(Some(id)),
            State::ContainerRunning => {
                if runtime.settled(&id).await?.pid.is_some() {
                    return Err(RuntimeError::StillRunning { id });
                }
            }
        }
    }
    Ok(None)
}

/// Removes a container that has not run, or of which nobody knows whether it does.
async fn discard(shared: &Shared, id: &ContainerId) -> Result<(), RuntimeError> {
    let removed = shared.client.remove_container(id.as_str()).await;
    removed.map_err(|error| error.during("remove what a start has left"))
}

/// Removes a container that was made and has not run, unless it is just being started.
///
/// That may take as long as the runtime's storage does, so it is a task of its own which nobody owns:
/// it has the container's turn, on which the next start waits, and ends with its one call. What it
/// leaves, also because the agent ends, the next list or start finds again.
pub(super) async fn clear_up(shared: Arc<Shared>, container: Container) {
    let label = |name: &str| container.labels.get(name).map_or("", String::as_str);
    let turn = container_turn(label(POD_UID), label(CONTAINER_NAME));
    let Ok(node) = shared.node() else { return };
    let Some(_turn) = node.turns.try_take(&turn) else {
        return;
    };
    let Ok(id) = ContainerId::new(&container.id) else {
        return;
    };
    // It may have been started since it was listed.
    let status = settle::status(&shared.client, &id).await;
    if !status.is_ok_and(|status| settle::never_ran(&status)) {
        return;
    }
    match shared.client.remove_container(&container.id).await {
        Ok(()) => info!(
            container = container.id,
            "a container that never started is removed"
        ),
        Err(error) => debug!(container = container.id, %error, "it is not removed"),
    }
}

async fn request(
    shared: &Shared,
    config: &ContainerConfig,
) -> Result<CreateContainerRequest, RuntimeError> {
    let (client, node) = (&shared.client, shared.node()?);
    let failed = |error: CallError| error.during(CREATE);
    let invalid = |message: String| RuntimeError::StartFailed {
        reason: "InvalidConfig",
        message,
    };
    node.settings(client).await.map_err(failed)?;
    let sandbox = client.sandbox_status(&config.sandbox).await;
    let sandbox = sandbox.map_err(failed)?;
    let (image, stop_signal) = image(shared, config).await?;
    if let Some(logs) = config.log_path.parent() {
        let logs = logs.to_owned();
        blocking(move || fs::create_dir_all(&logs).map_err(RuntimeError::io("create", &logs)))
            .await?;
    }
    let recorded = serde_json::to_string(&to_be_recorded(config));
    let recorded = recorded.map_err(|error| invalid(error.to_string()))?;
    let owner = &node.owner;
    let stop_signal = stop_signal.as_deref();
    let group = node.group(&config.pod_uid);
    Ok(CreateContainerRequest {
        pod_sandbox_id: config.sandbox.clone(),
        sandbox_config: Some(translate::sandbox_again(&sandbox, config, group)),
        config: Some(translate::container(
            config,
            &sandbox,
            &image,
            stop_signal,
            recorded,
            owner,
        )),
    })
}

/// What is needed to adopt a container. What it was told to run, and with what, is not: that may be
/// secret, and large, and whoever lists containers is told of all their annotations.
fn to_be_recorded(config: &ContainerConfig) -> ContainerConfig {
    ContainerConfig {
        command: Vec::new(),
        args: Vec::new(),
        env: Vec::new(),
        ..config.clone()
    }
}

/// The image, and its stop signal.
async fn image(
    shared: &Shared,
    config: &ContainerConfig,
) -> Result<(Image, Option<String>), RuntimeError> {
    // Its name may mean another image by now.
    for name in [&config.image_id, &config.image] {
        if name.is_empty() {
            continue;
        }
        let answer = shared.client.image(name).await;
        let answer = answer.map_err(|error| error.during(CREATE))?;
        let stop_signal = told(&answer).and_then(|image| image.stop_signal);
        if let Some(image) = answer.image {
            return Ok((image, stop_signal));
        }
    }
    Err(RuntimeError::Call {
        what: CREATE,
        problem: format!("the image {:?} is not on this node any more", config.image),
    })
}
