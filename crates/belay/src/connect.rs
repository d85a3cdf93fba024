//! From the command line to a client, and from the client's errors to words a user can act on.

mod proxy;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::cli::Global;
use crate::place;

/// A client, the namespace to work in, and where it leads.
#[derive(Clone)]
pub(crate) struct Connection {
    pub client: Client,
    pub namespace: String,
    /// The server's address, for messages.
    pub server: String,
}

/// Where the kubeconfig comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// This file, and it must be there.
    File(PathBuf),
    /// `$KUBECONFIG`, which may be a list.
    Environment,
    /// The service account of a pod.
    Pod,
}

/// Which kubeconfig to use: the flag, the environment, the one `belay up` wrote, what kubectl
/// would take. Of the last two those that are there.
fn source(
    flag: Option<&Path>,
    environment: bool,
    of_up: Option<PathBuf>,
    of_kubectl: Option<PathBuf>,
) -> Source {
    match (flag, environment, of_up.or(of_kubectl)) {
        (Some(path), _, _) => Source::File(path.to_owned()),
        (None, true, _) => Source::Environment,
        (None, false, Some(path)) => Source::File(path),
        (None, false, None) => Source::Pod,
    }
}

/// Whether `$KUBECONFIG` names one. An empty value names none.
pub(crate) fn is_in_environment() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty())
}

/// The client configuration that the global options lead to.
pub(crate) async fn config(global: &Global) -> anyhow::Result<Config> {
    let environment = is_in_environment();
    let of_up = place::default_data_dir()
        .ok()
        .map(|dir| dir.join("kubeconfig"))
        .filter(|path| path.is_file());
    let of_kubectl = std::env::home_dir()
        .map(|home| home.join(".kube/config"))
        .filter(|path| path.is_file());
    match source(global.kubeconfig.as_deref(), environment, of_up, of_kubectl) {
        Source::File(path) => read(&path).await,
        Source::Environment => Config::from_kubeconfig(&KubeConfigOptions::default())
            .await
            .context("the kubeconfig that $KUBECONFIG names cannot be used"),
        Source::Pod if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => Config::incluster()
            .context("no kubeconfig found, and the service account of this pod cannot be used"),
        Source::Pod => Err(anyhow!(
            "no kubeconfig found: start a server with `belay up`, or name one with --kubeconfig FILE or $KUBECONFIG"
        )),
    }
}

/// The client configuration of a role of a cluster: the kubeconfig that it is given, else what
/// kubectl would take, else the service account of its pod. Never that of `belay up`.
pub(crate) async fn role_config(global: &Global) -> anyhow::Result<Config> {
    match &global.kubeconfig {
        Some(path) => read(path).await,
        None => Config::infer().await.context(
            "neither a kubeconfig nor the service account of a pod was found; name one with --kubeconfig FILE or $KUBECONFIG",
        ),
    }
}

/// The client configuration in one file.
pub(crate) async fn read(path: &Path) -> anyhow::Result<Config> {
    let unusable = || format!("the kubeconfig {} cannot be used", path.display());
    let kubeconfig = Kubeconfig::read_from(path).with_context(unusable)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(unusable)
}

/// The client of a configuration, which every role and command uses. Nothing is sent yet.
///
/// **Invariant:** what is sent is sent once. The client's own repetition would send again what may
/// have been done, a creation or a command, and would do so where nobody looks at the clock any more.
/// Whoever may ask again does so itself.
pub(crate) fn client(mut config: Config) -> anyhow::Result<Client> {
    let server = config.cluster_url.to_string();
    config.default_retry = false;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(proxy) = &config.proxy_url {
        // The configuration does not say which it was: the environment is asked for any server, a
        // `proxy-url` is meant for this one.
        let of_environment = ["HTTPS_PROXY", "https_proxy"].iter().find(|name| {
            let url = variable(name).and_then(|value| value.parse::<http::Uri>().ok());
            url.as_ref() == Some(proxy)
        });
        let no_proxy = variable("NO_PROXY").or_else(|| variable("no_proxy"));
        match of_environment {
            Some(_) if is_direct(&config.cluster_url, &no_proxy.unwrap_or_default()) => {
                config.proxy_url = None;
            }
            Some(name) => {
                let host = config.cluster_url.host().unwrap_or_default();
                return Err(anyhow!(
                    "${name} is set, and belay does not go through a proxy: if {server} can be reached directly, name {host} in $NO_PROXY"
                ));
            }
            None => {
                return Err(anyhow!(
                    "the kubeconfig has a proxy-url, and belay does not go through a proxy: it has to reach {server} directly"
                ));
            }
        }
    }
    Client::try_from(config).with_context(|| format!("the credentials for {server} cannot be used"))
}

