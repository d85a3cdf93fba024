//! The server's boundary: what a client sees over HTTP.

mod authority;
mod delete;
mod harness;
mod lists;
mod rubbish;
mod watches;
mod writes;
