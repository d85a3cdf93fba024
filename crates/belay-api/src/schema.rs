//! What each kind looks like: which fields it has, of which type, and how patches merge them.
//!
//! ```text
//!  k8s-openapi types ─┐                        ┌─> compile ─> one arena for all kinds (kept, small)
//!  container fields  ─┼─> source: definitions ─┤                └─ decode, strategic merge
//!  CRDs of this crate ┘      + patch table     └─> openapi ─> components/schemas (made on demand)
//! ```
//!
//! The sources are wordy: most of them is descriptions. What every request needs is the bare
//! structure, so it is compiled once, on first use, into an arena with interned names of a few
//! dozen kilobytes, and the sources are dropped. OpenAPI documents are asked for rarely, so they
//! are made again each time.
//!
//! **Invariant:** a [`Schema`] never holds what a value must be beyond its JSON type. Ranges,
//! patterns and required fields belong to the rules of the kind.

mod compile;
mod kinds;
mod openapi;
mod patch_table;
mod source;

use std::fmt;
use std::sync::LazyLock;

use compile::{ANY, Arena, DefId, Shape};

pub use openapi::components;

/// The schema of one kind.
pub struct Schema {
    kind: Box<str>,
    custom: bool,
    arena: &'static Arena,
    root: DefId,
}

/// A place in a schema: the type found there, and how a strategic merge treats the field that led
/// to it. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Node {
    arena: &'static Arena,
    def: DefId,
    strategy: Strategy,
}

/// The JSON type of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// An object with declared fields.
    Object,
    /// An object whose keys are data and whose values are all alike.
    Map,
    List,
    String,
    Boolean,
    Int32,
    Int64,
    Number,
    /// A 32-bit integer or a string, kept as it was given.
    IntOrString,
    /// An amount: a string, or a number that is stored as a string.
    Quantity,
    /// RFC 3339, stored in UTC with whole seconds.
    Time,
    /// RFC 3339, stored in UTC with six digits of the second.
    MicroTime,
    /// RFC 3339, stored as given: times of custom kinds, which a stock server does not rewrite.
    DateTime,
    /// Base64.
    Bytes,
    /// Anything at all.
    Any,
}

/// How a strategic merge treats the field a node was reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Objects are merged field by field, lists are replaced as a whole (they are *atomic*).
    Default,
    /// A list of scalars without order, merged as a set.
    Set,
    /// A list of objects that are told apart by the value of this field.
    Keyed(&'static str),
}

/// The schema of `kind`, if this crate knows the kind.
///
/// Kinds are named without their group: those served here have distinct names, and `Event` is the
/// core one.
pub fn of(kind: &str) -> Option<&'static Schema> {
    static ALL: LazyLock<Vec<Schema>> = LazyLock::new(compile_all);
    ALL.iter().find(|schema| &*schema.kind == kind)
}

fn compile_all() -> Vec<Schema> {
    let kinds = kinds::all();
    let definitions = source::definitions(&kinds);
    let (arena, roots) = compile::compile(&definitions, kinds.iter().map(|kind| &*kind.definition));
    // The arena lives as long as the process, which is what makes a `Node` a plain copy.
    let arena: &'static Arena = Box::leak(Box::new(arena));
    kinds
        .into_iter()
        .zip(roots)
        .map(|(kind, root)| Schema {
            custom: kind.is_custom(),
            kind: kind.kind.into_boxed_str(),
            arena,
            root,
        })
        .collect()
}

impl Schema {
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Whether the kind is a custom resource on a stock cluster. Such kinds carry no patch
    /// metadata, and a strategic merge patch is refused for them.
    pub fn is_custom(&self) -> bool {
        self.custom
    }

    /// The object itself.
    pub fn node(&self) -> Node {
        Node {
            arena: self.arena,
            def: self.root,
            strategy: Strategy::Default,
        }
    }
}

impl Node {
    pub fn ty(self) -> Type {
        match self.shape() {
            Shape::Object { .. } => Type::Object,
            Shape::Map(_) => Type::Map,
            Shape::List(_) => Type::List,
            Shape::Scalar(ty) => ty,
        }
    }

    /// How the field that led here is merged.
    pub fn strategy(self) -> Strategy {
        self.strategy
    }

    /// What stands under `key`: the field of an object, or the value of a map. None if an object
    /// has no such field and does not keep unknown ones.
    pub fn child(self, key: &str) -> Option<Self> {
        match self.shape() {
            Shape::Object { open, .. } => match self.field(key) {
                Some((_, node)) => Some(node),
                None => open.then(|| self.at(ANY, Strategy::Default)),
            },
            Shape::Map(values) => Some(self.at(values, Strategy::Default)),
            Shape::Scalar(Type::Any) => Some(self.at(self.def, Strategy::Default)),
            Shape::List(_) | Shape::Scalar(_) => None,
        }
    }

    /// The field `name` of an object, with the name as the schema holds it.
    pub fn field(self, name: &str) -> Option<(&'static str, Self)> {
        let fields = self.arena.fields(self.shape());
        let index = fields.binary_search_by(|field| field.name.cmp(name)).ok()?;
        let field = &fields[index];
        Some((field.name, self.at(field.def, field.strategy)))
    }

