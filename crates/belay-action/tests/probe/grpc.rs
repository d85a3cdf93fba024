use super::*;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

async fn serve() -> (HealthReporter, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (reporter, service) = health_reporter();
    let server = tonic::transport::Server::builder();
    tokio::spawn(server.serve_with_incoming(service, TcpListenerStream::new(listener)));
    (reporter, address)
}

fn grpc(address: SocketAddr, service: &str) -> Check {
    Check::Grpc {
        host: address.ip().to_string(),
        port: address.port(),
        service: service.into(),
    }
}

#[tokio::test]
async fn a_server_that_serves_is_success_and_a_service_is_asked_for_by_name() {
    let (reporter, address) = serve().await;
    assert_eq!(once(grpc(address, ""), LONG).await, Ok(()));
    let check = || grpc(address, "db.Store");
    assert_eq!(
        once(check(), LONG).await,
        Err("the server knows no service \"db.Store\"".to_owned())
    );
    reporter
        .set_service_status("db.Store", ServingStatus::NotServing)
        .await;
    assert_eq!(
        once(check(), LONG).await,
        Err("gRPC NOT_SERVING".to_owned())
    );
    reporter
        .set_service_status("db.Store", ServingStatus::Serving)
        .await;
    assert_eq!(once(check(), LONG).await, Ok(()));
}

#[tokio::test]
async fn one_that_begins_to_serve_is_found_by_a_later_try() {
    let (reporter, address) = serve().await;
    reporter
        .set_service_status("s", ServingStatus::NotServing)
        .await;
    let target = Idle::new();
    let probe = probe(grpc(address, "s"), LONG);
    let never = CancellationToken::new();
    let (probed, ()) = tokio::join!(verify(&target, &probe, course(LONG), &never), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        reporter
            .set_service_status("s", ServingStatus::Serving)
            .await;
    });
    assert_eq!(probed, Probed::Succeeded);
}

#[tokio::test]
async fn what_speaks_no_grpc_fails_with_words() {
    let (address, _) = http::serve(|_| http::answer(200, &[])).await;
    let said = once(grpc(address, ""), LONG).await.unwrap_err();
    assert!(!said.is_empty(), "{said}");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let check = grpc(silent.local_addr().unwrap(), "");
    let said = once(check, Duration::from_millis(200)).await;
    assert_eq!(said, Err("no answer within 0.2 s".to_owned()));
    let nobody = silent.local_addr().unwrap();
    drop(silent);
    let said = once(grpc(nobody, ""), LONG).await.unwrap_err();
    assert!(
        said.starts_with(&format!("cannot connect to {nobody}: "))
            && said.contains("Connection refused"),
        "{said}"
    );
}
