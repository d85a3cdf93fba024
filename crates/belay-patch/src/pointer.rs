//! JSON pointers (RFC 6901).

use serde_json::Value;

/// The steps of a pointer, unescaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    text: String,
    steps: Vec<String>,
}

impl Pointer {
    /// `text` as a pointer; none if it neither is empty nor starts with a slash, or ends in or
    /// contains a tilde that escapes nothing.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        if !text.is_empty() {
            for step in text.strip_prefix('/')?.split('/') {
                steps.push(unescaped(step)?);
            }
        }
        Some(Self {
            text: text.to_owned(),
            steps,
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether the place it names lies within the place that `other` names.
    pub(crate) fn is_inside(&self, other: &Self) -> bool {
        self.steps.len() > other.steps.len() && self.steps.starts_with(&other.steps)
    }

    /// The container that holds, or would hold, the place, and the last step to it. None for the
    /// whole document, and if the container is not there.
    pub(crate) fn parent<'d>(&self, document: &'d mut Value) -> Option<(&'d mut Value, &str)> {
        let (last, steps) = self.steps.split_last()?;
        let mut at = document;
        for step in steps {
            at = match at {
                Value::Object(map) => map.get_mut(step)?,
                Value::Array(list) => {
                    let index = index(step, list.len())?;
                    list.get_mut(index)?
                }
                _ => return None,
            };
        }
        Some((at, last))
    }

    /// The value at the place.
    pub(crate) fn get<'d>(&self, document: &'d Value) -> Option<&'d Value> {
        let mut at = document;
        for step in &self.steps {
            at = match at {
                Value::Object(map) => map.get(step)?,
                Value::Array(list) => list.get(index(step, list.len())?)?,
                _ => return None,
            };
        }
        Some(at)
    }
}

fn unescaped(step: &str) -> Option<String> {
    let mut out = String::with_capacity(step.len());
    let mut chars = step.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

/// An index into a list of `len` elements. A negative one counts from the end, as on a stock server;
/// leading zeros are no index.
pub(crate) fn index(step: &str, len: usize) -> Option<usize> {
    let (negative, digits) = match step.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, step),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'));
    if !plain {
        return None;
    }
    let number: usize = digits.parse().ok()?;
    if negative {
        len.checked_sub(number)
    } else {
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_rfc_6901_resolve() {
        let document = json!({
            "foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5,
            "k\"l": 6, " ": 7, "m~n": 8
        });
        let cases = [
            ("/foo", json!(["bar", "baz"])),
            ("/foo/0", json!("bar")),
            ("/", json!(0)),
            ("/a~1b", json!(1)),
            ("/c%d", json!(2)),
            ("/e^f", json!(3)),
            ("/g|h", json!(4)),
            ("/i\\j", json!(5)),
            ("/k\"l", json!(6)),
            ("/ ", json!(7)),
            ("/m~0n", json!(8)),
        ];
        for (text, expected) in cases {
            let pointer = Pointer::parse(text).expect(text);
            assert_eq!(pointer.get(&document), Some(&expected), "{text}");
        }
        let whole = Pointer::parse("").expect("the whole document");
        assert_eq!(whole.get(&document), Some(&document));
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for text in ["a", "a/b", "/~", "/~2", "/a~"] {
            assert_eq!(Pointer::parse(text), None, "{text}");
        }
    }

    #[test]
    fn indices_are_plain_numbers_and_may_count_from_the_end() {
        let cases = [
            ("0", Some(0)),
            ("7", Some(7)),
            ("-1", Some(2)),
            ("-3", Some(0)),
            ("-4", None),
            ("01", None),
            ("", None),
            ("-", None),
            ("+1", None),
            ("1e0", None),
            ("99999999999999999999", None),
        ];
        for (step, expected) in cases {
            assert_eq!(index(step, 3), expected, "{step}");
        }
    }
}
