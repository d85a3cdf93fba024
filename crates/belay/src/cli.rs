//! The command line: what can be said, and nothing of what it does.
//!
//! Help, completions and validation all come from these definitions.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use belay_api::gates::FeatureGates;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::format::Format;
use crate::log::LogFormat;

const MAP: &str = "\
Examples:
  belay demo                          see everything work, on a throw-away instance
  belay up                            run an API server and a node on this machine
  belay notify reload pod/web         run the action \"reload\" that pod web declares
  belay describe pod/web              what happened to it, in order

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing matched (`notify` and `hook run` only).";

/// Runs the actions that a workload declares for itself, and records what happened in each container.
#[derive(Debug, Parser)]
#[command(name = "belay", version, after_help = MAP, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Kubeconfig of the server to talk to [default: $KUBECONFIG, else that of `belay up`, else
    /// kubectl's. A node's agent takes no default but $KUBECONFIG; controller and companion never
    /// take that of `belay up`]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace to work in [default: that of the kubeconfig's context]
    #[arg(
        short,
        long,
        global = true,
        value_name = "NS",
        value_parser = namespace,
        help_heading = "Global options"
    )]
    pub namespace: Option<String>,
    /// How to print objects [default: a table]
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    pub output: Option<Format>,
    /// What to log: error, warn, info, debug, trace, or directives like `info,belay_agent=debug`
    /// [default: $RUST_LOG, else warn; info for server, controller and agent]
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        help_heading = "Global options"
    )]
    pub log_level: Option<String>,
    /// How log lines look
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Global options"
    )]
    pub log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process: API server, controllers and a node
    #[command(after_help = "\
Example:
  belay up
  kubectl --kubeconfig ~/.local/state/belay/kubeconfig get nodes

It is ready when it says so (GET /readyz answers 200). SIGTERM and Ctrl-C stop it; the containers
go on running and are taken over by the next `belay up` on the same data directory.")]
    Up(UpArgs),

    /// A guided tour on a throw-away instance; exits 0 when everything it shows worked
    #[command(after_help = "\
Example:
  belay demo

It uses no network but the loopback, installs nothing, and stops everything it started.")]
    Demo,

    /// Trigger a notifier in pods and wait for the results
    #[command(after_help = "\
Examples:
  belay notify reload pod/web
  belay notify flush-logs web-0 web-1 --timeout 30s
  belay notify lock pod/db --dry-run      which containers declare it, and what would run
  belay notify reload -l app=web --parallelism 10 --max-failures 3
  belay notify reload -l app=web --policy AllPods --no-wait    also pods that come later

Ctrl-C cancels: what was created is deleted, which kills the handlers that run; with --keep they go on.

Exit codes: 0 every handler succeeded, 1 one failed or it was cancelled, 2 wrong usage, 3 no running
pod matches the selector or no container declares the notifier. A pod that is named but does not
exist is 1. With --no-wait 0 means created; with --dry-run a right that is missing is 1.")]
    Notify(NotifyArgs),

    /// Run the action of a HookAction in containers, and see what came of it
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Hook(HookArgs),

    /// List objects: ntf (notifications), pn (podnotifications), eh (executionhooks), ha (hookactions), pods, nodes
    #[command(after_help = "\
Examples:
  belay get pn
  belay get eh -A
  belay get pods web -o yaml
  belay get nodes -o wide

Exit codes: 0 also when the list is empty, 1 when an object that is named does not exist.")]
    Get(GetArgs),

    /// Show one object and its timeline
    #[command(after_help = "\
Examples:
  belay describe pn/web-reload-x7k2p
  belay describe ntf/notify-reload-k4m8z
  belay describe eh/run-flush-m2x9c
  belay describe podactions/NAME          what a hook asked for in one pod
  belay describe pod/web")]
    Describe(DescribeArgs),

    /// Run the API server and the controllers, without a node
    #[command(after_help = "\
Example:
  belay server --data-dir /var/lib/belay --listen 0.0.0.0:7443 --tls-name api.example.com
  belay token create --data-dir /var/lib/belay --node n1 > n1.kubeconfig")]
    Server(ServerArgs),

    /// Run the controllers of a stock cluster; of several replicas one acts
    #[command(after_help = "\
