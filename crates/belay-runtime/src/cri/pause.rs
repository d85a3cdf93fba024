//! The sandbox image: made of the shim that this program carries, where no other is there.
//!
//! Which image containerd wants for sandboxes is its own setting. Versions before 2 tell it; newer
//! ones tell it only by failing to pull it. Under that name ours is put into containerd's own
//! store, so that no registry is needed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::info;

use super::client::{CallError, Client, import::Blob};
use super::reference::Reference;
use crate::binary::SHIM;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// The only file.
const PROGRAM: &str = "pause";
/// Far more than writing it takes.
const LEASE: SignedDuration = SignedDuration::from_hours(1);
/// How often, and with what pause, the image is looked for once it has been written.
const LOOKS: u32 = 250;
const PAUSE: Duration = Duration::from_millis(20);

/// The image that the runtime wants for sandboxes, from its configuration.
pub(crate) fn wanted(configuration: &Value) -> Option<String> {
    let name = configuration.get("sandboxImage")?.as_str()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The sandbox image that could not be had, from what a runtime says of a sandbox that it did not
/// make.
pub(crate) fn missing(message: &str) -> Option<&str> {
    let starts = ["failed to get sandbox image \"", "failed to pull image \""];
    let (_, rest) = starts.iter().find_map(|start| message.split_once(start))?;
    rest.split_once('"').map(|(name, _)| name)
}

/// Makes sure that there is a sandbox image of that name.
pub(crate) async fn provide(client: &Client, name: &str) -> Result<(), CallError> {
    if client.image(name).await?.image.is_some() {
        return Ok(());
    }
    let full = Reference::parse(name).map_or_else(|_| name.to_owned(), |full| full.to_string());
    let lease = format!("belay-pause-{}", uuid::Uuid::new_v4().simple());
    let expire = (Timestamp::now() + LEASE).to_string();
    client.lease(&lease, &expire).await?;
    let written = write(client, &full, &lease).await;
    // It would end by itself.
    let _ = client.end_lease(&lease).await;
    written?;
    // The part of containerd that runs pods hears of it a moment later.
    for _ in 0..LOOKS {
        if client.image(name).await?.image.is_some() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    info!(
        image = full,
        "there was no sandbox image; ours has been put in its place"
    );
    Ok(())
}

async fn write(client: &Client, name: &str, lease: &str) -> Result<(), CallError> {
    let [layer, config, manifest] = image();
    for blob in [&layer, &config, &manifest] {
        client.write(blob, lease).await?;
    }
    client.name_image(name, &manifest).await
}

/// Layer, configuration, manifest.
fn image() -> [Blob; 3] {
    let layer = blob(LAYER, archive(PROGRAM, SHIM), vec![]);
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Entrypoint": [format!("/{PROGRAM}"), "pause"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    });
    let config = blob(CONFIG, config.to_string().into_bytes(), vec![]);
    let descriptor = |blob: &Blob| json!({"mediaType": blob.media_type, "digest": blob.digest, "size": blob.data.len()});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(&config),
        "layers": [descriptor(&layer)],
    });
    let refers_to = vec![config.digest.clone(), layer.digest.clone()];
    let manifest = blob(MANIFEST, manifest.to_string().into_bytes(), refers_to);
    [layer, config, manifest]
}

fn blob(media_type: &'static str, data: Vec<u8>, refers_to: Vec<String>) -> Blob {
    let digest: String = Sha256::digest(&data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Blob {
        media_type,
        digest: format!("sha256:{digest}"),
        data,
        refers_to,
    }
}

/// A tar archive with one program.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut header = [0_u8; BLOCK];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    put(0, name);
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_that_is_wanted_is_read_from_what_runtimes_tell() {
        let config = json!({"sandboxImage": "registry.k8s.io/pause:3.6"});
        assert_eq!(
            wanted(&config).as_deref(),
            Some("registry.k8s.io/pause:3.6")
        );
        assert_eq!(wanted(&json!({"sandboxImage": ""})), None);
        assert_eq!(wanted(&json!({})), None);
    }

    #[test]
    fn the_image_that_is_missing_is_read_from_the_refusal() {
        for message in [
            r#"failed to get sandbox image "a.b/pause:1": failed to pull image "a.b/pause:1": x"#,
            r#"failed to pull image "a.b/pause:1": failed to pull and unpack image "a.b/pause:1""#,
        ] {
            assert_eq!(missing(message), Some("a.b/pause:1"));
        }
        assert_eq!(missing("failed to setup network for sandbox"), None);
    }

    #[test]
    fn tar_reads_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("layer.tar");
        std::fs::write(&path, archive(PROGRAM, SHIM)).unwrap();
        let mut tar = std::process::Command::new("tar");
        tar.arg("-C").arg(dir.path()).arg("-xpf").arg(&path);
        assert!(tar.status().unwrap().success());
        let program = dir.path().join(PROGRAM);
        assert_eq!(std::fs::read(&program).unwrap(), SHIM);
        let version = std::process::Command::new(&program)
            .arg("--version")
            .status();
        assert!(version.unwrap().success());
    }
}
