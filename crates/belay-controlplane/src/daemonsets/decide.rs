//! What a daemon set needs now: a pure function of it, the nodes and its pods.
//!
//! | on a node that | is done |
//! |---|---|
//! | should run the pod and has none, not even one that is ending | create |
//! | should run it and has several | keep the best, delete the others |
//! | should run it and has one that has ended | delete it, after a rest |
//! | should run it and has one of an old template | delete it when the strategy lets |
//! | may keep it, but would get none (a taint `NoSchedule`) | nothing more than that |
//! | should not have it | delete |
//!
//! A pod that was deleted is followed by a new one only when it is gone: a node has one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::set::{HASH_LABEL, Set, Status, Strategy};
use crate::choose::{selects, untolerated};
use crate::ledger::PodKey;

/// What of a node matters here; not whether it is Ready, for a daemon is also on one that is not.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeFacts {
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
}

impl NodeFacts {
    pub(super) fn of(node: Node) -> NodeFacts {
        NodeFacts {
            labels: node.metadata.labels.unwrap_or_default(),
            taints: node.spec.and_then(|spec| spec.taints).unwrap_or_default(),
        }
    }
}

/// What of a pod matters here.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodFacts {
    pub(super) key: PodKey,
    /// UID of the object that controls it. `None` for a pod that nobody does, which a daemon set
    /// may take.
    pub(super) owner: Option<String>,
    pub(super) node: Option<String>,
    pub(super) hash: Option<String>,
    pub(super) created: Option<Timestamp>,
    /// Since when it is ready, if it is.
    pub(super) ready_since: Option<Timestamp>,
    pub(super) ended: bool,
    pub(super) terminating: bool,
    /// Only of pods that nobody controls.
    pub(super) labels: BTreeMap<String, String>,
}

impl PodFacts {
    /// `None` for a pod that another kind of object controls.
    pub(super) fn of(pod: &Pod) -> Option<PodFacts> {
        let meta = &pod.metadata;
        let owners = meta.owner_references.iter().flatten();
        let controller = owners.into_iter().find(|it| it.controller == Some(true));
        if controller.is_some_and(|it| it.kind != "DaemonSet") {
            return None;
        }
        let labels = meta.labels.clone().unwrap_or_default();
        let status = pod.status.as_ref();
        let ready = status
            .and_then(|status| status.conditions.as_ref())
            .and_then(|list| list.iter().find(|it| it.type_ == "Ready"))
            .filter(|it| it.status == "True");
        let phase = status.and_then(|status| status.phase.as_deref());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Some(PodFacts {
            key: PodKey::of(pod),
            owner: controller.map(|it| it.uid.clone()),
            node: node.filter(|node| !node.is_empty()),
            hash: labels.get(HASH_LABEL).cloned(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            // One that does not say since when has been ready for long.
            ready_since: ready.map(|it| {
                let since = it.last_transition_time.as_ref();
                since.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
            }),
            ended: matches!(phase, Some("Succeeded" | "Failed")),
            terminating: meta.deletion_timestamp.is_some(),
            labels: match controller {
                Some(_) => BTreeMap::new(),
                None => labels,
            },
        })
    }

    fn is_live(&self) -> bool {
        !self.ended && !self.terminating
    }
}

/// What is known.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) set: &'a Set,
    pub(super) nodes: &'a BTreeMap<String, NodeFacts>,
    /// Its own, and those that nobody controls and its selector matches.
    pub(super) pods: Vec<&'a PodFacts>,
    /// How long nothing is to be tried again on a node where it failed.
    pub(super) resting: BTreeMap<String, Duration>,
    pub(super) now: Timestamp,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Create { node: String },
    Delete { pod: PodKey, node: String, why: Why },
    Adopt { pod: PodKey },
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    NotWanted,
    Duplicate,
    Outdated,
    Ended,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    /// `None` when nothing is to be said any more.
    pub(super) status: Option<Status>,
    /// After how long to look again although nothing has changed.
    pub(super) again: Option<Duration>,
}

impl Plan {
    fn look_again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |before| before.min(after)));
    }

    fn delete(&mut self, pod: &PodFacts, node: &str, why: Why) {
        self.actions.push(Action::Delete {
            pod: pod.key.clone(),
            node: node.to_owned(),
            why,
        });
    }
}

/// What a node is to a daemon set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It should run the pod.
    Run,
    /// It keeps a pod that it has, and gets none.
    Stay,
    /// It should not have the pod.
    Leave,
}

/// The kept pod of a node that should run one.
struct Kept<'a> {
    node: &'a str,
    pod: Option<&'a PodFacts>,
    available: bool,
}

