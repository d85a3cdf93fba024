use belay_api::decode::MAX_DEPTH;

use crate::{MAX_COPY_BYTES, MAX_OPERATIONS};

/// Why a patch was not applied.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PatchError {
    #[error("a JSON patch is a list of operations, but this is {found}")]
    NotAList { found: &'static str },
    #[error("the {what} must be an object, but is {found}")]
    NotAnObject {
        what: &'static str,
        found: &'static str,
    },
    #[error("the patch would nest objects and lists more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error(
        "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}: send several"
    )]
    TooManyOperations { count: usize },
    #[error("the copies of this JSON patch add more than {MAX_COPY_BYTES} bytes")]
    CopiesTooMuch,
    #[error("operation {index} of the JSON patch is not valid: {problem}")]
    BadOperation { index: usize, problem: String },
    #[error("operation {index} of the JSON patch ({op}) does not apply: {problem} at {path:?}")]
    DoesNotApply {
        index: usize,
        op: &'static str,
        path: String,
        problem: &'static str,
    },
    #[error("testing value {path} failed: test failed (operation {index} of the JSON patch)")]
    TestFailed { index: usize, path: String },

    #[error("{path}: unknown $patch directive {directive}: use delete or replace")]
    UnknownDirective { path: String, directive: String },
    #[error("{path}: $patch: merge cannot be given, it is what happens without a directive")]
    MergeDirective { path: String },
    #[error(
        "{path}: $retainKeys must list every field that the patch sets, as strings, and nothing else decides what is kept"
    )]
    RetainKeys { path: String },
    #[error(
        "{path}: $deleteFromPrimitiveList/<field> must be a list of strings, numbers or booleans"
    )]
    DeleteList { path: String },
    #[error("{path}: $setElementOrder/<field> must be a list, for a field that is a list")]
    ElementOrder { path: String },
    #[error("{path}: the order of the patched elements is not the one that $setElementOrder gives")]
    OrderMismatch { path: String },
    #[error("{path}: an element lacks {key:?}, by which the elements of this list are told apart")]
    NoMergeKey { path: String, key: &'static str },
    #[error("{path}: the elements of the list are not all of one type")]
    MixedElements { path: String },
    #[error("{path}: a list of lists cannot be merged")]
    ListOfLists { path: String },
    #[error("{path}: objects in this list have no key by which they could be merged or ordered")]
    Unkeyed { path: String },
    #[error("{path}: the kind has no such field to merge into")]
    UnknownField { path: String },
}

impl PatchError {
    /// Whether the patch itself is malformed (a bad request), rather than well formed and not
    /// applicable to this document (unprocessable).
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::NotAList { .. }
            | Self::NotAnObject { .. }
            | Self::BadOperation { .. }
            | Self::UnknownDirective { .. }
            | Self::MergeDirective { .. }
            | Self::RetainKeys { .. }
            | Self::DeleteList { .. }
            | Self::ElementOrder { .. }
            | Self::OrderMismatch { .. } => true,
            Self::TooDeep
            | Self::TooManyOperations { .. }
            | Self::CopiesTooMuch
            | Self::DoesNotApply { .. }
            | Self::TestFailed { .. }
            | Self::NoMergeKey { .. }
            | Self::MixedElements { .. }
            | Self::ListOfLists { .. }
            | Self::Unkeyed { .. }
            | Self::UnknownField { .. } => false,
        }
    }
}
