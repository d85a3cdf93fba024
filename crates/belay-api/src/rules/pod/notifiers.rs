//! Notifiers, declared in a container's field or in the pod's annotation.
//!
//! The annotation is text to the API, so it is read, given the same shape and then held to the
//! same rules, with errors that name the annotation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Errors, defaults, handlers, is_sidecar, signals};
use crate::field::{Cursor, FieldError, Path};
use crate::metadata::{ANNOTATIONS_LIMIT_BYTES, IMMUTABLE, extend_invalid, names};
use crate::pod::{NOTIFIERS_ANNOTATION, NotifierError, parse_annotation};

/// Names that Kubernetes keeps for notifiers everybody knows. There are none yet.
const RESERVED_PREFIX: &str = "k8s.io/";
const MAX_HOLD_SECONDS: i64 = 3600;
/// In one list.
const MAX_NOTIFIERS: usize = 100;
const OUTPUTS: [&str; 2] = ["Tail", "None"];

/// Checks the notifiers of one container's field.
pub(super) fn validate(notifiers: &Cursor<'_>, os: &str, errors: &mut Errors) {
    let count = notifiers.list().len();
    if count > MAX_NOTIFIERS {
        errors.push(FieldError::too_many(notifiers.path(), count, MAX_NOTIFIERS));
        return;
    }
    let mut seen = BTreeSet::new();
    for notifier in notifiers.items() {
        let name = notifier.get("name");
        if name.is_empty() {
            errors.push(FieldError::required(name.path(), ""));
        } else if !seen.insert(name.str()) {
            errors.push(FieldError::duplicate(name.path(), name.str()));
        }
        one(&notifier, os, errors);
    }
}

/// Checks one notifier, except for its name's uniqueness and what its `undo` refers to.
fn one(notifier: &Cursor<'_>, os: &str, errors: &mut Errors) {
    let name = notifier.get("name");
    if !name.is_empty() {
        extend_invalid(
            errors,
            name.path(),
            name.str(),
            names::label_key(name.str()),
        );
    }
    if name.str().starts_with(RESERVED_PREFIX) {
        let detail = "names with the prefix `k8s.io/` are reserved; use another prefix or none";
        errors.push(FieldError::invalid(name.path(), name.str(), detail));
    }
    handler(&notifier.get("handler"), os, errors);

    let timeout = notifier.get("timeoutSeconds");
    if let Some(seconds) = timeout.int().filter(|seconds| *seconds < 1) {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(timeout.path(), seconds, detail));
    }
    let probe = notifier.get("probe");
    if probe.is_set() {
        handlers::probe(&probe, errors);
        let grace = probe.get("terminationGracePeriodSeconds");
        if grace.is_set() {
            let detail = "must not be set for a notifier's probe, which stops no container";
            errors.push(FieldError::invalid(grace.path(), grace.owned(), detail));
        }
    }
    hold(notifier, errors);
    let output = notifier.get("output");
    if output.is_set() && !OUTPUTS.contains(&output.str()) {
        errors.push(FieldError::not_supported(
            output.path(),
            output.str(),
            &OUTPUTS,
        ));
    }
}

fn handler(handler: &Cursor<'_>, os: &str, errors: &mut Errors) {
    let (exec, signal) = (handler.get("exec"), handler.get("signal"));
    if !handler.is_set() {
        errors.push(FieldError::required(handler.path(), ""));
        return;
    }
    if exec.is_set() && signal.is_set() {
        let detail = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(signal.path(), detail));
    } else if exec.is_set() {
        handlers::exec(&exec, errors);
    } else if signal.is_set() {
        signals::signal(&signal, os, errors);
    } else {
        let detail = "must specify a handler type: exec or signal";
        errors.push(FieldError::required(handler.path(), detail));
    }
}

