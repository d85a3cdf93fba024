//! The results of a hook as text, and the exit code they come to. Pure.

use std::collections::BTreeMap;

use belay_api::hook::{
    ContainerActionStatus, ContainerExecutionHookStatus, ExecutionHookStatus, Handler, HookError,
    HookErrorType, PodAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::tally::Tally;
use crate::exit::Exit;
use crate::follow::Followed as _;
use crate::table::{Table, printable};

/// What the podactions of a hook know of each container, by pod and container.
pub(crate) type Outputs<'a> = BTreeMap<(&'a str, &'a str), &'a ContainerActionStatus>;

pub(crate) fn outputs(actions: &[PodAction]) -> Outputs<'_> {
    let mut all = Outputs::new();
    for action in actions {
        let containers = action.status.iter().flat_map(|status| &status.containers);
        for container in containers {
            let key = (action.spec.pod_name.as_str(), container.name.as_str());
            all.insert(key, container);
        }
    }
    all
}

/// The table of results, and the counts.
pub(super) fn render(tally: &Tally, outputs: &Outputs<'_>) -> String {
    let table = results(&tally.status(), outputs);
    if table.is_empty() {
        return String::new();
    }
    format!("{table}\n{}\n", tally.summary())
}

/// One row per container, failures first, with the end of its output beneath.
pub(crate) fn results(status: &ExecutionHookStatus, outputs: &Outputs<'_>) -> Table {
    let mut table = Table::new(["POD", "CONTAINER", "RESULT", "EXIT/SIGNAL", "ERROR"]);
    let mut sorted: Vec<_> = status.hook_statuses.iter().collect();
    sorted.sort_by_key(|one| {
        let well = one.succeed == Some(true);
        (well, &one.pod_name, &one.container_name)
    });
    for one in sorted {
        let key = (one.pod_name.as_str(), one.container_name.as_str());
        let known = outputs.get(&key);
        let signal = known.and_then(|known| known.signal.clone());
        let code = one.exit_code.or(known.and_then(|known| known.exit_code));
        let output = known.and_then(|known| known.output.as_deref());
        table.row_with(
            [
                one.pod_name.clone(),
                or_dash(&one.container_name),
                result(one),
                signal
                    .or(code.map(|code| code.to_string()))
                    .unwrap_or_else(|| "-".to_owned()),
                error(one),
            ],
            output.unwrap_or_default().lines().map(str::to_owned),
        );
    }
    table
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

/// What became of one container, with the number of attempts where there was more than one.
fn result(one: &ContainerExecutionHookStatus) -> String {
    let type_ = one.error.as_ref().map(|error| error.error_type);
    let word = match (one.succeed, type_) {
        (Some(true), _) => "succeeded",
        (Some(false), Some(HookErrorType::ExecutionTimeout)) => "timed out",
        (Some(false), Some(HookErrorType::Interrupted)) => "interrupted",
        (Some(false), Some(HookErrorType::Cancelled)) => "cancelled",
        (Some(false), Some(HookErrorType::Expired)) => "expired",
        (Some(false), _) => "failed",
        (None, Some(_)) => "trying again",
        (None, None) if one.timestamp.is_some() => "running",
        (None, None) => "not started",
    };
    match one.attempts {
        Some(attempts) if attempts > 1 => format!("{word} ({attempts} attempts)"),
        _ => word.to_owned(),
    }
}

/// Pod and container.
pub(super) fn place(one: &ContainerExecutionHookStatus) -> String {
    if one.container_name.is_empty() {
        one.pod_name.clone()
    } else {
        format!("{}/{}", one.pod_name, one.container_name)
    }
}

/// Why a container failed, or has failed so far. What succeeded in the end is not asked why it did
/// not before.
pub(super) fn error(one: &ContainerExecutionHookStatus) -> String {
    match &one.error {
        Some(error) if one.succeed != Some(true) => failure(error),
        _ => String::new(),
    }
}

pub(crate) fn failure(error: &HookError) -> String {
    let mut text = error.error_type.to_string();
    for part in [&error.message, &error.reason].into_iter().flatten() {
        if !part.is_empty() {
            text.push_str(": ");
            text.push_str(part);
        }
    }
    printable(&text.replace(['\n', '\r'], " "))
}

/// What an action does, in a line.
pub(crate) fn handler(action: &Handler) -> String {
    let port = |port: &IntOrString| match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    let text = match (&action.exec, &action.http_get, &action.tcp_socket) {
        (Some(exec), ..) => {
            let words: Vec<&str> = exec.command.iter().flatten().map(String::as_str).collect();
            format!("exec {}", words.join(" "))
        }
        (None, Some(get), _) => format!(
            "httpGet {}://POD:{}{}",
            get.scheme.as_deref().unwrap_or("HTTP").to_lowercase(),
            port(&get.port),
            get.path.as_deref().unwrap_or("/")
        ),
        (None, None, Some(tcp)) => format!("tcpSocket POD:{}", port(&tcp.port)),
        (None, None, None) => String::new(),
    };
    printable(&text.replace(['\n', '\r'], " "))
}

/// What the table cannot say.
pub(super) fn notes(tally: &Tally) -> Vec<String> {
    let status = tally.status();
    let mut notes = Vec::new();
    if tally.was_deleted() {
        notes.push(format!("somebody deleted eh/{}", tally.name()));
    }
    if let Some(error) = &status.error {
        notes.push(failure(error));
    }
    let unsure = status.conditions.iter();
    notes.extend(
        unsure
            .filter(|condition| condition.status == "False")
            .map(|condition| format!("note: {}", printable(&condition.message))),
    );
    notes
}

pub(super) fn exit(tally: &Tally) -> Exit {
    let status = tally.status();
    let type_ = status.error.as_ref().map(|error| error.error_type);
    match (status.action_succeed, type_) {
        (Some(true), _) => Exit::Done,
        (_, Some(HookErrorType::NothingSelected)) => Exit::Nothing,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::tests::hook;
    use super::*;
    use serde_json::{Value, json};

    fn of(status: &Value) -> Tally {
        Tally::new(hook(status))
    }

    #[test]
    fn results_are_told_per_container_with_output_and_failures_first() {
        let tally = of(&json!({"actionSucceed": false, "hookStatuses": [
            {"podName": "a", "containerName": "c", "timestamp": 1, "succeed": true, "attempts": 3,
             "exitCode": 0, "error": {"errorType": "ExecutionFailwithError", "message": "before"}},
            {"podName": "b", "containerName": "c", "timestamp": 1, "succeed": false, "attempts": 2,
             "error": {"errorType": "ExecutionTimeout", "message": "killed", "reason": "30 s\nover"}},
            {"podName": "gone", "containerName": "", "succeed": false,
             "error": {"errorType": "PodNotFound"}},
        ]}));
        let action: PodAction = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodAction", "metadata": {},
            "spec": {"hook": {"name": "h", "uid": "u"}, "podName": "b", "podUID": "p",
                "nodeName": "n", "containers": ["c"], "action": {}, "actionTimeoutSeconds": 1,
                "deadlineSeconds": 1},
            "status": {"containers": [{"name": "c", "signal": "SIGKILL", "output": "still\nhere"}]},
        }))
        .unwrap();
        assert_eq!(
            render(&tally, &outputs(&[action])),
            "\
POD   CONTAINER  RESULT                  EXIT/SIGNAL  ERROR
b     c          timed out (2 attempts)  SIGKILL      ExecutionTimeout: killed: 30 s over
    still
    here
gone  -          failed                  -            PodNotFound
a     c          succeeded (3 attempts)  0

1 succeeded, 2 failed of 3 containers
"
        );
    }

    #[test]
    fn exit_codes_follow_what_became_of_the_hook() {
        let error = |type_: &str| json!({"actionSucceed": false, "error": {"errorType": type_}});
        assert_eq!(exit(&of(&json!({"actionSucceed": true}))), Exit::Done);
        assert_eq!(exit(&of(&json!({"actionSucceed": false}))), Exit::Failed);
        assert_eq!(exit(&of(&json!({}))), Exit::Failed);
        assert_eq!(exit(&of(&error("NothingSelected"))), Exit::Nothing);
        assert_eq!(exit(&of(&error("ActionNotFound"))), Exit::Failed);
        let told = notes(&of(&error("ActionNotFound")));
        assert_eq!(told, ["ActionNotFound"]);
    }

    #[test]
    fn an_action_is_told_in_a_line() {
        for (action, text) in [
            (
                json!({"exec": {"command": ["sh", "-c", "a\nb"]}}),
                "exec sh -c a b",
            ),
            (json!({"httpGet": {"port": 80}}), "httpGet http://POD:80/"),
            (json!({"tcpSocket": {"port": "db"}}), "tcpSocket POD:db"),
        ] {
            let action: Handler = serde_json::from_value(action).unwrap();
            assert_eq!(handler(&action), text);
        }
    }
}
