//! What a stock control plane would do for the embedded server. It runs only inside `belay up`
//! and `belay server`; on a cluster the real scheduler does this work.
//!
//! ```text
//!  watch nodes --.
//!                +--> Ledger (pods, nodes) --plan--> [Bind | Refuse] --> binding, status, event
//!  watch pods  --'         ^                               |
//!                          '----- what was bound is -------'
//!                                 counted at once
//! ```
//!
//! Five long-running tasks: [`binder::run`]; [`daemonsets::run`], which keeps one pod of each daemon
//! set on each node that should have one; [`namespaces::run`], which empties namespaces that are
//! being deleted; [`nodes::run`], which tells when a node has gone silent; [`owners::run`], which
//! deletes what belongs to something that is gone.
//!
//! **Invariant:** the only way to the server is a `kube::Client`; nothing here knows whose server
//! it is.
//!
//! **Invariant:** where a pod goes is a pure function of the pod, the nodes and the number of pods
//! on each ([`choose::choose`]); the driver makes no choice of its own.
//!
//! **Invariant:** what a daemon set needs is a pure function of it, the nodes and its pods
//! ([`daemonsets::decide`]). Its pod on a node has one possible name, so a node never gets a second.

pub mod binder;
pub mod choose;
pub mod daemonsets;
mod event;
pub mod ledger;
pub mod namespaces;
pub mod nodes;
pub mod owners;
