//! The result of many pods as text: what is alike is said once, with the pods it holds for. Pure.

use std::collections::BTreeMap;

use belay_api::notification::{ErrorType, PodNotification, State};

use super::tally::Tally;
use crate::exit::Exit;
use crate::follow::Followed as _;
use crate::notify::report;
use crate::table::{Table, printable};

/// How many pods of a group are named where not all are asked for.
const NAMED: usize = 8;

/// What one container of one pod came to. Those that are alike are one group.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Outcome {
    /// Failures first: they are what one looks for.
    well: bool,
    container: String,
    result: String,
    detail: String,
    error: String,
    output: String,
}

/// One row for each group, with its output and its pods beneath; then the counts.
pub(super) fn render(tally: &Tally, all_pods: bool) -> String {
    let mut groups: BTreeMap<Outcome, Vec<&str>> = BTreeMap::new();
    for child in tally.children() {
        for outcome in outcomes(child, tally.came_to_nothing(child)) {
            let pods = groups.entry(outcome).or_default();
            pods.push(&child.spec.pod_name);
        }
    }
    let mut table = Table::new(["PODS", "CONTAINER", "RESULT", "EXIT/SIGNAL", "ERROR"]);
    for (outcome, pods) in &groups {
        let output = outcome.output.lines().map(|line| format!("| {line}"));
        let named = name(pods, all_pods);
        table.row_with(
            [
                pods.len().to_string().as_str(),
                &outcome.container,
                &outcome.result,
                &outcome.detail,
                &outcome.error,
            ],
            output.chain(std::iter::once(named)),
        );
    }
    let mut text = if groups.is_empty() {
        String::new()
    } else {
        format!("{table}\n")
    };
    text.push_str(&summary(tally).to_string());
    text
}

fn summary(tally: &Tally) -> Table {
    let count = |state: State| {
        let ended = tally.children().filter(|child| child.state() == state);
        ended.filter(|child| !report::found_nothing(child)).count()
    };
    let undeclared = tally
        .children()
        .filter(|c| report::found_nothing(c))
        .count();
    let nothing = tally
        .children()
        .filter(|c| tally.came_to_nothing(c))
        .count();
    let mut table = Table::new([
        "MATCHED",
        "SUCCEEDED",
        "FAILED",
        "NO RESULT",
        "NOT DECLARED",
        "NOT NOTIFIED",
    ]);
    if tally.only_counted() {
        let (targets, succeeded, failed) = tally.counted();
        let rest = targets.saturating_sub(succeeded + failed);
        // Whether one that succeeded had anything to do, and whether the rest was asked, is not counted.
        let unknown = || "-".to_owned();
        table.row([
            targets.to_string(),
            succeeded.to_string(),
            failed.to_string(),
            rest.to_string(),
            unknown(),
            unknown(),
        ]);
        return table;
    }
    table.row(
        [
            tally.targets(),
            count(State::Succeeded),
            count(State::Failed),
            count(State::New) - nothing,
            undeclared,
            tally.not_notified(),
        ]
        .map(|number| number.to_string()),
    );
    table
}

fn name(pods: &[&str], all: bool) -> String {
    let more = pods.len().saturating_sub(NAMED);
    if all || more <= 1 {
        pods.join(", ")
    } else {
        format!(
            "{} and {more} more (-o wide names all)",
            pods[..NAMED].join(", ")
        )
    }
}

