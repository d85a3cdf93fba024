//! What is to be stopped, from a pod's spec and what runs of it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belay_api::gates::{Feature, FeatureGates};
use belay_api::pod::{Container as Declared, Pod};
use belay_core::termination::{Cause, Container, Early, Hook, Plan, Role, Sources};

use crate::pods::hook::sleep_time;
use crate::pods::status;
use crate::pods::tracked::{Instance, Tracked};

/// How long a pod that is deleted may take.
pub(crate) fn grace(pod: &Pod, gone: bool) -> Duration {
    // Only a deletion without grace makes an object disappear before its containers.
    if gone {
        return Duration::ZERO;
    }
    probe_grace(pod, None)
}

/// How long a container may take that a probe ends, which may say so itself.
pub(crate) fn probe_grace(pod: &Pod, probe: Option<i64>) -> Duration {
    let sources = Sources {
        deletion: pod.metadata.deletion_grace_period_seconds,
        probe,
        pod: pod.spec.termination_grace_period_seconds,
    };
    sources.effective()
}

/// What the plan of a termination takes besides the pod.
pub(super) struct Facts<'a> {
    pub(super) uid: &'a str,
    pub(super) boot_id: &'a str,
    pub(super) gates: FeatureGates,
    pub(super) tracked: &'a BTreeMap<String, Tracked>,
    pub(super) counted: &'a BTreeSet<Early>,
}

/// The plan to end the containers of a pod for which `wanted` holds.
pub(super) fn plan(
    pod: &Pod,
    facts: &Facts<'_>,
    cause: Cause,
    grace: Duration,
    wanted: impl Fn(&str) -> bool,
) -> Plan {
    let init = pod.spec.init_containers.iter().map(|declared| {
        let sidecar = declared.is_sidecar();
        (declared, if sidecar { Role::Sidecar } else { Role::Init })
    });
    let main = pod.spec.containers.iter().map(|main| (main, Role::Main));
    let mut declared: Vec<(String, Option<&Declared>, Role)> = init
        .chain(main)
        .map(|(declared, role)| (declared.name.clone(), Some(declared), role))
        .collect();
    // Of a pod whose object is gone only the containers are known.
    for name in facts.tracked.keys() {
        if pod.container(name).is_none() {
            declared.push((name.clone(), None, Role::Main));
        }
    }
    let mut containers = Vec::new();
    let mut running = BTreeSet::new();
    for (name, declared, role) in declared.into_iter().filter(|(name, ..)| wanted(name)) {
        let Some(known) = facts.tracked.get(&name) else {
            continue;
        };
        let Some(instance) = &known.current else {
            continue;
        };
        if instance.exit.is_none() {
            running.insert(instance.id.as_str().to_owned());
        }
        containers.push(container(name, declared, role, instance, facts.gates));
    }
    Plan {
        pod_uid: facts.uid.to_owned(),
        pod_name: (pod.namespace().to_owned(), pod.name().to_owned()),
        boot_id: facts.boot_id.to_owned(),
        cause,
        grace,
        sleep_enabled: facts.gates.enabled(Feature::PodLifecycleSleepAction),
        containers,
        running,
        counted: facts.counted.clone(),
    }
}

/// What a termination takes of one of the pod's containers that came up after it had begun.
pub(super) fn latecomer(
    pod: &Pod,
    name: &str,
    instance: &Instance,
    gates: FeatureGates,
) -> Container {
    let init = pod.spec.init_containers.iter().find(|c| c.name == name);
    let role = match init {
        Some(declared) if declared.is_sidecar() => Role::Sidecar,
        Some(_) => Role::Init,
        None => Role::Main,
    };
    container(name.to_owned(), pod.container(name), role, instance, gates)
}

fn container(
    name: String,
    declared: Option<&Declared>,
    role: Role,
    instance: &Instance,
    gates: FeatureGates,
) -> Container {
    let unknown = Declared::default();
    let declared = declared.unwrap_or(&unknown);
    let signal = status::stop_signal(declared, instance.image_stop_signal.as_deref(), gates);
    Container {
        name,
        id: instance.id.as_str().to_owned(),
        role,
        hook: hook(declared),
        signal: signal.to_string(),
    }
}

