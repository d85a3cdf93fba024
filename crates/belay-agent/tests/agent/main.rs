//! The agent against the real embedded server and the real process runtime.

// Helpers of tests fail like tests do.
#![allow(clippy::unwrap_used)]
// `json!` literals read better without a borrow.
#![allow(clippy::needless_pass_by_value)]

mod changes;
mod companion;
mod container_probes;
mod hanging;
mod messages;
mod notifications;
mod objects;
mod pods;
mod post_start;
mod probes;
mod rig;
mod terminations;
