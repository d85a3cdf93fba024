//! Names of the admission policies that guard a stock cluster. Each has a binding of the same name.
//!
//! `belay manifests` prints them; companion agents and controllers look for them when they start.

/// Creating a notification needs the verb `notify` on its notifier.
pub const NOTIFY: &str = "belay-notify";
/// An agent writes status only where `status.nodeName` is its own node.
pub const STATUS: &str = "belay-status";
/// The notifiers annotation of a pod is immutable.
pub const ANNOTATION: &str = "belay-annotation";

/// All of them.
pub const ALL: [&str; 3] = [NOTIFY, STATUS, ANNOTATION];
