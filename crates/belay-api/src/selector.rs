//! Label and field selectors, as they stand in a query string.
//!
//! Both parse what upstream parses and refuse what it refuses, in its words: a client that prints
//! the message shows its user something that can be searched for.

mod field;
mod label;

pub use field::{FieldOperator, FieldRequirement, FieldSelector};
pub use label::{Inexpressible, LabelRequirement, LabelSelector, Operator};

/// Why a selector was not understood.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SelectorError {
    /// A requirement that cannot be read, or whose key or value cannot be a label's.
    #[error("unable to parse requirement: {0}")]
    Requirement(RequirementError),
    #[error("found '{found}', expected: {expected}")]
    Unexpected {
        found: String,
        expected: &'static str,
    },
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    FieldTerm { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    #[error("invalid field selector: unescaped character in value: {0:?}")]
    Unescaped(char),
}

/// What is wrong with one requirement of a label selector.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequirementError {
    #[error("found '{found}', expected: {expected}")]
    Unexpected {
        found: String,
        expected: &'static str,
    },
    #[error("Invalid value: {key:?}: {problems}")]
    Key { key: String, problems: String },
    #[error("values[{index}][{key}]: Invalid value: {value:?}: {problems}")]
    Value {
        key: String,
        index: usize,
        value: String,
        problems: String,
    },
    #[error(
        "values[0]: Invalid value: {0:?}: for 'Gt', 'Lt' operators, the value must be an integer"
    )]
    NotAnInteger(String),
    #[error("operator: Invalid value: {0:?}: not a valid selector operator")]
    Operator(String),
}
