//! Merging lists: as a whole, as sets, or element by element.

use std::collections::{HashMap, HashSet};
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
                let server: Vec<String> = original.iter().map(order::text).collect();
                let wanted: Vec<String> = patch.iter().map(order::text).collect();
                original.extend(patch);
                order::deduplicate(original);
                order::arrange(original, &wanted, &server, Identity::Whole);
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
        let mut instructed = self.instructions(patch, key)?;
        if instructed.replace {
            *original = std::mem::take(&mut instructed.content);
        } else if !instructed.delete.is_empty() {
            original.retain(|element| {
                element
                    .get(key)
                    .is_none_or(|value| !instructed.delete.contains(&order::text(value)))
            });
        }

        let server = self.ids(original, key)?;
        let wanted = self.ids(&instructed.content, key)?;
        let mut places: HashMap<String, usize> = HashMap::new();
        for (place, id) in server.iter().enumerate() {
            places.entry(id.clone()).or_insert(place);
        }
        let items = node.items().unwrap_or(node);
        for (element, id) in instructed.content.into_iter().zip(&wanted) {
            let Some(place) = places.get(id) else {
                places.insert(id.clone(), original.len());
                original.push(element);
                continue;
            };
            if let (Value::Object(fields), Value::Object(changes)) =
                (&mut original[*place], element)
            {
                self.down_to_element(id, |merger| merger.object(fields, changes, items))?;
            }
        }
        order::arrange(original, &wanted, &server, Identity::Key(key));
        Ok(())
    }

    /// Parts the elements of a patch into content and instructions.
    fn instructions(&self, patch: Vec<Value>, key: &'static str) -> Result<Instructed, PatchError> {
        let mut instructed = Instructed::default();
        for mut element in patch {
            let directive = match &mut element {
                Value::Object(fields) => Directive::take(fields),
                _ => None,
            };
            match directive {
                None => instructed.content.push(element),
                Some(Directive::Delete) => {
                    instructed.delete.insert(self.id(&element, key)?);
                }
                Some(Directive::Replace) => instructed.replace = true,
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
        }
        Ok(instructed)
    }

    fn ids(&self, elements: &[Value], key: &'static str) -> Result<Vec<String>, PatchError> {
        elements
            .iter()
            .map(|element| self.id(element, key))
            .collect()
    }

    /// By what `element` is told apart.
    pub(super) fn id(&self, element: &Value, key: &'static str) -> Result<String, PatchError> {
        match element.get(key) {
            Some(value) => Ok(order::text(value)),
            None => Err(PatchError::NoMergeKey {
                path: self.place(),
                key,
            }),
        }
    }

    /// Does `step` with the path led to an element.
    fn down_to_element<T>(
        &mut self,
        id: &str,
        step: impl FnOnce(&mut Self) -> Result<T, PatchError>,
    ) -> Result<T, PatchError> {
        let before = self.path.len();
        self.path.push('[');
        self.path.push_str(id);
        self.path.push(']');
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

/// A list of a patch, its instructions taken out.
#[derive(Default)]
struct Instructed {
    content: Vec<Value>,
    /// What is to be deleted, by its key.
    delete: HashSet<String>,
    /// Whether the content takes the place of what is there.
    replace: bool,
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
