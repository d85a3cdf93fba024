//! `belay hook`: runs an action by an ExecutionHook, waits for it, says what came of it, cleans up.
//!
//! ```text
//!  targets --> create one hook --> watch it --> ended --> its podactions, once, for output --> table
//!                                     |                                                          |
//!                  Ctrl-C, --timeout -'-- delete: cancels what runs                delete, unless kept
//! ```
//!
//! **Invariant:** what this command created is deleted when it ends, however it ends short of being
//! killed, unless it was told to keep it or may not watch it. What it could not delete it names.
//!
//! **Invariant:** no request is waited for without an end: by `--timeout`, by a bound where it tidies
//! up, and by Ctrl-C always.

mod report;
mod tally;

use std::time::{Duration, Instant};

use belay_api::hook::{
    ExecutionHook, ExecutionHookSpec, HOOK_LABEL, PodAction, PodContainerNames,
    PodContainerSelector, PodSelection,
};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};

use crate::cli::{DescribeArgs, GetArgs, Global, HookCommand, HookRunArgs};
use crate::connect::{Connection, connect};
use crate::exit::{Exit, usage};
use crate::follow::{self, CANCELLING, CLEANING, Ending, Follow, Followed as _};
use crate::format::{self, Format};
use crate::kind::{Kind, reference};
use crate::notify::name_prefix;
use crate::selector;
use crate::signals::{Cut, Interrupts};
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
    let started = Instant::now();
    let create = api.create(&params, &draft);
    let created = interrupts.unless(follow::limit(args.timeout), create).await;
    let created = created.map_err(|cut| {
        let namespace = &connection.namespace;
        anyhow::anyhow!(
            "{}; if it took the request all the same, `belay hook list -n {namespace}` shows it and `kubectl delete eh NAME -n {namespace}` cancels it",
            cut.told(&connection.server)
        )
    })?;
    let created = created.map_err(|error| connection.explain(error))?;
    let mut request = Request {
        connection: &connection,
        args,
        tally: Tally::new(created),
        actions: Vec::new(),
        at_rest: false,
        interrupts,
        api,
        started,
    };
    let ending = request.wait().await;
    let cleaned = request.finish(ending).await;
    let (actions, at_rest) = (std::mem::take(&mut request.actions), request.at_rest);
    let outputs = outputs(&actions);
    if ending != Ending::AllFinal {
        request.tally.settle(&outputs, at_rest);
    }
    let tally = &request.tally;
    match global.output {
        Some(format @ (Format::Json | Format::Yaml)) => format::print(tally.hook(), format)?,
        Some(Format::Wide) | None => format::out(&report::render(tally, &outputs))?,
    }
    for note in report::notes(tally) {
        format::note(&note);
    }
    if let Err(error) = cleaned {
        format::note(&format!("eh/{} is left behind: {error:#}", tally.name()));
    }
    Ok(match ending {
        Ending::AllFinal => report::exit(tally),
        Ending::TimedOut | Ending::Interrupted | Ending::Unseen => Exit::Failed,
    })
}

