//! `cargo xtask test`: set-up, one `cargo test` over the workspace, one summary.
//!
//! A few tests that fail are tried once more, alone. One that passes then is told as flaky, by its
//! name: a machine that stood still must not hide what a thousand others say, and somebody should
//! look at what could not bear it.

use std::{
    io::{BufRead, BufReader, IsTerminal, Read},
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
    let (mut summary, end) = tests.run(&[])?;
    let mut good = end.status.success();
    let names = summary.to_be_tried_again();
    if !names.is_empty() {
        println!("\ntrying again, alone: {}\n", names.join(", "));
        let (again, second) = tests.run(&names)?;
        // A binary that failed otherwise than by these tests, when it ended for instance, has not
        // been tried again by that.
        good = second.status.success() && summary.accounts_for(end.failed_targets);
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

/// How `cargo test` ended.
struct End {
    status: ExitStatus,
    /// How many test binaries it says have failed.
    failed_targets: usize,
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
    fn run(&self, names: &[String]) -> anyhow::Result<(Summary, End)> {
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
        // Its errors go through our hands, but look as if they did not.
        if std::io::stderr().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none() {
            cargo.env("CARGO_TERM_COLOR", "always");
        }
        let mut running = cargo
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start cargo test")?;
        let output = running.stdout.take().context("cargo test has no output")?;
        let errors = running.stderr.take().context("cargo test has no errors")?;
        let counting = std::thread::spawn(move || failed_targets(errors));

        let mut summary = Summary::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if summary.take(&line) {
                println!("{line}");
            }
        }
        summary.end();
        let failed_targets = counting
            .join()
            .map_err(|_| anyhow::anyhow!("the errors of cargo test could not be read"))??;
        let end = End {
            status: running.wait()?,
            failed_targets,
        };
        Ok((summary, end))
    }
}

/// Passes on what cargo says, and counts the test binaries of which it says that they failed.
fn failed_targets(errors: impl Read) -> std::io::Result<usize> {
    let mut failed = 0;
    for line in BufReader::new(errors).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        failed += usize::from(line.contains("test failed, to rerun pass `"));
    }
    Ok(failed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binaries_that_cargo_names_as_failed_are_counted() {
        let said = "   Compiling a v0.1.0\n\
             error: test failed, to rerun pass `-p a --lib`\n\
             \u{1b}[1m\u{1b}[91merror\u{1b}[0m: test failed, to rerun pass `-p a --test b`\n\n\
             Caused by:\n  process didn't exit successfully: `/t/b` (signal: 11, SIGSEGV)\n\
             error: doctest failed, to rerun pass `-p a --doc`\n\
             error: 3 targets failed:\n    `-p a --lib`\n    `-p a --test b`\n    `-p a --doc`\n";
        assert_eq!(failed_targets(said.as_bytes()).ok(), Some(3));
        assert_eq!(failed_targets(&b"    Finished\n"[..]).ok(), Some(0));
    }
}
