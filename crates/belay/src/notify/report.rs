//! The result as text, and the exit code it comes to. Pure.

use belay_api::notification::{
    ContainerNotificationStatus, ErrorType, PodNotification, PodNotificationError,
};
use belay_api::reasons;

use super::board::{Board, Entry, Standing};
use crate::exit::Exit;
use crate::table::{Table, printable};
use crate::timeline;

/// The table of results, one row per container, with the end of its output beneath.
pub(super) fn render(board: &Board) -> String {
    let mut table = Table::new([
        "POD",
        "CONTAINER",
        "RESULT",
        "EXIT/SIGNAL",
        "DURATION",
        "ERROR",
    ]);
    for entry in board.entries() {
        rows(&mut table, entry);
    }
    table.to_string()
}

fn rows(table: &mut Table, entry: &Entry) {
    let pod = entry.pod.as_str();
    let mut whole = |result: &str, error: String| {
        table.row([pod, "-", result, "-", "-", error.as_str()]);
    };
    let object = match &entry.standing {
        Standing::Refused(error) => return whole("refused", format!("{error:#}")),
        Standing::Gone(_) => return whole("deleted", "somebody deleted the notification".into()),
        Standing::There(object) => object,
    };
    let status = object.status.as_ref();
    let own_error = status.and_then(|status| status.error.as_ref());
    let containers = status.map(|s| s.containers.as_slice()).unwrap_or_default();
    if containers.is_empty() {
        return match (object.state().is_final(), own_error) {
            (_, Some(error)) => whole(result_of(error.type_), text_of(error)),
            (true, None) => whole("not declared", String::new()),
            (false, None) => whole("no result yet", String::new()),
        };
    }
    for container in containers {
        // The notification's own error is another container's where this one succeeded.
        let own_error = own_error.filter(|_| container.succeeded != Some(true));
        let error = container.error.as_ref().or(own_error);
        let output = container.output.as_deref().unwrap_or_default();
        table.row_with(
            [
                pod,
                &container.name,
                &result(container, own_error),
                &detail(container),
                &timeline::span(
                    container.start_time.as_ref(),
                    container.complete_time.as_ref(),
                ),
                &error.map(text_of).unwrap_or_default(),
            ],
            output.lines().map(str::to_owned),
        );
    }
}

/// What became of one container, with the number of attempts where there was more than one.
pub(crate) fn result(
    container: &ContainerNotificationStatus,
    of_all: Option<&PodNotificationError>,
) -> String {
    let word = match (container.succeeded, container.error.as_ref().or(of_all)) {
        (Some(true), _) => "succeeded",
        (_, Some(error)) => result_of(error.type_),
        (Some(false), None) => "failed",
        (None, None) => "no result yet",
    };
    match container.attempts {
        Some(attempts) if attempts > 1 => format!("{word} ({attempts} attempts)"),
        _ => word.to_owned(),
    }
}

fn result_of(error: ErrorType) -> &'static str {
    match error {
        ErrorType::HandlerTimeout => "timed out",
        ErrorType::Interrupted => "interrupted",
        ErrorType::Cancelled => "cancelled",
        ErrorType::Expired => "expired",
        ErrorType::PodNotFound
        | ErrorType::HandlerFailed
        | ErrorType::ContainerNotRunning
        | ErrorType::ContainerRestarted
        | ErrorType::PodTerminating
        | ErrorType::RuntimeError
        | ErrorType::Forbidden => "failed",
    }
}

/// Exit code or signal.
pub(crate) fn detail(container: &ContainerNotificationStatus) -> String {
    match (container.exit_code, container.signal.as_deref()) {
        (_, Some(signal)) => signal.to_owned(),
        (Some(code), None) => code.to_string(),
        (None, None) => "-".to_owned(),
    }
}

pub(super) fn text_of(error: &PodNotificationError) -> String {
    if error.message.is_empty() {
        error.type_.to_string()
    } else {
        format!("{}: {}", error.type_, error.message)
    }
}

/// Whether it ended well without having anything to do.
pub(super) fn found_nothing(object: &PodNotification) -> bool {
    let status = object.status.as_ref();
    object.state() == belay_api::notification::State::Succeeded
        && status.is_none_or(|status| status.containers.is_empty())
}

/// What is to be said of a signal that a process does not handle.
pub(super) fn unhandled_signal(object: &PodNotification) -> Option<&str> {
    let conditions = &object.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|condition| condition.type_ == reasons::SIGNAL_HANDLED && condition.status == "False")
        .map(|condition| condition.message.as_str())
}

/// Why it failed, on one line: its own reason, or the first of its containers'.
pub(crate) fn failure(object: &PodNotification) -> String {
    let status = object.status.as_ref();
    let of_containers = status
        .into_iter()
        .flat_map(|status| &status.containers)
        .find_map(|container| Some((container.name.as_str(), container.error.as_ref()?)));
    let text = match (
        status.and_then(|status| status.error.as_ref()),
        of_containers,
    ) {
        (Some(error), _) => text_of(error),
        (None, Some((container, error))) => format!("{container}: {}", text_of(error)),
        (None, None) => "failed".to_owned(),
    };
    printable(&text)
}

