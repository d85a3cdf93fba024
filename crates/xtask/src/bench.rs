//! `cargo xtask bench`: builds for release and lets the measuring program write its page.

use std::process::Command;

use anyhow::Context;

use crate::workspace;

pub(crate) fn run(only: Option<&str>) -> anyhow::Result<()> {
    let root = workspace::root()?;
    let cargo = |arguments: &[&str]| -> anyhow::Result<()> {
        let status = Command::new(workspace::cargo())
            .current_dir(&root)
            .args(arguments)
            .status()
            .context("cannot run cargo")?;
        anyhow::ensure!(status.success(), "cargo {} failed", arguments.join(" "));
        Ok(())
    };
    cargo(&["build", "--release", "-p", "belay"])?;
    let mut measure = vec![
        "run",
        "--release",
        "-p",
        "e2e",
        "--bin",
        "belay-bench",
        "--",
    ];
    match only {
        Some(only) => measure.extend(["--only", only]),
        None => measure.extend(["--page", "docs/benchmarks.md"]),
    }
    cargo(&measure)
}
