//! A pod's volumes in the window.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A volume; sources not typed here are in `other`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDirSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ProjectedSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<ProjectedSource>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Where the contents of a volume come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VolumeSource<'a> {
    EmptyDir(&'a EmptyDirSource),
    HostPath(&'a HostPathSource),
    ConfigMap(&'a ProjectedSource),
    Secret(&'a ProjectedSource),
    /// One that is not typed here, by the name of its field.
    Other(&'a str),
}

impl Volume {
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The source of the volume; a volume without one is an empty directory.
    #[must_use]
    pub fn source(&self) -> VolumeSource<'_> {
        static EMPTY: LazyLock<EmptyDirSource> = LazyLock::new(EmptyDirSource::default);
        if let Some(source) = &self.empty_dir {
            VolumeSource::EmptyDir(source)
        } else if let Some(source) = &self.host_path {
            VolumeSource::HostPath(source)
        } else if let Some(source) = &self.config_map {
            VolumeSource::ConfigMap(source)
        } else if let Some(source) = &self.secret {
            VolumeSource::Secret(source)
        } else if let Some((field, _)) = self.other.iter().find(|(_, value)| !value.is_null()) {
            VolumeSource::Other(field)
        } else {
            VolumeSource::EmptyDir(&EMPTY)
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDirSource {
    /// Empty for the node's disk, `Memory` for its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    /// A quantity, as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Value>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPathSource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<HostPathType>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What has to be at the path of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostPathType {
    /// Whatever is there.
    #[default]
    #[serde(rename = "")]
    Any,
    Directory,
    DirectoryOrCreate,
    File,
    FileOrCreate,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A ConfigMap or a secret shown as files. The two differ in the name of one field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProjectedSource {
    /// Of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// Which keys, and as which files; none is all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ProjectedSource {
    /// The name of the object.
    #[must_use]
    pub fn object(&self) -> &str {
        self.name
            .as_deref()
            .or(self.secret_name.as_deref())
            .unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyToPath {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<i64>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn volumes_read_back_as_they_were_written() {
        for volume in [
            json!({"name": "v", "emptyDir": {}}),
            json!({"name": "", "hostPath": {"path": ""}}),
            json!({"hostPath": {}}),
            json!({"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": 1024}}),
            json!({"name": "v", "hostPath": {"path": "/x", "type": ""}}),
            json!({"name": "v", "hostPath": {"path": "/x", "type": "FileOrCreate"}}),
            json!({"name": "v", "configMap": {"name": "c", "defaultMode": 420, "optional": true,
                "items": [{"key": "k", "path": "a/b", "mode": 256}]}}),
            json!({"name": "v", "secret": {"secretName": "s", "new": 1}}),
            json!({"name": "v", "nfs": {"server": "s"}}),
        ] {
            let read: Volume = serde_json::from_value(volume.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), volume);
        }
    }

    #[test]
    fn a_volume_without_a_source_is_an_empty_directory() {
        assert!(matches!(
            Volume::default().source(),
            VolumeSource::EmptyDir(_)
        ));
        let other: Volume = serde_json::from_value(json!({"name": "v", "nfs": {}})).unwrap();
        assert_eq!(other.source(), VolumeSource::Other("nfs"));
    }
}
