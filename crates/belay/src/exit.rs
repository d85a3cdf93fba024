//! Exit codes, which are a contract: scripts tell "it failed" from "there was nothing to do".

use std::process::{ExitCode, Termination};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Done,
    /// The action, or the command itself, failed.
    Failed,
    /// The command line was wrong.
    Usage,
    /// Nothing matched what was asked for.
    Nothing,
}

impl Exit {
    /// The number the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Nothing => 3,
        }
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

/// A mistake on the command line that only shows after parsing.
#[derive(Debug)]
pub(crate) struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// An error that ends the command with the code for wrong usage.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(UsageError(message.into()))
}

/// The exit code an error stands for.
pub(crate) fn of_error(error: &anyhow::Error) -> Exit {
    if error.is::<UsageError>() {
        Exit::Usage
    } else {
        Exit::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn codes_are_those_of_the_contract() {
        let codes = [Exit::Done, Exit::Failed, Exit::Usage, Exit::Nothing].map(Exit::code);
        assert_eq!(codes, [0, 1, 2, 3]);
    }

    #[test]
    fn a_usage_error_keeps_its_code_under_added_context() {
        let error = Err::<(), _>(usage("wrong")).context("while reading targets");
        assert_eq!(of_error(&error.unwrap_err()), Exit::Usage);
        assert_eq!(of_error(&anyhow::anyhow!("disk")), Exit::Failed);
    }
}