Examples:
  belay controller                                in a pod of the cluster
  belay controller --kubeconfig admin.kubeconfig  from outside

`belay manifests` prints everything a cluster needs, this command among it.")]
    Controller(ControllerArgs),

    /// Run a node that joins a server, or work beside a kubelet
    #[command(after_help = "\
Examples:
  belay agent --kubeconfig n1.kubeconfig --node-name n1 --listen 0.0.0.0:0 --data-dir /var/lib/belay-agent
  belay agent --mode=companion --node-name n1 --data-dir /var/lib/belay-companion")]
    Agent(AgentArgs),

    /// Make credentials for users and nodes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Token(TokenArgs),

    /// Copy the objects of a stopped instance to a file
    #[command(after_help = "\
Example:
  belay backup --data-dir /var/lib/belay /backups/belay-monday

Certificates and tokens are not in the file. Keep a copy of pki/ and tokens.json with it: without
them a restored instance makes new ones, and every node and user needs a new kubeconfig.")]
    Backup(BackupArgs),

    /// Put a backup in the place of a lost instance
    #[command(after_help = "\
Example:
  belay restore --data-dir /var/lib/belay /backups/belay-monday")]
    Restore(BackupArgs),

    /// Print the CustomResourceDefinitions for a stock cluster
    #[command(after_help = "\
Examples:
  belay crds | kubectl apply -f -
  belay crds -o json")]
    Crds,

    /// Print everything that a stock cluster needs to run Belay
    #[command(after_help = "\
Examples:
  belay manifests --image registry.example.com/belay:0.1.0 | kubectl apply -f -
  belay manifests --executor controller     where no agent may be installed: it promises less

--namespace chooses where the roles run [default: belay-system].")]
    Manifests(ManifestsArgs),

    /// Print a completion script for a shell
    #[command(after_help = "\
Example:
  belay completions bash > /etc/bash_completion.d/belay")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Runtime {
    /// The first CRI runtime that answers, else plain processes
    Auto,
    /// A CRI runtime such as containerd
    Cri,
    /// Plain processes: needs nothing installed, isolates nothing
    Process,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Where everything is kept [default: /var/lib/belay for root, else ~/.local/state/belay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address the API server listens on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    pub listen: SocketAddr,
    /// What runs the containers
    #[arg(long, value_name = "RUNTIME", default_value = "auto")]
    pub runtime: Runtime,
    /// Socket of the CRI runtime; containerd is tested, CRI-O and others are not [default:
    /// containerd's, else CRI-O's]
    #[arg(long, value_name = "ENDPOINT", env = "CONTAINER_RUNTIME_ENDPOINT")]
    pub runtime_endpoint: Option<String>,
    /// Name of the node [default: the host name]
    #[arg(long, value_name = "N", value_parser = node_name)]
    pub node_name: Option<String>,
    /// Further name or address to put into the server's certificate; may be repeated
    #[arg(long = "tls-name", value_name = "NAME")]
    pub tls_names: Vec<String>,
    #[command(flatten)]
    pub hooks: Hooks,
    #[command(flatten)]
    pub gates: Gates,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Where everything is kept [default: /var/lib/belay for root, else ~/.local/state/belay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address the API server listens on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    pub listen: SocketAddr,
    /// Further name or address to put into the server's certificate; may be repeated
    #[arg(long = "tls-name", value_name = "NAME")]
    pub tls_names: Vec<String>,
    #[command(flatten)]
    pub hooks: Hooks,
    #[command(flatten)]
    pub gates: Gates,
}

/// What an agent does on its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentMode {
    /// Registers the node and runs its pods
    Node,
    /// Works beside a kubelet
    Companion,
}

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// What the agent does on its machine
    #[arg(long, value_name = "MODE", default_value = "node")]
    pub mode: AgentMode,
    /// Name of the node, as in its credentials [default: the host name]
    #[arg(long, value_name = "N", value_parser = node_name)]
    pub node_name: Option<String>,
    /// Where the agent keeps its journal, logs and containers' state
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Address the agent serves logs and metrics on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Address under which the server reaches this node; a companion has no use for it [default:
    /// that of --listen, or if that is all addresses, the one used towards the server]
    #[arg(long, value_name = "IP")]
    pub node_address: Option<IpAddr>,
    /// What runs the containers; a companion always works with a CRI runtime
    #[arg(long, value_name = "RUNTIME", default_value = "auto")]
    pub runtime: Runtime,
    /// How many actions run at once
    #[arg(long, value_name = "COUNT", default_value = "16", value_parser = clap::value_parser!(u16).range(1..))]
    pub max_actions: u16,
    /// Socket of the CRI runtime; containerd is tested, CRI-O and others are not [default:
    /// containerd's, else CRI-O's; of a companion containerd's]
    #[arg(long, value_name = "ENDPOINT", env = "CONTAINER_RUNTIME_ENDPOINT")]
    pub runtime_endpoint: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub gates: Gates,
}

