//! `belay describe`: one object, what it says, and what happened to it in order.

mod hook;
mod notification;

use belay_api::fanout::{Notification, OWNER_LABEL};
use belay_api::hook::{ExecutionHook, HOOK_LABEL, HookAction, PodAction};
use belay_api::notification::{Condition, PodNotification};
use belay_api::pod::{ContainerState, Pod};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::{DescribeArgs, Global};
use crate::connect::{Connection, connect};
use crate::exit::{Exit, usage};
use crate::format::{self, Format};
use crate::kind::{Kind, reference};
use crate::notify;
use crate::table::{Table, printable};
use crate::timeline::{Timeline, span};

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &DescribeArgs) -> anyhow::Result<Exit> {
    let (kind, name) = match &args.name {
        Some(name) => reference(name, Some(args.object.parse()?))?,
        None => reference(&args.object, None)?,
    };
    let connection = &connect(global).await?;
    let output = global.output;
    match kind {
        Kind::Notification => {
            show(connection, &name, output, async |object: Notification| {
                let uid = object.uid().unwrap_or_default();
                let events = events_of(connection, "Notification", &uid).await?;
                let children = belonging(connection, OWNER_LABEL, &uid).await?;
                Ok(notification::describe(&object, &children, &events))
            })
            .await
        }
        Kind::PodNotification => {
            show(
                connection,
                &name,
                output,
                async |object: PodNotification| {
                    let uid = object.uid().unwrap_or_default();
                    let events = events_of(connection, "PodNotification", &uid).await?;
                    Ok(describe_notification(&object, &events))
                },
            )
            .await
        }
        Kind::ExecutionHook => {
            show(connection, &name, output, async |object: ExecutionHook| {
                let uid = object.uid().unwrap_or_default();
                let events = events_of(connection, "ExecutionHook", &uid).await?;
                let actions = belonging(connection, HOOK_LABEL, &uid).await?;
                Ok(hook::describe(&object, &actions, &events))
            })
            .await
        }
        Kind::HookAction => {
            show(connection, &name, output, async |object: HookAction| {
                Ok(hook::describe_action(&object))
            })
            .await
        }
        Kind::PodAction => {
            show(connection, &name, output, async |object: PodAction| {
                Ok(hook::describe_pod_action(&object))
            })
            .await
        }
        Kind::Pod => {
            show(connection, &name, output, async |pod: Pod| {
                let events = events_of(connection, "Pod", pod.uid()).await?;
                let asked = asked_in(connection, &pod).await;
                Ok(describe_pod(&pod, &events, &asked))
            })
            .await
        }
        Kind::Node => Err(usage(
            "describe knows ntf/NAME, pn/NAME, eh/NAME, ha/NAME, podactions/NAME and pod/NAME; for nodes use `belay get nodes -o yaml` or kubectl",
        )),
    }
}

/// Prints an object as it is where that is asked for, else what `describe` has to say of it.
async fn show<K>(
    connection: &Connection,
    name: &str,
    output: Option<Format>,
    describe: impl AsyncFnOnce(K) -> anyhow::Result<String>,
) -> anyhow::Result<Exit>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let api: Api<K> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let object = api
        .get(name)
        .await
        .map_err(|error| connection.explain(error))?;
    match output {
        Some(format @ (Format::Json | Format::Yaml)) => format::print(&object, format)?,
        Some(Format::Wide) | None => format::out(&describe(object).await?)?,
    }
    Ok(Exit::Done)
}

/// What carries the UID of its owner under this label.
async fn belonging<K>(connection: &Connection, label: &str, uid: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let list = api
        .list(&ListParams::default().labels(&format!("{label}={uid}")))
        .await
        .map_err(|error| connection.explain(error))?;
    Ok(list.items)
}

async fn events_of(connection: &Connection, kind: &str, uid: &str) -> anyhow::Result<Vec<Event>> {
    let api: Api<Event> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let fields = format!("involvedObject.uid={uid},involvedObject.kind={kind}");
    let list = api
        .list(&ListParams::default().fields(&fields))
        .await
        .map_err(|error| connection.explain(error))?;
    Ok(list.items)
}

