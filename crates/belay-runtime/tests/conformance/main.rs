//! What every runtime does alike: containers, execs and signals, on real parts.
//!
//! One suite for plain processes and for every containerd there is. A test runs on all of them,
//! one after the other; what only one of them can do is in files of its own.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod bench;
#[path = "../fixture/mod.rs"]
mod fixture;

mod execs;
mod life;
mod signals;
