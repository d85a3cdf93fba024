//! The one format of everything a shim reads and writes: files and messages alike.
//!
//! ```text
//!   belay-shim/1 NUL kind NUL key=value NUL ... NUL end=<length of body> NUL body
//! ```
//!
//! A record says where it ends, so a torn file is recognised. Fields may repeat and keep their
//! order; the body takes bytes of any value. Fields a reader does not know are left alone: that
//! is how version 1 grows. What a reader must not misunderstand gets a new version.

use std::fmt;
use std::io::{self, Read, Write};

/// Names the format and its version; the first field of every record.
pub const VERSION: &str = "belay-shim/1";
/// A message longer than this is not one of ours. An exit record is at most some 8 KiB.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// One record: what it is, its fields in order, and raw bytes at the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    pub kind: String,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// Why some bytes are not a record, or not the one that was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordError {
    /// It does not begin as any version of the format does.
    Foreign,
    /// It is of a version this program does not know.
    Version { found: String },
    /// It ends too early, or goes on after its end.
    Torn,
    /// A field cannot be what its name says.
    Field { field: String },
    /// A record of another kind stands where `expected` should.
    Kind {
        expected: &'static str,
        found: String,
    },
    /// A value to be written contains a NUL byte.
    Nul { field: String },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Foreign => write!(f, "not a {VERSION} record"),
            RecordError::Version { found } => {
                write!(f, "format {found:?} is not known here; this is {VERSION}")
            }
            RecordError::Torn => write!(f, "the record is torn"),
            RecordError::Field { field } => write!(f, "field {field:?} is missing or malformed"),
            RecordError::Kind { expected, found } => {
                write!(
                    f,
                    "found a record of kind {found:?} instead of {expected:?}"
                )
            }
            RecordError::Nul { field } => write!(f, "field {field:?} contains a NUL byte"),
        }
    }
}

impl std::error::Error for RecordError {}

impl Record {
    pub fn new(kind: &str) -> Self {
        Record {
            kind: kind.to_owned(),
            ..Record::default()
        }
    }

    /// Adds a field; builder style, because records are made in one go.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.fields.push((key.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Adds a field holding a number.
    #[must_use]
    pub fn with_number(self, key: &str, value: impl Into<i64>) -> Self {
        let value: i64 = value.into();
        self.with(key, value.to_string())
    }

    /// The first field of that name.
    pub fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.all(key).next()
    }

    /// Every field of that name, in order.
    pub fn all<'a, 'k>(&'a self, key: &'k str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'k> {
        self.fields
            .iter()
            .filter(move |(name, _)| name == key)
            .map(|(_, value)| value.as_slice())
    }

    /// The first field of that name, as text.
    pub fn text(&self, key: &str) -> Result<&str, RecordError> {
        self.bytes(key)
            .and_then(|value| std::str::from_utf8(value).ok())
            .ok_or_else(|| RecordError::Field {
                field: key.to_owned(),
            })
    }

    /// The first field of that name, as a number.
    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T, RecordError> {
        self.text(key)?.parse().map_err(|_| RecordError::Field {
            field: key.to_owned(),
        })
    }

    /// As [`Record::number`], for a field that may be left out.
    pub fn optional_number<T: std::str::FromStr>(
        &self,
        key: &str,
    ) -> Result<Option<T>, RecordError> {
        self.bytes(key).map(|_| self.number(key)).transpose()
    }

    /// Refuses a record of another kind.
    pub fn expect(&self, kind: &'static str) -> Result<&Self, RecordError> {
        if self.kind == kind {
            return Ok(self);
        }
        Err(RecordError::Kind {
            expected: kind,
            found: self.kind.clone(),
        })
    }

    /// The record as bytes.
    ///
    /// # Errors
    ///
    /// [`RecordError::Nul`] when a field cannot be written in this format, [`RecordError::Field`]
    /// when a key would be misread.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let mut out = Vec::with_capacity(64 + self.body.len());
        let mut put = |name: &str, value: &[u8]| {
            if value.contains(&0) {
                return Err(RecordError::Nul {
                    field: name.to_owned(),
                });
            }
            out.extend_from_slice(value);
            out.push(0);
            Ok(())
        };
        put("version", VERSION.as_bytes())?;
        put("kind", self.kind.as_bytes())?;
        for (key, value) in &self.fields {
            if key.is_empty() || key == "end" || key.contains('=') {
                return Err(RecordError::Field { field: key.clone() });
            }
            let mut field = Vec::with_capacity(key.len() + 1 + value.len());
            field.extend_from_slice(key.as_bytes());
            field.push(b'=');
            field.extend_from_slice(value);
            put(key, &field)?;
        }
        put("end", format!("end={}", self.body.len()).as_bytes())?;
        out.extend_from_slice(&self.body);
        Ok(out)
    }

    /// Reads a record back; any bytes are allowed to be given.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut rest = bytes;
        let mut next = || -> Result<&[u8], RecordError> {
            let end = rest
                .iter()
                .position(|byte| *byte == 0)
                .ok_or(RecordError::Torn)?;
            let field = &rest[..end];
            rest = &rest[end + 1..];
            Ok(field)
        };
        let family = VERSION
            .as_bytes()
            .split(|byte| *byte == b'/')
            .next()
            .unwrap_or_default();
        if !bytes.starts_with(family) {
            let torn = !bytes.is_empty() && family.starts_with(bytes);
            return Err(if torn || bytes.is_empty() {
                RecordError::Torn
            } else {
                RecordError::Foreign
            });
        }
        let version = next()?;
        if version != VERSION.as_bytes() {
            let found = String::from_utf8_lossy(&version[..version.len().min(64)]).into_owned();
            return Err(RecordError::Version { found });
        }
        let kind = text(next()?, "kind")?;
        let mut fields = Vec::new();
        loop {
            let field = next()?;
            let at =
                field
                    .iter()
                    .position(|byte| *byte == b'=')
                    .ok_or_else(|| RecordError::Field {
                        field: preview(field),
                    })?;
            let key = text(&field[..at], "key")?;
            let value = &field[at + 1..];
            if key == "end" {
                let length: usize = std::str::from_utf8(value)
                    .ok()
                    .and_then(|value| value.parse().ok())
                    .ok_or_else(|| RecordError::Field {
                        field: "end".to_owned(),
                    })?;
                if length != rest.len() {
                    return Err(RecordError::Torn);
                }
                return Ok(Record {
                    kind,
                    fields,
                    body: rest.to_vec(),
                });
            }
            if key.is_empty() {
                return Err(RecordError::Field {
                    field: preview(field),
                });
            }
            fields.push((key, value.to_vec()));
        }
    }

    /// The record as a message: its length (four bytes, little endian), then itself.
    pub fn frame(&self) -> Result<Vec<u8>, RecordError> {
        let record = self.encode()?;
        let length = u32::try_from(record.len())
            .ok()
            .filter(|length| *length as usize <= MAX_MESSAGE)
            .ok_or(RecordError::Torn)?;
        let mut out = length.to_le_bytes().to_vec();
        out.extend_from_slice(&record);
        Ok(out)
    }

    /// Writes the record as one message.
    pub fn send(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&self.frame().map_err(io::Error::other)?)
    }

    /// Reads one message.
    pub fn receive(from: &mut dyn Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = frame_length(length)?;
        let mut record = vec![0; length];
        from.read_exact(&mut record)?;
        Record::parse(&record).map_err(io::Error::other)
    }
}

