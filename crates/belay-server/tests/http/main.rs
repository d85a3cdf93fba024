//! The server's boundary: what a client sees over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod authority;
mod daemonsets;
mod delete;
mod harness;
mod hooks;
mod lists;
mod rbac;
mod reviews;
mod rubbish;
mod watches;
mod writes;
