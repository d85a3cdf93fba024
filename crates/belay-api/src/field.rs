//! Field errors in Kubernetes' own form, and a cursor that reads a JSON value and knows its path.
//!
//! ```text
//! spec.containers[0].image: Required value
//! \_______ Path _________/  \_ ErrorKind _/
//! ```

mod cursor;
mod errors;

use std::fmt;
use std::fmt::Write as _;
use std::rc::Rc;

use serde_json::Value;

pub use cursor::Cursor;
pub use errors::Errors;

/// Where in an object a field is: `spec.containers[0].resources.limits[cpu]`.
///
/// Paths share their beginnings, so that walking a large object costs no copying; they are
/// turned into text only when an error is made.
#[derive(Clone)]
pub struct Path(Option<Rc<Step>>);

struct Step {
    parent: Path,
    kind: StepKind,
}

enum StepKind {
    Child(Box<str>),
    Index(usize),
    Key(Box<str>),
}

impl Path {
    /// The object itself.
    #[must_use]
    pub fn root() -> Self {
        Self(None)
    }

    /// A path of one field.
    #[must_use]
    pub fn new(field: &str) -> Self {
        Self::root().child(field)
    }

    fn step(&self, kind: StepKind) -> Self {
        Self(Some(Rc::new(Step {
            parent: self.clone(),
            kind,
        })))
    }

    #[must_use]
    pub fn child(&self, field: &str) -> Self {
        self.step(StepKind::Child(field.into()))
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.step(StepKind::Index(index))
    }

    /// An entry of a map whose keys are data, not field names.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.step(StepKind::Key(key.into()))
    }
}

impl Default for Path {
    fn default() -> Self {
        Self::root()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = Vec::new();
        let mut at = self;
        while let Some(step) = &at.0 {
            steps.push(&step.kind);
            at = &step.parent;
        }
        for (i, kind) in steps.into_iter().rev().enumerate() {
            match kind {
                StepKind::Child(name) if i == 0 => f.write_str(name)?,
                StepKind::Child(name) => write!(f, ".{name}")?,
                StepKind::Index(index) => write!(f, "[{index}]")?,
                StepKind::Key(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({self})")
    }
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq)]
pub enum ErrorKind {
    NotFound(Value),
    Required,
    Duplicate(Value),
    Invalid(Value),
    NotSupported(Value),
    Forbidden,
    TooLong,
    TooMany(Value),
    TypeInvalid(Value),
}

impl ErrorKind {
    /// The `reason` of a cause in `metav1.Status`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate(_) => "FieldValueDuplicate",
            Self::Invalid(_) => "FieldValueInvalid",
            Self::NotSupported(_) => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany(_) => "FieldValueTooMany",
            Self::TypeInvalid(_) => "FieldValueTypeInvalid",
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "Not found",
            Self::Required => "Required value",
            Self::Duplicate(_) => "Duplicate value",
            Self::Invalid(_) | Self::TypeInvalid(_) => "Invalid value",
            Self::NotSupported(_) => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany(_) => "Too many",
        }
    }

    fn bad_value(&self) -> Option<&Value> {
        match self {
            Self::NotFound(value)
            | Self::Duplicate(value)
            | Self::Invalid(value)
            | Self::NotSupported(value)
            | Self::TooMany(value)
            | Self::TypeInvalid(value) => Some(value),
            Self::Required | Self::Forbidden | Self::TooLong => None,
        }
    }
}

/// One thing that is wrong with an object: which field, in what way, and what would be right.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub field: String,
    pub detail: String,
}

