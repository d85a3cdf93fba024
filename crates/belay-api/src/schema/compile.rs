//! From wordy definitions to the arena.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Map, Value};

use super::source::REF_PREFIX;
use super::{Strategy, Type, patch_table};

/// All definitions of all kinds: shapes point to each other and to a range of `fields`.
pub(super) struct Arena {
    shapes: Box<[Shape]>,
    fields: Box<[Field]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DefId(u32);

/// Anything: the first shape of every arena.
pub(super) const ANY: DefId = DefId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// `count` fields from `first`, sorted by name.
    Object {
        first: u32,
        count: u32,
        open: bool,
    },
    Map(DefId),
    List(DefId),
    Scalar(Type),
}

pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) def: DefId,
    pub(super) strategy: Strategy,
}

impl Arena {
    pub(super) fn shape(&self, id: DefId) -> Shape {
        self.shapes[id.0 as usize]
    }

    pub(super) fn fields(&self, shape: Shape) -> &[Field] {
        match shape {
            Shape::Object { first, count, .. } => {
                &self.fields[first as usize..(first + count) as usize]
            }
            Shape::Map(_) | Shape::List(_) | Shape::Scalar(_) => &[],
        }
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.shapes.len(), self.fields.len())
    }
}

/// Compiles what `roots` reach, and answers where each root is.
pub(super) fn compile<'a>(
    definitions: &Map<String, Value>,
    roots: impl Iterator<Item = &'a str>,
) -> (Arena, Vec<DefId>) {
    let mut compiler = Compiler {
        definitions,
        shapes: vec![Shape::Scalar(Type::Any)],
        fields: Vec::new(),
        named: HashMap::new(),
        unnamed: HashMap::from([(Shape::Scalar(Type::Any), ANY)]),
        names: Names::default(),
    };
    let roots = roots.map(|name| compiler.definition(name)).collect();
    let Compiler {
        shapes,
        fields,
        names,
        ..
    } = compiler;
    let names = names.intern();
    let fields = fields
        .into_iter()
        .map(|(name, def, strategy)| Field {
            name: names[name],
            def,
            strategy,
        })
        .collect();
    let arena = Arena {
        shapes: shapes.into_boxed_slice(),
        fields,
    };
    (arena, roots)
}

struct Compiler<'a> {
    definitions: &'a Map<String, Value>,
    shapes: Vec<Shape>,
    fields: Vec<(usize, DefId, Strategy)>,
    named: HashMap<String, DefId>,
    /// Scalars, lists and maps: one of each is enough.
    unnamed: HashMap<Shape, DefId>,
    names: Names,
}

