//! `belay hook`: runs an action by an ExecutionHook, waits for it, says what came of it, cleans up.
//!
//! ```text
//!  targets --> create one hook --> watch it --> ended --> its podactions, once, for output --> table
//!                                     |                                                          |
//!                  Ctrl-C, --timeout -'-- delete: cancels what runs                delete, unless kept
//! ```
//!
//! **Invariant:** what this command created is deleted when it ends, however it ends short of being
//! killed, unless it was told to keep it.

mod report;
mod tally;

use std::time::{Duration, Instant};

use belay_api::hook::{
    ExecutionHook, ExecutionHookSpec, HOOK_LABEL, PodAction, PodContainerNames,
    PodContainerSelector, PodSelection,
};
use belay_api::selector::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};

use crate::cli::{DescribeArgs, GetArgs, Global, HookCommand, HookRunArgs};
use crate::connect::{Connection, connect};
use crate::exit::{Exit, usage};
use crate::follow::{self, CANCELLING, Ending, Follow, Followed as _};
use crate::format::{self, Format};
use crate::kind::{Kind, reference};
use crate::notify::name_prefix;
use crate::signals::Interrupts;
use tally::Tally;

pub(crate) use report::{failure, handler, outputs, results};

/// Runs the command.
pub(crate) async fn run(global: &Global, command: &HookCommand) -> anyhow::Result<Exit> {
    let kind = "executionhooks".to_owned();
    match command {
        HookCommand::Run(args) => start(global, args).await,
        HookCommand::List(args) => {
            let all = GetArgs {
                kind,
                names: Vec::new(),
                selector: args.selector.clone(),
                all_namespaces: args.all_namespaces,
            };
            crate::get::run(global, &all).await
        }
        HookCommand::Describe { name } => {
            let one = DescribeArgs {
                object: kind,
                name: Some(name.clone()),
            };
            crate::describe::run(global, &one).await
        }
    }
}

async fn start(global: &Global, args: &HookRunArgs) -> anyhow::Result<Exit> {
    let draft = draft(args)?;
    let connection = connect(global).await?;
    let interrupts = Interrupts::listen()?;
    let api: Api<ExecutionHook> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let params = PostParams::default();
    let created = tokio::select! {
        created = api.create(&params, &draft) => created,
        () = interrupts.received() => return Err(anyhow::anyhow!(
            "interrupted before {} answered; if it took the request all the same, `belay hook list` shows it and `kubectl delete eh NAME` cancels it",
            connection.server
        )),
    };
    let created = created.map_err(|error| connection.explain(error))?;
    let mut request = Request {
        connection: &connection,
        args,
        tally: Tally::new(created),
        interrupts,
        api,
    };
    let ending = request.wait().await;
    let actions = request.actions().await;
    let cleaned = request.finish(ending).await;
    let tally = &request.tally;
    match global.output {
        Some(format @ (Format::Json | Format::Yaml)) => format::print(tally.hook(), format)?,
        Some(Format::Wide) | None => format::out(&report::render(tally, &outputs(&actions)))?,
    }
    for note in report::notes(tally) {
        format::note(&note);
    }
    if let Err(error) = cleaned {
        format::note(&format!("eh/{} is left behind: {error:#}", tally.name()));
    }
    Ok(match ending {
        Ending::AllFinal => report::exit(tally),
        Ending::TimedOut | Ending::Interrupted => Exit::Failed,
    })
}

/// The object that asks for what the command line says.
fn draft(args: &HookRunArgs) -> anyhow::Result<ExecutionHook> {
    let selection = match &args.selector {
        Some(text) => PodSelection {
            pod_container_names_list: Vec::new(),
            pod_container_selector: Some(PodContainerSelector {
                pod_selector: selector(text)?,
                container_list: args.containers.clone(),
            }),
        },
        None if !args.containers.is_empty() => {
            return Err(usage(
                "--container goes with --selector; a container of a pod that is named is pod/NAME/CONTAINER",
            ));
        }
        None => PodSelection {
            pod_container_names_list: targets(&args.pods)?,
            pod_container_selector: None,
        },
    };
    let mut spec = ExecutionHookSpec::new(selection, &args.action);
    if let Some(timeout) = args.timeout {
        spec.deadline_seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
    }
    let mut hook = ExecutionHook::new("", spec);
    hook.metadata = ObjectMeta {
        generate_name: Some(name_prefix("run", &args.action)),
        ..ObjectMeta::default()
    };
    Ok(hook)
}

