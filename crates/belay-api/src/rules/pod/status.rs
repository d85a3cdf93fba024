//! What an agent may report about a pod.

use std::collections::{BTreeMap, BTreeSet};

use super::{Errors, is_sidecar};
use crate::field::{Cursor, FieldError};
use crate::metadata::{IMMUTABLE, extend_invalid, names};
use crate::signal::Signal;

/// Condition types that have no prefix.
const OWN_CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];
const PHASES: [&str; 5] = ["Pending", "Running", "Succeeded", "Failed", "Unknown"];

pub(super) fn validate(new: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) {
    let (spec, status, before) = (old.get("spec"), new.get("status"), old.get("status"));
    for condition in status.get("conditions").items() {
        let type_ = condition.get("type");
        if !OWN_CONDITIONS.contains(&type_.str()) {
            extend_invalid(
                errors,
                type_.path(),
                type_.str(),
                names::label_key(type_.str()),
            );
        }
    }
    super::spec::one_of_if_set(&status.get("phase"), &PHASES, errors);
    let (qos, qos_before) = (status.get("qosClass"), before.get("qosClass"));
    if qos_before.is_set() && qos.value() != qos_before.value() {
        errors.push(FieldError::invalid(qos.path(), qos.owned(), IMMUTABLE));
    }
    for list in [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ] {
        let statuses = status.get(list);
        for container in statuses.items() {
            let signal = container.get("stopSignal");
            if signal.is_set() && signal.str().parse::<Signal>().is_err() {
                let known = Signal::names_sorted();
                errors.push(FieldError::not_supported(
                    signal.path(),
                    signal.str(),
                    &known,
                ));
            }
        }
        stays_terminated(list, &spec, &statuses, &before.get(list), errors);
    }
}

/// A container that ended for good stays ended.
fn stays_terminated(
    list: &str,
    spec: &Cursor<'_>,
    now: &Cursor<'_>,
    before: &Cursor<'_>,
    errors: &mut Errors,
) {
    let sidecars: BTreeSet<_> = spec
        .get("initContainers")
        .items()
        .filter(is_sidecar)
        .map(|container| container.get("name").str())
        .collect();
    let mut alive: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for is in now.items() {
        if !is.get("state").get("terminated").is_set() {
            alive.entry(is.get("name").str()).or_default().push(is);
        }
    }
    for (i, was) in before.items().enumerate() {
        let terminated = was.get("state").get("terminated");
        let name = was.get("name").str();
        if !terminated.is_set() {
            continue;
        }
        let failed = terminated.get("exitCode").int().unwrap_or_default() != 0;
        let policy = spec.get("restartPolicy").str();
        if may_restart(list, policy, sidecars.contains(name), failed) {
            continue;
        }
        let revived = match alive.get(name).map(Vec::as_slice) {
            None => false,
            // In a new sandbox a pod prepares everything once more, whatever became of it before.
            Some([is]) => !(list == "initContainerStatuses" && tells_of_the_end(is, &was)),
            // No container has two statuses.
            Some(_) => true,
        };
        if revived {
            let detail = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(
                &now.path().index(i).child("state"),
                detail,
            ));
        }
    }
}

/// Whether a container's state is plainly that of a later incarnation than one that ended.
fn tells_of_the_end(is: &Cursor<'_>, was: &Cursor<'_>) -> bool {
    let of = |state: &Cursor<'_>| state.get("terminated").get("containerID").value().cloned();
    let restarts = |status: &Cursor<'_>| status.get("restartCount").int().unwrap_or_default();
    let ended = of(&was.get("state"));
    (ended.is_some() && of(&is.get("lastState")) == ended) || restarts(is) > restarts(was)
}

fn may_restart(list: &str, policy: &str, sidecar: bool, failed: bool) -> bool {
    match (list, policy) {
        ("ephemeralContainerStatuses", _) => false,
        ("initContainerStatuses", _) if sidecar => true,
        (_, "Never") => false,
        (_, "OnFailure") => failed,
        (_, _) => true,
    }
}
