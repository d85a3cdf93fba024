//! The definitions for stock clusters: what they look like, and that their CEL rules are valid
//! and decide as the embedded server does.

// A test that cannot go on stops; and `json!` reads best as the argument itself.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::path::PathBuf;

use belay_api::crd::crds;
use serde_json::Value;

/// Some servers drop the format, and with it the bounds that it implies.
#[test]
fn every_number_of_32_bits_has_bounds() {
    fn unbounded(schema: &Value, path: &str, found: &mut Vec<String>) {
        if schema["format"] == "int32"
            && (schema["minimum"].is_null() || schema["maximum"].is_null())
        {
            found.push(path.to_owned());
        }
        match schema {
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, field)| unbounded(field, &format!("{path}.{name}"), found)),
            Value::Array(items) => items.iter().for_each(|item| unbounded(item, path, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for crd in crds() {
        unbounded(
            &serde_json::to_value(&crd).unwrap(),
            &crd.spec.names.kind,
            &mut found,
        );
    }
    assert!(found.is_empty(), "{found:?}");
}

/// The file that `belay crds` is compared with. Written anew with
/// `UPDATE_GOLDEN=1 cargo test -p belay-api --test crds`.
#[test]
fn the_definitions_are_those_of_the_golden_file() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/crds.yaml");
    let mut text = String::new();
    for crd in crds() {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&crd).unwrap());
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == text,
        "the definitions changed. If that is meant, run\n  UPDATE_GOLDEN=1 cargo test -p belay-api --test crds\nand look at the difference in {}",
        path.display()
    );
}

mod cel {
    use std::sync::LazyLock;

    use kube_cel::{CompiledSchema, Validator};
    use serde_json::{Value, json};

    use super::crds;

    /// The root schema of a kind's definition.
    pub(super) fn schema_of(kind: &str) -> Value {
        let crd = crds()
            .into_iter()
            .find(|crd| crd.spec.names.kind == kind)
            .unwrap();
        let crd = serde_json::to_value(crd).unwrap();
        crd.pointer("/spec/versions/0/schema/openAPIV3Schema")
            .unwrap()
            .clone()
    }

    fn schema() -> Value {
        schema_of("PodNotification")
    }

    pub(super) type Compiled = LazyLock<(Value, CompiledSchema)>;

    pub(super) fn compile(kind: &str) -> (Value, CompiledSchema) {
        let schema = schema_of(kind);
        let compiled = kube_cel::compile_schema(&schema);
        (schema, compiled)
    }

    fn refusals(new: &Value, old: Option<&Value>) -> Vec<String> {
        static SCHEMA: Compiled = LazyLock::new(|| compile("PodNotification"));
        refusals_by(&SCHEMA, new, old)
    }

    /// What a stock server's CEL would say, in its words.
    pub(super) fn refusals_by(
        (schema, compiled): &(Value, CompiledSchema),
        new: &Value,
        old: Option<&Value>,
    ) -> Vec<String> {
        let default = |object: &Value| kube_cel::apply_defaults(schema, object);
        let (new, old) = (default(new), old.map(default));
        match Validator::new().validate_compiled(compiled, &new, old.as_ref()) {
            Ok(()) => Vec::new(),
            Err(errors) => errors
                .into_vec()
                .into_iter()
                .map(|error| error.message)
                .collect(),
        }
    }

