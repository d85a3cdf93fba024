//! Calls to the runtime: each has a deadline, and a runtime that comes back is found again.

pub(crate) mod import;
pub(crate) mod node;
mod sessions;

pub(crate) use sessions::Ends;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use super::protocol::containerd::services::containers::v1::GetContainerRequest;
use super::protocol::containerd::services::containers::v1::containers_client::ContainersClient;
use super::protocol::containerd::services::tasks::v1::tasks_client::TasksClient;
use super::protocol::containerd::services::tasks::v1::{
    DeleteProcessRequest, ExecProcessRequest, GetRequest, KillRequest, StartRequest, WaitRequest,
    WaitResponse,
};
use super::protocol::containerd::v1::types::Process;
use super::protocol::runtime::v1::runtime_service_client::RuntimeServiceClient;
use super::protocol::runtime::v1::{
    Container, ContainerFilter, ContainerStatusRequest, ContainerStatusResponse,
    ListContainersRequest, ListPodSandboxRequest, PodSandbox, PodSandboxFilter, PodSandboxStatus,
    PodSandboxStatusRequest, VersionRequest,
};
use crate::RuntimeError;

/// Where the CRI of containerd keeps its containers.
const NAMESPACE: &str = "k8s.io";
/// The pod of a sandbox and of a container.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
/// The name of a container in its pod.
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// What the process of an exec is to containerd.
const PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";

/// How long a question may take. A runtime that needs more has no answer.
const QUESTION: Duration = Duration::from_secs(10);
/// How long a deed may take: the runtime starts processes for it, on a machine that may be busy.
const DEED: Duration = Duration::from_secs(30);
/// A node full of pods, listed.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the container runtime at {} cannot be reached ({problem}); is it running?", socket.display())]
    Away { socket: PathBuf, problem: String },
    #[error("the container runtime at {} has not answered for {seconds} s; is it overloaded?", socket.display())]
    Silent { socket: PathBuf, seconds: u64 },
    #[error("the container runtime says: {}", .0.message())]
    Answer(Status),
}

impl CallError {
    pub(crate) fn is(&self, code: Code) -> bool {
        matches!(self, CallError::Answer(status) if status.code() == code)
    }

    pub(crate) fn during(self, what: &'static str) -> RuntimeError {
        let problem = self.to_string();
        match self {
            CallError::Away { .. } | CallError::Silent { .. } => {
                RuntimeError::Away { what, problem }
            }
            CallError::Answer(_) => RuntimeError::Call { what, problem },
        }
    }
}

/// One exec in one container, as containerd names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ExecName {
    pub(crate) container: String,
    pub(crate) exec: String,
}

/// The runtime, at the other end of its socket.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    socket: PathBuf,
    channel: Channel,
}

impl Client {
    /// Does not connect yet.
    pub(crate) fn new(socket: &Path) -> Self {
        let path = socket.to_owned();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The name is for the protocol only; the connection is the socket's.
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
        Client {
            socket: socket.to_owned(),
            channel,
        }
    }

    async fn call<T>(
        &self,
        patience: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        match tokio::time::timeout(patience, call).await {
            Ok(answer) => self.judge(answer),
            Err(_) => Err(CallError::Silent {
                socket: self.socket.clone(),
                seconds: patience.as_secs(),
            }),
        }
    }

