//! Which files a ConfigMap or a secret becomes in a volume.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use belay_api::pod::{KeyToPath, ProjectedSource, Reference, ReferenceKind};

use crate::pods::objects::{Found, Known, Object};

/// Files by their path in the volume.
pub(crate) type Files = BTreeMap<PathBuf, File>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
}

/// Why there are no files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotYet {
    /// The object has not been read; nothing is wrong.
    Unread,
    Problem(String),
}

const DEFAULT_MODE: i64 = 0o644;

/// The files of a volume.
pub(crate) fn files(
    kind: ReferenceKind,
    source: &ProjectedSource,
    found: &Found,
) -> Result<Files, NotYet> {
    let name = source.object().to_owned();
    let optional = source.optional == Some(true);
    let reference = Reference { kind, name };
    let name = &reference.name;
    let empty = Object::default();
    let object = match found.get(&reference) {
        Some(Known::Found(object)) => object,
        Some(Known::Missing) if optional => &empty,
        Some(Known::Missing) => {
            return Err(NotYet::Problem(format!("{kind} {name:?} not found")));
        }
        Some(Known::Unread(Some(why))) => {
            return Err(NotYet::Problem(format!(
                "cannot read {kind} {name:?}: {why}"
            )));
        }
        Some(Known::Unread(None)) | None => return Err(NotYet::Unread),
    };
    let value = |key: &str| object.data.get(key).or_else(|| object.binary.get(key));
    let default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let file = |data: &Vec<u8>, mode: i64| File {
        data: data.clone(),
        mode: u32::try_from(mode & 0o777).unwrap_or_default(),
    };
    let mut files = Files::new();
    if source.items.is_empty() {
        for (key, data) in object.data.iter().chain(&object.binary) {
            files.insert(inside(key)?, file(data, default_mode));
        }
        return Ok(files);
    }
    for KeyToPath {
        key, path, mode, ..
    } in &source.items
    {
        let key = key.as_deref().unwrap_or_default();
        let path = path.as_deref().unwrap_or_default();
        let Some(data) = value(key) else {
            if optional {
                continue;
            }
            return Err(NotYet::Problem(match kind {
                ReferenceKind::ConfigMap => {
                    format!("configmap references non-existent config key: {key}")
                }
                ReferenceKind::Secret => format!("references non-existent secret key: {key}"),
            }));
        };
        files.insert(inside(path)?, file(data, mode.unwrap_or(default_mode)));
    }
    Ok(files)
}

/// A path that stays in the volume, and out of the writer's own names.
fn inside(path: &str) -> Result<PathBuf, NotYet> {
    let refuse = || NotYet::Problem(format!("the path {path:?} leads out of the volume"));
    let mut clean = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(refuse());
            }
        }
    }
    let hidden = clean.as_os_str().as_encoded_bytes().starts_with(b"..");
    if clean.as_os_str().is_empty() || hidden {
        return Err(refuse());
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn found() -> Found {
        let object = |data: &[(&str, &str)], binary: &[(&str, &str)]| {
            let map = |list: &[(&str, &str)]| {
                list.iter()
                    .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()))
                    .collect()
            };
            Known::Found(Arc::new(Object {
                data: map(data),
                binary: map(binary),
            }))
        };
        [
            (
                Reference::config_map("m"),
                object(&[("a", "1"), ("b", "2")], &[("bin", "3")]),
            ),
            (Reference::secret("m"), object(&[("pw", "x")], &[])),
            (
                Reference::config_map("rubbish"),
                object(&[("../../etc/passwd", "x")], &[]),
            ),
            (Reference::config_map("gone"), Known::Missing),
            (Reference::config_map("new"), Known::Unread(None)),
            (
                Reference::config_map("away"),
                Known::Unread(Some("no".into())),
            ),
        ]
        .into()
    }

    // `json!` literals read better without a borrow.
    #[allow(clippy::needless_pass_by_value)]
    fn check(kind: ReferenceKind, source: Value) -> Result<Vec<(String, String, u32)>, String> {
        let source = serde_json::from_value(source).unwrap();
        match files(kind, &source, &found()) {
            Ok(files) => Ok(files
                .into_iter()
                .map(|(path, file)| {
                    let path = path.display().to_string();
                    (path, String::from_utf8(file.data).unwrap(), file.mode)
                })
                .collect()),
            Err(NotYet::Unread) => Err("unread".to_owned()),
            Err(NotYet::Problem(problem)) => Err(problem),
        }
    }

    fn file(path: &str, data: &str, mode: u32) -> (String, String, u32) {
        (path.to_owned(), data.to_owned(), mode)
    }

    #[test]
    fn all_keys_or_those_that_are_named_become_files() {
        use ReferenceKind::{ConfigMap, Secret};
        for (kind, source, expected) in [
            (
                ConfigMap,
                json!({"name": "m"}),
                vec![
                    file("a", "1", 0o644),
                    file("b", "2", 0o644),
                    file("bin", "3", 0o644),
                ],
            ),
            (
                ConfigMap,
                json!({"name": "m", "defaultMode": 0o400, "items": [
                    {"key": "a", "path": "x/./y"}, {"key": "bin", "path": "z", "mode": 0o755}]}),
                vec![file("x/y", "1", 0o400), file("z", "3", 0o755)],
            ),
            (
                ConfigMap,
                json!({"name": "m", "optional": true, "items": [{"key": "none", "path": "x"}]}),
                vec![],
            ),
            (ConfigMap, json!({"name": "gone", "optional": true}), vec![]),
            (
                Secret,
                json!({"secretName": "m", "defaultMode": -1}),
                vec![file("pw", "x", 0o777)],
            ),
        ] {
            assert_eq!(check(kind, source.clone()), Ok(expected), "{source}");
        }
    }

    #[test]
    fn what_is_missing_is_said_as_the_kubelet_says_it() {
        use ReferenceKind::{ConfigMap, Secret};
        for (kind, source, expected) in [
            (
                ConfigMap,
                json!({"name": "gone"}),
                "configmap \"gone\" not found",
            ),
            (ConfigMap, json!({"name": "new"}), "unread"),
            (
                ConfigMap,
                json!({"name": "away", "optional": true}),
                "cannot read configmap \"away\": no",
            ),
            (
                ConfigMap,
                json!({"name": "m", "items": [{"key": "none", "path": "x"}]}),
                "configmap references non-existent config key: none",
            ),
            (
                Secret,
                json!({"secretName": "m", "items": [{"key": "none", "path": "x"}]}),
                "references non-existent secret key: none",
            ),
        ] {
            assert_eq!(
                check(kind, source.clone()),
                Err(expected.to_owned()),
                "{source}"
            );
        }
    }

    #[test]
    fn no_path_leads_out_of_the_volume() {
        for path in ["", "/etc/x", "../x", "a/../../x", "..data", "..x/y", "."] {
            let source = json!({"name": "m", "items": [{"key": "a", "path": path}]});
            let problem = check(ReferenceKind::ConfigMap, source).unwrap_err();
            assert!(
                problem.contains("leads out of the volume"),
                "{path:?}: {problem}"
            );
        }
        check(ReferenceKind::ConfigMap, json!({"name": "rubbish"})).unwrap_err();
    }
}
