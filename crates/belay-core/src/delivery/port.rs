//! What goes into the machine and what comes out of it.

use super::{Conclusion, Entry, Outcome, Record, Retry, Verdict};
use crate::clock::ServerMillis;

/// The object as it was last read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum View {
    /// Assigned to this node, and nobody has claimed it.
    Unclaimed,
    /// Claimed by this node; the claim as the object tells it.
    Ours(Record),
    /// Claimed by another executor.
    Foreign,
    /// It has its result.
    Final,
    /// Being deleted and held back by a finalizer; with our claim, if there is one.
    Deleting(Option<Record>),
    /// No such object, or another one of the same name.
    Gone,
}

/// What a fresh claim would be for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outlook {
    /// These containers declare the notifier.
    Run(Record),
    /// The pod cannot be notified.
    Refuse(Verdict),
    /// No container declares it.
    NothingDeclared,
}

/// All that is known when a notification is first met by this process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The object.
    pub view: View,
    /// The journal's record.
    pub journal: Option<Record>,
    /// What the pod would allow now.
    pub outlook: Outlook,
    /// The deadline by the server's clock.
    pub deadline: ServerMillis,
    /// Whether and how long what failed is tried again.
    pub retry: Option<Retry>,
}

/// What the runtime knows of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Trace {
    /// It provably was not started.
    NeverStarted,
    /// It runs; the driver holds on to it.
    Running,
    /// It ended, with this outcome.
    Ended(Outcome),
    /// It was started, or may have been, and is gone without a trace.
    Lost,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The server acknowledged the claim.
    Claimed,
    /// The server refused the claim; the object as read afterwards.
    ClaimRefused(View),
    /// The journal has everything up to this write on disk.
    Journalled {
        /// The write.
        seq: u32,
    },
    /// The journal could not take the write.
    JournalFailed {
        /// The write.
        seq: u32,
        /// Why.
        message: String,
    },
    /// What the runtime knows of an attempt.
    Found {
        /// The container.
        container: String,
        /// The attempt asked about.
        attempt: u32,
        /// The answer.
        trace: Trace,
        /// Whether the incarnation of the record is the one that runs now.
        same_incarnation: bool,
    },
    /// One of the node's slots is free for this container.
    Slot {
        /// The container.
        container: String,
    },
    /// The runtime refused the start: nothing was run.
    Refused {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
        /// Why.
        verdict: Verdict,
    },
    /// A running attempt ended.
    Ended {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
        /// What it came to.
        outcome: Outcome,
    },
    /// The object changed.
    Seen(View),
    /// Time has passed.
    Tick,
    /// The server acknowledged the result.
    Reported,
    /// The server refused the result; the object as read afterwards.
    ReportRefused(View),
}

/// What is to be done. Every effect that asks for an answer names the event that brings it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Write the claim, conditional on the version last read: `Claimed` or `ClaimRefused`.
    Claim(Record),
    /// Make the journal say this: `Journalled` or `JournalFailed`. A later one replaces an earlier.
    Journal {
        /// Counts the writes.
        seq: u32,
        /// The whole record.
        record: Record,
    },
    /// Ask the runtime: `Found`.
    Find {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
    },
    /// Wait for a slot: `Slot`.
    Queue {
        /// The container.
        container: String,
    },
    /// Start the action now: `Refused`, `Ended`, or `Found` with `Lost`.
    Start {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
    },
    /// Wait for an attempt that was found running: `Ended`, or `Found` with `Lost`.
    Follow {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
    },
    /// Kill the attempt; its `Ended` follows.
    Cancel {
        /// The container.
        container: String,
    },
    /// There is something to tell of what is under way; only where attempts are repeated.
    Progress,
    /// Drop the runtime's record of an attempt that is known to have failed and is followed by
    /// another.
    Discard {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
    },
    /// One line in the audit log.
    Audit {
        /// The container.
        container: String,
        /// Its entry, with the outcome.
        entry: Entry,
    },
    /// Write the result, conditional on the version last read: `Reported` or `ReportRefused`.
    Report(Conclusion),
    /// Drop the journal entry and the runtime's records of these attempts.
    Forget(Option<Record>),
}
