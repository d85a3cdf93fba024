//! What an image is to a container: when it is fetched, and which signal it wants to be stopped
//! with. Pure.

use belay_api::pod::{Container, Pod};
use belay_api::signal::Signal;
use belay_runtime::Pull;
use serde_json::Value;

/// When the image of a container is fetched. The server fills the policy in; a pod that comes from
/// elsewhere has upstream's default.
pub(crate) fn pull_policy(container: &Container) -> Pull {
    let given = container
        .other
        .get("imagePullPolicy")
        .and_then(Value::as_str);
    match given {
        Some("Always") => Pull::Always,
        Some("IfNotPresent") => Pull::IfNotPresent,
        Some("Never") => Pull::Never,
        Some(_) | None => {
            let image = container.image.as_deref().unwrap_or_default();
            if is_latest(image) {
                Pull::Always
            } else {
                Pull::IfNotPresent
            }
        }
    }
}

/// Whether a name asks for whatever is newest: it says so, or it says neither tag nor digest.
fn is_latest(image: &str) -> bool {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash is that of a registry's port.
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

/// Whether a pod names credentials to fetch its images with.
pub(crate) fn has_pull_secrets(pod: &Pod) -> bool {
    let secrets = pod.spec.other.get("imagePullSecrets");
    secrets
        .and_then(Value::as_array)
        .is_some_and(|secrets| !secrets.is_empty())
}

/// The signal that an image names, which may be written as a number, without `SIG`, or in small
/// letters.
pub(crate) fn stop_signal(written: &str) -> Option<Signal> {
    let written = written.trim();
    if let Ok(number) = written.parse() {
        return Signal::from_number(number);
    }
    let upper = written.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    format!("SIG{name}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(container: &Value) -> Pull {
        let container = serde_json::from_value(container.clone()).unwrap();
        pull_policy(&container)
    }

    #[test]
    fn an_image_without_a_policy_is_pulled_as_upstream_would() {
        for (image, expected) in [
            ("nginx", Pull::Always),
            ("nginx:latest", Pull::Always),
            ("nginx:1.27", Pull::IfNotPresent),
            ("registry:5000/nginx", Pull::Always),
            ("registry:5000/nginx:1", Pull::IfNotPresent),
            ("nginx@sha256:0123", Pull::IfNotPresent),
            ("nginx:latest@sha256:0123", Pull::Always),
            ("nginx:1@sha256:0123", Pull::IfNotPresent),
        ] {
            assert_eq!(policy(&json!({"name": "c", "image": image})), expected);
        }
        for (given, expected) in [
            ("Always", Pull::Always),
            ("IfNotPresent", Pull::IfNotPresent),
            ("Never", Pull::Never),
        ] {
            let container = json!({"name": "c", "image": "nginx", "imagePullPolicy": given});
            assert_eq!(policy(&container), expected);
        }
    }

    #[test]
    fn an_images_signal_is_read_however_it_is_written() {
        for (written, expected) in [
            ("SIGQUIT", Some("SIGQUIT")),
            ("quit", Some("SIGQUIT")),
            ("3", Some("SIGQUIT")),
            ("SIGRTMIN+3", Some("SIGRTMIN+3")),
            ("rtmin+3", Some("SIGRTMIN+3")),
            ("37", Some("SIGRTMIN+3")),
            ("SIGWINCH", Some("SIGWINCH")),
            ("", None),
            ("SIG", None),
            ("0", None),
            ("99", None),
            ("SIGNONSENSE", None),
        ] {
            let read = stop_signal(written).map(Signal::name);
            assert_eq!(read, expected, "{written}");
        }
    }
}