    /// The fields of an object, in order of their names.
    pub fn fields(self) -> impl Iterator<Item = (&'static str, Self)> {
        self.arena
            .fields(self.shape())
            .iter()
            .map(move |field| (field.name, self.at(field.def, field.strategy)))
    }

    /// What the elements of a list are.
    pub fn items(self) -> Option<Self> {
        match self.shape() {
            Shape::List(items) => Some(self.at(items, Strategy::Default)),
            Shape::Scalar(Type::Any) => Some(self.at(self.def, Strategy::Default)),
            Shape::Object { .. } | Shape::Map(_) | Shape::Scalar(_) => None,
        }
    }

    fn shape(self) -> Shape {
        self.arena.shape(self.def)
    }

    fn at(self, def: DefId, strategy: Strategy) -> Self {
        Self {
            arena: self.arena,
            def,
            strategy,
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema")
            .field("kind", &self.kind)
            .field("custom", &self.custom)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("type", &self.ty())
            .field("strategy", &self.strategy)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(kind: &str, path: &[&str]) -> Node {
        let mut node = of(kind).expect("a known kind").node();
        for step in path {
            node = match *step {
                "[]" => node.items().expect("a list"),
                name => node
                    .child(name)
                    .unwrap_or_else(|| panic!("no field {name}")),
            };
        }
        node
    }

    #[test]
    fn every_kind_of_the_table_has_metadata_or_is_an_option_object() {
        for kind in kinds::all() {
            let node = of(&kind.kind).expect("compiled").node();
            assert_eq!(node.ty(), Type::Object, "{}", kind.kind);
            assert!(node.child("apiVersion").is_some(), "{}", kind.kind);
        }
        assert!(of("Deployment").is_none());
    }

    #[test]
    fn types_are_those_of_the_api() {
        let cases: &[(&str, &[&str], Type)] = &[
            ("Pod", &["spec", "containers"], Type::List),
            ("Pod", &["spec", "containers", "[]"], Type::Object),
            (
                "Pod",
                &["spec", "terminationGracePeriodSeconds"],
                Type::Int64,
            ),
            ("Pod", &["spec", "priority"], Type::Int32),
            ("Pod", &["spec", "hostNetwork"], Type::Boolean),
            ("Pod", &["metadata", "labels"], Type::Map),
            ("Pod", &["metadata", "labels", "any"], Type::String),
            ("Pod", &["metadata", "creationTimestamp"], Type::Time),
            (
                "Pod",
                &["metadata", "managedFields", "[]", "fieldsV1"],
                Type::Map,
            ),
            (
                "Pod",
                &["metadata", "managedFields", "[]", "fieldsV1", "f:x"],
                Type::Any,
            ),
            (
                "Pod",
                &["spec", "containers", "[]", "resources", "limits", "cpu"],
                Type::Quantity,
            ),
            (
                "Pod",
                &[
                    "spec",
                    "containers",
                    "[]",
                    "livenessProbe",
                    "httpGet",
                    "port",
                ],
                Type::IntOrString,
            ),
            (
                "Pod",
                &["spec", "containers", "[]", "stopSignal"],
                Type::String,
            ),
            (
                "Pod",
                &["spec", "initContainers", "[]", "notifiers"],
                Type::List,
            ),
            (
                "Pod",
                &["spec", "ephemeralContainers", "[]", "stopSignal"],
                Type::String,
            ),
            (
                "DaemonSet",
                &["spec", "template", "spec", "containers", "[]", "notifiers"],
                Type::List,
            ),
            (
                "DaemonSet",
                &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"],
                Type::IntOrString,
            ),
            ("Lease", &["spec", "renewTime"], Type::MicroTime),
            ("ConfigMap", &["binaryData", "k"], Type::Bytes),
            (
                "PodNotification",
                &["metadata", "creationTimestamp"],
                Type::Time,
            ),
            ("PodNotification", &["status", "startTime"], Type::DateTime),
            ("DeleteOptions", &["gracePeriodSeconds"], Type::Int64),
        ];
        for (kind, path, expected) in cases {
            assert_eq!(at(kind, path).ty(), *expected, "{kind} {path:?}");
        }
    }

    #[test]
    fn merge_strategies_belong_to_the_field_and_not_to_the_type() {
        assert_eq!(
            at("Pod", &["spec", "containers"]).strategy(),
            Strategy::Keyed("name")
        );
        assert_eq!(
            at("Pod", &["metadata", "finalizers"]).strategy(),
            Strategy::Set
        );
        assert_eq!(
            at("Pod", &["spec", "containers", "[]", "notifiers"]).strategy(),
            Strategy::Keyed("name")
        );
        assert_eq!(
            at("Pod", &["spec", "tolerations"]).strategy(),
            Strategy::Default
        );
        assert_eq!(
            at("Pod", &["spec", "containers", "[]"]).strategy(),
            Strategy::Default
        );
    }

    #[test]
    fn a_custom_kind_says_so() {
        assert!(of("PodNotification").expect("known").is_custom());
        assert!(!of("Pod").expect("known").is_custom());
    }
}
