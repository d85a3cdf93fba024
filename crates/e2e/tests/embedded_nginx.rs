//! nginx without a failed request, on three nodes with plain processes.

use belay_testkit::{Builder, Instance};

#[path = "nginx/balancer.rs"]
mod balancer;
#[path = "nginx/load.rs"]
mod load;
#[path = "nginx/replaced.rs"]
mod replaced;

use replaced::Without;

const WITHOUT: &[Without] = &Without::ALL;

async fn server() -> anyhow::Result<Option<Builder>> {
    Ok(Some(Instance::server()))
}
