//! The order of a merged list.
//!
//! What the patch orders comes in the patch's order; what only the server has keeps the server's
//! order; and between the two, a server's element stands before the first patched one that it stood
//! before on the server.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::directive;
use super::list::Elements;
use super::{Merger, PatchError, is_instruction, merge_key, take_orders};

/// What makes two elements the same.
#[derive(Clone, Copy)]
pub(super) enum Identity<'k> {
    Whole,
    Key(&'k str),
}

impl Identity<'_> {
    fn of<'v>(self, element: &'v Value) -> Cow<'v, str> {
        match self {
            Self::Whole => text(element),
            Self::Key(key) => element.get(key).map_or(Cow::Borrowed(""), text),
        }
    }

    /// The first position of each element of `list`.
    fn positions(self, list: &[Value]) -> HashMap<Cow<'_, str>, usize> {
        let mut positions = HashMap::with_capacity(list.len());
        for (position, element) in list.iter().enumerate() {
            positions.entry(self.of(element)).or_insert(position);
        }
        positions
    }
}

/// A text by which equal values, and no others, are found: the JSON of the value.
pub(super) fn text(value: &Value) -> Cow<'_, str> {
    Cow::Owned(value.to_string())
}

/// Keeps the first of equal elements.
pub(super) fn deduplicate(list: &mut Vec<Value>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|element| seen.insert(element.to_string()));
}

/// Brings `list` into order: elements that stand in `wanted` in its order, the others in the order
/// of `server`, and the two woven together by `server`.
pub(super) fn arrange(
    list: &mut Vec<Value>,
    wanted: &[Value],
    server: &[Value],
    identity: Identity<'_>,
) {
    let wanted = identity.positions(wanted);
    let server = identity.positions(server);
    let mut ordered: Vec<(usize, Option<usize>, Value)> = Vec::new();
    let mut others: Vec<(usize, Option<usize>, Value)> = Vec::new();
    for element in list.drain(..) {
        let id = identity.of(&element);
        let on_server = server.get(&id).copied();
        match wanted.get(&id).copied() {
            Some(position) => ordered.push((position, on_server, element)),
            // New and in no order: behind what the server has.
            None => others.push((on_server.unwrap_or(usize::MAX), on_server, element)),
        }
    }
    ordered.sort_by_key(|(position, ..)| *position);
    others.sort_by_key(|(position, ..)| *position);

    let mut others = others.into_iter().peekable();
    for (_, patched_at, patched) in ordered {
        if let Some(patched_at) = patched_at {
            while let Some((_, _, element)) =
                others.next_if(|(_, at, _)| at.is_some_and(|at| at < patched_at))
            {
                list.push(element);
            }
        }
        list.push(patched);
    }
    list.extend(others.map(|(.., element)| element));
}

impl Merger {
    /// Carries out every `$setElementOrder` of `patch`, together with the list that it orders.
    pub(super) fn element_orders(
        &mut self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        node: super::Node,
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
        node: super::Node,
        field: &str,
        order: Value,
    ) -> Result<(), PatchError> {
        let malformed = |merger: &Self| PatchError::ElementOrder {
            path: merger.place(),
        };
        let Value::Array(order) = order else {
            return Err(malformed(self));
        };
        let changes = match patch.get(field) {
            None => None,
            Some(Value::Array(_)) => patch.remove(field),
            Some(_) => return Err(malformed(self)),
        };
        let changes = match changes {
            Some(Value::Array(changes)) => Some(changes),
            _ => None,
        };
        let mut list = match original.remove(field) {
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

        let server = list.clone().unwrap_or_default();
        let merged = match (&mut list, changes) {
            (None, None) => return Ok(()),
            (Some(list), None) => std::mem::take(list),
            (None, Some(mut changes)) => {
                changes.retain_mut(directive::remove);
                changes
            }
            (Some(list), Some(changes)) => {
                self.list(list, changes, child)?;
                std::mem::take(list)
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
        server: &[Value],
        key: Option<&'static str>,
    ) -> Result<Vec<Value>, PatchError> {
        let identity = match (ty, key) {
            (None, _) => return Ok(merged),
            (Some(Elements::Scalars), None) => Identity::Whole,
            (Some(Elements::Objects), Some(key)) => {
                if merged.iter().chain(order).any(|e| e.get(key).is_none()) {
                    return Err(PatchError::NoMergeKey {
                        path: self.place(),
                        key,
                    });
                }
                Identity::Key(key)
            }
            (Some(Elements::Objects), None) => {
                return Err(PatchError::Unkeyed { path: self.place() });
            }
            (Some(Elements::Scalars), Some(_)) => {
                return Err(PatchError::MixedElements { path: self.place() });
            }
        };
        arrange(&mut merged, order, server, identity);
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
            let id = self.identity_value(change, key)?;
            loop {
                let Some(next) = order.next() else {
                    return Err(PatchError::OrderMismatch { path: self.place() });
                };
                if self.identity_value(next, key)? == id {
                    break;
                }
            }
        }
        Ok(())
    }

    fn identity_value<'v>(
        &self,
        element: &'v Value,
        key: Option<&'static str>,
    ) -> Result<&'v Value, PatchError> {
        match key {
            None => Ok(element),
            Some(key) => element.get(key).ok_or_else(|| PatchError::NoMergeKey {
                path: self.place(),
                key,
            }),
        }
    }
}
