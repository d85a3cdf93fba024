//! Measures Belay beside the raw cost of the same work, in one run, and writes a page about it.
//!
//! Every section starts its own instance of the release build, measures, and returns its part of
//! the page. A figure stands beside what it is compared with, measured in the same section: on the
//! same machine, in the same minute, with the same noise.

mod burst;
mod clients;
mod cluster;
mod crowded;
mod delivery;
mod finished;
mod fleet;
mod hooks;
mod instant;
mod machine;
mod memory;
mod pods;
mod raw;
mod recovery;
mod requests;
mod samples;
mod watches;
mod writes;

use std::{fs, future::Future, path::PathBuf, pin::Pin};

use anyhow::Context;
use clap::Parser;

#[derive(Debug, Parser)]
struct Arguments {
    /// Only the sections whose name contains this, each with the day of the run below it
    #[arg(long)]
    only: Option<String>,
    /// Where to write the page; without it, it is only printed
    #[arg(long)]
    page: Option<PathBuf>,
}

/// Makes one part of the page, as Markdown.
type Section = fn() -> Pin<Box<dyn Future<Output = anyhow::Result<String>>>>;

/// Divides the size of the largest loads, to see in a minute whether a section works. Figures of
/// such a run mean nothing.
const SCALE_VARIABLE: &str = "BELAY_BENCH_SCALE";

/// How large a load is in this run; at least one.
fn scaled(count: usize) -> anyhow::Result<usize> {
    let divisor = match std::env::var(SCALE_VARIABLE) {
        Ok(text) => text
            .parse::<usize>()
            .with_context(|| format!("{SCALE_VARIABLE}={text} is no number"))?,
        Err(_) => 1,
    };
    Ok((count / divisor.max(1)).max(1))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    anyhow::ensure!(
        arguments.page.is_none() || std::env::var_os(SCALE_VARIABLE).is_none(),
        "a page is not written from a run with {SCALE_VARIABLE}; unset it"
    );
    let sections: [(&str, Section); 12] = [
        ("writes", || Box::pin(writes::measure())),
        ("memory", || Box::pin(memory::measure())),
        ("pods", || Box::pin(pods::measure())),
        ("delivery", || Box::pin(delivery::measure())),
        ("burst", || Box::pin(burst::measure())),
        ("cluster", || Box::pin(cluster::measure())),
        ("fleet", || Box::pin(fleet::measure())),
        ("hooks", || Box::pin(hooks::measure())),
        ("finished", || Box::pin(finished::measure())),
        ("crowded", || Box::pin(crowded::measure())),
        ("recovery", || Box::pin(recovery::measure())),
        ("watches", || Box::pin(watches::measure())),
    ];
    let mut page = format!(
        "# Benchmarks\n\n\
         Written by `cargo xtask bench` (release build; `cargo xtask bench --only NAME` runs one \
         section). Figures of one run on one machine; each stands beside the raw cost of the same \
         work in the same section.\n\n{}",
        machine::describe()
    );
    let names = sections.map(|(name, _)| name).join(", ");
    let wanted = arguments.only.as_deref().unwrap_or_default();
    let chosen = sections
        .into_iter()
        .filter(|(name, _)| name.contains(wanted));
    let chosen: Vec<_> = chosen.collect();
    anyhow::ensure!(
        !chosen.is_empty(),
        "no section has {wanted:?} in its name; there are {names}"
    );
    for (name, section) in chosen {
        eprintln!("measuring {name}");
        let mut part = section().await?;
        if arguments.only.is_some() {
            // Who puts it into a page of another day puts this there, too.
            part.push_str(&format!("\nMeasured alone, on {}.\n", machine::date()));
        }
        println!("{part}");
        page.push('\n');
        page.push_str(&part);
    }
    if let Some(path) = arguments.page {
        fs::write(&path, page)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
