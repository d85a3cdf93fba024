//! Containers: regular ones, init containers and sidecars, ephemeral ones.

use std::collections::BTreeSet;

use super::spec::{Pod, one_of};
use super::{
    Errors, environment, handlers, is_sidecar, notifiers, ports, resources, security, signals,
    volumes,
};
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names};

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: [&str; 2] = ["File", "FallbackToLogsOnError"];
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

const NOT_ON_INIT: &str = "may not be set for init containers without restartPolicy=Always";
const NOT_ON_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

/// What an ephemeral container, which only looks into a pod, may not have.
const FORBIDDEN_ON_EPHEMERAL: [&str; 11] = [
    "ports",
    "resources",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "stopSignal",
    "notifiers",
    "restartPolicy",
    "restartPolicyRules",
    "resizePolicy",
];

pub(super) fn validate(spec: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let regular = spec.get("containers");
    if regular.is_empty() {
        errors.push(FieldError::required(regular.path(), ""));
    }
    let mut seen = BTreeSet::new();
    for container in regular.items() {
        common(&container, pod, errors);
        unique_name(&container, &mut seen, errors);
        while_running(&container, pod, errors);
        let policy = container.get("restartPolicy");
        if policy.is_set() {
            let detail = "may not be set for non-init containers";
            errors.push(FieldError::forbidden(policy.path(), detail));
        }
        no_restart_rules(&container, errors);
    }
    let mut taken = BTreeSet::new();
    for container in regular.items() {
        ports::unique_on_host(&container, &mut taken, errors);
    }
    for container in spec.get("initContainers").items() {
        common(&container, pod, errors);
        unique_name(&container, &mut seen, errors);
        // Init containers run one by one, so only their own ports can collide.
        ports::unique_on_host(&container, &mut BTreeSet::new(), errors);
        init(&container, pod, errors);
    }
    let targets = seen.clone();
    for container in spec.get("ephemeralContainers").items() {
        common(&container, pod, errors);
        unique_name(&container, &mut seen, errors);
        ephemeral(&container, &targets, errors);
    }
}

fn unique_name<'a>(container: &Cursor<'a>, seen: &mut BTreeSet<&'a str>, errors: &mut Errors) {
    let name = container.get("name");
    if !name.is_empty() && !seen.insert(name.str()) {
        errors.push(FieldError::duplicate(name.path(), name.str()));
    }
}

/// What holds for containers of every sort.
fn common(container: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let name = container.get("name");
    if name.is_empty() {
        errors.push(FieldError::required(name.path(), ""));
    } else {
        extend_invalid(
            errors,
            name.path(),
            name.str(),
            names::dns_label(name.str()),
        );
    }
    let image = container.get("image");
    if image.is_empty() {
        errors.push(FieldError::required(image.path(), ""));
    } else if image.str().trim() != image.str() {
        let detail = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(image.path(), image.str(), detail));
    }
    one_of(
        &container.get("terminationMessagePolicy"),
        &MESSAGE_POLICIES,
        errors,
    );
    ports::validate(&container.get("ports"), errors);
    environment::validate(container, pod, errors);
    volumes::validate_mounts(container, &pod.volumes, errors);
    one_of(&container.get("imagePullPolicy"), &PULL_POLICIES, errors);
    resources::validate(&container.get("resources"), errors);
    security::validate_container(&container.get("securityContext"), errors);
}

/// What a container that runs as long as the pod does may have.
fn while_running(container: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    handlers::lifecycle(&container.get("lifecycle"), pod, errors);
    signals::validate(container, pod.os, errors);
    for field in PROBES {
        handlers::container_probe(field, &container.get(field), errors);
    }
    notifiers::validate(&container.get("notifiers"), pod.os, errors);
}

fn init(container: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let policy = container.get("restartPolicy");
    if policy.is_set() && policy.str() != "Always" {
        errors.push(FieldError::not_supported(
            policy.path(),
            policy.str(),
            &["Always"],
        ));
    }
    no_restart_rules(container, errors);
    if is_sidecar(container) {
        while_running(container, pod, errors);
        return;
    }
    for field in PROBES
        .into_iter()
        .chain(["lifecycle", "stopSignal", "notifiers"])
    {
        let at = container.get(field);
        if at.is_set() {
            errors.push(FieldError::forbidden(at.path(), NOT_ON_INIT));
        }
    }
}

/// Restart rules would be stored and not obeyed, so they are refused.
fn no_restart_rules(container: &Cursor<'_>, errors: &mut Errors) {
    let rules = container.get("restartPolicyRules");
    if !rules.is_empty() {
        errors.push(FieldError::forbidden(
            rules.path(),
            "restart rules are not supported",
        ));
    }
}

fn ephemeral(container: &Cursor<'_>, targets: &BTreeSet<&str>, errors: &mut Errors) {
    let target = container.get("targetContainerName");
    if !target.is_empty() && !targets.contains(target.str()) {
        errors.push(FieldError::not_found(target.path(), target.str()));
    }
    for field in FORBIDDEN_ON_EPHEMERAL {
        let at = container.get(field);
        if !at.is_empty() {
            errors.push(FieldError::forbidden(at.path(), NOT_ON_EPHEMERAL));
        }
    }
    for mount in container.get("volumeMounts").items() {
        for field in ["subPath", "subPathExpr"] {
            let at = mount.get(field);
            if !at.is_empty() {
                errors.push(FieldError::forbidden(at.path(), NOT_ON_EPHEMERAL));
            }
        }
    }
}
