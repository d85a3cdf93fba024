use std::collections::BTreeMap;

use belay_action::ContainerId;
use belay_core::delivery::{Outlook, Record};
use belay_runtime::RecordedContainer;

use super::*;
use crate::notifications::handler::{Handlers, outlook};

const LOCK: &str = r#"{"main": [{"name": "lock", "handler": {"signal": "SIGHUP"}}]}"#;

fn about() -> Started {
    Started {
        namespace: "ns".into(),
        name: "n".into(),
        uid: "u".into(),
        notifier: Some("lock".into()),
        pod_name: "db".into(),
        boot_id: String::new(),
        deadline: 7,
        record: Record {
            pod_uid: "p".into(),
            entries: BTreeMap::new(),
        },
    }
}

fn recorded(annotation: Option<&str>) -> RecordedPod {
    let container = RecordedContainer {
        id: ContainerId::new("c1").unwrap(),
        restart_count: 2,
        running: true,
    };
    RecordedPod {
        uid: "p".into(),
        namespace: "ns".into(),
        name: "db".into(),
        annotations: annotation
            .map(|text| (NOTIFIERS_ANNOTATION.to_owned(), text.to_owned()))
            .into_iter()
            .collect(),
        address: None,
        containers: [("main".to_owned(), container)].into(),
    }
}

fn container(name: &str) -> belay_api::pod::Container {
    belay_api::pod::Container {
        name: name.into(),
        ..Default::default()
    }
}

fn copy(annotation: Option<&str>, deleted: bool) -> ApiCopy {
    ApiCopy {
        annotation: annotation.map(str::to_owned),
        deleted: deleted.then_some(jiff::Timestamp::UNIX_EPOCH),
        spec: belay_api::pod::PodSpec {
            containers: ["main", "late"].map(container).into(),
            init_containers: vec![container("setup")],
            ..Default::default()
        },
        host: Some("10.0.0.7".into()),
    }
}

fn refusal(found: Found) -> Option<&'static str> {
    match found {
        Found::Pod(_) => None,
        Found::Refused(verdict) => verdict.error_type(),
    }
}

/// The whole table: what the runtime recorded, what the API says, what comes of it.
#[test]
fn every_pair_of_record_and_copy_has_its_answer() {
    let (here, gone) = (Some(recorded(Some(LOCK))), None);
    let stays = copy(Some(LOCK), false);
    let goes = copy(Some(LOCK), true);
    let changed = copy(Some("{}"), false);
    for (recorded, copy, expected) in [
        (&here, Some(&stays), None),
        // It is found, with what it declares: a restarted agent still follows what it left.
        (&here, Some(&goes), None),
        (&here, Some(&changed), Some("Forbidden")),
        (&here, None, Some("PodNotFound")),
        (&gone, Some(&stays), Some("ContainerNotRunning")),
        (&gone, Some(&goes), Some("PodTerminating")),
        (&gone, Some(&changed), Some("ContainerNotRunning")),
        (&gone, None, Some("PodNotFound")),
    ] {
        let found = judge(&about(), recorded.clone(), copy);
        assert_eq!(refusal(found), expected, "{recorded:?} {copy:?}");
    }
}

#[test]
fn a_record_of_another_pod_is_not_the_one_that_was_asked_for() {
    let copy = copy(Some(LOCK), false);
    for change in [
        |pod: &mut RecordedPod| pod.namespace = "other".into(),
        |pod: &mut RecordedPod| pod.name = "other".into(),
    ] {
        let mut recorded = recorded(Some(LOCK));
        change(&mut recorded);
        let found = judge(&about(), Some(recorded), Some(&copy));
        assert_eq!(refusal(found), Some("PodNotFound"));
    }
}

#[test]
fn the_view_has_the_recorded_notifiers_and_the_containers_that_run_now() {
    let found = judge(
        &about(),
        Some(recorded(Some(LOCK))),
        Some(&copy(Some(LOCK), true)),
    );
    let Found::Pod(view) = found else {
        panic!("{found:?}");
    };
    assert!(view.pod.is_terminating() && view.pod.declares("lock").unwrap());
    assert_eq!(view.running("main").unwrap().as_str(), "c1");
    assert_eq!(view.running("late"), None);
}

#[test]
fn what_the_runtime_recorded_is_held_to_the_rules_for_notifiers() {
    for (annotation, said) in [
        ("rubbish", "[apps.k8s.io/notifiers]: must be a JSON object"),
        (
            r#"{"main": [{"name": "lock", "handler": {"signal": "HUP"}}]}"#,
            "[main][0].handler.signal: unknown signal",
        ),
        (
            r#"{"setup": [{"name": "lock", "handler": {"signal": "SIGHUP"}}]}"#,
            "[setup]: Forbidden: may not be set for init containers",
        ),
        (
            r#"{"mian": [{"name": "lock", "handler": {"signal": "SIGHUP"}}]}"#,
            "[mian]: Not found",
        ),
    ] {
        let copy = copy(Some(annotation), false);
        let found = judge(&about(), Some(recorded(Some(annotation))), Some(&copy));
        let Found::Pod(view) = &found else {
            panic!("{found:?}");
        };
        let handlers = Handlers::of(&view.pod, &view.address, "lock");
        let Outlook::Refuse(verdict) = outlook(&found, &handlers) else {
            panic!("{annotation} is run");
        };
        assert_eq!(verdict.error_type(), Some("RuntimeError"));
        assert!(verdict.message().contains(said), "{}", verdict.message());
    }
}

#[test]
fn probes_reach_a_pod_at_its_own_address_or_at_its_node_s() {
    let address = |own: Option<&str>| {
        let mut recorded = recorded(None);
        recorded.address = own.map(|address| address.parse().unwrap());
        match judge(&about(), Some(recorded), Some(&copy(None, false))) {
            Found::Pod(view) => view.address.clone(),
            refused @ Found::Refused(_) => panic!("{refused:?}"),
        }
    };
    assert_eq!(address(Some("10.1.0.3")), "10.1.0.3");
    assert_eq!(address(None), "10.0.0.7");
}

#[test]
fn annotations_are_compared_by_what_they_declare() {
    let two = r#"{"main": [{"name": "a", "handler": {"signal": "SIGHUP"}},
                           {"name": "b", "handler": {"signal": "SIGINT"}}], "x": []}"#;
    let turned = r#"{"main":[{"handler":{"signal":"SIGINT"},"name":"b"},
                             {"name":"a","handler":{"signal":"SIGHUP"}}]}"#;
    for (recorded, copy, same) in [
        (None, None, true),
        (None, Some("{}"), true),
        (Some(two), Some(turned), true),
        (Some(two), Some(LOCK), false),
        (Some(LOCK), None, false),
        // Added after the pod was created.
        (None, Some(LOCK), false),
        (Some("rubbish"), Some("rubbish"), true),
        (Some("rubbish"), Some("other rubbish"), false),
        (Some("rubbish"), Some(LOCK), false),
    ] {
        assert_eq!(
            same_notifiers(recorded, copy),
            same,
            "{recorded:?} {copy:?}"
        );
    }
}
