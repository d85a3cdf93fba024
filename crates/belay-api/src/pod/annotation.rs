//! The notifiers annotation of a pod that no server has checked.
//!
//! A stock API server takes the annotation for any text. Whoever acts on it therefore holds it to the
//! rules that the embedded server holds new pods to, and uses all of it or nothing: a typing error in
//! one container must not look like a pod that declares nothing.

use serde_json::{Value, json};

use super::notifier::ContainerMap;
use super::{
    Container, ContainerNotifier, ContainerNotifierHandler, NOTIFIERS_ANNOTATION, NotifierError,
    NotifiersByContainer, Pod, RestartPolicy, parse_annotation,
};
use crate::field::{FieldError, Path};
use crate::rules;

/// The most of a problem that is told; it goes into a status.
const LONGEST_PROBLEM: usize = 1024;

/// The annotation's notifiers by container, none without the annotation.
///
/// # Errors
///
/// [`NotifierError::Invalid`] with the first thing that is wrong.
pub(super) fn checked(pod: &Pod) -> Result<NotifiersByContainer, NotifierError> {
    let annotations = pod.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(NOTIFIERS_ANNOTATION)) else {
        return Ok(NotifiersByContainer::new());
    };
    let notifiers = parse_annotation(text).map_err(|error| located(text, &error))?;
    let errors = rules::annotation_errors(&reduced(pod, text));
    match errors.first() {
        None => Ok(notifiers),
        Some(first) => Err(broken(first, errors.total() - 1)),
    }
}

/// What the rules look at.
fn reduced(pod: &Pod, text: &str) -> Value {
    let containers = |list: &[Container]| -> Value {
        let container = |it: &Container| {
            let sidecar = it.restart_policy == Some(RestartPolicy::Always);
            json!({
                "name": it.name,
                "notifiers": it.notifiers,
                "restartPolicy": sidecar.then_some("Always"),
            })
        };
        list.iter().map(container).collect()
    };
    json!({
        "metadata": {"annotations": {NOTIFIERS_ANNOTATION: text}},
        "spec": {
            "os": {"name": pod.spec.os.as_ref().and_then(|os| os.name.as_deref())},
            "containers": containers(&pod.spec.containers),
            "initContainers": containers(&pod.spec.init_containers),
            "ephemeralContainers": pod.spec.other.get("ephemeralContainers"),
        },
    })
}

fn broken(first: &FieldError, further: usize) -> NotifierError {
    let mut problem = first.body();
    if further > 0 {
        problem.push_str(&format!(" (and {further} more)"));
    }
    invalid(first.field.clone(), problem)
}

fn invalid(field: String, mut problem: String) -> NotifierError {
    if problem.len() > LONGEST_PROBLEM {
        let end = (0..=LONGEST_PROBLEM).rfind(|at| problem.is_char_boundary(*at));
        problem.truncate(end.unwrap_or_default());
        problem.push_str("...");
    }
    NotifierError::Invalid { field, problem }
}

fn at() -> Path {
    Path::new("metadata")
        .child("annotations")
        .key(NOTIFIERS_ANNOTATION)
}

/// Where in a text that cannot be read the reason is.
fn located(text: &str, error: &NotifierError) -> NotifierError {
    if let NotifierError::UnknownField {
        container,
        index,
        field,
    } = error
    {
        let path = at().key(container).index(*index).child(field);
        return invalid(path.to_string(), "unknown field".to_owned());
    }
    let (path, problem) = culprit(text).unwrap_or_else(|| {
        let why =
            std::error::Error::source(error).map_or_else(|| error.to_string(), |it| it.to_string());
        let problem =
            format!("must be a JSON object from container name to list of notifiers: {why}");
        (at(), problem)
    });
    invalid(path.to_string(), problem)
}

