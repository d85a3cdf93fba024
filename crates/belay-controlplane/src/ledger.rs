//! What the binder knows: every pod's place, the pods that wait for one, and the nodes. Pure; the
//! driver feeds it watch events and carries out what it plans.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};

use crate::choose::{Choice, choose};

/// Names a pod for as long as it lives: a successor of the same name has another UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl PodKey {
    pub(crate) fn of(pod: &Pod) -> PodKey {
        PodKey {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// Where a pod stands. Only a waiting pod is kept whole; of the others the place is enough, so
/// that a full server costs the binder little memory.
#[derive(Debug)]
enum Place {
    /// Counts against its node.
    OnNode(String),
    /// Needs a node; kept to choose one.
    Waiting(Box<Pod>),
    /// Ended, being deleted unbound, gated, or somebody else's to schedule.
    Elsewhere,
}

impl Place {
    fn of(pod: Pod) -> Place {
        let spec = pod.spec.as_ref();
        let ended = matches!(
            pod.status.as_ref().and_then(|s| s.phase.as_deref()),
            Some("Succeeded" | "Failed")
        );
        if ended {
            return Place::Elsewhere;
        }
        if let Some(node) = spec
            .and_then(|s| s.node_name.as_deref())
            .filter(|n| !n.is_empty())
        {
            return Place::OnNode(node.to_owned());
        }
        let ours = spec
            .and_then(|s| s.scheduler_name.as_deref())
            .is_none_or(|name| name.is_empty() || name == "default-scheduler");
        let gated = spec
            .and_then(|s| s.scheduling_gates.as_deref())
            .is_some_and(|gates| !gates.is_empty());
        if pod.metadata.deletion_timestamp.is_some() || !ours || gated {
            return Place::Elsewhere;
        }
        Place::Waiting(Box::new(pod))
    }
}

/// One thing to do for one waiting pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub pod: PodKey,
    pub choice: Choice,
    /// Whether the pod's condition says this already, so that it need not be written again.
    pub already_said: bool,
}

/// The binder's picture of the world, built from watch events alone.
#[derive(Debug, Default)]
pub struct Ledger {
    pods: HashMap<PodKey, Place>,
    nodes: BTreeMap<String, Node>,
    /// Objects seen during a re-list; what is not among them at its end is gone.
    listed_pods: HashSet<PodKey>,
    listed_nodes: HashSet<String>,
    synced: (bool, bool),
}

impl Ledger {
    /// A re-list of pods begins.
    pub fn pods_listing(&mut self) {
        self.listed_pods.clear();
    }

    /// A pod as a re-list shows it.
    pub fn pod_listed(&mut self, pod: Pod) {
        self.listed_pods.insert(PodKey::of(&pod));
        self.pod_applied(pod);
    }

    /// A re-list of pods is complete.
    pub fn pods_listed(&mut self) {
        let listed = std::mem::take(&mut self.listed_pods);
        self.pods.retain(|key, _| listed.contains(key));
        self.synced.0 = true;
    }

    /// A pod was created or changed.
    pub fn pod_applied(&mut self, pod: Pod) {
        let key = PodKey::of(&pod);
        let place = Place::of(pod);
        // A binding of ours may be newer than the event that is being read: once a pod has a
        // node it never loses it, so an older picture must not put it back into the queue.
        if matches!(place, Place::Waiting(_))
            && matches!(self.pods.get(&key), Some(Place::OnNode(_)))
        {
            return;
        }
        self.pods.insert(key, place);
    }

    /// A pod is gone.
    pub fn pod_deleted(&mut self, pod: &Pod) {
        self.pods.remove(&PodKey::of(pod));
    }

    /// A pod was bound by us; it counts at once, before the watch tells.
    pub fn pod_bound(&mut self, key: &PodKey, node: &str) {
        if let Some(place) = self.pods.get_mut(key) {
            *place = Place::OnNode(node.to_owned());
        }
    }

    /// A pod's condition was written by us; it is not written again before the watch tells.
    pub fn pod_refused(&mut self, key: &PodKey, message: &str) {
        if let Some(Place::Waiting(pod)) = self.pods.get_mut(key) {
            let status = pod.status.get_or_insert_default();
            let conditions = status.conditions.get_or_insert_default();
            conditions.retain(|c| c.type_ != "PodScheduled");
            conditions.push(PodCondition {
                type_: "PodScheduled".to_owned(),
                status: "False".to_owned(),
                message: Some(message.to_owned()),
                ..PodCondition::default()
            });
        }
    }

    /// A re-list of nodes begins.
    pub fn nodes_listing(&mut self) {
        self.listed_nodes.clear();
    }

    /// A node as a re-list shows it.
    pub fn node_listed(&mut self, node: Node) {
        self.listed_nodes
            .insert(node.metadata.name.clone().unwrap_or_default());
        self.node_applied(node);
    }

    /// A re-list of nodes is complete.
    pub fn nodes_listed(&mut self) {
        let listed = std::mem::take(&mut self.listed_nodes);
        self.nodes.retain(|name, _| listed.contains(name));
        self.synced.1 = true;
    }

    /// A node was created or changed.
    pub fn node_applied(&mut self, mut node: Node) {
        // Heartbeats carry images and addresses that no choice depends on.
        if let Some(status) = node.status.as_mut() {
            status.images = None;
            status.addresses = None;
        }
        node.metadata.managed_fields = None;
        self.nodes
            .insert(node.metadata.name.clone().unwrap_or_default(), node);
    }

    /// A node is gone.
    pub fn node_deleted(&mut self, node: &Node) {
        if let Some(name) = &node.metadata.name {
            self.nodes.remove(name);
        }
    }

    /// How many pods wait for a node.
    pub fn waiting(&self) -> usize {
        self.pods
            .values()
            .filter(|place| matches!(place, Place::Waiting(_)))
            .count()
    }

    /// What to do now for every waiting pod, oldest first. Each choice counts for the next, so a
    /// batch spreads over the nodes as if the pods had come one by one. Nothing is planned before
    /// both lists are complete: with half a picture a pod would be called unschedulable wrongly.
    pub fn plan(&self) -> Vec<Step> {
        if self.synced != (true, true) {
            return Vec::new();
        }
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut waiting = Vec::new();
        for (key, place) in &self.pods {
            match place {
                Place::OnNode(node) => *counts.entry(node.clone()).or_default() += 1,
                Place::Waiting(pod) => waiting.push((key, pod)),
                Place::Elsewhere => {}
            }
        }
        waiting.sort_by_key(|(key, pod)| (pod.metadata.creation_timestamp.clone(), *key));
        waiting
            .into_iter()
            .map(|(key, pod)| {
                let choice = choose(pod, self.nodes.values(), &counts);
                let already_said = match &choice {
                    Choice::Bind { node } => {
                        *counts.entry(node.clone()).or_default() += 1;
                        false
                    }
                    Choice::Unschedulable { message } => says(pod, message),
                };
                Step {
                    pod: key.clone(),
                    choice,
                    already_said,
                }
            })
            .collect()
    }
}

fn says(pod: &Pod, message: &str) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|c| {
            c.type_ == "PodScheduled"
                && c.status == "False"
                && c.message.as_deref() == Some(message)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, spec: &Value, status: &Value) -> Pod {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}")},
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    fn node(name: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    }

    fn synced() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.pods_listing();
        ledger.pods_listed();
        ledger.nodes_listing();
        ledger.nodes_listed();
        ledger
    }

    fn bound(plan: &[Step]) -> Vec<(&str, &str)> {
        plan.iter()
            .map(|step| match &step.choice {
                Choice::Bind { node } => (step.pod.name.as_str(), node.as_str()),
                Choice::Unschedulable { .. } => (step.pod.name.as_str(), "-"),
            })
            .collect()
    }

    #[test]
    fn nothing_is_planned_before_both_lists_are_complete() {
        let mut ledger = Ledger::default();
        ledger.pods_listing();
        ledger.pod_listed(pod("a", &json!({}), &json!({})));
        ledger.pods_listed();
        assert!(ledger.plan().is_empty());
        ledger.nodes_listing();
        ledger.node_listed(node("n"));
        ledger.nodes_listed();
        assert_eq!(bound(&ledger.plan()), [("a", "n")]);
    }

    #[test]
    fn a_batch_spreads_over_the_nodes() {
        let mut ledger = synced();
        ledger.node_applied(node("n1"));
        ledger.node_applied(node("n2"));
        for name in ["a", "b", "c"] {
            ledger.pod_applied(pod(name, &json!({}), &json!({})));
        }
        assert_eq!(
            bound(&ledger.plan()),
            [("a", "n1"), ("b", "n2"), ("c", "n1")]
        );
    }

    #[test]
    fn pods_that_ended_do_not_count_and_are_not_bound() {
        let mut ledger = synced();
        ledger.node_applied(node("n1"));
        ledger.node_applied(node("n2"));
        ledger.pod_applied(pod(
            "done",
            &json!({"nodeName": "n1"}),
            &json!({"phase": "Succeeded"}),
        ));
        ledger.pod_applied(pod("failed", &json!({}), &json!({"phase": "Failed"})));
        ledger.pod_applied(pod("new", &json!({}), &json!({})));
        assert_eq!(bound(&ledger.plan()), [("new", "n1")]);
    }

    #[test]
    fn gated_foreign_and_dying_pods_are_left_alone() {
        let mut ledger = synced();
        ledger.node_applied(node("n"));
        ledger.pod_applied(pod(
            "gated",
            &json!({"schedulingGates": [{"name": "g"}]}),
            &json!({}),
        ));
        ledger.pod_applied(pod(
            "foreign",
            &json!({"schedulerName": "mine"}),
            &json!({}),
        ));
        let mut dying = pod("dying", &json!({}), &json!({}));
        dying.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        ledger.pod_applied(dying);
        assert!(ledger.plan().is_empty());
        assert_eq!(ledger.waiting(), 0);
    }

    #[test]
    fn an_event_older_than_our_binding_does_not_queue_the_pod_again() {
        let mut ledger = synced();
        ledger.node_applied(node("n"));
        let unbound = pod("a", &json!({}), &json!({}));
        ledger.pod_applied(unbound.clone());
        let key = ledger.plan()[0].pod.clone();
        ledger.pod_bound(&key, "n");
        ledger.pod_applied(unbound);
        assert!(ledger.plan().is_empty());
    }

    #[test]
    fn a_refusal_that_the_pod_already_shows_is_marked_so() {
        let mut ledger = synced();
        ledger.pod_applied(pod("a", &json!({}), &json!({})));
        let plan = ledger.plan();
        assert!(!plan[0].already_said);
        let Choice::Unschedulable { message } = &plan[0].choice else {
            panic!("{plan:?}");
        };
        let status = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "message": message},
        ]});
        ledger.pod_applied(pod("a", &json!({}), &status));
        assert!(ledger.plan()[0].already_said);
        ledger.pod_applied(pod("a", &json!({}), &json!({})));
        assert!(!ledger.plan()[0].already_said);
        ledger.pod_refused(&plan[0].pod, message);
        assert!(ledger.plan()[0].already_said);
    }

    #[test]
    fn what_a_relist_does_not_show_is_gone() {
        let mut ledger = synced();
        ledger.node_applied(node("n1"));
        ledger.node_applied(node("n2"));
        ledger.pod_applied(pod("a", &json!({}), &json!({})));
        ledger.pods_listing();
        ledger.pod_listed(pod("b", &json!({}), &json!({})));
        ledger.pods_listed();
        ledger.nodes_listing();
        ledger.node_listed(node("n2"));
        ledger.nodes_listed();
        assert_eq!(bound(&ledger.plan()), [("b", "n2")]);
    }
}
