//! Calls that put an image into containerd without a registry.

use futures::stream;
use tonic::Code;
use tonic::metadata::MetadataValue;

use super::{CallError, Client, DEED, within};
use crate::cri::protocol::containerd::services::content::v1::content_client::ContentClient;
use crate::cri::protocol::containerd::services::content::v1::{WriteAction, WriteContentRequest};
use crate::cri::protocol::containerd::services::images::v1::images_client::ImagesClient;
use crate::cri::protocol::containerd::services::images::v1::{CreateImageRequest, Image};
use crate::cri::protocol::containerd::services::leases::v1::leases_client::LeasesClient;
use crate::cri::protocol::containerd::services::leases::v1::{CreateRequest, DeleteRequest};
use crate::cri::protocol::containerd::types::Descriptor;

/// Well below what containerd takes in one message.
const CHUNK: usize = 1024 * 1024;

/// A part of an image.
#[derive(Debug)]
pub(crate) struct Blob {
    pub(crate) media_type: &'static str,
    pub(crate) digest: String,
    pub(crate) data: Vec<u8>,
    /// What it refers to: containerd keeps that for as long as this.
    pub(crate) refers_to: Vec<String>,
}

impl Client {
    /// Keeps what is written under the lease from being collected, until `expire`.
    pub(crate) async fn lease(&self, id: &str, expire: &str) -> Result<(), CallError> {
        let request = within(CreateRequest {
            id: id.to_owned(),
            labels: [("containerd.io/gc.expire".to_owned(), expire.to_owned())].into(),
        });
        let mut leases = LeasesClient::new(self.channel.clone());
        let call = self.call(DEED, leases.create(request));
        call.await.map(drop)
    }

    pub(crate) async fn end_lease(&self, id: &str) -> Result<(), CallError> {
        let request = within(DeleteRequest { id: id.to_owned() });
        let mut leases = LeasesClient::new(self.channel.clone());
        let call = self.call(DEED, leases.delete(request));
        call.await.map(drop)
    }

    /// Writes a part of an image. One that is there already is no error.
    pub(crate) async fn write(&self, blob: &Blob, lease: &str) -> Result<(), CallError> {
        let total = i64::try_from(blob.data.len()).unwrap_or(i64::MAX);
        let references = blob.refers_to.iter().enumerate();
        let labels = references
            .map(|(index, digest)| {
                (
                    format!("containerd.io/gc.ref.content.{index}"),
                    digest.clone(),
                )
            })
            .collect();
        let message = |action: WriteAction, offset: usize, data: &[u8]| WriteContentRequest {
            action: action.into(),
            r#ref: format!("belay-{}", blob.digest),
            total,
            expected: blob.digest.clone(),
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            data: data.to_vec(),
            ..WriteContentRequest::default()
        };
        let mut messages: Vec<WriteContentRequest> = blob
            .data
            .chunks(CHUNK)
            .enumerate()
            .map(|(index, chunk)| message(WriteAction::Write, index * CHUNK, chunk))
            .collect();
        messages.push(WriteContentRequest {
            labels,
            ..message(WriteAction::Commit, blob.data.len(), &[])
        });
        let mut request = within(stream::iter(messages));
        if let Ok(lease) = MetadataValue::try_from(lease) {
            request.metadata_mut().insert("containerd-lease", lease);
        }
        let mut content = ContentClient::new(self.channel.clone());
        let written = async {
            let mut answers = content.write(request).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok(tonic::Response::new(()))
        };
        match self.call(DEED, written).await {
            Err(error) if error.is(Code::AlreadyExists) => Ok(()),
            other => other,
        }
    }

    /// Gives an image its name. One that has it already is no error.
    pub(crate) async fn name_image(&self, name: &str, target: &Blob) -> Result<(), CallError> {
        let request = within(CreateImageRequest {
            image: Some(Image {
                name: name.to_owned(),
                target: Some(Descriptor {
                    media_type: target.media_type.to_owned(),
                    digest: target.digest.clone(),
                    size: i64::try_from(target.data.len()).unwrap_or(i64::MAX),
                }),
                ..Image::default()
            }),
        });
        let mut images = ImagesClient::new(self.channel.clone());
        match self.call(DEED, images.create(request)).await {
            Err(error) if error.is(Code::AlreadyExists) => Ok(()),
            other => other.map(drop),
        }
    }
}
