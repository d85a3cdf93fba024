//! `cargo xtask bench`: builds for release and lets the measuring program write its page.

use anyhow::Context;

use crate::{parts, workspace};

pub(crate) fn run(only: Option<&str>) -> anyhow::Result<()> {
    let root = workspace::root()?;
    for what in parts::debian() {
        eprintln!("missing: {what}");
    }
    let environment = parts::kubernetes().unwrap_or_else(|error| {
        eprintln!("missing: a real Kubernetes, so nothing is compared with it: {error:#}");
        Vec::new()
    });
    let cargo = |arguments: &[&str]| -> anyhow::Result<()> {
        let status = workspace::cargo()
            .current_dir(&root)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
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
