//! The pod of the demo: a shell that does nothing but wait, and the notifiers it declares.

use std::path::Path;

use belay_api::pod::Pod;
use serde_json::{Value, json};

use super::processes::MARK;

/// Its name.
pub(super) const NAME: &str = "web";

/// What the container runs: it says when it is told to reload and ends when told to end.
const MAIN: &str = "\
trap 'echo reloaded' HUP
trap 'exit 0' TERM
echo started
while :; do sleep 1 & wait $!; done";

/// Prints something and succeeds.
const STATUS: &str = r#"echo "3 sites, 0 errors"; echo "log: $DEMO_DIR""#;
/// Prints something and fails.
const CHECK: &str = "echo 'line 7: unknown word'; exit 3";
/// Leaves one process behind that has lost its parent, and hangs itself.
const HANG: &str = "(sleep 6150 &); sleep 6151";
/// Counts how often it ran, takes its time, says that it is done.
const ROTATE: &str = r#"echo run >> "$DEMO_DIR/runs"; sleep 4; echo rotated"#;

/// The command lines that [`HANG`] leaves if it is not killed with everything it started.
pub(super) const HANGING: [&str; 2] = ["sleep 6150", "sleep 6151"];
/// The command line that runs while [`ROTATE`] does.
pub(super) const ROTATING: &str = "sleep 4";

/// Where [`ROTATE`] counts.
pub(super) fn runs_file(dir: &Path) -> std::path::PathBuf {
    dir.join("runs")
}

/// The manifest.
pub(super) fn manifest(dir: &Path) -> Value {
    let shell = |script: &str| json!({"exec": {"command": ["/bin/sh", "-c", script]}});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "main",
                "image": "none",
                "command": ["/bin/sh", "-c", MAIN],
                "env": [
                    {"name": "DEMO_DIR", "value": dir},
                    {"name": MARK, "value": dir},
                ],
                "notifiers": [
                    {"name": "reload", "handler": {"signal": "SIGHUP"}},
                    {"name": "status", "timeoutSeconds": 5, "handler": shell(STATUS)},
                    {"name": "check", "timeoutSeconds": 5, "handler": shell(CHECK)},
                    {"name": "hang", "timeoutSeconds": 1, "handler": shell(HANG)},
                    {"name": "rotate", "timeoutSeconds": 20, "handler": shell(ROTATE)},
                ],
            }],
        },
    })
}

/// The same as an object to create.
pub(super) fn pod(dir: &Path) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(manifest(dir))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_a_pod_that_declares_all_five() {
        let pod = pod(Path::new("/tmp/x")).unwrap();
        let declared = pod.notifiers("main").unwrap();
        let names: Vec<_> = declared.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(names, ["reload", "status", "check", "hang", "rotate"]);
        for notifier in &declared {
            notifier.action().unwrap();
        }
    }
}
