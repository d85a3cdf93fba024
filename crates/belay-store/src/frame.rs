//! The first page of a store's file, which is ours; the engine's pages follow it.
//!
//! ```text
//! byte    0  magic, format version            written when the file is made or brought up to date
//! byte  512  acknowledged mark, slot 0  \     written in turn, after a group is on disk
//! byte 1024  acknowledged mark, slot 1  /     and before anybody is told
//! byte 4096  the engine's own file
//! ```
//!
//! **Why a mark.** The engine commits with one sync and finds out by checksums whether the last
//! commit before a crash is whole; if it is not, it silently goes back to the one before. That is
//! right for a torn write, which nobody was told of, and wrong for a page that went bad after the
//! write was acknowledged. The mark tells the two apart: it is written only after the sync came
//! back, so it never runs ahead of what is safe, and a file that opens behind its mark has lost
//! something. It needs no sync of its own: the next group's takes it along, and after a kill the
//! page cache still has it.
//!
//! Every number stands beside its complement, and the marks in sectors of their own, so a torn or
//! flipped mark is seen as one and the other slot still holds.

use std::io;
use std::ops::Bound;
use std::sync::Arc;

use redb::{BackendError, StorageBackend};

use crate::Revision;

/// The layout this program writes, and the newest it reads. Version 1 had all records in one table;
/// it is read as it is, and becomes version 2 with that.
pub(crate) const FORMAT_VERSION: u32 = 2;

const PAGE: u64 = 4096;
// The line ends and the control character show a transfer that rewrote text.
const MAGIC: &[u8; 16] = b"belay-store\r\n\x1a\n\0";
const VERSION_AT: u64 = 16;
const MARKS_AT: [u64; 2] = [512, 1024];

/// Why a first page cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("no store begins like this")]
    Foreign,
    #[error("format version {0}")]
    Newer(u32),
    #[error("{0}")]
    Damaged(&'static str),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The storage under a store, seen by the engine without our page in front.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    inner: Arc<dyn StorageBackend>,
}

impl Frame {
    /// Puts the first page into empty storage, and onto the disk.
    pub(crate) fn create(inner: Arc<dyn StorageBackend>) -> io::Result<Self> {
        let frame = Frame { inner };
        frame.inner.set_len(PAGE)?;
        frame.inner.write(0, MAGIC)?;
        frame
            .inner
            .write(VERSION_AT, &doubled(FORMAT_VERSION.to_le_bytes()))?;
        for at in MARKS_AT {
            frame
                .inner
                .write(at, &doubled(Revision::FIRST.0.to_le_bytes()))?;
        }
        frame.inner.sync_data()?;
        Ok(frame)
    }

    /// Recognises storage that holds a store of a format we read.
    pub(crate) fn open(inner: Arc<dyn StorageBackend>) -> Result<Self, FrameError> {
        let frame = Frame { inner };
        let length = frame.inner.len()?;
        if length == 0 {
            return Err(FrameError::Damaged("the file is empty"));
        }
        let mut magic = [0; MAGIC.len()];
        let readable = magic
            .len()
            .min(usize::try_from(length).unwrap_or(usize::MAX));
        frame.inner.read(0, &mut magic[..readable])?;
        if magic[..readable] != MAGIC[..readable] {
            return Err(FrameError::Foreign);
        }
        if length <= PAGE {
            return Err(FrameError::Damaged("the file ends within its first page"));
        }
        match frame.number(VERSION_AT)?.map(u32::from_le_bytes) {
            None | Some(0) => Err(FrameError::Damaged("its format version is unreadable")),
            Some(version) if version > FORMAT_VERSION => Err(FrameError::Newer(version)),
            Some(_) => Ok(frame),
        }
    }

    /// The marks as they stand. To be read only once the engine holds its lock on the storage.
    pub(crate) fn marks(&self) -> Result<Marks, FrameError> {
        let mut slots = [None; 2];
        for (slot, at) in slots.iter_mut().zip(MARKS_AT) {
            *slot = self.number(at)?.map(u64::from_le_bytes).map(Revision);
        }
        let [first, second] = slots;
        let Some(acknowledged) = first.max(second) else {
            return Err(FrameError::Damaged(
                "both of its acknowledged marks are unreadable",
            ));
        };
        // The older or unreadable one is overwritten next, so one good mark is there at any time.
        let next = usize::from(first > second);
        Ok(Marks {
            frame: self.clone(),
            acknowledged,
            next,
        })
    }

    fn number<const N: usize>(&self, at: u64) -> io::Result<Option<[u8; N]>> {
        let mut number = [0; N];
        let mut complement = [0; N];
        self.inner.read(at, &mut number)?;
        self.inner.read(at + N as u64, &mut complement)?;
        Ok((number.map(|byte| !byte) == complement).then_some(number))
    }
}

fn doubled<const N: usize>(number: [u8; N]) -> Vec<u8> {
    [number, number.map(|byte| !byte)].concat()
}

/// The acknowledged marks of an open store.
#[derive(Debug)]
pub(crate) struct Marks {
    frame: Frame,
    acknowledged: Revision,
    next: usize,
}

impl Marks {
    /// The newest revision anybody may have been told of, as far as the file knows.
    pub(crate) fn acknowledged(&self) -> Revision {
        self.acknowledged
    }

