//! How many files this process may have open.
//!
//! The usual limit, 1024, is for the sake of programs that know no higher numbers. A role of ours
//! that serves many runs into it, and then cannot even look at processes. What it starts gets the
//! limit that it was started with itself: such a program may be among that.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// The limit that was found before it was raised.
static FOUND: OnceLock<u64> = OnceLock::new();

/// Raises the limit of this process as far as it may.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let Some(found) = limit.current.filter(|_| limit.current != limit.maximum) else {
        return;
    };
    // First: what is started meanwhile must know.
    FOUND.get_or_init(|| found);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "the limit of open files stays at {found}");
    }
}

/// The limit for what this process starts, if it is not its own.
pub(crate) fn for_workloads() -> Option<u64> {
    FOUND.get().copied()
}
