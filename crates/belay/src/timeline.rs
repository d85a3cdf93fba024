//! What happened, in order. Pure: objects in, lines out.
//!
//! The API writes most times in whole seconds, cut and not rounded; events also carry
//! microseconds. A line shows what is known and no more: an offset has decimals only where both
//! its ends have them, and within one second the steps are put into the only order in which they
//! can have happened.

use belay_api::fanout::Notification;
use belay_api::hook::{ExecutionHook, PodAction};
use belay_api::notification::PodNotification;
use belay_api::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

use crate::table::Table;

/// The order of steps that happened within the same second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Created,
    Claimed,
    /// The life before the present one.
    StartedBefore,
    EndedBefore,
    Started,
    Event,
    Ended,
    Finished,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Moment {
    at: Timestamp,
    /// Whether `at` is exact; else it is cut to the second.
    exact: bool,
    rank: Rank,
    what: String,
}

/// Things that happened to one object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    moments: Vec<Moment>,
}

impl Timeline {
    /// The life of a PodNotification.
    pub(crate) fn of_notification(object: &PodNotification, events: &[Event]) -> Timeline {
        let mut timeline = Timeline::default();
        let spec = &object.spec;
        timeline.add(
            object.metadata.creation_timestamp.as_ref(),
            Rank::Created,
            || format!("created: {:?} in pod {}", spec.notifier, spec.pod_name),
        );
        if let Some(status) = &object.status {
            let executor = status.executor.as_deref().unwrap_or("nobody");
            if status.executor.is_some() {
                timeline.add(status.start_time.as_ref(), Rank::Claimed, || {
                    format!("claimed by {executor}")
                });
            }
            for container in &status.containers {
                timeline.add(container.start_time.as_ref(), Rank::Started, || {
                    format!("{}: started", container.name)
                });
                timeline.add(container.complete_time.as_ref(), Rank::Ended, || {
                    let result = crate::notify::result(container, status.error.as_ref());
                    match crate::notify::detail(container).as_str() {
                        "-" => format!("{}: {result}", container.name),
                        detail => format!("{}: {result}, {detail}", container.name),
                    }
                });
            }
            timeline.add(
                status.complete_time.as_ref(),
                Rank::Finished,
                || match &status.error {
                    Some(error) => format!("{}: {}: {}", status.state, error.type_, error.message),
                    None => status.state.to_string(),
                },
            );
        }
        timeline.add_events(events);
        timeline
    }

    /// The life of a Notification, and of the PodNotifications that belong to it.
    pub(crate) fn of_fanout(
        object: &Notification,
        children: &[PodNotification],
        events: &[Event],
    ) -> Timeline {
        let mut timeline = Timeline::default();
        let spec = &object.spec;
        timeline.add(
            object.metadata.creation_timestamp.as_ref(),
            Rank::Created,
            || format!("created: {:?}, {}", spec.notifier, spec.policy),
        );
        if let Some(status) = &object.status {
            timeline.add(status.start_time.as_ref(), Rank::Claimed, || {
                format!("acknowledged: {} pods", status.target_count)
            });
            timeline.add(status.complete_time.as_ref(), Rank::Finished, || {
                status.state.to_string()
            });
        }
        for child in children {
            let pod = &child.spec.pod_name;
            timeline.add(
                child.metadata.creation_timestamp.as_ref(),
                Rank::Started,
                || format!("{pod}: notified"),
            );
            let complete = child.status.as_ref().and_then(|s| s.complete_time.as_ref());
            timeline.add(complete, Rank::Ended, || {
                format!("{pod}: {}", child.state())
            });
        }
        timeline.add_events(events);
        timeline
    }

    /// The life of a hook. When something ended in a container is told by the podactions, as long as
    /// they are there.
    pub(crate) fn of_hook(
        object: &ExecutionHook,
        actions: &[PodAction],
        events: &[Event],
    ) -> Timeline {
        let mut timeline = Timeline::default();
        timeline.add(
            object.metadata.creation_timestamp.as_ref(),
            Rank::Created,
            || format!("created: {:?}", object.spec.action_name),
        );
        if let Some(status) = &object.status {
            let targets = status.target_count.unwrap_or(0);
            timeline.add(status.start_time.as_ref(), Rank::Claimed, || {
                format!("acknowledged: {targets} containers")
            });
            for one in &status.hook_statuses {
                let started = one.timestamp.and_then(|at| Timestamp::from_second(at).ok());
                timeline.add(started.map(Time).as_ref(), Rank::Started, || {
                    format!("{}/{}: started", one.pod_name, one.container_name)
                });
            }
            timeline.add(status.complete_time.as_ref(), Rank::Finished, || {
                let well = status.action_succeed == Some(true);
                if well { "succeeded" } else { "failed" }.to_owned()
            });
        }
        for action in actions {
            let pod = &action.spec.pod_name;
            for one in action.status.iter().flat_map(|status| &status.containers) {
                timeline.add(one.complete_time.as_ref(), Rank::Ended, || {
                    let well = one.succeed == Some(true);
                    let word = if well { "succeeded" } else { "failed" };
                    format!("{pod}/{}: {word}", one.name)
                });
            }
        }
        timeline.add_events(events);
        timeline
    }

