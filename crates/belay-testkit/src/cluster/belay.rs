//! Belay on a cluster, installed as a user would.

use anyhow::Context;
use tokio::process::Command;

use super::{Cluster, Part};
use crate::{
    image::{self, Image},
    processes,
};

impl Cluster {
    /// A cluster on which Belay is installed from the manifests it prints.
    pub async fn with_belay() -> anyhow::Result<Option<Self>> {
        let Some(cluster) = Self::start().await? else {
            return Ok(None);
        };
        cluster.load_belay().await?;
        cluster.install(&[]).await?;
        Ok(Some(cluster))
    }

    /// Applies what `belay manifests` prints and waits until everything in it runs.
    pub async fn install(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let manifests = self.manifests(arguments).await?;
        let kubectl = self.kubectl();
        // Once, as it is told to users: whatever would have to be tried again is a bug.
        let applied = kubectl.with_text(&["apply", "-f", "-"], &manifests).await?;
        anyhow::ensure!(applied.success, "{}{}", applied.stderr, applied.stdout);
        for role in ["daemonset/belay-agent", "deployment/belay-controller"] {
            if manifests.contains(&format!("kind: {}", kind(role))) {
                let rolled = kubectl
                    .ok(&[
                        "-n",
                        "belay-system",
                        "rollout",
                        "status",
                        role,
                        "--timeout=120s",
                    ])
                    .await;
                rolled.with_context(|| self.last_words(Part::Kubelet))?;
            }
        }
        Ok(())
    }

    /// What `belay manifests` prints for this cluster.
    pub async fn manifests(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(crate::binary::belay()?)
            .args(["manifests", "--image", image::BELAY])
            .args(arguments)
            .output()
            .await?;
        anyhow::ensure!(
            output.status.success(),
            "belay manifests: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Ends every process of a role of Belay that runs as a pod here, without asking it.
    pub fn kill9_role(&self, command: &str) -> anyhow::Result<()> {
        let ours: Vec<_> = processes::with_command(command)
            .into_iter()
            .filter(|process| self.contains(process.pid))
            .collect();
        anyhow::ensure!(!ours.is_empty(), "no process runs `{command}`");
        for process in ours {
            processes::kill(process.pid);
        }
        Ok(())
    }

    /// Makes the program under test known to the node, as [`image::BELAY`].
    pub async fn load_belay(&self) -> anyhow::Result<()> {
        let program = crate::binary::belay()?;
        self.load(&Image::of_program(program, image::BELAY)?).await
    }
}

/// The kind of what `kubectl rollout` names.
fn kind(role: &str) -> &'static str {
    if role.starts_with("daemonset/") {
        "DaemonSet"
    } else {
        "Deployment"
    }
}
