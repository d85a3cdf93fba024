//! Names of the admission policies that guard a stock cluster. Each has a binding of the same name.
//!
//! `belay manifests` prints them; companion agents and controllers look for them when they start.

/// Creating a notification needs the verb `notify` on its notifier.
pub const NOTIFY: &str = "belay-notify";
/// Creating a hook needs the verb `run` on its action, saying what an action does needs `pods/exec`,
/// and podactions are the controller's.
pub const HOOK: &str = "belay-hook";
/// An agent writes status only where its own node is named.
pub const STATUS: &str = "belay-status";
/// The notifiers annotation of a pod is immutable.
pub const ANNOTATION: &str = "belay-annotation";
/// An agent writes no other lease than its node's.
pub const LEASE: &str = "belay-lease";

/// Those of every installation.
pub const ALWAYS: &[&str] = &[NOTIFY, HOOK, STATUS, ANNOTATION];
/// Those of an installation with agents.
pub const WITH_AGENTS: &[&str] = &[NOTIFY, HOOK, STATUS, ANNOTATION, LEASE];
