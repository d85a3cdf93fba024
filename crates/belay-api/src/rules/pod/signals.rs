//! Stop signals, in the two places where they can be given: `stopSignal` of the container, and
//! upstream's `lifecycle.stopSignal`.

use super::{CONTAINER_LISTS, Errors};
use crate::field::{Cursor, FieldError};
use crate::signal::Signal;

const ON_WINDOWS: [&str; 2] = ["SIGKILL", "SIGTERM"];

fn places<'a>(container: &Cursor<'a>) -> [Cursor<'a>; 2] {
    [
        container.get("stopSignal"),
        container.get("lifecycle").get("stopSignal"),
    ]
}

/// Checks both places. Unlike upstream, an empty `spec.os.name` is fine and means Linux.
pub(super) fn validate(container: &Cursor<'_>, os: &str, errors: &mut Errors) {
    let [field, upstream] = places(container);
    let here = signal(&field, os, errors);
    let there = signal(&upstream, os, errors);
    if let (Some(here), Some(there)) = (here, there)
        && here.number() != there.number()
    {
        let detail = format!(
            "must be the same as lifecycle.stopSignal, which is {there}; leave one of the two out"
        );
        errors.push(FieldError::invalid(field.path(), here.name(), detail));
    }
}

/// Checks a signal where one is given, and returns it if it is good.
pub(super) fn signal(at: &Cursor<'_>, os: &str, errors: &mut Errors) -> Option<Signal> {
    if !at.is_set() {
        return None;
    }
    let signal = at.str().parse::<Signal>().ok();
    if os == "windows" {
        let good = signal.filter(|signal| signal.on_windows());
        if good.is_none() {
            errors.push(FieldError::not_supported(at.path(), at.str(), &ON_WINDOWS));
        }
        return good;
    }
    if signal.is_none() {
        errors.push(FieldError::not_supported(
            at.path(),
            at.str(),
            &Signal::names_sorted(),
        ));
    }
    signal
}

/// Signals that leave a process running are allowed as stop signals, and hardly ever meant.
pub(super) fn warnings(pod: &Cursor<'_>) -> Vec<String> {
    let spec = pod.get("spec");
    CONTAINER_LISTS
        .into_iter()
        .flat_map(|list| spec.get(list).items())
        .flat_map(|container| places(&container))
        .filter_map(|at| {
            let signal = at.str().parse::<Signal>().ok()?;
            signal.leaves_running().then(|| {
                format!(
                    "{}: {signal} does not end a process that does not handle it: the container will be killed at the end of its grace period",
                    at.path()
                )
            })
        })
        .collect()
}
