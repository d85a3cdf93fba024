//! `spec.nodeName=a,status.phase!=Running`

use std::fmt;
use std::str::FromStr;

use super::SelectorError;

/// Requirements on an object's fields, all of which must hold. The empty selector matches
/// everything. Which fields a kind can be selected by is for the server to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

/// What one field must be. A field that is not set has the empty value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    pub operator: FieldOperator,
    pub value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldOperator {
    Equals,
    NotEquals,
}

impl FieldSelector {
    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// Whether all requirements hold for an object whose fields `field` looks up.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> &'a str) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches(field(&requirement.field)))
    }

    /// The value that `field` must have for any object to match, if there is one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|r| r.field == field && r.operator == FieldOperator::Equals)
            .map(|r| &*r.value)
    }
}

impl FieldRequirement {
    pub fn matches(&self, value: &str) -> bool {
        match self.operator {
            FieldOperator::Equals => self.value == value,
            FieldOperator::NotEquals => self.value != value,
        }
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(&requirement.field)?;
            f.write_str(match requirement.operator {
                FieldOperator::Equals => "=",
                FieldOperator::NotEquals => "!=",
            })?;
            for c in requirement.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut terms: Vec<&str> = terms(text).filter(|term| !term.is_empty()).collect();
        terms.sort_unstable();
        let requirements = terms
            .into_iter()
            .map(|term| {
                let (field, operator, value) =
                    split(term).ok_or_else(|| SelectorError::FieldTerm {
                        selector: text.to_owned(),
                        term: term.to_owned(),
                    })?;
                Ok(FieldRequirement {
                    field: field.to_owned(),
                    operator,
                    value: unescaped(value)?,
                })
            })
            .collect::<Result<Vec<_>, SelectorError>>()?
            .into_iter()
            // No field, and nothing that it should be: nothing is asked for.
            .filter(|r| !(r.field.is_empty() && r.value.is_empty()))
            .collect();
        Ok(Self { requirements })
    }
}

/// The parts between commas; a comma after a backslash belongs to its part.
fn terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c| {
        let ends = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })
}

/// Splits at the first operator. An exclamation mark alone is none, and part of the name.
fn split(term: &str) -> Option<(&str, FieldOperator, &str)> {
    term.match_indices(['!', '=']).find_map(|(at, _)| {
        let (field, rest) = term.split_at(at);
        if let Some(value) = rest.strip_prefix("!=") {
            return Some((field, FieldOperator::NotEquals, value));
        }
        let value = rest.strip_prefix('=')?;
        // A doubled sign means the same as a single one.
        Some((
            field,
            FieldOperator::Equals,
            value.strip_prefix('=').unwrap_or(value),
        ))
    })
}

fn unescaped(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(SelectorError::Escape(format!("\\{c}"))),
                None => return Err(SelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(SelectorError::Unescaped(c)),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selectors_read_as_upstream_reads_them() {
        let cases = [
            ("", ""),
            ("a=b", "a=b"),
            ("a==b", "a=b"),
            ("a!=b", "a!=b"),
            ("c=d,a=b", "a=b,c=d"),
            ("a=b,,", "a=b"),
            ("a=", "a="),
            ("=b", "=b"),
            ("=,a=b", "a=b"),
            ("a=b\\,c", "a=b\\,c"),
            ("a=b\\=c\\\\", "a=b\\=c\\\\"),
            ("a!b=c", "a!b=c"),
            ("a!b!=c", "a!b!=c"),
            ("a.b = c", "a.b = c"),
        ];
        for (text, expected) in cases {
            let selector: FieldSelector = text.parse().expect(text);
            assert_eq!(selector.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_a_field_selector_is_refused() {
        let cases = [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            (
                "a=b,c!",
                "invalid selector: 'a=b,c!'; can't understand 'c!'",
            ),
            (
                "a=b\\x",
                "invalid field selector: invalid escape sequence: \\x",
            ),
            (
                "a=b\\",
                "invalid field selector: invalid escape sequence: \\",
            ),
            (
                "a=b=c",
                "invalid field selector: unescaped character in value: '='",
            ),
            (
                "a===b",
                "invalid field selector: unescaped character in value: '='",
            ),
        ];
        for (text, expected) in cases {
            let error = text.parse::<FieldSelector>().expect_err(text);
            assert_eq!(error.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn fields_match_by_value_and_absent_is_empty() {
        let pod = |field: &str| match field {
            "spec.nodeName" => "n1",
            _ => "",
        };
        let matches = |text: &str| text.parse::<FieldSelector>().expect(text).matches(pod);
        assert!(matches("spec.nodeName=n1"));
        assert!(!matches("spec.nodeName!=n1"));
        assert!(matches("status.phase="));
        assert!(!matches("spec.nodeName=n1,status.phase=Running"));
        let selector: FieldSelector = "a!=x,b=y".parse().expect("valid");
        assert_eq!(
            (selector.exact("a"), selector.exact("b")),
            (None, Some("y"))
        );
    }
}
