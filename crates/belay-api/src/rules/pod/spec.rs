//! The pod as a whole.

use std::collections::BTreeSet;

use super::{Errors, containers, ports, security, volumes};
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names, validate_labels};

pub(super) const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// What a container's rules need to know of its pod.
#[derive(Debug)]
pub(super) struct Pod<'a> {
    /// `spec.os.name`; empty means Linux.
    pub(super) os: &'a str,
    pub(super) grace: Option<i64>,
    pub(super) volumes: volumes::Volumes<'a>,
}

pub(super) fn validate(spec: &Cursor<'_>, errors: &mut Errors) {
    let grace = spec.get("terminationGracePeriodSeconds");
    if !grace.is_set() {
        errors.push(FieldError::required(grace.path(), ""));
    }
    let pod = Pod {
        os: spec.get("os").get("name").str(),
        grace: grace.int(),
        volumes: volumes::validate(&spec.get("volumes"), errors),
    };
    containers::validate(spec, &pod, errors);
    if spec.get("hostNetwork").is_true() {
        ports::match_on_host_network(&spec.get("containers"), errors);
    }
    one_of(&spec.get("restartPolicy"), &RESTART_POLICIES, errors);
    one_of(&spec.get("dnsPolicy"), &DNS_POLICIES, errors);
    validate_labels(&spec.get("nodeSelector"), errors);
    security::validate_pod(spec, errors);
    dns_config(spec, errors);
    readiness_and_scheduling_gates(spec, errors);
    named_things(spec, errors);

    let deadline = spec.get("activeDeadlineSeconds");
    if let Some(seconds) = deadline.int() {
        let max = i64::from(i32::MAX);
        if !(1..=max).contains(&seconds) {
            errors.push(FieldError::invalid(
                deadline.path(),
                seconds,
                names::between(1, max),
            ));
        }
    }
    tolerations(&spec.get("tolerations"), errors);
    host_aliases(&spec.get("hostAliases"), errors);
    os(&spec.get("os"), errors);
    match pod.os {
        "linux" => security::validate_linux(spec, errors),
        "windows" => security::validate_windows(spec, errors),
        _ => {}
    }
}

/// What may be there, but not from the beginning.
pub(super) fn validate_create_only(spec: &Cursor<'_>, errors: &mut Errors) {
    let ephemeral = spec.get("ephemeralContainers");
    if !ephemeral.is_empty() {
        errors.push(FieldError::forbidden(
            ephemeral.path(),
            "cannot be set on create",
        ));
    }
    if !spec.get("nodeName").is_empty() && !spec.get("schedulingGates").is_empty() {
        errors.push(FieldError::forbidden(
            spec.get("nodeName").path(),
            "cannot be set until all schedulingGates have been cleared",
        ));
    }
}

/// A required value of a closed set.
pub(super) fn one_of(at: &Cursor<'_>, supported: &[&str], errors: &mut Errors) {
    if at.str().is_empty() {
        errors.push(FieldError::required(at.path(), ""));
    } else if !supported.contains(&at.str()) {
        errors.push(FieldError::not_supported(at.path(), at.str(), supported));
    }
}

/// A value of a closed set that may be left out.
pub(super) fn one_of_if_set(at: &Cursor<'_>, supported: &[&str], errors: &mut Errors) {
    if !at.str().is_empty() && !supported.contains(&at.str()) {
        errors.push(FieldError::not_supported(at.path(), at.str(), supported));
    }
}

