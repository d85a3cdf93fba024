//! `grpc.health.v1.Health/Check`, without TLS, as the kubelet asks it.

use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::check::{USER_AGENT, authority, causes};

pub(super) async fn check(host: &str, port: u16, service: &str) -> Result<(), String> {
    let place = authority(host, port);
    let unreached = |error| format!("cannot connect to {place}: {}", causes(&error));
    let channel = Endpoint::from_shared(format!("http://{place}"))
        .and_then(|endpoint| endpoint.user_agent(USER_AGENT))
        .map_err(unreached)?
        .connect()
        .await
        .map_err(unreached)?;
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(channel).check(request).await;
    let status = match answer {
        Ok(answer) => answer.into_inner().status(),
        Err(status) => {
            return Err(match status.code() {
                Code::Unimplemented => {
                    "the server does not implement grpc.health.v1.Health".to_owned()
                }
                Code::NotFound => format!("the server knows no service {service:?}"),
                code => format!("gRPC {code:?}: {}", status.message()),
            });
        }
    };
    match status {
        ServingStatus::Serving => Ok(()),
        ServingStatus::Unknown | ServingStatus::NotServing | ServingStatus::ServiceUnknown => {
            Err(format!("gRPC {}", status.as_str_name()))
        }
    }
}