impl Compiler<'_> {
    fn definition(&mut self, name: &str) -> DefId {
        if let Some(id) = self.named.get(name) {
            return *id;
        }
        // Reserved before its content is looked at: a definition may refer to itself.
        let id = self.push(Shape::Scalar(Type::Any));
        self.named.insert(name.to_owned(), id);
        let shape = match (well_known(name), self.definitions.get(name)) {
            (Some(ty), _) => Shape::Scalar(ty),
            (None, Some(schema)) => self.shape(schema, name),
            (None, None) => Shape::Scalar(Type::Any),
        };
        self.shapes[id.0 as usize] = shape;
        id
    }

    fn schema(&mut self, schema: &Value) -> DefId {
        if let Some(name) = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|target| target.strip_prefix(REF_PREFIX))
        {
            return self.definition(name);
        }
        match self.shape(schema, "") {
            // Objects without a name are rare and differ; all else is shared.
            shape @ Shape::Object { .. } => self.push(shape),
            shape => match self.unnamed.entry(shape) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(free) => {
                    let id = next_id(&self.shapes);
                    self.shapes.push(shape);
                    *free.insert(id)
                }
            },
        }
    }

    fn shape(&mut self, schema: &Value, name: &str) -> Shape {
        if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
            return Shape::Scalar(Type::IntOrString);
        }
        let format = schema.get("format").and_then(Value::as_str).unwrap_or("");
        let ty = match json_type(schema) {
            Some(ty) => ty,
            None => return self.composed(schema),
        };
        match (ty, format) {
            ("object", _) => self.object(schema, name),
            ("array", _) => match schema.get("items") {
                Some(items) => Shape::List(self.schema(items)),
                None => Shape::List(self.schema(&Value::Null)),
            },
            ("string", "byte") => Shape::Scalar(Type::Bytes),
            ("string", "date-time") => Shape::Scalar(Type::DateTime),
            ("string", _) => Shape::Scalar(Type::String),
            ("boolean", _) => Shape::Scalar(Type::Boolean),
            ("integer", "int32" | "uint8" | "uint16" | "int8" | "int16") => {
                Shape::Scalar(Type::Int32)
            }
            ("integer", _) => Shape::Scalar(Type::Int64),
            ("number", _) => Shape::Scalar(Type::Number),
            _ => Shape::Scalar(Type::Any),
        }
    }

    fn object(&mut self, schema: &Value, name: &str) -> Shape {
        let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            // `additionalProperties` beside properties is how a window that carries unknown fields
            // along describes itself. It is no declaration of the API: what is not declared is
            // unknown, unless the schema says to preserve it.
            let mut fields: Vec<_> = properties
                .iter()
                .map(|(field, schema)| {
                    let strategy = match patch_table::merge(name, field) {
                        None => Strategy::Default,
                        Some(patch_table::Merge { key: None, .. }) => Strategy::Set,
                        Some(patch_table::Merge { key: Some(key), .. }) => Strategy::Keyed(key),
                    };
                    (self.names.add(field), self.schema(schema), strategy)
                })
                .collect();
            let names = &self.names;
            fields.sort_by(|a, b| names.get(a.0).cmp(names.get(b.0)));
            let first = count(self.fields.len());
            let count = count(fields.len());
            self.fields.append(&mut fields);
            return Shape::Object { first, count, open };
        }
        match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => Shape::Map(self.schema(values)),
            // An object of which nothing is said holds anything.
            _ => Shape::Map(self.schema(&Value::Null)),
        }
    }

    /// A schema without a type of its own: one alternative beside null, strings in several groups,
    /// or simply anything.
    fn composed(&mut self, schema: &Value) -> Shape {
        for word in ["allOf", "anyOf", "oneOf"] {
            let Some(parts) = schema.get(word).and_then(Value::as_array) else {
                continue;
            };
            let mut real = parts.iter().filter(|part| !is_null(part));
            if let (Some(only), None) = (real.next(), real.next()) {
                let id = self.schema(only);
                return self.shapes[id.0 as usize];
            }
            if !parts.is_empty() && parts.iter().all(|part| is_null(part) || is_string(part)) {
                return Shape::Scalar(Type::String);
            }
        }
        if is_string(schema) {
            return Shape::Scalar(Type::String);
        }
        Shape::Scalar(Type::Any)
    }

    fn push(&mut self, shape: Shape) -> DefId {
        let id = next_id(&self.shapes);
        self.shapes.push(shape);
        id
    }
}

fn next_id(shapes: &[Shape]) -> DefId {
    DefId(count(shapes.len()))
}

/// Definitions are counted in hundreds; saturating keeps the arithmetic total.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Definitions whose JSON schema says less than the type is.
fn well_known(definition: &str) -> Option<Type> {
    Some(match definition {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => Type::Quantity,
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => Type::IntOrString,
        "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => Type::Time,
        "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime" => Type::MicroTime,
        _ => return None,
    })
}

/// The type a schema names, leaving out null.
fn json_type(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(ty) => Some(ty),
        Value::Array(types) => types
            .iter()
            .filter_map(Value::as_str)
            .find(|ty| *ty != "null"),
        _ => None,
    }
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
        || schema.get("const") == Some(&Value::Null)
        || schema.get("enum") == Some(&Value::Array(vec![Value::Null]))
}

fn is_string(schema: &Value) -> bool {
    json_type(schema) == Some("string")
        || schema.get("const").is_some_and(Value::is_string)
        || schema
            .get("enum")
            .and_then(Value::as_array)
            .is_some_and(|values| !values.is_empty() && values.iter().all(Value::is_string))
}

/// Field names, each kept once.
#[derive(Default)]
struct Names {
    index: HashMap<String, usize>,
    all: Vec<String>,
}

