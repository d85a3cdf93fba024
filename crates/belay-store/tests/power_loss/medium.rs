//! A disk that forgets: what was not synced when the power went may be there, or partly, or not.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

const SECTOR: usize = 512;

/// Small and repeatable; a failing run is repeated with the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }
}

#[derive(Clone)]
enum Op {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
}

/// Called at every sync, before it has any effect, with the power about to go.
type AtSync = Box<dyn FnMut(&Unsynced) + Send>;

#[derive(Default)]
struct Inner {
    /// What is safe.
    synced: Vec<u8>,
    /// What the running system sees.
    seen: Vec<u8>,
    /// What lies between the two, in the order it was issued.
    ops: Vec<Op>,
    at_sync: Option<AtSync>,
}

/// Storage under a store, shared with the test that pulls the plug.
#[derive(Clone, Default)]
pub(crate) struct Medium(Arc<Mutex<Inner>>);

impl Medium {
    /// A disk with this content, all of it safe.
    pub(crate) fn holding(image: Vec<u8>) -> Self {
        let inner = Inner {
            synced: image.clone(),
            seen: image,
            ..Inner::default()
        };
        Medium(Arc::new(Mutex::new(inner)))
    }

    pub(crate) fn at_sync(&self, call: impl FnMut(&Unsynced) + Send + 'static) {
        self.lock().at_sync = Some(Box::new(call));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panics while it holds this")
    }
}

impl fmt::Debug for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Medium")
    }
}

/// What a disk holds for certain and what it may or may not have got.
#[derive(Clone)]
pub(crate) struct Unsynced {
    synced: Vec<u8>,
    ops: Vec<Op>,
}

impl Unsynced {
    /// The disk as the next process finds it when only this one was killed: the system still shows
    /// everything that was written, and still owes the disk what was not synced.
    pub(crate) fn after_kill(&self) -> Medium {
        let mut seen = self.synced.clone();
        for op in &self.ops {
            match op {
                Op::SetLen(length) => seen.resize(*length, 0),
                Op::Write { offset, data } => land(&mut seen, *offset, data, Landing::Whole),
            }
        }
        let inner = Inner {
            synced: self.synced.clone(),
            seen,
            ops: self.ops.clone(),
            at_sync: None,
        };
        Medium(Arc::new(Mutex::new(inner)))
    }

    /// One of the contents that may be found when the power is back.
    ///
    /// A cache writes back what it likes in any order, so any subset of the writes may have
    /// arrived, each whole, or some of its sectors, or cut at any byte. Two writes to one place go
    /// through the same cached page, so the older one never lands on top of the newer one. The
    /// file's length is journaled: it takes its values in order and stops at any of them, and data
    /// beyond it is not there.
    pub(crate) fn survivor(&self, dice: &mut Dice) -> Vec<u8> {
        let lengths = self
            .ops
            .iter()
            .filter(|op| matches!(op, Op::SetLen(_)))
            .count();
        let mut kept_lengths = match dice.below(3) {
            0 => 0,
            1 => lengths,
            _ => dice.below(lengths + 1),
        };
        let percent = [0, 10, 50, 90, 100][dice.below(5)];
        let mut image = self.synced.clone();
        for op in &self.ops {
            match op {
                Op::SetLen(length) if kept_lengths > 0 => {
                    kept_lengths -= 1;
                    image.resize(*length, 0);
                }
                Op::SetLen(_) => {}
                Op::Write { offset, data } if percent == 100 => {
                    land(&mut image, *offset, data, Landing::Whole);
                }
                Op::Write { offset, data } if dice.below(100) < percent => {
                    land(&mut image, *offset, data, Landing::throw(dice));
                }
                Op::Write { .. } => {}
            }
        }
        image
    }
}

/// How much of a write arrives.
enum Landing<'a> {
    Whole,
    SomeSectors(&'a mut Dice),
    CutAnywhere(&'a mut Dice),
}

impl<'a> Landing<'a> {
    fn throw(dice: &'a mut Dice) -> Self {
        match dice.below(4) {
            0 => Landing::SomeSectors(dice),
            1 => Landing::CutAnywhere(dice),
            _ => Landing::Whole,
        }
    }
}

fn land(image: &mut [u8], offset: usize, data: &[u8], landing: Landing<'_>) {
    if offset >= image.len() {
        return;
    }
    let room = (image.len() - offset).min(data.len());
    let data = &data[..room];
    match landing {
        Landing::Whole => image[offset..offset + room].copy_from_slice(data),
        Landing::SomeSectors(dice) => {
            for (number, sector) in data.chunks(SECTOR).enumerate() {
                if dice.below(2) == 0 {
                    let at = offset + number * SECTOR;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        Landing::CutAnywhere(dice) => {
            let cut = dice.below(room + 1);
            image[offset..offset + cut].copy_from_slice(&data[..cut]);
        }
    }
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.lock();
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = inner.seen.get(start..start.saturating_add(out.len()));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inner = self.lock();
        let length = usize::try_from(len).map_err(io::Error::other)?;
        inner.seen.resize(length, 0);
        inner.ops.push(Op::SetLen(length));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.lock();
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let end = offset + data.len();
        if inner.seen.len() < end {
            inner.seen.resize(end, 0);
            inner.ops.push(Op::SetLen(end));
        }
        inner.seen[offset..end].copy_from_slice(data);
        inner.ops.push(Op::Write {
            offset,
            data: data.to_vec(),
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // The call may look at the store that is being synced, so it runs without the lock.
        let (call, unsynced) = {
            let mut inner = self.lock();
            let Some(call) = inner.at_sync.take() else {
                inner.synced = inner.seen.clone();
                inner.ops.clear();
                return Ok(());
            };
            (
                call,
                Unsynced {
                    synced: inner.synced.clone(),
                    ops: inner.ops.clone(),
                },
            )
        };
        let mut call = call;
        call(&unsynced);
        let mut inner = self.lock();
        inner.synced = inner.seen.clone();
        inner.ops.clear();
        inner.at_sync = Some(call);
        Ok(())
    }
}
