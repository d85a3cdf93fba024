//! `app=web,tier in (a,b),!legacy`

mod object;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::{RequirementError, SelectorError};
use crate::metadata::names::{label_key, label_value};

pub use object::Inexpressible;

/// Requirements on an object's labels, all of which must hold. The empty selector matches
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<LabelRequirement>,
}

/// What one label must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRequirement {
    key: String,
    operator: Operator,
    /// Sorted and distinct. None for the two that only ask whether the label is there, exactly one
    /// for a comparison, at least one for a set.
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl LabelSelector {
    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// In order of their keys.
    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.requirements
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| {
            requirement.matches(labels.get(&requirement.key).map(String::as_str))
        })
    }
}

impl LabelRequirement {
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether it holds for an object whose label has this value, or which lacks the label.
    pub fn matches(&self, label: Option<&str>) -> bool {
        let listed = |label: &str| self.values.iter().any(|value| value == label);
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => label.is_some_and(listed),
            Operator::NotEquals | Operator::NotIn => !label.is_some_and(listed),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => self
                .compare(label)
                .is_some_and(|(label, bound)| label > bound),
            Operator::LessThan => self
                .compare(label)
                .is_some_and(|(label, bound)| label < bound),
        }
    }

    fn compare(&self, label: Option<&str>) -> Option<(i64, i64)> {
        Some((label?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut tokens = Tokens::new(text);
        let mut requirements = Vec::new();
        loop {
            match tokens.peek() {
                Token::End => break,
                Token::Word(_) | Token::Sign("!") => {}
                token => {
                    return Err(SelectorError::Unexpected {
                        found: token.text().to_owned(),
                        expected: "!, identifier, or 'end of string'",
                    });
                }
            }
            requirements.push(requirement(&mut tokens).map_err(SelectorError::Requirement)?);
            match tokens.next() {
                Token::End => break,
                Token::Sign(",") => {
                    let after = tokens.peek();
                    if !matches!(after, Token::Word(_) | Token::Sign("!")) {
                        return Err(SelectorError::Unexpected {
                            found: after.text().to_owned(),
                            expected: "identifier after ','",
                        });
                    }
                }
                token => {
                    return Err(SelectorError::Unexpected {
                        found: token.text().to_owned(),
                        expected: "',' or 'end of string'",
                    });
                }
            }
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }
}

fn unexpected(found: Token<'_>, expected: &'static str) -> RequirementError {
    RequirementError::Unexpected {
        found: found.text().to_owned(),
        expected,
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<LabelRequirement, RequirementError> {
    let mut token = tokens.next();
    let negated = token == Token::Sign("!");
    if negated {
        token = tokens.next();
    }
    let Token::Word(key) = token else {
        return Err(unexpected(token, "identifier"));
    };
    let problems = label_key(key);
    if !problems.is_empty() {
        return Err(RequirementError::Key {
            key: key.to_owned(),
            problems: problems.join("; "),
        });
    }
    let operator = match (negated, tokens.peek()) {
        // What follows a negated key is for the caller to refuse.
        (true, _) => Operator::DoesNotExist,
        (false, Token::End | Token::Sign(",")) => Operator::Exists,
        (false, _) => operator(tokens)?,
    };
    let mut values = match operator {
        Operator::Exists | Operator::DoesNotExist => Vec::new(),
        Operator::In | Operator::NotIn => set(tokens)?,
        Operator::Equals
        | Operator::DoubleEquals
        | Operator::NotEquals
        | Operator::GreaterThan
        | Operator::LessThan => vec![exact(tokens)?],
    };
    values.sort_unstable();
    values.dedup();
    check_values(key, operator, &values)?;
    Ok(LabelRequirement {
        key: key.to_owned(),
        operator,
        values: values.into_iter().map(str::to_owned).collect(),
    })
}

fn check_values(key: &str, operator: Operator, values: &[&str]) -> Result<(), RequirementError> {
    for (index, value) in values.iter().enumerate() {
        let compares = matches!(operator, Operator::GreaterThan | Operator::LessThan);
        if compares && value.parse::<i64>().is_err() {
            return Err(RequirementError::NotAnInteger((*value).to_owned()));
        }
        let problems = label_value(value);
        if !problems.is_empty() {
            return Err(RequirementError::Value {
                key: key.to_owned(),
                index,
                value: (*value).to_owned(),
                problems: problems.join("; "),
            });
        }
    }
    Ok(())
}

fn operator(tokens: &mut Tokens<'_>) -> Result<Operator, RequirementError> {
    let token = tokens.next();
    Ok(match token {
        Token::Word("in") => Operator::In,
        Token::Word("notin") => Operator::NotIn,
        Token::Sign("=") => Operator::Equals,
        Token::Sign("==") => Operator::DoubleEquals,
        Token::Sign("!=") => Operator::NotEquals,
        Token::Sign(">") => Operator::GreaterThan,
        Token::Sign("<") => Operator::LessThan,
        token => return Err(unexpected(token, "in, notin, =, ==, !=, gt, lt")),
    })
}

/// The value after `=`; nothing there is the empty value.
fn exact<'a>(tokens: &mut Tokens<'a>) -> Result<&'a str, RequirementError> {
    if matches!(tokens.peek(), Token::End | Token::Sign(",")) {
        return Ok("");
    }
    match tokens.next() {
        Token::Word(word) => Ok(word),
        token => Err(unexpected(token, "identifier")),
    }
}

/// `(a,b)`. Nothing before or after a comma is the empty value, and so is nothing at all.
fn set<'a>(tokens: &mut Tokens<'a>) -> Result<Vec<&'a str>, RequirementError> {
    let token = tokens.next();
    if token != Token::Sign("(") {
        return Err(unexpected(token, "'('"));
    }
    let mut values = Vec::new();
    loop {
        let value = match tokens.peek() {
            Token::Word(word) => {
                tokens.next();
                word
            }
            Token::Sign("," | ")") => "",
            token if values.is_empty() => {
                return Err(unexpected(token, "',', ')' or identifier"));
            }
            token => return Err(unexpected(token, "',', or identifier")),
        };
        values.push(value);
        match tokens.next() {
            Token::Sign(",") => {}
            Token::Sign(")") => return Ok(values),
            token => return Err(unexpected(token, "',' or ')'")),
        }
    }
}