/// Whether a server is spoken to without the proxy that the environment names.
fn is_direct(server: &http::Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default();
    let port = server.port_u16().unwrap_or(443);
    proxy::is_loopback(host) || proxy::spares(no_proxy, host, port)
}

/// Makes the client. Nothing is sent yet.
pub(crate) async fn connect(global: &Global) -> anyhow::Result<Connection> {
    let config = config(global).await?;
    let server = config.cluster_url.to_string();
    let namespace = global
        .namespace
        .clone()
        .unwrap_or_else(|| config.default_namespace.clone());
    Ok(Connection {
        client: client(config)?,
        namespace,
        server,
    })
}

impl Connection {
    /// Says what a failed request means and what to do about it.
    pub(crate) fn explain(&self, error: kube::Error) -> anyhow::Error {
        explain(error, &self.server)
    }
}

fn explain(error: kube::Error, server: &str) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => anyhow!(
                "{server} does not accept these credentials ({}): they have expired, or are for another server. `belay up` and `belay server` write a kubeconfig into their data directory, `belay token create` makes one; for a cluster sign in to it again, or ask who runs it",
                status.message
            ),
            // A kind that is not served has no object that could be missing.
            404 if status.details.is_none() => anyhow!(
                "{server} does not serve this kind: on a cluster install Belay first (`belay manifests | kubectl apply -f -`), elsewhere see whether a feature gate is off"
            ),
            _ if status.message.is_empty() => anyhow!("{server} answered {}", status.code),
            _ => anyhow!("{}", status.message),
        },
        error @ (kube::Error::Service(_) | kube::Error::HyperError(_)) => {
            unreachable(&error, server)
        }
        error => anyhow::Error::new(error).context(format!("request to {server} failed")),
    }
}

/// What it means that a server could not be spoken to.
fn unreachable(error: &kube::Error, server: &str) -> anyhow::Error {
    let chain: Vec<_> = causes(error).collect();
    // The innermost says what happened on the wire.
    let cause = chain.last().map_or_else(String::new, ToString::to_string);
    let tls = chain.iter().find_map(|error| error.downcast_ref());
    if let Some(advice) = tls.and_then(of_certificate) {
        return anyhow!("cannot speak with {server} ({cause}): {advice}");
    }
    let is_refused = chain.iter().any(|error| {
        error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    let server_url: Option<http::Uri> = server.parse().ok();
    let host = server_url.as_ref().and_then(http::Uri::host);
    if is_refused && host.is_some_and(proxy::is_loopback) {
        return anyhow!(
            "cannot reach {server} ({cause}); is it running? If it is that of `belay up`, start it with `belay up`"
        );
    }
    anyhow!(
        "cannot reach {server} ({cause}); does the server run, and is this the right address? It is the `server` of the kubeconfig"
    )
}

/// What to do about a certificate that one side does not accept.
fn of_certificate(error: &rustls::Error) -> Option<&'static str> {
    use rustls::{AlertDescription as Alert, CertificateError as Wrong, Error};
    match error {
        Error::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        ) => Some(
            "the server's certificate is not valid at this time; compare the clocks of both machines",
        ),
        Error::InvalidCertificate(
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. },
        ) => Some(
            "its certificate is not for this name; use an address that it is for, or start `belay up` or `belay server` with --tls-name",
        ),
        Error::InvalidCertificate(_)
        | Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            // Another authority of the same name has signed it: that of a server made anew.
            | Alert::DecryptError,
        ) => Some(
            "the kubeconfig belongs to another server, or the server was made anew since; get a new kubeconfig from it",
        ),
        Error::AlertReceived(Alert::CertificateExpired | Alert::CertificateRevoked) => Some(
            "the certificate in the kubeconfig is no longer valid; get a new kubeconfig from the server",
        ),
        _ => None,
    }
}

/// An error and what caused it. What stands inside an I/O error is not among its sources.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let inside = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        match inside {
            Some(inside) => Some(inside),
            None => error.source(),
        }
    })
}

