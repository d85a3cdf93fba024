//! Requests and limits.

use std::cmp::Ordering;

use serde_json::Value;

use super::Errors;
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names};
use crate::quantity::Quantity;

/// Resources that every node has.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const HUGE_PAGES: &str = "hugepages-";

/// Names without a prefix that mean something, though not in a container.
const STANDARD_ELSEWHERE: [&str; 17] = [
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "requests.storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "services.nodeports",
    "services.loadbalancers",
];

pub(super) fn validate(resources: &Cursor<'_>, errors: &mut Errors) {
    let (limits, requests) = (resources.get("limits"), resources.get("requests"));
    for (name, limit) in limits.entries() {
        validate_one(name, &limit, errors);
    }
    for (name, request) in requests.entries() {
        validate_one(name, &request, errors);
        against_limit(name, &request, &requests, &limits, errors);
    }
    let has = |prefix: &str| {
        let mut all = limits.entries().chain(requests.entries());
        all.any(|(name, _)| name.starts_with(prefix))
    };
    if has(HUGE_PAGES) && !has("cpu") && !has("memory") {
        let detail = "HugePages require cpu or memory";
        errors.push(FieldError::forbidden(resources.path(), detail));
    }
}

/// The text of a quantity, which may have been written as a number.
fn text(at: &Cursor<'_>) -> String {
    match at.value() {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

fn validate_one(name: &str, at: &Cursor<'_>, errors: &mut Errors) {
    validate_name(name, at, errors);
    match text(at).parse::<Quantity>() {
        Err(wrong) => errors.push(FieldError::invalid(
            at.path(),
            at.owned(),
            wrong.to_string(),
        )),
        Ok(quantity) if quantity.is_negative() => {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(at.path(), text(at), detail));
        }
        Ok(quantity) if name.contains('/') && !quantity.is_integer() => {
            errors.push(FieldError::invalid(
                at.path(),
                text(at),
                "must be an integer",
            ));
        }
        Ok(_) => {}
    }
}

fn validate_name(name: &str, at: &Cursor<'_>, errors: &mut Errors) {
    let problems = names::label_key(name);
    let well_formed = problems.is_empty();
    extend_invalid(errors, at.path(), name, problems);
    if STANDARD.contains(&name) || name.starts_with(HUGE_PAGES) {
        return;
    }
    let mut wrong = |detail: &str| errors.push(FieldError::invalid(at.path(), name, detail));
    if !name.contains('/') {
        if well_formed && !STANDARD_ELSEWHERE.contains(&name) {
            wrong("must be a standard resource type or fully qualified");
        }
        wrong("must be a standard resource for containers");
    } else if !name.contains("kubernetes.io/") && (!well_formed || name.starts_with("requests.")) {
        wrong("doesn't follow extended resource name standard");
    }
}

/// Whether more of a resource may be promised than there is.
fn overcommits(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    native && !name.starts_with(HUGE_PAGES)
}

fn against_limit(
    name: &str,
    request: &Cursor<'_>,
    requests: &Cursor<'_>,
    limits: &Cursor<'_>,
    errors: &mut Errors,
) {
    let limit = limits.key(name);
    if !limit.is_set() {
        if !overcommits(name) {
            let detail = "Limit must be set for non overcommitable resources";
            errors.push(FieldError::required(limits.path(), detail));
        }
        return;
    }
    let (request, limit) = (text(request), text(&limit));
    let relation = match crate::quantity::compare(&request, &limit) {
        None | Some(Ordering::Equal) => return,
        Some(_) if !overcommits(name) => "equal to",
        Some(Ordering::Greater) => "less than or equal to",
        Some(Ordering::Less) => return,
    };
    let detail = format!("must be {relation} {name} limit of {limit}");
    errors.push(FieldError::invalid(requests.path(), request, detail));
}

/// How a pod is treated when a node runs short: `Guaranteed`, `Burstable` or `BestEffort`.
///
/// A limit without a request counts as the request too, so the answer does not depend on whether
/// defaults have been filled in.
pub(super) fn qos_class(spec: &Cursor<'_>) -> &'static str {
    let positive = |at: Cursor<'_>| {
        text(&at)
            .parse::<Quantity>()
            .ok()
            .filter(|quantity| !quantity.is_negative() && !quantity.is_zero())
    };
    let (mut any, mut guaranteed) = (false, true);
    for list in ["containers", "initContainers"] {
        for container in spec.get(list).items() {
            let resources = container.get("resources");
            for name in ["cpu", "memory"] {
                let limit = positive(resources.get("limits").key(name));
                let given = resources.get("requests").key(name);
                let request = if given.is_set() {
                    positive(given)
                } else {
                    limit
                };
                any |= limit.is_some() || request.is_some();
                guaranteed &= limit.is_some() && limit == request;
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