fn named_things(spec: &Cursor<'_>, errors: &mut Errors) {
    type Rule = fn(&str) -> names::Problems;
    let rules: [(&str, Rule); 5] = [
        ("serviceAccountName", names::dns_subdomain),
        ("nodeName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
        ("priorityClassName", names::dns_subdomain),
    ];
    for (field, rule) in rules {
        let at = spec.get(field);
        if !at.str().is_empty() {
            extend_invalid(errors, at.path(), at.str(), rule(at.str()));
        }
    }
    let class = spec.get("runtimeClassName");
    if class.is_set() {
        extend_invalid(
            errors,
            class.path(),
            class.str(),
            names::dns_subdomain(class.str()),
        );
    }
    let preemption = spec.get("preemptionPolicy");
    one_of_if_set(&preemption, &["PreemptLowerPriority", "Never"], errors);
}

fn dns_config(spec: &Cursor<'_>, errors: &mut Errors) {
    const NAMESERVERS: usize = 3;
    const SEARCHES: usize = 32;
    let config = spec.get("dnsConfig");
    let (servers, searches) = (config.get("nameservers"), config.get("searches"));
    if spec.get("dnsPolicy").str() == "None" {
        if !config.is_set() {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(config.path(), detail));
            return;
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(servers.path(), detail));
            return;
        }
    }
    if servers.list().len() > NAMESERVERS {
        let detail = format!("must not have more than {NAMESERVERS} nameservers");
        errors.push(FieldError::invalid(servers.path(), servers.owned(), detail));
    }
    servers.items().for_each(|server| ip(&server, errors));
    if searches.list().len() > SEARCHES {
        let detail = format!("must not have more than {SEARCHES} search paths");
        errors.push(FieldError::invalid(
            searches.path(),
            searches.owned(),
            detail,
        ));
    }
    for search in searches.items().filter(|search| search.str() != ".") {
        let name = search.str().strip_suffix('.').unwrap_or(search.str());
        extend_invalid(errors, search.path(), name, names::dns_search(name));
    }
    for option in config.get("options").items() {
        if option.get("name").is_empty() {
            errors.push(FieldError::required(option.path(), "must not be empty"));
        }
    }
}

fn ip(at: &Cursor<'_>, errors: &mut Errors) {
    if at.str().parse::<std::net::IpAddr>().is_err() {
        let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid(at.path(), at.str(), detail));
    }
}

fn host_aliases(aliases: &Cursor<'_>, errors: &mut Errors) {
    for alias in aliases.items() {
        ip(&alias.get("ip"), errors);
        for name in alias.get("hostnames").items() {
            extend_invalid(
                errors,
                name.path(),
                name.str(),
                names::dns_subdomain(name.str()),
            );
        }
    }
}

fn readiness_and_scheduling_gates(spec: &Cursor<'_>, errors: &mut Errors) {
    for gate in spec.get("readinessGates").items() {
        let at = gate.get("conditionType");
        extend_invalid(errors, at.path(), at.str(), names::label_key(at.str()));
    }
    let mut seen = BTreeSet::new();
    for gate in spec.get("schedulingGates").items() {
        let name = gate.get("name").str();
        extend_invalid(errors, gate.path(), name, names::label_key(name));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(gate.path(), name));
        }
    }
}

pub(super) fn tolerations(tolerations: &Cursor<'_>, errors: &mut Errors) {
    for toleration in tolerations.items() {
        let (key, operator) = (toleration.get("key"), toleration.get("operator"));
        let (value, effect) = (toleration.get("value"), toleration.get("effect"));
        if !key.is_empty() {
            extend_invalid(errors, key.path(), key.str(), names::label_key(key.str()));
        } else if operator.str() != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(operator.path(), operator.str(), detail));
        }
        if toleration.get("tolerationSeconds").is_set() && effect.str() != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(effect.path(), effect.str(), detail));
        }
        match operator.str() {
            "" | "Equal" => {
                let problems = names::label_value(value.str());
                if !problems.is_empty() {
                    let detail = problems.join(";");
                    errors.push(FieldError::invalid(operator.path(), value.str(), detail));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    let detail = "value must be empty when `operator` is 'Exists'";
                    errors.push(FieldError::invalid(operator.path(), value.str(), detail));
                }
            }
            other => {
                let supported = ["Equal", "Exists"];
                errors.push(FieldError::not_supported(
                    operator.path(),
                    other,
                    &supported,
                ));
            }
        }
        one_of_if_set(&effect, &EFFECTS, errors);
    }
}

fn os(os: &Cursor<'_>, errors: &mut Errors) {
    if !os.is_set() {
        return;
    }
    let name = os.get("name");
    if name.is_empty() {
        errors.push(FieldError::required(name.path(), ""));
    } else if !["linux", "windows"].contains(&name.str()) {
        // Upstream reports the object, not its field.
        errors.push(FieldError::not_supported(
            os.path(),
            name.str(),
            &["linux", "windows"],
        ));
    }
}