fn outcomes(child: &PodNotification, came_to_nothing: bool) -> Vec<Outcome> {
    let status = child.status.clone().unwrap_or_default();
    if status.containers.is_empty() {
        let of_all = status.error.as_ref().map(|error| error.type_);
        let result = match (child.state(), report::found_nothing(child)) {
            (_, true) => "not declared",
            (State::New, _) if came_to_nothing => "not notified",
            (State::Failed, _) if of_all == Some(ErrorType::Cancelled) => "cancelled",
            (State::New, false) => "no result yet",
            (State::Succeeded, false) => "succeeded",
            (State::Failed, false) => "failed",
        };
        return vec![Outcome {
            well: child.state() == State::Succeeded,
            container: "-".to_owned(),
            result: result.to_owned(),
            detail: "-".to_owned(),
            error: status
                .error
                .as_ref()
                .map(report::text_of)
                .unwrap_or_default(),
            output: String::new(),
        }];
    }
    let of_all = status.error.as_ref();
    let containers = status.containers.iter().map(|container| {
        let well = container.succeeded == Some(true);
        let of_all = of_all.filter(|_| !well);
        let error = container.error.as_ref().or(of_all);
        Outcome {
            well,
            container: container.name.clone(),
            result: report::result(container, of_all),
            detail: report::detail(container),
            error: error.map(report::text_of).unwrap_or_default(),
            output: container.output.clone().unwrap_or_default(),
        }
    });
    containers.collect()
}

/// What a user should know beyond the tables.
pub(super) fn notes(tally: &Tally, selector: &str, namespace: &str) -> Vec<String> {
    let mut notes = Vec::new();
    let status = tally.status();
    let spec = &tally.notification().spec;
    if tally.was_deleted() {
        notes.push(
            "somebody else deleted the Notification, which cancelled what was running".into(),
        );
    }
    if let Some(error) = &status.error {
        notes.push(format!("{}: {}", error.type_, printable(&error.message)));
    }
    if tally.is_over() && status.error.is_none() && tally.targets() == 0 {
        notes.push(format!(
            "no running pod matches {selector:?} in namespace {namespace}; `belay get pods -l {selector:?}` shows what there is"
        ));
    }
    let undeclared: Vec<&str> = tally
        .children()
        .filter(|child| report::found_nothing(child))
        .map(|child| child.spec.pod_name.as_str())
        .collect();
    if !undeclared.is_empty() {
        notes.push(format!(
            "note: no container declares the notifier {:?} in {}",
            spec.notifier,
            name(&undeclared, false)
        ));
    }
    let mut unhandled: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for child in tally.children() {
        if let Some(message) = report::unhandled_signal(child) {
            let pods = unhandled.entry(message).or_default();
            pods.push(&child.spec.pod_name);
        }
    }
    for (message, pods) in unhandled {
        notes.push(format!(
            "note: {}: {}",
            name(&pods, false),
            printable(message)
        ));
    }
    notes
}

