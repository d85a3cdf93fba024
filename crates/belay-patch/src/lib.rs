//! The three patches a client may send: JSON patch, merge patch, strategic merge patch. Pure.
//!
//! ```text
//!  application/json-patch+json             json_patch(doc, operations)      RFC 6902
//!  application/merge-patch+json            merge_patch(doc, patch)          RFC 7386
//!  application/strategic-merge-patch+json  strategic_merge(doc, patch, node)
//!                                            node: which lists merge, and by which key
//! ```
//!
//! What comes out is JSON and no more: the caller holds it to its schema, which also drops what a
//! patch left behind that is no field (a directive in a place where none belongs).
//!
//! A document that could not be patched is left half changed. Callers patch a copy, which they have
//! anyway because they may have to start over after a conflict.
//!
//! **Invariant:** no patch makes a document deeper than [`belay_api::decode::MAX_DEPTH`], or larger
//! by more than the patch itself and [`MAX_COPY_BYTES`].

mod error;
mod json;
mod limits;
mod merge;
mod pointer;
mod strategic;

pub use error::PatchError;
pub use json::{MAX_COPY_BYTES, MAX_OPERATIONS, json_patch};
pub use merge::merge_patch;
pub use strategic::strategic_merge;
