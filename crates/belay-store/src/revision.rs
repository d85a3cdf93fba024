//! The one number that orders everything a store ever did.

use std::fmt;
use std::str::FromStr;

/// The place of one write in the order of all writes.
///
/// Every write gets the next revision, so revisions have no gaps and never repeat. A new, empty
/// store stands at [`Revision::FIRST`] and not at zero: clients of a Kubernetes API read the
/// resource version `0` as "any version will do", so it must never be the answer of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Where an empty store stands; the first write gets the one after it.
    pub const FIRST: Revision = Revision(1);

    /// The revision that follows this one.
    #[must_use]
    pub fn next(self) -> Self {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no revision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a revision: expected a decimal number that fits 64 bits")]
pub struct ParseRevisionError {
    text: String,
}

impl FromStr for Revision {
    type Err = ParseRevisionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `u64::from_str` also takes a leading plus sign, which no store ever printed.
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(Revision(number)),
            _ => Err(ParseRevisionError {
                text: text.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back() {
        assert_eq!(Revision(4711).to_string().parse(), Ok(Revision(4711)));
    }

    #[test]
    fn only_plain_decimal_digits_are_a_revision() {
        for text in [
            "",
            "+1",
            "-1",
            " 1",
            "1 ",
            "0x1",
            "1e3",
            "18446744073709551616",
            "١",
        ] {
            assert!(text.parse::<Revision>().is_err(), "{text:?}");
        }
    }
}
