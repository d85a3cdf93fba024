//! Implements the ports of actions and pods. This far: the `process` runtime, which needs nothing
//! installed.
//!
//! ```text
//!   agent ── PodRuntime (start, list, wait, kill_tree, remove) ──┐
//!   engine ─ Target (start, find, signal, wait) ─────────────────┤
//!                                                                v
//!                                             ProcessRuntime, stateless: everything it knows is in
//!                                               <dir>/bin/belay-shim-<hash>
//!                                               <dir>/containers/<id>/               one shim each
//!                                               <dir>/containers/<id>/execs/<attempt>/
//! ```
//!
//! A container is a process tree on the host file system. Nothing is isolated: a workload sees and
//! may do what its user may, `image` is recorded and not used.
//!
//! **Invariant:** the runtime has no tasks, and nothing in memory that a new agent would miss.
//! Containers and execs live under their shims; killing the agent changes nothing for them, and
//! the next one sees exactly what it did.
//!
//! **Invariant:** a directory under `containers` or `execs` appears complete and locked, and
//! disappears whole. On the boot of its container, an attempt without a directory never started.
//!
//! **Invariant:** signals go through a pidfd whose process has the recorded start time and boot.

mod containers;
mod pod;
mod pods_exec;
mod process;

pub use containers::{Containers, RecordedContainer, RecordedPod, RecordedPods};
pub use pod::{
    ContainerConfig, ContainerState, ContainerStatus, Exit, ExitReason, PodRuntime, RuntimeError,
};
pub use pods_exec::{ApiPod, PodsExec};
pub use process::ProcessRuntime;
