//! The process of an exec, made from the container's own specification.

use belay_shim::proc::{ATTEMPT_MARK, CONTAINER_MARK};
use serde_json::{Value, json};

/// Why a specification cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpecificationError {
    #[error("the container's specification is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the container's specification names no process")]
    NoProcess,
}

/// How the container's first process was started: user, environment, working directory,
/// capabilities, limits, labels.
pub(crate) fn first_process(specification: &[u8]) -> Result<Value, SpecificationError> {
    let mut specification: Value = serde_json::from_slice(specification)?;
    match specification.get_mut("process").map(Value::take) {
        Some(process) if process.is_object() => Ok(process),
        _ => Err(SpecificationError::NoProcess),
    }
}

/// The same for another command, without a terminal and with the marks of its attempt.
pub(crate) fn exec_process(
    first: &Value,
    command: &[String],
    container: &str,
    attempt: &str,
) -> Vec<u8> {
    let marks = [(CONTAINER_MARK, container), (ATTEMPT_MARK, attempt)];
    let marked = |variable: &Value| {
        let name = variable.as_str().and_then(|text| text.split('=').next());
        marks.iter().any(|(mark, _)| name == Some(mark))
    };
    let mut environment: Vec<Value> = first["env"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|variable| !marked(variable))
        .cloned()
        .collect();
    environment.extend(marks.map(|(name, value)| Value::from(format!("{name}={value}"))));
    let mut process = first.clone();
    process["args"] = json!(command);
    process["env"] = Value::from(environment);
    process["terminal"] = Value::from(false);
    if let Some(fields) = process.as_object_mut() {
        fields.remove("consoleSize");
        fields.remove("commandLine");
    }
    process.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn everything_but_command_terminal_and_marks_is_the_containers() {
        let specification = json!({
            "ociVersion": "1.1.0",
            "process": {
                "terminal": true,
                "consoleSize": {"height": 1, "width": 2},
                "user": {"uid": 1000, "gid": 2000, "additionalGids": [7]},
                "args": ["/pause"],
                "env": ["PATH=/bin", "BELAY_ATTEMPT_ID=forged", "A=b=c"],
                "cwd": "/srv",
                "capabilities": {"bounding": ["CAP_CHOWN"]},
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 9, "soft": 9}],
                "noNewPrivileges": true,
                "apparmorProfile": "p",
                "selinuxLabel": "l",
                "oomScoreAdj": 5,
            }
        });
        let first = first_process(specification.to_string().as_bytes()).unwrap();
        let made = exec_process(&first, &["sh".to_owned()], "c1", "a1");
        let made: Value = serde_json::from_slice(&made).unwrap();
        let mut expected = specification["process"].clone();
        expected["args"] = json!(["sh"]);
        expected["terminal"] = json!(false);
        expected["env"] = json!([
            "PATH=/bin",
            "A=b=c",
            "BELAY_CONTAINER_ID=c1",
            "BELAY_ATTEMPT_ID=a1"
        ]);
        expected.as_object_mut().unwrap().remove("consoleSize");
        assert_eq!(made, expected);
    }

    proptest! {
        #[test]
        fn rubbish_is_an_error_and_never_a_panic(
            text in r#"(\{|\}|"process"|:|\[|\]|"env"|,|null|1|"x"){0,9}"#
        ) {
            if let Ok(first) = first_process(text.as_bytes()) {
                exec_process(&first, &[], "c", "a");
            }
        }
    }
}