    fn object(spec: Value, status: Value) -> Value {
        json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
               "metadata": {"name": "n"}, "spec": spec, "status": status})
    }

    fn spec() -> Value {
        json!({"podName": "db", "notifier": "lock"})
    }

    #[test]
    fn every_rule_compiles() {
        for crd in crds() {
            let (_, compiled) = compile(&crd.spec.names.kind);
            assert_eq!(compiled.compilation_errors().len(), 0);
        }
    }

    #[test]
    fn a_notification_without_status_is_accepted_and_reads_new() {
        let bare = json!({"metadata": {"name": "n"}, "spec": spec()});
        assert!(refusals(&bare, None).is_empty());
        let defaulted = kube_cel::apply_defaults(&schema(), &bare);
        assert_eq!(defaulted["status"]["state"], "New");
        assert_eq!(defaulted["spec"]["deadlineSeconds"], 60);
    }

    #[test]
    fn the_spec_is_immutable() {
        let old = object(spec(), json!({}));
        assert!(refusals(&old, Some(&old)).is_empty());
        let new = object(json!({"podName": "db", "notifier": "unlock"}), json!({}));
        assert_eq!(refusals(&new, Some(&old)), ["field is immutable"]);
    }

    #[test]
    fn a_notifiers_name_part_is_at_most_63_bytes() {
        let named = |name: &str| object(json!({"podName": "db", "notifier": name}), json!({}));
        let (fits, long) = ("x".repeat(63), "x".repeat(64));
        for good in [fits.clone(), format!("example.com/{fits}")] {
            assert!(refusals(&named(&good), None).is_empty());
        }
        for bad in [long.clone(), format!("example.com/{long}")] {
            assert_eq!(refusals(&named(&bad), None).len(), 1);
        }
    }

    /// Every pair of statuses is judged alike by the definition and by the embedded server.
    #[test]
    fn the_definition_and_the_embedded_server_agree_on_statuses() {
        let error = json!({"type": "Expired", "message": "m", "timestamp": "2026-01-01T00:00:00Z"});
        let ok = json!({"name": "c", "succeeded": true});
        let bad = json!({"name": "c", "succeeded": false, "error": error});
        let statuses = [
            json!({"state": "New"}),
            json!({"state": "New", "nodeName": "a", "podUID": "1"}),
            json!({"state": "New", "nodeName": "b", "podUID": "2"}),
            json!({"state": "New", "nodeName": "a", "podUID": "1", "executor": "x",
                   "startTime": "2026-01-01T00:00:00Z"}),
            json!({"state": "New", "completeTime": "2026-01-01T00:00:00Z"}),
            json!({"state": "Succeeded"}),
            json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z"}),
            json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z",
                   "containers": [ok]}),
            json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z",
                   "containers": [bad]}),
            json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z",
                   "nodeName": "a", "podUID": "1", "containers": [ok]}),
            json!({"state": "Failed", "completeTime": "2026-01-01T00:00:00Z"}),
            json!({"state": "Failed", "completeTime": "2026-01-01T00:00:00Z", "error": error}),
            json!({"state": "Failed", "completeTime": "2026-01-01T00:00:00Z", "containers": [bad]}),
            json!({"state": "Failed", "completeTime": "2026-01-01T00:00:01Z", "error": error}),
            json!({"state": "Failed", "completeTime": "2026-01-01T00:00:00Z", "error": error,
                   "conditions": [{"type": "HoldForciblyReleased", "status": "True",
                                   "reason": "Deadline", "message": "",
                                   "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        ];
        let (mut accepted, mut refused) = (0, 0);
        for old in &statuses {
            for new in &statuses {
                let (old, new) = (object(spec(), old.clone()), object(spec(), new.clone()));
                let stock = refusals(&new, Some(&old));
                let ours = belay_api::rules::POD_NOTIFICATION
                    .validate_status(&new, &old)
                    .errors;
                assert_eq!(
                    stock.is_empty(),
                    ours.is_empty(),
                    "from {} to {}: {stock:?} and {ours:?}",
                    old["status"],
                    new["status"]
                );
                if ours.is_empty() {
                    accepted += 1;
                } else {
                    refused += 1;
                }
            }
        }
        assert!(accepted >= 20 && refused >= 100, "{accepted} and {refused}");
    }

    #[test]
    fn a_status_may_not_be_taken_away() {
        let old = object(spec(), json!({"state": "New", "nodeName": "a"}));
        let new = json!({"metadata": {"name": "n"}, "spec": spec()});
        // A server fills the default in first, and then the node's name is missing.
        assert_eq!(refusals(&new, Some(&old)), ["nodeName may be set once"]);
    }
}

mod fanout {
    use std::sync::LazyLock;

    use serde_json::{Value, json};

    use super::cel::{Compiled, compile, refusals_by};

    static SCHEMA: Compiled = LazyLock::new(|| compile("Notification"));

    fn object(policy: &str, status: Value) -> Value {
        let spec = json!({"selector": {}, "notifier": "reload", "policy": policy});
        json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification",
               "metadata": {"name": "n"}, "spec": spec, "status": status})
    }

    #[test]
    fn a_notification_without_status_is_accepted_and_reads_new() {
        let bare = json!({"metadata": {"name": "n"}, "spec": {"selector": {}, "notifier": "x"}});
        assert!(refusals_by(&SCHEMA, &bare, None).is_empty());
        let stored = kube_cel::apply_defaults(&SCHEMA.0, &bare);
        assert_eq!(stored["status"]["state"], "New");
        assert_eq!(stored["spec"]["policy"], "AllPods");
        assert_eq!(stored["spec"]["parallelism"], 0);
    }

    /// Every pair of statuses is judged alike by the definition and by the embedded server.
    #[test]
    fn the_definition_and_the_embedded_server_agree_on_statuses() {
        let at = "2026-01-01T00:00:00Z";
        let error = json!({"type": "TooManyFailures", "message": "m", "timestamp": at});
        let statuses = [
            json!({"state": "New"}),
            json!({"state": "New", "startTime": at, "targetCount": 3, "pending": ["a/1", "b/2"]}),
            json!({"state": "New", "startTime": "2026-01-01T00:00:01Z"}),
            json!({"state": "New", "completeTime": at}),
            json!({"state": "New", "startTime": at, "succeededCount": 2, "failedCount": 1,
                   "settled": {"succeededCount": 1, "failedCount": 0, "podUIDs": ["1"]}}),
            json!({"state": "Succeeded", "startTime": at}),
            json!({"state": "Succeeded", "startTime": at, "completeTime": at, "succeededCount": 3}),
            json!({"state": "Succeeded", "startTime": at, "completeTime": at, "succeededCount": 4}),
            json!({"state": "Succeeded", "startTime": at, "completeTime": at, "failedCount": 1}),
            json!({"state": "Failed", "startTime": at, "completeTime": at}),
            json!({"state": "Failed", "startTime": at, "completeTime": at, "failedCount": 1}),
            json!({"state": "Failed", "startTime": at, "completeTime": at, "error": error}),
            json!({"state": "Failed", "startTime": at, "error": error}),
        ];
        let (mut accepted, mut refused) = (0, 0);
        for policy in ["AllPods", "PreExistingPods"] {
            for old in &statuses {
                for new in &statuses {
                    let (old, new) = (object(policy, old.clone()), object(policy, new.clone()));
                    let (old, new) = (
                        kube_cel::apply_defaults(&SCHEMA.0, &old),
                        kube_cel::apply_defaults(&SCHEMA.0, &new),
                    );
                    let stock = refusals_by(&SCHEMA, &new, Some(&old));
                    let ours = belay_api::rules::NOTIFICATION
                        .validate_status(&new, &old)
                        .errors;
                    assert_eq!(
                        stock.is_empty(),
                        ours.is_empty(),
                        "{policy} from {} to {}: {stock:?} and {ours:?}",
                        old["status"],
                        new["status"]
                    );
                    if ours.is_empty() {
                        accepted += 1;
                    } else {
                        refused += 1;
                    }
                }
            }
        }
        assert!(accepted >= 20 && refused >= 100, "{accepted} and {refused}");
    }
}

