//! From the agent's words to the CRI's.

use std::collections::HashMap;

use belay_api::signal::Signal;

use super::OWNER;
use crate::cri::client::{CONTAINER_NAME, POD_UID};
use crate::cri::protocol::runtime::v1::security_profile::ProfileType;
use crate::cri::protocol::runtime::v1::{
    Capability, ContainerConfig as CriContainer, ContainerMetadata, DnsConfig, Image, ImageSpec,
    Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount,
    MountPropagation, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    PodSandboxStatus, PortMapping, Protocol, SecurityProfile,
};
use crate::{ContainerConfig, HostPort, PodConfig, Propagation, Resources, Seccomp};

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// What `crictl` and others show.
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// The sandbox's hostname: its containers are given the same.
const HOSTNAME: &str = "belay.dev/hostname";
/// The whole configuration of a container.
pub(super) const CONFIG: &str = "belay.dev/config";
/// The stop signal of its image, as it was when the container was made.
pub(super) const IMAGE_STOP_SIGNAL: &str = "belay.dev/image-stop-signal";

/// What a kubelet hides from containers, and what it lets them only read.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The length of a period in which a CPU is shared out, in microseconds.
const PERIOD: u64 = 100_000;
/// The kernel takes no less.
const MIN_SHARES: u64 = 2;
const MIN_QUOTA: u64 = 1000;

/// The sandbox of a pod.
pub(super) fn sandbox(
    pod: &PodConfig,
    attempt: u32,
    owner: &str,
    group: String,
) -> PodSandboxConfig {
    let mut labels: HashMap<String, String> = pod.labels.clone().into_iter().collect();
    labels.extend(pod_labels(&pod.namespace, &pod.name, &pod.uid, owner));
    labels.insert(HOSTNAME.to_owned(), pod.hostname.clone());
    let mode = |host: bool, otherwise| if host { NamespaceMode::Node } else { otherwise };
    let own_processes = if pod.share_processes {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            attempt,
        }),
        // On the host's network the name is the host's.
        hostname: if pod.host_network {
            String::new()
        } else {
            pod.hostname.clone()
        },
        log_directory: pod.log_dir.display().to_string(),
        dns_config: pod.dns.as_ref().map(|dns| DnsConfig {
            servers: dns.servers.clone(),
            searches: dns.searches.clone(),
            options: dns.options.clone(),
        }),
        port_mappings: pod.ports.iter().map(port).collect(),
        labels,
        annotations: pod.annotations.clone().into_iter().collect(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: group,
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(NamespaceOption {
                    network: mode(pod.host_network, NamespaceMode::Pod).into(),
                    pid: mode(pod.host_pid, own_processes).into(),
                    ipc: mode(pod.host_ipc, NamespaceMode::Pod).into(),
                }),
                privileged: false,
                seccomp: Some(profile(ProfileType::RuntimeDefault)),
            }),
        }),
    }
}

fn port(port: &HostPort) -> PortMapping {
    let protocol = match port.protocol {
        crate::Protocol::Tcp => Protocol::Tcp,
        crate::Protocol::Udp => Protocol::Udp,
        crate::Protocol::Sctp => Protocol::Sctp,
    };
    PortMapping {
        protocol: protocol.into(),
        container_port: port.container_port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.clone(),
    }
}

/// The same for a container of it: what the runtime has to be told again.
pub(super) fn sandbox_again(
    status: &PodSandboxStatus,
    config: &ContainerConfig,
    group: String,
) -> PodSandboxConfig {
    let host = options(status).network() == NamespaceMode::Node;
    let hostname = status.labels.get(HOSTNAME).filter(|_| !host);
    let directory = config.log_path.parent();
    PodSandboxConfig {
        metadata: status.metadata.clone(),
        hostname: hostname.cloned().unwrap_or_default(),
        log_directory: directory.map_or_else(String::new, |dir| dir.display().to_string()),
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
        // Of the sandbox itself only, which is there.
        dns_config: None,
        port_mappings: Vec::new(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: group,
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(options(status)),
                // The runtime makes no privileged container in another sandbox.
                privileged: config.security.privileged,
                seccomp: Some(profile(ProfileType::RuntimeDefault)),
            }),
        }),
    }
}

