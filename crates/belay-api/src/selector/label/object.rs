//! Between the selector of a query string and the one that is part of an object
//! (`matchLabels`, `matchExpressions`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

use super::{LabelRequirement, LabelSelector, Operator, check_values};
use crate::metadata::names::label_key;
use crate::selector::{RequirementError, SelectorError};

/// A requirement that only a query string can have.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} compares numbers, which the selector of an object cannot: use =, !=, in, notin, or name the label alone"
)]
pub struct Inexpressible(String);

impl TryFrom<&meta::LabelSelector> for LabelSelector {
    type Error = SelectorError;

    fn try_from(selector: &meta::LabelSelector) -> Result<Self, Self::Error> {
        let labels = selector.match_labels.iter().flatten();
        let exact = labels.map(|(key, value)| requirement(key, Operator::Equals, &[value]));
        let expressions = selector.match_expressions.iter().flatten();
        let sets = expressions.map(|expression| {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(RequirementError::Operator(other.to_owned())),
            };
            let values: Vec<&String> = expression.values.iter().flatten().collect();
            requirement(&expression.key, operator, &values)
        });
        let mut requirements = exact
            .chain(sets)
            .collect::<Result<Vec<_>, _>>()
            .map_err(SelectorError::Requirement)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }
}

fn requirement(
    key: &str,
    operator: Operator,
    values: &[&String],
) -> Result<LabelRequirement, RequirementError> {
    let problems = label_key(key);
    if !problems.is_empty() {
        return Err(RequirementError::Key {
            key: key.to_owned(),
            problems: problems.join("; "),
        });
    }
    let mut values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
    values.sort_unstable();
    values.dedup();
    check_values(key, operator, &values)?;
    Ok(LabelRequirement {
        key: key.to_owned(),
        operator,
        values: values.into_iter().map(str::to_owned).collect(),
    })
}

impl TryFrom<&LabelSelector> for meta::LabelSelector {
    type Error = Inexpressible;

    fn try_from(selector: &LabelSelector) -> Result<Self, Self::Error> {
        let mut object = Self::default();
        for requirement in &selector.requirements {
            let operator = match requirement.operator {
                Operator::Equals | Operator::DoubleEquals => {
                    let labels = object.match_labels.get_or_insert_default();
                    if !labels.contains_key(&requirement.key) {
                        labels.insert(requirement.key.clone(), requirement.values.concat());
                        continue;
                    }
                    // The same label twice: both must hold, and a map holds only one.
                    "In"
                }
                Operator::In => "In",
                Operator::NotEquals | Operator::NotIn => "NotIn",
                Operator::Exists => "Exists",
                Operator::DoesNotExist => "DoesNotExist",
                Operator::GreaterThan | Operator::LessThan => {
                    return Err(Inexpressible(requirement.to_string()));
                }
            };
            let values = &requirement.values;
            object
                .match_expressions
                .get_or_insert_default()
                .push(meta::LabelSelectorRequirement {
                    key: requirement.key.clone(),
                    operator: operator.to_owned(),
                    values: (!values.is_empty()).then(|| values.clone()),
                });
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_an_object_that_means_the_same() {
        for (text, back) in [
            ("", ""),
            ("app=web", "app=web"),
            ("app==web", "app=web"),
            ("app=web,app=db", "app=web,app in (db)"),
            ("app!=web", "app notin (web)"),
            ("tier in (a,b),!legacy,x", "!legacy,tier in (a,b),x"),
            ("app=", "app="),
        ] {
            let selector: LabelSelector = text.parse().unwrap();
            let object = meta::LabelSelector::try_from(&selector).unwrap();
            let again = LabelSelector::try_from(&object).unwrap();
            assert_eq!(again.to_string(), back, "{text}");
        }
    }

    #[test]
    fn a_comparison_of_numbers_has_no_form_in_an_object() {
        let selector: LabelSelector = "n>3".parse().unwrap();
        let error = meta::LabelSelector::try_from(&selector).unwrap_err();
        assert!(error.to_string().starts_with("\"n>3\" compares numbers"));
    }

    #[test]
    fn an_object_that_no_server_would_store_is_refused() {
        let expression = |key: &str, operator: &str| meta::LabelSelector {
            match_labels: None,
            match_expressions: Some(vec![meta::LabelSelectorRequirement {
                key: key.to_owned(),
                operator: operator.to_owned(),
                values: None,
            }]),
        };
        assert!(LabelSelector::try_from(&expression("a", "Exists")).is_ok());
        assert!(LabelSelector::try_from(&expression("a", "Gt")).is_err());
        assert!(LabelSelector::try_from(&expression("a b", "Exists")).is_err());
    }
}
