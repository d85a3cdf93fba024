//! `--dry-run`: which containers declare the notifier, and what would run in them.

use belay_api::notification::PodNotification;
use belay_api::pod::{ContainerNotifier, NotifierAction, Pod};
use kube::api::Api;

use crate::cli::NotifyArgs;
use crate::connect::Connection;
use crate::exit::Exit;
use crate::format::{self, Format};
use crate::table::Table;

/// Looks at every pod and says what would happen; creates nothing.
pub(super) async fn run(
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
        found.push((name.as_str(), pod));
    }
    let preview = preview(&args.notifier, &found);
    match output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            let drafts: anyhow::Result<Vec<_>> = pods
                .iter()
                .map(|pod| -> PodNotification { super::draft(pod, args, None) })
                .map(|object| super::to_value(&object))
                .collect();
            format::print_objects(drafts?, format)?;
        }
        Some(Format::Wide) | None => format::out(&preview.table.to_string())?,
    }
    for note in &preview.notes {
        format::note(note);
    }
    Ok(preview.exit)
}

pub(super) struct Preview {
    pub(super) table: Table,
    pub(super) notes: Vec<String>,
    pub(super) exit: Exit,
}

pub(super) fn preview(notifier: &str, pods: &[(&str, Option<Pod>)]) -> Preview {
    let mut table = Table::new(["POD", "CONTAINER", "DECLARES IT", "WOULD RUN", "TIMEOUT"]);
    let mut notes = Vec::new();
    let (mut declared, mut missing) = (false, false);
    for (name, pod) in pods {
        let Some(pod) = pod else {
            notes.push(format!(
                "pod {name} does not exist; it would fail with PodNotFound"
            ));
            missing = true;
            continue;
        };
        if pod.is_terminating() {
            notes.push(format!(
                "pod {name} is being deleted; it would fail with PodTerminating"
            ));
        } else if pod.phase() != "Running" {
            notes.push(format!(
                "pod {name} is {}; it would fail with ContainerNotRunning",
                pod.phase()
            ));
        }
        for container in pod.spec.long_running() {
            let own = match pod.notifiers(&container.name) {
                Ok(own) => own,
                Err(error) => {
                    notes.push(format!("pod {name}: {error}"));
                    missing = true;
                    break;
                }
            };
            match own.iter().find(|declared| declared.name == notifier) {
                Some(found) => {
                    declared = true;
                    let timeout = format!("{}s", found.timeout().as_secs());
                    table.row([*name, &container.name, "yes", &action(found), &timeout]);
                }
                None => table.row([*name, container.name.as_str(), "no", "-", "-"]),
            }
        }
    }
    let exit = match (missing, declared) {
        (true, _) => Exit::Failed,
        (false, true) => Exit::Done,
        (false, false) => {
            notes.push(format!("no container declares the notifier {notifier:?}"));
            Exit::Nothing
        }
    };
    Preview { table, notes, exit }
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

    #[test]
    fn declaring_and_other_containers_are_shown() {
        let shown = preview("flush", &[("web", Some(web()))]);
        assert_eq!(
            shown.table.to_string(),
            "\
POD  CONTAINER  DECLARES IT  WOULD RUN                   TIMEOUT
web  nginx      yes          exec sh -c 'flush it'\\''s'  5s
web  logs       no           -                           -
"
        );
        assert!(shown.notes.is_empty(), "{:?}", shown.notes);
        assert_eq!(shown.exit, Exit::Done);
    }

    #[test]
    fn nothing_declared_and_a_missing_pod_have_their_exit_codes() {
        assert_eq!(preview("x", &[("web", Some(web()))]).exit, Exit::Nothing);
        let shown = preview("reload", &[("web", Some(web())), ("gone", None)]);
        assert_eq!(shown.exit, Exit::Failed);
        assert_eq!(
            shown.notes,
            ["pod gone does not exist; it would fail with PodNotFound"]
        );
    }

    #[test]
    fn a_pod_that_does_not_run_is_noted() {
        let mut pod = web();
        pod.status = None;
        let shown = preview("reload", &[("web", Some(pod))]);
        assert_eq!(
            shown.notes,
            ["pod web is Pending; it would fail with ContainerNotRunning"]
        );
    }
}
