//! Implements the ports of actions and pods: the `process` runtime, which needs nothing installed,
//! and a CRI runtime, whose pods are run by the agent or by a kubelet beside it.
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
//!   agent ── Sessions (open): kubectl exec, on both runtimes
//!
//!   agent ── PodRuntime, or beside a kubelet RecordedPods ───────┐
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
//! exactly what it did. The process runtime has one task per session; the CRI runtime has one per
//! session, and one per exec that is under way, which keeps its deadline.
//!
//! **Invariant:** a directory under `containers` or `execs` of the process runtime appears complete
//! and locked, and disappears whole. On the boot of its container, an attempt without a directory
//! never started.
//!
//! **Invariant:** signals go through a pidfd whose process has the recorded start time and boot, or,
//! beside a kubelet, through containerd by the container's ID; either way to one incarnation.

mod binary;
mod blocking;
mod containers;
mod cri;
mod descriptors;
mod identity;
mod pod;
mod pods_exec;
mod process;
mod readiness;
mod report;
mod sessions;

pub use belay_shim::rotation;
pub use containers::{Containers, RecordedContainer, RecordedPod, RecordedPods};
pub use cri::CriRuntime;
pub use descriptors::raise_open_files;
pub use pod::{
    ContainerConfig, ContainerState, ContainerStatus, Dns, Exit, ExitReason, HostPort, Image,
    ImageError, ImageUser, Listed, Mount, PodConfig, PodRuntime, Propagation, Protocol, Pull,
    Resources, RuntimeError, Sandbox, Seccomp, Security,
};
pub use pods_exec::{ApiPod, PodsExec};
pub use process::ProcessRuntime;
pub use sessions::{Session, SessionEnd, SessionError, SessionRequest, Sessions, Size, Streams};
