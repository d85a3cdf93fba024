//! Notifiers: named actions that a container declares and a notification triggers.
//!
//! The types are the source of the notifier's schema. Like the rest of the window they carry along
//! what they do not know, so that an agent reads pods written for a newer one; only the annotation,
//! which no schema guards, is read strictly.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use schemars::JsonSchema;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::signal::Signal;

/// Timeout of a notifier that does not name one.
pub const DEFAULT_TIMEOUT_SECONDS: i32 = 1;
/// How long a notifier that holds something may hold it, unless it says otherwise.
pub const DEFAULT_MAX_HOLD_SECONDS: i32 = 60;

/// A named action in a container's spec, triggered on demand by a PodNotification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerNotifier {
    /// Name of the notifier: a valid label key, unique within the container. The prefix
    /// `k8s.io/` is reserved. Immutable.
    pub name: String,

    /// The action to take when a matching PodNotification is observed. It may run more than once,
    /// so it must be idempotent.
    pub handler: ContainerNotifierHandler,

    /// Number of seconds after which the action is stopped and counts as failed. Defaults to 1,
    /// at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,

    /// Verifies that the action had its effect: the notifier has succeeded when the probe does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,

    /// The notifier of the same container that undoes this one. While it has not run, this
    /// notifier holds something, and the node sees to it that it runs. Not carried out yet: a
    /// notifier that sets it is refused when it is triggered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,

    /// How long this notifier may hold before the node releases it by itself. Defaults to 60,
    /// between 1 and 3600. It goes with undo or hold, and is not carried out yet either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold_seconds: Option<i32>,

    /// Keeps the process of an exec handler running after it has succeeded, until it is undone.
    /// Not carried out yet: a notifier that sets it is refused when it is triggered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<NotifierHold>,

    /// How much of the output goes into status, which every viewer can read: `Tail` (the
    /// default) or `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<NotifierOutput>,

    /// What this version does not know.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Map<String, Value>,
}

/// What a notifier does: exactly one of exec and signal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerNotifierHandler {
    /// A command to run inside the container. It is not run in a shell. It has succeeded when it
    /// exits with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<NotifierExec>,

    /// A signal to send to the container's first process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,

    /// What this version does not know.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Map<String, Value>,
}

/// A command to run inside the container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotifierExec {
    /// The command and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,

    /// What this version does not know.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Map<String, Value>,
}

/// How an exec handler that keeps running shows that it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotifierHold {
    /// The line on its output with which the process says that it holds. Without it, the
    /// notifier's probe says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_line: Option<String>,

    /// What this version does not know.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Map<String, Value>,
}

/// How much of a handler's output goes into status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NotifierOutput {
    /// The last 4 KiB.
    #[default]
    Tail,
    /// Nothing.
    None,
}

/// A handler of which exactly one kind is known to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotifierAction {
    Exec(Vec<String>),
    Signal(Signal),
}

impl ContainerNotifier {
    /// How long the action may take, counted from the start of its process.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        let seconds = self.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default().max(1))
    }

    /// What to do.
    ///
    /// # Errors
    ///
    /// When not exactly one handler is set. Validated pods have one; an annotation on a stock
    /// cluster need not.
    pub fn action(&self) -> Result<NotifierAction, NotifierError> {
        match (&self.handler.exec, self.handler.signal) {
            (Some(exec), None) if !exec.command.is_empty() => {
                Ok(NotifierAction::Exec(exec.command.clone()))
            }
            (None, Some(signal)) => Ok(NotifierAction::Signal(signal)),
            _ => Err(NotifierError::Handler {
                notifier: self.name.clone(),
            }),
        }
    }

    /// Whether running this notifier leaves something behind that has to be undone.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.undo.is_some() || self.hold.is_some()
    }
}

/// Why a pod's notifiers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NotifierError {
    #[error(
        "annotation apps.k8s.io/notifiers is not a JSON object from container name to list of notifiers"
    )]
    Annotation(#[source] serde_json::Error),
    #[error("annotation apps.k8s.io/notifiers: unknown field \"{container}[{index}].{field}\"")]
    UnknownField {
        container: String,
        /// Which of the container's notifiers, from 0.
        index: usize,
        /// Path in the notifier.
        field: String,
    },
    /// What a pod's notifiers annotation says breaks a rule.
    #[error("{field}: {problem}")]
    Invalid {
        /// Path of the field in the pod.
        field: String,
        /// What is wrong there.
        problem: String,
    },
    #[error(
        "notifier {notifier:?} must have exactly one handler: `exec` with a command, or `signal`"
    )]
    Handler { notifier: String },
}

/// The value of the notifiers annotation.
pub type NotifiersByContainer = BTreeMap<String, Vec<ContainerNotifier>>;

