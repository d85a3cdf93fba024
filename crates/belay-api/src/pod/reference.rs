//! Which ConfigMaps and secrets a pod uses.

use std::collections::BTreeSet;
use std::fmt;

use super::{Container, Pod, VolumeSource};

/// The kind of an object that a pod takes data from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReferenceKind {
    ConfigMap,
    Secret,
}

impl ReferenceKind {
    /// The kind that a resource of the API holds.
    #[must_use]
    pub fn of_resource(plural: &str) -> Option<Self> {
        match plural {
            "configmaps" => Some(Self::ConfigMap),
            "secrets" => Some(Self::Secret),
            _ => None,
        }
    }
}

/// As errors name it: in lower case, as a stock server does.
impl fmt::Display for ReferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
    }
}

/// An object in the pod's own namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub kind: ReferenceKind,
    pub name: String,
}

impl Reference {
    #[must_use]
    pub fn config_map(name: &str) -> Self {
        Self {
            kind: ReferenceKind::ConfigMap,
            name: name.to_owned(),
        }
    }

    #[must_use]
    pub fn secret(name: &str) -> Self {
        Self {
            kind: ReferenceKind::Secret,
            name: name.to_owned(),
        }
    }
}

impl Pod {
    /// Every ConfigMap and secret that the pod's containers and volumes take data from. It is also
    /// what the pod's node may read.
    #[must_use]
    pub fn references(&self) -> BTreeSet<Reference> {
        let containers = self
            .spec
            .init_containers
            .iter()
            .chain(&self.spec.containers);
        let mut found: BTreeSet<Reference> = containers.flat_map(Container::references).collect();
        for volume in &self.spec.volumes {
            match volume.source() {
                VolumeSource::ConfigMap(source) => {
                    found.insert(Reference::config_map(source.object()));
                }
                VolumeSource::Secret(source) => {
                    found.insert(Reference::secret(source.object()));
                }
                VolumeSource::EmptyDir(_) | VolumeSource::HostPath(_) | VolumeSource::Other(_) => {}
            }
        }
        found.retain(|reference| !reference.name.is_empty());
        found
    }
}

impl Container {
    /// What the container's environment is made of.
    fn references(&self) -> Vec<Reference> {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let whole = self.env_from.iter().flat_map(|from| {
            let map = from.config_map_ref.as_ref();
            let secret = from.secret_ref.as_ref();
            [
                map.map(|source| Reference::config_map(&name(&source.name))),
                secret.map(|source| Reference::secret(&name(&source.name))),
            ]
        });
        let sources = self.env.iter().filter_map(|var| var.value_from.as_ref());
        let keys = sources.flat_map(|from| {
            let map = from.config_map_key_ref.as_ref();
            let secret = from.secret_key_ref.as_ref();
            [
                map.map(|key| Reference::config_map(&name(&key.name))),
                secret.map(|key| Reference::secret(&name(&key.name))),
            ]
        });
        whole.chain(keys).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_found_wherever_they_are_and_once() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [{"name": "i", "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}}]}],
            "containers": [{"name": "c",
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}},
                        {"name": "B", "value": "x"},
                        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "b"}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "d"}},
                        {"name": "w", "secret": {"secretName": "e"}},
                        {"name": "x", "emptyDir": {}}, {"name": "y", "secret": {}}],
        }}))
        .unwrap();
        let expected = [
            Reference::config_map("a"),
            Reference::config_map("c"),
            Reference::config_map("d"),
            Reference::secret("b"),
            Reference::secret("e"),
        ];
        assert_eq!(pod.references(), expected.into());
    }
}