mod hooks {
    use std::sync::LazyLock;

    use belay_api::gates::FeatureGates;
    use belay_api::rules::Rules;
    use serde_json::{Value, json};

    use super::cel::{Compiled, compile, refusals_by};

    static HOOK: Compiled = LazyLock::new(|| compile("ExecutionHook"));
    static ACTION: Compiled = LazyLock::new(|| compile("HookAction"));
    static POD_ACTION: Compiled = LazyLock::new(|| compile("PodAction"));

    /// Every pair of statuses is judged alike by the definition and by the embedded server.
    fn agree(schema: &Compiled, rules: &dyn Rules, spec: &Value, statuses: &[Value]) {
        let (mut accepted, mut refused) = (0, 0);
        let object = |status: &Value| {
            let object = json!({"metadata": {"name": "n"}, "spec": spec, "status": status});
            kube_cel::apply_defaults(&schema.0, &object)
        };
        for old in statuses.iter().map(object) {
            for new in statuses.iter().map(object) {
                let stock = refusals_by(schema, &new, Some(&old));
                let ours = rules.validate_status(&new, &old).errors;
                assert_eq!(
                    stock.is_empty(),
                    ours.is_empty(),
                    "from {} to {}: {stock:?} and {ours:?}",
                    old["status"],
                    new["status"]
                );
                if ours.is_empty() {
                    accepted += 1;
                } else {
                    refused += 1;
                }
            }
        }
        assert!(accepted >= 20 && refused >= 50, "{accepted} and {refused}");
    }