fn hook(container: &Declared) -> Option<Hook> {
    let handler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
    let given = |field: &str| handler.other.get(field).is_some_and(|v| !v.is_null());
    if handler.exec.is_some() {
        return Some(Hook::Exec);
    }
    if let Some(sleep) = &handler.sleep {
        return Some(Hook::Sleep {
            time: sleep_time(sleep.seconds),
        });
    }
    if given("httpGet") {
        return Some(Hook::HttpGet);
    }
    if given("tcpSocket") {
        return Some(Hook::TcpSocket);
    }
    // One that nobody knows: running it fails, and that is told.
    Some(Hook::Exec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn running(id: &str) -> Tracked {
        let mut tracked = Tracked::default();
        tracked.started(Instance::test(id, 0));
        tracked
    }

    fn planned(pod: &Pod, names: &[&str], gates: FeatureGates) -> Plan {
        let tracked = names
            .iter()
            .map(|name| ((*name).to_owned(), running(&format!("{name}-1"))))
            .collect();
        let facts = Facts {
            uid: "u",
            boot_id: "b",
            gates,
            tracked: &tracked,
            counted: &BTreeSet::new(),
        };
        plan(
            pod,
            &facts,
            Cause::PodDeleted,
            Duration::from_secs(9),
            |_| true,
        )
    }

    #[test]
    fn the_delete_request_s_grace_beats_the_pod_s_and_a_pod_that_is_gone_has_none() {
        let asked = pod(json!({
            "metadata": {"deletionGracePeriodSeconds": 3},
            "spec": {"terminationGracePeriodSeconds": 9}
        }));
        assert_eq!(grace(&asked, false).as_secs(), 3);
        let own = pod(json!({"spec": {"terminationGracePeriodSeconds": 9}}));
        assert_eq!(grace(&own, false).as_secs(), 9);
        assert_eq!(grace(&pod(json!({})), false).as_secs(), 30);
        for gone in [&asked, &own] {
            assert_eq!(grace(gone, true), Duration::ZERO);
        }
    }

    #[test]
    fn containers_come_in_the_order_of_the_spec_with_their_parts_signals_and_hooks() {
        let pre_stop = |handler: Value| json!({"preStop": handler});
        let pod = pod(json!({"spec": {
            "initContainers": [
                {"name": "i"},
                {"name": "proxy", "restartPolicy": "Always", "lifecycle": pre_stop(json!({"sleep": {"seconds": 2}}))},
            ],
            "containers": [
                {"name": "z", "stopSignal": "SIGQUIT", "lifecycle": pre_stop(json!({"exec": {"command": ["x"]}}))},
                {"name": "a", "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"httpGet": {"port": 1}}}},
                {"name": "t", "lifecycle": pre_stop(json!({"tcpSocket": {"port": 1}}))},
                {"name": "never"},
            ],
        }}));
        let all = ["a", "i", "other", "proxy", "t", "z"];
        let plan = planned(&pod, &all, FeatureGates::default());
        let parts: Vec<_> = plan
            .containers
            .iter()
            .map(|c| (c.name.as_str(), c.role, c.signal.as_str(), c.hook))
            .collect();
        let time = Duration::from_secs(2);
        assert_eq!(
            parts,
            [
                ("i", Role::Init, "SIGTERM", None),
                (
                    "proxy",
                    Role::Sidecar,
                    "SIGTERM",
                    Some(Hook::Sleep { time })
                ),
                ("z", Role::Main, "SIGQUIT", Some(Hook::Exec)),
                ("a", Role::Main, "SIGUSR1", Some(Hook::HttpGet)),
                ("t", Role::Main, "SIGTERM", Some(Hook::TcpSocket)),
                ("other", Role::Main, "SIGTERM", None),
            ]
        );
        assert_eq!(plan.running.len(), 6);
        assert!(plan.sleep_enabled);
    }

    #[test]
    fn the_spec_comes_before_the_image_and_the_image_before_sigterm() {
        let pod = pod(json!({"spec": {
            "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init"}],
            "containers": [{"name": "own", "stopSignal": "SIGUSR1"}, {"name": "other"}],
        }}));
        let late = |name: &str, image: Option<&str>| {
            let instance = Instance {
                image_stop_signal: image.map(str::to_owned),
                ..Instance::test("c1", 0)
            };
            let container = latecomer(&pod, name, &instance, FeatureGates::default());
            (container.role, container.signal)
        };
        assert_eq!(late("own", Some("SIGQUIT")), (Role::Main, "SIGUSR1".into()));
        assert_eq!(late("other", Some("quit")), (Role::Main, "SIGQUIT".into()));
        assert_eq!(late("other", Some("what?")).1, "SIGTERM");
        assert_eq!(late("other", None).1, "SIGTERM");
        assert_eq!(late("side", Some("3")), (Role::Sidecar, "SIGQUIT".into()));
        assert_eq!(late("init", None).0, Role::Init);
        assert_eq!(late("unheard of", Some("3")).0, Role::Main);
    }

    #[test]
    fn gates_that_are_off_leave_sigterm_and_no_sleep() {
        let pod = pod(json!({"spec": {"containers": [{"name": "c", "stopSignal": "SIGQUIT"}]}}));
        let gates = FeatureGates::default()
            .with(Feature::ContainerStopSignals, false)
            .with(Feature::PodLifecycleSleepAction, false);
        let plan = planned(&pod, &["c"], gates);
        assert_eq!(plan.containers[0].signal, "SIGTERM");
        assert!(!plan.sleep_enabled);
    }
}
