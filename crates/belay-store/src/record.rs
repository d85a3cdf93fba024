//! How one write is laid out in the log.
//!
//! ```text
//! kind: 1 byte | created: 8 bytes | key length: 4 bytes | key | value, to the end
//! ```
//!
//! Numbers are little-endian. The revision is the record's key in the log and is not repeated. The
//! engine checksums its pages; decoding still trusts nothing, because a file may have been written
//! by anybody.

use crate::Revision;
use crate::entry::Event;

const KIND: usize = 1;
const CREATED: usize = 8;
const KEY_LENGTH: usize = 4;
const HEAD: usize = KIND + CREATED + KEY_LENGTH;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_SAME: u8 = 3;

/// What a record did to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed<'a> {
    /// The key holds this value from here on.
    Put(&'a [u8]),
    /// The key is gone; this is the last value shown for it.
    Delete(&'a [u8]),
    /// The key is gone; its last value is that of the record before it, and is not stored twice.
    DeleteSame,
}

/// One record, borrowed from whatever it was read from or is about to be written from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) key: &'a str,
    pub(crate) created: Revision,
    pub(crate) deed: Deed<'a>,
}

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("it is {length} bytes long, shorter than any record")]
    Short { length: usize },
    #[error("its kind {kind} is unknown")]
    Kind { kind: u8 },
    #[error("its key is said to have {key} bytes, more than the {length} that follow")]
    KeyLength { key: usize, length: usize },
    #[error("its key is not UTF-8")]
    Key,
    #[error("it says its key was created at {created}, which a write at {revision} cannot know")]
    Created {
        created: Revision,
        revision: Revision,
    },
    #[error("it has {length} bytes of value where none belong")]
    Value { length: usize },
}

impl<'a> Record<'a> {
    /// The record of a write.
    pub(crate) fn of<M>(event: &'a Event<M>) -> Self {
        let value = &event.entry.value;
        let same = || {
            event
                .previous
                .as_ref()
                .is_some_and(|previous| previous.value == *value)
        };
        Record {
            key: &event.entry.key,
            created: event.entry.created,
            deed: match event.deleted {
                false => Deed::Put(value),
                true if same() => Deed::DeleteSame,
                true => Deed::Delete(value),
            },
        }
    }

    /// How many bytes [`Record::write`] fills.
    pub(crate) fn length(&self) -> usize {
        HEAD + self.key.len() + self.value().len()
    }

    fn value(&self) -> &'a [u8] {
        match self.deed {
            Deed::Put(value) | Deed::Delete(value) => value,
            Deed::DeleteSame => &[],
        }
    }

    /// Fills `out`, which is exactly [`Record::length`] long.
    ///
    /// A key longer than 32 bits can count is refused long before it gets here.
    pub(crate) fn write(&self, out: &mut [u8]) {
        let (kind, rest) = out.split_at_mut(KIND);
        let (created, rest) = rest.split_at_mut(CREATED);
        let (key_length, rest) = rest.split_at_mut(KEY_LENGTH);
        let (key, value) = rest.split_at_mut(self.key.len());
        kind.fill(match self.deed {
            Deed::Put(_) => PUT,
            Deed::Delete(_) => DELETE,
            Deed::DeleteSame => DELETE_SAME,
        });
        created.copy_from_slice(&self.created.0.to_le_bytes());
        key_length.copy_from_slice(&(self.key.len() as u32).to_le_bytes());
        key.copy_from_slice(self.key.as_bytes());
        value.copy_from_slice(self.value());
    }

    /// Reads the record stored at `revision`.
    pub(crate) fn read(revision: Revision, bytes: &'a [u8]) -> Result<Self, RecordError> {
        let short = RecordError::Short {
            length: bytes.len(),
        };
        let Some((&[kind], rest)) = bytes.split_first_chunk::<KIND>() else {
            return Err(short);
        };
        let Some((created, rest)) = rest.split_first_chunk::<CREATED>() else {
            return Err(short);
        };
        let Some((length, rest)) = rest.split_first_chunk::<KEY_LENGTH>() else {
            return Err(short);
        };
        let key_length = u32::from_le_bytes(*length) as usize;
        let Some((key, value)) = rest.split_at_checked(key_length) else {
            return Err(RecordError::KeyLength {
                key: key_length,
                length: rest.len(),
            });
        };
        let key = std::str::from_utf8(key).map_err(|_| RecordError::Key)?;
        let created = Revision(u64::from_le_bytes(*created));
        let deed = match kind {
            PUT => Deed::Put(value),
            DELETE => Deed::Delete(value),
            DELETE_SAME if value.is_empty() => Deed::DeleteSame,
            DELETE_SAME => {
                return Err(RecordError::Value {
                    length: value.len(),
                });
            }
            kind => return Err(RecordError::Kind { kind }),
        };
        let possible = match deed {
            Deed::Put(_) => created <= revision,
            Deed::Delete(_) | Deed::DeleteSame => created < revision,
        };
        if !possible || created <= Revision::FIRST {
            return Err(RecordError::Created { created, revision });
        }
        Ok(Record { key, created, deed })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = vec![0xAA; record.length()];
        record.write(&mut bytes);
        bytes
    }

    #[test]
    fn a_shortened_record_never_reads_as_another_key() {
        let record = Record {
            key: "pods/a/b",
            created: Revision(3),
            deed: Deed::DeleteSame,
        };
        let bytes = written(&record);
        for length in 0..bytes.len() {
            assert!(
                Record::read(Revision(9), &bytes[..length]).is_err(),
                "{length}"
            );
        }
    }

    #[test]
    fn a_creation_that_lies_in_the_future_is_refused() {
        let record = Record {
            key: "a",
            created: Revision(9),
            deed: Deed::Put(b"v"),
        };
        assert_eq!(
            Record::read(Revision(8), &written(&record)),
            Err(RecordError::Created {
                created: Revision(9),
                revision: Revision(8)
            })
        );
        assert!(Record::read(Revision(9), &written(&record)).is_ok());
    }

    #[test]
    fn a_deletion_cannot_create_the_key_it_deletes() {
        let record = Record {
            key: "a",
            created: Revision(9),
            deed: Deed::DeleteSame,
        };
        assert!(Record::read(Revision(9), &written(&record)).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            key in ".{0,40}",
            value in proptest::collection::vec(any::<u8>(), 0..200),
            created in 2_u64..1000,
            later in 1_u64..1000,
            kind in 0..3,
        ) {
            let deed = match kind {
                0 => Deed::Put(&value[..]),
                1 => Deed::Delete(&value[..]),
                _ => Deed::DeleteSame,
            };
            let record = Record { key: &key, created: Revision(created), deed };
            let bytes = written(&record);
            prop_assert_eq!(Record::read(Revision(created + later), &bytes), Ok(record));
        }

        #[test]
        fn rubbish_is_an_error_or_reads_back_the_same(
            revision in any::<u64>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            if let Ok(record) = Record::read(Revision(revision), &bytes) {
                prop_assert_eq!(written(&record), bytes);
            }
        }

        #[test]
        fn a_flipped_bit_never_makes_reading_panic(at in 0_usize..40, bit in 0..8) {
            let record = Record { key: "pods/default/web", created: Revision(5), deed: Deed::Put(b"{}") };
            let mut bytes = written(&record);
            let at = at % bytes.len();
            bytes[at] ^= 1_u8 << bit;
            let _ = Record::read(Revision(7), &bytes);
        }
    }
}
