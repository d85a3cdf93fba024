//! Delivery: one PodNotification, or one PodAction, on the node that runs it.
//!
//! # Durable facts
//!
//! Three places remember, and each may be ahead of the others when an agent comes up:
//!
//! | place | what it can say |
//! |---|---|
//! | the object, on the server ([`View`]) | unclaimed; ours, with container IDs and attempts; another's; final; being deleted; gone |
//! | the agent's journal ([`Record`]) | nothing; per container the incarnation, the newest attempt and, once known, the outcome |
//! | the runtime ([`Trace`]) | per attempt: never started, running, ended with its outcome, lost |
//!
//! Attempt IDs are made from notification UID, container name and attempt number
//! ([`attempt_id`]). Whoever has the object or the journal can therefore ask the runtime; losing one
//! of the two loses nothing.
//!
//! # States
//!
//! ```text
//!                 open(facts)
//!                     |  unclaimed                    ours, journalled
//!                     v                                      |
//!   .---------> Claiming: claim and intent, both ----------. |
//!   | conflict,   |   | on their way to disk, in parallel  | |
//!   '-unclaimed --'   |                                    v v
//!                     | nothing may start          Working, per container:
//!                     |                              Looking   -> what became of the attempt?
//!                     |                              Recording -> a repeated attempt is journalled
//!                     |                              Queued    -> waits for one of the node's slots
//!                     |                              Running   -> started, or followed after a restart
//!                     |                              Done      -> has its outcome
//!                     v                                    |
//!                 Reporting: the result write  <-----------' all done
//!                     |
//!                     v
//!                   Over: journal entry and runtime records forgotten
//! ```
//!
//! Beside the state stands the [`Aim`]: deliver; cancel (the object is being deleted); withdraw (it is
//! gone: cancel and tell nobody but the audit log); abandon (somebody else has ended or claimed it:
//! start nothing, kill nothing, report nothing).
//!
//! # Edges that matter
//!
//! - *Claiming to Working*: only when the server has acknowledged the claim **and** the journal the
//!   intent. The two writes run side by side, the start waits for both.
//! - *Queued to Running*: when a slot is free. Here the deadline is asked one last time; late is
//!   `Expired`.
//! - *Looking to ...*: the table of a restart.
//!
//!   | trace | same incarnation, in time | same incarnation, late | other incarnation |
//!   |---|---|---|---|
//!   | never started | run, same attempt | `Expired` | `ContainerRestarted` |
//!   | running | follow | follow | follow |
//!   | ended | its outcome | its outcome | its outcome |
//!   | lost | run again, next attempt | `Interrupted` | `ContainerRestarted` |
//!
//!   Handler and probe are one attempt: one whose handler has ended and whose probe has not decided
//!   is found running, and followed without running the handler again.
//!
//!   A lost attempt is first looked for under the next number too, because the journal that counted
//!   further may be the thing that was lost. At most [`MAX_ATTEMPTS`] are made: an action that kills
//!   its own supervisor must not be run in a circle until the deadline.
//! - *Running to Looking's table*: the runtime may lose an attempt under a living agent (its shim was
//!   killed); the same table decides.
//! - *Reporting*: repeated until the server has taken it. After a conflict the object decides: still
//!   ours, write again; final by somebody else, accept that; gone, nothing to report.
//!
//! # Failure points
//!
//! A crash may come between any two effects, and an effect that was on its way may or may not have
//! happened. What [`open`] does with each remainder:
//!
//! | crash | found after it | then |
//! |---|---|---|
//! | before claim and intent | unclaimed, no journal | claim |
//! | intent written, claim not | unclaimed, journal | claim; nothing can have started |
//! | claim written, intent not | ours, no journal | write the intent, then look in the runtime |
//! | both written, nothing started | ours, journal, never started | run, if in time |
//! | action running | ours, journal, running | follow |
//! | action ended, not reported | ours, journal, ended | report the real outcome |
//! | outcome journalled, not reported | ours, journal with outcome | report; the runtime is not asked |
//! | reported, not forgotten | final or gone, journal | forget |
//!
//! Signals leave no trace in the runtime: an attempt that the journal or the claim names, without a
//! recorded outcome, counts as lost.
//!
//! # Retrying
//!
//! A notification is never tried again once it has failed. A PodAction is, until its action's time is
//! over, counted from the first start ([`Retry`]): the same machine with two steps more,
//!
//! ```text
//!   Queued --slot--> Stamping --journal--> Running --failed--> Waiting --pause--> Queued ...
//! ```
//!
//! and `Lost` is one more failure that another attempt may mend. The first start is in the journal
//! before anything runs, so every later process stops at the same moment. The deadline is only for
//! what has never been started.
//!
//! # Guarantees
//!
//! **Invariant:** nothing starts before claim and journal are durable, after the deadline, on another
//! incarnation, or while the outcome of an earlier attempt can still be learnt.
//! **Invariant:** a recorded outcome never runs again.
//! **Invariant:** what another executor claimed is never touched.
//!
//! The deadline is `creationTimestamp + deadlineSeconds` by the server's clock. Creation times are
//! whole seconds, rounded down, so the real deadline is never earlier than that; the caller passes
//! the latest time it may be on the server as `now` (see [`crate::clock`]).

mod machine;
mod port;
mod record;
mod retry;
mod verdict;
mod work;

pub use machine::{Aim, Delivery, Intent, Leg, Look, Phase, Step, open};
pub use port::{Effect, Event, Facts, Outlook, Trace, View};
pub use record::{Conclusion, Entry, Outcome, Record, attempt_id};
pub use retry::{First, Now, Retry};
pub use verdict::Verdict;

/// How often one container's action is started at most for one notification.
pub const MAX_ATTEMPTS: u32 = 5;
