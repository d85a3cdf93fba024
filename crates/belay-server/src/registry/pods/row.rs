//! A pod in one row, with the words that a stock server finds for it.

use jiff::Timestamp;
use serde_json::Value;

use super::super::{age, or_none, text};
use crate::object::is_terminating;

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let seen = Seen::of(pod);
    let restarts = match seen.restarts {
        Restarts { count, last } if count > 0 && !last.is_empty() => {
            let ago = age::since(last, now);
            format!("{count} ({} ago)", ago.as_str().unwrap_or_default())
        }
        Restarts { count, .. } => count.to_string(),
    };
    vec![
        text(pod, "/metadata/name").into(),
        format!("{}/{}", seen.ready, seen.total).into(),
        seen.word.into(),
        restarts.into(),
        age::of(pod, now),
        or_none(text(pod, "/status/podIP")),
        or_none(text(pod, "/spec/nodeName")),
        or_none(text(pod, "/status/nominatedNodeName")),
        or_none(""),
    ]
}

/// All of a pod's containers taken together.
#[derive(Debug)]
struct Seen<'a> {
    total: usize,
    ready: usize,
    restarts: Restarts<'a>,
    /// The most telling of the pod's phase and its containers' states.
    word: String,
}

#[derive(Debug, Default, Clone, Copy)]
struct Restarts<'a> {
    count: i64,
    /// When the last of them ended; empty if nobody knows.
    last: &'a str,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, container: &'a Value) {
        self.count += container["restartCount"].as_i64().unwrap_or_default();
        let ended = text(container, "/lastState/terminated/finishedAt");
        self.last = self.last.max(ended);
    }
}

impl<'a> Seen<'a> {
    fn of(pod: &'a Value) -> Self {
        let phase = text(pod, "/status/phase");
        let reason = text(pod, "/status/reason");
        let mut seen = Self {
            total: list(pod, "/spec/containers").count() + sidecars(pod).count(),
            ready: 0,
            restarts: Restarts::default(),
            word: if reason.is_empty() { phase } else { reason }.to_owned(),
        };
        let gated = |it: &Value| it["type"] == "PodScheduled" && it["reason"] == "SchedulingGated";
        if list(pod, "/status/conditions").any(gated) {
            "SchedulingGated".clone_into(&mut seen.word);
        }
        if seen.initialised(pod) || condition(pod, "Initialized") {
            seen.containers(pod);
        }
        // What has come to its end is not on its way there any more.
        if is_terminating(pod) && !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut seen.word);
        }
        seen
    }

    /// Looks at the init containers up to the first that still has something to do, and says
    /// whether there was none. Sidecars that have started are where they belong.
    fn initialised(&mut self, pod: &'a Value) -> bool {
        let total = list(pod, "/spec/initContainers").count();
        for (index, container) in list(pod, "/status/initContainerStatuses").enumerate() {
            self.restarts.add(container);
            let state = &container["state"];
            let (ended, waiting) = (&state["terminated"], text(state, "/waiting/reason"));
            if ended["exitCode"] == 0 {
                continue;
            }
            if container["started"] == true && is_sidecar(pod, container) {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            self.word = if !ended.is_null() {
                format!("Init:{}", how_it_ended(ended))
            } else if matches!(waiting, "" | "PodInitializing") {
                format!("Init:{index}/{total}")
            } else {
                format!("Init:{waiting}")
            };
            return false;
        }
        true
    }

    /// Looks at what runs once the pod is initialised. How often its init containers had to be
    /// tried is past then.
    fn containers(&mut self, pod: &'a Value) {
        self.restarts = Restarts::default();
        for status in list(pod, "/status/initContainerStatuses") {
            if is_sidecar(pod, status) {
                self.restarts.add(status);
            }
        }
        let (mut running, mut failed) = (false, None);
        let statuses: Vec<&Value> = list(pod, "/status/containerStatuses").collect();
        for container in statuses.into_iter().rev() {
            self.restarts.add(container);
            let state = &container["state"];
            let (ended, waiting) = (&state["terminated"], text(state, "/waiting/reason"));
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.word);
            } else if !ended.is_null() {
                self.word = how_it_ended(ended);
                if ended["exitCode"] != 0 {
                    failed = Some(self.word.clone());
                }
            } else if container["ready"] == true && !state["running"].is_null() {
                running = true;
                self.ready += 1;
            }
        }
        if self.word == "Completed" {
            match failed {
                _ if running && condition(pod, "Ready") => "Running".clone_into(&mut self.word),
                Some(failed) => self.word = failed,
                None if running => "NotReady".clone_into(&mut self.word),
                None => {}
            }
        }
    }
}

