//! Daemon sets: upstream's rules with upstream's messages; the pod template has the rules of a pod.
//!
//! A surge is refused: a daemon that runs twice on a node for a while is not what is served here. An
//! unknown strategy is told by its own field; upstream shows its Go struct.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::{Value, json};

use super::pod::template;
use super::selector::validate_selector;
use super::{Review, Rules, object_at, set_default};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::{IMMUTABLE, not_negative};
use crate::selector::LabelSelector;

const ROLLING_UPDATE: &str = "RollingUpdate";
const STRATEGIES: [&str; 2] = [ROLLING_UPDATE, "OnDelete"];
const REVISION_HISTORY: i64 = 10;

/// What the controller counts. The first four are written also when they are zero.
const COUNTS: [&str; 7] = [
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
];

#[derive(Debug)]
pub(super) struct DaemonSetRules;

impl Rules for DaemonSetRules {
    fn warnings_before_default(&self, sent: &Value, old: Option<&Value>) -> Vec<String> {
        let mut complete = sent.clone();
        self.default(&mut complete);
        let (now, before) = (Cursor::new(&complete), old.map(Cursor::new));
        match before {
            Some(before) if template_of(&before).value() == template_of(&now).value() => Vec::new(),
            _ => template::warnings_before_default(&template_of(&Cursor::new(sent))),
        }
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        if let Some(template) = spec.get_mut("template").filter(|it| it.is_object()) {
            template::default(template);
        }
        if spec.get("revisionHistoryLimit").is_none_or(Value::is_null) {
            spec.insert("revisionHistoryLimit".to_owned(), REVISION_HISTORY.into());
        }
        let strategy = spec.entry("updateStrategy").or_insert(Value::Null);
        if strategy.is_null() {
            *strategy = json!({});
        }
        let Some(fields) = strategy.as_object_mut() else {
            return;
        };
        set_default(fields, "type", ROLLING_UPDATE);
        if fields.get("type").and_then(Value::as_str) != Some(ROLLING_UPDATE) {
            return;
        }
        if let Some(rolling) = object_at(strategy, "rollingUpdate") {
            for (field, value) in [("maxUnavailable", 1), ("maxSurge", 0)] {
                if rolling.get(field).is_none_or(Value::is_null) {
                    rolling.insert(field.to_owned(), value.into());
                }
            }
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            let zeros = COUNTS[..4]
                .iter()
                .map(|count| ((*count).to_owned(), 0.into()));
            object.insert("status".to_owned(), Value::Object(zeros.collect()));
        }
    }

    fn drop_disabled(&self, new: &mut Value, old: Option<&Value>, features: &FeatureGates) {
        let old = old.and_then(|old| old.pointer("/spec/template"));
        if let Some(new) = new.pointer_mut("/spec/template") {
            template::drop_disabled(new, old, features);
        }
    }

    fn validate_create(&self, object: &Value, features: &FeatureGates) -> Review {
        let set = Cursor::new(object);
        let mut errors = Errors::new();
        template::refuse_disabled(&template_of(&set), None, features, &mut errors);
        validate(&set, &mut errors);
        let warnings = template::warnings(&template_of(&set));
        Review { errors, warnings }
    }

    fn validate_update(&self, new: &Value, old: &Value, features: &FeatureGates) -> Review {
        let (new, old) = (Cursor::new(new), Cursor::new(old));
        let (template, before) = (template_of(&new), template_of(&old));
        let mut errors = Errors::new();
        template::refuse_disabled(&template, Some(&before), features, &mut errors);
        validate(&new, &mut errors);
        let (now, then) = (
            new.get("spec").get("selector"),
            old.get("spec").get("selector"),
        );
        if now.value() != then.value() {
            errors.push(FieldError::invalid(now.path(), now.owned(), IMMUTABLE));
        }
        let warnings = if template.value() == before.value() {
            Vec::new()
        } else {
            template::warnings(&template)
        };
        Review { errors, warnings }
    }

