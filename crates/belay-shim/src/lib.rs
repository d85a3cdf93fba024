//! Supervises one container, exec or session of the process runtime. Containers and execs outlive
//! whoever started it; a session ends with it.
//!
//! ```text
//!   agent ──spawns──> belay-shim ──fork, exec──> first process ──> ... (everything it starts)
//!     │  socket pair     │  subreaper, flock on `lock`, PDEATHSIG on the first process
//!     └──────────────────┘
//!          started / exit / kill          one directory per instance:
//!                                           spec      what to run             (agent)
//!                                           lock      held while a shim lives (agent, then shim)
//!                                           starting  the point of no return  (shim)
//!                                           started | start-error | exit      (shim)
//!                                           control   socket for a later agent (shim)
//! ```
//!
//! The program is one thread around `poll`, with the standard library and libc and nothing else;
//! it allocates a few kilobytes and keeps them. The library half holds what the agent must
//! understand as well: the record format, the instance's files, the reading of `/proc`, and the
//! killing of everything that belongs to an instance.
//!
//! **Invariant:** the lock is taken by the agent before the instance's directory becomes visible
//! and is handed to the shim as an open file, so that a directory whose lock is free has no shim,
//! neither alive nor on its way up.
//!
//! **Invariant:** nothing of the workload has run before `starting` exists.
//!
//! **Invariant:** the exec's deadline is kept here, in boot time; it holds with the agent dead.
//!
//! **Invariant:** a session that still runs when the agent lets go of it, or dies, is killed with
//! all it started. Its directory goes with its shim.
//!
//! **Invariant:** no exec and no session begins once its container's `ending` mark is set (see [`gate`]).

pub mod clock;
pub mod collect;
pub mod control;
pub mod gate;
pub mod instance;
pub mod kill;
mod log;
pub mod mounts;
mod output;
mod pause;
mod phase;
pub mod proc;
pub mod record;
pub mod rotation;
mod session;
pub mod spawn;
pub mod spec;
mod supervise;
#[allow(unsafe_code)]
pub mod sys;
mod tail;

pub use supervise::main;
