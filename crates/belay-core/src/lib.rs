//! The pure machines of Belay: what is decided, without anything that acts.
//!
//! ```text
//!   facts, events, numbers for time                new state, effects as values
//!   -------------------------------->  machine  -------------------------------->  a thin driver
//!                                                                                   carries out
//! ```
//!
//! - [`delivery`]: one PodNotification or PodAction on the node that runs it: claim, journal,
//!   attempts, retries, result.
//! - [`fanout`]: one Notification: whom to notify next, and what came of those who were.
//! - [`resolve`]: what a PodNotification comes to in the write that creates it.
//! - [`termination`]: the end of one pod, or of one container: hooks, signals, grace, SIGKILL.
//! - [`probing`]: what follows from the results of a container's probes.
//! - [`clock`]: how late it may be on the server, seen from a node.
//! - [`election`]: which of several controllers acts.
//!
//! **Invariant:** no runtime, no Kubernetes client and no clock among the dependencies. Time comes
//! in as plain numbers, so every machine can be run through all its states in a test.
//!
//! **Invariant:** a machine never waits and never fails. What it cannot use in its present state it
//! ignores, because events may come late and twice.

pub mod clock;
pub mod delivery;
pub mod election;
pub mod fanout;
pub mod probing;
pub mod resolve;
pub mod termination;
