//! Points at which a debug build ends itself, so that tests can crash it exactly there.
//!
//! `BELAY_CRASH_AT=<point>` in the environment chooses one. Release builds do not look.

/// A notification is known and nothing is on its way.
pub(crate) const BEFORE_CLAIM: &str = "agent.before-claim";
/// Claim and journal are durable, nothing has started.
pub(crate) const AFTER_CLAIM: &str = "agent.after-claim";
/// The action runs.
pub(crate) const STARTED: &str = "agent.started";
/// The action has ended and only the runtime knows.
pub(crate) const ENDED: &str = "agent.ended";
/// The outcome is in the journal.
pub(crate) const RESULT_JOURNALLED: &str = "agent.result-journalled";
/// The result is on the server and nothing is forgotten yet.
pub(crate) const AFTER_RESULT: &str = "agent.after-result";

/// The beginning of a termination is in the journal, its hook has not started.
pub(crate) const STOP_JOURNALLED: &str = "agent.stop-journalled";
/// A hook has ended and only the runtime knows.
pub(crate) const HOOK_ENDED: &str = "agent.hook-ended";
/// A stop signal is delivered and only the container knows.
pub(crate) const SIGNAL_SENT: &str = "agent.signal-sent";
/// A container is killed and only the kernel knows.
pub(crate) const KILLED: &str = "agent.killed";
/// The runtime has forgotten a pod that has ended.
pub(crate) const TORN_DOWN: &str = "agent.torn-down";
/// The last status of a pod is reported, its object is about to be deleted.
pub(crate) const BEFORE_DELETION: &str = "agent.before-deletion";

/// Whether this is the point that was chosen.
#[cfg(debug_assertions)]
pub(crate) fn chosen(point: &str) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("BELAY_CRASH_AT").ok());
    chosen.as_deref() == Some(point)
}

/// Ends the process with SIGKILL if this is the chosen point.
#[cfg(debug_assertions)]
pub(crate) fn at(point: &str) {
    if chosen(point) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal is on its way to every thread; nothing more may happen in this one.
        loop {
            std::thread::park();
        }
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn chosen(_point: &str) -> bool {
    false
}

#[cfg(not(debug_assertions))]
pub(crate) fn at(_point: &str) {}
