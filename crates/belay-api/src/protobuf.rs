//! Bodies in Kubernetes' protobuf form, read into the value that the same object in JSON would be.
//!
//! ```text
//!  "k8s\0" + Unknown{typeMeta, raw} ──open──> Envelope ──read──> value ──decode::check──> Decoded
//!                                                         ^ table: message -> fields    ^ schema
//! ```
//!
//! Typed Go clients send objects this way unless told otherwise. They accept JSON as an answer, so
//! nothing here writes protobuf.
//!
//! What a field becomes follows Go's JSON encoding of the same struct: embedded structs lie flat in
//! their parent, a zero that Go would leave out is left out, and a zero behind a pointer stays. So
//! rules and patches never learn in which form an object came.
//!
//! Field numbers that the table does not have are skipped, as protobuf demands: there is no name to
//! warn about, whatever the field validation.
//!
//! **Invariant:** no length that a body claims is believed before that many bytes were seen; memory
//! and time are proportional to the body, and no body makes this panic.

mod message;
mod table;
mod value;
mod wire;

use serde_json::{Map, Value};

use crate::decode::{self, DecodeError, Decoded, FieldValidation};
use crate::schema::Schema;
pub use wire::Fault;
use wire::Wire;

/// The media type of such a body.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every body begins with, so that it is told from JSON and from bare protobuf.
const MAGIC: &[u8] = b"k8s\0";

/// An object still encoded, and what it says it is. Either name may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    raw: &'a [u8],
}

/// Why a body could not be read.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ProtobufError {
    #[error(
        "the body does not begin with the bytes \"k8s\\0\" of a Kubernetes protobuf message; send \
         it in that envelope, or as application/json"
    )]
    NoEnvelope,
    #[error("the object in the envelope is encoded as {0:?}; send it as plain protobuf")]
    Encoded(String),
    /// The kind is served in JSON alone, as custom resources are on a stock server.
    #[error("{kind} has no protobuf form; send application/json")]
    NoMessage { kind: String },
    #[error("the protobuf body cannot be read{}: {fault}", at(path))]
    Damaged { path: String, fault: Fault },
    #[error(transparent)]
    Value(#[from] DecodeError),
}

fn at(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!(" at {path}")
    }
}

impl<'a> Envelope<'a> {
    /// Looks at the envelope and leaves the object in it alone.
    ///
    /// # Errors
    ///
    /// The body is no envelope, a damaged one, or holds something that is not protobuf.
    pub fn open(bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let message = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoEnvelope)?;
        let mut envelope = Self {
            api_version: "",
            kind: "",
            raw: &[],
        };
        let (mut encoding, mut content_type) = ("", "");
        unwrap(message, &mut envelope, &mut encoding, &mut content_type).map_err(|fault| {
            ProtobufError::Damaged {
                path: String::new(),
                fault,
            }
        })?;
        match (encoding, content_type) {
            ("", "" | CONTENT_TYPE) => Ok(envelope),
            ("", other) | (other, _) => Err(ProtobufError::Encoded(other.to_owned())),
        }
    }

    /// Reads the object as one of the kind that `schema` describes, and holds it to that schema.
    /// Whether the envelope names that kind is for the caller to judge.
    ///
    /// # Errors
    ///
    /// The kind has no protobuf form, the message is damaged, or its value does not fit the schema.
    pub fn read(
        &self,
        schema: &Schema,
        validation: FieldValidation,
    ) -> Result<Decoded, ProtobufError> {
        let kind = schema.kind();
        let message = table::of(kind).ok_or_else(|| ProtobufError::NoMessage {
            kind: kind.to_owned(),
        })?;
        let mut object = Map::new();
        for (name, text) in [("apiVersion", self.api_version), ("kind", self.kind)] {
            if !text.is_empty() {
                object.insert(name.to_owned(), text.into());
            }
        }
        value::fill(&mut object, message, self.raw)
            .map_err(|value::Broken { path, fault }| ProtobufError::Damaged { path, fault })?;
        let mut value = Value::Object(object);
        let warnings = decode::check(&mut value, schema, validation)?;
        Ok(Decoded { value, warnings })
    }
}

/// `runtime.Unknown`: the message around every object.
fn unwrap<'a>(
    message: &'a [u8],
    envelope: &mut Envelope<'a>,
    encoding: &mut &'a str,
    content_type: &mut &'a str,
) -> Result<(), Fault> {
    let mut fields = Wire::new(message);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => type_meta(payload.bytes()?, envelope)?,
            2 => envelope.raw = payload.bytes()?,
            3 => *encoding = payload.text()?,
            4 => *content_type = payload.text()?,
            _ => {}
        }
    }
    Ok(())
}