/// The exit code: 1 if anything failed, 3 if nothing matched or nobody declares the notifier.
pub(super) fn exit(tally: &Tally) -> Exit {
    let ran = match tally.children().next() {
        Some(_) => tally.children().any(|child| !report::found_nothing(child)),
        // Who may not see them is told by the counts alone.
        None => tally.targets() > 0,
    };
    match tally.status().state {
        State::Succeeded if ran => Exit::Done,
        State::Succeeded => Exit::Nothing,
        State::New | State::Failed => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::tests::{child, notification};
    use super::*;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn succeeded(output: &str) -> Value {
        json!({"state": "Succeeded", "containers": [
            {"name": "main", "succeeded": true, "exitCode": 0, "output": output}]})
    }

    fn failed() -> Value {
        let error = json!({"type": "HandlerFailed", "message": "exited with 3",
            "timestamp": "2026-01-01T00:00:00Z"});
        json!({"state": "Failed", "containers": [
            {"name": "main", "succeeded": false, "exitCode": 3, "error": error,
             "output": "disk full\n"}]})
    }

    fn tally(state: &str, pods: &[(&str, Value)]) -> Tally {
        let status = json!({"state": state, "targetCount": pods.len(),
            "startTime": "2026-01-01T00:00:00Z"});
        let mut tally = Tally::new(notification(&status));
        for (pod, status) in pods {
            tally.child(Event::Apply(child(pod, status)));
        }
        tally
    }

    #[test]
    fn what_is_alike_is_said_once_with_its_pods_and_failures_come_first() {
        let tally = tally(
            "Failed",
            &[
                ("web-1", succeeded("reloaded\n")),
                ("web-2", failed()),
                ("web-3", succeeded("reloaded\n")),
                ("old", json!({"state": "Succeeded"})),
            ],
        );
        assert_eq!(
            render(&tally, false),
            "\
PODS  CONTAINER  RESULT        EXIT/SIGNAL  ERROR
1     main       failed        3            HandlerFailed: exited with 3
    | disk full
    web-2
1     -          not declared  -
    old
2     main       succeeded     0
    | reloaded
    web-1, web-3

MATCHED  SUCCEEDED  FAILED  NO RESULT  NOT DECLARED  NOT NOTIFIED
4        2          1       0          1             0
"
        );
        assert_eq!(
            notes(&tally, "app=web", "default"),
            ["note: no container declares the notifier \"reload\" in old"]
        );
        assert_eq!(exit(&tally), Exit::Failed);
    }

    #[test]
    fn what_was_cancelled_says_so_for_each_pod() {
        let error = json!({"type": "Cancelled", "message": "the notification was deleted",
            "timestamp": "2026-01-01T00:00:00Z"});
        let killed = json!({"state": "Failed", "executor": "n", "error": error, "containers": [
            {"name": "main", "succeeded": false, "error": error}]});
        let new = json!({"state": "New"});
        let mut tally = tally(
            "New",
            &[
                ("done", succeeded("")),
                ("killed", killed),
                ("waited", new.clone()),
            ],
        );
        tally.child(Event::Delete(child("waited", &new)));
        assert_eq!(
            render(&tally, false),
            "\
PODS  CONTAINER  RESULT        EXIT/SIGNAL  ERROR
1     -          not notified  -
    waited
1     main       cancelled     -            Cancelled: the notification was deleted
    killed
1     main       succeeded     0
    done

MATCHED  SUCCEEDED  FAILED  NO RESULT  NOT DECLARED  NOT NOTIFIED
3        1          1       0          0             1
"
        );
        assert_eq!(
            tally.summary(),
            "1 succeeded, 1 cancelled, 1 not notified of 3 pods"
        );
    }

    #[test]
    fn long_lists_of_pods_are_cut_unless_all_are_asked_for() {
        let pods: Vec<String> = (0..20).map(|i| format!("p{i:02}")).collect();
        let names: Vec<&str> = pods.iter().map(String::as_str).collect();
        assert!(name(&names, false).ends_with("p07 and 12 more (-o wide names all)"));
        assert!(name(&names, true).ends_with("p18, p19"));
        assert!(name(&names[..9], false).ends_with("p08"));
    }

    #[test]
    fn who_may_not_see_single_pods_is_told_the_counts() {
        let status = json!({"state": "Succeeded", "targetCount": 3, "succeededCount": 3,
            "startTime": "2026-01-01T00:00:00Z"});
        let mut tally = Tally::new(notification(&status));
        assert_eq!(exit(&tally), Exit::Done);
        tally.unseen("no".into());
        tally.unseen("no".into());
        assert_eq!(tally.take_news(Duration::ZERO).len(), 1);
        assert_eq!(tally.summary(), "3 succeeded, 0 failed of 3 pods");
        assert_eq!(
            render(&tally, false),
            "\
MATCHED  SUCCEEDED  FAILED  NO RESULT  NOT DECLARED  NOT NOTIFIED
3        3          0       0          -             -
"
        );
        assert_eq!(exit(&tally), Exit::Done);
        tally.child(Event::Apply(child("a", &json!({"state": "Succeeded"}))));
        assert_eq!(exit(&tally), Exit::Nothing);
    }

    #[test]
    fn nothing_matched_and_nobody_declares_it_are_exit_code_3() {
        let none = tally("Succeeded", &[]);
        assert_eq!(exit(&none), Exit::Nothing);
        let told = notes(&none, "app=web", "default");
        assert!(
            told[0].starts_with("no running pod matches \"app=web\""),
            "{told:?}"
        );
        let undeclared = tally("Succeeded", &[("a", json!({"state": "Succeeded"}))]);
        assert_eq!(exit(&undeclared), Exit::Nothing);
        assert_eq!(
            exit(&tally("Succeeded", &[("a", succeeded(""))])),
            Exit::Done
        );
    }
}