fn hold(notifier: &Cursor<'_>, errors: &mut Errors) {
    let (undo, hold) = (notifier.get("undo"), notifier.get("hold"));
    let max = notifier.get("maxHoldSeconds");
    if undo.is_set() {
        if undo.is_empty() {
            errors.push(FieldError::required(
                undo.path(),
                "must name another notifier",
            ));
        } else if undo.str() == notifier.get("name").str() {
            let detail = "must name another notifier: a notifier cannot undo itself";
            errors.push(FieldError::invalid(undo.path(), undo.str(), detail));
        }
    }
    if let Some(seconds) = max.int() {
        if !(1..=MAX_HOLD_SECONDS).contains(&seconds) {
            let detail = names::between(1, MAX_HOLD_SECONDS);
            errors.push(FieldError::invalid(max.path(), seconds, detail));
        }
        if !undo.is_set() && !hold.is_set() {
            let detail = "may only be set for a notifier with `undo` or `hold`";
            errors.push(FieldError::forbidden(max.path(), detail));
        }
    }
    if hold.is_set() {
        if !notifier.get("handler").get("exec").is_set() {
            let detail = "may only be set for an exec handler: only a process can be kept";
            errors.push(FieldError::forbidden(hold.path(), detail));
        }
        let line = hold.get("readyLine");
        if line.is_empty() && !notifier.get("probe").is_set() {
            let detail = "must be set, unless the notifier has a probe that tells when it holds";
            errors.push(FieldError::required(line.path(), detail));
        } else if line.str().contains(['\n', '\r']) {
            errors.push(FieldError::invalid(
                line.path(),
                line.str(),
                "must be a single line",
            ));
        }
    }
}

/// The annotation's notifiers as plain JSON, or why it cannot be read.
fn read_annotation(pod: &Cursor<'_>) -> Option<Result<Map<String, Value>, FieldError>> {
    let at = annotation(pod);
    // One that is longer than annotations may be is refused for that, and not worth reading.
    let fits = |text: &&str| text.len() <= ANNOTATIONS_LIMIT_BYTES;
    let text = at.value()?.as_str().filter(fits)?;
    let read = parse_annotation(text).map_err(|wrong| {
        let detail = match &wrong {
            NotifierError::Annotation(source) => {
                format!("must be a JSON object from container name to list of notifiers: {source}")
            }
            NotifierError::UnknownField {
                container,
                index,
                field,
            } => format!("unknown field \"{container}[{index}].{field}\""),
            other => other.to_string(),
        };
        FieldError::invalid(at.path(), text, detail)
    });
    // The text is known to be good JSON of the right shape now; the rules look at it raw, since
    // it may still say what no type forbids.
    Some(read.map(|_| serde_json::from_str(text).unwrap_or_default()))
}

fn annotation<'a>(pod: &Cursor<'a>) -> Cursor<'a> {
    pod.get("metadata")
        .get("annotations")
        .key(NOTIFIERS_ANNOTATION)
}

/// Checks the annotation, and what concerns field and annotation together: that no name is
/// declared twice and that every `undo` is there.
pub(super) fn validate_annotation(pod: &Cursor<'_>, errors: &mut Errors) {
    let path = annotation(pod).path().clone();
    let mut declared = match read_annotation(pod) {
        None => Map::new(),
        Some(Ok(declared)) => declared,
        Some(Err(error)) => {
            errors.push(error);
            return;
        }
    };
    // The text stays as it was written; whoever reads it fills in the same as the field's defaults.
    let lists = declared.values_mut().filter_map(Value::as_array_mut);
    for notifier in lists.flatten().filter_map(Value::as_object_mut) {
        defaults::default_notifier(notifier);
    }
    let spec = pod.get("spec");
    let os = spec.get("os").get("name").str();
    let may = may_declare(&spec);
    for (container, notifiers) in &declared {
        let at = Cursor::at(path.key(container), Some(notifiers));
        match may.get(&**container) {
            Some(None) => validate(&at, os, errors),
            Some(Some(why)) => errors.push(FieldError::forbidden(at.path(), *why)),
            None => errors.push(FieldError::not_found(at.path(), &**container)),
        }
    }
    for container in long_running(&spec) {
        let name = container.get("name").str();
        let annotated = Cursor::at(path.key(name), declared.get(name));
        together(&container.get("notifiers"), &annotated, errors);
    }
}

fn long_running<'a>(spec: &Cursor<'a>) -> impl Iterator<Item = Cursor<'a>> + use<'a> {
    let sidecars = spec.get("initContainers").items().filter(is_sidecar);
    sidecars.chain(spec.get("containers").items())
}

/// The pod's containers by name, and why those that cannot have notifiers cannot.
fn may_declare<'a>(spec: &Cursor<'a>) -> BTreeMap<&'a str, Option<&'static str>> {
    let mut may = BTreeMap::new();
    for (list, why) in [
        (
            "ephemeralContainers",
            "cannot be set for an Ephemeral Container",
        ),
        (
            "initContainers",
            "may not be set for init containers without restartPolicy=Always",
        ),
    ] {
        may.extend(
            spec.get(list)
                .items()
                .map(|it| (it.get("name").str(), Some(why))),
        );
    }
    may.extend(long_running(spec).map(|it| (it.get("name").str(), None)));
    may
}