    #[test]
    fn the_definition_and_the_embedded_server_agree_on_what_became_of_hooks() {
        let at = "2026-01-01T00:00:00Z";
        let error = json!({"errorType": "ExecutionTimeout", "message": "m"});
        let one = |succeed: Value, error: &Value| json!([{"podName": "p", "containerName": "c", "timestamp": 7, "succeed": succeed, "error": error}]);
        let (good, bad) = (
            json!([{"podName": "p", "containerName": "c", "succeed": true}]),
            one(json!(false), &error),
        );
        let trying =
            json!([{"podName": "p", "containerName": "c", "timestamp": 7, "error": error}]);
        let action = |command: &str| json!({"uid": "u", "resourceVersion": "1", "actionTimeoutSeconds": 3, "action": {"exec": {"command": [command]}}});
        let statuses = [
            json!({}),
            json!({"startTime": at, "action": action("a"), "hookStatuses": trying}),
            json!({"startTime": at, "action": action("b"), "hookStatuses": trying}),
            json!({"startTime": "2026-01-01T00:00:01Z"}),
            json!({"completeTime": at}),
            json!({"actionSucceed": true, "hookStatuses": good}),
            json!({"actionSucceed": true, "completeTime": at}),
            json!({"actionSucceed": true, "completeTime": at, "hookStatuses": trying}),
            json!({"actionSucceed": true, "completeTime": at, "hookStatuses": bad}),
            json!({"actionSucceed": true, "completeTime": at, "hookStatuses": good}),
            json!({"actionSucceed": false, "completeTime": at, "hookStatuses": good}),
            json!({"actionSucceed": false, "completeTime": at, "hookStatuses": bad}),
            json!({"actionSucceed": false, "completeTime": at, "hookStatuses": trying}),
            json!({"actionSucceed": false, "completeTime": at, "error": error}),
            json!({"actionSucceed": false, "completeTime": at}),
            json!({"startTime": at, "action": action("a"), "actionSucceed": true, "completeTime": at, "hookStatuses": good}),
        ];
        let spec = json!({"podSelection": {}, "actionName": "a"});
        agree(&HOOK, belay_api::rules::EXECUTION_HOOK, &spec, &statuses);
    }

    #[test]
    fn the_definition_and_the_embedded_server_agree_on_what_became_of_podactions() {
        let at = "2026-01-01T00:00:00Z";
        let error = json!({"errorType": "ExecutionFailwithError", "message": "m"});
        let with = |fields: Value| {
            let mut container = json!({"name": "c"});
            let all = container.as_object_mut().unwrap();
            all.extend(fields.as_object().unwrap().clone());
            json!([container])
        };
        let first = json!({"containerID": "1", "startTime": "2026-01-01T00:00:00.5Z"});
        let second = json!({"containerID": "2", "startTime": "2026-01-01T00:00:00.5Z"});
        let later = json!({"containerID": "1", "startTime": "2026-01-01T00:00:01.5Z"});
        let statuses = [
            json!({"state": "New"}),
            json!({"state": "New", "executor": "x", "startTime": at}),
            json!({"state": "New", "executor": "y", "startTime": at}),
            json!({"state": "New", "containers": with(first)}),
            json!({"state": "New", "containers": with(second)}),
            json!({"state": "New", "containers": with(later)}),
            json!({"state": "New", "containers": with(json!({"error": error}))}),
            json!({"state": "New", "containers": with(json!({"succeed": true}))}),
            json!({"state": "New", "containers": with(json!({"succeed": false}))}),
            json!({"state": "New", "containers": with(json!({"succeed": false, "error": error}))}),
            json!({"state": "New", "completeTime": at}),
            json!({"state": "Succeeded", "completeTime": at}),
            json!({"state": "Succeeded", "containers": with(json!({"succeed": true}))}),
            json!({"state": "Succeeded", "completeTime": at,
                   "containers": with(json!({"succeed": true}))}),
            json!({"state": "Failed", "completeTime": at}),
            json!({"state": "Failed", "completeTime": at, "error": error}),
            json!({"state": "Failed", "completeTime": at,
                   "containers": with(json!({"succeed": false, "error": error}))}),
        ];
        let spec = json!({
            "hook": {"name": "h", "uid": "u"}, "podName": "p", "podUID": "v", "nodeName": "n",
            "containers": ["c"], "action": {"exec": {"command": ["a"]}},
            "actionTimeoutSeconds": 30, "deadlineSeconds": 60,
        });
        agree(&POD_ACTION, belay_api::rules::POD_ACTION, &spec, &statuses);
    }

