#![no_main]

use belay_api::selector::{FieldSelector, LabelSelector};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = text.parse::<LabelSelector>() {
        let again = selector.to_string().parse::<LabelSelector>();
        assert_eq!(again, Ok(selector));
    }
    if let Ok(selector) = text.parse::<FieldSelector>() {
        let again = selector.to_string().parse::<FieldSelector>();
        let written = again.map(|again| again.requirements().len());
        assert_eq!(written, Ok(selector.requirements().len()));
    }
});