pub(super) fn decide(facts: &Facts<'_>) -> Plan {
    let set = facts.set;
    let mut plan = Plan::default();
    if set.deleting {
        // What becomes of its pods is for the collector to say.
        return plan;
    }
    let mut by_node: BTreeMap<&str, Vec<&PodFacts>> = BTreeMap::new();
    for pod in &facts.pods {
        let Some(node) = &pod.node else {
            continue;
        };
        if pod.owner.is_none() {
            // Nobody takes over what is leaving.
            if pod.terminating {
                continue;
            }
            plan.actions.push(Action::Adopt {
                pod: pod.key.clone(),
            });
        }
        by_node.entry(node).or_default().push(pod);
    }
    let names: BTreeSet<&str> = facts
        .nodes
        .keys()
        .map(String::as_str)
        .chain(by_node.keys().copied())
        .collect();
    let mut status = Status {
        observed_generation: set.generation,
        ..Status::default()
    };
    let mut kept = Vec::new();
    for node in names {
        let pods = by_node.get(node).map_or(&[][..], Vec::as_slice);
        let place = facts
            .nodes
            .get(node)
            .map_or(Place::Leave, |facts| place(set, node, facts));
        let best = settle(facts, &mut plan, node, place, pods);
        if place != Place::Run {
            status.number_misscheduled += usize::from(!pods.is_empty());
            continue;
        }
        status.desired_number_scheduled += 1;
        status.current_number_scheduled += usize::from(!pods.is_empty());
        let mut available = false;
        if let Some(pod) = best {
            status.updated_number_scheduled += usize::from(is_current(set, pod));
            status.number_ready += usize::from(pod.ready_since.is_some());
            let missing = until_available(set, pod, facts.now);
            available = missing == Some(Duration::ZERO);
            if let Some(missing) = missing.filter(|missing| !missing.is_zero()) {
                plan.look_again(missing);
            }
        }
        status.number_available += usize::from(available);
        let pod = best;
        kept.push(Kept {
            node,
            pod,
            available,
        });
    }
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    replace_outdated(set, &kept, &mut plan);
    plan.status = Some(status);
    plan
}

/// What a node is to a set. An added taint `NoSchedule` sends nobody away, as upstream has it.
fn place(set: &Set, name: &str, node: &NodeFacts) -> Place {
    let spec = &set.spec;
    let bound = spec.node_name.as_deref().filter(|it| !it.is_empty());
    let elsewhere = bound.is_some_and(|bound| bound != name);
    if elsewhere
        || !selects(spec, Some(&node.labels))
        || untolerated(spec, &node.taints, &["NoExecute"]).is_some()
    {
        Place::Leave
    } else if set.refusal.is_some() || untolerated(spec, &node.taints, &["NoSchedule"]).is_some() {
        Place::Stay
    } else {
        Place::Run
    }
}

/// Sees to it that the node has one pod, or none, whatever their templates. Returns the one it
/// keeps.
fn settle<'a>(
    facts: &Facts<'_>,
    plan: &mut Plan,
    node: &str,
    place: Place,
    pods: &[&'a PodFacts],
) -> Option<&'a PodFacts> {
    let set = facts.set;
    // Pods that are still to be taken over are not ours to delete.
    let own = pods.iter().copied().filter(|pod| pod.owner.is_some());
    if place == Place::Leave {
        for pod in own.filter(|pod| !pod.terminating) {
            plan.delete(pod, node, Why::NotWanted);
        }
        return None;
    }
    let rest = facts.resting.get(node).copied();
    for pod in own.clone().filter(|pod| pod.ended && !pod.terminating) {
        match rest {
            Some(rest) => plan.look_again(rest),
            None => plan.delete(pod, node, Why::Ended),
        }
    }
    let mut live: Vec<&PodFacts> = own.filter(|pod| pod.is_live()).collect();
    live.sort_by_key(|pod| {
        (
            pod.ready_since.is_none(),
            !is_current(set, pod),
            pod.created,
            &pod.key,
        )
    });
    for pod in live.iter().skip(1) {
        plan.delete(pod, node, Why::Duplicate);
    }
    if place == Place::Run && pods.is_empty() {
        match rest {
            Some(rest) => plan.look_again(rest),
            None => plan.actions.push(Action::Create {
                node: node.to_owned(),
            }),
        }
    }
    live.first().copied()
}

/// Deletes pods of an old template as far as the strategy lets. One that is not available costs
/// nothing, so it goes at once; that way a template that never worked can be mended.
fn replace_outdated(set: &Set, kept: &[Kept<'_>], plan: &mut Plan) {
    let Strategy::Rolling(most) = set.strategy else {
        return;
    };
    let unavailable = kept.iter().filter(|it| !it.available).count();
    let mut room = most.of(kept.len()).saturating_sub(unavailable);
    for Kept {
        node,
        pod,
        available,
    } in kept
    {
        let Some(pod) = pod.filter(|pod| !is_current(set, pod)) else {
            continue;
        };
        if *available && room == 0 {
            continue;
        }
        room -= usize::from(*available);
        plan.delete(pod, node, Why::Outdated);
    }
}

fn is_current(set: &Set, pod: &PodFacts) -> bool {
    pod.hash.as_deref() == Some(&set.hash)
}

/// How long until a pod counts as available, if it stays ready; `None` while it is not ready.
fn until_available(set: &Set, pod: &PodFacts, now: Timestamp) -> Option<Duration> {
    let ready = now.duration_since(pod.ready_since?);
    let wanted = jiff::SignedDuration::from_secs(set.min_ready_seconds);
    // A clock that was set back makes nobody wait longer than it was said.
    let missing = (wanted - ready.max(jiff::SignedDuration::ZERO)).max(jiff::SignedDuration::ZERO);
    Some(missing.unsigned_abs())
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests;
