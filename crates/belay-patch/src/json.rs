//! JSON patch (RFC 6902), with what a stock server allows beyond it: an index may count from the
//! end, `replace` may name a member of an object that is not there yet, and `test` for null holds
//! where there is nothing.

use belay_api::decode::MAX_DEPTH;
use serde_json::{Map, Value};

use crate::PatchError;
use crate::limits::{depth, describe, measure};
use crate::pointer::{Pointer, index};

/// How many operations one patch may have.
pub const MAX_OPERATIONS: usize = 10_000;

/// How much the `copy` operations of one patch may add. Without this bound a short patch that
/// copies a list into itself doubles it with every operation.
pub const MAX_COPY_BYTES: usize = 3 * 1024 * 1024;

/// Applies the operations in `patch` to `doc`, one after the other.
///
/// # Errors
///
/// The patch is malformed, one of its operations does not apply, or it exceeds a limit. `doc` then
/// has the operations before that one applied.
pub fn json_patch(doc: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Array(operations) = patch else {
        return Err(PatchError::NotAList {
            found: describe(patch),
        });
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations {
            count: operations.len(),
        });
    }
    let mut patcher = Patcher {
        depth: depth(doc),
        budget: MAX_COPY_BYTES,
        doc,
    };
    for (index, operation) in operations.iter().enumerate() {
        let operation = Operation::parse(index, operation)?;
        patcher.apply(index, operation)?;
    }
    Ok(())
}

enum Operation<'p> {
    Add { path: Pointer, value: &'p Value },
    Remove { path: Pointer },
    Replace { path: Pointer, value: &'p Value },
    Move { from: Pointer, path: Pointer },
    Copy { from: Pointer, path: Pointer },
    Test { path: Pointer, value: &'p Value },
}

impl<'p> Operation<'p> {
    fn parse(index: usize, operation: &'p Value) -> Result<Self, PatchError> {
        let bad = |problem: String| PatchError::BadOperation { index, problem };
        let Value::Object(members) = operation else {
            return Err(bad(format!("it is {}", describe(operation))));
        };
        let pointer = |name| member(members, name).map_err(bad);
        let value = || {
            members
                .get("value")
                .ok_or_else(|| bad("it has no value".to_owned()))
        };
        let op = match members.get("op") {
            Some(Value::String(op)) => &**op,
            Some(_) => return Err(bad("its op is not a string".to_owned())),
            None => return Err(bad("it has no op".to_owned())),
        };
        let path = pointer("path")?;
        Ok(match op {
            "add" => Self::Add {
                path,
                value: value()?,
            },
            "remove" => Self::Remove { path },
            "replace" => Self::Replace {
                path,
                value: value()?,
            },
            "move" => Self::Move {
                from: pointer("from")?,
                path,
            },
            "copy" => Self::Copy {
                from: pointer("from")?,
                path,
            },
            "test" => Self::Test {
                path,
                value: value()?,
            },
            other => {
                return Err(bad(format!(
                    "unknown op {other:?}: use add, remove, replace, move, copy or test"
                )));
            }
        })
    }
}

fn member(members: &Map<String, Value>, name: &str) -> Result<Pointer, String> {
    match members.get(name) {
        Some(Value::String(text)) => Pointer::parse(text)
            .ok_or_else(|| format!("its {name} {text:?} is not a JSON pointer, as /spec/nodeName")),
        Some(_) => Err(format!("its {name} is not a string")),
        None => Err(format!("it has no {name}")),
    }
}

struct Patcher<'d> {
    doc: &'d mut Value,
    /// At least the depth of the document: kept as a bound, because measuring costs a walk.
    depth: usize,
    /// Bytes that may still be copied.
    budget: usize,
}

const NOTHING_THERE: &str = "there is nothing";
const NO_PARENT: &str = "there is no object or list to hold the value";
const NO_INDEX: &str = "the list has no such index";

impl Patcher<'_> {
    fn apply(&mut self, index: usize, operation: Operation<'_>) -> Result<(), PatchError> {
        let fail = |op, path: &Pointer| {
            let path = path.text().to_owned();
            move |problem| PatchError::DoesNotApply {
                index,
                op,
                path,
                problem,
            }
        };
        match operation {
            Operation::Add { path, value } => {
                self.deepen(path.len() + depth(value))?;
                add(self.doc, &path, value.clone()).map_err(fail("add", &path))
            }
            Operation::Remove { path } => remove(self.doc, &path)
                .map(drop)
                .map_err(fail("remove", &path)),
            Operation::Replace { path, value } => {
                self.deepen(path.len() + depth(value))?;
                replace(self.doc, &path, value.clone()).map_err(fail("replace", &path))
            }
            Operation::Move { from, path } => {
                if path.is_inside(&from) {
                    return Err(fail("move", &path)(
                        "a value cannot be moved into itself, as",
                    ));
                }
                self.relocate(&from, &path, false)?;
                let value = remove(self.doc, &from).map_err(fail("move", &from))?;
                add(self.doc, &path, value).map_err(fail("move", &path))
            }
            Operation::Copy { from, path } => {
                self.relocate(&from, &path, true)?;
                let value = from
                    .get(self.doc)
                    .cloned()
                    .ok_or(NOTHING_THERE)
                    .map_err(fail("copy", &from))?;
                add(self.doc, &path, value).map_err(fail("copy", &path))
            }
            Operation::Test { path, value } => {
                let holds = match path.get(self.doc) {
                    Some(found) => found == value,
                    None => value.is_null(),
                };
                if holds {
                    Ok(())
                } else {
                    Err(PatchError::TestFailed {
                        index,
                        path: path.text().to_owned(),
                    })
                }
            }
        }
    }

    /// Notes that the document may now be `depth` deep.
    fn deepen(&mut self, depth: usize) -> Result<(), PatchError> {
        self.depth = self.depth.max(depth);
        if self.depth > MAX_DEPTH {
            return Err(PatchError::TooDeep);
        }
        Ok(())
    }

    /// Accounts for a value of the document that is about to stand at `path` as well or instead.
    ///
    /// A copy is measured, and paid for. A move costs nothing and is measured only where the bound
    /// on the depth would otherwise be broken; then it is paid for too, so that no patch can have
    /// the server measure a large document thousands of times.
    fn relocate(&mut self, from: &Pointer, path: &Pointer, copy: bool) -> Result<(), PatchError> {
        let below = self.depth.saturating_sub(from.len());
        if !copy && path.len() + below <= MAX_DEPTH {
            return self.deepen(path.len() + below);
        }
        // Where there is nothing, the operation itself says so.
        let Some(value) = from.get(self.doc) else {
            return Ok(());
        };
        let measured = measure(value, MAX_DEPTH + 1);
        self.budget = self
            .budget
            .checked_sub(measured.bytes)
            .ok_or(PatchError::CopiesTooMuch)?;
        self.deepen(path.len() + measured.depth)
    }
}

