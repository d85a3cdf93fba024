//! Calls of whoever runs pods.

use std::pin::pin;
use std::time::Duration;

use tonic::transport::Channel;

use super::{CallError, Client, DEED, MAX_ANSWER, QUESTION};
use crate::cri::protocol::runtime::v1::image_service_client::ImageServiceClient;
use crate::cri::protocol::runtime::v1::{
    CreateContainerRequest, Image, ImageSpec, ImageStatusRequest, ImageStatusResponse,
    PodSandboxConfig, PullImageRequest, RemoveContainerRequest, RemovePodSandboxRequest,
    ReopenContainerLogRequest, RunPodSandboxRequest, StartContainerRequest, StatusRequest,
    StopContainerRequest, StopPodSandboxRequest,
};

/// How long making or ending a sandbox may take: network plugins have a part in it.
const SANDBOX: Duration = Duration::from_secs(120);
/// How long making, starting or removing a container may take: storage has a part in it that may be
/// slow. As long as with a kubelet.
const CONTAINER: Duration = Duration::from_secs(120);
/// How often somebody who waits for a long pull asks whether the runtime is still there.
const PULSE: Duration = Duration::from_secs(60);

impl Client {
    fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    /// The runtime's own configuration, as JSON; empty when it does not tell.
    pub(crate) async fn configuration(&self) -> Result<String, CallError> {
        let request = StatusRequest { verbose: true };
        let answer = self.call(QUESTION, self.cri().status(request)).await?;
        Ok(answer.info.get("config").cloned().unwrap_or_default())
    }

    pub(crate) async fn run_sandbox(&self, config: PodSandboxConfig) -> Result<String, CallError> {
        let request = RunPodSandboxRequest {
            config: Some(config),
        };
        let mut cri = self.cri();
        let call = self.call(SANDBOX, cri.run_pod_sandbox(request));
        Ok(call.await?.pod_sandbox_id)
    }

    /// Ends a sandbox with its containers.
    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<(), CallError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let mut cri = self.cri();
        let call = self.call(SANDBOX, cri.stop_pod_sandbox(request));
        call.await.map(drop)
    }

    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<(), CallError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let mut cri = self.cri();
        let call = self.call(SANDBOX, cri.remove_pod_sandbox(request));
        call.await.map(drop)
    }

    pub(crate) async fn create_container(
        &self,
        request: CreateContainerRequest,
    ) -> Result<String, CallError> {
        let mut cri = self.cri();
        let call = self.call(CONTAINER, cri.create_container(request));
        Ok(call.await?.container_id)
    }

    pub(crate) async fn start_container(&self, id: &str) -> Result<(), CallError> {
        let request = StartContainerRequest {
            container_id: id.to_owned(),
        };
        let mut cri = self.cri();
        let call = self.call(CONTAINER, cri.start_container(request));
        call.await.map(drop)
    }

    /// Kills a container, and returns when the runtime has taken note.
    pub(crate) async fn stop_container(&self, id: &str) -> Result<(), CallError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: 0,
        };
        let mut cri = self.cri();
        let call = self.call(DEED, cri.stop_container(request));
        call.await.map(drop)
    }

    /// Goes on with the log of a running container in a new file, after the old one was renamed.
    pub(crate) async fn reopen_log(&self, id: &str) -> Result<(), CallError> {
        let request = ReopenContainerLogRequest {
            container_id: id.to_owned(),
        };
        let mut cri = self.cri();
        let call = self.call(DEED, cri.reopen_container_log(request));
        call.await.map(drop)
    }

    /// Forgets a container; one that runs is killed. An unknown one is no error.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), CallError> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let mut cri = self.cri();
        let call = self.call(CONTAINER, cri.remove_container(request));
        match call.await {
            Err(error) if error.is(tonic::Code::NotFound) => Ok(()),
            other => other.map(drop),
        }
    }

    /// An image by name, digest or ID, with its own configuration in `info`.
    pub(crate) async fn image(&self, image: &str) -> Result<ImageStatusResponse, CallError> {
        let request = ImageStatusRequest {
            image: Some(spec(image)),
            verbose: true,
        };
        let mut images = self.images();
        self.call(QUESTION, images.image_status(request)).await
    }

    /// Fetches an image, however long that takes, and returns what to ask for it by.
    pub(crate) async fn pull(&self, image: &str) -> Result<String, CallError> {
        let request = PullImageRequest {
            image: Some(spec(image)),
        };
        let mut images = self.images();
        let mut pull = pin!(images.pull_image(request));
        loop {
            tokio::select! {
                answer = &mut pull => return Ok(self.judge(answer)?.image_ref),
                () = tokio::time::sleep(PULSE) => drop(self.name().await?),
            }
        }
    }
}

fn spec(image: &str) -> ImageSpec {
    ImageSpec {
        image: image.to_owned(),
    }
}

/// What a status shows of an image: its digest in a repository, or its own if it has none there.
pub(crate) fn shown(image: &Image) -> String {
    image.repo_digests.first().unwrap_or(&image.id).clone()
}
