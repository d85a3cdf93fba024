//! What the build makes of the files in `proto`.

#![allow(clippy::all, unreachable_pub, missing_debug_implementations)]

include!(concat!(env!("OUT_DIR"), "/protocol.rs"));
