//! A pod as the runtime recorded it: chosen among what the runtime still has of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use belay_action::ContainerId;

use super::client::CONTAINER_NAME;
use super::protocol::runtime::v1::{
    Container, ContainerState, NamespaceMode, PodSandbox, PodSandboxState, PodSandboxStatus,
};
use crate::{RecordedContainer, RecordedPod};

/// The sandbox that counts: one that is ready before one that is not, then the newest.
pub(crate) fn current(sandboxes: Vec<PodSandbox>) -> Option<PodSandbox> {
    sandboxes.into_iter().max_by_key(|sandbox| {
        let attempt = sandbox.metadata.as_ref().map_or(0, |meta| meta.attempt);
        let ready = sandbox.state() == PodSandboxState::SandboxReady;
        (ready, attempt, sandbox.created_at)
    })
}

/// Puts a pod together.
pub(crate) fn recorded(
    uid: &str,
    sandbox: PodSandbox,
    status: Option<&PodSandboxStatus>,
    containers: Vec<Container>,
) -> RecordedPod {
    let metadata = sandbox.metadata.unwrap_or_default();
    RecordedPod {
        uid: uid.to_owned(),
        namespace: metadata.namespace,
        name: metadata.name,
        annotations: sandbox.annotations.into_iter().collect(),
        address: status.and_then(address),
        containers: newest(containers),
    }
}

/// The pod's own address.
pub(crate) fn address(status: &PodSandboxStatus) -> Option<std::net::IpAddr> {
    let options = status
        .linux
        .as_ref()
        .and_then(|linux| linux.namespaces.as_ref()?.options.as_ref());
    if options.is_some_and(|options| options.network() == NamespaceMode::Node) {
        return None;
    }
    status.network.as_ref()?.ip.parse().ok()
}

/// The newest incarnation of each container.
fn newest(mut containers: Vec<Container>) -> BTreeMap<String, RecordedContainer> {
    let attempt = |container: &Container| container.metadata.as_ref().map_or(0, |m| m.attempt);
    containers.sort_by_key(|container| Reverse((attempt(container), container.created_at)));
    let mut all = BTreeMap::new();
    for container in containers {
        // A container without a name of Kubernetes' is none of a pod's.
        let Some(name) = container.labels.get(CONTAINER_NAME) else {
            continue;
        };
        let Ok(id) = ContainerId::new(&container.id) else {
            continue;
        };
        all.entry(name.clone()).or_insert(RecordedContainer {
            id,
            restart_count: attempt(&container),
            running: container.state() == ContainerState::ContainerRunning,
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::protocol::runtime::v1::{
        ContainerMetadata, LinuxPodSandboxStatus, Namespace, NamespaceOption, PodSandboxMetadata,
        PodSandboxNetworkStatus,
    };

    fn sandbox(id: &str, state: PodSandboxState, attempt: u32, created_at: i64) -> PodSandbox {
        PodSandbox {
            id: id.to_owned(),
            metadata: Some(PodSandboxMetadata {
                attempt,
                ..PodSandboxMetadata::default()
            }),
            state: state.into(),
            created_at,
            ..PodSandbox::default()
        }
    }

    fn container(name: &str, id: &str, attempt: u32, state: ContainerState) -> Container {
        Container {
            id: id.to_owned(),
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt,
            }),
            state: state.into(),
            created_at: 5,
            labels: [(CONTAINER_NAME.to_owned(), name.to_owned())].into(),
            ..Container::default()
        }
    }

    #[test]
    fn a_ready_sandbox_beats_a_newer_dead_one_and_the_newer_one_its_like() {
        use PodSandboxState::{SandboxNotready as Dead, SandboxReady as Ready};
        let chosen = |all: Vec<PodSandbox>| current(all).map(|sandbox| sandbox.id);
        assert_eq!(chosen(vec![]), None);
        let mixed = vec![sandbox("old", Ready, 0, 1), sandbox("new", Dead, 1, 2)];
        assert_eq!(chosen(mixed).as_deref(), Some("old"));
        let ready = vec![sandbox("new", Ready, 1, 2), sandbox("old", Ready, 0, 1)];
        assert_eq!(chosen(ready).as_deref(), Some("new"));
        let dead = vec![sandbox("old", Dead, 0, 1), sandbox("new", Dead, 1, 2)];
        assert_eq!(chosen(dead).as_deref(), Some("new"));
    }

    #[test]
    fn the_newest_incarnation_counts_whether_it_runs_or_not() {
        use ContainerState::{ContainerExited as Exited, ContainerRunning as Running};
        let mut unlabelled = container("x", "x0", 9, Running);
        unlabelled.labels.clear();
        let all = newest(vec![
            container("db", "db0", 0, Exited),
            container("db", "db2", 2, Running),
            container("db", "db1", 1, Exited),
            container("web", "web0", 0, Running),
            container("web", "web1", 1, Exited),
            unlabelled,
        ]);
        let told: Vec<_> = all
            .iter()
            .map(|(name, one)| {
                (
                    name.as_str(),
                    one.id.as_str(),
                    one.restart_count,
                    one.running,
                )
            })
            .collect();
        assert_eq!(told, [("db", "db2", 2, true), ("web", "web1", 1, false)]);
    }

    #[test]
    fn the_hosts_address_is_not_the_pods() {
        let status = |mode: NamespaceMode| PodSandboxStatus {
            network: Some(PodSandboxNetworkStatus {
                ip: "10.1.2.3".to_owned(),
            }),
            linux: Some(LinuxPodSandboxStatus {
                namespaces: Some(Namespace {
                    options: Some(NamespaceOption {
                        network: mode.into(),
                        ..NamespaceOption::default()
                    }),
                }),
            }),
            ..PodSandboxStatus::default()
        };
        let own = address(&status(NamespaceMode::Pod));
        assert_eq!(own, Some([10, 1, 2, 3].into()));
        assert_eq!(address(&status(NamespaceMode::Node)), None);
        assert_eq!(address(&PodSandboxStatus::default()), None);
    }
}