fn selector(text: &str) -> anyhow::Result<meta::LabelSelector> {
    let wrong = |error: &dyn std::fmt::Display| usage(format!("-l {text:?}: {error}"));
    let selector: LabelSelector = text.parse().map_err(|error| wrong(&error))?;
    meta::LabelSelector::try_from(&selector).map_err(|error| wrong(&error))
}

/// The pods named on the command line, each once, in order, with those of their containers that were
/// named. A pod that is also named alone is meant with all of them.
fn targets(given: &[String]) -> anyhow::Result<Vec<PodContainerNames>> {
    let mut pods: Vec<PodContainerNames> = Vec::new();
    for text in given {
        let mut parts = text.splitn(3, '/');
        let (first, second, container) = (parts.next(), parts.next(), parts.next());
        let pod = match (first, second) {
            (Some(kind), Some(name)) => format!("{kind}/{name}"),
            _ => text.clone(),
        };
        let (kind, pod_name) = reference(&pod, Some(Kind::Pod))?;
        if kind != Kind::Pod {
            return Err(usage(format!("{text:?} is no pod; an action runs in pods")));
        }
        if let Some(name) = container {
            let problems = belay_api::metadata::names::dns_label(name);
            if !problems.is_empty() {
                let problems = problems.join("; ");
                return Err(usage(format!("{name:?} is no container: {problems}")));
            }
        }
        let container = container.map(str::to_owned);
        match pods.iter_mut().find(|known| known.pod_name == pod_name) {
            None => pods.push(PodContainerNames {
                pod_name,
                container_names: container.into_iter().collect(),
            }),
            // None named means all of them.
            Some(known) if container.is_none() => known.container_names.clear(),
            Some(known) if known.container_names.is_empty() => {}
            Some(known) => {
                let new = container.filter(|name| !known.container_names.contains(name));
                known.container_names.extend(new);
            }
        }
    }
    if pods.is_empty() {
        return Err(usage(
            "no pod named: belay hook run ACTION pod/NAME[/CONTAINER] ..., or -l SELECTOR (`belay get pods` lists them)",
        ));
    }
    Ok(pods)
}

/// One hook that is waited for.
struct Request<'a> {
    connection: &'a Connection,
    args: &'a HookRunArgs,
    api: Api<ExecutionHook>,
    tally: Tally,
    interrupts: Interrupts,
}

