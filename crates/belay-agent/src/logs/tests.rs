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
        "container \"b\" in pod \"p\" is waiting to start"
    );
    assert!(error("b", true).starts_with("previous terminated container \"b\""));
}