/// The length a message claims to have, refused when it cannot be one.
pub fn frame_length(prefix: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(prefix) as usize;
    if length > MAX_MESSAGE {
        return Err(io::Error::other(format!(
            "a message of {length} bytes is not a shim's"
        )));
    }
    Ok(length)
}

/// Cuts the first whole message off the front of what has arrived.
pub fn take_message(incoming: &mut Vec<u8>) -> io::Result<Option<Record>> {
    let Some((prefix, rest)) = incoming.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = frame_length(*prefix)?;
    let Some(message) = rest.get(..length) else {
        return Ok(None);
    };
    let message = Record::parse(message).map_err(io::Error::other)?;
    incoming.drain(..4 + length);
    Ok(Some(message))
}

fn text(bytes: &[u8], what: &str) -> Result<String, RecordError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| RecordError::Field {
            field: what.to_owned(),
        })
}

fn preview(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(32)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Record {
        Record::new("exit")
            .with("how", "exited")
            .with_number("code", 3)
            .with("survivor", "")
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let mut record = sample();
        record.body = b"out\0put".to_vec();
        assert_eq!(Record::parse(&record.encode().unwrap()), Ok(record));
    }

    #[test]
    fn every_cut_of_a_record_is_recognised() {
        let mut record = sample();
        record.body = b"tail".to_vec();
        let bytes = record.encode().unwrap();
        for end in 0..bytes.len() {
            assert_eq!(
                Record::parse(&bytes[..end]),
                Err(RecordError::Torn),
                "cut at {end}"
            );
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let error = Record::parse(b"belay-shim/2\0exit\0end=0\0").unwrap_err();
        assert_eq!(
            error,
            RecordError::Version {
                found: "belay-shim/2".to_owned()
            }
        );
    }

    #[test]
    fn a_nul_in_a_field_is_refused_and_in_the_body_kept() {
        let record = Record::new("spec").with("arg", b"a\0b");
        assert_eq!(
            record.encode(),
            Err(RecordError::Nul {
                field: "arg".to_owned()
            })
        );
    }

    #[test]
    fn a_message_that_claims_to_be_huge_is_refused_before_it_is_read() {
        let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        assert!(Record::receive(&mut bytes).is_err());
    }

    proptest! {
        #[test]
        fn rubbish_is_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = Record::parse(&bytes);
            let _ = Record::receive(&mut bytes.as_slice());
        }

        #[test]
        fn rubbish_after_a_good_start_is_an_error_and_never_a_panic(
            bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(b'='), any::<u8>()], 0..256)
        ) {
            let mut all = b"belay-shim/1\0".to_vec();
            all.extend_from_slice(&bytes);
            let _ = Record::parse(&all);
        }

        #[test]
        fn what_can_be_written_reads_back(
            kind in "[a-z-]{1,12}",
            fields in proptest::collection::vec(
                ("[a-z-]{1,8}", proptest::collection::vec(1u8.., 0..40)), 0..8),
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assume!(fields.iter().all(|(key, _)| key != "end"));
            let record = Record { kind, fields, body };
            let mut frame = record.frame().unwrap();
            prop_assert_eq!(Record::parse(&frame.split_off(4)), Ok(record));
        }
    }
}