/// What was asked for in a pod.
#[derive(Debug, Default)]
struct Asked {
    notifications: Vec<PodNotification>,
    actions: Vec<PodAction>,
    /// What could not be listed, and why.
    unseen: Vec<(&'static str, String)>,
}

async fn asked_in(connection: &Connection, pod: &Pod) -> Asked {
    let mut asked = Asked::default();
    let of_this_pod = |object: &PodNotification| {
        let uid = object.status.as_ref().and_then(|s| s.pod_uid.as_deref());
        let uid = uid.or(object.spec.pod_uid.as_deref());
        // What was refused at once may be from before this pod was there.
        let later = object.creation_timestamp() >= pod.creation_timestamp();
        object.spec.pod_name == pod.name() && uid.map_or(later, |uid| uid == pod.uid())
    };
    match all(connection).await {
        Ok(all) => asked.notifications = all.into_iter().filter(of_this_pod).collect(),
        Err(why) => asked.unseen.push(("podnotifications", why)),
    }
    match all::<PodAction>(connection).await {
        Ok(all) => {
            let of_this_pod = |action: &PodAction| action.spec.pod_uid == pod.uid();
            asked.actions = all.into_iter().filter(of_this_pod).collect();
        }
        Err(why) => asked.unseen.push(("podactions", why)),
    }
    asked
}

/// All of a kind in the namespace, or why they cannot be listed. A server that does not serve the
/// kind has none.
async fn all<K>(connection: &Connection) -> Result<Vec<K>, String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(connection.client.clone(), &connection.namespace);
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(format!("{:#}", connection.explain(error))),
    }
}

/// Pairs of a heading and a text.
fn facts<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut table = Table::new(["", ""]);
    for (heading, text) in pairs {
        if !text.is_empty() {
            table.row([format!("{heading}:"), text]);
        }
    }
    table.to_string()
}

fn section(heading: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    let mut text = format!("{heading}:\n");
    for line in body.lines() {
        text.push_str(format!("  {line}").trim_end());
        text.push('\n');
    }
    text
}

fn conditions(conditions: &[Condition]) -> String {
    let mut table = Table::new(["TYPE", "STATUS", "REASON", "MESSAGE"]);
    for condition in conditions {
        table.row([
            &condition.type_,
            &condition.status,
            &condition.reason,
            &condition.message,
        ]);
    }
    if table.is_empty() {
        return String::new();
    }
    section("Conditions", &table.to_string())
}

fn describe_notification(object: &PodNotification, events: &[Event]) -> String {
    let none = Default::default();
    let status = object.status.as_ref().unwrap_or(&none);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let error = status.error.as_ref().map(|error| {
        format!("{}: {}", error.type_, error.message)
            .trim_end_matches(": ")
            .to_owned()
    });
    let mut out = facts([
        ("Name", object.name_any()),
        ("Namespace", object.namespace().unwrap_or_default()),
        ("Pod", object.spec.pod_name.clone()),
        ("Pod UID", text(&status.pod_uid)),
        ("Notifier", object.spec.notifier.clone()),
        (
            "Deadline",
            format!("{} s after creation", object.spec.deadline_seconds),
        ),
        ("State", object.state().to_string()),
        ("Error", error.unwrap_or_default()),
        ("Node", text(&status.node_name)),
        ("Executor", text(&status.executor)),
    ]);
    let mut containers = Table::new(["NAME", "RESULT", "EXIT/SIGNAL", "DURATION", "ERROR"]);
    for container in &status.containers {
        let error = container.error.as_ref();
        containers.row_with(
            [
                container.name.clone(),
                notify::result(container, status.error.as_ref()),
                notify::detail(container),
                span(
                    container.start_time.as_ref(),
                    container.complete_time.as_ref(),
                ),
                error.map_or_else(String::new, |e| format!("{}: {}", e.type_, e.message)),
            ],
            container
                .output
                .iter()
                .flat_map(|output| output.lines().map(str::to_owned)),
        );
    }
    if !containers.is_empty() {
        out.push_str(&section("Containers", &containers.to_string()));
    }
    out.push_str(&conditions(&status.conditions));
    let timeline = Timeline::of_notification(object, events);
    out.push_str(&section("Timeline", &timeline.render().to_string()));
    out
}

fn describe_pod(pod: &Pod, events: &[Event], asked: &Asked) -> String {
    let status = pod.status.as_ref();
    let mut out = facts([
        ("Name", pod.name().to_owned()),
        ("Namespace", pod.namespace().to_owned()),
        ("UID", pod.uid().to_owned()),
        ("Node", pod.spec.node_name.clone().unwrap_or_default()),
        (
            "Phase",
            if pod.is_terminating() {
                format!("{} (being deleted)", pod.phase())
            } else {
                pod.phase().to_owned()
            },
        ),
        (
            "Message",
            status
                .and_then(|status| status.message.clone())
                .unwrap_or_default(),
        ),
    ]);
    let mut containers = Table::new(["NAME", "STATE", "RESTARTS", "ID"]);
    let statuses = status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    });
    for container in statuses {
        containers.row([
            container.name.clone(),
            container.state.as_ref().map_or_else(String::new, state),
            container.restart_count.to_string(),
            container.container_id.clone().unwrap_or_default(),
        ]);
    }
    if !containers.is_empty() {
        out.push_str(&section("Containers", &containers.to_string()));
    }
    out.push_str(&section("Notifiers", &notifiers(pod)));
    let mut conditions = Table::new(["TYPE", "STATUS", "REASON", "MESSAGE"]);
    for condition in status.iter().flat_map(|s| s.conditions.iter().flatten()) {
        conditions.row([
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone().unwrap_or_default(),
            condition.message.clone().unwrap_or_default(),
        ]);
    }
    if !conditions.is_empty() {
        out.push_str(&section("Conditions", &conditions.to_string()));
    }
    let mut timeline = Timeline::of_pod(pod, events);
    timeline.add_notifications(&asked.notifications);
    timeline.add_actions(&asked.actions);
    out.push_str(&section("Timeline", &timeline.render().to_string()));
    let mut unseen = String::new();
    for (kind, why) in &asked.unseen {
        unseen.push_str(&format!("{kind}: {}\n", printable(why)));
    }
    out.push_str(&section(
        "Not shown, because it could not be listed",
        &unseen,
    ));
    out
}

