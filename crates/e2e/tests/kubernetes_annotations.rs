//! A stock API server takes the notifiers annotation for any text. What breaks a rule there must not
//! look like a pod that declares nothing, and must not run in part.

use belay_testkit::{Stage, lines, notification, pod};
use serde_json::{Value, json};

const ANNOTATION: &str = "apps.k8s.io/notifiers";

#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_that_breaks_a_rule_fails_by_name_and_nothing_of_it_runs()
-> anyhow::Result<()> {
    let Some(stage) = Stage::kubernetes().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let ran = stage.file("broken-ran");
    let command = json!({"exec": {"command": ["sh", "-c", format!("echo ran >> {ran}")]}});
    let good = json!({"name": "lock", "handler": command, "timeoutSeconds": 60});
    let with = |field: &str, value: Value| {
        let mut changed = good.clone();
        changed["name"] = json!("other");
        changed[field] = value;
        json!({"main": [good, changed]})
    };
    for (name, annotation, field) in [
        (
            "broken-signal",
            with("handler", json!({"signal": "HUP"})),
            "[main][1].handler.signal",
        ),
        (
            "broken-timeout",
            with("timeoutSeconds", json!(0)),
            "[main][1].timeoutSeconds",
        ),
        (
            "broken-name",
            with("name", json!("k8s.io/other")),
            "[main][1].name",
        ),
        (
            "broken-container",
            json!({"main": [good], "mian": [good]}),
            "[mian]",
        ),
    ] {
        let text = annotation.to_string();
        stage
            .run(pod(name).idle("main").annotation(ANNOTATION, &text))
            .await?;
        let ended = admin
            .notify(&notification(name, name, "lock").build())
            .await?;
        let status = &ended["status"];
        assert_eq!(status["state"], "Failed", "{ended:#}");
        assert_eq!(status["error"]["type"], "RuntimeError", "{ended:#}");
        let said = status["error"]["message"].as_str().unwrap_or_default();
        let place = format!("metadata.annotations[{ANNOTATION}]{field}: ");
        assert!(said.contains(&place), "{said} lacks {place}");
    }
    assert_eq!(lines(&ran), 0);
    Ok(())
}