/// A token, with `in` and `notin` still words: whether they are operators depends on their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// One of the signs of [`SIGNS`], or a run of signs that is none of them.
    Sign(&'a str),
    End,
}

/// Longer ones first.
const SIGNS: &[&str] = &["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Word(text) | Self::Sign(text) => text,
            Self::End => "",
        }
    }
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    fn peek(&self) -> Token<'a> {
        self.split().0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.split();
        self.rest = rest;
        token
    }

    fn split(&self) -> (Token<'a>, &'a str) {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if text.is_empty() {
            return (Token::End, text);
        }
        if let Some(sign) = SIGNS.iter().find(|sign| text.starts_with(**sign)) {
            let (sign, rest) = text.split_at(sign.len());
            return (Token::Sign(sign), rest);
        }
        let end = text
            .find(['=', '!', '(', ')', ',', '>', '<', ' ', '\t', '\r', '\n'])
            .unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        (Token::Word(word), rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn selectors_read_as_upstream_reads_them() {
        let cases = [
            ("", ""),
            ("  ", ""),
            ("a", "a"),
            ("!a", "!a"),
            ("! a", "!a"),
            ("a=b", "a=b"),
            ("a = b", "a=b"),
            ("a==b", "a==b"),
            ("a!=b", "a!=b"),
            ("a=", "a="),
            ("a=,b", "a=,b"),
            ("a in (b)", "a in (b)"),
            ("a in (c,b,c)", "a in (b,c)"),
            ("a notin (b,)", "a notin (,b)"),
            ("a in ()", "a in ()"),
            ("a in (,)", "a in ()"),
            ("a in (b,,c)", "a in (,b,c)"),
            ("in in (in,notin)", "in in (in,notin)"),
            ("in", "in"),
            ("a=in", "a=in"),
            ("z=1,a=2", "a=2,z=1"),
            ("a>5", "a>5"),
            ("example.com/a=b", "example.com/a=b"),
        ];
        for (text, expected) in cases {
            let selector: LabelSelector = text.parse().expect(text);
            assert_eq!(selector.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_upstreams_words() {
        let cases = [
            ("a=b=c", "found '=', expected: ',' or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            (
                ",",
                "found ',', expected: !, identifier, or 'end of string'",
            ),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            (
                "a in (b",
                "unable to parse requirement: found '', expected: ',' or ')'",
            ),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            (
                "a=!",
                "unable to parse requirement: found '!', expected: identifier",
            ),
            (
                "a in b",
                "unable to parse requirement: found 'b', expected: '('",
            ),
            (
                "a===b",
                "unable to parse requirement: found '=', expected: identifier",
            ),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' \
                 operators, the value must be an integer",
            ),
            (
                "a=-b",
                "unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid label \
                 must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                 and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
                 'my_value',  or '12345', regex used for validation is \
                 '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
            (
                "-a=b",
                "unable to parse requirement: Invalid value: \"-a\": name part must consist of \
                 alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used \
                 for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
        ];
        for (text, expected) in cases {
            let error = text.parse::<LabelSelector>().expect_err(text);
            assert_eq!(error.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_selector_matches_when_every_requirement_does() {
        let web = labels(&[("app", "web"), ("tier", "a"), ("n", "7")]);
        let cases = [
            ("", true),
            ("app", true),
            ("app=web,tier=a", true),
            ("app=web,tier=b", false),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (db,web)", true),
            ("app notin (db,web)", false),
            ("other notin (db)", true),
            ("other in (db,)", false),
            ("!app", false),
            ("!other", true),
            ("n>6", true),
            ("n>7", false),
            ("n<8", true),
            ("app>1", false),
            ("other<1", false),
        ];
        for (text, expected) in cases {
            let selector: LabelSelector = text.parse().expect(text);
            assert_eq!(selector.matches(&web), expected, "{text}");
        }
    }
}
