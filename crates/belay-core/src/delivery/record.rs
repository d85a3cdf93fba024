//! What is written down: the journal's record, outcomes, and what a result write says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{First, Verdict};

/// The ID of one attempt, the same for everybody who knows the notification.
pub fn attempt_id(notification_uid: &str, container: &str, attempt: u32) -> String {
    format!("{notification_uid}.{container}.{attempt}")
}

/// What one container's part came to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Start of the newest attempt, milliseconds since the epoch; `None` when nothing was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<i64>,
    /// When the outcome was known, milliseconds since the epoch.
    pub finished: i64,
    /// The end of what the handler wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// For a signal: whether the process had a handler for it when it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_handled: Option<bool>,
}

impl Outcome {
    /// An outcome without any process behind it.
    pub fn unstarted(verdict: Verdict, now: i64) -> Self {
        Outcome {
            verdict,
            started: None,
            finished: now,
            output: String::new(),
            signal_handled: None,
        }
    }
}

/// One container in a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The incarnation; `None` when the container was not running at the time of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Whether the runtime remembers attempts of this action (an exec, not a signal).
    pub traceable: bool,
    /// Whether a probe decides after the handler, so that the handler's success is not the whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probed: bool,
    /// Number of the newest attempt, from 1.
    pub attempt: u32,
    /// Where attempts are repeated: when the first one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<First>,
    /// Where attempts are repeated: what the newest one that failed came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Box<Outcome>>,
    /// What it came to, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

impl Entry {
    /// A first attempt, planned.
    pub fn planned(container_id: Option<String>, traceable: bool) -> Self {
        Entry {
            container_id,
            traceable,
            probed: false,
            attempt: 1,
            first: None,
            failed: None,
            outcome: None,
        }
    }
}

/// What the journal keeps of a notification, and what a claim says of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The pod.
    pub pod_uid: String,
    /// Its containers that declare the notifier, by name.
    pub entries: BTreeMap<String, Entry>,
}

impl Record {
    /// Takes over what `older` knows about the same incarnations: outcomes and attempts made.
    pub(super) fn merge(mut self, older: &Record) -> Self {
        if self.pod_uid != older.pod_uid {
            return self;
        }
        for (name, entry) in &mut self.entries {
            if let Some(known) = older.entries.get(name)
                && known.container_id == entry.container_id
            {
                let told = std::mem::replace(entry, known.clone());
                if entry.outcome.is_none() {
                    entry.attempt = entry.attempt.max(told.attempt);
                    entry.first = entry.first.or(told.first);
                    entry.outcome = told.outcome;
                }
            }
        }
        self
    }
}

/// What the result write says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Conclusion {
    /// Every container has its outcome.
    Ran(Record),
    /// Nothing was run, for one reason that concerns the whole pod.
    Refused(Verdict),
    /// No container declares the notifier.
    NothingDeclared,
}

impl Conclusion {
    /// Whether the notification succeeded: all containers did, or there was nothing to do.
    pub fn succeeded(&self) -> bool {
        match self {
            Conclusion::Ran(record) => record.entries.values().all(|entry| {
                entry
                    .outcome
                    .as_ref()
                    .is_some_and(|o| o.verdict.succeeded())
            }),
            Conclusion::Refused(verdict) => verdict.succeeded(),
            Conclusion::NothingDeclared => true,
        }
    }

    /// Type and message of the notification's own error: that of the first container that failed.
    pub fn error(&self) -> Option<(&'static str, String)> {
        match self {
            Conclusion::Ran(record) => record.entries.iter().find_map(|(name, entry)| {
                let verdict = &entry.outcome.as_ref()?.verdict;
                Some((
                    verdict.error_type()?,
                    format!("container \"{name}\": {}", verdict.message()),
                ))
            }),
            Conclusion::Refused(verdict) => Some((verdict.error_type()?, verdict.message())),
            Conclusion::NothingDeclared => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(verdicts: &[(&str, Verdict)]) -> Record {
        Record {
            pod_uid: "p".into(),
            entries: verdicts
                .iter()
                .map(|(name, verdict)| {
                    let mut entry = Entry::planned(Some("c1".into()), true);
                    entry.outcome = Some(Outcome::unstarted(verdict.clone(), 5));
                    ((*name).to_owned(), entry)
                })
                .collect(),
        }
    }

    #[test]
    fn a_notification_is_successful_only_if_all_its_containers_are() {
        let good = Conclusion::Ran(record(&[
            ("a", Verdict::Succeeded),
            ("b", Verdict::Succeeded),
        ]));
        assert!(good.succeeded() && good.error().is_none());
        let bad = Conclusion::Ran(record(&[
            ("a", Verdict::Succeeded),
            ("b", Verdict::Exited { code: 2 }),
        ]));
        assert!(!bad.succeeded());
        let (kind, message) = bad.error().unwrap();
        assert_eq!(kind, "HandlerFailed");
        assert_eq!(message, "container \"b\": the handler exited with code 2");
    }

    #[test]
    fn a_record_survives_the_way_through_json() {
        let mut written = record(&[
            (
                "a",
                Verdict::TimedOut {
                    seconds: 3,
                    survivors: vec!["1 (x)".into()],
                },
            ),
            ("b", Verdict::Succeeded),
        ]);
        written
            .entries
            .insert("c".into(), Entry::planned(None, false));
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), written);
    }

    #[test]
    fn merging_keeps_what_is_known_of_the_same_incarnation_only() {
        let older = record(&[("a", Verdict::Succeeded), ("b", Verdict::Succeeded)]);
        let mut newer = older.clone();
        for entry in newer.entries.values_mut() {
            entry.outcome = None;
        }
        newer.entries.get_mut("b").unwrap().container_id = Some("c2".into());
        let merged = newer.merge(&older);
        assert!(merged.entries["a"].outcome.is_some());
        assert!(merged.entries["b"].outcome.is_none());
    }

    #[test]
    fn attempt_ids_differ_by_notification_container_and_number() {
        let ids: std::collections::BTreeSet<_> =
            [("u", "a", 1), ("u", "a", 2), ("u", "b", 1), ("v", "a", 1)]
                .map(|(uid, container, n)| attempt_id(uid, container, n))
                .into();
        assert_eq!(ids.len(), 4);
    }
}
