//! Wires the roles together: `up` runs all of them in one process, `server` and `agent` some. Those
//! of a stock cluster are in [`crate::cluster`].
//!
//! ```text
//!            CancellationToken (SIGTERM, SIGINT, or a role that failed)
//!              |          |             |            |
//!            server <-- binder      controllers    agent --> runtime
//!              ^----------- kube::Client, each with its own identity -----'
//! ```
//!
//! **Invariant:** a role that ends with an error ends the process, non-zero and with the message:
//! half an instance would look healthy and not be.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use belay_api::gates::{Feature, FeatureGates};
use belay_server::{Identity, Server, ServerError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::{AgentArgs, AgentMode, Global, ServerArgs, TokenCommand, UpArgs};
use crate::cluster;
use crate::connect;
use crate::exit::{Exit, usage};
use crate::format;
use crate::place;
use crate::runtime;
use crate::signals::Interrupts;

/// How long roles may take to end before the process ends without them. Nothing is lost by that:
/// what was acknowledged is on disk.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The node of `belay up` runs as many actions at once as an agent does by default.
const MAX_ACTIONS: usize = 16;

/// `belay up`.
pub(crate) async fn up(args: UpArgs) -> anyhow::Result<Exit> {
    let interrupts = Interrupts::listen()?;
    let data_dir = data_dir(args.data_dir.as_deref())?;
    let node_name = args.node_name.unwrap_or_else(place::default_node_name);
    let server = open(
        &data_dir,
        args.listen,
        args.gates.feature_gates,
        args.tls_names,
    )
    .await?;

    let mut roles = Roles::default();
    roles.serve(&server, args.gates.feature_gates, args.hooks.hook_ttl);
    let agent_dir = data_dir.join("agent");
    let endpoint = args.runtime_endpoint.as_deref();
    let owner = runtime::owner(&node_name, &server.ca_pem());
    let chosen = runtime::choose(args.runtime, endpoint, &agent_dir, &owner).await?;
    let agent = belay_agent::Config {
        node_name: node_name.clone(),
        runtime: chosen.runtime,
        data_dir: agent_dir,
        client: server.connect(Identity::node(&node_name)),
        gates: args.gates.feature_gates,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        server_ca_pem: server.ca_pem(),
        max_actions: MAX_ACTIONS,
        node_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let stop = roles.stop.clone();
    roles.add("agent", async move {
        belay_agent::run(agent, stop).await.map_err(Into::into)
    });

    let announce = announce(&server, Some((&node_name, &chosen.words)));
    roles.run(&interrupts, announce).await
}

/// `belay server`.
pub(crate) async fn server(args: ServerArgs) -> anyhow::Result<Exit> {
    let interrupts = Interrupts::listen()?;
    let data_dir = data_dir(args.data_dir.as_deref())?;
    let gates = args.gates.feature_gates;
    let server = open(&data_dir, args.listen, gates, args.tls_names).await?;
    let mut roles = Roles::default();
    roles.serve(&server, gates, args.hooks.hook_ttl);
    let announce = announce(&server, None);
    roles.run(&interrupts, announce).await
}

/// `belay agent`.
pub(crate) async fn agent(global: &Global, args: AgentArgs) -> anyhow::Result<Exit> {
    match args.mode {
        AgentMode::Node => {}
        AgentMode::Companion => return cluster::companion(global, args).await,
    }
    if global.kubeconfig.is_none() && !connect::is_in_environment() {
        return Err(usage(
            "an agent needs its node's kubeconfig: --kubeconfig FILE (`belay token create --node NAME > FILE` on the server makes one)",
        ));
    }
    let interrupts = Interrupts::listen()?;
    let config = connect::config(global).await?;
    let node_address = match args.node_address {
        Some(address) => address,
        None if args.listen.ip().is_loopback() && !is_here(&config.cluster_url) => {
            return Err(usage(format!(
                "the server {} is on another machine and does not reach {}, where the agent would listen: use --listen 0.0.0.0:0, with --node-address IP if the server reaches this node by another address than the one it is reached from",
                config.cluster_url, args.listen
            )));
        }
        None => reachable_address(args.listen.ip(), &config.cluster_url)?,
    };
    let data_dir = place::prepare_data_dir(&args.data_dir)?;
    let server = config.cluster_url.to_string();
    let node_name = args.node_name.unwrap_or_else(place::default_node_name);
    let endpoint = args.runtime_endpoint.as_deref();
    let authority = connect::authority_pem(&config)?;
    let owner = runtime::owner(&node_name, &authority);
    let chosen = runtime::choose(args.runtime, endpoint, &data_dir, &owner).await?;
    let words = chosen.words;
    let agent = belay_agent::Config {
        node_name: node_name.clone(),
        runtime: chosen.runtime,
        data_dir,
        server_ca_pem: authority,
        client: connect::client(config)?,
        gates: args.gates.feature_gates,
        listen: args.listen,
        max_actions: usize::from(args.max_actions),
        node_address,
    };
    let mut roles = Roles::default();
    let stop = roles.stop.clone();
    roles.add("agent", async move {
        belay_agent::run(agent, stop).await.map_err(Into::into)
    });
    let announce = async move {
        format::out(&format!(
            "belay agent: node {node_name} (runtime {words}), server {server}\n"
        ))
    };
    roles.run(&interrupts, announce).await
}

/// `belay token`.
pub(crate) fn token(command: TokenCommand) -> anyhow::Result<Exit> {
    let TokenCommand::Create {
        node,
        user,
        groups,
        server,
        data_dir,
    } = command;
    let data_dir = match data_dir {
        Some(dir) => dir,
        None => place::default_data_dir()?,
    };
    let url = server.as_ref();
    let made = match (node, user) {
        (Some(node), _) => belay_server::create_node_token(&data_dir, &node, url)?,
        (None, Some(user)) => {
            match belay_server::create_user_token(&data_dir, &user, &groups, url) {
                Err(error @ ServerError::ReservedUser { .. }) => {
                    return Err(usage(error.to_string()));
                }
                made => made?,
            }
        }
        (None, None) => return Err(usage("say for whom: --node NAME or --user NAME")),
    };
    if let Some(note) = &made.note {
        format::note(&format!("note: {note}"));
    }
    format::out(&made.text)?;
    Ok(Exit::Done)
}

fn data_dir(given: Option<&Path>) -> anyhow::Result<std::path::PathBuf> {
    match given {
        Some(dir) => place::prepare_data_dir(dir),
        None => place::prepare_data_dir(&place::default_data_dir()?),
    }
}

async fn open(
    data_dir: &Path,
    listen: SocketAddr,
    gates: FeatureGates,
    tls_names: Vec<String>,
) -> anyhow::Result<Server> {
    let config = belay_server::Config {
        data_dir: data_dir.to_owned(),
        listen,
        gates,
        tls_names,
    };
    Ok(Server::open(config).await?)
}

/// Whether a server is on this machine: an address of it is one of this machine's, which only those
/// can be bound.
fn is_here(server: &http::Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = server.port_u16().unwrap_or(443);
    (host, port)
        .to_socket_addrs()
        .is_ok_and(|mut found| found.any(|found| UdpSocket::bind((found.ip(), 0)).is_ok()))
}

/// The address under which others reach what listens on `listen`: that address itself, or, when
/// it is "all of them", the one this machine uses towards the server.
fn reachable_address(listen: IpAddr, server: &http::Uri) -> anyhow::Result<IpAddr> {
    if !listen.is_unspecified() {
        return Ok(listen);
    }
    let unknown =
        || "cannot tell which address the server reaches this node by; use --node-address IP";
    let host = server.host().with_context(unknown)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = server.port_u16().unwrap_or(443);
    // Connecting a datagram socket sends nothing; it only asks the kernel for the route.
    let any: SocketAddr = (listen, 0).into();
    let socket = UdpSocket::bind(any).with_context(unknown)?;
    socket.connect((host, port)).with_context(unknown)?;
    Ok(socket.local_addr().with_context(unknown)?.ip())
}

/// Says where the instance is and what to try, once it answers.
fn announce(
    server: &Server,
    node: Option<(&str, &str)>,
) -> impl Future<Output = anyhow::Result<()>> + Send + 'static {
    let client = server.connect(Identity::admin());
    let kubeconfig = server.kubeconfig_path();
    let address = server.local_addr();
    let node = node.map(|(name, runtime)| (name.to_owned(), runtime.to_owned()));
    async move {
        wait_ready(&client).await?;
        let default = place::default_data_dir()
            .ok()
            .map(|dir| dir.join("kubeconfig"));
        let found_anyway = default.as_ref() == Some(&kubeconfig);
        let flag = if found_anyway && !connect::is_in_environment() {
            String::new()
        } else {
            format!(" --kubeconfig {}", kubeconfig.display())
        };
        let mut text = format!(
            "belay is ready on https://{address}\n  kubeconfig: {}\n",
            kubeconfig.display()
        );
        match node {
            Some((node, runtime)) => text.push_str(&format!(
                "  node: {node} (runtime {runtime})\n  try: belay{flag} get nodes\n",
            )),
            None => text.push_str(&format!(
                "  try: belay{flag} get pods -A\n  a node joins with: belay token create --data-dir {} --node NAME\n",
                kubeconfig.parent().unwrap_or(Path::new(".")).display()
            )),
        }
        format::out(&text)
    }
}

/// Asks `/readyz` until it answers 200.
async fn wait_ready(client: &kube::Client) -> anyhow::Result<()> {
    let mut pause = Duration::from_millis(5);
    loop {
        let request = http::Request::get("/readyz").body(Vec::new())?;
        match client.request_text(request).await {
            Ok(_) => return Ok(()),
            Err(error) => tracing::debug!(%error, "not ready yet"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

type Role = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// What runs in this process, and the token that ends it.
#[derive(Default)]
pub(crate) struct Roles {
    pub(crate) stop: CancellationToken,
    roles: Vec<(&'static str, Role)>,
}

impl Roles {
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        role: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.roles.push((name, Box::pin(role)));
    }

    /// The server and the loops that belong beside it.
    fn serve(&mut self, server: &Server, gates: FeatureGates, hook_ttl: Duration) {
        let (stop, served) = (self.stop.clone(), server.clone());
        self.add("server", async move {
            served.serve(stop).await.map_err(Into::into)
        });
        let client = server.connect(Identity::controlplane());
        let stop = self.stop.clone();
        self.add("binder", async move {
            belay_controlplane::binder::run(client, stop).await;
            Ok(())
        });
        let client = server.connect(Identity::controlplane());
        let stop = self.stop.clone();
        self.add("daemon set controller", async move {
            belay_controlplane::daemonsets::run(client, stop).await;
            Ok(())
        });
        let client = server.connect(Identity::controlplane());
        let stop = self.stop.clone();
        self.add("namespace collector", async move {
            belay_controlplane::namespaces::run(client, stop).await;
            Ok(())
        });
        let client = server.connect(Identity::controlplane());
        let stop = self.stop.clone();
        self.add("node watcher", async move {
            belay_controlplane::nodes::run(client, stop).await;
            Ok(())
        });
        let client = server.connect(Identity::controlplane());
        let stop = self.stop.clone();
        self.add("owner collector", async move {
            belay_controlplane::owners::run(client, stop).await;
            Ok(())
        });
        let metrics = Arc::new(belay_controllers::Metrics::of_loops());
        let controllers = belay_controllers::Controllers {
            metrics: Arc::clone(&metrics),
            hook_ttl,
            ..belay_controllers::Controllers::new(server.connect(Identity::controller()))
        };
        server.show_metrics(move || metrics.text());
        let stop = self.stop.clone();
        self.add("controllers", async move {
            // With the gate off the server does not serve notifications.
            if gates.enabled(Feature::ContainerNotifier) {
                controllers.run(stop).await;
            } else {
                controllers.run_hooks(stop).await;
            }
            Ok(())
        });
    }

    /// Runs until a signal comes or a role ends; then ends all of them.
    pub(crate) async fn run(
        self,
        interrupts: &Interrupts,
        announce: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) -> anyhow::Result<Exit> {
        let stop = self.stop;
        let mut running = JoinSet::new();
        for (name, role) in self.roles {
            running.spawn(async move { (name, role.await) });
        }
        let announcing = tokio::spawn(announce);
        let first = tokio::select! {
            () = interrupts.received() => None,
            ended = running.join_next() => ended,
        };
        announcing.abort();
        stop.cancel();
        let mut verdict = match first {
            None => Ok(Exit::Done),
            Some(ended) => Err(premature(ended)),
        };
        let rest = async {
            while let Some(ended) = running.join_next().await {
                if let Err(error) = after_stop(ended)
                    && verdict.is_ok()
                {
                    verdict = Err(error);
                }
            }
        };
        tokio::select! {
            () = rest => {}
            () = tokio::time::sleep(LAST_WORDS) => {
                tracing::warn!("a role did not end in {LAST_WORDS:?}; ending without it");
            }
            () = interrupts.received() => tracing::warn!("told to stop again; ending at once"),
        }
        verdict
    }
}

type Ended = Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError>;

/// The error of a role that ended while nobody had asked it to.
fn premature(ended: Ended) -> anyhow::Error {
    match ended {
        Ok((name, Ok(()))) => anyhow!("the {name} ended by itself; this is a fault in belay"),
        Ok((name, Err(error))) => error.context(format!("the {name} failed")),
        Err(panic) => anyhow!("a role crashed: {panic}; this is a fault in belay"),
    }
}

/// How a role ended that was asked to.
fn after_stop(ended: Ended) -> anyhow::Result<()> {
    match ended {
        Ok((name, result)) => result.with_context(|| format!("the {name} failed while stopping")),
        Err(panic) => Err(anyhow!("a role crashed while stopping: {panic}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn never() -> anyhow::Result<()> {
        std::future::pending().await
    }

    #[tokio::test]
    async fn a_role_that_fails_ends_the_others_and_is_named() {
        let mut roles = Roles::default();
        let stop = roles.stop.clone();
        roles.add("agent", async { Err(anyhow!("disk is gone")) });
        roles.add("server", async move {
            stop.cancelled().await;
            Ok(())
        });
        let interrupts = Interrupts::listen().unwrap();
        let error = roles.run(&interrupts, never()).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "the agent failed: disk is gone");
    }

    #[tokio::test]
    async fn a_role_that_ends_unasked_is_a_failure_and_one_that_crashes_too() {
        for crash in [false, true] {
            let mut roles = Roles::default();
            roles.add("binder", async move {
                assert!(!crash, "boom");
                Ok(())
            });
            let interrupts = Interrupts::listen().unwrap();
            let error = roles.run(&interrupts, never()).await.unwrap_err();
            assert!(
                error.to_string().ends_with("this is a fault in belay"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_server_is_here_by_any_address_of_this_machine() {
        for (server, here) in [
            ("https://127.0.0.1:7443", true),
            ("https://localhost", true),
            // Given to nobody (RFC 5737).
            ("https://192.0.2.1:7443", false),
            ("https://no-such-host.invalid", false),
        ] {
            assert_eq!(is_here(&server.parse().unwrap()), here, "{server}");
        }
    }

    #[test]
    fn the_address_of_a_listener_is_its_own_unless_it_has_all_of_them() {
        let server: http::Uri = "https://127.0.0.1:7443".parse().unwrap();
        let own: IpAddr = "10.1.2.3".parse().unwrap();
        assert_eq!(reachable_address(own, &server).unwrap(), own);
        let any: IpAddr = "0.0.0.0".parse().unwrap();
        assert_eq!(
            reachable_address(any, &server).unwrap(),
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        );
    }
}