/// Reads the notifiers annotation strictly: unknown fields, wrong types and keys given twice are
/// errors. Whether the notifiers make sense is not checked here.
///
/// # Errors
///
/// [`NotifierError::Annotation`] with the place and what was expected there.
pub fn parse_annotation(text: &str) -> Result<NotifiersByContainer, NotifierError> {
    let raw: ContainerMap<Value> = serde_json::from_str(text).map_err(NotifierError::Annotation)?;
    let map: ContainerMap<Vec<ContainerNotifier>> =
        serde_json::from_str(text).map_err(NotifierError::Annotation)?;
    for (container, notifiers) in &map.0 {
        for (i, notifier) in notifiers.iter().enumerate() {
            if let Some(field) = notifier.unknown_field(&raw.0[container][i]) {
                return Err(NotifierError::UnknownField {
                    container: container.clone(),
                    index: i,
                    field,
                });
            }
        }
    }
    Ok(map.0)
}

impl ContainerNotifier {
    /// The first field of the JSON this was read from that has no meaning here.
    fn unknown_field(&self, raw: &Value) -> Option<String> {
        let in_exec = self.handler.exec.as_ref().map(|exec| &exec.other);
        let in_hold = self.hold.as_ref().map(|hold| &hold.other);
        [
            ("", Some(&self.other)),
            ("handler.", Some(&self.handler.other)),
            ("handler.exec.", in_exec),
            ("hold.", in_hold),
        ]
        .into_iter()
        .find_map(|(at, other)| Some(format!("{at}{}", other?.keys().next()?)))
        .or_else(|| {
            // The probe is upstream's type and forgets what it does not know: what is missing
            // from it when it is written back was unknown.
            let kept = serde_json::to_value(self.probe.as_ref()?).ok()?;
            dropped(&raw["probe"], &kept).map(|field| format!("probe{field}"))
        })
    }
}

/// The first path in `given` that `kept` lacks.
fn dropped(given: &Value, kept: &Value) -> Option<String> {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            given.iter().find_map(|(key, value)| match kept.get(key) {
                None if value.is_null() => None,
                None => Some(format!(".{key}")),
                Some(kept) => dropped(value, kept).map(|rest| format!(".{key}{rest}")),
            })
        }
        (Value::Array(given), Value::Array(kept)) => given
            .iter()
            .zip(kept)
            .enumerate()
            .find_map(|(i, (given, kept))| dropped(given, kept).map(|rest| format!("[{i}]{rest}"))),
        _ => None,
    }
}

/// A map that refuses a container named twice, of which serde would silently keep the last.
pub(super) struct ContainerMap<T>(pub(super) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ContainerMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = BTreeMap<String, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from container name to list of notifiers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((container, notifiers)) = map.next_entry::<String, _>()? {
                    if entries.contains_key(&container) {
                        return Err(serde::de::Error::custom(format_args!(
                            "duplicate field {container:?}"
                        )));
                    }
                    entries.insert(container, notifiers);
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData)).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match parse_annotation(text).unwrap_err() {
            NotifierError::Annotation(source) => source.to_string(),
            other => other.to_string(),
        }
    }

    #[test]
    fn the_annotation_is_read_strictly() {
        let unknown = |notifier: &str, field: &str| {
            let text = format!(r#"{{"c": [{{"name": "n", {notifier}}}]}}"#);
            let message = format!("annotation apps.k8s.io/notifiers: unknown field {field:?}");
            assert_eq!(refused(&text), message);
        };
        unknown(
            r#""handler": {"signal": "SIGHUP"}, "timeout": 3"#,
            "c[0].timeout",
        );
        unknown(r#""handler": {"exex": {}}"#, "c[0].handler.exex");
        unknown(
            r#""handler": {"exec": {"cmd": []}}"#,
            "c[0].handler.exec.cmd",
        );
        unknown(
            r#""handler": {}, "probe": {"exec": {"command": ["a"], "shell": true}}"#,
            "c[0].probe.exec.shell",
        );
        let twice = r#"{"c": [], "c": []}"#;
        assert!(refused(twice).starts_with("duplicate field \"c\""));
        let field_twice = r#"{"c": [{"name": "n", "name": "m", "handler": {}}]}"#;
        assert!(refused(field_twice).starts_with("duplicate field `name`"));
        let signal = r#"{"c": [{"name": "n", "handler": {"signal": "HUP"}}]}"#;
        assert!(refused(signal).contains("unknown signal \"HUP\""));
        for text in ["", "[]", "null", "{\"c\": {}}", "{\"c\": [1]}", "{} x"] {
            parse_annotation(text).unwrap_err();
        }
        assert!(parse_annotation("{}").unwrap().is_empty());
    }

    #[test]
    fn a_handler_is_exactly_one_of_exec_and_signal() {
        let notifier = |handler: &str| -> ContainerNotifier {
            serde_json::from_str(&format!(r#"{{"name": "n", "handler": {handler}}}"#)).unwrap()
        };
        assert_eq!(
            notifier(r#"{"exec": {"command": ["a", "b"]}}"#)
                .action()
                .unwrap(),
            NotifierAction::Exec(vec!["a".into(), "b".into()])
        );
        for handler in [
            "{}",
            r#"{"exec": {}}"#,
            r#"{"exec": {"command": ["a"]}, "signal": "SIGHUP"}"#,
        ] {
            notifier(handler).action().unwrap_err();
        }
    }
}