/// The smallest part that is of the wrong type. Each part is tried on its own: positions in the text
/// say nothing to somebody who reads a pod as YAML.
fn culprit(text: &str) -> Option<(Path, String)> {
    let containers: ContainerMap<Value> = serde_json::from_str(text).ok()?;
    for (container, list) in containers.0 {
        let path = at().key(&container);
        let Value::Array(notifiers) = list else {
            return Some((path, "must be a list of notifiers".to_owned()));
        };
        for (i, notifier) in notifiers.into_iter().enumerate() {
            let path = path.index(i);
            let Err(error) = serde_json::from_value::<ContainerNotifier>(notifier.clone()) else {
                continue;
            };
            return Some(
                wrong_field(&path, &notifier).unwrap_or_else(|| (path, error.to_string())),
            );
        }
    }
    None
}

fn wrong_field(path: &Path, notifier: &Value) -> Option<(Path, String)> {
    for (key, value) in notifier.as_object()? {
        let mut alone = json!({"name": "", "handler": {}});
        alone[key] = value.clone();
        let Err(error) = serde_json::from_value::<ContainerNotifier>(alone) else {
            continue;
        };
        let path = path.child(key);
        let inner = value.as_object().filter(|_| key == "handler");
        for (kind, value) in inner.into_iter().flatten() {
            let alone = json!({ kind: value });
            if let Err(error) = serde_json::from_value::<ContainerNotifierHandler>(alone) {
                return Some((path.child(kind), error.to_string()));
            }
        }
        return Some((path, error.to_string()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "metadata.annotations[apps.k8s.io/notifiers]";

    /// A pod as a stock API server keeps it: whatever the annotation says.
    fn pod(annotation: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "db", "annotations": {NOTIFIERS_ANNOTATION: annotation}},
            "spec": {
                "containers": [{"name": "main"}, {"name": "logs"}],
                "initContainers": [{"name": "setup"},
                                   {"name": "proxy", "restartPolicy": "Always"}],
                "ephemeralContainers": [{"name": "debug", "image": "i"}],
            },
        }))
        .unwrap()
    }

    fn said(annotation: &str) -> String {
        let pod = pod(annotation);
        let said = pod.declarations("lock").unwrap_err().to_string();
        assert_eq!(pod.notifiers("logs").unwrap_err().to_string(), said);
        assert_eq!(pod.declares("other").unwrap_err().to_string(), said);
        said
    }

    /// One good notifier of another container stands beside each: it is not used either.
    #[test]
    fn one_thing_wrong_makes_the_whole_annotation_an_error_that_names_the_field() {
        let good = r#"{"name": "lock", "handler": {"signal": "SIGHUP"}}"#;
        for (notifier, field, problem) in [
            (
                r#"{"name": "lock", "handler": {"signal": "HUP"}}"#,
                ".handler.signal",
                "unknown signal \"HUP\"",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": 1}}"#,
                ".handler.signal",
                "invalid type: integer `1`",
            ),
            (
                r#"{"name": "lock", "handler": {"exec": {"command": "ls"}}}"#,
                ".handler.exec",
                "invalid type: string \"ls\"",
            ),
            (
                r#"{"name": "lock", "handler": {"exec": {}}}"#,
                ".handler.exec.command",
                "Required value",
            ),
            (
                r#"{"name": "lock", "handler": {}}"#,
                ".handler",
                "Required value: must specify a handler type",
            ),
            (
                r#"{"name": "lock", "handler": []}"#,
                ".handler",
                "invalid type",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": "SIGHUP", "exec": {"command": ["a"]}}}"#,
                ".handler.signal",
                "Forbidden",
            ),
            (r#"{"name": "lock"}"#, "", "missing field `handler`"),
            (
                r#"{"handler": {"signal": "SIGHUP"}}"#,
                "",
                "missing field `name`",
            ),
            (
                r#"{"name": "", "handler": {"signal": "SIGHUP"}}"#,
                ".name",
                "Required value",
            ),
            (
                r#"{"name": "a b", "handler": {"signal": "SIGHUP"}}"#,
                ".name",
                "Invalid value: \"a b\": name part must",
            ),
            (
                r#"{"name": "k8s.io/lock", "handler": {"signal": "SIGHUP"}}"#,
                ".name",
                "Invalid value: \"k8s.io/lock\": names with the prefix",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": "SIGHUP"}, "timeoutSeconds": 0}"#,
                ".timeoutSeconds",
                "Invalid value: 0: must be greater",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": "SIGHUP"}, "timeoutSeconds": "5"}"#,
                ".timeoutSeconds",
                "invalid type: string \"5\"",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": "SIGHUP"}, "timeout": 5}"#,
                ".timeout",
                "unknown field",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": "SIGHUP"}, "undo": "unlock"}"#,
                ".undo",
                "Not found: \"unlock\"",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": "SIGHUP"}, "probe": {}}"#,
                ".probe",
                "Required value: must specify a handler type",
            ),
            (
                r#"{"name": "lock", "handler": {"signal": "SIGHUP"}, "output": "All"}"#,
                ".output",
                "unknown variant `All`",
            ),
            ("5", "", "invalid type: integer `5`"),
        ] {
            let said = said(&format!(r#"{{"logs": [{good}], "main": [{notifier}]}}"#));
            let expected = format!("{AT}[main][0]{field}: {problem}");
            assert!(said.starts_with(&expected), "{notifier}: {said}");
        }
    }

    #[test]
    fn containers_that_cannot_have_notifiers_are_named() {
        let good = r#"[{"name": "lock", "handler": {"signal": "SIGHUP"}}]"#;
        for (container, problem) in [
            ("man", "Not found: \"man\""),
            ("setup", "Forbidden: may not be set for init containers"),
            (
                "debug",
                "Forbidden: cannot be set for an Ephemeral Container",
            ),
        ] {
            let said = said(&format!(r#"{{"main": {good}, "{container}": {good}}}"#));
            assert!(
                said.starts_with(&format!("{AT}[{container}]: {problem}")),
                "{said}"
            );
        }
        let both = pod(&format!(r#"{{"main": {good}, "proxy": {good}}}"#));
        assert_eq!(both.declarations("lock").unwrap().len(), 2);
    }

    #[test]
    fn a_text_that_is_no_object_of_lists_is_an_error() {
        for (text, field, problem) in [
            ("", "", "must be a JSON object"),
            ("nonsense", "", "must be a JSON object"),
            ("[]", "", "must be a JSON object"),
            (
                r#"{"main": [], "main": []}"#,
                "",
                "must be a JSON object from container name to list of notifiers: duplicate field \"main\"",
            ),
            (r#"{"main": {}}"#, "[main]", "must be a list of notifiers"),
        ] {
            let said = said(text);
            assert!(
                said.starts_with(&format!("{AT}{field}: {problem}")),
                "{said}"
            );
        }
        let twice = r#"{"name": "lock", "handler": {"signal": "SIGHUP"}}"#;
        assert_eq!(
            said(&format!(r#"{{"main": [{twice}, {twice}, {twice}]}}"#)),
            format!("{AT}[main][1].name: Duplicate value: \"lock\" (and 1 more)")
        );
    }

    #[test]
    fn a_long_problem_is_cut() {
        let name = "\u{e9}".repeat(2000);
        let text =
            format!(r#"{{"main": [{{"name": "{name}", "handler": {{"signal": "SIGHUP"}}}}]}}"#);
        let said = said(&text);
        assert!(said.ends_with("...") && said.len() < 1200, "{}", said.len());
    }

    #[test]
    fn windows_knows_two_signals() {
        let mut pod = pod(r#"{"main": [{"name": "lock", "handler": {"signal": "SIGHUP"}}]}"#);
        assert!(pod.declares("lock").unwrap());
        pod.spec.os = serde_json::from_value(json!({"name": "windows"})).unwrap();
        pod.declares("lock").unwrap_err();
    }
}
