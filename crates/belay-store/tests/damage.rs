//! Files that are damaged, foreign, too new, or taken: refused with a reason, or opened whole.

use std::fs;
use std::path::{Path, PathBuf};

use belay_store::{Expect, OpenError, Options, Revision, Store, WatchItem, Write};
use bytes::Bytes;
use proptest::prelude::*;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;

/// Where the engine's part of the file begins.
const ENGINE_AT: usize = 4096;

fn options() -> Options<()> {
    Options {
        min_free_bytes: 0,
        history_events: 20,
        ..Options::new(|_: &str, _: &[u8]| ())
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime")
}

/// Everything a store shows: its revision, its entries, its history.
type Dump = (
    Revision,
    Vec<(String, Bytes, Revision)>,
    Vec<(Revision, String, Bytes, bool)>,
);

async fn dump(store: &Store<()>) -> Dump {
    let page = store.list("", None, 0, &mut |_| true);
    let entries = page.entries.iter();
    let entries = entries.map(|entry| (entry.key.to_string(), entry.value.clone(), entry.created));
    let mut watch = store.watch("", store.stats().compacted).expect("history");
    let mut history = Vec::new();
    while watch.seen() < page.revision {
        match watch.next().await.expect("retained") {
            WatchItem::Event(event) => history.push((
                event.revision,
                event.entry.key.to_string(),
                event.entry.value.clone(),
                event.deleted,
            )),
            WatchItem::Progress(revision) => panic!("not asked for: {revision}"),
        }
    }
    (page.revision, entries.collect(), history)
}

async fn fill(store: &Store<()>) {
    for number in 0..60_u32 {
        let value = format!("{{\"number\":{number}}}").repeat(30);
        let key = format!("pods/default/pod-{}", number % 17);
        store
            .write(Write::put(key, Expect::Any, |_| Bytes::from(value)))
            .await
            .expect("put");
    }
    for number in 0..5 {
        let key = format!("pods/default/pod-{number}");
        store
            .write(Write::delete(key, Expect::Present))
            .await
            .expect("delete");
    }
}

/// Two images of the same store: one of a clean end, one as a crash right after the last
/// acknowledgement leaves it.
struct Images {
    dir: tempfile::TempDir,
    clean: Vec<u8>,
    crashed: Vec<u8>,
    dump: Dump,
}

impl Images {
    fn make() -> Self {
        runtime().block_on(async {
            let dir = tempfile::tempdir().expect("directory");
            let path = dir.path().join("store");
            let store = Store::open(&path, options()).expect("open");
            fill(&store).await;
            let crashed = fs::read(&path).expect("image");
            let dump = dump(&store).await;
            store.shutdown().await;
            let clean = fs::read(&path).expect("image");
            Images {
                dir,
                clean,
                crashed,
                dump,
            }
        })
    }

    /// Opens `image` as a real file. Either it is refused as damaged, or it holds everything and
    /// goes on as a store should.
    fn check(&self, image: &[u8], what: &str) -> Option<OpenError> {
        let path = self.dir.path().join("damaged");
        fs::write(&path, image).expect("write");
        let refused = self.check_opened(|| Store::open(&path, options()), what)?;
        let again = Store::open(&path, options());
        assert!(again.is_err(), "{what}: refused at first and then opened");
        Some(refused)
    }

    /// The same in memory, for thousands of images.
    fn check_in_memory(&self, image: &[u8], what: &str) -> Option<OpenError> {
        let backend = InMemoryBackend::new();
        backend.set_len(image.len() as u64).expect("room");
        backend.write(0, image).expect("image");
        self.check_opened(|| Store::open_backend(backend, options()), what)
    }

    fn check_opened(
        &self,
        open: impl FnOnce() -> Result<Store<()>, OpenError>,
        what: &str,
    ) -> Option<OpenError> {
        runtime().block_on(async {
            let store = match open() {
                Ok(store) => store,
                Err(error @ (OpenError::Damaged { .. } | OpenError::NotAStore { .. })) => {
                    return Some(error);
                }
                Err(other) => panic!("{what}: {other}"),
            };
            assert!(
                dump(&store).await == self.dump,
                "{what}: opened with something missing"
            );
            let write = Write::put("one more", Expect::Absent, |_| Bytes::new());
            let entry = store
                .write(write)
                .await
                .expect("an opened store takes writes");
            assert_eq!(entry.modified, self.dump.0.next(), "{what}");
            store.shutdown().await;
            None
        })
    }
}

fn used_pages(image: &[u8]) -> Vec<usize> {
    let pages = image.chunks(4096).enumerate();
    pages
        .filter(|(_, page)| page.iter().any(|byte| *byte != 0))
        .map(|(page, _)| page)
        .collect()
}

#[test]
fn the_images_themselves_open_whole() {
    let images = Images::make();
    assert!(images.check(&images.clean, "clean").is_none());
    assert!(images.check(&images.crashed, "crashed").is_none());
}

#[test]
fn a_truncated_file_is_refused_or_whole_at_every_length() {
    let images = Images::make();
    for (image, what) in [(&images.clean, "clean"), (&images.crashed, "crashed")] {
        // An empty backend is where a store may begin; an empty file is checked below.
        let pages = (4096..image.len()).step_by(4096);
        let between = (1..8192)
            .step_by(97)
            .chain((8192..image.len()).step_by(40_961));
        let mut refused = 0;
        for length in pages.chain(between) {
            let what = format!("{what} cut to {length}");
            refused += usize::from(images.check_in_memory(&image[..length], &what).is_some());
        }
        assert!(refused > 10, "cutting a file is noticed");
    }
}

#[test]
fn truncation_of_a_real_file_is_explained() {
    let images = Images::make();
    for length in [
        0,
        100,
        4096,
        8192,
        images.clean.len() / 2,
        images.clean.len() - 1,
    ] {
        let error = images
            .check(&images.clean[..length], "cut")
            .expect("refused");
        let text = error.to_string();
        assert!(
            text.contains("damaged") && text.contains("put a backup in its place"),
            "{text}"
        );
    }
}

#[test]
fn flipped_bits_of_the_headers_are_refused_or_harmless() {
    let images = Images::make();
    let ours = (0..24).chain(512..528).chain(1024..1040);
    let engine = ENGINE_AT..ENGINE_AT + 320;
    for at in ours.chain(engine) {
        // The byte that says which commit counts, in full; of the others a few bits each.
        let bits = if at == ENGINE_AT + 9 {
            vec![0, 1, 2, 3, 4, 5, 6, 7]
        } else {
            vec![at % 8, (at + 3) % 8]
        };
        for bit in bits {
            for (image, what) in [(&images.clean, "clean"), (&images.crashed, "crashed")] {
                let mut image = image.clone();
                image[at] ^= 1 << bit;
                images.check_in_memory(&image, &format!("{what}, byte {at} bit {bit}"));
            }
        }
    }
}

#[test]
fn flipped_bytes_in_a_real_file_are_refused_or_harmless() {
    let images = Images::make();
    let (mut refused, mut rolled_back) = (0, 0);
    for (image, what) in [(&images.clean, "clean"), (&images.crashed, "crashed")] {
        for page in used_pages(image) {
            for offset in [0, 3, 40, 700, 2048] {
                let at = page * 4096 + offset;
                let mut image = image.clone();
                image[at] ^= 0xFF;
                let what = format!("{what}, byte {at}");
                if let Some(error) = images.check(&image, &what) {
                    refused += 1;
                    rolled_back += usize::from(error.to_string().contains("was acknowledged"));
                }
            }
        }
    }
    assert!(refused > 20, "only {refused} of the flips were noticed");
    // The engine alone would have opened these without their last group.
    assert!(rolled_back > 0, "no flip hit the pages of the last commit");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn overwritten_ranges_are_refused_or_harmless(
        seeds in proptest::collection::vec((any::<u32>(), 1_usize..6000, any::<u8>(), any::<bool>()), 12)
    ) {
        let images = Images::make();
        for (place, length, byte, clean) in seeds {
            let mut image = if clean { images.clean.clone() } else { images.crashed.clone() };
            let pages = used_pages(&image);
            let start = pages[place as usize % pages.len()] * 4096 + (place >> 16) as usize % 4096;
            let end = (start + length).min(image.len());
            image[start..end].fill(byte);
            images.check_in_memory(&image, &format!("{start}..{end} is {byte}, clean: {clean}"));
        }
    }

    #[test]
    fn rubbish_is_never_a_store(bytes in proptest::collection::vec(any::<u8>(), 1..20_000)) {
        let backend = InMemoryBackend::new();
        backend.set_len(bytes.len() as u64).expect("room");
        backend.write(0, &bytes).expect("image");
        let opened = Store::open_backend(backend, options());
        let foreign = matches!(opened, Err(OpenError::NotAStore { .. }));
        prop_assert!(foreign, "{opened:?}");
    }
}

fn refusal(path: &Path) -> OpenError {
    Store::open(path, options()).expect_err("refused")
}

fn file(dir: &tempfile::TempDir, content: &[u8]) -> PathBuf {
    let path = dir.path().join("file");
    fs::write(&path, content).expect("write");
    path
}

#[test]
fn a_foreign_file_is_named_as_such_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = b"dear diary, this is no store at all".repeat(500);
    let path = file(&dir, &text);
    let error = refusal(&path);
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
    assert!(error.to_string().contains("not a belay store"));
    assert_eq!(fs::read(&path).unwrap(), text);
}

