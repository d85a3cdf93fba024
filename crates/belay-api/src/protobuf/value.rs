//! From a message to a JSON object.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde_json::{Map, Value};

use super::message::{Field, Item, Message, Shape};
use super::wire::{Fault, Payload, Wire};
use crate::decode::MAX_DEPTH;

/// What is wrong, and where.
#[derive(Debug, PartialEq)]
pub(super) struct Broken {
    pub(super) path: String,
    pub(super) fault: Fault,
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self {
            path: String::new(),
            fault,
        }
    }
}

impl Broken {
    fn inside(mut self, field: &Field) -> Self {
        if !field.name.is_empty() {
            let dot = if self.path.is_empty() || self.path.starts_with('[') {
                ""
            } else {
                "."
            };
            self.path.insert_str(0, dot);
            self.path.insert_str(0, field.name);
        }
        self
    }

    fn element(mut self, index: usize) -> Self {
        let mut path = String::new();
        // Writing to a string cannot fail.
        let _ = write!(path, "[{index}]");
        if !self.path.is_empty() {
            path.push('.');
        }
        self.path.insert_str(0, &path);
        self
    }
}

/// Adds the fields of `message` in `bytes` to `object`.
pub(super) fn fill(
    object: &mut Map<String, Value>,
    message: &Message,
    bytes: &[u8],
) -> Result<(), Broken> {
    fill_at(object, message, bytes, 0)
}

fn fill_at(
    object: &mut Map<String, Value>,
    message: &Message,
    bytes: &[u8],
    depth: usize,
) -> Result<(), Broken> {
    if depth > MAX_DEPTH {
        return Err(Fault::TooDeep.into());
    }
    let mut fields = Wire::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        if let Some(field) = message.field(number) {
            place(object, field, payload, depth).map_err(|broken| broken.inside(field))?;
        }
    }
    Ok(())
}

/// Puts one field into its object. A field may come more than once: of scalars the last counts,
/// messages are merged, lists and maps grow.
fn place(
    object: &mut Map<String, Value>,
    field: &Field,
    payload: Payload<'_>,
    depth: usize,
) -> Result<(), Broken> {
    let name = field.name;
    match &field.shape {
        Shape::Embedded(message) => fill_at(object, message, payload.bytes()?, depth + 1)?,
        Shape::One(Item::Message(message)) => {
            let inner = inner_map(object, name)?;
            fill_at(inner, message, payload.bytes()?, depth + 1)?;
        }
        Shape::Map(values) => {
            let (key, value) = entry(values, payload.bytes()?, depth)?;
            inner_map(object, name)?.insert(key, value);
        }
        Shape::List(items) => extend(inner_list(object, name)?, items, payload, depth)?,
        Shape::Kept(item) => {
            object.insert(name.to_owned(), single(item, payload, depth)?);
        }
        Shape::One(item) => {
            let value = single(item, payload, depth)?;
            if is_zero(&value) {
                object.remove(name);
            } else {
                object.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

/// Whether Go's `omitempty` leaves this out. A time or field set without content is null in JSON,
/// which means the same.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

/// The object in a field, made if need be. No two fields of an object have the same name, so what
/// is found there was put there by the same field.
fn inner_map<'o>(
    object: &'o mut Map<String, Value>,
    name: &str,
) -> Result<&'o mut Map<String, Value>, Fault> {
    if !object.contains_key(name) {
        object.insert(name.to_owned(), Value::Object(Map::new()));
    }
    let inner = object.get_mut(name).and_then(Value::as_object_mut);
    inner.ok_or(Fault::WireType)
}

/// The list in a field, in the same way.
fn inner_list<'o>(
    object: &'o mut Map<String, Value>,
    name: &str,
) -> Result<&'o mut Vec<Value>, Fault> {
    if !object.contains_key(name) {
        object.insert(name.to_owned(), Value::Array(Vec::new()));
    }
    let inner = object.get_mut(name).and_then(Value::as_array_mut);
    inner.ok_or(Fault::WireType)
}

/// One element, or a run of packed numbers.
fn extend(
    list: &mut Vec<Value>,
    items: &Item,
    payload: Payload<'_>,
    depth: usize,
) -> Result<(), Broken> {
    let numbers = matches!(items, Item::Bool | Item::Int32 | Item::Int64);
    if let (true, Payload::Bytes(run)) = (numbers, payload) {
        let mut packed = Wire::new(run);
        while let Some(number) = packed.packed()? {
            list.push(single(items, Payload::Varint(number), depth)?);
        }
        return Ok(());
    }
    let element = single(items, payload, depth).map_err(|broken| broken.element(list.len()))?;
    list.push(element);
    Ok(())
}

