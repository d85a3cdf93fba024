//! Where a pod goes: a pure function of the pod, the nodes and how many pods each node has.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Affinity, Node, Pod, PodSpec, Taint, Toleration};

/// What becomes of an unbound pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Bind it to this node.
    Bind { node: String },
    /// No node fits; the message is for the pod's `PodScheduled` condition.
    Unschedulable { message: String },
}

/// Why one node does not take the pod. The order is the order in which the reasons are tested;
/// only the first is counted, as the stock scheduler does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    NotReady,
    Cordoned,
    Selector,
    Taint(String),
    Full,
}

impl Obstacle {
    fn describe(&self) -> String {
        match self {
            Obstacle::NotReady => "node(s) were not ready".to_owned(),
            Obstacle::Cordoned => "node(s) were unschedulable".to_owned(),
            Obstacle::Selector => "node(s) didn't match Pod's node selector".to_owned(),
            Obstacle::Taint(taint) => format!("node(s) had untolerated taint {{{taint}}}"),
            Obstacle::Full => "Too many pods".to_owned(),
        }
    }
}

/// Picks the node for `pod`: of those that fit, the one with the fewest pods, then the first by
/// name, so that the same facts always give the same answer.
///
/// `counts` says how many pods that have not ended each node holds; a node that is absent holds
/// none. Required affinity and spread constraints are not evaluated here; a pod that asks for them
/// is refused in so many words, because placing it while ignoring them would break a promise.
pub fn choose<'a>(
    pod: &Pod,
    nodes: impl IntoIterator<Item = &'a Node>,
    counts: &BTreeMap<String, usize>,
) -> Choice {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    if let Some(message) = not_evaluated(spec) {
        return Choice::Unschedulable { message };
    }

    let mut total = 0_usize;
    let mut obstacles: BTreeMap<Obstacle, usize> = BTreeMap::new();
    let mut best: Option<(Reverse<usize>, Reverse<&str>)> = None;
    for node in nodes {
        total += 1;
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let held = counts.get(name).copied().unwrap_or(0);
        match obstacle(spec, node, held) {
            Some(obstacle) => *obstacles.entry(obstacle).or_default() += 1,
            None => best = best.max(Some((Reverse(held), Reverse(name)))),
        }
    }
    match best {
        Some((_, Reverse(name))) => Choice::Bind {
            node: name.to_owned(),
        },
        None => Choice::Unschedulable {
            message: refusal(total, &obstacles),
        },
    }
}

fn refusal(total: usize, obstacles: &BTreeMap<Obstacle, usize>) -> String {
    if total == 0 {
        return "0/0 nodes are available: no nodes have joined.".to_owned();
    }
    let mut message = format!("0/{total} nodes are available: ");
    for (i, (obstacle, count)) in obstacles.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(message, "{comma}{count} {}", obstacle.describe());
    }
    message.push('.');
    message
}

