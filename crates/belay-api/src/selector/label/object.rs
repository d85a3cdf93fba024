//! `{"matchLabels": {...}, "matchExpressions": [...]}`: a selector as it stands in objects.

use serde_json::Value;

use super::{LabelRequirement, LabelSelector, Operator, check_values};
use crate::field::Cursor;
use crate::metadata::names::label_key;
use crate::selector::{RequirementError, SelectorError};

impl LabelSelector {
    /// Reads the selector of an object. One without requirements matches everything.
    ///
    /// # Errors
    ///
    /// An operator that is not one of the four, values where there may be none or none where there
    /// must be some, or keys and values that cannot be a label's.
    pub fn from_object(selector: &Value) -> Result<Self, SelectorError> {
        let selector = Cursor::new(selector);
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").entries() {
            requirements.push(requirement(key, Operator::Equals, &[value.str()])?);
        }
        for expression in selector.get("matchExpressions").items() {
            let operator = match expression.get("operator").str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(unexpected(other, "In, NotIn, Exists or DoesNotExist")),
            };
            let values = expression.get("values");
            let values: Vec<&str> = values.list().iter().filter_map(Value::as_str).collect();
            let sets = matches!(operator, Operator::In | Operator::NotIn);
            if sets && values.is_empty() {
                return Err(unexpected("", "values with the operators In and NotIn"));
            }
            if let (false, Some(first)) = (sets, values.first()) {
                return Err(unexpected(
                    first,
                    "no values with the operators Exists and DoesNotExist",
                ));
            }
            requirements.push(requirement(expression.get("key").str(), operator, &values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }
}

fn requirement(
    key: &str,
    operator: Operator,
    values: &[&str],
) -> Result<LabelRequirement, SelectorError> {
    let problems = label_key(key);
    if !problems.is_empty() {
        return Err(SelectorError::Requirement(RequirementError::Key {
            key: key.to_owned(),
            problems: problems.join("; "),
        }));
    }
    check_values(key, operator, values).map_err(SelectorError::Requirement)?;
    let mut values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
    values.sort_unstable();
    values.dedup();
    Ok(LabelRequirement {
        key: key.to_owned(),
        operator,
        values,
    })
}

fn unexpected(found: &str, expected: &'static str) -> SelectorError {
    SelectorError::Unexpected {
        found: found.to_owned(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_reads_as_the_same_selector_in_a_query_does() {
        for (object, text) in [
            (json!({}), ""),
            (json!({"matchLabels": {"b": "x", "a": ""}}), "a=,b=x"),
            (
                json!({"matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["y", "x", "x"]},
                    {"key": "b", "operator": "NotIn", "values": ["z"]},
                    {"key": "c", "operator": "Exists"},
                    {"key": "d", "operator": "DoesNotExist"},
                ]}),
                "a in (x,y),b notin (z),c,!d",
            ),
        ] {
            let read = LabelSelector::from_object(&object).unwrap();
            assert_eq!(read, text.parse().unwrap(), "{object}");
        }
    }

    #[test]
    fn what_no_selector_can_be_is_refused() {
        for object in [
            json!({"matchLabels": {"a b": "x"}}),
            json!({"matchLabels": {"a": "x),b in (y"}}),
            json!({"matchExpressions": [{"key": "a", "operator": "Near", "values": ["x"]}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
            json!({"matchExpressions": [{}]}),
        ] {
            assert!(LabelSelector::from_object(&object).is_err(), "{object}");
        }
    }
}
