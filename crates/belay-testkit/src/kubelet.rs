//! Running pods on a CRI runtime, with the labels and annotations that a kubelet gives them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::image::BUSYBOX;

#[allow(clippy::all, unreachable_pub, missing_debug_implementations)]
mod protocol {
    include!(concat!(env!("OUT_DIR"), "/protocol.rs"));
}

use protocol::runtime::v1::{
    Capability, ContainerConfig, ContainerMetadata, ContainerStatusRequest, CreateContainerRequest,
    ImageSpec, ImageStatusRequest, Int64Value, KeyValue, LinuxContainerConfig,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata, RemoveContainerRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopContainerRequest,
    StopPodSandboxRequest, VersionRequest, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};

/// No call of ours takes this long.
const PATIENCE: Duration = Duration::from_secs(90);

/// A pod to run.
#[derive(Debug, Clone, Default)]
pub struct PodSpec {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub attempt: u32,
    pub annotations: BTreeMap<String, String>,
    /// Whether it has an address of its own, from the runtime's network; else it is on the host's.
    pub own_network: bool,
}

/// A container to run in it.
#[derive(Debug, Clone, Default)]
pub struct ContainerSpec {
    pub name: String,
    pub attempt: u32,
    pub command: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub working_dir: String,
    pub user: Option<i64>,
    pub group: Option<i64>,
    pub drop_capabilities: Vec<String>,
}

impl ContainerSpec {
    /// A container that runs a shell script.
    pub fn sh(name: &str, script: &str) -> Self {
        ContainerSpec {
            name: name.to_owned(),
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            ..ContainerSpec::default()
        }
    }
}

/// Runs pods.
#[derive(Debug, Clone)]
pub struct Kubelet {
    channel: Channel,
    group: String,
}

impl Kubelet {
    /// Control groups of its pods are made under `group`.
    pub fn new(socket: &Path, group: &str) -> Self {
        let socket: PathBuf = socket.to_owned();
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        Kubelet {
            channel: Endpoint::from_static("http://localhost")
                .timeout(PATIENCE)
                .connect_with_connector_lazy(connect),
            group: group.to_owned(),
        }
    }

    fn cri(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone())
    }

    pub async fn version(&self) -> anyhow::Result<String> {
        let answer = self.cri().version(VersionRequest::default()).await?;
        Ok(answer.into_inner().runtime_version)
    }

    pub async fn has_image(&self, image: &str) -> anyhow::Result<Option<()>> {
        let request = ImageStatusRequest {
            image: Some(image_spec(image)),
        };
        let mut images = ImageServiceClient::new(self.channel.clone());
        let answer = images.image_status(request).await?;
        Ok(answer.into_inner().image.map(drop))
    }

    /// Starts a sandbox on the host's network, and returns its ID.
    pub async fn run_pod(&self, pod: &PodSpec) -> anyhow::Result<String> {
        let request = RunPodSandboxRequest {
            config: Some(self.sandbox(pod)),
        };
        let answer = self.cri().run_pod_sandbox(request).await;
        Ok(answer
            .context("cannot run a sandbox")?
            .into_inner()
            .pod_sandbox_id)
    }

    /// Starts a container, and returns its ID.
    pub async fn run_container(
        &self,
        sandbox: &str,
        pod: &PodSpec,
        container: &ContainerSpec,
    ) -> anyhow::Result<String> {
        let mut labels = labels(pod);
        labels.insert(
            "io.kubernetes.container.name".to_owned(),
            container.name.clone(),
        );
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: container.name.clone(),
                attempt: container.attempt,
            }),
            image: Some(image_spec(BUSYBOX)),
            command: container.command.clone(),
            working_dir: container.working_dir.clone(),
            envs: container
                .environment
                .iter()
                .map(|(key, value)| KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
            labels: labels.into_iter().collect(),
            annotations: [(
                "io.kubernetes.container.restartCount".to_owned(),
                container.attempt.to_string(),
            )]
            .into(),
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    capabilities: Some(Capability {
                        drop_capabilities: container.drop_capabilities.clone(),
                        ..Capability::default()
                    }),
                    namespace_options: Some(namespaces(pod)),
                    run_as_user: container.user.map(|value| Int64Value { value }),
                    run_as_group: container.group.map(|value| Int64Value { value }),
                    ..LinuxContainerSecurityContext::default()
                }),
            }),
            ..ContainerConfig::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(self.sandbox(pod)),
        };
        let mut cri = self.cri();
        let created = cri.create_container(request).await;
        let container_id = created
            .context("cannot create a container")?
            .into_inner()
            .container_id;
        let request = StartContainerRequest {
            container_id: container_id.clone(),
        };
        let started = cri.start_container(request).await;
        started.context("cannot start a container")?;
        Ok(container_id)
    }

    /// Stops a container; kills it after `seconds`.
    pub async fn stop_container(&self, id: &str, seconds: i64) -> anyhow::Result<()> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: seconds,
        };
        self.cri().stop_container(request).await?;
        Ok(())
    }

    /// What it says of a container's stop signal, by its number in the protocol; 0 where it says
    /// nothing.
    pub async fn stop_signal(&self, id: &str) -> anyhow::Result<i32> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
        };
        let answer = self.cri().container_status(request).await?.into_inner();
        Ok(answer.status.context("no status")?.stop_signal)
    }

    pub async fn remove_container(&self, id: &str) -> anyhow::Result<()> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        self.cri().remove_container(request).await?;
        Ok(())
    }

    /// Stops a sandbox with its containers.
    pub async fn stop_pod(&self, sandbox: &str) -> anyhow::Result<()> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: sandbox.to_owned(),
        };
        self.cri().stop_pod_sandbox(request).await?;
        Ok(())
    }

    pub async fn remove_pod(&self, sandbox: &str) -> anyhow::Result<()> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: sandbox.to_owned(),
        };
        self.cri().remove_pod_sandbox(request).await?;
        Ok(())
    }

    fn sandbox(&self, pod: &PodSpec) -> PodSandboxConfig {
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                attempt: pod.attempt,
            }),
            labels: labels(pod).into_iter().collect(),
            annotations: pod.annotations.clone().into_iter().collect(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}", self.group),
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces(pod)),
                }),
            }),
            ..PodSandboxConfig::default()
        }
    }
}

fn namespaces(pod: &PodSpec) -> NamespaceOption {
    let network = if pod.own_network {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Node
    };
    NamespaceOption {
        network: network.into(),
        pid: NamespaceMode::Container.into(),
        ipc: NamespaceMode::Pod.into(),
    }
}

fn labels(pod: &PodSpec) -> BTreeMap<String, String> {
    [
        ("io.kubernetes.pod.uid", &pod.uid),
        ("io.kubernetes.pod.name", &pod.name),
        ("io.kubernetes.pod.namespace", &pod.namespace),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.clone()))
    .collect()
}

fn image_spec(image: &str) -> ImageSpec {
    ImageSpec {
        image: image.to_owned(),
    }
}
