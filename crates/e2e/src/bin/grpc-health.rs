//! `grpc-health PORT SERVICE FILE`: answers gRPC health checks; the service serves when the file is
//! there. For tests that probe it in a pod.

use std::{env, net::Ipv4Addr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use tonic_health::{ServingStatus, server::health_reporter};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut words = env::args().skip(1);
    let mut word = || words.next().context("usage: grpc-health PORT SERVICE FILE");
    let (port, service, file) = (word()?.parse::<u16>()?, word()?, PathBuf::from(word()?));
    let (reporter, health) = health_reporter();
    reporter
        .set_service_status(&service, ServingStatus::NotServing)
        .await;
    let watching = async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        reporter
            .set_service_status(&service, ServingStatus::Serving)
            .await;
        std::future::pending::<()>().await;
    };
    let server =
        tonic::transport::Server::builder().serve((Ipv4Addr::UNSPECIFIED, port).into(), health);
    tokio::select! {
        served = server => Ok(served?),
        () = watching => Ok(()),
    }
}