impl Request<'_> {
    async fn wait(&mut self) -> Ending {
        let own = format!("metadata.name={}", self.tally.name());
        let events =
            watcher(self.api.clone(), watcher::Config::default().fields(&own)).default_backoff();
        let follow = Follow {
            connection: self.connection,
            interrupts: &self.interrupts,
            timeout: self.args.timeout,
        };
        follow.until_over(&mut self.tally, events).await
    }

    /// What the hook asked for in each pod. They know more than the hook tells, and not everybody
    /// may see them.
    async fn actions(&self) -> Vec<PodAction> {
        let (client, namespace) = (self.connection.client.clone(), &self.connection.namespace);
        let api: Api<PodAction> = Api::namespaced(client, namespace);
        let label = format!("{HOOK_LABEL}={}", self.tally.uid());
        let listed = api.list(&ListParams::default().labels(&label)).await;
        listed.map(|list| list.items).unwrap_or_default()
    }

    /// Deletes what was created unless it is to be kept.
    async fn finish(&mut self, ending: Ending) -> anyhow::Result<()> {
        let (why, name) = (ending.why(), self.tally.name());
        let cut_short = ending != Ending::AllFinal;
        if self.args.keep {
            if cut_short {
                format::note(&format!(
                    "{why}: eh/{name} is kept and goes on; {}. `kubectl delete eh {name}` cancels it",
                    self.tally.summary()
                ));
            }
            return Ok(());
        }
        if cut_short {
            format::note(&format!("{why}: {}; cancelling", self.tally.summary()));
        }
        let uid = self.tally.uid().to_owned();
        // A second Ctrl-C ends the cleaning up too.
        let deleted = tokio::select! {
            deleted = follow::delete(self.connection, &self.api, &name, &uid) => deleted,
            () = self.interrupts.received() => Err(anyhow::anyhow!(
                "not cleaned up; `kubectl delete eh {name}` cancels it"
            )),
        };
        if cut_short && deleted.is_ok() {
            self.cancelled().await;
        }
        deleted
    }

    /// Waits until what ran is dead, which is when its podaction has ended or is gone, and says so.
    /// None can come later: the hook is gone, and without it none is made.
    async fn cancelled(&self) {
        let name = self.tally.name();
        let until = Instant::now() + CANCELLING;
        let mut look = tokio::time::interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = self.interrupts.received() => return,
            }
            let running = |action: &PodAction| !action.state().is_final();
            if !self.actions().await.iter().any(running) {
                return format::note(&format!("cancelled: eh/{name} is deleted"));
            }
            if Instant::now() >= until {
                return format::note(&format!(
                    "eh/{name} is deleted, but not every action is known to be dead yet; `belay get podactions` shows what is left"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(pods: &[&str]) -> HookRunArgs {
        HookRunArgs {
            action: "flush".into(),
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
            selector: None,
            containers: Vec::new(),
            timeout: None,
            keep: false,
        }
    }

    fn named(pods: &[&str]) -> Vec<(String, Vec<String>)> {
        let selection = draft(&args(pods)).unwrap().spec.pod_selection;
        let list = selection.pod_container_names_list.into_iter();
        list.map(|one| (one.pod_name, one.container_names))
            .collect()
    }

    #[test]
    fn pods_are_named_with_or_without_containers_and_count_once() {
        let expected = [("a", &["c", "d"][..]), ("b", &[]), ("e", &[])];
        let found = named(&[
            "pod/a/c", "b", "pod/a/d", "po/a/c", "pod/e/x", "e", "pod/e/y",
        ]);
        let expected = expected.map(|(pod, containers)| {
            let containers = containers.iter().map(|name| (*name).to_owned()).collect();
            (pod.to_owned(), containers)
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_no_pod_or_no_container_is_wrong_usage() {
        for pods in [
            &["node/a"][..],
            &["A"],
            &["pod/a/B"],
            &["pod/a/"],
            &["pod/a/b/c"],
            &["a/b"],
            &[],
        ] {
            let error = draft(&args(pods)).unwrap_err();
            assert_eq!(crate::exit::of_error(&error), Exit::Usage, "{pods:?}");
        }
    }

    #[test]
    fn a_selector_is_sent_as_an_object_with_the_containers_that_were_named() {
        let mut selecting = args(&[]);
        selecting.selector = Some("app=db,tier in (a,b)".into());
        selecting.containers = vec!["mysql".into()];
        selecting.timeout = Some(Duration::from_secs(5));
        let hook = draft(&selecting).unwrap();
        assert_eq!(
            serde_json::to_value(&hook.spec).unwrap(),
            serde_json::json!({
                "podSelection": {"podContainerSelector": {
                    "podSelector": {
                        "matchLabels": {"app": "db"},
                        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
                    },
                    "containerList": ["mysql"],
                }},
                "actionName": "flush",
                "deadlineSeconds": 5,
            })
        );
        assert_eq!(hook.metadata.generate_name.as_deref(), Some("run-flush-"));
        selecting.selector = Some("app=".into());
        assert!(draft(&selecting).is_ok());
        selecting.selector = Some("!".into());
        let error = draft(&selecting).unwrap_err();
        assert_eq!(crate::exit::of_error(&error), Exit::Usage);
    }
}
