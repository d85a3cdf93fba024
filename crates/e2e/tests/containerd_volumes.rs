//! Volumes of pods on a real containerd, every version that is installed, with a stock kubectl.

use belay_testkit::Instance;
use volumes::Place;

mod volumes;

/// One instance on each.
async fn places() -> anyhow::Result<Vec<Place<'static>>> {
    let instances = Instance::on_each_containerd().await?;
    Ok(instances.into_iter().filter_map(Place::on).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_reads_what_kubectl_made() -> anyhow::Result<()> {
    for place in places().await? {
        volumes::a_pod_reads_what_kubectl_made(&place).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_waited_for() -> anyhow::Result<()> {
    for place in places().await? {
        volumes::what_is_missing_is_waited_for(&place).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_path_has_to_be_what_it_is_taken_for() -> anyhow::Result<()> {
    for place in places().await? {
        volumes::a_host_path_has_to_be_what_it_is_taken_for(&place).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_notifiers_see_the_containers_volumes() -> anyhow::Result<()> {
    for place in places().await? {
        volumes::probes_and_notifiers_see_the_containers_volumes(&place).await?;
    }
    Ok(())
}
