//! The agent against the real embedded server and the real process runtime.

mod notifications;
mod pods;
mod rig;
