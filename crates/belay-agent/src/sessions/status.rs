//! What is said at the end, on the status channel: a `v1.Status`.

use belay_runtime::{SessionEnd, SessionError};
use serde_json::{Value, json};

/// How a command ended.
pub(super) fn of_end(end: &SessionEnd) -> Value {
    match end {
        SessionEnd::Exited(0) => json!({"metadata": {}, "status": "Success"}),
        SessionEnd::Exited(code) => exit(*code),
        SessionEnd::Signaled(signal) => exit(128 + signal),
        SessionEnd::Killed { .. } => internal("the session was ended"),
        SessionEnd::Lost { problem } => internal(problem),
    }
}

/// Why it did not begin.
pub(super) fn of_error(error: &SessionError, container: &str) -> Value {
    match error {
        SessionError::NotRunning { .. } => {
            internal(&format!("container not found ({container:?})"))
        }
        error => internal(&error.to_string()),
    }
}

fn exit(code: i32) -> Value {
    json!({
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit code {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

fn internal(problem: &str) -> Value {
    let problem = format!("error executing command in container: {problem}");
    json!({
        "metadata": {},
        "status": "Failure",
        "reason": "InternalError",
        "message": format!("Internal error occurred: {problem}"),
        "details": {"causes": [{"message": problem}]},
        "code": 500,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_a_cause_and_a_signal_is_one_beyond_128() {
        assert_eq!(of_end(&SessionEnd::Exited(0))["status"], "Success");
        for (end, code) in [
            (SessionEnd::Exited(3), "3"),
            (SessionEnd::Signaled(9), "137"),
        ] {
            let status = of_end(&end);
            assert_eq!(status["reason"], "NonZeroExitCode");
            let cause = json!({"reason": "ExitCode", "message": code});
            assert_eq!(status["details"]["causes"], json!([cause]));
        }
    }

    #[test]
    fn a_command_that_cannot_be_started_is_the_nodes_own_error() {
        let error = SessionError::Command {
            message: "command \"x\" was not found".to_owned(),
        };
        let status = of_error(&error, "main");
        assert_eq!(
            status["message"],
            "Internal error occurred: error executing command in container: command \"x\" was not \
             found"
        );
        assert_eq!(status["code"], 500);
    }
}
