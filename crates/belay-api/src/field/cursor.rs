//! Reading a JSON value together with its path.

use serde_json::{Map, Value};

use super::Path;

/// A place in an object: the value there, if any, and how an error would name it.
///
/// Going to a field that is absent, or into something that is not an object, gives a cursor
/// without a value. Wrong types are the decoder's to report; a rule sees them as absent, so that
/// rules are total over arbitrary JSON.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    value: Option<&'a Value>,
    path: Path,
}

impl<'a> Cursor<'a> {
    #[must_use]
    pub fn new(value: &'a Value) -> Self {
        Self::at(Path::root(), Some(value))
    }

    /// A cursor that starts elsewhere than at an object's root; null counts as absent.
    #[must_use]
    pub fn at(path: Path, value: Option<&'a Value>) -> Self {
        Self {
            value: value.filter(|value| !value.is_null()),
            path,
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn get(&self, field: &str) -> Self {
        Self::at(
            self.path.child(field),
            self.object().and_then(|object| object.get(field)),
        )
    }

    /// An entry of a map whose keys are data.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self::at(
            self.path.key(key),
            self.object().and_then(|object| object.get(key)),
        )
    }

    /// The items of a list, none when it is not one.
    pub fn items(&self) -> impl Iterator<Item = Self> + use<'a> {
        let path = self.path.clone();
        self.list()
            .iter()
            .enumerate()
            .map(move |(i, value)| Self::at(path.index(i), Some(value)))
    }

    /// The entries of a map, none when it is not one.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, Self)> + use<'a> {
        let path = self.path.clone();
        self.object()
            .into_iter()
            .flatten()
            .map(move |(key, value)| (key.as_str(), Self::at(path.key(key), Some(value))))
    }

    #[must_use]
    pub fn value(&self) -> Option<&'a Value> {
        self.value
    }

    /// The value as it goes into a message.
    #[must_use]
    pub fn owned(&self) -> Value {
        self.value.cloned().unwrap_or(Value::Null)
    }

    #[must_use]
    pub fn is_set(&self) -> bool {
        self.value.is_some()
    }

    /// Absent, or empty as Go's zero values are: `""`, `[]`, `{}`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self.value {
            None => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(entries)) => entries.is_empty(),
            Some(_) => false,
        }
    }

    #[must_use]
    pub fn object(&self) -> Option<&'a Map<String, Value>> {
        self.value.and_then(Value::as_object)
    }

    #[must_use]
    pub fn list(&self) -> &'a [Value] {
        self.value
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    /// The string there; absent and not a string read as empty, as in Go.
    #[must_use]
    pub fn str(&self) -> &'a str {
        self.value.and_then(Value::as_str).unwrap_or_default()
    }

    #[must_use]
    pub fn int(&self) -> Option<i64> {
        self.value.and_then(Value::as_i64)
    }

    /// Whether a boolean is there and true.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.bool() == Some(true)
    }

    #[must_use]
    pub fn bool(&self) -> Option<bool> {
        self.value.and_then(Value::as_bool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cursor_carries_its_path_also_into_what_is_absent() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": null}]}});
        let containers = Cursor::new(&pod).get("spec").get("containers");
        let second = containers.items().nth(1).unwrap();
        assert!(!second.get("name").is_set(), "null counts as absent");
        assert_eq!(
            second.get("lifecycle").get("preStop").path().to_string(),
            "spec.containers[1].lifecycle.preStop"
        );
    }

    #[test]
    fn wrong_types_read_as_absent() {
        let odd = json!({"a": 5});
        let a = Cursor::new(&odd).get("a");
        assert_eq!(a.str(), "");
        assert_eq!(a.items().count(), 0);
        assert_eq!(a.entries().count(), 0);
        assert!(!a.get("b").is_set());
    }
}
