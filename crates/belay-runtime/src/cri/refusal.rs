//! What it means when containerd refuses to start an exec or a container.
//!
//! What containerd tells of an exec is the last complaint in a log that all execs of the container
//! share. If the low-level runtime died without a word, that is another's. So nothing is believed
//! before somebody has looked.

use belay_action::AttemptId;
use tonic::{Code, Status};
use tracing::warn;

use super::client::{CallError, ExecName};
use super::hunt;
use crate::blocking::blocking;

/// Nothing of the command has run, whichever it is but the last.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The container has ended.
    NotRunning,
    /// The command cannot be started: its own fault, and its outcome.
    Command { message: String },
    /// Its output could not be arranged for: the node's fault.
    Node { message: String },
    /// Whether anything has run is not known.
    Unclear,
}

/// What became of the start of `program`. Whatever runs of one that is refused is killed.
pub(crate) async fn of_exec(
    error: &CallError,
    name: &ExecName,
    attempt: &AttemptId,
    program: &str,
) -> Refusal {
    let refusal = match error {
        CallError::Answer(status) => read(status, program),
        CallError::Away { .. } | CallError::Silent { .. } => Refusal::Unclear,
    };
    let Refusal::Command { message } = refusal else {
        return refusal;
    };
    let (container, of) = (name.container.clone(), attempt.to_string());
    match blocking(move || hunt::kill_found(&container, &of, None)).await {
        Ok(bag) if !bag.any => return Refusal::Command { message },
        Ok(bag) => warn!(%attempt, message, survivors = ?bag.survivors, "refused, and it ran"),
        Err(error) => warn!(%attempt, message, %error, "refused, and it may run"),
    }
    Refusal::Unclear
}

/// Reads the answer to the start of `program`.
fn read(status: &Status, program: &str) -> Refusal {
    let message = status.message();
    let stopped = ["stopped container", "that has stopped", "not running"];
    if status.code() == Code::NotFound || stopped.iter().any(|words| message.contains(words)) {
        return Refusal::NotRunning;
    }
    if message.contains("failed to create init process I/O") {
        return Refusal::Node {
            message: message.to_owned(),
        };
    }
    // The low-level runtime was killed, or died without a word: the command may run all the same.
    let died = [
        "did not terminate successfully",
        "unable to retrieve OCI runtime error",
    ];
    if died.iter().any(|words| message.contains(words)) {
        return Refusal::Unclear;
    }
    if let Some((_, rest)) = message.split_once("OCI runtime exec failed: ") {
        if rest.contains("exec: \"") && !rest.contains(&format!("exec: {program:?}")) {
            return Refusal::Unclear;
        }
        return Refusal::Command {
            message: useful_end(rest),
        };
    }
    Refusal::Unclear
}

/// Reads the answer to the start of a container: one word and a message if it is the container's
/// own fault, `None` if it is the node's.
pub(crate) fn of_container(message: &str) -> Option<(&'static str, String)> {
    let (_, rest) = ["OCI runtime create failed: ", "OCI runtime start failed: "]
        .iter()
        .find_map(|words| message.split_once(words))?;
    let words = [
        ("executable file not found", "CommandNotFound"),
        ("chdir to cwd", "BadWorkingDirectory"),
        ("mkdir cwd", "BadWorkingDirectory"),
        ("unable to find user", "BadUser"),
        ("unable to find group", "BadUser"),
    ];
    let found = words.iter().find(|(words, _)| rest.contains(words));
    let reason = match found {
        Some((_, reason)) => reason,
        None if !rest.contains("exec: ") => "SystemError",
        None if rest.contains("no such file or directory") => "CommandNotFound",
        None => "CommandNotExecutable",
    };
    Some((reason, useful_end(rest)))
}

