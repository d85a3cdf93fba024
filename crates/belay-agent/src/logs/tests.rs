use super::*;
use crate::pods::{PodView, Table};

// What can be asked without a running agent is tested here; following is tested where containers run.

#[test]
fn which_log_is_meant_depends_on_the_incarnation() {
    let pod: belay_api::pod::Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
    }))
    .unwrap();
    let table = Table::default();
    let container = crate::pods::ContainerView {
        id: belay_action::ContainerId::new("c").unwrap(),
        restart_count: 4,
        running: true,
        previous: Some(3),
    };
    let containers = [("a".to_owned(), container)].into();
    table.put(
        "u",
        PodView {
            pod: Arc::new(pod),
            address: "192.0.2.7".to_owned(),
            containers,
        },
    );
    let view = table.named("ns", "p").unwrap();
    assert_eq!(incarnation(&view, "a", false).unwrap(), 4);
    assert_eq!(incarnation(&view, "a", true).unwrap(), 3);
    let error = |container, previous| {
        incarnation(&view, container, previous)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(error("x", false), "container \"x\" is not valid for pod p");
    assert_eq!(
        error("b", false),
        "container \"b\" in pod \"p\" is waiting to start: ContainerCreating"
    );
    assert_eq!(
        error("b", true),
        "previous terminated container \"b\" in pod \"p\" not found"
    );
}

#[test]
fn what_a_container_waits_for_is_said_and_decides_which_was_the_previous() {
    let view = |reason: &str, ended: bool| {
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "a"}]},
            "status": {"containerStatuses": [
                {"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                 "state": {"waiting": {"reason": reason}}}]},
        }))
        .unwrap();
        let container = crate::pods::ContainerView {
            id: belay_action::ContainerId::new("c").unwrap(),
            restart_count: 0,
            running: false,
            previous: None,
        };
        PodView {
            pod: Arc::new(pod),
            address: String::new(),
            containers: ended
                .then(|| ("a".to_owned(), container))
                .into_iter()
                .collect(),
        }
    };
    for (reason, words) in [
        ("CreateContainerConfigError", "CreateContainerConfigError"),
        ("ErrImagePull", "image can't be pulled"),
        ("ImagePullBackOff", "trying and failing to pull image"),
    ] {
        let error = incarnation(&view(reason, false), "a", false).unwrap_err();
        assert!(
            error.to_string().ends_with(&format!(": {words}")),
            "{error}"
        );
    }
    // It has ended, and has not been started again yet.
    assert_eq!(
        incarnation(&view("CrashLoopBackOff", true), "a", true).unwrap(),
        0
    );
}

#[tokio::test]
async fn the_last_lines_of_a_log_may_be_in_more_than_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let line = |text: &str| format!("2030-01-01T00:00:00.000000000Z stdout F {text}\n");
    for texts in [["a", "b"], ["c", "d"], ["e", "f"]] {
        std::fs::write(&path, texts.map(line).concat()).unwrap();
        if texts[0] != "e" {
            belay_runtime::rotation::rotate(&path).unwrap();
        }
    }
    for (lines, expected) in [
        (None, "abcdef"),
        (Some(0), ""),
        (Some(1), "f"),
        (Some(2), "ef"),
        (Some(3), "def"),
        (Some(5), "bcdef"),
        (Some(9), "abcdef"),
    ] {
        let mut found = String::new();
        for mut file in open(&path, lines).await.unwrap() {
            let mut text = String::new();
            tokio::io::AsyncReadExt::read_to_string(&mut file, &mut text)
                .await
                .unwrap();
            found.extend(text.lines().filter_map(|line| line.chars().last()));
        }
        assert_eq!(found, expected, "{lines:?}");
    }
}
