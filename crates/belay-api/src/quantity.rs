//! Resource quantities: `100m`, `1.5Gi`, `2e3`.
//!
//! Only what is needed: whether the text is one, its sign, whether it is whole, how two compare,
//! and how much it is in units and thousandths. Quantities are never rewritten; what a user wrote is stored.

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::Value;

/// A quantity as Kubernetes reads it: exact up to nano units, anything finer rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    /// In units of 10^-9, clamped to what fits.
    nanos: i128,
}

/// A text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct NotAQuantity;

impl Quantity {
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Reads a quantity from where an object has it: text, or a bare number.
    ///
    /// # Errors
    ///
    /// When it is neither, or the text is not a quantity.
    pub fn read(value: &Value) -> Result<Self, NotAQuantity> {
        match value {
            Value::String(text) => text.parse(),
            Value::Number(number) => number.to_string().parse(),
            _ => Err(NotAQuantity),
        }
    }

    /// In whole units, rounded up, as far as that fits.
    #[must_use]
    pub fn value(self) -> i64 {
        self.in_units_of(NANO)
    }

    /// In thousandths, rounded up, as far as that fits.
    #[must_use]
    pub fn milli_value(self) -> i64 {
        self.in_units_of(NANO / 1000)
    }

    fn in_units_of(self, nanos: i128) -> i64 {
        let whole = self.nanos.div_euclid(nanos);
        let rounded = whole + i128::from(self.nanos.rem_euclid(nanos) != 0);
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whether it is a whole number, to the precision of thousandths that upstream looks at.
    #[must_use]
    pub fn is_integer(self) -> bool {
        let millis =
            self.nanos.div_euclid(1_000_000) + i128::from(self.nanos.rem_euclid(1_000_000) != 0);
        millis % 1000 == 0
    }
}

const NANO: i128 = 1_000_000_000;

/// The multiplier of a suffix, as numerator over denominator.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1 << (10 * power), 1));
    let decimal = |power: u32| Some((10_i128.pow(power), 1));
    match suffix {
        "" => decimal(0),
        "n" => Some((1, NANO)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => exponent(suffix),
    }
}

/// `e3`, `E-2`: a decimal exponent.
fn exponent(suffix: &str) -> Option<(i128, i128)> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let power: i32 = digits.parse().ok()?;
    // Beyond this everything is clamped or rounded anyway.
    let size = 10_i128.pow(power.unsigned_abs().min(27));
    Some(if power < 0 { (1, size) } else { (size, 1) })
}

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, unsigned) = match text.as_bytes() {
            [b'-', ..] => (true, &text[1..]),
            [b'+', ..] => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(NotAQuantity);
        }
        let (numerator, denominator) = scale(suffix).ok_or(NotAQuantity)?;

        // Each decimal digit adds its share; past the point at which it cannot matter, digits
        // only decide whether to round up.
        let mut nanos: i128 = 0;
        let unit = numerator.saturating_mul(NANO);
        for digit in whole.bytes() {
            nanos = nanos
                .saturating_mul(10)
                .saturating_add(i128::from(digit - b'0').saturating_mul(unit));
        }
        let mut share = unit;
        let mut rest = false;
        for digit in fraction.bytes().map(|digit| i128::from(digit - b'0')) {
            rest |= share % 10 != 0 && digit != 0;
            share /= 10;
            nanos = nanos.saturating_add(share.saturating_mul(digit));
        }
        rest |= nanos % denominator != 0;
        nanos = nanos / denominator + i128::from(rest);
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
        })
    }
}

/// Compares two texts as quantities, where both are.
#[must_use]
pub fn compare(a: &str, b: &str) -> Option<Ordering> {
    Some(a.parse::<Quantity>().ok()?.cmp(&b.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_compare_across_their_suffixes() {
        let check = |a: &str, b: &str, order: Ordering| {
            assert_eq!(compare(a, b), Some(order), "{a} and {b}");
        };
        check("1", "1000m", Ordering::Equal);
        check("0.1", "100m", Ordering::Equal);
        check(".5", "500m", Ordering::Equal);
        check("1Ki", "1024", Ordering::Equal);
        check("1.5Gi", "1536Mi", Ordering::Equal);
        check("1k", "1Ki", Ordering::Less);
        check("1e3", "1k", Ordering::Equal);
        check("1E3", "1k", Ordering::Equal);
        check("2E", "1Ei", Ordering::Greater);
        check("25e-1", "2500m", Ordering::Equal);
        check("-1", "1", Ordering::Less);
        check("+1", "1", Ordering::Equal);
        check("1n", "0", Ordering::Greater);
        check("0.0000000001", "1n", Ordering::Equal);
        check("1u", "1000n", Ordering::Equal);
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for text in [
            "", "-", ".", "m", "1 ", " 1", "1.2.3", "1x", "1kk", "1K", "1e", "1ki", "one", "1mi",
            "ä", "--1", "1e1.5",
        ] {
            text.parse::<Quantity>().unwrap_err();
        }
    }

    #[test]
    fn wholeness_is_looked_at_to_the_thousandth() {
        let whole = |text: &str| text.parse::<Quantity>().unwrap().is_integer();
        assert!(whole("1") && whole("2000m") && whole("1Ki") && whole("0"));
        assert!(!whole("1500m") && !whole("0.1"));
    }

    #[test]
    fn a_quantity_is_counted_in_units_and_thousandths_rounded_up() {
        for (value, units, thousandths) in [
            (json!("100m"), 1, 100),
            (json!("1.5"), 2, 1500),
            (json!(2), 2, 2000),
            (json!(0.5), 1, 500),
            (json!("0.1m"), 1, 1),
            (json!("64Mi"), 67_108_864, 67_108_864_000),
            (json!("-1500m"), -1, -1500),
            (json!("9e27"), i64::MAX, i64::MAX),
            (json!("-9e27"), i64::MIN, i64::MIN),
        ] {
            let quantity = Quantity::read(&value).unwrap();
            assert_eq!(quantity.value(), units, "{value}");
            assert_eq!(quantity.milli_value(), thousandths, "{value}");
        }
        for value in [json!(null), json!([]), json!(true), json!("x"), json!("")] {
            Quantity::read(&value).unwrap_err();
        }
    }

    #[test]
    fn enormous_numbers_saturate_instead_of_overflowing() {
        let nines = "9".repeat(400);
        for text in [
            nines.as_str(),
            &format!("{nines}Ei"),
            "1e999",
            "1e-999",
            "9e27",
        ] {
            text.parse::<Quantity>().unwrap();
        }
        let tiny = format!("0.{}1Ei", "0".repeat(400));
        assert!(!tiny.parse::<Quantity>().unwrap().is_negative());
    }
}
