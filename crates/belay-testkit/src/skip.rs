//! What a test prints when a facility it needs is missing.

use std::io::Write;

/// Says that the calling test did nothing, and why; `cargo xtask test` counts it.
///
/// It is written to the stream itself, because libtest swallows what passing tests print.
pub fn skip(why: &str) {
    let test = std::thread::current()
        .name()
        .unwrap_or("unnamed")
        .to_owned();
    let line = format!("SKIPPED: {test}: {why}\n");
    // A closed stdout leaves nobody to tell.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