    fn validate_status(&self, new: &Value, _: &Value) -> Review {
        let status = Cursor::new(new).get("status");
        let mut errors = Errors::new();
        for count in COUNTS
            .iter()
            .chain(&["observedGeneration", "collisionCount"])
        {
            at_least_zero(&status.get(count), &mut errors);
        }
        errors.into()
    }
}

fn template_of<'a>(set: &Cursor<'a>) -> Cursor<'a> {
    set.get("spec").get("template")
}

fn validate(set: &Cursor<'_>, errors: &mut Errors) {
    let (spec, template) = (set.get("spec"), template_of(set));
    selector(&spec.get("selector"), &template, errors);
    template::validate(&template, errors);
    template::restarts_always(&template, errors);
    let deadline = template.get("spec").get("activeDeadlineSeconds");
    if deadline.is_set() {
        let detail = "activeDeadlineSeconds in DaemonSet is not Supported";
        errors.push(FieldError::forbidden(deadline.path(), detail));
    }
    at_least_zero(&spec.get("minReadySeconds"), errors);
    at_least_zero(&spec.get("revisionHistoryLimit"), errors);
    strategy(&spec.get("updateStrategy"), errors);
}

fn at_least_zero(at: &Cursor<'_>, errors: &mut Errors) {
    if let Some(number) = at.int().filter(|number| *number < 0) {
        errors.push(not_negative(at.path(), number));
    }
}

fn selector(selector: &Cursor<'_>, template: &Cursor<'_>, errors: &mut Errors) {
    let before = errors.total();
    validate_selector(selector, errors);
    let empty =
        selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty();
    if selector.is_set() && empty {
        let detail = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid(
            selector.path(),
            selector.owned(),
            detail,
        ));
    }
    if errors.total() > before {
        return;
    }
    // One that is left out matches nothing.
    let labels = template.get("metadata").get("labels");
    let found: BTreeMap<String, String> = labels
        .entries()
        .map(|(key, value)| (key.to_owned(), value.str().to_owned()))
        .collect();
    let matches = selector
        .value()
        .and_then(|value| serde_json::from_value::<meta::LabelSelector>(value.clone()).ok())
        .and_then(|selector| LabelSelector::try_from(&selector).ok())
        .is_some_and(|selector| selector.matches(&found));
    if !matches {
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(labels.path(), labels.owned(), detail));
    }
}

fn strategy(strategy: &Cursor<'_>, errors: &mut Errors) {
    let kind = strategy.get("type");
    if !STRATEGIES.contains(&kind.str()) {
        errors.push(FieldError::not_supported(
            kind.path(),
            kind.str(),
            &STRATEGIES,
        ));
        return;
    }
    let rolling = strategy.get("rollingUpdate");
    if kind.str() != ROLLING_UPDATE {
        return;
    }
    if !rolling.is_set() {
        errors.push(FieldError::required(rolling.path(), ""));
        return;
    }
    let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
    let most = share(&unavailable, errors);
    if share(&surge, errors).is_some_and(|surge| surge > 0) {
        let detail = "is not supported by this server: a node runs one pod of a daemon set at a time; use maxUnavailable";
        errors.push(FieldError::forbidden(surge.path(), detail));
    } else if most == Some(0) {
        let detail = "cannot be 0 when maxSurge is 0";
        errors.push(FieldError::required(unavailable.path(), detail));
    }
}

/// A number of nodes or a share of them; the number, if it is good.
fn share(at: &Cursor<'_>, errors: &mut Errors) -> Option<i64> {
    if let Some(number) = at.int() {
        at_least_zero(at, errors);
        return (number >= 0).then_some(number);
    }
    let digits = at.str().strip_suffix('%').unwrap_or_default();
    let percent = digits.parse::<i64>().ok();
    let good = digits.bytes().all(|byte| byte.is_ascii_digit());
    let Some(percent) = percent.filter(|_| good) else {
        let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
        errors.push(FieldError::invalid(at.path(), at.owned(), detail));
        // Upstream reads it as none.
        return Some(0);
    };
    if percent > 100 {
        let detail = "must not be greater than 100%";
        errors.push(FieldError::invalid(at.path(), at.owned(), detail));
    }
    Some(percent)
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests;