fn notifiers(pod: &Pod) -> String {
    let mut table = Table::new(["CONTAINER", "NOTIFIER", "ACTION", "TIMEOUT"]);
    for container in pod.spec.long_running() {
        match pod.notifiers(&container.name) {
            Ok(declared) => {
                for notifier in declared {
                    table.row([
                        container.name.clone(),
                        notifier.name.clone(),
                        notify::action(&notifier),
                        format!("{}s", notifier.timeout().as_secs()),
                    ]);
                }
            }
            Err(error) => return format!("{}\n", printable(&error.to_string())),
        }
    }
    if table.is_empty() {
        String::new()
    } else {
        table.to_string()
    }
}

fn state(state: &ContainerState) -> String {
    let with = |word: &str, reason: Option<&String>, message: Option<&String>| {
        let mut text = word.to_owned();
        if let Some(reason) = reason {
            text.push_str(&format!(": {reason}"));
        }
        if let Some(message) = message {
            text.push_str(&format!(" ({message})"));
        }
        text
    };
    if state.running.is_some() {
        "Running".to_owned()
    } else if let Some(ended) = &state.terminated {
        let word = format!("Ended with {}", ended.exit_code);
        with(&word, ended.reason.as_ref(), ended.message.as_ref())
    } else if let Some(waiting) = &state.waiting {
        with("Waiting", waiting.reason.as_ref(), waiting.message.as_ref())
    } else {
        "Waiting".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_notification_is_described_with_results_and_timeline() {
        let object: PodNotification = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "PodNotification",
            "metadata": {"name": "db-lock-x", "namespace": "default",
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"podName": "db", "notifier": "lock"},
            "status": {
                "state": "Succeeded", "executor": "n1", "nodeName": "n1", "podUID": "u1",
                "startTime": "2026-01-01T00:00:00Z", "completeTime": "2026-01-01T00:00:01Z",
                "containers": [{
                    "name": "main", "succeeded": true, "exitCode": 0, "output": "locked\n",
                    "startTime": "2026-01-01T00:00:00Z", "completeTime": "2026-01-01T00:00:01Z",
                }],
            },
        }))
        .unwrap();
        assert_eq!(
            describe_notification(&object, &[]),
            "\
Name:       db-lock-x
Namespace:  default
Pod:        db
Pod UID:    u1
Notifier:   lock
Deadline:   60 s after creation
State:      Succeeded
Node:       n1
Executor:   n1
Containers:
  NAME  RESULT     EXIT/SIGNAL  DURATION  ERROR
  main  succeeded  0            1s
      locked
Timeline:
  00:00:00Z  +0s  created: \"lock\" in pod db
  00:00:00Z  +0s  claimed by n1
  00:00:00Z  +0s  main: started
  00:00:01Z  +1s  main: succeeded, 0
  00:00:01Z  +1s  Succeeded
"
        );
    }

    #[test]
    fn a_pod_is_described_with_its_notifiers() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u1",
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "notifiers": [
                {"name": "reload", "handler": {"signal": "SIGHUP"}}]}]},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
            }]},
        }))
        .unwrap();
        let unseen = Asked {
            unseen: vec![("podactions", "ann cannot list them".to_owned())],
            ..Asked::default()
        };
        assert!(describe_pod(&pod, &[], &unseen).ends_with(
            "Not shown, because it could not be listed:\n  podactions: ann cannot list them\n"
        ));
        assert_eq!(
            describe_pod(&pod, &[], &Asked::default()),
            "\
Name:       web
Namespace:  default
UID:        u1
Node:       n1
Phase:      Running
Containers:
  NAME  STATE                                     RESTARTS  ID
  main  Waiting: CrashLoopBackOff (back-off 20s)  2
Notifiers:
  CONTAINER  NOTIFIER  ACTION         TIMEOUT
  main       reload    signal SIGHUP  1s
Timeline:
  00:00:00Z  +0s  created
"
        );
    }
}