    /// Adds what hooks asked for in a pod: when, where it was first started, and how it ended.
    pub(crate) fn add_actions(&mut self, actions: &[PodAction]) {
        for action in actions {
            let hook = &action.spec.hook.name;
            self.add(
                action.metadata.creation_timestamp.as_ref(),
                Rank::Claimed,
                || format!("eh/{hook}: asked for"),
            );
            let Some(status) = &action.status else {
                continue;
            };
            for one in &status.containers {
                let started = one.start_time.as_ref().map(|MicroTime(at)| Time(*at));
                self.add(started.as_ref(), Rank::Started, || {
                    format!("eh/{hook}: started in {}", one.name)
                });
            }
            self.add(status.complete_time.as_ref(), Rank::Finished, || {
                format!("eh/{hook}: {}", status.state)
            });
        }
    }

    /// The life of a pod.
    pub(crate) fn of_pod(pod: &Pod, events: &[Event]) -> Timeline {
        let mut timeline = Timeline::default();
        timeline.add(
            pod.metadata.creation_timestamp.as_ref(),
            Rank::Created,
            || "created".to_owned(),
        );
        timeline.add(
            pod.metadata.deletion_timestamp.as_ref(),
            Rank::Finished,
            || "to be gone (deletion was asked for)".to_owned(),
        );
        let statuses = pod.status.iter().flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        });
        for status in statuses {
            let lives = [
                (
                    status.last_state.as_ref(),
                    Rank::StartedBefore,
                    Rank::EndedBefore,
                ),
                (status.state.as_ref(), Rank::Started, Rank::Ended),
            ];
            for (state, start, end) in lives {
                let Some(state) = state else {
                    continue;
                };
                if let Some(running) = &state.running {
                    timeline.add(running.started_at.as_ref(), start, || {
                        format!("{}: started", status.name)
                    });
                }
                if let Some(ended) = &state.terminated {
                    timeline.add(ended.started_at.as_ref(), start, || {
                        format!("{}: started", status.name)
                    });
                    timeline.add(ended.finished_at.as_ref(), end, || {
                        let reason = ended.reason.as_deref().unwrap_or("ended");
                        format!("{}: {reason}, exit code {}", status.name, ended.exit_code)
                    });
                }
            }
        }
        timeline.add_events(events);
        timeline
    }

    /// Adds notifications of a pod: when each was asked for and how it ended.
    pub(crate) fn add_notifications(&mut self, notifications: &[PodNotification]) {
        for object in notifications {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let notifier = &object.spec.notifier;
            self.add(
                object.metadata.creation_timestamp.as_ref(),
                Rank::Event,
                || format!("pn/{name}: {notifier:?} asked for"),
            );
            let complete = object
                .status
                .as_ref()
                .and_then(|s| s.complete_time.as_ref());
            self.add(complete, Rank::Finished, || {
                format!("pn/{name}: {}", object.state())
            });
        }
    }

    fn add(&mut self, at: Option<&Time>, rank: Rank, what: impl FnOnce() -> String) {
        if let Some(Time(at)) = at {
            self.moments.push(Moment {
                at: *at,
                exact: at.subsec_nanosecond() != 0,
                rank,
                what: what(),
            });
        }
    }

    fn add_events(&mut self, events: &[Event]) {
        for event in events {
            let exact = event.event_time.as_ref().map(|time| time.0);
            let last = event.last_timestamp.as_ref().map(|time| time.0);
            // A repeated event is told where it was last seen.
            let repeated = event.count.unwrap_or(1) > 1;
            let at = match (exact, last) {
                (Some(exact), _) if !repeated => exact,
                (_, Some(last)) => last,
                (Some(exact), None) => exact,
                (None, None) => match &event.metadata.creation_timestamp {
                    Some(created) => created.0,
                    None => continue,
                },
            };
            let kind = event.type_.as_deref().unwrap_or("Normal");
            let reason = event.reason.as_deref().unwrap_or_default();
            let message = event.message.as_deref().unwrap_or_default();
            let mark = if kind == "Normal" { "" } else { "warning " };
            let times = match event.count {
                Some(count) if count > 1 => format!(" ({count} times)"),
                _ => String::new(),
            };
            self.moments.push(Moment {
                at,
                exact: at.subsec_nanosecond() != 0,
                rank: Rank::Event,
                what: format!("{mark}event {reason}{times}: {message}"),
            });
        }
    }

    /// The lines: clock time, time since the first moment, what happened.
    pub(crate) fn render(&self) -> Table {
        let mut moments = self.moments.clone();
        moments.sort_by(|a, b| {
            (a.at.as_second(), a.rank, a.at, &a.what).cmp(&(
                b.at.as_second(),
                b.rank,
                b.at,
                &b.what,
            ))
        });
        moments.dedup();
        let mut table = Table::new(["", "", ""]);
        let Some(first) = moments.first().cloned() else {
            return table;
        };
        for moment in moments {
            table.row([clock(&moment), offset(&first, &moment), moment.what]);
        }
        table
    }
}