    #[test]
    fn the_definition_and_the_embedded_server_agree_on_actions() {
        let exec = json!({"command": ["a"]});
        for (action, good) in [
            (json!({"exec": exec}), true),
            (json!({"exec": {}}), false),
            (json!({"exec": {"command": []}}), false),
            (json!({}), false),
            (json!({"sleep": {"seconds": 1}}), false),
            (json!({"exec": exec, "sleep": {"seconds": 1}}), false),
            (json!({"exec": exec, "tcpSocket": {"port": 1}}), false),
            (json!({"httpGet": {"port": 80}}), true),
            (json!({"httpGet": {"port": "web"}}), true),
            (json!({"httpGet": {"port": 80, "scheme": "HTTPS"}}), true),
            (json!({"httpGet": {"port": 80, "scheme": "GOPHER"}}), false),
            (json!({"httpGet": {"port": 80, "host": "db"}}), false),
            (json!({"tcpSocket": {"port": 5432}}), true),
            (json!({"tcpSocket": {"port": 5432, "host": "db"}}), false),
        ] {
            let object = json!({"metadata": {"name": "a"}, "action": action});
            let stock = refusals_by(&ACTION, &object, None);
            let mut defaulted = object.clone();
            let rules = belay_api::rules::HOOK_ACTION;
            rules.default(&mut defaulted);
            let ours = rules.validate_create(&defaulted, &FeatureGates::default());
            assert_eq!(ours.errors.is_empty(), good, "{action} {ours:?}");
            assert_eq!(stock.is_empty(), good, "{action} {stock:?}");
        }
    }

    #[test]
    fn ports_are_bounded_by_the_definition_as_by_the_embedded_server() {
        for (handler, port) in [
            ("httpGet", json!(0)),
            ("tcpSocket", json!(65536)),
            ("tcpSocket", json!("a-name-of-17-char")),
            ("httpGet", json!("UPPER")),
        ] {
            let mut object = json!({"action": {handler: {"port": port}}});
            let rules = belay_api::rules::HOOK_ACTION;
            rules.default(&mut object);
            let ours = rules.validate_create(&object, &FeatureGates::default());
            assert!(!ours.errors.is_empty(), "{port}");
            let at = format!("/properties/action/properties/{handler}/properties/port");
            let port = ACTION.0.pointer(&at).unwrap();
            assert_eq!(
                (&port["minimum"], &port["maximum"]),
                (&json!(1.0), &json!(65535.0))
            );
            assert_eq!(port["maxLength"], 15);
            assert_eq!(port["pattern"], "^[a-z0-9-]*[a-z][a-z0-9-]*$");
        }
    }

    #[test]
    fn what_a_hook_selects_is_immutable_and_an_action_is_not() {
        let hook = |action: &str| json!({"metadata": {"name": "h"}, "spec": {"podSelection": {}, "actionName": action}});
        let refusals = refusals_by(&HOOK, &hook("b"), Some(&hook("a")));
        assert_eq!(refusals, ["field is immutable"]);
        let action = |command: &str| json!({"metadata": {"name": "h"}, "action": {"exec": {"command": [command]}}});
        assert!(refusals_by(&ACTION, &action("b"), Some(&action("a"))).is_empty());
    }
}
