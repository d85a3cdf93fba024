//! Merging lists: as a whole, as sets, or element by element.

use std::collections::HashMap;
use std::mem::discriminant;

use belay_api::schema::{Node, Strategy};
use serde_json::Value;

use super::directive::Directive;
use super::order::{self, Identity};
use super::{Merger, PatchError, merge_key};

impl Merger {
    /// Merges the list `patch` into `original`, as the field at `node` asks for.
    pub(super) fn list(
        &mut self,
        original: &mut Vec<Value>,
        patch: Vec<Value>,
        node: Node,
    ) -> Result<(), PatchError> {
        if node.strategy() == Strategy::Default {
            *original = patch;
            return Ok(());
        }
        match self.element_type(original, &patch)? {
            None => Ok(()),
            Some(Elements::Scalars) => {
                let server = original.clone();
                original.extend(patch.iter().cloned());
                order::deduplicate(original);
                order::arrange(original, &patch, &server, Identity::Whole);
                Ok(())
            }
            Some(Elements::Objects) => {
                let key =
                    merge_key(node).ok_or_else(|| PatchError::Unkeyed { path: self.place() })?;
                self.keyed(original, patch, node, key)
            }
        }
    }

    /// What the elements of both lists are; none if there are none.
    pub(super) fn element_type(
        &self,
        original: &[Value],
        patch: &[Value],
    ) -> Result<Option<Elements>, PatchError> {
        let mut elements = original.iter().chain(patch);
        let ty = match elements.clone().next() {
            None => return Ok(None),
            Some(Value::Array(_)) => return Err(PatchError::ListOfLists { path: self.place() }),
            Some(Value::Object(_)) => Elements::Objects,
            Some(_) => Elements::Scalars,
        };
        if same_type(&mut elements) {
            Ok(Some(ty))
        } else {
            Err(PatchError::MixedElements { path: self.place() })
        }
    }

    /// Merges a list of objects that `key` tells apart.
    fn keyed(
        &mut self,
        original: &mut Vec<Value>,
        patch: Vec<Value>,
        node: Node,
        key: &'static str,
    ) -> Result<(), PatchError> {
        let no_key = |merger: &Self| PatchError::NoMergeKey {
            path: merger.place(),
            key,
        };
        let (mut content, instructions) = self.split(patch)?;
        let mut doomed = Vec::new();
        let mut replace = false;
        for (instruction, element) in instructions {
            match instruction {
                Instruction::Delete => match element.get(key) {
                    Some(value) => doomed.push(order::text(value).into_owned()),
                    None => return Err(no_key(self)),
                },
                Instruction::Replace => replace = true,
            }
        }
        if replace {
            *original = std::mem::take(&mut content);
        } else if !doomed.is_empty() {
            original.retain(|element| {
                element
                    .get(key)
                    .is_none_or(|value| !doomed.iter().any(|gone| *gone == order::text(value)))
            });
        }

        let server: Vec<Value> = original.iter().map(|element| only(element, key)).collect();
        let wanted: Vec<Value> = content.iter().map(|element| only(element, key)).collect();
        let items = node.items();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (place, element) in original.iter().enumerate() {
            let value = element.get(key).ok_or_else(|| no_key(self))?;
            places
                .entry(order::text(value).into_owned())
                .or_insert(place);
        }
        for element in content {
            let value = element.get(key).ok_or_else(|| no_key(self))?;
            let id = order::text(value).into_owned();
            match places.get(&id) {
                None => {
                    places.insert(id, original.len());
                    original.push(element);
                }
                Some(place) => {
                    let (Some(Value::Object(fields)), Value::Object(changes), Some(items)) =
                        (original.get_mut(*place), element, items)
                    else {
                        return Err(PatchError::MixedElements { path: self.place() });
                    };
                    let step = format!("[{id}]");
                    self.at(&step, |merger| merger.object(fields, changes, items))?;
                }
            }
        }
        order::arrange(original, &wanted, &server, Identity::Key(key));
        Ok(())
    }

    /// Parts the elements of a patch into content and instructions.
    fn split(
        &self,
        patch: Vec<Value>,
    ) -> Result<(Vec<Value>, Vec<(Instruction, Value)>), PatchError> {
        let mut content = Vec::new();
        let mut instructions = Vec::new();
        for mut element in patch {
            let directive = match &mut element {
                Value::Object(fields) => Directive::take(fields),
                _ => None,
            };
            let instruction = match directive {
                None => {
                    content.push(element);
                    continue;
                }
                Some(Directive::Delete) => Instruction::Delete,
                Some(Directive::Replace) => Instruction::Replace,
                Some(Directive::Merge) => {
                    return Err(PatchError::MergeDirective { path: self.place() });
                }
                Some(Directive::Unknown(directive)) => {
                    return Err(PatchError::UnknownDirective {
                        path: self.place(),
                        directive,
                    });
                }
            };
            instructions.push((instruction, element));
        }
        Ok((content, instructions))
    }

    /// Does `step` with the path led to an element.
    fn at<T>(
        &mut self,
        element: &str,
        step: impl FnOnce(&mut Self) -> Result<T, PatchError>,
    ) -> Result<T, PatchError> {
        let before = self.path.len();
        self.path.push_str(element);
        let result = step(self);
        self.path.truncate(before);
        result
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    Scalars,
    Objects,
}

enum Instruction {
    Delete,
    Replace,
}

/// Whether all values are of one JSON type. Integers and floats are two, and null is none.
pub(super) fn same_type<'v>(values: impl IntoIterator<Item = &'v Value>) -> bool {
    let kind = |value: &Value| {
        let float = value.as_number().is_some_and(serde_json::Number::is_f64);
        (discriminant(value), float)
    };
    let mut values = values.into_iter();
    let Some(first) = values.next() else {
        return true;
    };
    !first.is_null() && values.all(|value| kind(value) == kind(first))
}

/// An element reduced to its key.
fn only(element: &Value, key: &str) -> Value {
    let mut map = serde_json::Map::new();
    if let Some(value) = element.get(key) {
        map.insert(key.to_owned(), value.clone());
    }
    Value::Object(map)
}