fn together(field: &Cursor<'_>, annotated: &Cursor<'_>, errors: &mut Errors) {
    let mut holds: BTreeMap<&str, bool> = BTreeMap::new();
    for notifier in field.items().chain(annotated.items()) {
        let keeps = notifier.get("undo").is_set() || notifier.get("hold").is_set();
        holds.entry(notifier.get("name").str()).or_insert(keeps);
    }
    let in_field: BTreeSet<&str> = field.items().map(|it| it.get("name").str()).collect();
    for notifier in annotated.items() {
        let name = notifier.get("name");
        if in_field.contains(name.str()) {
            let mut error = FieldError::duplicate(name.path(), name.str());
            format!("declared in {} too", field.path()).clone_into(&mut error.detail);
            errors.push(error);
        }
    }
    for notifier in field.items().chain(annotated.items()) {
        let undo = notifier.get("undo");
        if undo.is_empty() || undo.str() == notifier.get("name").str() {
            continue;
        }
        match holds.get(undo.str()) {
            None => {
                let mut error = FieldError::not_found(undo.path(), undo.str());
                "must name another notifier of the same container".clone_into(&mut error.detail);
                errors.push(error);
            }
            Some(true) => {
                let detail = "must name a notifier that holds nothing itself";
                errors.push(FieldError::invalid(undo.path(), undo.str(), detail));
            }
            Some(false) => {}
        }
    }
}

/// The annotation is fixed at creation, like the field, which is part of the spec: whoever may
/// annotate a running pod must not thereby be able to run commands in it.
pub(super) fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) {
    let (now, before) = (annotation(new), annotation(old));
    if now.value() != before.value() {
        errors.push(FieldError::invalid(now.path(), now.owned(), IMMUTABLE));
    }
}

/// Every notifier, in field and annotation, with the path that names it.
fn all(pod: &Cursor<'_>) -> Vec<(Path, Value)> {
    let mut found = Vec::new();
    let collect = |notifiers: Cursor<'_>, found: &mut Vec<(Path, Value)>| {
        found.extend(notifiers.items().map(|it| (it.path().clone(), it.owned())));
    };
    for container in long_running(&pod.get("spec")) {
        collect(container.get("notifiers"), &mut found);
    }
    if let Some(Ok(declared)) = read_annotation(pod) {
        let path = annotation(pod).path().clone();
        for (container, notifiers) in &declared {
            collect(Cursor::at(path.key(container), Some(notifiers)), &mut found);
        }
    }
    found
}

/// A second is short for a command, and a default that nobody chose.
pub(super) fn warnings_before_default(pod: &Cursor<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (path, notifier) in all(pod) {
        let notifier = Cursor::at(path, Some(&notifier));
        let exec = notifier.get("handler").get("exec").is_set();
        let timeout = notifier.get("timeoutSeconds");
        if exec && !timeout.is_set() {
            warnings.push(format!(
                "{}: not set for an exec handler, which is then stopped after 1 second",
                timeout.path()
            ));
        }
    }
    warnings
}

pub(super) fn warnings(pod: &Cursor<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (path, notifier) in all(pod) {
        let notifier = Cursor::at(path, Some(&notifier));
        let timeout = notifier.get("timeoutSeconds");
        let seconds = timeout.int().unwrap_or(1);
        let probe = notifier.get("probe");
        if probe.is_set() {
            let delay = probe.get("initialDelaySeconds").int().unwrap_or_default();
            let period = probe
                .get("periodSeconds")
                .int()
                .filter(|it| *it > 0)
                .unwrap_or(10);
            let needed = delay.saturating_add(period);
            if seconds < needed {
                warnings.push(format!(
                    "{}: {seconds} is shorter than the probe's initial delay plus one period ({needed} seconds), so the probe may not be tried twice",
                    timeout.path()
                ));
            }
        }
        let max = notifier.get("maxHoldSeconds");
        if let Some(hold) = max.int().filter(|hold| *hold < seconds) {
            warnings.push(format!(
                "{}: {hold} is shorter than timeoutSeconds ({seconds}), so the hold may be released before the handler has ended",
                max.path()
            ));
        }
    }
    warnings
}