/// An entry of a map is a message of its own. What it leaves out is empty.
fn entry(values: &Item, bytes: &[u8], depth: usize) -> Result<(String, Value), Broken> {
    let mut key = "";
    let mut value = Payload::Bytes(&[]);
    let mut fields = Wire::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => key = payload.text()?,
            2 => value = payload,
            _ => {}
        }
    }
    Ok((key.to_owned(), single(values, value, depth)?))
}

/// A value by itself: a scalar, or an element of a list or map.
fn single(item: &Item, payload: Payload<'_>, depth: usize) -> Result<Value, Broken> {
    Ok(match item {
        Item::String => payload.text()?.into(),
        Item::Bool => (payload.varint()? != 0).into(),
        Item::Int32 => int32(payload.varint()?).into(),
        Item::Int64 => payload.varint()?.cast_signed().into(),
        Item::Bytes => base64(payload.bytes()?),
        Item::Quantity => quantity(payload.bytes()?)?,
        Item::IntOrString => int_or_string(payload.bytes()?)?,
        Item::Time => time(payload.bytes()?, false)?,
        Item::MicroTime => time(payload.bytes()?, true)?,
        Item::FieldsV1 => field_set(payload.bytes()?)?,
        Item::Strings => strings(payload.bytes()?)?,
        Item::Message(message) => {
            let mut object = Map::new();
            fill_at(&mut object, message, payload.bytes()?, depth + 1)?;
            Value::Object(object)
        }
    })
}

/// Protobuf sends negative numbers as 64 bits, whatever their width.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half is only the sign"
)]
fn int32(varint: u64) -> i32 {
    varint.cast_signed() as i32
}

fn base64(bytes: &[u8]) -> Value {
    // A string of bytes always serialises.
    serde_json::to_value(ByteString(bytes.to_vec())).unwrap_or_default()
}

/// An amount as text; without text it is zero.
fn quantity(bytes: &[u8]) -> Result<Value, Fault> {
    let mut text = "0";
    let mut fields = Wire::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        if number == 1 {
            text = payload.text()?;
        }
    }
    Ok(text.into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Fault> {
    let (mut which, mut number_value, mut text) = (0, 0, "");
    let mut fields = Wire::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => which = payload.varint()?,
            2 => number_value = int32(payload.varint()?),
            3 => text = payload.text()?,
            _ => {}
        }
    }
    match which {
        0 => Ok(number_value.into()),
        1 => Ok(text.into()),
        _ => Err(Fault::IntOrString),
    }
}

/// Seconds since the epoch, with a fraction where the type has one. An empty message is no time,
/// which is not the same as the epoch.
fn time(bytes: &[u8], fraction: bool) -> Result<Value, Fault> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Wire::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => seconds = payload.varint()?.cast_signed(),
            2 if fraction => nanos = int32(payload.varint()?),
            _ => {}
        }
    }
    let time = Timestamp::new(seconds, nanos).map_err(|_| Fault::Time)?;
    // The schema's reader gives it its digits and refuses years before 0.
    Ok(time.to_string().into())
}

fn field_set(bytes: &[u8]) -> Result<Value, Fault> {
    let mut raw: &[u8] = &[];
    let mut fields = Wire::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        if number == 1 {
            raw = payload.bytes()?;
        }
    }
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(raw).map_err(|_| Fault::FieldSet)
}

