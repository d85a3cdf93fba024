//! Which objects a list, watch or collection deletion means.

use belay_api::selector::{FieldOperator, FieldSelector, LabelSelector};
use belay_store::Entry;

use crate::object::Meta;
use crate::query::Query;
use crate::registry::Kind;
use crate::status::{ApiError, ApiResult};

/// Label and field requirements, resolved against the kind once.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    labels: Option<LabelSelector>,
    fields: Vec<FieldRequirement>,
    /// Exact requirements by field label, for authorisation.
    pub(crate) exact: Vec<(String, String)>,
}

#[derive(Debug)]
struct FieldRequirement {
    field: Field,
    value: String,
    equal: bool,
}

#[derive(Debug)]
enum Field {
    Name,
    Namespace,
    /// Index into the kind's selectable fields.
    Own(usize),
}

impl Selection {
    pub(crate) fn parse(kind: &Kind, query: &Query) -> ApiResult<Self> {
        Self::new(
            kind,
            query.label_selector()?,
            query.field_selector()?.as_ref(),
        )
    }

    fn new(
        kind: &Kind,
        labels: Option<LabelSelector>,
        selector: Option<&FieldSelector>,
    ) -> ApiResult<Self> {
        let mut fields = Vec::new();
        let mut exact = Vec::new();
        for requirement in selector.map_or(&[][..], FieldSelector::requirements) {
            let field = match requirement.field.as_str() {
                "metadata.name" => Field::Name,
                "metadata.namespace" if kind.namespaced => Field::Namespace,
                other => kind
                    .fields
                    .iter()
                    .position(|field| field.label == other)
                    .map(Field::Own)
                    .ok_or_else(|| {
                        ApiError::bad_request(format!("field label not supported: {other}"))
                    })?,
            };
            let equal = requirement.operator == FieldOperator::Equals;
            if equal {
                exact.push((requirement.field.clone(), requirement.value.clone()));
            }
            fields.push(FieldRequirement {
                field,
                value: requirement.value.clone(),
                equal,
            });
        }
        Ok(Self {
            labels,
            fields,
            exact,
        })
    }

    /// Narrows the selection to one object of a collection.
    pub(crate) fn only(&mut self, name: &str) {
        self.exact
            .push(("metadata.name".to_owned(), name.to_owned()));
        let value = name.to_owned();
        self.fields.push(FieldRequirement {
            field: Field::Name,
            value,
            equal: true,
        });
    }

    pub(crate) fn matches(&self, entry: &Entry<Meta>) -> bool {
        let meta = &entry.meta;
        self.labels
            .as_ref()
            .is_none_or(|labels| labels.matches(&meta.labels))
            && self.fields.iter().all(|requirement| {
                let mut parts = entry.key.rsplit('/');
                let actual = match requirement.field {
                    Field::Name => parts.next().unwrap_or_default(),
                    Field::Namespace => parts.nth(1).unwrap_or_default(),
                    Field::Own(index) => meta.fields.get(index).map_or("", |f| f),
                };
                (actual == requirement.value) == requirement.equal
            })
    }
}