fn clock(moment: &Moment) -> String {
    let format = if moment.exact {
        "%H:%M:%S%.3fZ"
    } else {
        "%H:%M:%SZ"
    };
    moment.at.strftime(format).to_string()
}

/// Time since the first moment, as exact as both are.
fn offset(first: &Moment, moment: &Moment) -> String {
    if first.exact && moment.exact {
        let passed = moment.at.duration_since(first.at);
        format!("{:+.3}s", passed.as_secs_f64())
    } else {
        let passed = moment.at.as_second() - first.at.as_second();
        format!("{passed:+}s")
    }
}

/// How long something took, as far as its two times tell.
pub(crate) fn span(start: Option<&Time>, end: Option<&Time>) -> String {
    let (Some(Time(start)), Some(Time(end))) = (start, end) else {
        return "-".to_owned();
    };
    let passed = end.duration_since(*start);
    let exact = start.subsec_nanosecond() != 0 || end.subsec_nanosecond() != 0;
    if exact {
        format!("{:.3}s", passed.as_secs_f64().max(0.0))
    } else if passed.as_secs() <= 0 {
        // Two times cut to the same second are less than a second apart.
        "<1s".to_owned()
    } else {
        format!("{}s", passed.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn notification() -> PodNotification {
        serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "PodNotification",
            "metadata": {"name": "pn", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"podName": "db", "notifier": "lock"},
            "status": {
                "state": "Failed",
                "executor": "n1",
                "startTime": "2026-01-01T00:00:00Z",
                "completeTime": "2026-01-01T00:00:02Z",
                "containers": [{
                    "name": "main", "succeeded": false, "exitCode": 3,
                    "startTime": "2026-01-01T00:00:00Z", "completeTime": "2026-01-01T00:00:02Z",
                    "error": {"type": "HandlerFailed", "timestamp": "2026-01-01T00:00:02Z"},
                }],
            },
        }))
        .unwrap()
    }

    fn event(value: Value) -> Event {
        let mut value = value;
        value["metadata"] = json!({});
        value["involvedObject"] = json!({});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_notification_is_told_from_creation_to_end() {
        let events = [event(json!({
            "type": "Warning", "reason": "SignalNotHandled", "message": "no handler",
            "eventTime": "2026-01-01T00:00:00.250000Z",
        }))];
        let text = Timeline::of_notification(&notification(), &events)
            .render()
            .to_string();
        assert_eq!(
            text,
            "\
00:00:00Z      +0s  created: \"lock\" in pod db
00:00:00Z      +0s  claimed by n1
00:00:00Z      +0s  main: started
00:00:00.250Z  +0s  warning event SignalNotHandled: no handler
00:00:02Z      +2s  main: failed, 3
00:00:02Z      +2s  Failed
"
        );
    }

    #[test]
    fn offsets_have_decimals_where_both_times_have_them() {
        let exact = |at: &str| Moment {
            at: at.parse().unwrap(),
            exact: true,
            rank: Rank::Event,
            what: String::new(),
        };
        let first = exact("2026-01-01T00:00:00.100Z");
        let second = exact("2026-01-01T00:00:01.223Z");
        assert_eq!(offset(&first, &second), "+1.123s");
        let cut = Moment {
            exact: false,
            ..second
        };
        assert_eq!(offset(&first, &cut), "+1s");
    }

    #[test]
    fn spans_say_no_more_than_is_known() {
        let time = |text: &str| Time(text.parse().unwrap());
        let check = |start: &str, end: &str, expected: &str| {
            assert_eq!(span(Some(&time(start)), Some(&time(end))), expected);
        };
        check("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "<1s");
        check("2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z", "3s");
        check("2026-01-01T00:00:03Z", "2026-01-01T00:00:00Z", "<1s");
        check(
            "2026-01-01T00:00:00.5Z",
            "2026-01-01T00:00:00.75Z",
            "0.250s",
        );
        assert_eq!(span(None, Some(&time("2026-01-01T00:00:00Z"))), "-");
    }

    #[test]
    fn a_repeated_event_is_told_once_where_it_was_last_seen() {
        let events = [event(json!({
            "type": "Warning", "reason": "BackOff", "message": "restarting", "count": 4,
            "eventTime": "2026-01-01T00:00:00.250000Z",
            "lastTimestamp": "2026-01-01T00:05:00Z",
        }))];
        let text = Timeline::of_pod(&Pod::default(), &events)
            .render()
            .to_string();
        assert_eq!(
            text,
            "00:05:00Z  +0s  warning event BackOff (4 times): restarting\n"
        );
    }

    #[test]
    fn a_pod_that_restarted_shows_both_lives_in_order() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "db", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 1,
                "lastState": {"terminated": {
                    "exitCode": 1, "reason": "Error",
                    "startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:05Z"}},
                "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}},
            }]},
        }))
        .unwrap();
        assert_eq!(
            Timeline::of_pod(&pod, &[]).render().to_string(),
            "\
00:00:00Z  +0s  created
00:00:01Z  +1s  main: started
00:00:05Z  +5s  main: Error, exit code 1
00:00:05Z  +5s  main: started
"
        );
    }
}
