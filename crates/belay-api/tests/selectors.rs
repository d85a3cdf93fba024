//! What holds for any text given as a selector.

use std::collections::BTreeMap;

use belay_api::selector::{FieldSelector, LabelSelector};
use proptest::prelude::*;

/// Texts that are nearly selectors.
fn nearly() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec![
            "a",
            "b/c",
            "x.y/z",
            "in",
            "notin",
            "=",
            "==",
            "!=",
            "!",
            ",",
            "(",
            ")",
            ">",
            "<",
            " ",
            "\t",
            "5",
            "-",
            "\\",
            "\\,",
            "spec.nodeName",
            "é",
            "\0",
        ]),
        0..12,
    )
    .prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_text_makes_a_parser_panic(text in ".{0,60}") {
        let _ = text.parse::<LabelSelector>();
        let _ = text.parse::<FieldSelector>();
    }

    #[test]
    fn a_label_selector_written_out_reads_back_the_same(text in nearly()) {
        if let Ok(selector) = text.parse::<LabelSelector>() {
            let written = selector.to_string();
            prop_assert_eq!(written.parse::<LabelSelector>(), Ok(selector), "{} -> {}", text, written);
        }
    }

    #[test]
    fn a_field_selector_written_out_reads_back_the_same(text in nearly()) {
        if let Ok(selector) = text.parse::<FieldSelector>() {
            let written = selector.to_string();
            let mut again = written.parse::<FieldSelector>().map(|s| s.requirements().to_vec());
            let mut requirements = selector.requirements().to_vec();
            // Terms are sorted as they were written, and `==` is written `=`.
            let order = |r: &belay_api::selector::FieldRequirement| format!("{r:?}");
            requirements.sort_by_key(order);
            if let Ok(again) = &mut again {
                again.sort_by_key(order);
            }
            prop_assert_eq!(again, Ok(requirements), "{} -> {}", text, written);
        }
    }

    #[test]
    fn a_requirement_and_its_opposite_part_the_world(value in prop::option::of("[a-c]{0,2}"), wanted in "[a-c]{0,2}") {
        let mut labels = BTreeMap::new();
        if let Some(value) = value {
            labels.insert("k".to_owned(), value);
        }
        for (one, other) in [("k=", "k!="), ("k==", "k!=")] {
            let one: LabelSelector = format!("{one}{wanted}").parse().expect("valid");
            let other: LabelSelector = format!("{other}{wanted}").parse().expect("valid");
            prop_assert_ne!(one.matches(&labels), other.matches(&labels));
        }
        let one: LabelSelector = format!("k in ({wanted},c)").parse().expect("valid");
        let other: LabelSelector = format!("k notin ({wanted},c)").parse().expect("valid");
        prop_assert_ne!(one.matches(&labels), other.matches(&labels));
        let one: LabelSelector = "k".parse().expect("valid");
        let other: LabelSelector = "!k".parse().expect("valid");
        prop_assert_ne!(one.matches(&labels), other.matches(&labels));
    }
}
