//! The cluster that the other tests rely on: it runs pods, and its parts can be killed.

use belay_testkit::{Cluster, Part, eventually, image};
use serde_json::json;

#[tokio::test]
async fn a_cluster_runs_a_pod_and_survives_the_end_of_its_parts() -> anyhow::Result<()> {
    let Some(mut cluster) = Cluster::start().await? else {
        return Ok(());
    };
    let kubectl = cluster.kubectl();
    kubectl
        .ready_pod(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"containers": [{
                "name": "main", "image": image::BUSYBOX,
                "command": ["sh", "-c", "echo hello; sleep 100000"],
            }]},
        }))
        .await?;
    assert_eq!(kubectl.ok(&["logs", "web"]).await?, "hello\n");
    let before = kubectl
        .ok(&["exec", "web", "--", "cat", "/proc/1/stat"])
        .await?;
    for part in [Part::Containerd, Part::Kubelet, Part::ApiServer] {
        cluster.kill9(part).await?;
        cluster.start_part(part)?;
        if part == Part::Containerd {
            cluster.containerd_ready().await?;
        }
    }
    cluster.api_server_ready().await?;
    cluster.node_ready().await?;
    // A node is ready a little before its kubelet serves, and Ready may still be the word of the one
    // that was killed.
    let after = eventually("the kubelet to serve", async || {
        let exec = kubectl.ok(&["exec", "web", "--", "cat", "/proc/1/stat"]);
        exec.await.map(Some)
    })
    .await?;
    let start = |stat: &str| stat.split_whitespace().nth(21).map(str::to_owned);
    assert_eq!(start(&before), start(&after), "the container went on");
    Ok(())
}
