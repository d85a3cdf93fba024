//! The promises of the container notifier proposal (KEP-1977) about what may be declared and asked
//! for. Each test quotes the sentence it is about, and runs on the stage that the file including this
//! one gives.

use belay_testkit::{
    FANOUTS, NOTIFICATIONS, PODS, Rest, Stage, fanout, lines, notification, pod, rest::name,
};
use http::Method;
use serde_json::{Value, json};

const ANNOTATION: &str = "apps.k8s.io/notifiers";

/// Paths of the fields that a refusal complains about.
pub(crate) fn causes(status: &Value) -> Vec<String> {
    let causes = status["details"]["causes"].as_array();
    let mut fields: Vec<String> = causes
        .into_iter()
        .flatten()
        .filter_map(|cause| cause["field"].as_str())
        .map(str::to_owned)
        .collect();
    fields.sort();
    fields.dedup();
    fields
}

/// "PodName ... Required." "Notifier ... Required."
#[tokio::test(flavor = "multi_thread")]
async fn pod_name_and_notifier_are_required() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    for field in ["podName", "notifier"] {
        let mut absent = notification("incomplete", "p", "n").build();
        absent["spec"]
            .as_object_mut()
            .map(|spec| spec.remove(field));
        let null = notification("incomplete", "p", "n").spec(field, Value::Null);
        let empty = notification("incomplete", "p", "n").spec(field, "");
        for object in [absent, null.build(), empty.build()] {
            let refusal = admin.post(NOTIFICATIONS, &object).await?.refused(422)?;
            let fields = causes(&refusal);
            let wanted = format!("spec.{field}");
            assert!(fields.contains(&wanted), "{object}: {refusal:#}");
        }
    }
    nothing_is_left(admin, NOTIFICATIONS, "incomplete").await
}

/// "PodName ... Immutable." "Notifier ... Immutable."
#[tokio::test(flavor = "multi_thread")]
async fn pod_name_and_notifier_are_immutable() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let object = notification("immutable", "nowhere", "lock").build();
    let done = admin.notify(&object).await?;
    for field in ["podName", "notifier"] {
        let patch = json!({"spec": {field: "changed"}});
        let path = format!("{NOTIFICATIONS}/immutable");
        admin.merge(&path, &patch).await?.refused(422)?;
        let patch =
            json!([{"op": "replace", "path": format!("/spec/{field}"), "value": "changed"}]);
        let headers = [("content-type", "application/json-patch+json")];
        let body = serde_json::to_vec(&patch)?;
        let reply = admin.send(Method::PATCH, &path, &headers, body).await?;
        reply.refused(422)?;
    }
    let now = admin.finished("immutable").await?;
    assert_eq!(now["spec"], done["spec"]);
    Ok(())
}

/// "Selector ... Required." "Notifier ... Required." "Policy" is one of two.
#[tokio::test(flavor = "multi_thread")]
async fn a_notification_needs_a_selector_a_notifier_and_a_policy_that_there_is()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let good = fanout("unclear", ("group", "nobody"), "work");
    let mut cases = vec![
        ("policy", good.clone().spec("policy", "SomePods").build()),
        ("notifier", good.clone().spec("notifier", "").build()),
    ];
    for field in ["selector", "notifier"] {
        let mut absent = good.clone().build();
        absent["spec"]
            .as_object_mut()
            .map(|spec| spec.remove(field));
        cases.push((field, absent));
    }
    for (field, object) in cases {
        let refusal = admin.post(FANOUTS, &object).await?.refused(422)?;
        let wanted = format!("spec.{field}");
        assert!(causes(&refusal).contains(&wanted), "{field}: {refusal:#}");
    }
    nothing_is_left(admin, FANOUTS, "unclear").await
}

async fn nothing_is_left(admin: &Rest, path: &str, of: &str) -> anyhow::Result<()> {
    admin.get(&format!("{path}/{of}")).await?.refused(404)?;
    Ok(())
}

