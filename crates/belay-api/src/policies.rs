//! Names of the admission policies that guard a stock cluster. Each has a binding of the same name.
//!
//! `belay manifests` prints them; companion agents and controllers look for them when they start.

/// Creating a notification needs the verb `notify` on its notifier.
pub const NOTIFY: &str = "belay-notify";
/// An agent writes status only where `status.nodeName` is its own node.
pub const STATUS: &str = "belay-status";
/// The notifiers annotation of a pod is immutable.
pub const ANNOTATION: &str = "belay-annotation";
/// An agent writes no other lease than its node's.
pub const LEASE: &str = "belay-lease";

/// Those of every installation.
pub const ALWAYS: &[&str] = &[NOTIFY, STATUS, ANNOTATION];
/// Those of an installation with agents.
pub const WITH_AGENTS: &[&str] = &[NOTIFY, STATUS, ANNOTATION, LEASE];