/// The part of a low-level runtime's message that is about the command.
fn useful_end(message: &str) -> String {
    let message = ["unable to start container process: ", "exec failed: "]
        .iter()
        .find_map(|prefix| message.rsplit_once(prefix).map(|(_, rest)| rest))
        .unwrap_or(message);
    let message = message
        .strip_prefix("error during container init: ")
        .unwrap_or(message);
    let message = message.strip_suffix(": unknown").unwrap_or(message);
    format!("the command cannot be started: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: Code, message: &str, expected: &Refusal) {
        check_of("nope", code, message, expected);
    }

    fn check_of(program: &str, code: Code, message: &str, expected: &Refusal) {
        let status = Status::new(code, message);
        assert_eq!(&read(&status, program), expected, "{message}");
    }

    fn command(message: &str) -> Refusal {
        Refusal::Command {
            message: format!("the command cannot be started: {message}"),
        }
    }

    #[test]
    fn the_useful_end_of_a_long_message_is_kept() {
        let start = "OCI runtime exec failed: exec failed: unable to start container process: ";
        for (program, end) in [
            (
                "nope",
                r#"exec: "nope": executable file not found in $PATH"#,
            ),
            ("/etc/passwd", r#"exec: "/etc/passwd": permission denied"#),
            (
                r#"a "b""#,
                r#"exec: "a \"b\"": executable file not found in $PATH"#,
            ),
            (
                "nope",
                r#"chdir to cwd ("/gone") set in config.json failed: no such file or directory"#,
            ),
        ] {
            check_of(
                program,
                Code::Unknown,
                &format!("{start}{end}: unknown"),
                &command(end),
            );
        }
        let other = "OCI runtime exec failed: something new";
        check(Code::Unknown, other, &command("something new"));
    }

    #[test]
    fn a_container_that_does_not_start_says_in_a_word_why() {
        let start = "failed to create containerd task: failed to create shim task: OCI runtime create \
                     failed: runc create failed: unable to start container process: ";
        for (end, expected) in [
            (
                r#"exec: "no": executable file not found in $PATH"#,
                "CommandNotFound",
            ),
            (
                r#"exec: "/no": stat /no: no such file or directory"#,
                "CommandNotFound",
            ),
            (r#"exec: "/etc": is a directory"#, "CommandNotExecutable"),
            (
                r#"exec: "/etc/passwd": permission denied"#,
                "CommandNotExecutable",
            ),
            (
                r#"error during container init: chdir to cwd ("/x") set in config.json failed: x"#,
                "BadWorkingDirectory",
            ),
            (
                "error mounting x to rootfs at y: no such file or directory",
                "SystemError",
            ),
        ] {
            let (reason, message) = of_container(&format!("{start}{end}: unknown")).unwrap();
            assert_eq!(reason, expected, "{end}");
            assert!(!message.contains("OCI runtime"), "{message}");
        }
        assert_eq!(of_container("sandbox container \"x\" is not running"), None);
    }

    #[test]
    fn a_container_that_is_gone_is_not_the_commands_fault() {
        for message in [
            "OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown",
            "OCI runtime exec failed: exec failed: cannot exec a container that has stopped: unknown",
        ] {
            check(Code::Unknown, message, &Refusal::NotRunning);
        }
        check(
            Code::NotFound,
            "no running task found",
            &Refusal::NotRunning,
        );
    }

    #[test]
    fn a_complaint_about_another_command_says_nothing_of_this_one() {
        let message = "OCI runtime exec failed: exec failed: unable to start container process: \
                       exec: \"nope\": executable file not found in $PATH: unknown";
        for program in ["sleep", "/bin/nope", "nop"] {
            check_of(program, Code::Unknown, message, &Refusal::Unclear);
        }
    }

    #[test]
    fn what_nobody_knows_is_not_called_harmless() {
        for message in [
            "failed to retrieve OCI runtime exec pid: EOF",
            "OCI runtime exec failed: runc did not terminate successfully: signal: killed: unknown",
            "OCI runtime exec failed: unable to retrieve OCI runtime error (open log.json: no such \
             file or directory): runc did not terminate successfully: exit status 255: unknown",
        ] {
            check(Code::Unknown, message, &Refusal::Unclear);
        }
    }
}
