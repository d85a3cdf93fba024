//! `-l` of the commands that do something to the pods it selects.

use belay_api::selector::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

use crate::exit::usage;

/// A selector as an object carries it.
///
/// # Errors
///
/// Wrong usage: one that cannot be read, or that selects everything. An unset variable of a shell
/// looks like that, and nobody means all pods by it.
pub(crate) fn object(text: &str) -> anyhow::Result<meta::LabelSelector> {
    let wrong = |error: &dyn std::fmt::Display| usage(format!("-l {text:?}: {error}"));
    let selector: LabelSelector = text.parse().map_err(|error| wrong(&error))?;
    if selector.is_empty() {
        return Err(wrong(
            &"this would mean every pod of the namespace; is a variable empty? To mean every pod, name a label that none has: -l '!no-such-label'",
        ));
    }
    meta::LabelSelector::try_from(&selector).map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::{Exit, of_error};

    #[test]
    fn every_pod_is_meant_only_by_who_says_so() {
        for text in ["", " "] {
            let error = object(text).unwrap_err();
            assert_eq!(of_error(&error), Exit::Usage, "{text:?}");
            assert!(error.to_string().contains("-l '!no-such-label'"), "{error}");
        }
        assert_eq!(
            serde_json::to_value(object("!no-such-label").unwrap()).unwrap(),
            serde_json::json!({"matchExpressions": [
                {"key": "no-such-label", "operator": "DoesNotExist"}]})
        );
    }
}
