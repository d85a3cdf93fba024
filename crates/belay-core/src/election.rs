//! Election: which of several replicas acts, by a lease that one of them holds.
//!
//! # States
//!
//! ```text
//!             free, released, or unchanged for its own duration
//!   Candidate ------------------------------------------------> writes it: Create or Take
//!      ^  ^                                                            |
//!      |  | refused, no answer                                         | landed
//!      |  '------------------------------------------------------------|
//!      |                                                               v
//!      '---- not renewed for Times::renew, or another holder ---- Leader { until }
//!                                                                      | landed: until moves on
//!                                                                      '--- Renew, every Times::retry
//! ```
//!
//! # Guarantees
//!
//! **Invariant:** at most one replica leads at any moment, as long as nobody deletes the lease and
//! clocks run alike. A leader counts its time from the moment it *sent* the write that made or kept
//! it leader, and for [`Times::renew`] only; a candidate counts from the moment it *saw* the newest
//! write, and waits the whole [`Times::lease`]. The difference is the time a leader has to stop.
//!
//! No wall clock is compared between machines: the times in the lease are for people. What counts is
//! how long its version stays the same, by each replica's own clock.
//!
//! # Caveats
//!
//! A lease that somebody deletes may be made anew by a candidate while the leader still acts. What a
//! leader writes must be conditional on what it read, with or without a lease.

use crate::clock::LocalMillis;

/// How long things take, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Times {
    /// How long a lease is good for after it was last seen to change.
    pub lease: i64,
    /// How long a leader leads after the last renewal that it knows to have landed.
    pub renew: i64,
    /// Time between two looks, and between two renewals.
    pub retry: i64,
}

impl Default for Times {
    fn default() -> Self {
        Times {
            lease: 10_000,
            renew: 6_000,
            retry: 2_000,
        }
    }
}

/// The lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Who holds it; `None` when it was released.
    pub holder: Option<String>,
    /// Changes with every write.
    pub version: String,
    /// For how long its holder may be silent, in milliseconds.
    pub duration: i64,
}

/// What to do next about the lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Read it.
    Read,
    /// Make it, with ourselves as its holder: there is none.
    Create,
    /// Become its holder, if it still has this version.
    Take {
        /// As it was read.
        version: String,
    },
    /// Stay its holder, if it still has this version.
    Renew {
        /// As it was read or written.
        version: String,
    },
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The lease as it is; `None` when there is none.
    Seen(Option<Seen>),
    /// The write landed.
    Written {
        /// The version it made.
        version: String,
    },
    /// The write did not land: the lease is not as we thought.
    Refused,
    /// Nobody knows whether it did.
    Unknown,
}

/// Whether this replica leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Standing {
    Candidate,
    Leader { until: LocalMillis },
}

/// One replica's part in the election.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Election {
    identity: String,
    times: Times,
    standing: Standing,
    /// The newest version seen, and since when it has not changed.
    unchanged: Option<(String, LocalMillis)>,
    step: Step,
    at: LocalMillis,
}

impl Election {
    /// A replica that has just started. Its identity is its own: no other replica, and no earlier
    /// process of this one, has the same.
    pub fn new(identity: impl Into<String>, times: Times, now: LocalMillis) -> Self {
        Election {
            identity: identity.into(),
            times,
            standing: Standing::Candidate,
            unchanged: None,
            step: Step::Read,
            at: now,
        }
    }

    /// What to do next, and not before when.
    pub fn step(&self) -> (&Step, LocalMillis) {
        (&self.step, self.at)
    }

    /// Until when this replica leads, if it does.
    pub fn leads(&self, now: LocalMillis) -> Option<LocalMillis> {
        match self.standing {
            Standing::Leader { until } if now < until => Some(until),
            Standing::Leader { .. } | Standing::Candidate => None,
        }
    }

    /// The version to release on a clean shutdown, if this replica leads.
    pub fn release(&self, now: LocalMillis) -> Option<&str> {
        self.leads(now)?;
        self.unchanged.as_ref().map(|(version, _)| version.as_str())
    }

    /// Time has passed. A leader that could not renew in time leads no more.
    pub fn tick(&mut self, now: LocalMillis) {
        if let Standing::Leader { until } = self.standing
            && now >= until
        {
            self.standing = Standing::Candidate;
            self.next(Step::Read, now);
        }
    }

    /// Takes in what came of the present step, which was sent at `sent`.
    pub fn answered(&mut self, sent: LocalMillis, answer: Answer, now: LocalMillis) {
        self.tick(now);
        match answer {
            Answer::Seen(None) => self.next(Step::Create, now),
            Answer::Seen(Some(seen)) => self.seen(seen, now),
            Answer::Written { version } => {
                self.unchanged = Some((version.clone(), now));
                let until = sent.saturating_add(self.times.renew);
                if now < until {
                    self.standing = Standing::Leader { until };
                    self.next(
                        Step::Renew { version },
                        sent.saturating_add(self.times.retry),
                    );
                } else {
                    // It landed so late that the time is over before it began.
                    self.next(Step::Read, now);
                }
            }
            Answer::Refused => self.next(Step::Read, now),
            Answer::Unknown => {
                // A leader has little time; a candidate has all of it.
                let pause = match self.standing {
                    Standing::Leader { .. } => self.times.retry / 4,
                    Standing::Candidate => self.times.retry,
                };
                self.next(Step::Read, now.saturating_add(pause));
            }
        }
    }

    fn seen(&mut self, seen: Seen, now: LocalMillis) {
        let since = match &self.unchanged {
            Some((version, since)) if *version == seen.version => *since,
            _ => now,
        };
        let version = seen.version;
        self.unchanged = Some((version.clone(), since));
        match (seen.holder, self.standing) {
            // Ours, by a write whose answer was lost.
            (Some(holder), _) if holder == self.identity => self.next(Step::Renew { version }, now),
            (Some(_), Standing::Leader { .. }) => {
                self.standing = Standing::Candidate;
                self.next(Step::Read, now.saturating_add(self.times.retry));
            }
            (Some(_), Standing::Candidate) => {
                let free = since.saturating_add(seen.duration);
                if now >= free {
                    self.next(Step::Take { version }, now);
                } else {
                    let look = now.saturating_add(self.times.retry).min(free);
                    self.next(Step::Read, look);
                }
            }
            (None, _) => {
                self.standing = Standing::Candidate;
                self.next(Step::Take { version }, now);
            }
        }
    }

    fn next(&mut self, step: Step, at: LocalMillis) {
        self.step = step;
        self.at = at;
    }
}

#[cfg(test)]
mod tests;