fn options(status: &PodSandboxStatus) -> NamespaceOption {
    let linux = status.linux.as_ref();
    linux
        .and_then(|linux| linux.namespaces.as_ref()?.options)
        .unwrap_or_default()
}

/// A container in its sandbox. `recorded` is its configuration as JSON.
pub(super) fn container(
    config: &ContainerConfig,
    sandbox: &PodSandboxStatus,
    image: &Image,
    image_stop_signal: Option<&str>,
    recorded: String,
    owner: &str,
) -> CriContainer {
    let (namespace, name) = (&config.pod_namespace, &config.pod_name);
    let mut labels = pod_labels(namespace, name, &config.pod_uid, owner);
    labels.insert(CONTAINER_NAME.to_owned(), config.name.clone());
    let mut annotations = HashMap::from([
        (RESTART_COUNT.to_owned(), config.restart_count.to_string()),
        (CONFIG.to_owned(), recorded),
    ]);
    if let Some(signal) = image_stop_signal {
        annotations.insert(IMAGE_STOP_SIGNAL.to_owned(), signal.to_owned());
    }
    let stop_signal = config
        .stop_signal
        .as_deref()
        .and_then(|name| name.parse().ok());
    let log = config.log_path.file_name().unwrap_or_default();
    CriContainer {
        metadata: Some(ContainerMetadata {
            name: config.name.clone(),
            attempt: config.restart_count,
        }),
        image: Some(ImageSpec {
            image: image.id.clone(),
        }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config
            .working_dir
            .as_ref()
            .map_or_else(String::new, |dir| dir.display().to_string()),
        envs: config
            .env
            .iter()
            .map(|(key, value)| KeyValue {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
        mounts: config.mounts.iter().map(mount).collect(),
        labels,
        annotations,
        log_path: log.to_string_lossy().into_owned(),
        stdin: config.stdin,
        tty: config.tty,
        linux: Some(LinuxContainerConfig {
            resources: Some(resources(&config.resources)),
            security_context: Some(security(config, image, options(sandbox))),
        }),
        stop_signal: stop_signal.map_or(0, Signal::cri_number),
    }
}

fn mount(mount: &crate::Mount) -> Mount {
    let propagation = match mount.propagation {
        Propagation::None => MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => MountPropagation::PropagationBidirectional,
    };
    Mount {
        container_path: mount.container_path.display().to_string(),
        host_path: mount.host_path.display().to_string(),
        readonly: mount.read_only,
        propagation: propagation.into(),
    }
}

fn resources(asked: &Resources) -> LinuxContainerResources {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let request = asked.cpu_request.or(asked.cpu_limit).unwrap_or(0);
    let shares = (request.saturating_mul(1024) / 1000).max(MIN_SHARES);
    let quota = asked.cpu_limit.filter(|limit| *limit > 0);
    let quota = quota.map(|limit| (limit.saturating_mul(PERIOD) / 1000).max(MIN_QUOTA));
    let nothing = *asked == Resources::default();
    LinuxContainerResources {
        cpu_period: quota.map_or(0, |_| number(PERIOD)),
        cpu_quota: quota.map_or(0, number),
        cpu_shares: number(shares),
        memory_limit_in_bytes: asked.memory_limit.map_or(0, number),
        // Who asked for nothing is the first to go when the machine has no memory left.
        oom_score_adj: if nothing { 1000 } else { 0 },
    }
}

fn security(
    config: &ContainerConfig,
    image: &Image,
    namespaces: NamespaceOption,
) -> LinuxContainerSecurityContext {
    let asked = &config.security;
    let id = |id: u32| Int64Value {
        value: i64::from(id),
    };
    let paths = |paths: &[&str]| {
        if asked.privileged {
            Vec::new()
        } else {
            paths.iter().map(|path| (*path).to_owned()).collect()
        }
    };
    // A group alone is the group of the image's own user: the runtime takes none without a user.
    let image_user = config.group.filter(|_| config.user.is_none());
    let image_user = image_user.map(|_| (image.uid, image.username.clone()));
    let (user, username) = match image_user {
        Some((None, name)) if !name.is_empty() => (None, name),
        Some((user, _)) => (Some(user.unwrap_or(id(0))), String::new()),
        None => (config.user.map(id), String::new()),
    };
    LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: asked.add_capabilities.clone(),
            drop_capabilities: asked.drop_capabilities.clone(),
        }),
        privileged: asked.privileged,
        namespace_options: Some(namespaces),
        run_as_user: user,
        run_as_username: username,
        run_as_group: config.group.map(id),
        readonly_rootfs: asked.read_only_root,
        supplemental_groups: asked
            .supplemental_groups
            .iter()
            .map(|group| i64::from(*group))
            .collect(),
        no_new_privs: asked.no_new_privileges,
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(seccomp(&asked.seccomp)),
    }
}

