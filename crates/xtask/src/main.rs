//! What a contributor runs: set-up, tests and benchmarks.
//!
//! Everything here uses what an ordinary Debian machine has or can install. A tool that is
//! missing is installed when that is allowed (root on Debian), and named otherwise; a test that
//! cannot run without it is counted as skipped, never as passed.

mod bench;
mod debian;
mod go;
mod kubectl;
mod modules;
mod parts;
mod summary;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Set-up, tests and benchmarks of Belay")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set up what the tests need, then run all of them
    ///
    /// Example: cargo xtask test -- -p e2e --test embedded_crash
    Test {
        /// Also the part that needs a real Kubernetes, which is built from its Go modules when the
        /// cache does not have it
        #[arg(long)]
        kubernetes: bool,
        /// Passed on to `cargo test`; without any, the whole workspace is tested
        #[arg(last = true)]
        cargo: Vec<String>,
    },
    /// Measure a release build and write docs/benchmarks.md
    ///
    /// Example: cargo xtask bench --only delivery
    Bench {
        /// Run only the measurements whose name contains this, and leave the page alone
        #[arg(long)]
        only: Option<String>,
    },
    /// Find or build a stock kubectl and print its path
    Kubectl,
    /// Build Kubernetes, etcd and a current containerd from their Go modules into the cache
    ///
    /// Prints a line of shell that lets `cargo test -p e2e --test kubernetes_...` find them.
    Kubernetes,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Test { kubernetes, cargo } => test::run(kubernetes, &cargo),
        Command::Bench { only } => bench::run(only.as_deref()),
        Command::Kubectl => {
            println!("{}", kubectl::obtain()?.display());
            Ok(())
        }
        Command::Kubernetes => {
            let export: Vec<_> = parts::kubernetes()?
                .into_iter()
                .map(|(name, value)| format!("{name}={}", value.display()))
                .collect();
            println!("export {}", export.join(" "));
            Ok(())
        }
    }
}