fn add(doc: &mut Value, path: &Pointer, value: Value) -> Result<(), &'static str> {
    if path.len() == 0 {
        *doc = value;
        return Ok(());
    }
    match path.parent(doc).ok_or(NO_PARENT)? {
        (Value::Object(map), name) => {
            map.insert(name.to_owned(), value);
            Ok(())
        }
        (Value::Array(list), "-") => {
            list.push(value);
            Ok(())
        }
        (Value::Array(list), step) => {
            // Counted from the end of the list as it will be.
            match index(step, list.len() + 1) {
                Some(index) if index <= list.len() => {
                    list.insert(index, value);
                    Ok(())
                }
                _ => Err(NO_INDEX),
            }
        }
        _ => Err(NO_PARENT),
    }
}

fn remove(doc: &mut Value, path: &Pointer) -> Result<Value, &'static str> {
    if path.len() == 0 {
        return Ok(doc.take());
    }
    match path.parent(doc).ok_or(NOTHING_THERE)? {
        (Value::Object(map), name) => map.remove(name).ok_or(NOTHING_THERE),
        (Value::Array(list), step) => match index(step, list.len()) {
            Some(index) if index < list.len() => Ok(list.remove(index)),
            _ => Err(NO_INDEX),
        },
        _ => Err(NOTHING_THERE),
    }
}

fn replace(doc: &mut Value, path: &Pointer, value: Value) -> Result<(), &'static str> {
    if path.len() == 0 {
        *doc = value;
        return Ok(());
    }
    match path.parent(doc).ok_or(NOTHING_THERE)? {
        (Value::Object(map), name) => {
            map.insert(name.to_owned(), value);
            Ok(())
        }
        (Value::Array(list), step) => {
            let at = index(step, list.len()).and_then(|index| list.get_mut(index));
            *at.ok_or(NO_INDEX)? = value;
            Ok(())
        }
        _ => Err(NOTHING_THERE),
    }
}
