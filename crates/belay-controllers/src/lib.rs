//! The product's reconcile loops. They speak only to a `kube::Client` and cannot tell the embedded
//! server from a stock one.
//!
//! ```text
//!  watch podnotifications --> Tracker (who is due when) --due--> read again --decide--> write
//!  watch node leases -------> heartbeats per node ------------------'          (resourceVersion)
//! ```
//!
//! Two long-running tasks. [`expiry::run`] ends what nobody will end: a PodNotification that no
//! agent claimed before its deadline, one whose node was lost after the claim, and, where its spec
//! asks for it, one that finished long enough ago to be collected. [`fanout::run`] carries out
//! Notifications: one PodNotification for each pod.
//!
//! **Invariant:** every write carries the resource version of the object the decision was made on,
//! so a claim or a result that comes at the same moment wins.
//!
//! **Invariant:** nothing is expired early. A late verdict costs a moment; an early one would
//! contradict an agent that still may start.

mod event;
pub mod expiry;
pub mod fanout;
