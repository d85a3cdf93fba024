//! Termination: the end of one pod, or of one container, exactly as its spec says.
//!
//! # States
//!
//! One machine stops one pod, and each of its containers walks the same way by itself. A container
//! that a probe kills, or whose `postStart` failed, is a machine with one container.
//!
//! ```text
//!                       begin
//!                         |----------------------- does not run ------------------------.
//!        no preStop, or   |   preStop, and the grace is not 0                            |
//!        it is skipped    |                                                              |
//!          .--------------+--------.                                                     |
//!          |                       v                                                     |
//!          |         Hook: Running, Sleeping, Finding --- the container exits ---------->|
//!          |                       |                      (the hook is cancelled)        |
//!          |                       | ended, failed, lost, or cancelled:                  |
//!          |                       | the grace is over                                   |
//!          '---------------------->|                                                     |
//!                                  | sidecars                                            |
//!                                  v                                                     |
//!                     Turn: until those it serves ended, ------ exits ------------------>|
//!                           or its own grace is over                                     |
//!                                  |                                                     |
//!                                  v                                                     |
//!                     Signalled: Asked -> Sent        --------- exits ------------------>|
//!                                 ^ |                                                    |
//!                                 | v failed, tried again                                |
//!                                Failed                                                  |
//!                                  | the time is over                                    |
//!                                  v                                                     v
//!      any of them, grace 0 --> Killing ------------------- killed ------------------> Over
//! ```
//!
//! # Expected flow
//!
//! ```text
//!   let (mut machine, effects) = begin(plan, under_way, now);    // or resume(record, ...)
//!   carry out the effects, in order, each in a task of its own
//!   loop {
//!       event = an answer, an exit, a new grace, or Tick at machine.next_wake()
//!       (machine, effects) = machine.next(event, now);
//!       carry out the effects; Done is the last one
//!   }
//! ```
//!
//! # Edges
//!
//! - *Grace.* The delete request's, else the killing probe's, else the pod's, else 30 s
//!   ([`Sources::effective`]). It counts from the beginning of the termination, may shrink while the
//!   containers stop, and never grows. It covers hook, wait and signal together, to the millisecond.
//! - *begin to Hook.* The hooks of all containers start at once, those of sidecars too. None is run in
//!   a container that does not run, and none with a grace of 0. `sleep` is a timer of the machine;
//!   while its gate is off it is skipped, and that is not an error.
//! - *Hook to Over*: a hook without its container is pointless and is cancelled at once.
//! - *Hook onwards.* A hook that fails is told, and the container's end goes on. A hook that is still
//!   running when the grace is over, shrunken or not, is cancelled; its death is not waited for before
//!   the signal, but the termination is not over while it lives ([`Leg::stray_hook`]).
//! - *Turn to Signalled.* A sidecar serves all main containers and everything that is declared after
//!   it, so sidecars end in reverse order. A container counts as ended for this when its first process
//!   is gone, or when all that could be killed of it is dead.
//! - *Signalled.* The signal goes out once for one incarnation, unless the runtime says that it could
//!   not deliver it, or cannot be asked any more because the agent died. Then it is sent again. Where
//!   the container is faster than the runtime's word that it was sent, that word is still told.
//! - *Signalled to Killing*, when the grace is over; if anything took time before the signal (a hook,
//!   a wait, the agent's absence), not earlier than [`FLOOR`] after it.
//! - *anything to Killing*, when the grace is or becomes 0: no hook, no signal, no floor.
//! - *Killing to Over*: only with the runtime's word about what survived, which is told. That the first
//!   process is gone frees the sidecars that waited for it, and not more.
//!
//! # Failure points
//!
//! The record is the machine's state. It is written with the first effect that follows from it. A
//! hook waits until it is on disk, as long as that takes: it is somebody's code and runs at most once.
//! A stop signal waits for it, too, so that no crash gives anybody the grace again, but only for a
//! moment: the end of a container must not depend on a disk. What [`resume`] does with each remainder:
//!
//! | found in the record | may have happened | then |
//! |---|---|---|
//! | nothing | nothing that matters | `begin`, with the whole grace |
//! | a hook, exec | never started, runs, ended, lost | the runtime is asked; it runs only if it provably never did |
//! | a hook, HTTP or TCP | sent or not, its answer is lost | told, not repeated, on to the signal |
//! | a sleep | time has passed | what is left of it |
//! | a cancelled hook, exec | it lives or not | cancelled again |
//! | a wait | those it serves have ended, or not | the runtime's list of running containers tells |
//! | a signal, not confirmed | sent or not | sent again |
//! | a signal, confirmed | | not sent again; what is left of the grace |
//! | SIGKILL | all dead, some, none | killed again |
//! | another boot | | over: nothing runs of what ran before |
//!
//! **Why a signal may come twice.** Sending and recording are two steps, and a crash fits between
//! them. Recorded first, a crash loses the signal: the container learns nothing of its end and is
//! killed after a grace that it could not use. Recorded afterwards, a crash repeats it: most programs
//! take a second stop signal for the first, some for an order to hurry. The second is the smaller
//! harm, and the window is as small as the journal is fast.
//!
//! A container whose signal is not confirmed, or whose hook was cut, after its grace ended while no
//! agent was there, still gets its signal and [`FLOOR`] after it.
//!
//! # Guarantees
//!
//! **Invariant:** nothing is signalled, and no hook is started, after its container exited.
//! **Invariant:** every container is killed at the latest at its grace and [`FLOOR`]; whatever a hook,
//! the runtime or the journal does or does not answer.
//! **Invariant:** a restart moves no deadline.
//!
//! # Assumptions
//!
//! The driver keeps each effect's promise: a hook that was cancelled is reported ended sometime, a
//! kill is repeated until the runtime has done it. It sends [`Event::Tick`] at
//! [`Termination::next_wake`], and no event about another incarnation.

mod grace;
mod hook;
mod leg;
mod machine;
mod notice;
mod plan;
mod port;
mod record;
mod resume;
mod signal;

use std::time::Duration;

pub use grace::{DEFAULT_GRACE, Sources, shrunk};
pub use machine::{Termination, begin};
pub use notice::Notice;
pub use plan::{Cause, Container, Early, Hook, Plan, Role};
pub use port::{Effect, Event, HookResult, HookTrace, News};
pub use record::{
    Did, Doing, End, HookEnd, KillReason, Leg, Record, Sending, Skipped, Stage, Step,
};
pub use resume::resume;

/// What a container has at least after its stop signal when something used up its grace before.
pub const FLOOR: Duration = Duration::from_secs(2);

/// The first and the longest pause before a stop signal that failed is tried again.
const SIGNAL_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
