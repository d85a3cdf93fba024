//! What strings and numbers must look like where the schema says more than "string".

use base64::alphabet;
use base64::engine::{Engine as _, GeneralPurpose, GeneralPurposeConfig};
use jiff::Timestamp;
use jiff::fmt::strtime;
use serde_json::Number;

use super::quoted;

/// How much of a wrong string an error repeats.
const SHOWN: usize = 64;

pub(super) fn found(text: &str) -> String {
    format!("the string {}", quoted(&shortened(text, SHOWN)))
}

/// At most `length` characters of `text`.
pub(super) fn shortened(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The string for a quantity that was given as a number: `0.5` is "0.5", `2e3` is "2000".
pub(super) fn quantity(number: &Number) -> String {
    match number.as_f64() {
        // Rust writes floats without exponent, and whole ones here without a fraction.
        Some(float) if number.is_f64() => format!("{float}"),
        _ => number.to_string(),
    }
}

/// Bytes as base64 has them in one way only, or nothing if `text` is no base64 with padding. Go
/// skips line breaks and does not look at the bits after the last byte; what others read is stricter.
pub(super) fn bytes(mut text: String) -> Option<String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
    );
    text.retain(|c| !matches!(c, '\r' | '\n'));
    let bytes = LENIENT.decode(text).ok()?;
    Some(LENIENT.encode(bytes))
}

/// A time in UTC with whole seconds, or nothing if `text` is no time.
pub(super) fn seconds(text: &str) -> Option<String> {
    rewritten(text, "%Y-%m-%dT%H:%M:%SZ", "2006-01-02T15:04:05Z".len())
}

/// A time in UTC with microseconds, or nothing if `text` is no time.
pub(super) fn microseconds(text: &str) -> Option<String> {
    rewritten(
        text,
        "%Y-%m-%dT%H:%M:%S%.6fZ",
        "2006-01-02T15:04:05.000000Z".len(),
    )
}

pub(super) fn is_time(text: &str) -> bool {
    parse(text).is_some()
}

fn rewritten(text: &str, format: &str, length: usize) -> Option<String> {
    let time = parse(text)?;
    if text.len() == length && text.ends_with('Z') {
        return Some(text.to_owned());
    }
    strtime::format(format, time).ok()
}

/// RFC 3339 to the letter. The time library also reads other notations that a stock server refuses,
/// so the form is looked at first.
fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let (date_time, rest) = bytes.split_at_checked(19)?;
    let in_form = date_time.iter().enumerate().all(|(i, byte)| match i {
        4 | 7 => *byte == b'-',
        10 => *byte == b'T',
        13 | 16 => *byte == b':',
        _ => byte.is_ascii_digit(),
    });
    let seconds_in_range = date_time[17] < b'6';
    let rest = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            if digits == 0 || digits > 9 {
                return None;
            }
            &fraction[digits..]
        }
        None => rest,
    };
    let zone_in_form = match rest {
        b"Z" => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()),
        _ => false,
    };
    if in_form && seconds_in_range && zone_in_form {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_and_come_out_in_utc() {
        let cases = [
            ("2024-02-29T10:00:00Z", Some("2024-02-29T10:00:00Z")),
            ("2024-02-29T10:00:00+02:00", Some("2024-02-29T08:00:00Z")),
            ("2024-02-29T10:00:00.999Z", Some("2024-02-29T10:00:00Z")),
            ("2023-02-29T10:00:00Z", None),
            ("2024-02-29 10:00:00Z", None),
            ("2024-02-29T10:00:00", None),
            ("2024-02-29T10:00:00z", None),
            ("2024-02-29T10:00Z", None),
            ("2024-02-29T10:00:60Z", None),
            ("2024-02-29T10:00:00.Z", None),
            ("2024-02-29T10:00:00+0200", None),
            ("2024-02-29T10:00:00Z[UTC]", None),
            ("", None),
            ("now", None),
            ("2024-02-29T10:00:0\u{20ac}", None),
        ];
        for (text, expected) in cases {
            assert_eq!(seconds(text).as_deref(), expected, "{text}");
        }
        assert_eq!(
            microseconds("2024-02-29T10:00:00Z").as_deref(),
            Some("2024-02-29T10:00:00.000000Z")
        );
        assert_eq!(
            microseconds("2024-02-29T10:00:00.123456789+00:30").as_deref(),
            Some("2024-02-29T09:30:00.123456Z")
        );
    }

    #[test]
    fn base64_needs_its_padding_and_comes_out_as_everybody_reads_it() {
        for (text, expected) in [
            ("", ""),
            ("QQ==", "QQ=="),
            ("QUI=", "QUI="),
            ("QUJD", "QUJD"),
            ("+/+/", "+/+/"),
            ("QU\nJD\r\n", "QUJD"),
            ("QQ=\n=", "QQ=="),
            ("QR==", "QQ=="),
            ("QUL=", "QUI="),
        ] {
            assert_eq!(bytes(text.into()).as_deref(), Some(expected), "{text:?}");
        }
        for bad in [
            "Q", "QQ", "QQ=", "Q===", "QUJD=", "====", "QQ==QQ==", "-_-_", "QU JD",
        ] {
            assert_eq!(bytes(bad.into()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_number_becomes_the_quantity_one_would_have_written() {
        let cases = [
            ("1", "1"),
            ("0.5", "0.5"),
            ("2e3", "2000"),
            ("-1", "-1"),
            ("1.0", "1"),
        ];
        for (json, expected) in cases {
            let number: Number = serde_json::from_str(json).expect("a number");
            assert_eq!(quantity(&number), expected);
        }
    }
}
