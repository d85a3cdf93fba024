//! Objects of a list, each read for itself.
//!
//! `kube` reads a list as a whole: one item that a type here cannot hold would fail the list, and
//! with it everything else that is in it, for as long as that item exists. A server takes more than
//! these types do: one of Kubernetes 1.32 to 1.35 drops the format `int32` from schemas, and times
//! in `managedFields`, which whoever creates an object may send, go beyond the largest one here.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::watcher::Event;
use serde::de::{DeserializeOwned, Deserializer};
use serde::ser::{Error as _, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An object as a server tells of it, without `managedFields`, or why it cannot be read.
///
/// To be what an API is of, in place of `K`: `Api<Lenient<K>>`. What is written without
/// `managedFields` keeps those that the server has.
#[derive(Debug, Clone)]
pub struct Lenient<K>(Result<K, Unreadable>);

/// An object that cannot be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// No more than its names and its version.
    metadata: Box<ObjectMeta>,
    why: String,
}

impl<K> Lenient<K> {
    /// The object.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn read(self) -> Result<K, Unreadable> {
        self.0
    }
}

/// An event of a watch, or what in it cannot be read.
///
/// # Errors
///
/// If its object cannot be read.
pub fn read_event<K>(event: Event<Lenient<K>>) -> Result<Event<K>, Unreadable> {
    Ok(match event {
        Event::Apply(object) => Event::Apply(object.read()?),
        Event::Delete(object) => Event::Delete(object.read()?),
        Event::InitApply(object) => Event::InitApply(object.read()?),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    })
}

impl<K> From<K> for Lenient<K> {
    fn from(object: K) -> Self {
        Lenient(Ok(object))
    }
}

impl Unreadable {
    fn of(object: &Value, why: String) -> Self {
        let text = |field: &str| Some(object["metadata"][field].as_str()?.to_owned());
        Unreadable {
            metadata: Box::new(ObjectMeta {
                name: text("name"),
                namespace: text("namespace"),
                uid: text("uid"),
                resource_version: text("resourceVersion"),
                ..ObjectMeta::default()
            }),
            why,
        }
    }

    /// Its UID, or nothing where it has none.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (namespace, name) = (text(&self.metadata.namespace), text(&self.metadata.name));
        write!(f, "{namespace}/{name} cannot be read: {}", self.why)
    }
}

impl std::error::Error for Unreadable {}

impl From<Unreadable> for kube::Error {
    fn from(unreadable: Unreadable) -> Self {
        kube::Error::SerdeError(serde_json::Error::custom(unreadable))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let read = K::deserialize(&object);
        Ok(Lenient(read.map_err(|error| {
            Unreadable::of(&object, error.to_string())
        })))
    }
}

impl<K: Serialize> Serialize for Lenient<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(unreadable) => Err(S::Error::custom(unreadable)),
        }
    }
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn api_version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::api_version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::PodNotification;
    use serde_json::json;

    fn object(name: &str, spec: &Value) -> Value {
        let mut whole = json!({"podName": "db", "notifier": "lock"});
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification", "spec": whole,
            "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "7"}})
    }

    #[test]
    fn one_item_that_cannot_be_read_is_told_by_name_and_leaves_the_others_readable() {
        let mut later = object("later", &json!({}));
        later["metadata"]["managedFields"] =
            json!([{"manager": "m", "operation": "Update", "time": "9999-12-31T00:00:00Z"}]);
        let items = json!([
            object("good", &json!({})),
            object(
                "wide",
                &json!({"ttlSecondsAfterFinished": 3_000_000_000_u64})
            ),
            later,
        ]);
        let items: Vec<Lenient<PodNotification>> = serde_json::from_value(items).unwrap();
        let versions = items
            .iter()
            .map(|item| item.meta().resource_version.clone());
        assert!(
            versions
                .into_iter()
                .all(|version| version.as_deref() == Some("7"))
        );
        let read: Vec<_> = items
            .into_iter()
            .map(|item| item.read().map(|it| it.metadata.name.unwrap()))
            .map(|read| read.map_err(|unreadable| unreadable.to_string()))
            .collect();
        assert_eq!(read[0].as_deref(), Ok("good"));
        let why = read[1].as_ref().unwrap_err();
        assert!(
            why.starts_with("ns/wide cannot be read: ") && why.contains("3000000000"),
            "{why}"
        );
        assert_eq!(read[2].as_deref(), Ok("later"));
    }
}
