//! Sandboxes: found, made, ended.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tonic::Code;
use tracing::{debug, info, warn};

use super::{OWNER, translate};
use crate::blocking::blocking;
use crate::cri::client::{CallError, Client, POD_UID};
use crate::cri::pods::address;
use crate::cri::protocol::runtime::v1::{PodSandbox, PodSandboxMetadata, PodSandboxState};
use crate::cri::{Shared, group, pause};
use crate::{PodConfig, RuntimeError, Sandbox};

const MAKE: &str = "make a sandbox";
const END: &str = "end a sandbox";
/// How long a name may be taken by a call that somebody has given up.
const TAKEN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a name is in use by a call that is under way.
pub(super) fn is_taken(message: &str) -> bool {
    message.contains("is reserved for")
}

/// Finds the pod's newest sandbox if it is ready, or makes one.
pub(super) async fn obtain(shared: Arc<Shared>, pod: PodConfig) -> Result<Sandbox, RuntimeError> {
    let (client, node) = (&shared.client, shared.node()?);
    let _turn = node.turns.take(&pod.uid).await;
    let failed = |error: CallError| error.during(MAKE);
    node.settings(client).await.map_err(failed)?;
    check_uid(&pod.uid)?;
    let begin = Instant::now();
    let mut provided = false;
    loop {
        let labels = [(OWNER, node.owner.as_str()), (POD_UID, pod.uid.as_str())];
        let all = client.sandboxes_with(&labels).await.map_err(failed)?;
        let newest = all.iter().max_by_key(|sandbox| attempt(sandbox));
        if let Some(ready) = newest.filter(|sandbox| is_ready(sandbox)) {
            return tell(client, &ready.id).await.map_err(failed);
        }
        let next = newest.map_or(0, |newest| attempt(newest) + 1);
        for dead in &all {
            // Its containers may go on without it, and its network is still taken.
            client.stop_sandbox(&dead.id).await.map_err(failed)?;
        }
        // The newest tells the next one its number.
        let older = |dead: &&PodSandbox| attempt(dead) + 1 < next;
        let old: Vec<String> = all
            .iter()
            .filter(older)
            .map(|dead| dead.id.clone())
            .collect();
        clear_away(client, &labels, &old).await;
        let config = translate::sandbox(&pod, next, &node.owner, node.group(&pod.uid));
        let refusal = match client.run_sandbox(config).await {
            Ok(id) => {
                info!(pod = %pod.name, sandbox = id, attempt = next, "sandbox made");
                return tell(client, &id).await.map_err(failed);
            }
            Err(CallError::Answer(status)) => status,
            Err(error) => return Err(failed(error)),
        };
        let image = pause::missing(refusal.message()).filter(|_| !provided);
        if let Some(image) = image {
            provided = true;
            pause::provide(client, image).await.map_err(failed)?;
        } else if is_taken(refusal.message()) && begin.elapsed() < TAKEN {
            // By an agent before this one: it is about to come to something, or to be taken back.
            sleep(PAUSE).await;
        } else {
            return Err(failed(CallError::Answer(refusal)));
        }
    }
}

/// Removes those of a pod's dead sandboxes in which no container ended that is still known. What
/// stays goes with the pod.
async fn clear_away(client: &Client, labels: &[(&str, &str)], dead: &[String]) {
    if dead.is_empty() {
        return;
    }
    let containers = match client.containers_with(labels).await {
        Ok(containers) => containers,
        Err(error) => return debug!(%error, "old sandboxes are not looked for"),
    };
    let used: HashSet<&str> = containers
        .iter()
        .map(|container| container.pod_sandbox_id.as_str())
        .collect();
    for id in dead.iter().filter(|id| !used.contains(id.as_str())) {
        match client.remove_sandbox(id).await {
            Ok(()) => info!(sandbox = id, "a dead sandbox is removed"),
            Err(error) => debug!(sandbox = id, %error, "a dead sandbox is not removed"),
        }
    }
}

