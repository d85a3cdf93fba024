//! From a core probe to one that can be tried: defaults filled in, ports and hosts resolved. Pure.
//!
//! `failureThreshold` is not used: a notifier's probe goes on until it succeeds or the notifier's
//! time is over.

use std::time::Duration;

use belay_action::probe::{Cadence, Check, HttpGet, Probe};
use belay_api::pod::{Container, Probe as Declared};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

const DEFAULT_PERIOD_SECONDS: u64 = 10;
const DEFAULT_TIMEOUT_SECONDS: u64 = 1;

/// The probe of a container that is reached at `address`.
///
/// Defaults are filled in here too, because the notifiers annotation is text to every server. The
/// error completes the sentence "the probe ...".
pub(crate) fn resolve(
    declared: &Declared,
    container: Option<&Container>,
    address: &str,
) -> Result<Probe, String> {
    let host = |given: Option<&String>| {
        let given = given.filter(|host| !host.is_empty());
        given.cloned().unwrap_or_else(|| address.to_owned())
    };
    let kinds = (
        &declared.exec,
        &declared.http_get,
        &declared.tcp_socket,
        &declared.grpc,
    );
    let check = match kinds {
        (Some(exec), None, None, None) => Check::Exec {
            command: exec
                .command
                .clone()
                .filter(|command| !command.is_empty())
                .ok_or("has no command")?,
        },
        (None, Some(get), None, None) => Check::Http(HttpGet {
            tls: match get.scheme.as_deref() {
                None | Some("" | "HTTP") => false,
                Some("HTTPS") => true,
                Some(other) => return Err(format!("has the unknown scheme \"{other}\"")),
            },
            host: host(get.host.as_ref()),
            port: port(&get.port, container)?,
            path: get.path.clone().unwrap_or_default(),
            headers: get
                .http_headers
                .iter()
                .flatten()
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect(),
        }),
        (None, None, Some(tcp), None) => Check::Tcp {
            host: host(tcp.host.as_ref()),
            port: port(&tcp.port, container)?,
        },
        (None, None, None, Some(grpc)) => Check::Grpc {
            host: address.to_owned(),
            port: number(i64::from(grpc.port))?,
            service: grpc.service.clone().unwrap_or_default(),
        },
        _ => return Err("must have exactly one of exec, httpGet, tcpSocket and grpc".to_owned()),
    };
    Ok(Probe {
        check,
        cadence: Cadence {
            initial_delay: seconds(declared.initial_delay_seconds, 0),
            period: seconds(declared.period_seconds, DEFAULT_PERIOD_SECONDS),
            timeout: seconds(declared.timeout_seconds, DEFAULT_TIMEOUT_SECONDS),
            success_threshold: declared
                .success_threshold
                .and_then(|count| u32::try_from(count).ok())
                .unwrap_or_default()
                .max(1),
        },
    })
}

/// 0 means the default, as in core.
fn seconds(given: Option<i32>, default: u64) -> Duration {
    let given = given.and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(given.filter(|seconds| *seconds > 0).unwrap_or(default))
}

/// A name is one of the container's ports; one that is none may be a number written as text.
fn port(given: &IntOrString, container: Option<&Container>) -> Result<u16, String> {
    match given {
        IntOrString::Int(given) => number(i64::from(*given)),
        IntOrString::String(name) => container
            .and_then(|container| container.port_named(name))
            .or_else(|| name.parse().ok())
            .filter(|port| *port > 0)
            .ok_or_else(|| {
                format!("names the port \"{name}\", which is not among the container's ports")
            }),
    }
}

fn number(given: i64) -> Result<u16, String> {
    u16::try_from(given)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("has the port {given}, which is not between 1 and 65535"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn resolved(probe: Value) -> Result<Probe, String> {
        let container: Container = serde_json::from_value(json!({
            "name": "c", "ports": [{"name": "web", "containerPort": 8080}],
        }))
        .unwrap();
        let declared: Declared = serde_json::from_value(probe).unwrap();
        resolve(&declared, Some(&container), "10.0.0.7")
    }

    #[test]
    fn what_is_left_out_is_as_in_core() {
        let probe = resolved(json!({"httpGet": {"port": "web"}, "periodSeconds": 0})).unwrap();
        let get = HttpGet {
            tls: false,
            host: "10.0.0.7".into(),
            port: 8080,
            path: String::new(),
            headers: vec![],
        };
        assert_eq!(probe.check, Check::Http(get));
        let cadence = Cadence {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            success_threshold: 1,
        };
        assert_eq!(probe.cadence, cadence);
    }

    #[test]
    fn what_is_given_is_used() {
        let probe = resolved(json!({
            "httpGet": {
                "port": 443, "scheme": "HTTPS", "host": "db.local", "path": "/x?y",
                "httpHeaders": [{"name": "A", "value": "b"}, {"name": "A", "value": "c"}],
            },
            "initialDelaySeconds": 3, "periodSeconds": 4, "timeoutSeconds": 5,
            "successThreshold": 2, "failureThreshold": 9,
        }))
        .unwrap();
        let header = |value: &str| ("A".to_owned(), value.to_owned());
        let get = HttpGet {
            tls: true,
            host: "db.local".into(),
            port: 443,
            path: "/x?y".into(),
            headers: vec![header("b"), header("c")],
        };
        assert_eq!(probe.check, Check::Http(get));
        let cadence = Cadence {
            initial_delay: Duration::from_secs(3),
            period: Duration::from_secs(4),
            timeout: Duration::from_secs(5),
            success_threshold: 2,
        };
        assert_eq!(probe.cadence, cadence);
    }

    #[test]
    fn every_kind_is_resolved() {
        let check = |probe| resolved(probe).unwrap().check;
        assert_eq!(
            check(json!({"exec": {"command": ["a", "b"]}})),
            Check::Exec {
                command: vec!["a".into(), "b".into()]
            }
        );
        let tcp = |host: &str, port| Check::Tcp {
            host: host.into(),
            port,
        };
        assert_eq!(
            check(json!({"tcpSocket": {"port": "web", "host": ""}})),
            tcp("10.0.0.7", 8080)
        );
        assert_eq!(
            check(json!({"tcpSocket": {"port": "81", "host": "::1"}})),
            tcp("::1", 81)
        );
        assert_eq!(
            check(json!({"grpc": {"port": 9, "service": "s"}})),
            Check::Grpc {
                host: "10.0.0.7".into(),
                port: 9,
                service: "s".into()
            }
        );
    }

    #[test]
    fn what_cannot_be_tried_says_why() {
        for (probe, why) in [
            (json!({}), "must have exactly one of"),
            (
                json!({"grpc": {"port": 1}, "tcpSocket": {"port": 1}}),
                "must have exactly one of",
            ),
            (json!({"exec": {"command": []}}), "has no command"),
            (
                json!({"tcpSocket": {"port": "admin"}}),
                "names the port \"admin\"",
            ),
            (json!({"tcpSocket": {"port": 0}}), "has the port 0"),
            (json!({"grpc": {"port": 65536}}), "has the port 65536"),
            (
                json!({"httpGet": {"port": 1, "scheme": "ftp"}}),
                "has the unknown scheme",
            ),
        ] {
            let error = resolved(probe.clone()).unwrap_err();
            assert!(error.starts_with(why), "{probe}: {error}");
        }
    }
}
