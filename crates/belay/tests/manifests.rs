//! What `belay manifests` prints is installed by people who read it: every change of it is seen.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn manifests(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_belay"))
        .arg("manifests")
        .args(arguments)
        .env_clear()
        .output()
        .unwrap()
}

/// All but the definitions, which have a golden file of their own.
fn without_definitions(text: &str) -> String {
    let documents = text.split("\n---\n");
    let kept = documents.filter(|document| !document.contains("kind: CustomResourceDefinition"));
    kept.collect::<Vec<_>>().join("\n---\n")
}

#[test]
fn what_is_printed_is_the_golden_file() {
    for (golden, arguments) in [
        ("manifests.yaml", &["--image", "example.com/belay:1"][..]),
        (
            "manifests-executor-controller.yaml",
            &["--image", "example.com/belay:1", "--executor", "controller"],
        ),
    ] {
        let output = manifests(arguments);
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("kind: CustomResourceDefinition"));
        let found = without_definitions(&text);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let path = path.join(golden);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "the manifests changed; if they should, run\n  UPDATE_GOLDEN=1 cargo test -p belay --test manifests\nand look at the difference in {}",
            path.display()
        );
    }
}

#[test]
fn a_namespace_or_image_that_cannot_be_is_wrong_usage() {
    for arguments in [
        &["--namespace", "A"][..],
        &["--image", "a b"],
        &["--executor", "nobody"],
    ] {
        assert_eq!(manifests(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn as_json_they_are_one_list_of_the_same_objects() {
    let yaml = String::from_utf8(manifests(&[]).stdout).unwrap();
    let output = manifests(&["-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["kind"], "List");
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), yaml.split("\n---\n").count());
    for item in items {
        assert!(item["kind"].is_string(), "{item}");
    }
}
