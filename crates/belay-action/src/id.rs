//! Names that runtimes also use as file names and environment values, so they are checked.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longer than any ID in use: a UID, a container name of 63 and a number fit.
const MAX_LENGTH: usize = 128;

/// Why a string is not an ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{id:?} is not an ID: it must have 1 to {MAX_LENGTH} letters, digits, '.', '_' or '-', and begin \
     with a letter or digit"
)]
pub struct IdError {
    id: String,
}

fn checked(id: &str) -> Result<String, IdError> {
    let good = (1..=MAX_LENGTH).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && id.as_bytes()[0].is_ascii_alphanumeric();
    if good {
        Ok(id.to_owned())
    } else {
        Err(IdError {
            id: id.chars().take(160).collect(),
        })
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps an ID.
            pub fn new(id: impl AsRef<str>) -> Result<Self, IdError> {
                checked(id.as_ref()).map($name)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(id: &str) -> Result<Self, IdError> {
                Self::new(id)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(id: String) -> Result<Self, IdError> {
                Self::new(id)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

id! {
    /// One run of an action on a target. Whoever asks for the action chooses it, and finds the run
    /// again by it.
    AttemptId
}

id! {
    /// One incarnation of a container, as its runtime names it.
    ContainerId
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_safe_as_file_names() {
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "-x",
            "a/b",
            "a b",
            "a\0b",
            "ä",
            &"x".repeat(129),
        ] {
            assert!(AttemptId::new(bad).is_err(), "{bad:?}");
        }
        for good in ["0", "a1b2", "3f0e-4b.main.2", "process_1", &"x".repeat(128)] {
            assert_eq!(
                ContainerId::new(good).map(String::from),
                Ok(good.to_owned())
            );
        }
    }

    #[test]
    fn a_bad_id_in_a_journal_is_an_error() {
        assert!(serde_json::from_str::<AttemptId>("\"../x\"").is_err());
        let id: AttemptId = serde_json::from_str("\"a-1\"").unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"a-1\"");
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_has_no_path_in_it(id in ".{0,140}") {
            if let Ok(id) = ContainerId::new(&id) {
                prop_assert!(!id.as_str().contains('/') && !id.as_str().starts_with('.'));
            }
        }
    }
}
