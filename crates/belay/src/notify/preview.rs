//! `--dry-run`: what would run where, who does not declare it, which rights are missing.

use std::future::Future;
use std::time::Duration;

use anyhow::anyhow;
use belay_api::pod::{ContainerNotifier, NotifierAction, Pod};
use kube::api::{Api, ListParams};
use serde::Serialize;
use serde_json::Value;

use super::rights::{self, Right};
use crate::cli::NotifyArgs;
use crate::connect::Connection;
use crate::exit::Exit;
use crate::follow;
use crate::format::{self, Format};
use crate::signals::Cut;
use crate::table::{Table, printable};

/// Ends a look at a server that hangs when the time is over, as it ends the command itself. A signal
/// ends it at once: nothing was created.
pub(super) async fn within(
    connection: &Connection,
    timeout: Option<Duration>,
    look: impl Future<Output = anyhow::Result<Exit>>,
) -> anyhow::Result<Exit> {
    let Some(limit) = follow::limit(timeout) else {
        return look.await;
    };
    tokio::time::timeout(limit, look)
        .await
        .unwrap_or_else(|_| Err(anyhow!(Cut::Late(limit).told(&connection.server))))
}

/// Looks at the pods that are named; creates nothing.
pub(super) async fn of_pods(
    connection: &Connection,
    args: &NotifyArgs,
    pods: &[String],
    output: Option<Format>,
) -> anyhow::Result<Exit> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let mut found = Vec::new();
    for name in pods {
        let pod = api
            .get_opt(name)
            .await
            .map_err(|error| connection.explain(error))?;
        found.push((name.clone(), pod));
    }
    let drafts: anyhow::Result<Vec<Value>> = pods
        .iter()
        .map(|pod| super::to_value(&super::draft(pod, args, None)))
        .collect();
    let preview = Preview::of(&args.notifier, &found);
    tell(connection, args, preview, drafts?, output).await
}

/// Looks at the pods that match a selector; creates nothing. `draft` is the Notification that would
/// be created.
pub(super) async fn of_selector(
    connection: &Connection,
    args: &NotifyArgs,
    selector: &str,
    draft: Value,
    output: Option<Format>,
) -> anyhow::Result<Exit> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let list = api
        .list(&ListParams::default().labels(selector))
        .await
        .map_err(|error| connection.explain(error))?;
    let (running, others): (Vec<Pod>, Vec<Pod>) = list
        .items
        .into_iter()
        .partition(|pod| pod.phase() == "Running" && !pod.is_terminating());
    let found: Vec<_> = running
        .into_iter()
        .map(|pod| (pod.name().to_owned(), Some(pod)))
        .collect();
    let mut preview = Preview::of(&args.notifier, &found);
    for pod in &others {
        let why = if pod.is_terminating() {
            "being deleted"
        } else {
            pod.phase()
        };
        let note = format!("pod {} is {why}; it would not be notified", pod.name());
        preview.notes.push(note);
    }
    if found.is_empty() {
        preview.notes.push(format!(
            "no running pod matches {selector:?} in namespace {}",
            connection.namespace
        ));
    }
    tell(connection, args, preview, vec![draft], output).await
}

/// Prints it, with the rights that are missing.
async fn tell(
    connection: &Connection,
    args: &NotifyArgs,
    mut preview: Preview,
    creates: Vec<Value>,
    output: Option<Format>,
) -> anyhow::Result<Exit> {
    let missing = match rights::missing(connection, rights::needed(args)).await {
        Ok(missing) => missing,
        Err(why) => {
            let note = format!("rights could not be checked: {why:#}");
            preview.notes.push(note);
            Vec::new()
        }
    };
    // Who may not trigger it fails, whatever would run.
    let exit = if missing.is_empty() {
        preview.exit
    } else {
        Exit::Failed
    };
    match output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            let report = Report {
                notifier: &args.notifier,
                namespace: &connection.namespace,
                containers: &preview.rows,
                notes: &preview.notes,
                missing_rights: &missing,
                creates: &creates,
            };
            format::print(&report, format)?;
        }
        Some(Format::Wide) | None => {
            format::out(&preview.table().to_string())?;
            for note in &preview.notes {
                // What a pod's author wrote is in some of them.
                format::note(&printable(note));
            }
            for right in &missing {
                format::note(&right.told(&connection.namespace));
            }
        }
    }
    Ok(exit)
}

/// What `-o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    notifier: &'a str,
    namespace: &'a str,
    containers: &'a [Row],
    notes: &'a [String],
    missing_rights: &'a [Right],
    /// The objects that the command would create.
    creates: &'a [Value],
}

/// What would happen in one container; nothing where it does not declare the notifier.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    pod: String,
    container: String,
    declares: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    notifier: Option<ContainerNotifier>,
}

struct Preview {
    rows: Vec<Row>,
    notes: Vec<String>,
    exit: Exit,
}

