//! What it means when containerd refuses to start an exec or a container.

use tonic::{Code, Status};

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

/// Reads the answer to a start.
pub(crate) fn read(status: &Status) -> Refusal {
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
        assert_eq!(&read(&Status::new(code, message)), expected, "{message}");
    }

    fn command(message: &str) -> Refusal {
        Refusal::Command {
            message: format!("the command cannot be started: {message}"),
        }
    }

    #[test]
    fn the_useful_end_of_a_long_message_is_kept() {
        let start = "OCI runtime exec failed: exec failed: unable to start container process: ";
        for end in [
            r#"exec: "nope": executable file not found in $PATH"#,
            r#"exec: "/etc/passwd": permission denied"#,
            r#"chdir to cwd ("/gone") set in config.json failed: no such file or directory"#,
        ] {
            check(
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