/// What is wrong with a declaration: the field that a refusal has to name, and the declaration. `lock`
/// is what would be run.
fn wrong(lock: &Value) -> Vec<(&'static str, &'static str, String)> {
    let list = |notifiers: Value| json!({"main": notifiers}).to_string();
    let with = |field: &str, value: Value| {
        let mut notifier = lock.clone();
        notifier[field] = value;
        list(json!([notifier]))
    };
    let both = json!({"exec": lock["handler"]["exec"], "signal": "SIGHUP"});
    let named = |name: &str| {
        let mut other = lock.clone();
        other["name"] = name.into();
        list(json!([lock, other]))
    };
    vec![
        ("no-json", ANNOTATION, "{main: ".to_owned()),
        ("no-object", ANNOTATION, json!([lock]).to_string()),
        // "Each notifier must have a unique name within the Container."
        ("twice", "name", list(json!([lock, lock]))),
        // "Name must be a valid label key."
        ("name", "name", named("a b")),
        // "Names with the prefix `k8s.io/` are reserved".
        ("reserved", "name", named("k8s.io/freeze")),
        // "Minimum value is 1."
        ("zero", "timeoutSeconds", with("timeoutSeconds", json!(0))),
        (
            "soon",
            "timeoutSeconds",
            with("timeoutSeconds", json!("soon")),
        ),
        // "Exactly one of Exec and Signal should be set."
        ("both", "handler", with("handler", both)),
        ("neither", "handler", with("handler", json!({}))),
        // "validate the signals are valid?"
        (
            "signal",
            "signal",
            with("handler", json!({"signal": "SIGNOPE"})),
        ),
        ("probe", "probe", with("probe", json!({"periodSeconds": 1}))),
        ("stranger", "other", json!({"other": [lock]}).to_string()),
    ]
}

/// A declaration that is not valid is refused where it can be: our own server does not take the pod. A
/// stock one does; there, whoever asks is told what is wrong, and nothing is run.
#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_that_is_not_valid_never_passes_for_nothing_declared() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let file = stage.file("not-valid");
    let lock = json!({
        "name": "lock", "timeoutSeconds": 60,
        "handler": {"exec": {"command": ["sh", "-c", format!("echo ran >> {file}")]}},
    });
    let mut wrongly_judged = Vec::new();
    let mut running = Vec::new();
    for (case, field, text) in wrong(&lock) {
        let pod = pod(&format!("not-valid-{case}"))
            .idle("main")
            .annotation(ANNOTATION, &text);
        let reply = stage.admin().post(PODS, &stage.manifest(pod)).await?;
        if stage.is_kubernetes() && reply.status.is_success() {
            running.push((field, reply.ok()?));
            continue;
        }
        // The policies of a stock server see as much of it as they can.
        let refusal = reply.refused(422)?;
        let message = refusal["message"].as_str().unwrap_or_default();
        if !message.contains(field) && !message.contains(ANNOTATION) {
            wrongly_judged.push(format!("{case}: {refusal}"));
        }
    }
    for (field, pod) in running {
        wrongly_judged.extend(fails_and_names(&stage, name(&pod), field).await?);
    }
    assert!(wrongly_judged.is_empty(), "{wrongly_judged:#?}");
    assert_eq!(lines(&file), 0, "nothing was run");
    Ok(())
}

/// What is wrong with what comes of a notification for this pod, if anything is.
async fn fails_and_names(stage: &Stage, pod: &str, field: &str) -> anyhow::Result<Option<String>> {
    stage.admin().running(pod).await?;
    let done = notification(pod, pod, "lock").build();
    let done = stage.admin().notify(&done).await?;
    let status = &done["status"];
    let message = status["error"]["message"].as_str().unwrap_or_default();
    let right = status["state"] == "Failed" && message.contains(field);
    Ok((!right).then(|| format!("{pod} should name {field}: {status}")))
}