impl Names {
    fn add(&mut self, name: &str) -> usize {
        if let Some(index) = self.index.get(name) {
            return *index;
        }
        let index = self.all.len();
        self.index.insert(name.to_owned(), index);
        self.all.push(name.to_owned());
        index
    }

    fn get(&self, index: usize) -> &str {
        &self.all[index]
    }

    /// One allocation for all names, for as long as the process lives.
    fn intern(self) -> Vec<&'static str> {
        let text: &'static str = Box::leak(self.all.concat().into_boxed_str());
        let mut rest = text;
        self.all
            .iter()
            .map(|name| {
                let (this, tail) = rest.split_at(name.len());
                rest = tail;
                this
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Node;
    use crate::schema::{kinds, source};

    fn compiled(definitions: &Value) -> Node {
        let definitions = definitions.as_object().expect("an object");
        let (arena, roots) = compile(definitions, std::iter::once("Root"));
        Node {
            arena: Box::leak(Box::new(arena)),
            def: roots[0],
            strategy: Strategy::Default,
        }
    }

    #[test]
    fn a_definition_may_refer_to_itself() {
        let node = compiled(&json!({"Root": {"type": "object", "properties": {
            "next": {"$ref": "#/components/schemas/Root"}, "n": {"type": "integer"}}}}));
        let deep = node
            .child("next")
            .and_then(|node| node.child("next"))
            .and_then(|node| node.child("n"));
        assert_eq!(deep.map(Node::ty), Some(Type::Int64));
    }

    #[test]
    fn optional_types_and_enums_are_seen_through() {
        let cases = [
            (json!({"type": ["string", "null"]}), Type::String),
            (
                json!({"anyOf": [{"type": "integer", "format": "int32"}, {"type": "null"}]}),
                Type::Int32,
            ),
            (
                json!({"anyOf": [{"type": "boolean"}, {"enum": [null], "nullable": true}]}),
                Type::Boolean,
            ),
            (
                json!({"oneOf": [{"const": "A"}, {"enum": ["B", "C"]}]}),
                Type::String,
            ),
            (json!({"enum": ["A"]}), Type::String),
            (
                json!({"allOf": [{"$ref": "#/components/schemas/Other"}], "default": {}}),
                Type::Object,
            ),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
                Type::Any,
            ),
            (json!({}), Type::Any),
            (json!(true), Type::Any),
            (json!({"$ref": "#/components/schemas/Missing"}), Type::Any),
            (json!({"type": "object"}), Type::Map),
            (json!({"type": "array"}), Type::List),
        ];
        for (schema, expected) in cases {
            let node = compiled(&json!({
                "Root": {"type": "object", "properties": {"x": schema}},
                "Other": {"type": "object", "properties": {}},
            }));
            assert_eq!(node.child("x").map(Node::ty), Some(expected), "{schema}");
        }
    }

    #[test]
    fn only_an_explicit_word_keeps_unknown_fields() {
        let open = |schema| {
            compiled(&json!({ "Root": schema }))
                .child("unknown")
                .is_some()
        };
        assert!(!open(
            json!({"type": "object", "properties": {"a": {}}, "additionalProperties": true})
        ));
        assert!(open(json!({"type": "object", "properties": {"a": {}},
            "x-kubernetes-preserve-unknown-fields": true})));
    }

    #[test]
    fn every_entry_of_the_patch_table_names_a_list_that_exists() {
        let definitions = source::definitions(&kinds::all());
        for (definition, field) in patch_table::entries() {
            let ty = definitions
                .get(&definition)
                .and_then(|definition| definition.pointer(&format!("/properties/{field}/type")));
            assert_eq!(ty, Some(&json!("array")), "{definition}.{field}");
        }
    }

    #[test]
    fn the_arena_stays_small() {
        let kinds = kinds::all();
        let definitions = source::definitions(&kinds);
        let (arena, _) = compile(&definitions, kinds.iter().map(|kind| &*kind.definition));
        let (shapes, fields) = arena.len();
        let bytes = shapes * size_of::<Shape>() + fields * size_of::<Field>();
        assert!(
            bytes < 128 * 1024,
            "{shapes} shapes and {fields} fields take {bytes} bytes"
        );
    }
}