fn obstacle(spec: &PodSpec, node: &Node, held: usize) -> Option<Obstacle> {
    if !is_ready(node) {
        return Some(Obstacle::NotReady);
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let node_spec = node.spec.as_ref();
    if node_spec.and_then(|s| s.unschedulable).unwrap_or(false) && !tolerates_cordon(tolerations) {
        return Some(Obstacle::Cordoned);
    }
    if !selects(spec, node.metadata.labels.as_ref()) {
        return Some(Obstacle::Selector);
    }
    let taints = node_spec.and_then(|s| s.taints.as_deref());
    if let Some(taint) = untolerated(spec, taints.unwrap_or_default(), &KEEPS_AWAY) {
        let value = taint.value.as_deref().unwrap_or_default();
        return Some(Obstacle::Taint(format!("{}: {value}", taint.key)));
    }
    if capacity(node).is_some_and(|capacity| held >= capacity) {
        return Some(Obstacle::Full);
    }
    None
}

/// Whether the node's `Ready` condition is `True`.
pub fn is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn capacity(node: &Node) -> Option<usize> {
    let status = node.status.as_ref()?;
    let allocatable = status.allocatable.as_ref().or(status.capacity.as_ref())?;
    allocatable.get("pods")?.0.parse().ok()
}

/// Effects of a taint that keep new pods away.
const KEEPS_AWAY: [&str; 2] = ["NoSchedule", "NoExecute"];

/// Whether a node with these labels is one that the pod asks for.
pub(crate) fn selects(spec: &PodSpec, labels: Option<&BTreeMap<String, String>>) -> bool {
    spec.node_selector.iter().flatten().all(|(key, value)| {
        labels
            .and_then(|labels| labels.get(key))
            .is_some_and(|found| found == value)
    })
}

/// The first taint with one of these effects that the pod does not tolerate.
pub(crate) fn untolerated<'a>(
    spec: &PodSpec,
    taints: &'a [Taint],
    effects: &[&str],
) -> Option<&'a Taint> {
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    taints.iter().find(|taint| {
        effects.contains(&taint.effect.as_str()) && !tolerations.iter().any(|t| tolerates(t, taint))
    })
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    if key.is_empty() {
        return exists;
    }
    key == taint.key
        && (exists
            || toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default())
}

fn tolerates_cordon(tolerations: &[Toleration]) -> bool {
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    tolerations.iter().any(|t| tolerates(t, &cordon))
}

/// Why a pod with this spec is placed nowhere: a hard rule of it is not evaluated here.
pub(crate) fn not_evaluated(spec: &PodSpec) -> Option<String> {
    unsupported_constraint(spec).map(|field| {
        format!("{field} is not evaluated by this server; use spec.nodeSelector instead")
    })
}

