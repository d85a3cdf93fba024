//! Types, defaults, validation, feature gates, signals and CRDs of Belay's API. No I/O, no clock.
//!
//! ```text
//!  bytes --decode--> Value --rules: prepare, default, drop, validate--> Value (stored)
//!             ^ schema                                                    |
//!             '----- one compiled schema per kind drives decode,          v
//!                    patches and OpenAPI                 typed windows: Pod, PodNotification
//! ```
//!
//! **Invariant:** what a user wrote is kept. Typed windows carry what they do not know along, and
//! the server stores the decoded JSON, never a re-serialised window.

pub mod crd;
pub mod decode;
pub mod fanout;
pub mod field;
pub mod gates;
pub mod hook;
pub mod lenient;
pub mod metadata;
pub mod notification;
pub mod pod;
pub mod policies;
pub mod protobuf;
pub mod quantity;
pub mod rbac;
pub mod reasons;
pub mod rules;
pub mod schema;
pub mod selector;
pub mod signal;
mod text;

/// The API group of Belay's kinds: the group of the ExecutionHook design.
pub const GROUP: &str = "apps.k8s.io";
/// The version of Belay's kinds.
pub const VERSION: &str = "v1alpha1";

/// Where Belay's own objects are on a cluster: its roles, the leases of its agents and of its
/// controller.
pub const SYSTEM_NAMESPACE: &str = "belay-system";
/// Name of the controller's lease, and of the controller as an executor of notifications.
pub const CONTROLLER: &str = "belay-controller";
