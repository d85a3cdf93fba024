//! The promises of the container notifier proposal (KEP-1977) about `ContainerNotifier` and
//! `PodNotification`, phases 1 and 2, that need no selector: what may be declared and asked for, on the
//! embedded server. Each test quotes the sentence it is about.

use belay_testkit::{Instance, PODS, Rest, Stage, exec, pod, signal};
use seed_000_declares::causes;
use serde_json::{Value, json};

#[path = "promises/seed_000_declares.rs"]
mod seed_000_declares;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::embedded().await
}

async fn admin() -> anyhow::Result<Rest> {
    Instance::shared().await?.admin().await
}

/// "Users can specify an optional list of commands in `Pod`s specification at container level."
#[tokio::test(flavor = "multi_thread")]
async fn a_container_may_declare_a_list_of_notifiers() -> anyhow::Result<()> {
    let admin = admin().await?;
    let manifest = pod("declares")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(5))
        .notifier("unlock", exec(["true"]).timeout(6))
        .build();
    let stored = admin.post(PODS, &manifest).await?.ok()?;
    let notifiers = &stored["spec"]["containers"][0]["notifiers"];
    assert_eq!(notifiers[0]["name"], "lock");
    assert_eq!(notifiers[0]["handler"]["exec"]["command"], json!(["true"]));
    assert_eq!(notifiers[1]["timeoutSeconds"], 6);
    Ok(())
}

/// "Adding an optional `Notifiers` field"; "Does enabling the feature change any default
/// behavior? No."
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_notifiers_runs_as_ever_and_gets_none() -> anyhow::Result<()> {
    let admin = admin().await?;
    let running = admin.run(&pod("plain").idle("main").build()).await?;
    assert_eq!(running["spec"]["containers"][0]["notifiers"], Value::Null);
    Ok(())
}

/// "Each notifier must have a unique name within the Container."
#[tokio::test(flavor = "multi_thread")]
async fn two_notifiers_of_one_name_in_a_container_are_refused() -> anyhow::Result<()> {
    let admin = admin().await?;
    let manifest = pod("twice")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(1))
        .notifier("lock", exec(["false"]).timeout(1))
        .build();
    let refusal = admin.post(PODS, &manifest).await?.refused(422)?;
    assert_eq!(refusal["reason"], "Invalid");
    assert_eq!(causes(&refusal), ["spec.containers[0].notifiers[1].name"]);
    Ok(())
}

/// "Each ContainerNotifier within a Container must have a unique name": containers of one pod may
/// use the same name.
#[tokio::test(flavor = "multi_thread")]
async fn two_containers_may_declare_the_same_name() -> anyhow::Result<()> {
    let admin = admin().await?;
    let manifest = pod("same-name")
        .idle("one")
        .notifier("lock", exec(["true"]).timeout(1))
        .idle("two")
        .notifier("lock", exec(["true"]).timeout(1))
        .build();
    admin.post(PODS, &manifest).await?.ok()?;
    Ok(())
}

/// "Name must be a valid label key."
#[tokio::test(flavor = "multi_thread")]
async fn a_notifier_s_name_must_be_a_label_key() -> anyhow::Result<()> {
    let admin = admin().await?;
    let long = "x".repeat(64);
    for name in [
        "",
        "-a",
        "a b",
        "a/b/c",
        "/a",
        "a/",
        "UPPER.example/",
        &long,
    ] {
        let manifest = pod("bad-name")
            .idle("main")
            .notifier(name, exec(["true"]).timeout(1))
            .build();
        let refusal = admin.post(PODS, &manifest).await?.refused(422)?;
        assert_eq!(
            causes(&refusal)[0],
            "spec.containers[0].notifiers[0].name",
            "of {name:?}"
        );
    }
    Ok(())
}

/// "Names with the prefix `k8s.io/` are reserved for Kubernetes-defined "well-known" notifiers."
#[tokio::test(flavor = "multi_thread")]
async fn the_prefix_of_kubernetes_is_reserved() -> anyhow::Result<()> {
    let admin = admin().await?;
    let manifest = pod("reserved")
        .idle("main")
        .notifier("k8s.io/freeze", exec(["true"]).timeout(1))
        .build();
    let refusal = admin.post(PODS, &manifest).await?.refused(422)?;
    assert_eq!(causes(&refusal), ["spec.containers[0].notifiers[0].name"]);
    Ok(())
}

/// "Name of the ContainerNotifier. ... Immutable."
#[tokio::test(flavor = "multi_thread")]
async fn a_declared_notifier_cannot_be_changed() -> anyhow::Result<()> {
    let admin = admin().await?;
    let manifest = pod("fixed")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(1))
        .build();
    let stored = admin.post(PODS, &manifest).await?.ok()?;
    let changes: [(&str, Value); 3] = [
        ("/spec/containers/0/notifiers/0/name", json!("other")),
        ("/spec/containers/0/notifiers/0/timeoutSeconds", json!(9)),
        (
            "/spec/containers/0/notifiers/0/handler/exec/command",
            json!(["rm"]),
        ),
    ];
    for (pointer, value) in changes {
        let patch = json!([{ "op": "replace", "path": pointer, "value": value }]);
        let reply = admin
            .send(
                http::Method::PATCH,
                &format!("{PODS}/fixed"),
                &[("content-type", "application/json-patch+json")],
                serde_json::to_vec(&patch)?,
            )
            .await?;
        reply.refused(422)?;
    }
    let now = admin.get(&format!("{PODS}/fixed")).await?.ok()?;
    assert_eq!(now["spec"]["containers"], stored["spec"]["containers"]);
    Ok(())
}

/// "Minimum value is 1."
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_below_one_second_is_refused() -> anyhow::Result<()> {
    let admin = admin().await?;
    for seconds in [0, -1] {
        let handler = exec(["true"]).with("timeoutSeconds", seconds);
        let manifest = pod("no-time")
            .idle("main")
            .notifier("lock", handler)
            .build();
        let refusal = admin.post(PODS, &manifest).await?.refused(422)?;
        assert_eq!(
            causes(&refusal),
            ["spec.containers[0].notifiers[0].timeoutSeconds"]
        );
    }
    Ok(())
}

/// "Exactly one of Exec and Signal should be set."
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_exactly_one_of_exec_and_signal() -> anyhow::Result<()> {
    let admin = admin().await?;
    let both = json!({ "exec": { "command": ["true"] }, "signal": "SIGHUP" });
    for handler in [json!({}), both, Value::Null] {
        let notifier = exec(["true"]).timeout(1).with("handler", handler.clone());
        let manifest = pod("one-of")
            .idle("main")
            .notifier("lock", notifier)
            .build();
        let refusal = admin.post(PODS, &manifest).await?.refused(422)?;
        let fields = causes(&refusal);
        assert!(
            !fields.is_empty()
                && fields
                    .iter()
                    .all(|field| field.starts_with("spec.containers[0].notifiers[0].handler")),
            "{handler}: {fields:?}"
        );
    }
    Ok(())
}

/// "Signal specifies a signal to send to the container"; "validate the signals are valid?"
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_signal_is_refused() -> anyhow::Result<()> {
    let admin = admin().await?;
    for name in ["HUP", "SIGNOPE", "1", "sighup", "SIGRTMIN+99"] {
        let manifest = pod("no-signal")
            .idle("main")
            .notifier("s", signal(name).timeout(1))
            .build();
        let refusal = admin.post(PODS, &manifest).await?.refused(422)?;
        assert_eq!(
            causes(&refusal),
            ["spec.containers[0].notifiers[0].handler.signal"],
            "{name}"
        );
    }
    Ok(())
}
