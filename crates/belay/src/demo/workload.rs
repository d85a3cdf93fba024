//! The pod of the demo: a shell that does nothing but wait, and the notifiers it declares.

use std::path::{Path, PathBuf};

use belay_api::pod::Pod;

use super::processes::MARK;

/// Its name.
pub(super) const NAME: &str = "web";

/// The manifest, as a user would write it.
const MANIFEST: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: none
    env:
    - {name: DIR, value: "@DIR@"}
    - {name: "@MARK@", value: "@DIR@"}
    command:
    - /bin/sh
    - -c
    - |
      trap 'echo reloaded' HUP
      trap 'exit 0' TERM
      echo started
      while :; do sleep 1 & wait $!; done
    notifiers:
    - name: reload
      handler: {signal: SIGHUP}
    - name: status
      timeoutSeconds: 5
      handler: {exec: {command: [/bin/sh, -c, "echo '3 sites, 0 errors'"]}}
    - name: check
      timeoutSeconds: 5
      handler: {exec: {command: [/bin/sh, -c, "echo 'line 7: unknown word'; exit 3"]}}
    - name: hang
      timeoutSeconds: 3
      handler: {exec: {command: [/bin/sh, -c, "(sleep 6150 &); sleep 6151"]}}
    - name: rotate
      timeoutSeconds: 600
      handler: {exec: {command: [/bin/sh, -c, "@ROTATE@"]}}
"#;

/// What `rotate` runs. It lasts until the tour lets it end: time would end it before a machine that
/// stands still has killed the instance.
const ROTATE: &str = "echo run >> $DIR/runs; until [ -e $DIR/end ]; do sleep 1; done; echo rotated";

/// The command lines that `hang` leaves if it is not killed with everything it started.
pub(super) const HANGING: [&str; 2] = ["sleep 6150", "sleep 6151"];

/// The command line that runs while `rotate` does.
pub(super) fn rotating() -> String {
    format!("/bin/sh -c {ROTATE}")
}

/// The file that lets `rotate` end.
pub(super) fn end_file(dir: &Path) -> PathBuf {
    dir.join("end")
}

/// Where `rotate` counts how often it ran.
pub(super) fn runs_file(dir: &Path) -> PathBuf {
    dir.join("runs")
}

/// The manifest for a demo in `dir`.
pub(super) fn manifest(dir: &Path) -> String {
    MANIFEST
        .replace("@DIR@", &dir.to_string_lossy())
        .replace("@MARK@", MARK)
        .replace("@ROTATE@", ROTATE)
}

/// The same as an object to create.
pub(super) fn pod(dir: &Path) -> anyhow::Result<Pod> {
    Ok(serde_saphyr::from_str(&manifest(dir))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_a_pod_that_declares_all_five() {
        let pod = pod(Path::new("/tmp/x")).unwrap();
        assert_eq!(pod.name(), NAME);
        let declared = pod.notifiers("main").unwrap();
        let names: Vec<_> = declared.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(names, ["reload", "status", "check", "hang", "rotate"]);
        for notifier in &declared {
            notifier.action().unwrap();
        }
        let manifest = manifest(Path::new("/tmp/x"));
        assert!(manifest.contains("{name: \"BELAY_DEMO\", value: \"/tmp/x\"}"));
        assert!(!manifest.contains('@'));
    }
}
