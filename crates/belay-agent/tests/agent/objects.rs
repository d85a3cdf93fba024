//! ConfigMaps and secrets in the environment of containers.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::rig::{Rig, until_lines};

async fn create(rig: &Rig, object: Value) {
    let params = PostParams::default();
    if object["kind"] == "Secret" {
        let api: Api<Secret> = Api::namespaced(rig.admin.clone(), "default");
        let secret = serde_json::from_value(object).unwrap();
        api.create(&params, &secret).await.unwrap();
    } else {
        let api: Api<ConfigMap> = Api::namespaced(rig.admin.clone(), "default");
        let map = serde_json::from_value(object).unwrap();
        api.create(&params, &map).await.unwrap();
    }
}

fn waiting(pod: &belay_api::pod::Pod) -> Option<(String, String)> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let waiting = statuses.first()?.state.as_ref()?.waiting.clone()?;
    Some((
        waiting.reason.unwrap_or_default(),
        waiting.message.unwrap_or_default(),
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_waits_for_what_its_environment_is_made_of() {
    let rig = Rig::start().await;
    let out = rig.dir.path().join("out");
    let script = format!("echo $A-$P_k-$NONE >> {}; exec sleep 1000", out.display());
    rig.create_pod(
        "p",
        json!({"containers": [{
            "name": "main", "image": "none", "command": ["/bin/sh", "-c", script],
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "a"}}},
                {"name": "NONE", "valueFrom": {"secretKeyRef":
                    {"name": "none", "key": "a", "optional": true}}}],
            "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}],
        }]}),
    )
    .await;
    let shows = |text: &'static str| {
        move |pod: &belay_api::pod::Pod| {
            waiting(pod) == Some(("CreateContainerConfigError".to_owned(), text.to_owned()))
        }
    };
    rig.pod("p", "to miss the secret", shows("secret \"s\" not found"))
        .await;
    let secret = json!({"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "sk"}});
    create(&rig, secret).await;
    rig.pod("p", "to miss the map", shows("configmap \"m\" not found"))
        .await;
    let map = json!({"kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"b": ""}});
    create(&rig, map).await;
    let no_key = shows("couldn't find key a in ConfigMap default/m");
    rig.pod("p", "to miss the key", no_key).await;
    let maps: Api<ConfigMap> = Api::namespaced(rig.admin.clone(), "default");
    let patch = json!({"data": {"a": "ma"}});
    maps.patch("m", &Default::default(), &kube::api::Patch::Merge(&patch))
        .await
        .unwrap();
    rig.pod("p", "to run", |pod| pod.phase() == "Running").await;
    until_lines(&out, 1).await;
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "ma-sk-\n");
    rig.end().await;
}