    /// Says in a file of an older format that it is read by newer programs only.
    pub(crate) fn stamp(&self) -> io::Result<()> {
        let current = FORMAT_VERSION.to_le_bytes();
        match self.frame.number(VERSION_AT)? {
            Some(version) if version == current => Ok(()),
            _ => self.frame.inner.write(VERSION_AT, &doubled(current)),
        }
    }

    /// Makes everything written to the storage so far safe, whoever wrote it.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.frame.inner.sync_data()
    }

    /// Notes that everything up to `revision` is on disk. Only true marks may be made.
    pub(crate) fn acknowledge(&mut self, revision: Revision) -> io::Result<()> {
        self.frame
            .inner
            .write(MARKS_AT[self.next], &doubled(revision.0.to_le_bytes()))?;
        self.next = 1 - self.next;
        self.acknowledged = revision;
        Ok(())
    }
}

impl StorageBackend for Frame {
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner.len()?.saturating_sub(PAGE))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        // A damaged file can name pages far outside of itself. The engine sizes its buffer by what
        // it was told, so the bound is checked here, before anything is touched.
        let end = offset.saturating_add(out.len() as u64);
        if end > self.len()? {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "{} bytes at {offset} lie beyond the end of the file",
                    out.len()
                ),
            ));
        }
        self.inner.read(PAGE + offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(PAGE + len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(PAGE + offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    fn made() -> Arc<InMemoryBackend> {
        let storage = Arc::new(InMemoryBackend::new());
        let frame = Frame::create(storage.clone()).expect("create");
        frame.set_len(PAGE).expect("room for the engine");
        storage
    }

    #[test]
    fn marks_alternate_and_the_newest_counts() {
        let storage = made();
        let mut marks = Frame::open(storage.clone())
            .expect("open")
            .marks()
            .expect("marks");
        assert_eq!(marks.acknowledged(), Revision::FIRST);
        for revision in 2..6 {
            marks.acknowledge(Revision(revision)).expect("mark");
            let again = Frame::open(storage.clone())
                .expect("open")
                .marks()
                .expect("marks");
            assert_eq!(again.acknowledged(), Revision(revision));
            assert_eq!(
                again.next, marks.next,
                "the newest mark is never the one overwritten"
            );
        }
    }

    #[test]
    fn a_torn_mark_leaves_the_other_one() {
        let storage = made();
        let mut marks = Frame::open(storage.clone())
            .expect("open")
            .marks()
            .expect("marks");
        marks.acknowledge(Revision(7)).expect("mark");
        marks.acknowledge(Revision(9)).expect("mark");
        let torn = MARKS_AT[1 - marks.next];
        storage.write(torn, &[0xFF; 3]).expect("tear");
        let mut marks = Frame::open(storage.clone())
            .expect("open")
            .marks()
            .expect("marks");
        assert_eq!(marks.acknowledged(), Revision(7));
        marks.acknowledge(Revision(10)).expect("mark");
        let marks = Frame::open(storage).expect("open").marks().expect("marks");
        assert_eq!(
            marks.acknowledged(),
            Revision(10),
            "the torn slot was used again"
        );
    }

    #[test]
    fn two_unreadable_marks_are_damage() {
        let storage = made();
        for at in MARKS_AT {
            storage.write(at, &[0x55]).expect("flip");
        }
        let marks = Frame::open(storage).expect("open").marks();
        assert!(matches!(marks, Err(FrameError::Damaged(_))), "{marks:?}");
    }

    #[test]
    fn every_flipped_bit_of_magic_and_version_is_noticed() {
        for at in 0..VERSION_AT + 8 {
            for bit in 0..8 {
                let storage = made();
                let mut byte = [0];
                storage.read(at, &mut byte).expect("read");
                storage.write(at, &[byte[0] ^ (1 << bit)]).expect("flip");
                let opened = Frame::open(storage);
                let told = match at < VERSION_AT {
                    true => matches!(opened, Err(FrameError::Foreign)),
                    false => matches!(opened, Err(FrameError::Damaged(_))),
                };
                assert!(told, "byte {at} bit {bit}: {opened:?}");
            }
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let storage = made();
        storage
            .write(VERSION_AT, &doubled(3_u32.to_le_bytes()))
            .expect("bump");
        assert!(matches!(Frame::open(storage), Err(FrameError::Newer(3))));
    }

    #[test]
    fn an_older_version_is_read_and_brought_up_to_date() {
        let storage = made();
        storage
            .write(VERSION_AT, &doubled(1_u32.to_le_bytes()))
            .expect("an old file");
        let frame = Frame::open(storage).expect("open");
        frame.marks().expect("marks").stamp().expect("stamp");
        let version = frame.number(VERSION_AT).expect("read");
        assert_eq!(version.map(u32::from_le_bytes), Some(FORMAT_VERSION));
    }

    #[test]
    fn a_file_cut_within_the_first_page_is_no_new_store() {
        for length in [0, 1, 15, 16, 23, 24, 600, PAGE] {
            let storage = made();
            storage.set_len(length).expect("cut");
            let opened = Frame::open(storage);
            assert!(
                matches!(opened, Err(FrameError::Damaged(_))),
                "{length}: {opened:?}"
            );
        }
    }
}
