//! The tables of the log: which of them holds a record.
//!
//! ```text
//! "log"                    all records of a file of format 1, which gets no new ones
//! "log.0000000000000000"   revisions 0 to 4095
//! "log.0000000000000001"   revisions 4096 to 8191, and so on
//! ```
//!
//! A commit writes every page on the way from a new record to the root of its tree, and each of
//! them is a request of its own to the disk. In one tree for all records that way becomes longer
//! the more a store holds, and every write pays for it. So the log is cut into parts, a table
//! each: what is added lands in the newest, which is never deep.

use std::cmp::Ordering;

use redb::{
    ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle,
    WriteTransaction,
};

use crate::Revision;
use crate::record::Record;

type Definition<'a> = TableDefinition<'a, u64, &'static [u8]>;

/// The one table of format 1.
const SINGLE: &str = "log";
const PREFIX: &str = "log.";
/// How many revisions share a part. As many records of the size of an object make a tree whose way
/// is as long as that of a few hundred, and the list of parts stays short.
const PART: u64 = 4096;

/// Which table holds a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Single,
    Part(u64),
}

impl Place {
    fn name(self) -> String {
        match self {
            Place::Single => SINGLE.to_owned(),
            Place::Part(part) => format!("{PREFIX}{part:016x}"),
        }
    }

    /// The inverse of [`Place::name`]; `None` for a table that is no part of the log.
    fn named(name: &str) -> Option<Self> {
        if name == SINGLE {
            return Some(Place::Single);
        }
        let part = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
        Some(Place::Part(part))
    }

    fn of_new(revision: Revision) -> Self {
        Place::Part(revision.0 / PART)
    }
}

/// What has to be known of a file to find its records.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The newest revision in the single table, of a file that has it.
    single: Option<Revision>,
}

