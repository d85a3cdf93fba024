//! The walk over a value and its schema at once.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{DecodeError, MAX_DEPTH, MAX_PATH, MAX_PROBLEMS, hints, quoted, scalar};
use crate::schema::{Node, Type};

/// What the walk knows and has found so far.
pub(super) struct Reader<'k> {
    kind: &'k str,
    path: String,
    depth: usize,
    pub(super) problems: Vec<String>,
    pub(super) failure: Option<DecodeError>,
}

impl<'k> Reader<'k> {
    pub(super) fn new(kind: &'k str) -> Self {
        Self {
            kind,
            path: String::new(),
            depth: 0,
            problems: Vec::new(),
            failure: None,
        }
    }

    /// Notes why the walk ends here. The first reason stands.
    fn fail<E: Error>(&mut self, failure: DecodeError) -> E {
        self.failure.get_or_insert(failure);
        E::custom("the value does not fit its schema")
    }

    fn wrong_type<E: Error>(&mut self, expected: &'static str, found: String) -> E {
        let path = self.place();
        self.fail(DecodeError::Type {
            path,
            expected,
            found,
        })
    }

    fn enter<E: Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let path = self.place();
            return Err(self.fail(DecodeError::TooDeep { path }));
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Goes down to the field `name`; the path's former length leads back.
    fn down(&mut self, name: &str) -> usize {
        let before = self.path.len();
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
        before
    }

    fn down_to_index(&mut self, index: usize) -> usize {
        let before = self.path.len();
        // Writing to a string cannot fail.
        let _ = write!(self.path, "[{index}]");
        before
    }

    fn up(&mut self, before: usize) {
        self.path.truncate(before);
    }

    /// The path as it is told. Keys are data and may be long; told in full, each in a hundred
    /// problems, they would make an answer many times the size of the request.
    fn place(&self) -> String {
        scalar::shortened(&self.path, MAX_PATH)
    }

    fn unknown(&mut self, name: &str) {
        let before = self.down(name);
        let mut problem = format!("unknown field {}", quoted(&self.place()));
        if let Some(hint) = hints::hint(self.kind, &self.path) {
            problem.push_str(": ");
            problem.push_str(hint);
        }
        self.up(before);
        self.note(problem);
    }

    fn duplicate(&mut self, name: &str) {
        let before = self.down(name);
        let problem = format!("duplicate field {}", quoted(&self.place()));
        self.up(before);
        self.note(problem);
    }