/// The first hard placement rule of the pod that [`choose`] does not evaluate.
fn unsupported_constraint(spec: &PodSpec) -> Option<&'static str> {
    let none = Affinity::default();
    let affinity = spec.affinity.as_ref().unwrap_or(&none);
    if let Some(node) = &affinity.node_affinity
        && node
            .required_during_scheduling_ignored_during_execution
            .is_some()
    {
        return Some("required spec.affinity.nodeAffinity");
    }
    if let Some(pod) = &affinity.pod_affinity
        && !pod
            .required_during_scheduling_ignored_during_execution
            .as_deref()
            .unwrap_or_default()
            .is_empty()
    {
        return Some("required spec.affinity.podAffinity");
    }
    if let Some(pod) = &affinity.pod_anti_affinity
        && !pod
            .required_during_scheduling_ignored_during_execution
            .as_deref()
            .unwrap_or_default()
            .is_empty()
    {
        return Some("required spec.affinity.podAntiAffinity");
    }
    let spread = spec
        .topology_spread_constraints
        .as_deref()
        .unwrap_or_default();
    if spread
        .iter()
        .any(|c| c.when_unsatisfiable == "DoNotSchedule")
    {
        return Some("spec.topologySpreadConstraints with DoNotSchedule");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, extra: Value) -> Node {
        let mut base = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"pods": "110"},
            },
        });
        let Value::Object(extra) = extra else {
            panic!("fields to replace: {extra}");
        };
        for (key, value) in extra {
            base[key] = value;
        }
        serde_json::from_value(base).unwrap()
    }

    fn pod(spec: &Value) -> Pod {
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "main"}]);
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn counts(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
        pairs.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect()
    }

    fn check(
        pod_spec: &Value,
        nodes: &[Node],
        held: &[(&str, usize)],
        expected: Result<&str, &str>,
    ) {
        let choice = choose(&pod(pod_spec), nodes, &counts(held));
        let expected = match expected {
            Ok(node) => Choice::Bind { node: node.into() },
            Err(message) => Choice::Unschedulable {
                message: message.into(),
            },
        };
        assert_eq!(choice, expected, "pod {pod_spec}");
    }

    #[test]
    fn the_node_with_the_fewest_pods_is_taken_then_the_first_by_name() {
        let nodes = [
            node("b", json!({})),
            node("a", json!({})),
            node("c", json!({})),
        ];
        check(&json!({}), &nodes, &[], Ok("a"));
        check(&json!({}), &nodes, &[("a", 1)], Ok("b"));
        check(&json!({}), &nodes, &[("a", 1), ("b", 1)], Ok("c"));
        check(&json!({}), &nodes, &[("a", 2), ("b", 1), ("c", 1)], Ok("b"));
    }

    #[test]
    fn the_node_selector_must_match_every_label() {
        let disk = node(
            "fast",
            json!({"metadata": {"name": "fast", "labels": {"disk": "ssd"}}}),
        );
        let nodes = [node("a", json!({})), disk];
        check(
            &json!({"nodeSelector": {"disk": "ssd"}}),
            &nodes,
            &[],
            Ok("fast"),
        );
        check(
            &json!({"nodeSelector": {"disk": "ssd", "zone": "x"}}),
            &nodes,
            &[],
            Err("0/2 nodes are available: 2 node(s) didn't match Pod's node selector."),
        );
    }

    #[test]
    fn every_obstacle_is_counted_and_named() {
        let nodes = [
            node(
                "down",
                json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
            ),
            node("new", json!({"status": {}})),
            node("cordoned", json!({"spec": {"unschedulable": true}})),
            node(
                "tainted",
                json!({"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}),
            ),
            node(
                "full",
                json!({"status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "allocatable": {"pods": "1"},
                }}),
            ),
        ];
        check(
            &json!({}),
            &nodes,
            &[("full", 1)],
            Err(
                "0/5 nodes are available: 2 node(s) were not ready, 1 node(s) were unschedulable, \
                 1 node(s) had untolerated taint {gpu: yes}, 1 Too many pods.",
            ),
        );
    }

    #[test]
    fn no_node_at_all_is_said_plainly() {
        check(
            &json!({}),
            &[],
            &[],
            Err("0/0 nodes are available: no nodes have joined."),
        );
    }

    #[test]
    fn tolerations_open_tainted_and_cordoned_nodes() {
        let tainted = [node(
            "n",
            json!({"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}),
        )];
        for toleration in [
            json!({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}),
            json!({"key": "gpu", "value": "yes"}),
            json!({"key": "gpu", "operator": "Exists"}),
            json!({"operator": "Exists"}),
        ] {
            check(
                &json!({"tolerations": [toleration]}),
                &tainted,
                &[],
                Ok("n"),
            );
        }
        for toleration in [
            json!({"key": "gpu", "value": "no"}),
            json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
            json!({"key": "cpu", "operator": "Exists"}),
            json!({"value": "yes"}),
        ] {
            check(
                &json!({"tolerations": [toleration]}),
                &tainted,
                &[],
                Err("0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}."),
            );
        }
        let cordoned = [node("n", json!({"spec": {"unschedulable": true}}))];
        check(
            &json!({"tolerations": [{"operator": "Exists"}]}),
            &cordoned,
            &[],
            Ok("n"),
        );
    }

    #[test]
    fn a_preference_against_a_node_does_not_keep_a_pod_away() {
        let nodes = [node(
            "n",
            json!({"spec": {"taints": [{"key": "busy", "effect": "PreferNoSchedule"}]}}),
        )];
        check(&json!({}), &nodes, &[], Ok("n"));
    }

    #[test]
    fn hard_rules_that_are_not_evaluated_are_refused_and_soft_ones_are_ignored() {
        let nodes = [node("n", json!({}))];
        let hard = json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "host"}],
        }}});
        check(
            &hard,
            &nodes,
            &[],
            Err(
                "required spec.affinity.podAntiAffinity is not evaluated by this server; \
                 use spec.nodeSelector instead",
            ),
        );
        let soft = json!({"affinity": {"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "host"}},
            ],
        }}});
        check(&soft, &nodes, &[], Ok("n"));
    }
}
