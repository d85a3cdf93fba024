//! What a durable write costs here: one writer, 32 writers, and a bare synced append beside them.
//!
//! ```text
//! cargo run --release -p belay-store --example measure -- [DIRECTORY] [SECONDS]
//! ```
//!
//! The directory decides which disk is measured; it is left as it was found.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use belay_store::{Expect, Options, Store, WatchItem, Write};
use bytes::Bytes;
use tokio::sync::mpsc;

const VALUE: [u8; 2048] = [b'x'; 2048];
const KEYS: usize = 1000;
const ROUNDS: u32 = 10;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let span = Duration::from_secs_f64(arguments.next().map_or(Ok(3.0), |text| text.parse())?);
    let dir = tempfile::tempdir_in(parent)?;
    println!(
        "values of {} bytes, {span:?} each, in {ROUNDS} turns",
        VALUE.len()
    );

    let runtime = tokio::runtime::Runtime::new()?;
    let path = dir.path().join("store");
    let store = Store::open(&path, options())?;
    let mut appended = File::create(dir.path().join("appended"))?;
    let mut runs: [Run; 5] = Default::default();
    // In turns, so that all of them meet the same disk on a machine that others use as well.
    for _ in 0..ROUNDS {
        let turn = span / ROUNDS;
        runs[0] += appends(&mut appended, turn)?;
        runs[1] += runtime.block_on(puts(&store, 1, turn))?;
        runs[2] += runtime.block_on(puts(&store, 32, turn))?;
        runs[3] += runtime.block_on(events(&store, 0, turn))?;
        runs[4] += runtime.block_on(events(&store, 100, turn))?;
    }
    let names = [
        "bare append + fdatasync",
        "durable puts, 1 writer",
        "durable puts, 32 writers",
        "put to event, 1 watcher",
        "put to event, 101 watchers, 1 stalled",
    ];
    for (name, run) in names.iter().zip(&runs) {
        report(name, run);
    }
    runtime.block_on(store.shutdown());
    let size = std::fs::metadata(&path)?.len();
    let begun = Instant::now();
    let store = Store::open(&path, options())?;
    println!(
        "{:<38} {:.1?}, file {:.1} MiB, {:?}",
        "open, with every page verified",
        begun.elapsed(),
        size as f64 / f64::from(1 << 20),
        store.stats()
    );
    println!("{:<38} {}", "RssAnon", rss_anon()?);
    runtime.block_on(store.shutdown());
    Ok(())
}

fn options() -> Options<()> {
    Options::new(|_: &str, _: &[u8]| ())
}

/// How long each of some operations took, and what all of them took together.
#[derive(Default)]
struct Run {
    each: Vec<Duration>,
    wall: Duration,
    cpu: Duration,
}

impl std::ops::AddAssign for Run {
    fn add_assign(&mut self, other: Run) {
        self.each.extend(other.each);
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

fn report(what: &str, run: &Run) {
    let mut each = run.each.clone();
    each.sort();
    let count = each.len().max(1);
    let at = |percent: usize| each.get(count * percent / 100).copied().unwrap_or_default();
    println!(
        "{what:<38} {:>7.0}/s  p50 {:>9.1?}  p99 {:>9.1?}  CPU {:>6.1?} each",
        count as f64 / run.wall.as_secs_f64(),
        at(50),
        at(99),
        run.cpu / count as u32
    );
}

fn appends(file: &mut File, span: Duration) -> Result<Run, Failure> {
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    let mut each = Vec::new();
    while begun.elapsed() < span {
        let one = Instant::now();
        file.write_all(&VALUE)?;
        file.sync_data()?;
        each.push(one.elapsed());
    }
    Ok(Run {
        each,
        wall: begun.elapsed(),
        cpu: cpu_time()? - cpu,
    })
}

async fn puts(store: &Store<()>, writers: usize, span: Duration) -> Result<Run, Failure> {
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut each = Vec::new();
                while begun.elapsed() < span {
                    let key = format!(
                        "pods/default/pod-{}",
                        (each.len() * writers + writer) % KEYS
                    );
                    let one = Instant::now();
                    let put = Write::put(key, Expect::Any, |_| Bytes::from_static(&VALUE));
                    store.write(put).await?;
                    each.push(one.elapsed());
                }
                Ok::<_, belay_store::WriteError<()>>(each)
            })
        })
        .collect();
    let mut each = Vec::new();
    for task in tasks {
        each.extend(task.await??);
    }
    Ok(Run {
        each,
        wall: begun.elapsed(),
        cpu: cpu_time()? - cpu,
    })
}

/// How long from asking for a write until a watcher has its event, with others watching as well and
/// one of them never reading.
async fn events(store: &Store<()>, watchers: usize, span: Duration) -> Result<Run, Failure> {
    let stalled = store.watch("", store.revision())?;
    let others: Vec<_> = (0..watchers)
        .map(|_| {
            let watch = store.watch("", store.revision());
            tokio::spawn(async move {
                if let Ok(mut watch) = watch {
                    while watch.next().await.is_ok() {}
                }
            })
        })
        .collect();
    let mut watch = store.watch("", store.revision())?;
    let (seen, mut times) = mpsc::unbounded_channel();
    let watcher = tokio::spawn(async move {
        while let Ok(WatchItem::Event(_)) = watch.next().await {
            if seen.send(Instant::now()).is_err() {
                break;
            }
        }
    });
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    let mut each = Vec::new();
    while begun.elapsed() < span {
        let put = Write::put("pods/default/watched", Expect::Any, |_| {
            Bytes::from_static(&VALUE)
        });
        let one = Instant::now();
        store.write(put).await?;
        each.push(times.recv().await.ok_or("the watcher is gone")? - one);
    }
    let run = Run {
        each,
        wall: begun.elapsed(),
        cpu: cpu_time()? - cpu,
    };
    drop(stalled);
    watcher.abort();
    others.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(run)
}

/// The processor time of this process so far, to the kernel's hundredth of a second.
fn cpu_time() -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = stat.rsplit_once(") ").ok_or("no process name")?;
    let ticks: Result<Vec<u64>, _> = rest.split(' ').skip(11).take(2).map(str::parse).collect();
    Ok(Duration::from_millis(ticks?.iter().sum::<u64>() * 10))
}

fn rss_anon() -> Result<String, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    Ok(line.ok_or("the kernel does not say")?.trim().to_owned())
}
