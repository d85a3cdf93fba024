//! The order of a merged list.
//!
//! What the patch orders comes in the patch's order; what only the server has keeps the server's
//! order; and between the two, a server's element stands before the first patched one that it stood
//! before on the server.

use std::collections::{HashMap, HashSet};

use belay_api::schema::Node;
use serde_json::{Map, Value};

use super::directive;
use super::list::Elements;
use super::{Merger, PatchError, is_instruction, merge_key, take_orders};

/// What makes two elements the same.
#[derive(Clone, Copy)]
pub(super) enum Identity {
    Whole,
    Key(&'static str),
}

impl Identity {
    fn of(self, element: &Value) -> String {
        match self {
            Self::Whole => text(element),
            Self::Key(key) => element.get(key).map(text).unwrap_or_default(),
        }
    }
}

/// A text that equal values, and no others, have in common: their JSON.
pub(super) fn text(value: &Value) -> String {
    value.to_string()
}

/// Keeps the first of equal elements.
pub(super) fn deduplicate(list: &mut Vec<Value>) {
    let mut seen = HashSet::new();
    list.retain(|element| seen.insert(text(element)));
}

/// Where each of `ids` stands first.
fn positions(ids: &[String]) -> HashMap<&str, usize> {
    let mut positions = HashMap::with_capacity(ids.len());
    for (position, id) in ids.iter().enumerate() {
        positions.entry(&**id).or_insert(position);
    }
    positions
}

/// Brings `list` into order: elements that stand in `wanted` in its order, the others in the order
/// of `server`, and the two woven together by `server`.
pub(super) fn arrange(
    list: &mut Vec<Value>,
    wanted: &[String],
    server: &[String],
    identity: Identity,
) {
    let wanted = positions(wanted);
    let server = positions(server);
    let mut ordered = Vec::new();
    let mut others = Vec::new();
    for element in list.drain(..) {
        let id = identity.of(&element);
        let on_server = server.get(&*id).copied();
        match wanted.get(&*id) {
            Some(position) => ordered.push((*position, on_server, element)),
            // New and in no order: behind what the server has.
            None => others.push((on_server.unwrap_or(usize::MAX), element)),
        }
    }
    ordered.sort_by_key(|(position, ..)| *position);
    others.sort_by_key(|(position, _)| *position);

    let mut others = others.into_iter().peekable();
    for (_, on_server, patched) in ordered {
        let before = |(position, _): &(usize, Value)| on_server.is_some_and(|at| *position < at);
        while let Some((_, other)) = others.next_if(before) {
            list.push(other);
        }
        list.push(patched);
    }
    list.extend(others.map(|(_, other)| other));
}

impl Merger {
    /// Carries out every `$setElementOrder` of `patch`, together with the list that it orders.
    pub(super) fn element_orders(
        &mut self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        node: Node,
    ) -> Result<(), PatchError> {
        for (directive, order) in take_orders(patch) {
            let field = match directive::field_of(&directive, directive::ELEMENT_ORDER) {
                Some(Some(field)) => field.to_owned(),
                _ => return Err(PatchError::ElementOrder { path: self.place() }),
            };
            self.down(&field, |merger| {
                merger.element_order(original, patch, node, &field, order)
            })?;
        }
        Ok(())
    }

    fn element_order(
        &mut self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        node: Node,
        field: &str,
        order: Value,
    ) -> Result<(), PatchError> {
        let malformed = |merger: &Self| PatchError::ElementOrder {
            path: merger.place(),
        };
        let Value::Array(order) = order else {
            return Err(malformed(self));
        };
        let changes = match patch.remove(field) {
            None => None,
            Some(Value::Array(changes)) => Some(changes),
            Some(_) => return Err(malformed(self)),
        };
        let list = match original.remove(field) {
            None => None,
            Some(Value::Array(list)) => Some(list),
            Some(_) => return Err(malformed(self)),
        };
        let child = self.list_child(node, field)?;
        let key = merge_key(child);
        self.check_order(changes.as_deref().unwrap_or_default(), &order, key)?;
        let ty = self.element_type(
            list.as_deref().unwrap_or_default(),
            changes.as_deref().unwrap_or_default(),
        )?;

        let server = self.identities(list.as_deref().unwrap_or_default(), key)?;
        let merged = match (list, changes) {
            (None, None) => return Ok(()),
            (Some(list), None) => list,
            (None, Some(mut changes)) => {
                changes.retain_mut(directive::remove);
                changes
            }
            (Some(mut list), Some(changes)) => {
                self.list(&mut list, changes, child)?;
                list
            }
        };
        let merged = self.ordered(merged, ty, &order, &server, key)?;
        original.insert(field.to_owned(), Value::Array(merged));
        Ok(())
    }

    fn ordered(
        &self,
        mut merged: Vec<Value>,
        ty: Option<Elements>,
        order: &[Value],
        server: &[String],
        key: Option<&'static str>,
    ) -> Result<Vec<Value>, PatchError> {
        let identity = match (ty, key) {
            (None, _) => return Ok(merged),
            (Some(Elements::Scalars), None) => Identity::Whole,
            (Some(Elements::Objects), Some(key)) => Identity::Key(key),
            (Some(Elements::Objects), None) => {
                return Err(PatchError::Unkeyed { path: self.place() });
            }
            (Some(Elements::Scalars), Some(_)) => {
                return Err(PatchError::MixedElements { path: self.place() });
            }
        };
        // What came out of the merge has its key, or cannot be ordered.
        self.identities(&merged, key)?;
        let order = self.identities(order, key)?;
        arrange(&mut merged, &order, server, identity);
        Ok(merged)
    }

    /// What the patch sets must stand in the order that it gives.
    fn check_order(
        &self,
        changes: &[Value],
        order: &[Value],
        key: Option<&'static str>,
    ) -> Result<(), PatchError> {
        if order.is_empty() {
            return Ok(());
        }
        let mut order = order.iter();
        for change in changes.iter().filter(|change| !is_instruction(change)) {
            let id = self.identity(change, key)?;
            loop {
                let Some(next) = order.next() else {
                    return Err(PatchError::OrderMismatch { path: self.place() });
                };
                if self.identity(next, key)? == id {
                    break;
                }
            }
        }
        Ok(())
    }

    fn identities(
        &self,
        list: &[Value],
        key: Option<&'static str>,
    ) -> Result<Vec<String>, PatchError> {
        list.iter()
            .map(|element| self.identity(element, key))
            .collect()
    }

    /// The whole of a scalar, the key of an object.
    fn identity(&self, element: &Value, key: Option<&'static str>) -> Result<String, PatchError> {
        match key {
            None => Ok(text(element)),
            Some(key) => self.id(element, key),
        }
    }
}