/// Every sandbox of this node.
pub(super) async fn all(shared: &Shared) -> Result<Vec<Sandbox>, RuntimeError> {
    let (client, node) = (&shared.client, shared.node()?);
    let failed = |error: CallError| error.during("list the sandboxes");
    let found = client.sandboxes_with(&[(OWNER, &node.owner)]).await;
    let found = found.map_err(failed)?;
    node.addresses.keep(&found);
    let mut all = Vec::with_capacity(found.len());
    for sandbox in found {
        let ready = is_ready(&sandbox);
        // What is dead has no address, and what is ready keeps the one that it was given.
        let address = if ready {
            node.addresses.get(&sandbox.id)
        } else {
            Some(None)
        };
        if let Some(address) = address {
            let metadata = sandbox.metadata.unwrap_or_default();
            all.push(known(sandbox.id, metadata, ready, address));
            continue;
        }
        match tell(client, &sandbox.id).await {
            Ok(sandbox) => {
                node.addresses.put(&sandbox);
                all.push(sandbox);
            }
            // Removed since.
            Err(error) if error.is(Code::NotFound) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    all.sort_by(|one, other| (&one.pod_uid, one.attempt).cmp(&(&other.pod_uid, other.attempt)));
    Ok(all)
}

/// Ends all sandboxes of a pod; the runtime goes on knowing them.
pub(super) async fn stop(shared: Arc<Shared>, uid: String) -> Result<(), RuntimeError> {
    let (client, node) = (&shared.client, shared.node()?);
    let _turn = node.turns.take(&uid).await;
    let failed = |error: CallError| error.during(END);
    let labels = [(OWNER, node.owner.as_str()), (POD_UID, uid.as_str())];
    for sandbox in client.sandboxes_with(&labels).await.map_err(failed)? {
        // Also one that is dead: its network may still be taken.
        client.stop_sandbox(&sandbox.id).await.map_err(failed)?;
        info!(sandbox = sandbox.id, "sandbox stopped");
    }
    Ok(())
}

/// Ends and forgets all sandboxes of a pod.
pub(super) async fn remove(shared: Arc<Shared>, uid: String) -> Result<(), RuntimeError> {
    let (client, node) = (&shared.client, shared.node()?);
    let _turn = node.turns.take(&uid).await;
    let failed = |error: CallError| error.during(END);
    check_uid(&uid)?;
    node.settings(client).await.map_err(failed)?;
    let labels = [(OWNER, node.owner.as_str()), (POD_UID, uid.as_str())];
    let sandboxes = client.sandboxes_with(&labels).await.map_err(failed)?;
    let containers = client.containers_with(&labels).await.map_err(failed)?;
    for sandbox in sandboxes {
        client.stop_sandbox(&sandbox.id).await.map_err(failed)?;
        client.remove_sandbox(&sandbox.id).await.map_err(failed)?;
        info!(sandbox = sandbox.id, "sandbox removed");
    }
    for container in containers {
        shared.forget(&container.id).await;
    }
    let group = node.group(&uid);
    let removed = blocking(move || {
        group::remove(&group);
        Ok(())
    });
    if let Err(error) = removed.await {
        warn!(%error, "a control group is not removed");
    }
    Ok(())
}

async fn tell(client: &Client, id: &str) -> Result<Sandbox, CallError> {
    let status = client.sandbox_status(id).await?;
    let ready = status.state() == PodSandboxState::SandboxReady;
    let address = address(&status).filter(|_| ready);
    let metadata = status.metadata.unwrap_or_default();
    Ok(known(id.to_owned(), metadata, ready, address))
}

fn known(
    id: String,
    metadata: PodSandboxMetadata,
    ready: bool,
    address: Option<IpAddr>,
) -> Sandbox {
    Sandbox {
        id,
        pod_namespace: metadata.namespace,
        pod_name: metadata.name,
        pod_uid: metadata.uid,
        attempt: metadata.attempt,
        ready,
        address,
    }
}

/// The addresses of the sandboxes that are ready, so that a list of all needs one question and not
/// one for each.
#[derive(Debug, Default)]
pub(super) struct Addresses(Mutex<HashMap<String, Option<IpAddr>>>);

impl Addresses {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Option<IpAddr>>> {
        // A map is whole whatever happened to whoever held it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &str) -> Option<Option<IpAddr>> {
        self.all().get(id).copied()
    }

    fn put(&self, sandbox: &Sandbox) {
        if sandbox.ready {
            self.all().insert(sandbox.id.clone(), sandbox.address);
        }
    }

    /// Forgets those that are not there any more.
    fn keep(&self, found: &[PodSandbox]) {
        let found: HashSet<&str> = found.iter().map(|one| one.id.as_str()).collect();
        self.all().retain(|id, _| found.contains(id.as_str()));
    }
}

/// A UID becomes part of a control group's path.
fn check_uid(uid: &str) -> Result<(), RuntimeError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !uid.is_empty() && uid.bytes().all(good) {
        return Ok(());
    }
    Err(RuntimeError::Call {
        what: MAKE,
        problem: format!("{uid:?} is not the UID of a pod"),
    })
}

fn attempt(sandbox: &PodSandbox) -> u32 {
    sandbox.metadata.as_ref().map_or(0, |meta| meta.attempt)
}

fn is_ready(sandbox: &PodSandbox) -> bool {
    sandbox.state() == PodSandboxState::SandboxReady
}