fn how_it_ended(terminated: &Value) -> String {
    let reason = text(terminated, "/reason");
    let number = |field: &str| terminated[field].as_i64().unwrap_or_default();
    match (reason, number("signal")) {
        ("", 0) => format!("ExitCode:{}", number("exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn list<'a>(pod: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let items = pod.pointer(pointer).and_then(Value::as_array);
    items.into_iter().flatten()
}

fn sidecars(pod: &Value) -> impl Iterator<Item = &Value> {
    list(pod, "/spec/initContainers").filter(|it| it["restartPolicy"] == "Always")
}

fn is_sidecar(pod: &Value, status: &Value) -> bool {
    sidecars(pod).any(|it| it["name"] == status["name"])
}

fn condition(pod: &Value, kind: &str) -> bool {
    list(pod, "/status/conditions").any(|it| it["type"] == kind && it["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// READY, STATUS and RESTARTS of a pod, a minute into the epoch.
    fn row(pod: &Value) -> [String; 3] {
        let cells = cells(pod, Timestamp::UNIX_EPOCH + jiff::Span::new().minutes(1));
        [1, 2, 3].map(|index| cells[index].as_str().unwrap_or_default().to_owned())
    }

    /// A pod with the init container `setup`, the sidecar `proxy` and the container `main`.
    fn pod(phase: &str, init: &Value, containers: &Value) -> Value {
        json!({
            "metadata": {"name": "p"},
            "spec": {
                "initContainers": [
                    {"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "main"}],
            },
            "status": {
                "phase": phase,
                "initContainerStatuses": init,
                "containerStatuses": containers,
            },
        })
    }

    fn waits(name: &str, reason: &str) -> Value {
        json!({"name": name, "state": {"waiting": {"reason": reason}}, "ready": false,
            "started": false, "restartCount": 0})
    }

    fn runs(name: &str, ready: bool) -> Value {
        json!({"name": name, "state": {"running": {}}, "ready": ready, "started": true,
            "restartCount": 0})
    }

    fn ended(name: &str, code: i64, reason: &str) -> Value {
        json!({"name": name, "ready": code == 0, "started": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "reason": reason}}})
    }

    fn restarted(mut status: Value, count: i64) -> Value {
        status["restartCount"] = count.into();
        status["lastState"] = json!({"terminated": {"finishedAt": "1970-01-01T00:00:30Z"}});
        status
    }

    #[test]
    fn a_sidecar_counts_as_a_container_and_holds_the_pod_up_only_until_it_has_started() {
        let setup = ended("setup", 0, "Completed");
        let starting = json!({"name": "proxy", "state": {"running": {}}, "started": false});
        let initialising = waits("main", "PodInitializing");
        let crashing = restarted(waits("main", "CrashLoopBackOff"), 3);
        let broken = restarted(waits("proxy", "CrashLoopBackOff"), 2);
        for (init, main, expected) in [
            (
                [
                    waits("setup", "PodInitializing"),
                    waits("proxy", "PodInitializing"),
                ],
                &initialising,
                ["0/2", "Init:0/2", "0"],
            ),
            (
                [
                    restarted(runs("setup", false), 1),
                    waits("proxy", "PodInitializing"),
                ],
                &initialising,
                ["0/2", "Init:0/2", "1 (30s ago)"],
            ),
            (
                [setup.clone(), starting],
                &initialising,
                ["0/2", "Init:1/2", "0"],
            ),
            (
                [setup.clone(), broken],
                &initialising,
                ["0/2", "Init:CrashLoopBackOff", "2 (30s ago)"],
            ),
            (
                [ended("setup", 1, "Error"), waits("proxy", "")],
                &initialising,
                ["0/2", "Init:Error", "0"],
            ),
            (
                [setup.clone(), runs("proxy", true)],
                &initialising,
                ["1/2", "PodInitializing", "0"],
            ),
            (
                [restarted(setup.clone(), 4), runs("proxy", true)],
                &runs("main", true),
                ["2/2", "Running", "0"],
            ),
            (
                [setup.clone(), runs("proxy", false)],
                &runs("main", true),
                ["1/2", "Running", "0"],
            ),
            (
                [setup, restarted(runs("proxy", true), 2)],
                &crashing,
                ["1/2", "CrashLoopBackOff", "5 (30s ago)"],
            ),
        ] {
            let pod = pod("Running", &json!(init), &json!([main]));
            assert_eq!(row(&pod), expected, "{pod}");
        }
    }

    #[test]
    fn a_sidecar_that_starts_again_makes_nothing_initialise_again() {
        let init = json!([
            ended("setup", 0, "Completed"),
            restarted(waits("proxy", "Error"), 1)
        ]);
        let mut pod = pod("Running", &init, &json!([runs("main", true)]));
        pod["status"]["conditions"] = json!([{"type": "Initialized", "status": "True"}]);
        // The word stays the one of the sidecar, as no container of its own has a better one.
        assert_eq!(row(&pod), ["1/2", "Init:Error", "1 (30s ago)"]);
    }

    #[test]
    fn the_status_column_tells_the_most_useful_word() {
        let check = |pod: Value, expected: &str| {
            assert_eq!(row(&pod)[1], expected, "{pod}");
        };
        check(json!({"status": {"phase": "Pending"}}), "Pending");
        let gated =
            json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
        check(
            json!({"status": {"phase": "Pending", "conditions": gated}}),
            "SchedulingGated",
        );
        let none = json!([]);
        let crashing = json!([waits("main", "CrashLoopBackOff")]);
        check(pod("Running", &none, &crashing), "CrashLoopBackOff");
        let completed = json!([ended("main", 0, "Completed")]);
        check(pod("Succeeded", &none, &completed), "Completed");
        let killed = json!([{"state": {"terminated": {"exitCode": 137, "signal": 9}}}]);
        check(pod("Failed", &none, &killed), "Signal:9");
        let both = json!([ended("main", 0, "Completed"), ended("other", 2, "Error")]);
        check(pod("Failed", &none, &both), "Error");
        let half = json!([ended("main", 0, "Completed"), runs("other", true)]);
        let mut half = pod("Running", &none, &half);
        check(half.clone(), "NotReady");
        half["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        check(half, "Running");
    }

    #[test]
    fn a_deleted_pod_is_terminating_until_it_has_ended() {
        let completed = json!([ended("main", 0, "Completed")]);
        for (phase, expected) in [
            ("Pending", "Terminating"),
            ("Running", "Terminating"),
            ("Succeeded", "Completed"),
            ("Failed", "Completed"),
        ] {
            let mut pod = pod(phase, &json!([]), &completed);
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            assert_eq!(row(&pod)[1], expected, "{phase}");
        }
    }
}