impl Preview {
    fn of(notifier: &str, pods: &[(String, Option<Pod>)]) -> Self {
        let (mut rows, mut notes) = (Vec::new(), Vec::new());
        let mut failing = false;
        for (name, pod) in pods {
            let Some(pod) = pod else {
                notes.push(format!(
                    "pod {name} does not exist; it would fail with PodNotFound"
                ));
                failing = true;
                continue;
            };
            if pod.is_terminating() {
                notes.push(format!(
                    "pod {name} is being deleted; it would fail with PodTerminating"
                ));
                failing = true;
            } else if pod.phase() != "Running" {
                notes.push(format!(
                    "pod {name} is {}; it would fail with ContainerNotRunning",
                    pod.phase()
                ));
                failing = true;
            }
            let declared = match pod.declarations(notifier) {
                Ok(declared) => declared,
                Err(error) => {
                    notes.push(format!("pod {name}: {error}; nothing would run in it"));
                    failing = true;
                    continue;
                }
            };
            for container in pod.spec.long_running() {
                let own = declared
                    .iter()
                    .find(|(declaring, _)| *declaring == container.name);
                rows.push(Row {
                    pod: name.clone(),
                    container: container.name.clone(),
                    declares: own.is_some(),
                    notifier: own.map(|(_, notifier)| notifier.clone()),
                });
            }
        }
        let exit = match (failing, rows.iter().any(|row| row.declares)) {
            (true, _) => Exit::Failed,
            (false, true) => Exit::Done,
            (false, false) => {
                // Where there is no pod that is said, and all there is to say.
                if !pods.is_empty() {
                    notes.push(format!("no container declares the notifier {notifier:?}"));
                }
                Exit::Nothing
            }
        };
        Preview { rows, notes, exit }
    }

    fn table(&self) -> Table {
        let mut table = Table::new(["POD", "CONTAINER", "DECLARES IT", "WOULD RUN", "TIMEOUT"]);
        for row in &self.rows {
            match &row.notifier {
                Some(notifier) => {
                    let timeout = format!("{}s", notifier.timeout().as_secs());
                    table.row([&row.pod, &row.container, "yes", &action(notifier), &timeout]);
                }
                None => table.row([row.pod.as_str(), &row.container, "no", "-", "-"]),
            }
        }
        table
    }
}

/// An action in a few words: a command as one would type it, or a signal.
pub(crate) fn action(notifier: &ContainerNotifier) -> String {
    match notifier.action() {
        Ok(NotifierAction::Exec(command)) => {
            let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
            format!("exec {}", words.join(" "))
        }
        Ok(NotifierAction::Signal(signal)) => format!("signal {signal}"),
        Err(error) => error.to_string(),
    }
}

/// A word as a shell would need it, so that one sees where it begins and ends.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn web() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"containers": [
                {"name": "nginx", "notifiers": [
                    {"name": "reload", "handler": {"signal": "SIGHUP"}},
                    {"name": "flush", "timeoutSeconds": 5,
                     "handler": {"exec": {"command": ["sh", "-c", "flush it's"]}}}]},
                {"name": "logs"},
            ]},
            "status": {"phase": "Running"},
        }))
        .unwrap()
    }

    fn preview(notifier: &str, pod: Option<Pod>) -> Preview {
        Preview::of(notifier, &[("web".to_owned(), pod)])
    }

    #[test]
    fn declaring_and_other_containers_are_shown() {
        let shown = preview("flush", Some(web()));
        assert_eq!(
            shown.table().to_string(),
            "\
POD  CONTAINER  DECLARES IT  WOULD RUN                   TIMEOUT
web  nginx      yes          exec sh -c 'flush it'\\''s'  5s
web  logs       no           -                           -
"
        );
        assert!(shown.notes.is_empty(), "{:?}", shown.notes);
        assert_eq!(shown.exit, Exit::Done);
        let rows = serde_json::to_value(&shown.rows).unwrap();
        assert_eq!(rows[0]["notifier"]["handler"]["exec"]["command"][0], "sh");
        assert_eq!(
            rows[1],
            json!({"pod": "web", "container": "logs", "declares": false})
        );
    }

    #[test]
    fn nothing_declared_and_a_missing_pod_have_their_exit_codes() {
        let undeclared = preview("x", Some(web()));
        assert_eq!(undeclared.exit, Exit::Nothing);
        assert_eq!(
            undeclared.notes,
            ["no container declares the notifier \"x\""]
        );
        let none = Preview::of("x", &[]);
        assert_eq!(none.exit, Exit::Nothing);
        assert!(none.notes.is_empty(), "{:?}", none.notes);
        let shown = preview("reload", None);
        assert_eq!(shown.exit, Exit::Failed);
        assert_eq!(
            shown.notes,
            ["pod web does not exist; it would fail with PodNotFound"]
        );
    }

    #[test]
    fn a_pod_that_does_not_run_is_noted() {
        let mut pod = web();
        pod.status = None;
        let shown = preview("reload", Some(pod));
        assert_eq!(
            shown.notes,
            ["pod web is Pending; it would fail with ContainerNotRunning"]
        );
        assert_eq!(shown.exit, Exit::Failed);
        let mut pod = web();
        pod.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let shown = preview("reload", Some(pod));
        assert!(
            shown.notes[0].contains("PodTerminating"),
            "{:?}",
            shown.notes
        );
        assert_eq!(shown.exit, Exit::Failed);
    }

    #[test]
    fn a_pod_whose_annotation_cannot_be_read_is_named() {
        let mut pod = web();
        let annotation = belay_api::pod::NOTIFIERS_ANNOTATION.to_owned();
        pod.metadata.annotations = Some([(annotation, "{\"nginx\": 1}".to_owned())].into());
        let shown = preview("reload", Some(pod));
        assert_eq!(shown.exit, Exit::Failed);
        assert!(
            shown.notes[0].starts_with("pod web: ")
                && shown.notes[0].contains("apps.k8s.io/notifiers"),
            "{:?}",
            shown.notes
        );
    }
}