/// The object that asks for what the command line says.
fn draft(args: &HookRunArgs) -> anyhow::Result<ExecutionHook> {
    let selection = match &args.selector {
        Some(text) => PodSelection {
            pod_container_names_list: Vec::new(),
            pod_container_selector: Some(PodContainerSelector {
                pod_selector: selector::object(text)?,
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
    /// What the hook asked for in each pod, as it was last seen. They know more than the hook tells.
    actions: Vec<PodAction>,
    /// Whether nothing of a deleted hook is known to run any more.
    at_rest: bool,
    interrupts: Interrupts,
    started: Instant,
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
            started: self.started,
        };
        let events = follow::contact(events);
        follow.until_over(&mut self.tally, events).await
    }

    /// Looks at the podactions once. Returns whether one may still run.
    async fn look(&mut self, within: Duration) -> Result<kube::Result<bool>, Cut> {
        let (client, namespace) = (self.connection.client.clone(), &self.connection.namespace);
        let api: Api<PodAction> = Api::namespaced(client, namespace);
        let params = ListParams::default().labels(&format!("{HOOK_LABEL}={}", self.tally.uid()));
        let listed = self.interrupts.unless(Some(within), api.list(&params));
        Ok(listed.await?.map(|list| {
            let running = list.items.iter().any(|action| !action.state().is_final());
            // One that is gone stays as it was.
            let listed = |known: &PodAction| {
                let mut names = list.items.iter().map(|action| &action.metadata.name);
                names.any(|name| *name == known.metadata.name)
            };
            self.actions.retain(|known| !listed(known));
            self.actions.extend(list.items);
            running
        }))
    }

    /// Brings what is known to its end, and deletes what was created unless it is to be kept.
    async fn finish(&mut self, ending: Ending) -> anyhow::Result<()> {
        let (why, name, namespace) = (ending.why(), self.tally.name(), &self.connection.namespace);
        let cancels = format!("`kubectl delete eh {name} -n {namespace}` cancels it");
        match ending {
            Ending::AllFinal => self.complete().await,
            Ending::Unseen => {
                format::note(&format!(
                    "eh/{name} was created and goes on; {cancels}. To wait for it takes the verbs list and watch on executionhooks.{} in namespace {namespace}",
                    belay_api::GROUP
                ));
                return Ok(());
            }
            Ending::TimedOut | Ending::Interrupted if self.args.keep => format::note(&format!(
                "{why}: eh/{name} is kept and goes on; {}. {cancels}",
                self.tally.summary()
            )),
            Ending::TimedOut | Ending::Interrupted => {
                format::note(&format!("{why}: {}; cancelling", self.tally.summary()));
            }
        }
        if self.args.keep {
            return Ok(());
        }
        let uid = self.tally.uid().to_owned();
        let delete = follow::delete(self.connection, &self.api, &name, &uid);
        // A second Ctrl-C ends the cleaning up too.
        let deleted = self.interrupts.unless(Some(CLEANING), delete).await;
        let deleted = deleted.unwrap_or_else(|cut| {
            Err(anyhow::anyhow!(
                "{}; {cancels}",
                cut.told(&self.connection.server)
            ))
        });
        if ending != Ending::AllFinal && deleted.is_ok() {
            self.cancelled().await;
        }
        deleted
    }

    /// Gets the outputs of what has ended.
    async fn complete(&mut self) {
        let why = match self.look(CLEANING).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => format!("{:#}", self.connection.explain(error)),
            Err(cut) => cut.told(&self.connection.server),
        };
        format::note(&format!("what the action printed cannot be shown: {why}"));
    }

    /// Waits until what ran is dead, which is when its podaction has ended or is gone, and says so.
    /// None can come later: the hook is gone, and without it none is made.
    async fn cancelled(&mut self) {
        let (name, namespace) = (self.tally.name(), &self.connection.namespace);
        let unknown = format!(
            "eh/{name} is deleted, but not every action is known to be dead yet; `belay get podactions -n {namespace}` shows what is left"
        );
        let until = Instant::now() + CANCELLING;
        let mut look = tokio::time::interval(Duration::from_millis(200));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = self.interrupts.received() => return format::note(&unknown),
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.look(left).await {
                Ok(Ok(false)) => {
                    self.at_rest = true;
                    return format::note(&format!("cancelled: eh/{name} is deleted"));
                }
                Ok(Err(kube::Error::Api(status))) if follow::is_refusal(&status) => {
                    let why = self.connection.explain(kube::Error::Api(status));
                    return format::note(&format!(
                        "eh/{name} is deleted, which kills what runs; whether all of it is dead cannot be seen: {why:#}"
                    ));
                }
                Ok(Ok(true) | Err(_)) => {}
                Err(_) => return format::note(&unknown),
            }
            if left.is_zero() {
                return format::note(&unknown);
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
