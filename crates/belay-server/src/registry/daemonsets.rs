//! Daemon sets: their controller does the work, by pods that they own.

use belay_api::metadata::NameRule;
use belay_api::selector::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use super::{Column, Kind, Plain, age, column, or_none, text};

pub(super) static DAEMON_SETS: Kind = Kind {
    group: "apps",
    version: "v1",
    kind: "DaemonSet",
    plural: "daemonsets",
    singular: "daemonset",
    short_names: &["ds"],
    categories: &["all"],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &["status"],
    fields: &[],
    columns: &[
        Column {
            name: "Name",
            format: "name",
            description: "Its name.",
            priority: 0,
        },
        column("Desired", 0, "Nodes that should run its pod."),
        column("Current", 0, "Of these, nodes that have its pod."),
        column("Ready", 0, "Of these, nodes where it is ready."),
        column(
            "Up-to-date",
            0,
            "Of these, nodes where it is of the current template.",
        ),
        column(
            "Available",
            0,
            "Of these, nodes where it has been ready for long enough.",
        ),
        column(
            "Node Selector",
            0,
            "The labels of nodes that should run it.",
        ),
        column("Age", 0, "Time since it was created."),
        column("Containers", 1, "Names of the template's containers."),
        column("Images", 1, "Images of the template's containers."),
        column("Selector", 1, "The labels of its pods."),
    ],
    cells: |o, now| {
        let count = |field: &str| {
            let count = o.pointer(&format!("/status/{field}"));
            count.and_then(Value::as_i64).unwrap_or(0).into()
        };
        let containers = |field: &str| {
            let list = o.pointer("/spec/template/spec/containers");
            let list = list.and_then(Value::as_array).into_iter().flatten();
            let texts: Vec<&str> = list.filter_map(|one| one[field].as_str()).collect();
            or_none(&texts.join(","))
        };
        vec![
            text(o, "/metadata/name").into(),
            count("desiredNumberScheduled"),
            count("currentNumberScheduled"),
            count("numberReady"),
            count("updatedNumberScheduled"),
            count("numberAvailable"),
            or_none(&labels(o.pointer("/spec/template/spec/nodeSelector"))),
            age::of(o, now),
            containers("name"),
            containers("image"),
            or_none(&selector(o.pointer("/spec/selector"))),
        ]
    },
    strategic_merge: true,
    generation: true,
    unconditional_update: true,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Plain(belay_api::rules::DAEMON_SET),
};

fn labels(map: Option<&Value>) -> String {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    let pairs: Vec<String> = entries
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.join(",")
}

fn selector(selector: Option<&Value>) -> String {
    selector
        .and_then(|selector| serde_json::from_value::<meta::LabelSelector>(selector.clone()).ok())
        .and_then(|selector| LabelSelector::try_from(&selector).ok())
        .map(|selector| selector.to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use serde_json::json;

    #[test]
    fn a_row_reads_as_kubectl_writes_it() {
        let set = json!({
            "metadata": {"name": "d", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {
                "selector": {"matchLabels": {"app": "d"}},
                "template": {"spec": {
                    "nodeSelector": {"disk": "ssd", "zone": "a"},
                    "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}],
                }},
            },
            "status": {
                "desiredNumberScheduled": 3, "currentNumberScheduled": 2, "numberReady": 1,
                "updatedNumberScheduled": 2,
            },
        });
        let cells = (DAEMON_SETS.cells)(&set, Timestamp::UNIX_EPOCH);
        assert_eq!(
            json!(cells),
            json!([
                "d",
                3,
                2,
                1,
                2,
                0,
                "disk=ssd,zone=a",
                "0s",
                "a,b",
                "x,y",
                "app=d"
            ])
        );
    }
}