/// Who runs what notifications ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Executor {
    /// The agents on the nodes
    Agent,
    /// This controller, over pods/exec, where no agent may be installed: it promises less
    Controller,
}

#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// Who runs what notifications ask for
    #[arg(long, value_name = "EXECUTOR", default_value = "agent")]
    pub executor: Executor,
    /// Address for metrics and health, plain HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Name of this replica; a random suffix is added [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub hooks: Hooks,
    #[command(flatten)]
    pub gates: Gates,
}

/// What the controller of hooks is told.
#[derive(Debug, Args)]
pub(crate) struct Hooks {
    /// How long to keep finished ExecutionHooks without ttlSecondsAfterFinished
    #[arg(long, value_name = "D", default_value = "1h", value_parser = duration)]
    pub hook_ttl: Duration,
}

/// What a role needs to know of the stock cluster that it works in.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Namespace of the leases of controller and companions
    #[arg(long, value_name = "NS", default_value = belay_api::SYSTEM_NAMESPACE)]
    pub lease_namespace: String,
    /// Work on a cluster without the admission policies: whoever may create notifications can then
    /// trigger every notifier, and whoever may change pods can choose what is run
    #[arg(long)]
    pub allow_unprotected_triggers: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ManifestsArgs {
    /// Image of belay that the nodes can pull [default: belay, in this version]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Who runs what notifications ask for
    #[arg(long, value_name = "EXECUTOR", default_value = "agent")]
    pub executor: Executor,
}

#[derive(Debug, Args)]
pub(crate) struct Gates {
    /// Switch features, as Name=bool,...: ContainerNotifier, ContainerStopSignals,
    /// PodLifecycleSleepAction [default: all on]
    #[arg(long, value_name = "GATES", default_value = "", hide_default_value = true, value_parser = gates)]
    pub feature_gates: FeatureGates,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a kubeconfig with which a node joins, or for a user
    #[command(after_help = "\
Examples:
  belay token create --node n1 > n1.kubeconfig
  belay token create --node n1 --server https://api.example.com:7443 > n1.kubeconfig
  belay token create --user ann --group ops > ann.kubeconfig
  kubectl create rolebinding ann-views --clusterrole=view --user=ann

Works while a server runs on the data directory. Whoever has the file is that node or user; keep it
secret. A new token takes the place of the older ones of the same node or user. A user may do what
roles give to its name and groups, and nothing before a role is bound.")]
    #[command(group = clap::ArgGroup::new("who").required(true).args(["node", "user"]))]
    Create {
        /// Name of the node
        #[arg(long, value_name = "N", value_parser = node_name)]
        node: Option<String>,
        /// Name of the user
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        /// A group of the user; may be repeated
        #[arg(long = "group", value_name = "G", requires = "user")]
        groups: Vec<String>,
        /// URL under which users of the kubeconfig reach the server [default: its first --tls-name
        /// if it listens on all addresses, else its listen address]
        #[arg(long, value_name = "URL", value_parser = server_url)]
        server: Option<http::Uri>,
        /// The server's data directory [default: /var/lib/belay for root, else ~/.local/state/belay]
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The backup
    pub file: PathBuf,
    /// The instance's data directory [default: /var/lib/belay for root, else ~/.local/state/belay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct NotifyArgs {
    /// Name of the notifier
    pub notifier: String,
    /// Pods to notify: pod/NAME, or just NAME
    #[arg(value_name = "pod/NAME")]
    pub pods: Vec<String>,
    /// Notify the running pods that match a label selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "pods")]
    pub selector: Option<String>,
    /// Which pods: those there are now, or also those that come later [default: PreExistingPods]
    #[arg(long, value_name = "P", requires = "selector", ignore_case = true)]
    pub policy: Option<Policy>,
    /// How many pods to notify at a time [default: all]
    #[arg(long, value_name = "N", requires = "selector", value_parser = clap::value_parser!(i32).range(0..))]
    pub parallelism: Option<i32>,
    /// Notify no more pods after this many failures
    #[arg(long, value_name = "N", requires = "selector", value_parser = clap::value_parser!(i32).range(1..))]
    pub max_failures: Option<i32>,
    /// Start nothing after this long, and stop waiting soon after: 30s, 2m, 1m30s [default: each
    /// PodNotification may start within 60s; the wait has no limit]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Only say what would run where, who does not declare the notifier, and which rights are missing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not wait for the results; what was created is kept and goes on
    #[arg(long)]
    pub no_wait: bool,
    /// Keep what was created: it is not deleted at the end, and Ctrl-C does not cancel it
    #[arg(long)]
    pub keep: bool,
}

/// Which of the pods that match a selector are notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Policy {
    AllPods,
    PreExistingPods,
}