fn type_meta<'a>(message: &'a [u8], envelope: &mut Envelope<'a>) -> Result<(), Fault> {
    let mut fields = Wire::new(message);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => envelope.api_version = payload.text()?,
            2 => envelope.kind = payload.text()?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{self, Node, Type};
    use message::{Field, Item, Message, Shape};

    const KINDS: [&str; 19] = [
        "Pod",
        "Node",
        "Namespace",
        "Event",
        "ConfigMap",
        "Secret",
        "Binding",
        "DaemonSet",
        "Lease",
        "DeleteOptions",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
        "SelfSubjectReview",
        "SelfSubjectAccessReview",
        "SelfSubjectRulesReview",
        "SubjectAccessReview",
        "LocalSubjectAccessReview",
    ];

    /// Fields that are not upstream's, and so have no number.
    const OURS: [&str; 2] = ["notifiers", "stopSignal"];

    fn flat(message: &'static Message) -> Vec<(&'static str, &'static Shape)> {
        let fields = message.0.iter();
        fields
            .flat_map(|field| match &field.shape {
                Shape::Embedded(inner) => flat(inner),
                shape => vec![(field.name, shape)],
            })
            .collect()
    }

    fn compare_message(message: &'static Message, node: Node, path: &str) {
        assert_eq!(node.ty(), Type::Object, "{path}");
        let fields = flat(message);
        for (name, shape) in &fields {
            let path = format!("{path}.{name}");
            let (_, node) = node.field(name).unwrap_or_else(|| panic!("no {path}"));
            match shape {
                Shape::One(item) | Shape::Kept(item) => compare_item(item, node, &path),
                Shape::List(item) => compare_item(item, node.items().expect(&path), &path),
                Shape::Map(item) => {
                    assert_eq!(node.ty(), Type::Map, "{path}");
                    compare_item(item, node.child("any").expect(&path), &path);
                }
                Shape::Embedded(_) => panic!("{path} is not flat"),
            }
        }
        for (name, _) in node.fields() {
            let known = fields.iter().filter(|(field, _)| *field == name).count();
            let top = !path.contains('.') && matches!(name, "apiVersion" | "kind");
            let ours = path.ends_with("ontainers") && OURS.contains(&name);
            assert_eq!(known, usize::from(!top && !ours), "{path}.{name}");
        }
    }

    fn compare_item(item: &'static Item, node: Node, path: &str) {
        let expected = match item {
            Item::Message(message) => return compare_message(message, node, path),
            Item::String => Type::String,
            Item::Bool => Type::Boolean,
            Item::Int32 => Type::Int32,
            Item::Int64 => Type::Int64,
            Item::Bytes => Type::Bytes,
            Item::Quantity => Type::Quantity,
            Item::IntOrString => Type::IntOrString,
            Item::Time => Type::Time,
            Item::MicroTime => Type::MicroTime,
            Item::FieldsV1 => Type::Map,
            Item::Strings => Type::List,
        };
        assert_eq!(node.ty(), expected, "{path}");
    }

    #[test]
    fn the_table_has_exactly_the_fields_of_the_schema() {
        for kind in KINDS {
            let message = table::of(kind).expect(kind);
            compare_message(message, schema::of(kind).expect(kind).node(), kind);
        }
    }

    fn check_order(message: &'static Message, path: &str) {
        let numbers: Vec<u64> = message.0.iter().map(|field| field.number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{path}: {numbers:?}");
        for Field { name, shape, .. } in message.0 {
            let path = format!("{path}.{name}");
            match shape {
                Shape::Embedded(inner)
                | Shape::One(Item::Message(inner))
                | Shape::List(Item::Message(inner)) => check_order(inner, &path),
                _ => {}
            }
        }
    }

    #[test]
    fn the_fields_of_every_message_are_in_order_of_their_numbers() {
        for kind in KINDS {
            check_order(table::of(kind).expect(kind), kind);
        }
    }

    #[test]
    fn an_envelope_says_what_it_holds() {
        let body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x02\x0a\x00\x1a\x00\x22\x00";
        let envelope = Envelope::open(body).expect("an envelope");
        assert_eq!((envelope.api_version, envelope.kind), ("v1", "ConfigMap"));
        assert_eq!(envelope.raw, b"\x0a\x00");
        assert_eq!(Envelope::open(b"k8s\0").expect("empty").kind, "");
    }

    #[test]
    fn what_is_no_plain_envelope_is_refused_with_a_reason() {
        let cases: &[(&[u8], &str)] = &[
            (b"", "does not begin with"),
            (b"{}", "does not begin with"),
            (b"k8s\0\x1a\x04gzip", "is encoded as \"gzip\""),
            (
                b"k8s\0\x22\x10application/json",
                "is encoded as \"application/json\"",
            ),
            (b"k8s\0\x0a\x09", "it ends in the middle of a field"),
            (b"k8s\0\x0a\x04\x0a\x02\xff\xfe", "a string is not UTF-8"),
        ];
        for (body, part) in cases {
            let error = Envelope::open(body).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_custom_kind_has_no_protobuf_form() {
        let envelope = Envelope::open(b"k8s\0").expect("an envelope");
        let schema = schema::of("PodNotification").expect("a known kind");
        let error = envelope.read(schema, FieldValidation::Warn);
        assert!(matches!(error, Err(ProtobufError::NoMessage { .. })));
    }
}
