//! What really happened, held against what was done and said.

use belay_core::delivery::{Conclusion, Verdict};

use super::{Attempt, World};

impl World {
    /// Which promise a start breaks, if any.
    pub(super) fn judge_start(&self, container: &str, attempt: u32) -> Option<&'static str> {
        let journalled = self
            .journal
            .as_ref()
            .and_then(|journal| journal.entries.get(container))
            .is_some_and(|entry| {
                entry.attempt == attempt
                    && entry.container_id == Some(self.id(container))
                    && entry.outcome.is_none()
            });
        let known = self.attempts.iter().any(|((name, _), state)| {
            name == container
                && match state {
                    Attempt::Running => true,
                    // A failure that is known is tried again where that is asked for.
                    Attempt::Ended(outcome) => !self.retries || outcome.verdict.succeeded(),
                    Attempt::Lost => false,
                }
        });
        let ran_out = if self.retries {
            &self.succeeded
        } else {
            &self.ran_out
        };
        if self.late {
            Some("started after the deadline")
        } else if !self.claim_landed {
            Some("started before the claim was durable")
        } else if !journalled {
            Some("started before the journal had it")
        } else if known || (self.containers[container] && ran_out.contains(container)) {
            Some("started although an earlier outcome could be known")
        } else if self.recorded.contains(container) {
            Some("started although a result was recorded")
        } else if self.object.foreign {
            Some("started on another's claim")
        } else {
            None
        }
    }

    /// Compares what the result says with what really happened.
    pub(super) fn check_result(&mut self, conclusion: &Conclusion) {
        let runs = |container: &str| self.runs.get(container).copied().unwrap_or(0);
        let broken = match conclusion {
            Conclusion::Refused(Verdict::Expired | Verdict::Cancelled { .. }) => self
                .runs
                .values()
                .any(|runs| *runs > 0)
                .then_some("refused, but something ran"),
            Conclusion::Refused(_) | Conclusion::NothingDeclared => {
                Some("refused without a reason")
            }
            Conclusion::Ran(record) => record.entries.iter().find_map(|(container, entry)| {
                let runs = runs(container);
                let Some(outcome) = &entry.outcome else {
                    return Some("a container without outcome");
                };
                let traceable = self.containers[container];
                match &outcome.verdict {
                    Verdict::Succeeded if !self.succeeded.contains(container) => {
                        Some("succeeded without a run that did")
                    }
                    Verdict::Expired if runs > 0 => Some("expired, but it ran"),
                    Verdict::ContainerRestarted {
                        may_have_run: false,
                    } if runs > 0 => Some("restarted before the start, but it ran"),
                    Verdict::Interrupted if traceable && runs == 0 => {
                        Some("interrupted, but provably never started")
                    }
                    _ if traceable && entry.attempt != runs => {
                        Some("attempts differ from the runs")
                    }
                    _ => None,
                }
            }),
        };
        self.broken_result = self.broken_result.or(broken);
    }
}
