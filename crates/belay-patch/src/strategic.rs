//! Strategic merge patch: a merge patch that knows which lists are sets and which hold objects with
//! a key, and that can be told more with directives.
//!
//! | in the patch | in | means |
//! |---|---|---|
//! | `$patch: replace` | an object | the object becomes the patch |
//! | `$patch: delete` | an object | the object becomes empty |
//! | `$patch: replace` | an element | the list becomes the other elements of the patch |
//! | `$patch: delete` | an element | the element with this key is removed |
//! | `$retainKeys: [a]` | an object | all fields but `a` are removed first |
//! | `$deleteFromPrimitiveList/f: [x]` | an object | `x` is removed from the list `f` |
//! | `$setElementOrder/f: [..]` | an object | the elements of `f` get this order |
//!
//! The semantics are upstream's, including that a directive where it has no meaning stays in the
//! result as if it were a field; holding the result to its schema drops it there. They differ where
//! upstream would fail or be undecided for reasons of its own:
//!
//! - Empty lists are stored here as they were sent, so ordering an empty list is no error.
//! - Where upstream walks a Go map, and the outcome depends on its random order, the order here is:
//!   `$retainKeys`, element orders, deletions from lists, then fields, by name.
//! - A `$deleteFromPrimitiveList` of anything but scalars is an error rather than a merge.

mod directive;
mod list;
mod order;

use std::collections::HashSet;

use belay_api::decode::MAX_DEPTH;
use belay_api::schema::{Node, Strategy, Type};
use serde_json::{Map, Value};

use crate::PatchError;
use crate::limits::{depth, describe};
use directive::{DELETE_LIST, Directive, ELEMENT_ORDER, PATCH};

/// Merges `patch` into `doc`, an object of the kind that `node` describes.
///
/// # Errors
///
/// The patch is not an object, nests too deep, has a directive that makes no sense, or cannot be
/// merged because an element lacks its list's key.
pub fn strategic_merge(doc: &mut Value, patch: &Value, node: Node) -> Result<(), PatchError> {
    let Value::Object(changes) = patch else {
        return Err(PatchError::NotAnObject {
            what: "patch",
            found: describe(patch),
        });
    };
    if depth(patch) > MAX_DEPTH {
        return Err(PatchError::TooDeep);
    }
    let found = describe(doc);
    let Value::Object(fields) = doc else {
        return Err(PatchError::NotAnObject {
            what: "document",
            found,
        });
    };
    let mut merger = Merger {
        path: String::new(),
    };
    merger.object(fields, changes.clone(), node)
}

/// The merge, and where in the document it is.
struct Merger {
    path: String,
}

impl Merger {
    /// Merges `patch` into the object `original`.
    fn object(
        &mut self,
        original: &mut Map<String, Value>,
        mut patch: Map<String, Value>,
        node: Node,
    ) -> Result<(), PatchError> {
        match Directive::take(&mut patch) {
            None => {}
            Some(Directive::Replace) => {
                *original = patch;
                return Ok(());
            }
            Some(Directive::Delete) => {
                original.clear();
                return Ok(());
            }
            Some(Directive::Merge) => {
                return Err(PatchError::MergeDirective { path: self.place() });
            }
            Some(Directive::Unknown(directive)) => {
                return Err(PatchError::UnknownDirective {
                    path: self.place(),
                    directive,
                });
            }
        }
        if !directive::retain_keys(original, &mut patch) {
            return Err(PatchError::RetainKeys { path: self.place() });
        }
        self.element_orders(original, &mut patch, node)?;
        for (key, change) in patch {
            match directive::field_of(&key, DELETE_LIST) {
                Some(Some(field)) => self.delete_from(original, field, &change)?,
                Some(None) => return Err(PatchError::DeleteList { path: self.place() }),
                None => self.field(original, key, change, node)?,
            }
        }
        Ok(())
    }

    /// Merges one field.
    fn field(
        &mut self,
        original: &mut Map<String, Value>,
        name: String,
        change: Value,
        node: Node,
    ) -> Result<(), PatchError> {
        match (original.get_mut(&name), change) {
            (_, Value::Null) => {
                original.remove(&name);
                Ok(())
            }
            (Some(Value::Object(fields)), Value::Object(changes)) => self.down(&name, |merger| {
                let child = merger.child(node, &name)?;
                merger.object(fields, changes, child)
            }),
            (Some(Value::Array(list)), Value::Array(changes)) => self.down(&name, |merger| {
                let child = merger.list_child(node, &name)?;
                merger.list(list, changes, child)
            }),
            (_, mut value) => {
                directive::drop_nulls(&mut value);
                if directive::remove(&mut value) {
                    original.insert(name, value);
                } else {
                    original.remove(&name);
                }
                Ok(())
            }
        }
    }

    /// `$deleteFromPrimitiveList/name`.
    fn delete_from(
        &mut self,
        original: &mut Map<String, Value>,
        name: &str,
        values: &Value,
    ) -> Result<(), PatchError> {
        self.down(name, |merger| {
            let values = match values {
                // Upstream takes this for the field itself being null.
                Value::Null => {
                    original.remove(name);
                    return Ok(());
                }
                Value::Array(values) if !values.iter().any(is_container) => values,
                _ => {
                    return Err(PatchError::DeleteList {
                        path: merger.place(),
                    });
                }
            };
            if let Some(Value::Array(list)) = original.get_mut(name) {
                if !list::same_type(list.iter().chain(values)) {
                    return Err(PatchError::MixedElements {
                        path: merger.place(),
                    });
                }
                let doomed: HashSet<String> = values.iter().map(order::text).collect();
                list.retain(|element| !doomed.contains(&order::text(element)));
            }
            Ok(())
        })
    }

    fn child(&self, node: Node, name: &str) -> Result<Node, PatchError> {
        node.child(name)
            .ok_or_else(|| PatchError::UnknownField { path: self.place() })
    }

    /// The field `name`, which must be a list.
    fn list_child(&self, node: Node, name: &str) -> Result<Node, PatchError> {
        let child = self.child(node, name)?;
        match child.ty() {
            Type::List | Type::Any => Ok(child),
            _ => Err(PatchError::UnknownField { path: self.place() }),
        }
    }

    /// Does `step` with the path led down to `name`.
    fn down<T>(
        &mut self,
        name: &str,
        step: impl FnOnce(&mut Self) -> Result<T, PatchError>,
    ) -> Result<T, PatchError> {
        let before = self.path.len();
        if before > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        let result = step(self);
        self.path.truncate(before);
        result
    }

    fn place(&self) -> String {
        if self.path.is_empty() {
            "the patch".to_owned()
        } else {
            self.path.clone()
        }
    }
}

/// The key that tells the elements of the list at `node` apart.
fn merge_key(node: Node) -> Option<&'static str> {
    match node.strategy() {
        Strategy::Keyed(key) => Some(key),
        Strategy::Set | Strategy::Default => None,
    }
}

fn is_container(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

/// Whether an element of a patch is an instruction rather than content.
fn is_instruction(element: &Value) -> bool {
    element.get(PATCH).is_some()
}

/// The fields that `patch` gives an order for, with the order.
fn take_orders(patch: &mut Map<String, Value>) -> Vec<(String, Value)> {
    let names: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(ELEMENT_ORDER))
        .cloned()
        .collect();
    names
        .into_iter()
        .filter_map(|name| patch.remove_entry(&name))
        .collect()
}