fn seccomp(asked: &Seccomp) -> SecurityProfile {
    match asked {
        Seccomp::Unset | Seccomp::Unconfined => profile(ProfileType::Unconfined),
        Seccomp::RuntimeDefault => profile(ProfileType::RuntimeDefault),
        Seccomp::Localhost(path) => SecurityProfile {
            localhost_ref: path.display().to_string(),
            ..profile(ProfileType::Localhost)
        },
    }
}

fn profile(profile: ProfileType) -> SecurityProfile {
    SecurityProfile {
        profile_type: profile.into(),
        localhost_ref: String::new(),
    }
}

fn pod_labels(namespace: &str, name: &str, uid: &str, owner: &str) -> HashMap<String, String> {
    [
        (POD_NAMESPACE, namespace),
        (POD_NAME, name),
        (POD_UID, uid),
        (OWNER, owner),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports_of_a_pod_reach_its_sandbox() {
        let pod = PodConfig {
            dns: Some(crate::Dns {
                servers: vec!["192.0.2.53".to_owned()],
                ..crate::Dns::default()
            }),
            ports: vec![HostPort {
                protocol: crate::Protocol::Udp,
                container_port: 53,
                host_port: 5353,
                host_ip: "127.0.0.1".to_owned(),
            }],
            ..PodConfig::default()
        };
        let told = sandbox(&pod, 0, "n", String::new());
        assert_eq!(told.dns_config.unwrap().servers, ["192.0.2.53"]);
        let port = &told.port_mappings[0];
        assert_eq!(port.protocol(), Protocol::Udp);
        assert_eq!((port.container_port, port.host_port), (53, 5353));
        assert_eq!(port.host_ip, "127.0.0.1");
        let plain = sandbox(&PodConfig::default(), 0, "n", String::new());
        assert_eq!((plain.dns_config, plain.port_mappings), (None, vec![]));
    }

    #[test]
    fn cpus_are_shared_out_as_a_kubelet_does() {
        let asked = |cpu_request, cpu_limit| {
            let told = resources(&Resources {
                cpu_request,
                cpu_limit,
                memory_limit: Some(1 << 20),
            });
            (told.cpu_shares, told.cpu_quota, told.cpu_period)
        };
        assert_eq!(asked(None, None), (2, 0, 0));
        assert_eq!(asked(Some(1), None), (2, 0, 0));
        assert_eq!(asked(Some(250), Some(500)), (256, 50_000, 100_000));
        assert_eq!(asked(None, Some(2000)), (2048, 200_000, 100_000));
        assert_eq!(asked(None, Some(1)), (2, 1000, 100_000));
    }

    #[test]
    fn a_group_without_a_user_goes_with_the_images_user() {
        let config = ContainerConfig {
            group: Some(7),
            ..ContainerConfig::default()
        };
        let told = |image: &Image| {
            let told = security(&config, image, NamespaceOption::default());
            let user = told.run_as_user.map(|user| user.value);
            (user, told.run_as_username)
        };
        let named = Image {
            username: "app".to_owned(),
            ..Image::default()
        };
        assert_eq!(told(&Image::default()), (Some(0), String::new()));
        assert_eq!(told(&named), (None, "app".to_owned()));
    }
}
