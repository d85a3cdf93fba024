//! Builders and real instances for tests.
//!
//! ```text
//!   test ──> Instance ──spawns──> belay up | server | agent   (the real program)
//!     │         │                        │
//!     │         └── Reaper (a shell that waits for the test to end, however it ends)
//!     │
//!     ├──> Rest      HTTPS as any client speaks it, with or without credentials
//!     ├──> Kubectl   a stock kubectl
//!     └──> Containerd ──spawns──> a private containerd; Kubelet runs pods on it
//! ```
//!
//! **Invariant:** nothing here reaches into the product. Tests see what a user sees: the program,
//! its files, its API.
//!
//! **Invariant:** a test leaves no process behind, even when it is killed. The [`reaper`] ends
//! whatever runs on behalf of an instance as soon as the test's end of a pipe is closed.

pub mod binary;
pub mod build;
pub mod cluster;
pub mod containerd;
pub mod doorman;
pub mod ends;
pub mod hooks;
pub mod image;
pub mod instance;
pub mod kubectl;
pub mod kubelet;
pub mod ports;
pub mod processes;
pub mod reaper;
pub mod rest;
pub mod skip;
pub mod source;
pub mod stage;
pub mod terminal;
pub mod wait;

pub use build::{
    FanoutBuilder, Handler, NotificationBuilder, PodBuilder, exec, fanout, notification, pod,
    signal,
};
pub use cluster::{Cluster, Part};
pub use containerd::Containerd;
pub use doorman::Doorman;
pub use hooks::{HOOK_ACTIONS, HOOKS, POD_ACTIONS, hook, hook_action, hooked, shell};
pub use instance::{Builder, Instance};
pub use kubectl::Kubectl;
pub use kubelet::{ContainerSpec, Kubelet, PodSpec};
pub use rest::{Reply, Rest};
pub use stage::Stage;
pub use terminal::Terminal;
pub use wait::{eventually, eventually_within, lines, until_file};

/// Where pods of the namespace that tests use are found.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// Where its config maps are found.
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Where its events are found.
pub const EVENTS: &str = "/api/v1/namespaces/default/events";
/// Where its notifications are found.
pub const NOTIFICATIONS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/podnotifications";
/// Where its notifications of many pods are found.
pub const FANOUTS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/notifications";
