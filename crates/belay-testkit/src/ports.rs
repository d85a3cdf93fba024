//! Ports for what listens in pods, which share the machine's network where they have none of their own.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below those that Linux gives to whoever asks for any, so that none of these is given away between
/// the choice and the use.
const FIRST: u16 = 10_000;
/// Each process of tests has a block of its own.
const BLOCK: u16 = 50;
const BLOCKS: u32 = 440;

/// A port that nobody else uses.
pub fn unique_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let block = u16::try_from(std::process::id() % BLOCKS)?;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(number < BLOCK, "the ports of this process are used up");
        let port = FIRST + block * BLOCK + number;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
}
