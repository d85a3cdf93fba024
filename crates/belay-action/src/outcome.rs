//! How an attempt ended.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How much output a report holds at most.
pub const MAX_OUTPUT: usize = 4096;

/// The one end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Outcome {
    Succeeded,
    /// The command ended with a code other than 0.
    Exited {
        code: i32,
    },
    /// The command was ended by a signal, not by us.
    Signaled {
        signal: i32,
    },
    /// Killed, with all it started, because its time was over.
    TimedOut,
    /// Killed, with all it started, because somebody asked for it.
    Cancelled,
    /// The command could not be started: nothing of it has run.
    StartFailed {
        message: String,
    },
}

/// An attempt that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub outcome: Outcome,
    /// The end of what the command wrote, at most [`MAX_OUTPUT`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// What should have been killed and could not be, as `pid (name)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<String>,
    pub started: Timestamp,
    pub finished: Timestamp,
}

impl Report {
    /// A report without output.
    pub fn new(outcome: Outcome, started: Timestamp, finished: Timestamp) -> Self {
        Report {
            outcome,
            output: String::new(),
            survivors: Vec::new(),
            started,
            finished,
        }
    }
}

/// The end of an output as text: what is not UTF-8 is replaced, a character that `cut` split at
/// the front is left out, and the whole is at most [`MAX_OUTPUT`] bytes long.
pub fn output_text(bytes: &[u8], cut: bool) -> String {
    let bytes = if cut {
        let torn = bytes
            .iter()
            .take(3)
            .take_while(|byte| **byte & 0xc0 == 0x80)
            .count();
        &bytes[torn..]
    } else {
        bytes
    };
    let text = String::from_utf8_lossy(bytes);
    let mut from = text.len().saturating_sub(MAX_OUTPUT);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_cut_in_two_is_left_out() {
        assert_eq!(output_text(&"é!".as_bytes()[1..], true), "!");
        assert_eq!(output_text(&"é!".as_bytes()[1..], false), "\u{fffd}!");
    }

    #[test]
    fn replacements_do_not_make_it_longer_than_allowed() {
        let text = output_text(&[0xff; MAX_OUTPUT], false);
        assert!(text.len() <= MAX_OUTPUT);
        assert!(text.chars().all(|char| char == '\u{fffd}'));
    }

    #[test]
    fn a_report_reads_back_from_a_journal() {
        let report = Report {
            outcome: Outcome::Exited { code: 3 },
            output: "no\0".to_owned(),
            survivors: vec!["7 (x)".to_owned()],
            started: Timestamp::UNIX_EPOCH,
            finished: Timestamp::UNIX_EPOCH,
        };
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }

    proptest! {
        #[test]
        fn text_is_bounded_whatever_the_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..6000), cut in any::<bool>()
        ) {
            prop_assert!(output_text(&bytes, cut).len() <= MAX_OUTPUT);
        }

        #[test]
        fn the_end_of_good_text_is_kept(text in "\\PC{0,3000}", skip in 0usize..12) {
            let bytes = &text.as_bytes()[skip.min(text.len())..];
            prop_assert!(text.ends_with(&output_text(bytes, true)));
        }
    }
}