/// What a user should know beyond the table.
pub(super) fn notes(board: &Board) -> Vec<String> {
    let mut notes = Vec::new();
    for entry in board.entries() {
        let Some(object) = entry.object() else {
            continue;
        };
        if found_nothing(object) {
            notes.push(format!(
                "note: no container of pod {} declares the notifier {:?}; `belay describe pod/{}` shows what is declared",
                entry.pod, object.spec.notifier, entry.pod
            ));
        }
        if let Some(message) = unhandled_signal(object) {
            notes.push(format!("note: {}: {}", entry.pod, printable(message)));
        }
    }
    notes
}

/// The exit code: 1 if anything failed, 3 if nothing declares the notifier, else 0.
pub(super) fn exit(board: &Board) -> Exit {
    use belay_api::notification::State;
    let mut ran = false;
    for entry in board.entries() {
        match &entry.standing {
            Standing::There(object) if object.state() == State::Succeeded => {
                ran |= !found_nothing(object);
            }
            Standing::There(_) | Standing::Refused(_) | Standing::Gone(_) => return Exit::Failed,
        }
    }
    if ran { Exit::Done } else { Exit::Nothing }
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::object;
    use super::*;
    use serde_json::{Value, json};

    fn board(statuses: &[(&str, Value)]) -> Board {
        let mut board = Board::default();
        for (i, (pod, status)) in statuses.iter().enumerate() {
            board.created((*pod).to_owned(), object(&format!("pn{i}"), status));
        }
        board
    }

    fn succeeded() -> Value {
        json!({"state": "Succeeded", "containers": [{
            "name": "main", "succeeded": true, "exitCode": 0, "attempts": 1,
            "startTime": "2026-01-01T00:00:00Z", "completeTime": "2026-01-01T00:00:02Z",
            "output": "flushed 3 files\nok\n",
        }]})
    }

    fn failed(type_: &str, message: &str) -> Value {
        json!({"state": "Failed", "error": {
            "type": type_, "message": message, "timestamp": "2026-01-01T00:00:00Z",
        }})
    }

    #[test]
    fn the_table_shows_every_container_with_its_output_beneath() {
        let two = json!({"state": "Failed", "containers": [
            {"name": "main", "succeeded": true, "signal": "SIGHUP", "attempts": 1},
            {"name": "side", "succeeded": false, "exitCode": 3, "attempts": 2, "error": {
                "type": "HandlerFailed", "message": "exited with 3",
                "timestamp": "2026-01-01T00:00:00Z"}},
        ]});
        let text = render(&board(&[
            ("web", succeeded()),
            ("db", two),
            ("gone", failed("PodNotFound", "no such pod")),
            ("bare", json!({"state": "Succeeded"})),
        ]));
        assert_eq!(
            text,
            "\
POD   CONTAINER  RESULT               EXIT/SIGNAL  DURATION  ERROR
web   main       succeeded            0            2s
    flushed 3 files
    ok
db    main       succeeded            SIGHUP       -
db    side       failed (2 attempts)  3            -         HandlerFailed: exited with 3
gone  -          failed               -            -         PodNotFound: no such pod
bare  -          not declared         -            -
"
        );
    }

    #[test]
    fn an_interrupted_container_is_not_called_failed() {
        let mut status = failed("Interrupted", "it may have run");
        status["containers"] = json!([{"name": "main"}]);
        let text = render(&board(&[("web", status)]));
        assert!(text.contains("main       interrupted"), "{text}");
    }

    #[test]
    fn exit_codes_follow_the_worst_result() {
        let nothing = || ("a", json!({"state": "Succeeded"}));
        let good = || ("b", succeeded());
        let bad = || ("c", failed("PodNotFound", ""));
        assert_eq!(exit(&board(&[good()])), Exit::Done);
        assert_eq!(exit(&board(&[good(), nothing()])), Exit::Done);
        assert_eq!(exit(&board(&[nothing(), nothing()])), Exit::Nothing);
        assert_eq!(exit(&board(&[nothing(), bad()])), Exit::Failed);
        assert_eq!(exit(&board(&[good(), bad()])), Exit::Failed);
        assert_eq!(
            exit(&board(&[("d", json!({"state": "New"}))])),
            Exit::Failed
        );
        let mut refused = board(&[good()]);
        refused.refused("e".into(), anyhow::anyhow!("forbidden"));
        assert_eq!(exit(&refused), Exit::Failed);
    }

    #[test]
    fn a_signal_that_nobody_handles_is_noted() {
        let mut status = succeeded();
        status["conditions"] = json!([
            {"type": "SignalHandled", "status": "False", "reason": "DefaultAction",
             "message": "main has no handler for SIGHUP",
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]);
        assert_eq!(
            notes(&board(&[("web", status)])),
            ["note: web: main has no handler for SIGHUP"]
        );
    }

    #[test]
    fn a_notifier_that_nobody_declares_is_noted() {
        let told = notes(&board(&[("web", json!({"state": "Succeeded"}))]));
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("no container of pod web declares the notifier \"reload\""));
    }
}
