//! `$(NAME)` in commands, arguments and environment values, as Kubernetes expands it.
//!
//! `$$` is a dollar sign, so `$$(NAME)` stays `$(NAME)`; a name that is not defined stays as it was
//! written.

use std::collections::BTreeMap;

/// Expands `input` with the variables defined so far.
pub(crate) fn expand(input: &str, variables: &BTreeMap<String, String>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            output.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after
            .strip_prefix('(')
            .and_then(|tail| tail.split_once(')'))
        {
            match variables.get(name) {
                Some(value) => output.push_str(value),
                None => {
                    output.push_str("$(");
                    output.push_str(name);
                    output.push(')');
                }
            }
            rest = tail;
        } else {
            output.push('$');
            rest = after;
        }
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(input: &str, expected: &str) {
        let variables = [("A", "a"), ("B", "$(A)"), ("EMPTY", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(expand(input, &variables), expected, "{input:?}");
    }

    #[test]
    fn names_are_replaced_once_and_escapes_are_kept() {
        for (input, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(A)z", "xayaz"),
            ("$(B)", "$(A)"),
            ("$(EMPTY)", ""),
            ("$(NO)", "$(NO)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$A", "$A"),
            ("$", "$"),
            ("$$", "$"),
            ("a$", "a$"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("$(A)$", "a$"),
            ("$(é)", "$(é)"),
            ("f$(A)(B)", "fa(B)"),
        ] {
            check(input, expected);
        }
    }

    proptest! {
        #[test]
        fn without_a_dollar_nothing_changes(input in "[^$]*") {
            prop_assert_eq!(expand(&input, &BTreeMap::new()), input);
        }

        #[test]
        fn any_text_is_taken_without_a_panic(input in "[$()A é]{0,40}") {
            let _ = expand(&input, &[("A".to_owned(), "x".to_owned())].into());
        }
    }
}