#[test]
fn a_database_of_the_same_engine_is_still_foreign() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    drop(redb::Database::create(&path).unwrap());
    assert!(matches!(refusal(&path), OpenError::NotAStore { .. }));
}

#[test]
fn an_empty_file_is_damage_and_not_a_new_store() {
    let dir = tempfile::tempdir().unwrap();
    let error = refusal(&file(&dir, b""));
    assert!(
        matches!(&error, OpenError::Damaged { what, .. } if what.contains("empty")),
        "{error}"
    );
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let mut images = Images::make();
    images.clean[16..20].copy_from_slice(&7_u32.to_le_bytes());
    images.clean[20..24].copy_from_slice(&(!7_u32).to_le_bytes());
    let error = refusal(&file(&images.dir, &images.clean));
    assert!(
        matches!(
            error,
            OpenError::NewerFormat {
                found: 7,
                supported: 2,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("version 7") && text.contains("version 2"),
        "{text}"
    );
}

#[test]
fn a_second_opener_is_refused_while_the_first_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let first = Store::open(&path, options()).unwrap();
    let error = refusal(&path);
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
    runtime().block_on(first.shutdown());
    Store::open(&path, options()).unwrap();
}

#[test]
fn a_place_that_cannot_hold_a_file_is_an_io_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let error = refusal(&dir.path().join("missing").join("store"));
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert!(error.to_string().contains("missing"));
    assert!(matches!(refusal(dir.path()), OpenError::Io { .. }));
}

#[test]
fn opening_leaves_no_other_files_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store"), options()).unwrap();
    runtime().block_on(store.shutdown());
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(names, ["store"]);
}
