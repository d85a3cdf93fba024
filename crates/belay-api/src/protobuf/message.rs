//! What a message's fields are called in JSON, and what they become there.

/// A message: its fields, in order of their numbers.
#[derive(Debug)]
pub(super) struct Message(pub(super) &'static [Field]);

#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u64,
    /// Its name in JSON; empty for an embedded message, which has none.
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

#[derive(Debug)]
pub(super) enum Shape {
    /// Left out when it is zero.
    One(Item),
    /// Stays when it is zero.
    Kept(Item),
    List(Item),
    /// From strings to these.
    Map(Item),
    /// A message whose fields lie flat in the object of its parent.
    Embedded(&'static Message),
}

#[derive(Debug)]
pub(super) enum Item {
    String,
    Bool,
    Int32,
    Int64,
    Bytes,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    /// JSON inside of protobuf: which fields a manager owns.
    FieldsV1,
    /// A message that holds nothing but a list of strings, which is a list in JSON.
    Strings,
    Message(&'static Message),
}

impl Message {
    pub(super) fn field(&self, number: u64) -> Option<&'static Field> {
        let index = self
            .0
            .binary_search_by_key(&number, |field| field.number)
            .ok()?;
        self.0.get(index)
    }
}

/// Turns `Name { number json type, ... }` into one static per message.
///
/// - `string`, `bool`, `int32`, `int64` are left out when zero; with a capital they stay, because
///   the Go field is a pointer or is written even when empty. Quantities and what may be an integer
///   or a string always stay.
/// - `[type]` is a list, `{type}` a map from strings.
/// - `_` in place of a name embeds the message.
/// - Any other type is a special one of [`Item`] or the name of a message.
macro_rules! messages {
    ($( $message:ident { $( $number:literal $name:tt $ty:tt ),* $(,)? } )*) => {
        $(
            pub(super) static $message: Message = Message(&[
                $( Field { number: $number, name: name!($name), shape: shape!($name $ty) } ),*
            ]);
        )*
    };
}

macro_rules! name {
    (_) => {
        ""
    };
    ($name:ident) => {
        stringify!($name)
    };
}

#[rustfmt::skip]
macro_rules! shape {
    (_ $message:ident) => { Shape::Embedded(&$message) };
    ($name:ident String) => { Shape::Kept(Item::String) };
    ($name:ident Bool) => { Shape::Kept(Item::Bool) };
    ($name:ident Int32) => { Shape::Kept(Item::Int32) };
    ($name:ident Int64) => { Shape::Kept(Item::Int64) };
    ($name:ident Quantity) => { Shape::Kept(Item::Quantity) };
    ($name:ident IntOrString) => { Shape::Kept(Item::IntOrString) };
    ($name:ident [$ty:ident]) => { Shape::List(item!($ty)) };
    ($name:ident {$ty:ident}) => { Shape::Map(item!($ty)) };
    ($name:ident $ty:ident) => { Shape::One(item!($ty)) };
}

#[rustfmt::skip]
macro_rules! item {
    (string) => { Item::String };
    (bool) => { Item::Bool };
    (int32) => { Item::Int32 };
    (int64) => { Item::Int64 };
    (bytes) => { Item::Bytes };
    (Quantity) => { Item::Quantity };
    (IntOrString) => { Item::IntOrString };
    (Time) => { Item::Time };
    (MicroTime) => { Item::MicroTime };
    (FieldsV1) => { Item::FieldsV1 };
    (Strings) => { Item::Strings };
    ($message:ident) => { Item::Message(&$message) };
}

pub(super) use {item, messages, name, shape};