impl From<Policy> for belay_api::fanout::PodSelectionPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::AllPods => Self::AllPods,
            Policy::PreExistingPods => Self::PreExistingPods,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct HookArgs {
    #[command(subcommand)]
    pub command: HookCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HookCommand {
    /// Run an action in containers and wait for the results
    #[command(after_help = "\
Examples:
  belay hook run flush pod/db-0                 in all its containers
  belay hook run flush pod/db-0/mysql pod/db-1/mysql
  belay hook run quiesce -l app=db -c mysql --keep

The action is tried again in each container until it succeeds or the HookAction's
actionTimeoutSeconds are over. Ctrl-C cancels: the hook is deleted, which kills what runs; with
--keep it goes on.

Exit codes: 0 the action succeeded in all containers, 1 it failed in one or was cancelled, 2 wrong usage, 3 no container matches.")]
    Run(HookRunArgs),

    /// List hooks
    #[command(after_help = "\
Example:
  belay hook list -A -o wide")]
    List(HookListArgs),

    /// Show a hook, the results in its containers, and its timeline
    #[command(after_help = "\
Example:
  belay hook describe run-flush-m2x9c")]
    Describe {
        /// Name of the hook
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HookRunArgs {
    /// Name of the HookAction
    pub action: String,
    /// Where to run it: pod/NAME for all containers of a pod, pod/NAME/CONTAINER for one
    #[arg(value_name = "pod/NAME[/CONTAINER]")]
    pub pods: Vec<String>,
    /// Run it in the pods that match a label selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "pods")]
    pub selector: Option<String>,
    /// With --selector: only in the containers of this name; may be repeated [default: all]
    #[arg(short = 'c', long = "container", value_name = "NAME")]
    pub containers: Vec<String>,
    /// Start in no further container after this long, and stop waiting soon after: 30s, 2m
    /// [default: 60s to start; unlimited wait]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Keep the hook: it is not deleted at the end, and Ctrl-C does not cancel it
    #[arg(long)]
    pub keep: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HookListArgs {
    /// Only those that match a label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// What to list: ntf, pn, eh, ha, podactions, pods, nodes (or pn/NAME)
    pub kind: String,
    /// Only these
    pub names: Vec<String>,
    /// Only those that match a label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DescribeArgs {
    /// What to describe: ntf/NAME, pn/NAME, eh/NAME, ha/NAME, podactions/NAME or pod/NAME
    #[arg(value_name = "KIND/NAME")]
    pub object: String,
    /// Its name, if not given after the slash
    pub name: Option<String>,
}

fn gates(text: &str) -> Result<FeatureGates, String> {
    text.parse()
        .map_err(|error: belay_api::gates::GatesError| error.to_string())
}

/// A namespace goes into paths; what cannot be one must not get there.
fn namespace(text: &str) -> Result<String, String> {
    match belay_api::metadata::names::dns_label(text) {
        problems if problems.is_empty() => Ok(text.to_owned()),
        problems => Err(format!("{text:?} is no namespace: {}", problems.join("; "))),
    }
}

fn server_url(text: &str) -> Result<http::Uri, String> {
    let wrong =
        || format!("{text:?} is no address of a server such as https://api.example.com:7443");
    let url: http::Uri = text.parse().map_err(|_| wrong())?;
    let bare = url.path_and_query().is_none_or(|path| path == "/");
    if url.scheme_str() == Some("https") && url.host().is_some_and(|host| !host.is_empty()) && bare
    {
        Ok(url)
    } else {
        Err(wrong())
    }
}

/// A node name is an object name; a wrong one is better refused here than by the server later.
fn node_name(text: &str) -> Result<String, String> {
    let label = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    if text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err("a node name has lower case letters, digits, '-' and '.', and begins and ends with a letter or digit".to_owned())
    }
}

/// `90`, `90s`, `2m`, `1m30s`, `1h`: whole seconds, at least one.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 30s, 2m or 1m30s");
    if let Ok(seconds) = text.parse::<u32>() {
        return at_least_a_second(u64::from(seconds));
    }
    let mut total = 0_u64;
    let mut digits = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return Err(wrong()),
        };
        let count: u32 = digits.parse().map_err(|_| wrong())?;
        digits.clear();
        total += u64::from(count) * unit;
    }
    if digits.is_empty() && !text.is_empty() {
        at_least_a_second(total)
    } else {
        Err(wrong())
    }
}