    fn judge<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, CallError> {
        let status = match answer {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) => status,
        };
        // What the other end says has no cause of ours: only a connection that failed has one.
        let cause = deepest(&status);
        let starting = status.message().contains("server is not initialized yet");
        if cause.is_some() || starting || status.code() == Code::Unavailable {
            return Err(CallError::Away {
                socket: self.socket.clone(),
                problem: cause.unwrap_or_else(|| status.message().to_owned()),
            });
        }
        Err(CallError::Answer(status))
    }

    fn cri(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone())
    }

    /// The runtime's name.
    pub(crate) async fn name(&self) -> Result<String, CallError> {
        let request = VersionRequest {
            version: "v1".to_owned(),
        };
        let answer = self.call(QUESTION, self.cri().version(request)).await?;
        Ok(answer.runtime_name)
    }

    pub(crate) async fn sandboxes_of(&self, uid: &str) -> Result<Vec<PodSandbox>, CallError> {
        self.sandboxes_with(&[(POD_UID, uid)]).await
    }

    /// Those that have all of the labels.
    pub(crate) async fn sandboxes_with(
        &self,
        labels: &[(&str, &str)],
    ) -> Result<Vec<PodSandbox>, CallError> {
        let filter = PodSandboxFilter {
            label_selector: owned(labels),
        };
        let request = ListPodSandboxRequest {
            filter: Some(filter),
        };
        let mut cri = self.cri();
        let call = self.call(QUESTION, cri.list_pod_sandbox(request));
        Ok(call.await?.items)
    }

    pub(crate) async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus, CallError> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        let mut cri = self.cri();
        let call = self.call(QUESTION, cri.pod_sandbox_status(request));
        Ok(call.await?.status.unwrap_or_default())
    }

    pub(crate) async fn containers_of(&self, uid: &str) -> Result<Vec<Container>, CallError> {
        self.containers_with(&[(POD_UID, uid)]).await
    }

    pub(crate) async fn containers(&self) -> Result<Vec<Container>, CallError> {
        self.containers_with(&[]).await
    }

    /// Those that have all of the labels.
    pub(crate) async fn containers_with(
        &self,
        labels: &[(&str, &str)],
    ) -> Result<Vec<Container>, CallError> {
        let filter = ContainerFilter {
            label_selector: owned(labels),
        };
        let request = ListContainersRequest {
            filter: Some(filter),
        };
        let mut cri = self.cri();
        let call = self.call(QUESTION, cri.list_containers(request));
        Ok(call.await?.containers)
    }

    /// With the pid of the first process in its `info`.
    pub(crate) async fn container_status(
        &self,
        id: &str,
    ) -> Result<ContainerStatusResponse, CallError> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: true,
        };
        self.call(QUESTION, self.cri().container_status(request))
            .await
    }

    /// The container's OCI specification, as JSON.
    pub(crate) async fn specification(&self, id: &str) -> Result<Vec<u8>, CallError> {
        let request = within(GetContainerRequest { id: id.to_owned() });
        let mut containers =
            ContainersClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        let answer = self.call(QUESTION, containers.get(request)).await?;
        let specification = answer.container.and_then(|container| container.spec);
        Ok(specification.unwrap_or_default().value)
    }

    /// Makes an exec known; nothing runs yet.
    pub(crate) async fn exec(
        &self,
        name: &ExecName,
        process: Vec<u8>,
        output: &str,
    ) -> Result<(), CallError> {
        let request = within(ExecProcessRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
            stdout: output.to_owned(),
            stderr: output.to_owned(),
            spec: Some(prost_types::Any {
                type_url: PROCESS.to_owned(),
                value: process,
            }),
            ..ExecProcessRequest::default()
        });
        self.call(DEED, self.tasks().exec(request)).await.map(drop)
    }

    /// Starts an exec, and returns the pid of its process.
    pub(crate) async fn start(&self, name: &ExecName) -> Result<u32, CallError> {
        let request = within(StartRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
        });
        Ok(self.call(DEED, self.tasks().start(request)).await?.pid)
    }

    /// Waits for the end of an exec, however long that takes.
    pub(crate) async fn wait(&self, name: &ExecName) -> Result<WaitResponse, CallError> {
        let request = within(WaitRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
        });
        self.judge(self.tasks().wait(request).await)
    }

    /// What containerd knows of an exec.
    pub(crate) async fn get(&self, name: &ExecName) -> Result<Process, CallError> {
        let request = within(GetRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
        });
        let answer = self.call(QUESTION, self.tasks().get(request)).await?;
        Ok(answer.process.unwrap_or_default())
    }

    /// Forgets an exec that has ended or was never started.
    pub(crate) async fn delete(&self, name: &ExecName) -> Result<(), CallError> {
        let request = within(DeleteProcessRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
        });
        self.call(DEED, self.tasks().delete_process(request))
            .await
            .map(drop)
    }

    /// Sends a signal to the first process of a container.
    pub(crate) async fn kill(&self, container: &str, signal: u32) -> Result<(), CallError> {
        let request = within(KillRequest {
            container_id: container.to_owned(),
            signal,
            ..KillRequest::default()
        });
        self.call(DEED, self.tasks().kill(request)).await.map(drop)
    }
}

fn owned(labels: &[(&str, &str)]) -> HashMap<String, String> {
    labels
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// A request to containerd itself, which wants to know whose containers are meant.
fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(
        "containerd-namespace",
        MetadataValue::from_static(NAMESPACE),
    );
    request
}

/// The last of the errors that led to this one.
fn deepest(status: &Status) -> Option<String> {
    let mut last = std::error::Error::source(status)?;
    while let Some(next) = last.source() {
        last = next;
    }
    Some(last.to_string())
}

/// The path of a socket that was given as `unix:///path`, `unix:/path` or the path itself.
pub(crate) fn socket_path(endpoint: &str) -> Result<PathBuf, RuntimeError> {
    let path = endpoint
        .strip_prefix("unix://")
        .or_else(|| endpoint.strip_prefix("unix:"))
        .unwrap_or(endpoint);
    if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err(RuntimeError::Call {
            what: "use the runtime's endpoint",
            problem: format!(
                "{endpoint:?} is not the path of a socket; say unix:///run/containerd/containerd.sock"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_given_as_kubelets_give_it_or_as_a_path() {
        for endpoint in ["unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock"] {
            assert_eq!(socket_path(endpoint).unwrap(), Path::new("/run/x.sock"));
        }
        for bad in ["", "x.sock", "tcp://127.0.0.1:1", "unix://x.sock"] {
            assert!(socket_path(bad).is_err(), "{bad}");
        }
    }
}
