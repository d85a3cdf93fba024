//! Implements the ports of actions and pods: the `process` runtime, which needs nothing installed,
//! and containers that a kubelet runs on a CRI runtime.
//!
//! ```text
//!   agent ── PodRuntime (start, list, wait, kill_tree, remove) ──┐
//!   engine ─ Target (start, find, signal, wait) ─────────────────┤
//!                                                                v
//!                                             ProcessRuntime, stateless: everything it knows is in
//!                                               <dir>/bin/belay-shim-<hash>
//!                                               <dir>/containers/<id>/               one shim each
//!                                               <dir>/containers/<id>/execs/<attempt>/
//!
//!   agent ── RecordedPods (recorded_pod) ────────────────────────┐
//!   engine ─ Target (start, find, signal, wait) ─────────────────┤
//!                                                                v
//!                                             CriRuntime ── CRI, containerd's tasks ──> containerd
//!                                               <dir>/bin/belay-shim-<hash>
//!                                               <dir>/cri/<id>/execs/<attempt>/
//! ```
//!
//! A container of the process runtime is a process tree on the host file system. Nothing is
//! isolated: a workload sees and may do what its user may, `image` is recorded and not used.
//!
//! **Invariant:** neither runtime has anything in memory that a new agent would miss. Containers
//! and execs live under shims; killing the agent changes nothing for them, and the next one sees
//! exactly what it did. The process runtime has no tasks; the CRI runtime has one per exec that is
//! under way, which keeps its deadline.
//!
//! **Invariant:** a directory under `containers` or `execs` of the process runtime appears complete
//! and locked, and disappears whole. On the boot of its container, an attempt without a directory
//! never started.
//!
//! **Invariant:** signals go through a pidfd whose process has the recorded start time and boot, or
//! through containerd by the container's ID; either way to one incarnation.

mod binary;
mod blocking;
mod containers;
mod cri;
mod identity;
mod pod;
mod pods_exec;
mod process;
mod readiness;
mod report;

pub use containers::{Containers, RecordedContainer, RecordedPod, RecordedPods};
pub use cri::CriRuntime;
pub use pod::{
    ContainerConfig, ContainerState, ContainerStatus, Exit, ExitReason, PodRuntime, RuntimeError,
};
pub use pods_exec::{ApiPod, PodsExec};
pub use process::ProcessRuntime;
