//! Ports of containers.

use std::collections::BTreeSet;

use super::Errors;
use super::spec::one_of;
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

pub(super) fn validate(ports: &Cursor<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if !name.is_empty() {
            let problems = names::port_name(name.str());
            if problems.is_empty() && !seen.insert(name.str()) {
                errors.push(FieldError::duplicate(name.path(), name.str()));
            }
            extend_invalid(errors, name.path(), name.str(), problems);
        }
        let (inside, outside) = (port.get("containerPort"), port.get("hostPort"));
        match inside.int().unwrap_or_default() {
            0 => errors.push(FieldError::required(inside.path(), "")),
            number => extend_invalid(errors, inside.path(), number, names::port_number(number)),
        }
        match outside.int().unwrap_or_default() {
            0 => {}
            number => extend_invalid(errors, outside.path(), number, names::port_number(number)),
        }
        one_of(&port.get("protocol"), &PROTOCOLS, errors);
    }
}

/// Ports taken on the host: protocol, address and number together.
pub(super) fn unique_on_host(
    container: &Cursor<'_>,
    taken: &mut BTreeSet<String>,
    errors: &mut Errors,
) {
    for port in container.get("ports").items() {
        let number = port.get("hostPort").int().unwrap_or_default();
        if number == 0 {
            continue;
        }
        let (protocol, address) = (port.get("protocol").str(), port.get("hostIP").str());
        let place = format!("{protocol}/{address}/{number}");
        if taken.contains(&place) {
            errors.push(FieldError::duplicate(port.get("hostPort").path(), place));
        } else {
            taken.insert(place);
        }
    }
}

/// On the host's network a port inside is the port outside.
pub(super) fn match_on_host_network(containers: &Cursor<'_>, errors: &mut Errors) {
    for port in containers
        .items()
        .flat_map(|container| container.get("ports").items())
    {
        let (inside, outside) = (port.get("containerPort"), port.get("hostPort"));
        let number = outside.int().unwrap_or_default();
        if number != inside.int().unwrap_or_default() {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            errors.push(FieldError::invalid(outside.path(), number, detail));
        }
    }
}
