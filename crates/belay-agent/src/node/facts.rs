//! What a node says of itself.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

/// How many pods a node takes.
const PODS: u32 = 110;
/// Where the server finds the fingerprint of the agent's serving certificate.
pub(crate) const FINGERPRINT_ANNOTATION: &str = "apps.k8s.io/serving-cert-sha256";

/// The machine, read once at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) memory_kib: u64,
    pub(crate) machine_id: String,
    pub(crate) boot_id: String,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
}

impl Machine {
    /// Reads the machine. What cannot be read is left empty: a node without a machine ID is still a
    /// node.
    pub(crate) fn read() -> Self {
        let file = |path: &str| {
            std::fs::read_to_string(path)
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kib: memory_kib(&file("/proc/meminfo")).unwrap_or(0),
            machine_id: file("/etc/machine-id"),
            boot_id: crate::clock::boot_id(),
            kernel: file("/proc/sys/kernel/osrelease"),
            os_image: os_image(&file("/etc/os-release")).unwrap_or_else(|| "Linux".to_owned()),
        }
    }
}

fn memory_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn os_image(os_release: &str) -> Option<String> {
    let name = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// Kubernetes' name for the processor.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Everything that goes into the node's object.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) fingerprint: String,
    pub(crate) runtime: String,
    pub(crate) machine: Machine,
}

impl Facts {
    fn metadata(&self) -> Value {
        json!({
            "labels": {
                "kubernetes.io/hostname": self.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture(),
            },
            "annotations": { FINGERPRINT_ANNOTATION: self.fingerprint },
        })
    }

    /// The object of a node that is not there yet.
    pub(crate) fn object(&self) -> Value {
        let mut metadata = self.metadata();
        metadata["name"] = json!(self.name);
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})
    }

    /// Brings labels and annotations of an existing node up to date and leaves the others alone.
    pub(crate) fn metadata_patch(&self) -> Value {
        json!({ "metadata": self.metadata() })
    }

    /// The whole status; lists replace what was there.
    pub(crate) fn status_patch(&self, readiness: &Readiness, now: Timestamp) -> Value {
        let machine = &self.machine;
        let resources = json!({
            "cpu": machine.cpus.to_string(),
            "memory": format!("{}Ki", machine.memory_kib),
            "pods": PODS.to_string(),
        });
        let (status, reason, message) = match &readiness.problem {
            None => ("True", "AgentReady", "the agent runs pods"),
            Some(problem) => ("False", "RuntimeNotReady", problem.as_str()),
        };
        json!({"status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": self.address.to_string()},
                {"type": "Hostname", "address": self.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "conditions": [{
                "type": "Ready",
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": Time(now),
                "lastTransitionTime": Time(readiness.since),
            }],
            "nodeInfo": {
                "machineID": machine.machine_id,
                "systemUUID": machine.machine_id,
                "bootID": machine.boot_id,
                "kernelVersion": machine.kernel,
                "osImage": machine.os_image,
                "containerRuntimeVersion":
                    format!("{}://{}", self.runtime, env!("CARGO_PKG_VERSION")),
                "kubeletVersion": format!("v{}+belay", env!("CARGO_PKG_VERSION")),
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": architecture(),
            },
        }})
    }
}

/// Whether the node can run pods, and since when that is so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// Why it cannot.
    pub(crate) problem: Option<String>,
    since: Timestamp,
}

impl Readiness {
    pub(crate) fn new(since: Timestamp) -> Self {
        Readiness {
            problem: None,
            since,
        }
    }

    pub(crate) fn see(&mut self, problem: Option<String>, now: Timestamp) {
        if problem.is_some() != self.problem.is_some() {
            self.since = now;
        }
        self.problem = problem;
    }

    /// What an existing node says has been so for longer, if it says the same.
    pub(crate) fn go_on(&mut self, node: &Node) {
        let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
        let ready = conditions.and_then(|all| all.iter().find(|one| one.type_ == "Ready"));
        let Some(ready) = ready else { return };
        let said = if self.problem.is_none() {
            "True"
        } else {
            "False"
        };
        if ready.status == said
            && let Some(since) = &ready.last_transition_time
        {
            self.since = since.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            name: "n1".into(),
            address: "192.0.2.7".parse().unwrap(),
            port: 10250,
            fingerprint: "ab".into(),
            runtime: "process".to_owned(),
            machine: Machine {
                cpus: 2,
                memory_kib: 2048,
                ..Machine::default()
            },
        }
    }

    #[test]
    fn a_node_s_object_and_status_read_as_a_node() {
        let mut value = facts().object();
        let at: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let now: Timestamp = "2030-01-02T00:00:00Z".parse().unwrap();
        value["status"] = facts().status_patch(&Readiness::new(at), now)["status"].take();
        let node: Node = serde_json::from_value(value).unwrap();
        let mut successor = Readiness::new(now);
        successor.go_on(&node);
        assert_eq!(successor, Readiness::new(at), "it was ready all the time");
        let status = node.status.unwrap();
        assert_eq!(status.addresses.unwrap()[0].address, "192.0.2.7");
        assert_eq!(
            status
                .daemon_endpoints
                .unwrap()
                .kubelet_endpoint
                .unwrap()
                .port,
            10250
        );
        assert_eq!(status.capacity.unwrap()["memory"].0, "2048Ki");
        let annotations = node.metadata.annotations.unwrap();
        assert_eq!(annotations[FINGERPRINT_ANNOTATION], "ab");
        assert_eq!(
            node.metadata.labels.unwrap()["kubernetes.io/hostname"],
            "n1"
        );
    }

    #[test]
    fn a_node_whose_runtime_is_away_says_since_when_and_why() {
        let time = |day: i8| jiff::civil::date(2030, 1, day).to_zoned(jiff::tz::TimeZone::UTC);
        let [one, two, three] = [1, 2, 3].map(|day| time(day).unwrap().timestamp());
        let mut readiness = Readiness::new(one);
        readiness.see(Some("it hangs".to_owned()), two);
        readiness.see(Some("it is away".to_owned()), three);
        let condition = &facts().status_patch(&readiness, three)["status"]["conditions"][0];
        assert_eq!(condition["status"], "False");
        assert_eq!(condition["reason"], "RuntimeNotReady");
        assert_eq!(condition["message"], "it is away");
        assert_eq!(condition["lastTransitionTime"], json!(Time(two)));
        readiness.see(None, three);
        assert_eq!(readiness, Readiness::new(three));
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = Machine::read();
        assert!(machine.cpus > 0 && machine.memory_kib > 0, "{machine:?}");
        assert!(!machine.kernel.is_empty() && !machine.os_image.is_empty());
    }

    #[test]
    fn odd_files_are_taken_as_they_are() {
        assert_eq!(memory_kib("MemTotal:  12 kB\nMemFree: 3 kB"), Some(12));
        assert_eq!(memory_kib("MemTotal:\n"), None);
        assert_eq!(
            os_image("ID=x\nPRETTY_NAME=\"A B\"\n").as_deref(),
            Some("A B")
        );
        assert_eq!(os_image(""), None);
    }
}
