//! `cargo xtask test`: set-up, one `cargo test` over the workspace, one summary.
//!
//! A few tests that fail are tried once more, alone. One that passes then is told as flaky, by its
//! name: a machine that stood still must not hide what a thousand others say, and somebody should
//! look at what could not bear it.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{ExitStatus, Stdio},
};

use anyhow::Context;

use crate::{kubectl, parts, summary::Summary, workspace};

/// Runs the tests; an error is what makes the exit code non-zero.
pub(crate) fn run(kubernetes: bool, chosen: &[String]) -> anyhow::Result<()> {
    let mut missing = parts::debian();
    let mut environment = Vec::new();
    if kubernetes {
        match parts::kubernetes() {
            Ok(found) => environment = found,
            Err(error) => missing.push(format!("a real Kubernetes: {error:#}")),
        }
    }
    let kubectl = match kubectl::obtain() {
        Ok(path) => {
            eprintln!("kubectl: {}", path.display());
            Some(path)
        }
        Err(error) => {
            missing.push(format!("kubectl: {error:#}"));
            None
        }
    };

    let binary = if chosen.is_empty() {
        Some(build()?)
    } else {
        None
    };
    let tests = Tests {
        chosen,
        environment,
        binary,
        kubectl,
    };
    let (mut summary, status) = tests.run(&[])?;
    let mut good = status.success();
    let names = summary.to_be_tried_again();
    if !names.is_empty() {
        println!("\ntrying again, alone: {}\n", names.join(", "));
        let (again, status) = tests.run(&names)?;
        good = status.success();
        summary.tried_again(&again);
    }

    println!();
    for what in missing {
        println!("missing: {what}");
    }
    println!("{}", summary.report());
    anyhow::ensure!(!summary.failed(), "some tests failed");
    anyhow::ensure!(good, "cargo test ended with an error; see its output above");
    Ok(())
}

/// What is run, and with what.
struct Tests<'a> {
    chosen: &'a [String],
    environment: Vec<(&'static str, PathBuf)>,
    binary: Option<PathBuf>,
    kubectl: Option<PathBuf>,
}

impl Tests<'_> {
    /// Runs all of them, or those with exactly these names.
    fn run(&self, names: &[String]) -> anyhow::Result<(Summary, ExitStatus)> {
        let mut cargo = workspace::cargo();
        cargo
            .current_dir(workspace::root()?)
            .args(["test", "--no-fail-fast"]);
        if self.chosen.is_empty() {
            cargo.arg("--workspace");
        } else {
            cargo.args(self.chosen);
        }
        cargo.args(["--", "--show-output"]);
        if !names.is_empty() {
            cargo.arg("--exact").args(names);
        }
        // Where an error of a test was made is told by its text; a page of frames hides it.
        cargo.env("RUST_LIB_BACKTRACE", "0");
        if let Some(binary) = &self.binary {
            cargo.env("BELAY_BINARY", binary);
        }
        match &self.kubectl {
            Some(path) => cargo.env("BELAY_KUBECTL", path),
            None => cargo.env_remove("BELAY_KUBECTL"),
        };
        cargo.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut running = cargo
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start cargo test")?;
        let output = running.stdout.take().context("cargo test has no output")?;

        let mut summary = Summary::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if summary.take(&line) {
                println!("{line}");
            }
        }
        summary.end();
        Ok((summary, running.wait()?))
    }
}

/// Builds all test binaries, and with them the program itself, whose own tests need it. End-to-end
/// tests use that one rather than building it once more with its own set of features.
fn build() -> anyhow::Result<PathBuf> {
    let status = workspace::cargo()
        .current_dir(workspace::root()?)
        .args(["test", "--workspace", "--no-run"])
        .status()
        .context("cannot run cargo")?;
    anyhow::ensure!(status.success(), "the tests do not build");
    let binary = workspace::target_dir()?.join("debug/belay");
    anyhow::ensure!(binary.is_file(), "cargo built no {}", binary.display());
    Ok(binary)
}