fn strings(bytes: &[u8]) -> Result<Value, Fault> {
    let mut list = Vec::new();
    let mut fields = Wire::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        if number == 1 {
            list.push(payload.text()?.into());
        }
    }
    Ok(Value::Array(list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    static INNER: Message = Message(&[one(1, "text", Item::String), one(2, "number", Item::Int32)]);
    static OUTER: Message = Message(&[
        one(1, "inner", Item::Message(&INNER)),
        field(2, "", Shape::Embedded(&INNER)),
        field(3, "list", Shape::List(Item::Int64)),
        field(4, "map", Shape::Map(Item::String)),
        field(5, "kept", Shape::Kept(Item::Int32)),
        field(6, "inners", Shape::List(Item::Message(&INNER))),
        field(7, "port", Shape::Kept(Item::IntOrString)),
        one(8, "time", Item::Time),
        one(9, "micro", Item::MicroTime),
        one(10, "owned", Item::FieldsV1),
        field(11, "amounts", Shape::Map(Item::Quantity)),
    ]);
    static ENDLESS: Message = Message(&[one(1, "next", Item::Message(&ENDLESS))]);

    const fn one(number: u64, name: &'static str, item: Item) -> Field {
        field(number, name, Shape::One(item))
    }

    const fn field(number: u64, name: &'static str, shape: Shape) -> Field {
        Field {
            number,
            name,
            shape,
        }
    }

    fn read(bytes: &[u8]) -> Result<Value, Broken> {
        let mut object = Map::new();
        fill(&mut object, &OUTER, bytes).map(|()| Value::Object(object))
    }

    #[test]
    fn fields_become_what_go_would_write() {
        let cases: &[(&[u8], Value)] = &[
            (b"", json!({})),
            (b"\x0a\x00", json!({"inner": {}})),
            (b"\x0a\x04\x0a\x00\x10\x00", json!({"inner": {}})),
            (b"\x12\x03\x0a\x01a", json!({"text": "a"})),
            (b"\x28\x00", json!({"kept": 0})),
            (
                b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                json!({"kept": -1}),
            ),
            (b"\x18\x01\x18\x00", json!({"list": [1, 0]})),
            (
                b"\x1a\x03\x01\x96\x01\x18\x02",
                json!({"list": [1, 150, 2]}),
            ),
            (b"\x22\x06\x0a\x01a\x12\x01b", json!({"map": {"a": "b"}})),
            (b"\x22\x00", json!({"map": {"": ""}})),
            (
                b"\x32\x00\x32\x02\x10\x05",
                json!({"inners": [{}, {"number": 5}]}),
            ),
            (b"\x3a\x06\x08\x00\x10\x50\x1a\x00", json!({"port": 80})),
            (b"\x3a\x04\x08\x01\x1a\x00", json!({"port": ""})),
            (b"\x3a\x00", json!({"port": 0})),
            (b"\x42\x00", json!({})),
            (
                b"\x42\x04\x08\x00\x10\x05",
                json!({"time": "1970-01-01T00:00:00Z"}),
            ),
            (
                b"\x4a\x05\x08\x01\x10\xd0\x0f",
                json!({"micro": "1970-01-01T00:00:01.000002Z"}),
            ),
            (b"\x52\x08\x0a\x06{\"f\":1", json!(null)),
            (b"\x52\x09\x0a\x07{\"f\":1}", json!({"owned": {"f": 1}})),
            (b"\x52\x02\x0a\x00", json!({})),
            (b"\x5a\x03\x0a\x01c", json!({"amounts": {"c": "0"}})),
            (
                b"\x5a\x09\x0a\x01c\x12\x04\x0a\x02\x31m",
                json!({"amounts": {"c": "1m"}}),
            ),
            (b"\xa2\x06\x01x\x28\x01", json!({"kept": 1})),
        ];
        for (bytes, expected) in cases {
            let value = read(bytes);
            if expected.is_null() {
                assert!(value.is_err(), "{bytes:02x?}: {value:?}");
            } else {
                assert_eq!(value.as_ref(), Ok(expected), "{bytes:02x?}");
            }
        }
    }

    #[test]
    fn a_field_given_again_merges_or_replaces() {
        let twice = b"\x0a\x03\x0a\x01a\x0a\x02\x10\x07";
        assert_eq!(
            read(twice),
            Ok(json!({"inner": {"text": "a", "number": 7}}))
        );
        let emptied = b"\x12\x03\x0a\x01a\x12\x02\x0a\x00";
        assert_eq!(read(emptied), Ok(json!({})));
    }

    #[test]
    fn damage_is_told_with_its_place() {
        let cases: &[(&[u8], &str, Fault)] = &[
            (b"\x0a\x02\x0a\x05", "inner", Fault::Truncated),
            (b"\x08\x01", "inner", Fault::WireType),
            (
                b"\x32\x00\x32\x03\x0a\x01\xff",
                "inners[1].text",
                Fault::Text,
            ),
            (b"\x3a\x02\x08\x02", "port", Fault::IntOrString),
            (
                b"\x42\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
                "time",
                Fault::Time,
            ),
            (b"\x52\x03\x0a\x01{", "owned", Fault::FieldSet),
            (b"\x00\x00", "", Fault::FieldNumber),
        ];
        for (bytes, path, fault) in cases {
            let broken = read(bytes).expect_err(path);
            assert_eq!(
                (&*broken.path, broken.fault),
                (*path, *fault),
                "{bytes:02x?}"
            );
        }
    }

    #[test]
    fn depth_is_bounded() {
        let mut bytes = Vec::new();
        for _ in 0..2 * MAX_DEPTH {
            let mut outer = vec![0x0a];
            let mut length = bytes.len();
            while length > 0x7f {
                outer.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
                length >>= 7;
            }
            outer.push(u8::try_from(length).expect("seven bits"));
            outer.extend(bytes);
            bytes = outer;
        }
        let broken = fill(&mut Map::new(), &ENDLESS, &bytes).expect_err("too deep");
        assert_eq!(broken.fault, Fault::TooDeep);
    }
}
