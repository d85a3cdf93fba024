//! When a probe is tried, and what its results mean. Pure: all times are counted from the start of
//! the action that is verified.

use std::time::Duration;

/// How often a probe is tried, and what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cadence {
    /// From the end of the handler to the first try.
    pub initial_delay: Duration,
    /// From the start of one try to the start of the next, unless that one lasts longer.
    pub period: Duration,
    /// How long one try may take.
    pub timeout: Duration,
    /// How many tries must succeed in a row; 0 means 1.
    pub success_threshold: u32,
}

/// Where the action stands when its probe's turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Course {
    /// When its handler had ended.
    pub handled: Duration,
    /// Now: with `handled`, unless the agent was restarted in between.
    pub now: Duration,
    /// When its time is over.
    pub end: Duration,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until then.
    Wait {
        until: Duration,
    },
    /// Try, for so long at most, and tell with [`Schedule::tried`].
    Try {
        timeout: Duration,
    },
    Succeeded,
    TimedOut,
}

/// A probe's tries, past and to come.
///
/// Nothing is tried at or after the end of the action's time, and a try under way is cut off there.
/// With one exception, for an agent that comes back from a restart too late: where a try was due in
/// time and nobody was there to make it, one round is made up for. Its tries go on as long as they
/// succeed, and the first that fails ends it. So an action that had its effect is not called failed
/// only because the agent was away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    cadence: Cadence,
    end: Duration,
    /// When the next try is due.
    due: Duration,
    /// Successes in a row, so far.
    successes: u32,
    /// Whether the round that is made up for is under way.
    made_up: bool,
}

impl Schedule {
    pub fn new(cadence: Cadence, course: Course) -> Self {
        let due = course.handled.saturating_add(cadence.initial_delay);
        Schedule {
            cadence: Cadence {
                success_threshold: cadence.success_threshold.max(1),
                ..cadence
            },
            end: course.end,
            due,
            successes: 0,
            made_up: course.now >= course.end && due < course.end,
        }
    }

    pub fn next(&self, now: Duration) -> Step {
        if self.successes >= self.cadence.success_threshold {
            return Step::Succeeded;
        }
        let over = now >= self.end && !self.made_up;
        if over {
            Step::TimedOut
        } else if now < self.due {
            let until = if self.made_up {
                self.due
            } else {
                self.due.min(self.end)
            };
            Step::Wait { until }
        } else if self.made_up {
            Step::Try {
                timeout: self.cadence.timeout,
            }
        } else {
            Step::Try {
                timeout: self.cadence.timeout.min(self.end - now),
            }
        }
    }

    /// Takes the result of a try.
    pub fn tried(&mut self, began: Duration, now: Duration, passed: bool) {
        if passed {
            self.successes += 1;
        } else {
            self.successes = 0;
            self.made_up = false;
        }
        self.due = began.saturating_add(self.cadence.period).max(now);
    }

    /// Successes in a row, and how many are wanted.
    pub fn passed(&self) -> (u32, u32) {
        (self.successes, self.cadence.success_threshold)
    }
}

#[cfg(test)]
mod tests;
