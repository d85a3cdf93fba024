//! The names of the admission policies that guard Belay's objects on a stock cluster.
//!
//! `belay manifests` prints them; an executor looks for them before it acts.

/// Who creates a notification may trigger the notifier it names.
pub const NOTIFY: &str = "belay-notify";
/// The notifiers annotation of a pod stays as it was created.
pub const ANNOTATION: &str = "belay-annotation";
/// Status is written by the controller, and by an agent for its own node.
pub const STATUS: &str = "belay-status";

/// All of them. Each has a binding of the same name.
pub const ALL: [&str; 3] = [NOTIFY, ANNOTATION, STATUS];
