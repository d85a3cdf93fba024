//! From bytes to a value that fits its kind's schema.
//!
//! ```text
//!  bytes ──serde_json──┐
//!                      ├─> reader, walking the schema ─> value + problems ─> strict / warn / ignore
//!  patched value ──────┘
//! ```
//!
//! One reader serves both: what a client sent as bytes, and what a patch left behind. It does what
//! upstream's JSON decoding into typed objects does, so that a client sees the same server:
//!
//! - Field names are case-sensitive. A field that the kind does not have is pruned and is a
//!   *problem*; so is a field given twice, of which the last counts. What becomes of problems is
//!   for [`FieldValidation`] to say.
//! - A value of the wrong JSON type is an error, always. An integer must be written as one: `1.0`
//!   and `1e3` are refused, as upstream does.
//! - `null` for a field means that it is absent. As an element of a list or a value of a map it is
//!   the empty value of its type.
//! - A number given for a quantity becomes a string. Times of built-in kinds are rewritten to UTC,
//!   base64 to its one strict form.
//!
//! **Invariant:** the reader adds nothing and defaults nothing; beyond the rewriting just named, the
//! value is what the client wrote.

mod hints;
mod reader;
mod scalar;

use std::fmt::Write as _;
use std::str::FromStr;

use serde::de::DeserializeSeed as _;
use serde_json::Value;

use crate::schema::Schema;
use reader::{Place, Reader};

/// How deep objects and lists may nest. The JSON parser itself gives up a little later; the same
/// bound holds for what patches make, so that whatever is stored can be read again.
pub const MAX_DEPTH: usize = 120;

/// How many problems are told at most.
const MAX_PROBLEMS: usize = 100;

/// How many characters of a field's path are told at most; far more than any real one has.
const MAX_PATH: usize = 512;

/// What becomes of unknown and duplicate fields: the query parameter `fieldValidation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// The request fails.
    Strict,
    /// The request succeeds and the client is warned.
    #[default]
    Warn,
    /// Nothing is said.
    Ignore,
}

/// A value that fits its schema, and what the client is to be told about it.
#[derive(Debug, PartialEq)]
pub struct Decoded {
    pub value: Value,
    pub warnings: Vec<String>,
}

/// Why a value was not accepted.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum DecodeError {
    #[error("the body is not valid JSON: {message}")]
    Syntax { message: String },
    #[error("objects and lists are nested more than {MAX_DEPTH} deep{}", at(path))]
    TooDeep { path: String },
    #[error("{}: expected {expected}, but got {found}", if path.is_empty() { "the body" } else { path })]
    Type {
        path: String,
        expected: &'static str,
        found: String,
    },
    /// Only under [`FieldValidation::Strict`]; in upstream's words, which clients look for.
    #[error("strict decoding error: {}", problems.join(", "))]
    Strict { problems: Vec<String> },
}

fn at(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!(", at {path}")
    }
}

/// The value of `fieldValidation` is none of `Strict`, `Warn`, `Ignore`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown field validation {0:?}: use Strict, Warn or Ignore")]
pub struct UnknownFieldValidation(String);

impl FromStr for FieldValidation {
    type Err = UnknownFieldValidation;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" | "Warn" => Ok(Self::Warn),
            "Strict" => Ok(Self::Strict),
            "Ignore" => Ok(Self::Ignore),
            other => Err(UnknownFieldValidation(other.to_owned())),
        }
    }
}

/// Reads the JSON object in `bytes` as an object of the kind that `schema` describes.
///
/// The caller has limited the length of `bytes`; time and memory are proportional to it.
///
/// # Errors
///
/// The body is not JSON, nests too deep, has a value of the wrong type or, under
/// [`FieldValidation::Strict`], unknown or duplicate fields.
pub fn decode(
    bytes: &[u8],
    schema: &Schema,
    validation: FieldValidation,
) -> Result<Decoded, DecodeError> {
    let mut reader = Reader::new(schema.kind());
    let mut source = serde_json::Deserializer::from_slice(bytes);
    let read = Place::root(&mut reader, schema.node())
        .deserialize(&mut source)
        .and_then(|value| source.end().map(|()| value));
    let value = finish(&mut reader, read)?;
    let warnings = judge(reader.problems, validation)?;
    Ok(Decoded { value, warnings })
}

/// Holds `value`, which a patch has made, to `schema` in the same way, and returns the warnings.
///
/// # Errors
///
/// As [`decode`]. `value` is then null.
pub fn check(
    value: &mut Value,
    schema: &Schema,
    validation: FieldValidation,
) -> Result<Vec<String>, DecodeError> {
    let mut reader = Reader::new(schema.kind());
    let read = Place::root(&mut reader, schema.node()).deserialize(value.take());
    *value = finish(&mut reader, read)?;
    judge(reader.problems, validation)
}

/// The reader notes what it found wrong before it gives up, because the parser's own errors have no
/// room for a path.
fn finish(
    reader: &mut Reader<'_>,
    read: Result<Option<Value>, serde_json::Error>,
) -> Result<Value, DecodeError> {
    if let Some(failure) = reader.failure.take() {
        return Err(failure);
    }
    match read {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(DecodeError::Type {
            path: String::new(),
            expected: "an object",
            found: "null".to_owned(),
        }),
        Err(error) => Err(DecodeError::Syntax {
            message: error.to_string(),
        }),
    }
}

fn judge(problems: Vec<String>, validation: FieldValidation) -> Result<Vec<String>, DecodeError> {
    match validation {
        FieldValidation::Strict if problems.is_empty() => Ok(problems),
        FieldValidation::Strict => Err(DecodeError::Strict { problems }),
        FieldValidation::Warn => Ok(problems),
        FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// `text` in double quotes, with what would disturb a line escaped.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