    fn note(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// One place of the value, about to be read. Reading yields nothing for null.
pub(super) struct Place<'r, 'k> {
    reader: &'r mut Reader<'k>,
    node: Node,
}

impl<'r, 'k> Place<'r, 'k> {
    pub(super) fn root(reader: &'r mut Reader<'k>, node: Node) -> Self {
        Self { reader, node }
    }

    fn expected(&self) -> &'static str {
        match self.node.ty() {
            Type::Object | Type::Map => "an object",
            Type::List => "a list",
            Type::String => "a string",
            Type::Boolean => "true or false",
            Type::Int32 => "an integer (32 bits)",
            Type::Int64 => "an integer (64 bits)",
            Type::Number => "a number",
            Type::IntOrString => "an integer (32 bits) or a string",
            Type::Quantity => "a quantity such as \"500m\" or \"2Gi\"",
            Type::Time | Type::MicroTime | Type::DateTime => {
                "a time such as \"2006-01-02T15:04:05Z\""
            }
            Type::Bytes => "base64",
            Type::Any => "a value",
        }
    }

    fn refuse<E: Error>(self, found: String) -> E {
        let expected = self.expected();
        self.reader.wrong_type(expected, found)
    }

    fn number<E: Error>(self, number: Number) -> Result<Option<Value>, E> {
        let fits = match self.node.ty() {
            Type::Int64 => number.as_i64().is_some(),
            Type::Int32 | Type::IntOrString => {
                number.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
            }
            Type::Number | Type::Any => true,
            Type::Quantity => return Ok(Some(Value::String(scalar::quantity(&number)))),
            Type::Object
            | Type::Map
            | Type::List
            | Type::String
            | Type::Boolean
            | Type::Time
            | Type::MicroTime
            | Type::DateTime
            | Type::Bytes => false,
        };
        if fits {
            Ok(Some(Value::Number(number)))
        } else {
            Err(self.refuse(format!("the number {number}")))
        }
    }

    fn text<E: Error>(self, text: String) -> Result<Option<Value>, E> {
        let text = match self.node.ty() {
            Type::String | Type::IntOrString | Type::Quantity | Type::Any => Some(text),
            Type::Time => match scalar::seconds(&text) {
                Some(time) => Some(time),
                None => return Err(self.refuse(scalar::found(&text))),
            },
            Type::MicroTime => match scalar::microseconds(&text) {
                Some(time) => Some(time),
                None => return Err(self.refuse(scalar::found(&text))),
            },
            Type::DateTime if scalar::is_time(&text) => Some(text),
            Type::Bytes => {
                let found = scalar::found(&text);
                match scalar::bytes(text) {
                    Some(base64) => Some(base64),
                    None => return Err(self.refuse(found)),
                }
            }
            _ => return Err(self.refuse(scalar::found(&text))),
        };
        Ok(text.map(Value::String))
    }

    fn list<'de, A: SeqAccess<'de>>(self, mut access: A) -> Result<Option<Value>, A::Error> {
        let Some(items) = self.node.items() else {
            return Err(self.refuse("a list".to_owned()));
        };
        let reader = self.reader;
        reader.enter()?;
        let mut list = Vec::new();
        loop {
            let before = reader.down_to_index(list.len());
            let element = access.next_element_seed(Place {
                reader,
                node: items,
            })?;
            reader.up(before);
            match element {
                Some(value) => list.push(value.unwrap_or_else(|| empty(items))),
                None => break,
            }
        }
        reader.leave();
        Ok(Some(Value::Array(list)))
    }

    fn object<'de, A: MapAccess<'de>>(self, access: A) -> Result<Option<Value>, A::Error> {
        match self.node.ty() {
            Type::Object => self.fields(access),
            Type::Map | Type::Any => self.entries(access),
            _ => Err(self.refuse("an object".to_owned())),
        }
    }

    /// An object with declared fields.
    fn fields<'de, A: MapAccess<'de>>(self, mut access: A) -> Result<Option<Value>, A::Error> {
        let Self { reader, node } = self;
        reader.enter()?;
        let mut map = Map::new();
        let mut nulls: Vec<Cow<'static, str>> = Vec::new();
        while let Some(key) = access.next_key_seed(Key(node))? {
            let (name, child) = match key {
                Found::Field(name, child) => (Cow::Borrowed(name), child),
                Found::Unknown(name) => match node.child(&name) {
                    Some(child) => (Cow::Owned(name), child),
                    None => {
                        reader.unknown(&name);
                        access.next_value::<IgnoredAny>()?;
                        continue;
                    }
                },
            };
            if map.contains_key(&*name) || nulls.contains(&name) {
                reader.duplicate(&name);
            }
            let before = reader.down(&name);
            let value = access.next_value_seed(Place {
                reader,
                node: child,
            })?;
            reader.up(before);
            match value {
                Some(value) => {
                    map.insert(name.into_owned(), value);
                }
                None => nulls.push(name),
            }
        }
        reader.leave();
        Ok(Some(Value::Object(map)))
    }

    /// An object whose keys are data. Nulls are dropped nowhere but in declared fields: in a map
    /// they stand for the empty value, and where anything goes they are part of the data.
    fn entries<'de, A: MapAccess<'de>>(self, mut access: A) -> Result<Option<Value>, A::Error> {
        let Self { reader, node } = self;
        reader.enter()?;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                reader.duplicate(&key);
            }
            // A map and an open value have a child for every key.
            let values = node.child(&key).unwrap_or(node);
            let before = reader.down(&key);
            let value = access.next_value_seed(Place {
                reader,
                node: values,
            })?;
            reader.up(before);
            map.insert(key, value.unwrap_or_else(|| empty(values)));
        }
        reader.leave();
        Ok(Some(Value::Object(map)))
    }
}

/// What null stands for inside a list or a map.
fn empty(node: Node) -> Value {
    match node.ty() {
        Type::Object | Type::Map => Value::Object(Map::new()),
        Type::List => Value::Array(Vec::new()),
        Type::String | Type::Bytes => Value::String(String::new()),
        Type::Boolean => Value::Bool(false),
        Type::Int32 | Type::Int64 | Type::Number | Type::IntOrString => Value::from(0),
        Type::Quantity => Value::String("0".to_owned()),
        Type::Time | Type::MicroTime | Type::DateTime | Type::Any => Value::Null,
    }
}

impl<'de> DeserializeSeed<'de> for Place<'_, '_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected())
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        match self.node.ty() {
            Type::Boolean | Type::Any => Ok(Some(Value::Bool(value))),
            _ => Err(self.refuse(value.to_string())),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        self.number(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        self.number(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.number(number),
            None => Err(self.refuse("a number out of range".to_owned())),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        self.text(value.to_owned())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Self::Value, E> {
        self.text(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        self.list(access)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        self.object(access)
    }
}

/// The key of an object with declared fields: known ones are found without being copied.
struct Key(Node);

enum Found {
    Field(&'static str, Node),
    Unknown(String),
}

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(match self.0.field(name) {
            Some((name, node)) => Found::Field(name, node),
            None => Found::Unknown(name.to_owned()),
        })
    }
}
