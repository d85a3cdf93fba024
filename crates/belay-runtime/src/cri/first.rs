//! Which process is the first of a container, written down for an agent that comes later: it ends
//! containers on time whether the runtime answers it or not.
//!
//! The note is `<dir>/cri/<id>/first`. What it says is checked against the kernel whenever it is
//! used, so it cannot be wrong, only outdated; and it is not synced, because after a power failure
//! no process is what it was.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use belay_action::{ContainerId, Incarnation};
use belay_shim::clock::Wall;
use belay_shim::instance::{self, Durable, Started};
use serde::{Deserialize, Serialize};

use super::container::Container;

const FIRST: &str = "first";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    incarnation: Incarnation,
    pid: i32,
    start_time: u64,
    boot_id: String,
    /// When it was started, in nanoseconds since 1970.
    at: i64,
}

/// Writes it down; blocks.
pub(super) fn write(containers: &Path, incarnation: Incarnation, first: Started) -> io::Result<()> {
    let dir = containers.join(incarnation.id.as_str());
    let note = Note {
        incarnation,
        pid: first.pid,
        start_time: first.start_time,
        boot_id: first.boot_id,
        at: first.at.0,
    };
    let bytes = serde_json::to_vec(&note)?;
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&dir)?;
    instance::write(&dir, FIRST, &bytes, Durable::No)
}

/// The container as it was written down, whether it lives or not; blocks. What cannot be read the
/// runtime is asked for.
pub(super) fn read(containers: &Path, id: &ContainerId) -> Option<Container> {
    let bytes = fs::read(containers.join(id.as_str()).join(FIRST)).ok()?;
    let note: Note = serde_json::from_slice(&bytes).ok()?;
    (note.incarnation.id == *id).then(|| {
        let first = Started {
            pid: note.pid,
            start_time: note.start_time,
            boot_id: note.boot_id,
            at: Wall(note.at),
            deadline: None,
        };
        Container::new(note.incarnation, Some(first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_of_its_own_container_and_rubbish_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let id = |name: &str| ContainerId::new(name).unwrap();
        let incarnation = Incarnation {
            pod_uid: "u".into(),
            container: "c".into(),
            id: id("one"),
        };
        let first = Started {
            pid: 7,
            start_time: 8,
            boot_id: "b".into(),
            at: Wall(9),
            deadline: None,
        };
        write(dir.path(), incarnation.clone(), first.clone()).unwrap();
        let read = |name: &str| read(dir.path(), &id(name));
        let found = read("one").unwrap();
        assert_eq!((found.incarnation, found.first), (incarnation, Some(first)));
        assert!(read("two").is_none());
        fs::create_dir(dir.path().join("two")).unwrap();
        fs::copy(dir.path().join("one/first"), dir.path().join("two/first")).unwrap();
        assert!(read("two").is_none(), "it is another's");
        fs::write(dir.path().join("one/first"), "{").unwrap();
        assert!(read("one").is_none());
    }
}