impl Log {
    /// Reads all records, in the order of revisions.
    pub(crate) fn read<E: From<redb::Error>>(
        read: &ReadTransaction,
        mut each: impl FnMut(Revision, &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut places: Vec<_> = read
            .list_tables()
            .map_err(redb::Error::from)?
            .filter_map(|table| Place::named(table.name()))
            .collect();
        places.sort_unstable();
        let mut log = Log::default();
        for place in places {
            let name = place.name();
            let table = read
                .open_table(Definition::new(&name))
                .map_err(redb::Error::from)?;
            for row in table.iter().map_err(redb::Error::from)? {
                let (revision, bytes) = row.map_err(redb::Error::from)?;
                let revision = Revision(revision.value());
                each(revision, bytes.value())?;
                if place == Place::Single {
                    log.single = Some(revision);
                }
            }
        }
        Ok(log)
    }

    /// Adds records, which come in the order of revisions.
    pub(crate) fn append<'a>(
        write: &WriteTransaction,
        records: impl Iterator<Item = (Revision, Record<'a>)>,
    ) -> Result<(), redb::Error> {
        let mut records = records.peekable();
        while let Some((first, _)) = records.peek() {
            let place = Place::of_new(*first);
            let name = place.name();
            let mut table = write.open_table(Definition::new(&name))?;
            while let Some((revision, record)) =
                records.next_if(|(revision, _)| Place::of_new(*revision) == place)
            {
                let mut room = table.insert_reserve(revision.0, record.length())?;
                record.write(room.as_mut());
            }
        }
        Ok(())
    }

    /// Removes records, and with its last one a part.
    pub(crate) fn remove(
        &self,
        write: &WriteTransaction,
        revisions: &[Revision],
    ) -> Result<(), redb::Error> {
        let mut revisions = revisions.to_vec();
        revisions.sort_unstable();
        let together = |one: &Revision, other: &Revision| self.place(*one) == self.place(*other);
        for revisions in revisions.chunk_by(together) {
            let name = self.place(revisions[0]).name();
            let mut table = write.open_table(Definition::new(&name))?;
            for revision in revisions {
                table.remove(revision.0)?;
            }
            let empty = table.is_empty()?;
            drop(table);
            if empty {
                write.delete_table(Definition::new(&name))?;
            }
        }
        Ok(())
    }

    fn place(&self, revision: Revision) -> Place {
        match Some(revision).cmp(&self.single) {
            Ordering::Less | Ordering::Equal => Place::Single,
            Ordering::Greater => Place::of_new(revision),
        }
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;
    use redb::{Database, ReadableDatabase};

    use super::*;
    use crate::record::Deed;

    fn database() -> Database {
        Database::builder()
            .create_with_backend(InMemoryBackend::new())
            .expect("a database")
    }

    fn put(revision: u64) -> (Revision, Record<'static>) {
        let record = Record {
            key: "a",
            created: Revision(2),
            deed: Deed::Put(b"value"),
        };
        (Revision(revision), record)
    }

    fn append(database: &Database, revisions: impl Iterator<Item = u64>) {
        let write = database.begin_write().expect("begin");
        Log::append(&write, revisions.map(put)).expect("append");
        write.commit().expect("commit");
    }

    fn remove(database: &Database, log: &Log, revisions: impl Iterator<Item = u64>) {
        let write = database.begin_write().expect("begin");
        let revisions: Vec<_> = revisions.map(Revision).collect();
        log.remove(&write, &revisions).expect("remove");
        write.commit().expect("commit");
    }

    fn read(database: &Database) -> (Log, Vec<u64>) {
        let mut found = Vec::new();
        let read = database.begin_read().expect("begin");
        let log = Log::read(&read, |revision, bytes| {
            let record = Record::read(revision, bytes).expect("a record");
            assert_eq!(record.deed, Deed::Put(b"value"));
            found.push(revision.0);
            Ok::<_, redb::Error>(())
        });
        (log.expect("a log"), found)
    }

    fn tables(database: &Database) -> Vec<String> {
        let read = database.begin_read().expect("begin");
        let tables = read.list_tables().expect("tables");
        let mut names: Vec<_> = tables.map(|table| table.name().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_group_may_lie_across_parts_and_comes_back_in_order() {
        let database = database();
        append(&database, 2..PART - 1);
        append(&database, PART - 1..3 * PART + 1);
        let (_, found) = read(&database);
        assert_eq!(found, (2..3 * PART + 1).collect::<Vec<_>>());
        assert_eq!(tables(&database).len(), 4);
    }

    #[test]
    fn parts_are_read_in_the_order_of_their_revisions_however_many_there_are() {
        let database = database();
        let revisions: Vec<_> = (0..300).map(|part| part * PART + 7).collect();
        append(&database, revisions.iter().copied());
        assert_eq!(read(&database).1, revisions);
    }

    #[test]
    fn a_part_without_records_is_gone_and_the_newest_may_come_back() {
        let database = database();
        append(&database, 2..PART + 2);
        let (log, _) = read(&database);
        remove(&database, &log, (2..PART + 2).rev());
        assert_eq!(tables(&database), Vec::<String>::new());
        append(&database, PART + 2..PART + 3);
        assert_eq!(read(&database).1, [PART + 2]);
    }

    #[test]
    fn a_file_of_format_1_keeps_its_records_until_they_are_removed() {
        let database = database();
        let write = database.begin_write().expect("begin");
        let mut single = write.open_table(Definition::new(SINGLE)).expect("table");
        for (revision, record) in (2..10).map(put) {
            let mut bytes = vec![0; record.length()];
            record.write(&mut bytes);
            single
                .insert(revision.0, bytes.as_slice())
                .expect("a record");
        }
        drop(single);
        write.commit().expect("commit");

        append(&database, 10..13);
        let (log, found) = read(&database);
        assert_eq!(found, (2..13).collect::<Vec<_>>());
        remove(&database, &log, [11, 3, 9].into_iter());
        assert_eq!(read(&database).1, [2, 4, 5, 6, 7, 8, 10, 12]);
        remove(&database, &log, [2, 4, 5, 6, 7, 8].into_iter());
        assert_eq!(tables(&database), ["log.0000000000000000"]);
    }
}