/// The certificates of an authority, from DER as the client configuration holds them to PEM.
pub(crate) fn authority_pem(config: &Config) -> anyhow::Result<String> {
    use base64::Engine as _;
    let certificates = config.root_cert.as_deref().unwrap_or_default();
    if certificates.is_empty() {
        return Err(anyhow!(
            "the kubeconfig names no certificate authority (certificate-authority-data); make one with `belay token create --node NAME`"
        ));
    }
    let mut pem = String::new();
    for der in certificates {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        for line in text.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn the_nearest_kubeconfig_wins() {
        let up = || Some(PathBuf::from("/state/kubeconfig"));
        let flag = Path::new("/mine");
        let kubectl = || Some(PathBuf::from("/home/.kube/config"));
        for (flag, environment, of_up, of_kubectl, expected) in [
            (
                Some(flag),
                true,
                up(),
                kubectl(),
                Source::File("/mine".into()),
            ),
            (None, true, up(), kubectl(), Source::Environment),
            (
                None,
                false,
                up(),
                kubectl(),
                Source::File("/state/kubeconfig".into()),
            ),
            (
                None,
                false,
                None,
                kubectl(),
                Source::File("/home/.kube/config".into()),
            ),
            (None, false, None, None, Source::Pod),
        ] {
            assert_eq!(source(flag, environment, of_up, of_kubectl), expected);
        }
    }

    #[test]
    fn refusals_are_told_in_the_servers_words() {
        let status = Status {
            code: 422,
            message: "PodNotification is invalid: spec.notifier: Required value".into(),
            ..Status::default()
        };
        let error = explain(kube::Error::Api(status.boxed()), "https://x/");
        assert_eq!(
            error.to_string(),
            "PodNotification is invalid: spec.notifier: Required value"
        );
    }

    #[test]
    fn a_kind_that_is_not_served_is_told_from_an_object_that_is_not_there() {
        let not_served = Status {
            code: 404,
            message: "404 page not found\n".into(),
            ..Status::default()
        };
        let error = explain(kube::Error::Api(not_served.boxed()), "https://x/");
        assert!(error.to_string().contains("belay manifests"), "{error}");
        let missing: Status = serde_json::from_value(serde_json::json!({
            "code": 404,
            "message": "pods \"a\" not found",
            "details": {"name": "a", "kind": "pods"},
        }))
        .unwrap();
        let error = explain(kube::Error::Api(missing.boxed()), "https://x/");
        assert_eq!(error.to_string(), "pods \"a\" not found");
    }

    #[test]
    fn a_server_that_is_away_is_told_with_what_to_do() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = explain(
            kube::Error::Service(refused.into()),
            "https://127.0.0.1:7443/",
        );
        assert_eq!(
            error.to_string(),
            "cannot reach https://127.0.0.1:7443/ (connection refused); is it running? If it is that of `belay up`, start it with `belay up`"
        );
        // Nobody starts a cluster with `belay up`, nor makes a server that hangs answer.
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
        for (error, server) in [(refused, "https://x/"), (late, "https://127.0.0.1/")] {
            let told = explain(kube::Error::Service(error.into()), server).to_string();
            assert!(
                told.starts_with(&format!("cannot reach {server} (")),
                "{told}"
            );
            assert!(!told.contains("belay up"), "{told}");
        }
    }

    #[test]
    fn a_certificate_that_is_not_accepted_is_told_with_what_to_do() {
        use rustls::{AlertDescription, CertificateError, Error};
        for (error, advice) in [
            (
                Error::InvalidCertificate(CertificateError::UnknownIssuer),
                "belongs to another server",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "belongs to another server",
            ),
            (
                Error::AlertReceived(AlertDescription::DecryptError),
                "made anew",
            ),
            (
                Error::InvalidCertificate(CertificateError::Expired),
                "clocks",
            ),
            (
                Error::InvalidCertificate(CertificateError::NotValidForName),
                "--tls-name",
            ),
        ] {
            let told = std::io::Error::other(error);
            let told = explain(kube::Error::Service(told.into()), "https://127.0.0.1/");
            let told = told.to_string();
            assert!(told.contains(advice), "{told}");
        }
    }

    #[test]
    fn credentials_that_are_not_accepted_are_told_for_either_kind_of_server() {
        let status = Status {
            code: 401,
            message: "Unauthorized".into(),
            ..Status::default()
        };
        let told = explain(kube::Error::Api(status.boxed()), "https://x/").to_string();
        for words in ["another server", "belay token create", "for a cluster"] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }

    #[test]
    fn the_authority_becomes_pem_again() {
        let mut config = Config::new("https://x".parse().unwrap());
        assert!(authority_pem(&config).is_err());
        config.root_cert = Some(vec![vec![7; 60]]);
        let pem = authority_pem(&config).unwrap();
        assert!(pem.starts_with("-----BEGIN CERTIFICATE-----\nBwcH"));
        assert!(pem.lines().all(|line| line.len() <= 64));
        assert!(pem.ends_with("-----END CERTIFICATE-----\n"));
    }
}