fn at_least_a_second(seconds: u64) -> Result<Duration, String> {
    // The deadline is a 32-bit number of seconds on the wire.
    match i32::try_from(seconds) {
        Ok(1..) => Ok(Duration::from_secs(seconds)),
        _ => Err("a time is at least 1s and at most 2147483647s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_that_does_something_shows_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            if command.has_subcommands() {
                for sub in command.get_subcommands() {
                    check(sub, &path);
                }
                return;
            }
            let help = command.get_after_help().map(ToString::to_string);
            assert!(help.is_some_and(|h| h.contains("Example")), "{path}");
        }
        let command = Cli::command();
        for sub in command.get_subcommands() {
            check(sub, "belay");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [
            ("30", Some(30)),
            ("30s", Some(30)),
            ("2m", Some(120)),
            ("1m30s", Some(90)),
            ("1h", Some(3600)),
            ("0", None),
            ("0s", None),
            ("", None),
            ("s", None),
            ("1m30", None),
            ("-1s", None),
            ("1.5s", None),
            ("10d", None),
            ("99999999999s", None),
            ("4294967295h4294967295h", None),
        ] {
            let read = duration(text).ok().map(|d| d.as_secs());
            assert_eq!(read, seconds, "{text:?}");
        }
    }

    #[test]
    fn node_names_are_object_names() {
        for good in ["n1", "node-1.example.com", "0"] {
            assert!(node_name(good).is_ok(), "{good}");
        }
        for bad in ["", "N1", "-n", "n-", "a..b", "a_b", ".", "n/1"] {
            assert!(node_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_address_of_a_server_is_a_url_without_a_path() {
        for good in [
            "https://a",
            "https://a:7443",
            "https://[::1]:1/",
            "https://10.0.0.1",
        ] {
            assert!(server_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a",
            "a:7443",
            "http://a",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://a b",
        ] {
            assert!(server_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_wrong_gate_is_refused_with_its_name() {
        let parsed = Cli::try_parse_from(["belay", "up", "--feature-gates", "Nope=true"]);
        assert!(parsed.unwrap_err().to_string().contains("Nope"));
        let parsed =
            Cli::try_parse_from(["belay", "up", "--feature-gates", "ContainerNotifier=false"]);
        assert!(parsed.is_ok());
    }
}
