//! One table: nodes and pods as they are, and what is done about them.

use super::*;
use crate::daemonsets::set::Share;
use serde_json::{Value, json};

const NOW: i64 = 1_000_000;

fn set(change: impl FnOnce(&mut Value)) -> Set {
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"namespace": "ns", "name": "d", "uid": "set", "generation": 7},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": []}},
        },
    });
    change(&mut object);
    Set::read(&serde_json::from_value(object).unwrap()).unwrap()
}

fn plain() -> Set {
    set(|_| {})
}

fn with_spec(field: &str, value: Value) -> Set {
    set(|it| it["spec"]["template"]["spec"][field] = value)
}

fn node(labels: Value, taints: Value) -> NodeFacts {
    NodeFacts::of(
        serde_json::from_value(json!({
            "metadata": {"labels": labels},
            "spec": {"taints": taints, "unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "False"}]},
        }))
        .unwrap(),
    )
}

/// Nodes without labels and taints; that they are neither Ready nor open to others is no matter.
fn nodes(names: &[&str]) -> BTreeMap<String, NodeFacts> {
    let one = |name: &&str| ((*name).to_owned(), node(json!({}), json!([])));
    names.iter().map(one).collect()
}

/// A pod of the set on a node, called like its node, and available.
fn pod(node: &str, hash: &str) -> PodFacts {
    PodFacts {
        key: PodKey {
            namespace: "ns".into(),
            name: format!("d-{node}"),
            uid: format!("uid-{node}"),
        },
        owner: Some("set".into()),
        node: Some(node.into()),
        hash: Some(hash.into()),
        created: Timestamp::from_second(NOW - 100).ok(),
        ready_since: Timestamp::from_second(NOW - 50).ok(),
        ended: false,
        terminating: false,
        labels: BTreeMap::new(),
    }
}

fn called(name: &str, mut pod: PodFacts) -> PodFacts {
    pod.key.name = name.into();
    pod.key.uid = format!("uid-{name}");
    pod
}

fn unready(mut pod: PodFacts) -> PodFacts {
    pod.ready_since = None;
    pod
}

fn terminating(mut pod: PodFacts) -> PodFacts {
    pod.terminating = true;
    pod
}

fn ended(mut pod: PodFacts) -> PodFacts {
    pod.ended = true;
    unready(pod)
}

fn orphan(mut pod: PodFacts) -> PodFacts {
    pod.owner = None;
    pod
}

fn plan_of(set: &Set, nodes: &BTreeMap<String, NodeFacts>, pods: &[PodFacts]) -> Plan {
    resting(set, nodes, pods, &[])
}

fn resting(
    set: &Set,
    nodes: &BTreeMap<String, NodeFacts>,
    pods: &[PodFacts],
    rests: &[(&str, u64)],
) -> Plan {
    let rests = rests
        .iter()
        .map(|(node, seconds)| ((*node).to_owned(), Duration::from_secs(*seconds)));
    decide(&Facts {
        set,
        nodes,
        pods: pods.iter().collect(),
        resting: rests.collect(),
        now: Timestamp::from_second(NOW).unwrap(),
    })
}

/// The actions as short texts.
fn texts(plan: &Plan) -> Vec<String> {
    let one = |action: &Action| match action {
        Action::Create { node } => format!("create {node}"),
        Action::Delete { pod, why, .. } => format!("delete {} {why:?}", pod.name),
        Action::Adopt { pod } => format!("adopt {}", pod.name),
    };
    plan.actions.iter().map(one).collect()
}

/// desired, current, misscheduled, ready, updated, available, unavailable
fn counts(plan: &Plan) -> [usize; 7] {
    let status = plan.status.unwrap();
    assert_eq!(status.observed_generation, 7);
    [
        status.desired_number_scheduled,
        status.current_number_scheduled,
        status.number_misscheduled,
        status.number_ready,
        status.updated_number_scheduled,
        status.number_available,
        status.number_unavailable,
    ]
}

fn check(
    set: &Set,
    nodes: &BTreeMap<String, NodeFacts>,
    pods: &[PodFacts],
    actions: &[&str],
    numbers: [usize; 7],
) {
    let plan = plan_of(set, nodes, pods);
    assert_eq!(texts(&plan), actions);
    assert_eq!(counts(&plan), numbers);
}

#[test]
fn every_node_gets_one_pod_ready_or_not() {
    let set = plain();
    let three = nodes(&["a", "b", "c"]);
    check(&set, &nodes(&[]), &[], &[], [0; 7]);
    check(
        &set,
        &three,
        &[],
        &["create a", "create b", "create c"],
        [3, 0, 0, 0, 0, 0, 3],
    );
    let pods = [pod("a", &set.hash), unready(pod("b", &set.hash))];
    check(&set, &three, &pods, &["create c"], [3, 2, 0, 1, 2, 1, 2]);
}

#[test]
fn labels_of_nodes_decide_and_a_node_that_loses_them_loses_the_pod() {
    let set = with_spec("nodeSelector", json!({"disk": "ssd"}));
    let mut some = nodes(&["a", "b", "c"]);
    some.insert("b".into(), node(json!({"disk": "ssd"}), json!([])));
    check(&set, &some, &[], &["create b"], [1, 0, 0, 0, 0, 0, 1]);
    let pods = [
        pod("a", &set.hash),
        pod("b", &set.hash),
        terminating(pod("c", &set.hash)),
        // Its node is not there any more.
        pod("gone", &set.hash),
    ];
    check(
        &set,
        &some,
        &pods,
        &["delete d-a NotWanted", "delete d-gone NotWanted"],
        [1, 1, 3, 1, 1, 1, 0],
    );
    let bound = with_spec("nodeName", json!("c"));
    check(&bound, &some, &[], &["create c"], [1, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn taints_keep_away_or_send_away_unless_tolerated() {
    let taint = |effect: &str| json!([{"key": "gpu", "effect": effect}]);
    let one = |taints: Value| BTreeMap::from([("n".to_owned(), node(json!({}), taints))]);
    let set = plain();
    let there = [pod("n", &set.hash)];
    let (keeps, sends) = (one(taint("NoSchedule")), one(taint("NoExecute")));
    check(&set, &keeps, &[], &[], [0; 7]);
    check(&set, &keeps, &there, &[], [0, 0, 1, 0, 0, 0, 0]);
    check(&set, &sends, &[], &[], [0; 7]);
    check(
        &set,
        &sends,
        &there,
        &["delete d-n NotWanted"],
        [0, 0, 1, 0, 0, 0, 0],
    );
    check(
        &set,
        &one(taint("PreferNoSchedule")),
        &[],
        &["create n"],
        [1, 0, 0, 0, 0, 0, 1],
    );
    let tolerant = with_spec("tolerations", json!([{"key": "gpu", "operator": "Exists"}]));
    check(&tolerant, &sends, &[], &["create n"], [1, 0, 0, 0, 0, 0, 1]);
    // A daemon lives with what befalls its node.
    let cordoned =
        one(json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]));
    check(&set, &cordoned, &[], &["create n"], [1, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn of_several_pods_on_a_node_the_best_is_kept() {
    let set = plain();
    let one = nodes(&["a"]);
    let mut younger = called("young", pod("a", &set.hash));
    younger.created = Timestamp::from_second(NOW - 10).ok();
    let pods = [younger.clone(), pod("a", &set.hash)];
    check(
        &set,
        &one,
        &pods,
        &["delete young Duplicate"],
        [1, 1, 0, 1, 1, 1, 0],
    );
    let pods = [younger.clone(), unready(pod("a", &set.hash))];
    check(
        &set,
        &one,
        &pods,
        &["delete d-a Duplicate"],
        [1, 1, 0, 1, 1, 1, 0],
    );
    let pods = [younger, pod("a", "old")];
    check(
        &set,
        &one,
        &pods,
        &["delete d-a Duplicate"],
        [1, 1, 0, 1, 1, 1, 0],
    );
}

#[test]
fn a_pod_that_is_ending_holds_its_node_and_is_unavailable() {
    let set = plain();
    let pods = [terminating(pod("a", &set.hash))];
    check(&set, &nodes(&["a"]), &pods, &[], [1, 1, 0, 0, 0, 0, 1]);
}

#[test]
fn a_changed_template_replaces_one_pod_at_a_time() {
    let set = plain();
    assert_eq!(set.strategy, Strategy::Rolling(Share::Nodes(1)));
    let three = nodes(&["a", "b", "c"]);
    let old = ["a", "b", "c"].map(|node| pod(node, "old"));
    check(
        &set,
        &three,
        &old,
        &["delete d-a Outdated"],
        [3, 3, 0, 3, 0, 3, 0],
    );
    let [_, b, c] = old;
    // While it ends, is gone, has just been made, is not ready: nobody else goes.
    let first = pod("a", &set.hash);
    let ending = [terminating(pod("a", "old")), b.clone(), c.clone()];
    check(&set, &three, &ending, &[], [3, 3, 0, 2, 0, 2, 1]);
    let gone = [b.clone(), c.clone()];
    check(&set, &three, &gone, &["create a"], [3, 2, 0, 2, 0, 2, 1]);
    let made = [unready(first.clone()), b.clone(), c.clone()];
    check(&set, &three, &made, &[], [3, 3, 0, 2, 1, 2, 1]);
    check(
        &set,
        &three,
        &[first.clone(), b, c.clone()],
        &["delete d-b Outdated"],
        [3, 3, 0, 3, 1, 3, 0],
    );
    // One that is not available is no loss, and leaves no room for another.
    let broken = [first, unready(pod("b", "old")), c];
    check(
        &set,
        &three,
        &broken,
        &["delete d-b Outdated"],
        [3, 3, 0, 2, 1, 2, 1],
    );
}

#[test]
fn more_may_go_at_once_where_the_strategy_says_so() {
    let most = |value: Value| {
        set(|it| {
            it["spec"]["updateStrategy"] =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": value}});
        })
    };
    let three = nodes(&["a", "b", "c"]);
    let old = ["a", "b", "c"].map(|node| pod(node, "old"));
    for (value, number) in [(json!(2), 2), (json!("34%"), 2), (json!("100%"), 3)] {
        let plan = plan_of(&most(value), &three, &old);
        assert_eq!(plan.actions.len(), number, "{plan:?}");
    }
}

#[test]
fn on_delete_leaves_old_pods_until_somebody_deletes_them() {
    let set = set(|it| it["spec"]["updateStrategy"] = json!({"type": "OnDelete"}));
    let two = nodes(&["a", "b"]);
    let old = ["a", "b"].map(|node| pod(node, "old"));
    check(&set, &two, &old, &[], [2, 2, 0, 2, 0, 2, 0]);
    check(&set, &two, &old[1..], &["create a"], [2, 1, 0, 1, 0, 1, 1]);
}

#[test]
fn a_pod_that_has_ended_is_replaced_after_a_rest() {
    let set = plain();
    let one = nodes(&["a"]);
    let pods = [ended(pod("a", &set.hash))];
    check(
        &set,
        &one,
        &pods,
        &["delete d-a Ended"],
        [1, 1, 0, 0, 0, 0, 1],
    );
    for pods in [&pods[..], &[]] {
        let plan = resting(&set, &one, pods, &[("a", 4)]);
        assert_eq!(texts(&plan), [""; 0]);
        assert_eq!(plan.again, Some(Duration::from_secs(4)));
    }
}

#[test]
fn a_pod_is_available_when_it_has_been_ready_for_long_enough() {
    let set = set(|it| it["spec"]["minReadySeconds"] = 60.into());
    let one = nodes(&["a"]);
    // Ready for fifty seconds.
    let mut ready = pod("a", &set.hash);
    let plan = plan_of(&set, &one, std::slice::from_ref(&ready));
    assert_eq!(counts(&plan), [1, 1, 0, 1, 1, 0, 1]);
    assert_eq!(plan.again, Some(Duration::from_secs(10)));
    ready.ready_since = Timestamp::from_second(NOW - 60).ok();
    let plan = plan_of(&set, &one, &[ready.clone()]);
    assert_eq!(counts(&plan), [1, 1, 0, 1, 1, 1, 0]);
    assert_eq!(plan.again, None);
    // By a clock that was set back.
    ready.ready_since = Timestamp::from_second(NOW + 5000).ok();
    let plan = plan_of(&set, &one, &[ready]);
    assert_eq!(plan.again, Some(Duration::from_secs(60)));
}

#[test]
fn pods_that_nobody_controls_are_taken_over_before_they_are_judged() {
    let set = plain();
    let two = nodes(&["a", "b"]);
    let pods = [
        called("left", orphan(pod("a", "old"))),
        called("leaving", terminating(orphan(pod("b", "old")))),
    ];
    let plan = plan_of(&set, &two, &pods);
    assert_eq!(texts(&plan), ["adopt left", "create b"]);
    let mut unbound = orphan(pod("a", "old"));
    unbound.node = None;
    assert_eq!(texts(&plan_of(&set, &nodes(&[]), &[unbound])), [""; 0]);
}

#[test]
fn nothing_is_done_for_a_set_that_is_being_deleted() {
    let deleting = set(|it| it["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    let plan = plan_of(&deleting, &nodes(&["a", "b"]), &[pod("b", "old")]);
    assert_eq!(plan, Plan::default());
}

#[test]
fn a_rule_that_is_not_evaluated_places_nothing_and_takes_nothing_away() {
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [],
    }}});
    let set = with_spec("affinity", affinity);
    assert!(set.refusal.is_some());
    let pods = [pod("a", "old")];
    check(&set, &nodes(&["a", "b"]), &pods, &[], [0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn a_pod_is_read_from_what_the_server_shows() {
    let read = |controller: bool, kind: &str| {
        PodFacts::of(
            &serde_json::from_value(json!({
                "metadata": {
                    "namespace": "ns", "name": "p", "uid": "u",
                    "labels": {"app": "d", HASH_LABEL: "h"},
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "d",
                        "uid": "set", "controller": controller}],
                },
                "spec": {"containers": [], "nodeName": "n"},
                "status": {"phase": "Running", "conditions": [
                    {"type": "Ready", "status": "True",
                     "lastTransitionTime": "1970-01-01T00:00:05Z"},
                ]},
            }))
            .unwrap(),
        )
    };
    let own = read(true, "DaemonSet").unwrap();
    assert_eq!(own.owner.as_deref(), Some("set"));
    assert_eq!(own.hash.as_deref(), Some("h"));
    assert_eq!(own.ready_since, Timestamp::from_second(5).ok());
    assert!(own.is_live() && own.labels.is_empty());
    assert!(read(true, "Job").is_none(), "somebody else's");
    let free = read(false, "Job").unwrap();
    assert_eq!(free.owner, None);
    assert_eq!(free.labels["app"], "d");
}
