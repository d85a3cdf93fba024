//! Waiting for a descriptor: the one place with unsafe code.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Returns when there is something to read.
pub(crate) async fn readable(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: an owned descriptor is open, and stays the same one, until it is dropped; nobody
    // but the `AsyncFd` has it.
    let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    let watched = watched.map_err(|error| error.into_parts().1)?;
    watched.readable().await.map(drop)
}