impl FieldError {
    fn new(path: &Path, kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            field: path.to_string(),
            detail: detail.into(),
        }
    }

    #[must_use]
    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(path, ErrorKind::Required, detail)
    }

    #[must_use]
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(path, ErrorKind::Invalid(value.into()), detail)
    }

    #[must_use]
    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(path, ErrorKind::TypeInvalid(value.into()), detail)
    }

    #[must_use]
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(path, ErrorKind::Forbidden, detail)
    }

    #[must_use]
    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(path, ErrorKind::Duplicate(value.into()), "")
    }

    #[must_use]
    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(path, ErrorKind::NotFound(value.into()), "")
    }

    /// A value outside a closed set; the message lists the set in the order given.
    #[must_use]
    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let mut detail = String::new();
        for (i, one) in supported.iter().enumerate() {
            let lead = if i == 0 { "supported values: " } else { ", " };
            let _ = write!(detail, "{lead}{}", quoted(one));
        }
        Self::new(path, ErrorKind::NotSupported(value.into()), detail)
    }

    /// A value longer than `limit` bytes; the value itself is left out of the message.
    #[must_use]
    pub fn too_long(path: &Path, limit: usize) -> Self {
        let bytes = if limit == 1 { "byte" } else { "bytes" };
        Self::new(
            path,
            ErrorKind::TooLong,
            format!("may not be more than {limit} {bytes}"),
        )
    }

    #[must_use]
    pub fn too_many(path: &Path, actual: usize, limit: usize) -> Self {
        let items = if limit == 1 { "item" } else { "items" };
        Self::new(
            path,
            ErrorKind::TooMany(actual.into()),
            format!("must have at most {limit} {items}"),
        )
    }

    /// The message without the field, as `details.causes[].message` carries it.
    #[must_use]
    pub fn body(&self) -> String {
        let mut body = self.kind.title().to_owned();
        match self.kind.bad_value() {
            None => {}
            Some(Value::String(text)) => {
                let _ = write!(body, ": {}", quoted(text));
            }
            Some(value) => {
                let _ = write!(body, ": {value}");
            }
        }
        if !self.detail.is_empty() {
            let _ = write!(body, ": {}", self.detail);
        }
        body
    }

    /// Reason, message and field of the cause in `metav1.Status.details.causes`.
    #[must_use]
    pub fn cause(&self) -> (&'static str, String, String) {
        (self.kind.reason(), self.body(), self.field.clone())
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An error about the whole object has no field; upstream prints it as <nil>.
        let field = if self.field.is_empty() {
            "<nil>"
        } else {
            &self.field
        };
        write!(f, "{field}: {}", self.body())
    }
}

impl std::error::Error for FieldError {}

/// Quotes as Go's `%q` does for the texts that occur here: JSON's quoting, which agrees on
/// everything but exotic control characters.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_upstream_writes_them() {
        let path = Path::new("spec")
            .child("containers")
            .index(2)
            .child("resources")
            .child("limits")
            .key("cpu");
        assert_eq!(path.to_string(), "spec.containers[2].resources.limits[cpu]");
        let annotation = Path::new("metadata")
            .child("annotations")
            .key("apps.k8s.io/notifiers");
        assert_eq!(
            annotation.to_string(),
            "metadata.annotations[apps.k8s.io/notifiers]"
        );
        assert_eq!(Path::root().to_string(), "");
    }

    #[test]
    fn errors_read_as_upstream_writes_them() {
        let at = Path::new("spec").child("x");
        let check = |error: FieldError, text: &str, reason: &str| {
            assert_eq!(error.to_string(), text);
            let (got, message, field) = error.cause();
            assert_eq!(got, reason);
            assert_eq!(field, "spec.x");
            assert_eq!(format!("{field}: {message}"), text);
        };
        check(
            FieldError::required(&at, ""),
            "spec.x: Required value",
            "FieldValueRequired",
        );
        check(
            FieldError::required(&at, "say it"),
            "spec.x: Required value: say it",
            "FieldValueRequired",
        );
        check(
            FieldError::invalid(&at, "a\"b", "must be nicer"),
            r#"spec.x: Invalid value: "a\"b": must be nicer"#,
            "FieldValueInvalid",
        );
        check(
            FieldError::invalid(&at, -1, "must be greater than or equal to 0"),
            "spec.x: Invalid value: -1: must be greater than or equal to 0",
            "FieldValueInvalid",
        );
        check(
            FieldError::not_supported(&at, "Z", &["A", "B"]),
            r#"spec.x: Unsupported value: "Z": supported values: "A", "B""#,
            "FieldValueNotSupported",
        );
        check(
            FieldError::duplicate(&at, "a"),
            r#"spec.x: Duplicate value: "a""#,
            "FieldValueDuplicate",
        );
        check(
            FieldError::not_found(&at, "a"),
            r#"spec.x: Not found: "a""#,
            "FieldValueNotFound",
        );
        check(
            FieldError::forbidden(&at, "not here"),
            "spec.x: Forbidden: not here",
            "FieldValueForbidden",
        );
        check(
            FieldError::too_long(&at, 63),
            "spec.x: Too long: may not be more than 63 bytes",
            "FieldValueTooLong",
        );
        check(
            FieldError::too_many(&at, 3, 1),
            "spec.x: Too many: 3: must have at most 1 item",
            "FieldValueTooMany",
        );
    }
}
