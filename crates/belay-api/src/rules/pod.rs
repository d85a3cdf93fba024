//! Pods: upstream's rules with upstream's messages, and those of Belay's own fields.
//!
//! | module | is about |
//! |---|---|
//! | `defaults` | what is filled in |
//! | `gates` | what a gate that is off drops or refuses |
//! | `spec` | the pod as a whole |
//! | `containers` | containers of the three sorts |
//! | `handlers` | hooks and probes |
//! | `signals` | stop signals |
//! | `notifiers` | notifiers, as a field and as an annotation |
//! | `environment`, `ports`, `volumes`, `resources`, `security` | parts of a container or pod |
//! | `update` | what may change |
//! | `status` | what an agent may report |
//! | `template` | the same rules for pods that are still to be made |

mod containers;
mod defaults;
mod environment;
mod gates;
mod handlers;
mod notifiers;
mod ports;
mod resources;
mod security;
mod signals;
mod spec;
mod status;
pub(super) mod template;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::needless_pass_by_value)] // in what the tests share
mod tests;
mod update;
mod volumes;

use serde_json::{Value, json};

pub(super) use defaults::default_handler;
pub(super) use handlers::hook as hook_handler;

use super::{Review, Rules};
use crate::field::{Cursor, Errors};
use crate::gates::FeatureGates;

/// The lists of containers in a pod's spec.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

#[derive(Debug)]
pub(super) struct PodRules;

impl Rules for PodRules {
    fn warnings_before_default(&self, sent: &Value, old: Option<&Value>) -> Vec<String> {
        match old {
            None => notifiers::warnings_before_default(&Cursor::new(sent)),
            // What there is to warn about is fixed at creation.
            Some(_) => Vec::new(),
        }
    }

    fn default(&self, object: &mut Value) {
        defaults::default_pod(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        let qos = resources::qos_class(&Cursor::new(object).get("spec"));
        if let Some(object) = object.as_object_mut() {
            let status = json!({"phase": "Pending", "qosClass": qos});
            object.insert("status".to_owned(), status);
        }
    }

    fn drop_disabled(&self, new: &mut Value, old: Option<&Value>, features: &FeatureGates) {
        gates::drop_disabled(new, old, features);
    }

    fn validate_create(&self, object: &Value, features: &FeatureGates) -> Review {
        let pod = Cursor::new(object);
        let mut errors = Errors::new();
        gates::refuse_disabled(&pod, features, &mut errors);
        validate(&pod, &mut errors);
        spec::validate_create_only(&pod.get("spec"), &mut errors);
        let mut warnings = signals::warnings(&pod);
        warnings.extend(notifiers::warnings(&pod));
        Review { errors, warnings }
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &FeatureGates) -> Review {
        let (new, old) = (Cursor::new(new), Cursor::new(old));
        let mut errors = Errors::new();
        validate(&new, &mut errors);
        notifiers::validate_update(&new, &old, &mut errors);
        update::validate(&new.get("spec"), &old.get("spec"), &mut errors);
        errors.into()
    }

    fn validate_status(&self, new: &Value, old: &Value) -> Review {
        let mut errors = Errors::new();
        status::validate(&Cursor::new(new), &Cursor::new(old), &mut errors);
        errors.into()
    }
}

/// What is wrong with the notifiers annotation of a pod, and with what it and the containers' fields
/// say together.
pub(crate) fn annotation_errors(pod: &Value) -> Errors {
    let mut errors = Errors::new();
    notifiers::validate_annotation(&Cursor::new(pod), &mut errors);
    errors
}

/// What holds for a pod whenever it is written.
fn validate(pod: &Cursor<'_>, errors: &mut Errors) {
    spec::validate(&pod.get("spec"), errors);
    notifiers::validate_annotation(pod, errors);
}

/// Whether an init container is restartable.
fn is_sidecar(container: &Cursor<'_>) -> bool {
    container.get("restartPolicy").str() == "Always"
}
