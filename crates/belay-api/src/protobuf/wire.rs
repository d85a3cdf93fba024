//! Protobuf's wire format: a row of numbered fields, each a varint or a run of bytes.

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Fault {
    #[error("it ends in the middle of a field")]
    Truncated,
    #[error("a varint is longer than 64 bits")]
    LongVarint,
    #[error("a field has a number out of range")]
    FieldNumber,
    #[error("a field has a wire type that does not belong to it")]
    WireType,
    #[error("a group ends that did not begin, or begins and does not end")]
    Group,
    #[error("a string is not UTF-8")]
    Text,
    #[error("a time lies outside of the years 0 to 9999")]
    Time,
    #[error("it is neither an integer nor a string")]
    IntOrString,
    #[error("the field set is not JSON")]
    FieldSet,
    #[error("messages are nested too deep")]
    TooDeep,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A form that no field of the table has: fixed-width numbers and groups.
    Foreign,
}

/// The fields of a message, one after the other.
pub(super) struct Wire<'a> {
    rest: &'a [u8],
}

const FIELD_NUMBERS: std::ops::RangeInclusive<u64> = 1..=(1 << 29) - 1;

impl<'a> Wire<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    pub(super) fn next(&mut self) -> Result<Option<(u64, Payload<'a>)>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.tag()?;
        let payload = match wire_type {
            0 => Payload::Varint(self.varint()?),
            2 => Payload::Bytes(self.run()?),
            3 => {
                self.skip_group()?;
                Payload::Foreign
            }
            4 => return Err(Fault::Group),
            other => {
                self.skip_fixed(other)?;
                Payload::Foreign
            }
        };
        Ok(Some((number, payload)))
    }

    /// A bare varint, as they lie packed in a list; nothing at the end.
    pub(super) fn packed(&mut self) -> Result<Option<u64>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.varint().map(Some)
    }

    fn tag(&mut self) -> Result<(u64, u64), Fault> {
        let tag = self.varint()?;
        let number = tag >> 3;
        if FIELD_NUMBERS.contains(&number) {
            Ok((number, tag & 7))
        } else {
            Err(Fault::FieldNumber)
        }
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte, rest @ ..] = self.rest else {
                return Err(Fault::Truncated);
            };
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Fault::LongVarint)
    }

    /// A length, and that many bytes.
    fn run(&mut self) -> Result<&'a [u8], Fault> {
        let length = usize::try_from(self.varint()?).map_err(|_| Fault::Truncated)?;
        self.take(length)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn skip_fixed(&mut self, wire_type: u64) -> Result<(), Fault> {
        match wire_type {
            1 => self.take(8).map(drop),
            5 => self.take(4).map(drop),
            _ => Err(Fault::WireType),
        }
    }

    /// Skips to the end of a group that has begun. Groups nest without bound, so this counts rather
    /// than recurses.
    fn skip_group(&mut self) -> Result<(), Fault> {
        let mut open = 1usize;
        while open > 0 {
            if self.rest.is_empty() {
                return Err(Fault::Group);
            }
            match self.tag()?.1 {
                0 => drop(self.varint()?),
                2 => drop(self.run()?),
                3 => open += 1,
                4 => open -= 1,
                other => self.skip_fixed(other)?,
            }
        }
        Ok(())
    }
}

impl<'a> Payload<'a> {
    pub(super) fn varint(self) -> Result<u64, Fault> {
        match self {
            Self::Varint(value) => Ok(value),
            Self::Bytes(_) | Self::Foreign => Err(Fault::WireType),
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], Fault> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Foreign => Err(Fault::WireType),
        }
    }

    pub(super) fn text(self) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Fault::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u64, Payload<'_>)>, Fault> {
        let mut wire = Wire::new(message);
        std::iter::from_fn(|| wire.next().transpose()).collect()
    }

    #[test]
    fn fields_come_in_the_order_they_lie() {
        assert_eq!(all(b""), Ok(vec![]));
        assert_eq!(
            all(b"\x0a\x02ab\x10\x96\x01"),
            Ok(vec![(1, Payload::Bytes(b"ab")), (2, Payload::Varint(150))])
        );
        assert_eq!(
            all(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            Ok(vec![(1, Payload::Varint(u64::MAX))])
        );
    }

    #[test]
    fn fixed_numbers_and_nested_groups_are_stepped_over() {
        let message = b"\x09\0\0\0\0\0\0\0\0\x15\0\0\0\0\x1b\x23\x08\x01\x0a\x01x\x24\x1c\x20\x07";
        assert_eq!(
            all(message),
            Ok(vec![
                (1, Payload::Foreign),
                (2, Payload::Foreign),
                (3, Payload::Foreign),
                (4, Payload::Varint(7))
            ])
        );
    }

    #[test]
    fn damage_is_told_and_a_claimed_length_is_not_believed() {
        let cases: &[(&[u8], Fault)] = &[
            (b"\x08", Fault::Truncated),
            (b"\x0a\x05abcd", Fault::Truncated),
            (
                b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                Fault::Truncated,
            ),
            (b"\x09\0\0\0", Fault::Truncated),
            (
                b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                Fault::LongVarint,
            ),
            (b"\x00\x01", Fault::FieldNumber),
            (b"\xf8\xff\xff\xff\x7f\x01", Fault::FieldNumber),
            (b"\x0c", Fault::Group),
            (b"\x0b\x08\x01", Fault::Group),
            (b"\x0e\x01", Fault::WireType),
        ];
        for (message, fault) in cases {
            assert_eq!(all(message), Err(*fault), "{message:02x?}");
        }
    }
}
