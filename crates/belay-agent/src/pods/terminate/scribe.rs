//! Keeps the journal's copy of one termination up to date.

use belay_core::termination::Record;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::journal::Journal;
use crate::pods::hook::PAUSE;

/// What the journal is to hold.
#[derive(Clone)]
enum Entry {
    /// What it holds.
    AsItIs,
    Record(Record),
    Nothing,
}

/// Writes the records of one entry of the journal in their order; one that is outdated before its
/// turn comes is left out. There is one for an entry as long as anybody writes there: what is given
/// later is never overtaken.
pub(super) struct Scribe {
    /// What was given last, and its number.
    newest: watch::Sender<(u64, Entry)>,
    /// The number up to which all is on disk, or was refused once.
    settled: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Scribe {
    /// Begins to write of a pod; `container` for the termination of a single one.
    pub(super) fn new(journal: Journal, uid: String, container: Option<String>) -> Self {
        let (newest, given) = watch::channel((0, Entry::AsItIs));
        let (done, settled) = watch::channel(0);
        let task = tokio::spawn(write(journal, uid, container, given, done));
        Scribe {
            newest,
            settled,
            task,
        }
    }

    /// Makes the journal say this.
    pub(super) fn write(&self, record: Record) {
        self.give(Entry::Record(record));
    }

    /// Makes the journal forget it.
    pub(super) fn forget(&self) {
        self.give(Entry::Nothing);
    }

    fn give(&self, entry: Entry) {
        self.newest.send_modify(|(number, newest)| {
            *number += 1;
            *newest = entry;
        });
    }

    /// Returns when everything given so far is on disk, or was refused.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let number = self.newest.borrow().0;
        let mut settled = self.settled.clone();
        async move {
            // A writer that has ended settles nothing any more.
            let _ = settled.wait_for(|settled| *settled >= number).await;
        }
    }

    /// Ends when everything given is on disk, or was refused.
    pub(super) async fn close(self) {
        drop(self.newest);
        // It does not panic; if it did, there would be nothing to wait for.
        let _ = self.task.await;
    }
}

async fn write(
    journal: Journal,
    uid: String,
    container: Option<String>,
    mut given: watch::Receiver<(u64, Entry)>,
    done: watch::Sender<u64>,
) {
    let mut pause = PAUSE.0;
    while given.changed().await.is_ok() {
        loop {
            let (number, entry) = given.borrow_and_update().clone();
            let record = match entry {
                Entry::AsItIs => break,
                Entry::Record(record) => record,
                Entry::Nothing => {
                    journal.forget_stop(&uid, container.as_deref()).await;
                    done.send_replace(number);
                    break;
                }
            };
            let put = journal.put_stop(container.as_deref(), &record).await;
            done.send_replace(number);
            let Err(error) = put else {
                pause = PAUSE.0;
                break;
            };
            warn!(pod = record.pod_uid, %error, "a termination could not be journalled; it goes on");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = given.changed() => if changed.is_err() { return },
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_core::termination::Cause;

    fn record(began: i64) -> Record {
        Record {
            pod_uid: "p".into(),
            pod_name: (String::new(), String::new()),
            boot_id: "b".into(),
            cause: Cause::PodDeleted,
            began,
            legs: Vec::new(),
            counted: [].into(),
        }
    }

    #[tokio::test]
    async fn the_newest_record_is_the_one_that_stays() {
        let journal = Journal::in_memory();
        let scribe = Scribe::new(journal.clone(), "p".to_owned(), None);
        scribe.settled().await;
        for began in 0..50 {
            scribe.write(record(began));
        }
        scribe.settled().await;
        assert_eq!(journal.stop("p"), Some(record(49)));
        scribe.forget();
        scribe.write(record(50));
        scribe.settled().await;
        assert_eq!(journal.stop("p"), Some(record(50)));
        scribe.write(record(51));
        scribe.forget();
        scribe.close().await;
        assert_eq!(journal.stop("p"), None, "closing loses nothing");
    }
}
