//! Where the last lines of a log begin, without reading all of it.

use std::io;

use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::line::Line;

const BLOCK: usize = 64 << 10;
/// The head of a line, enough to tell a whole line from a part.
const HEAD: usize = 64;

/// Where the last lines of a file begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) at: u64,
    /// How many lines there are too few.
    pub(super) missing: u64,
}

/// The offset after which exactly the last `lines` whole lines stand, with the parts they are made
/// of.
///
/// Read backwards in blocks; memory does not grow with the log.
pub(super) async fn start(file: &mut File, lines: u64) -> io::Result<Start> {
    let found = |at| Start { at, missing: 0 };
    let end = file.seek(io::SeekFrom::End(0)).await?;
    if lines == 0 {
        return Ok(found(end));
    }
    let mut wanted = lines;
    let mut upper = end;
    // The end of the line that the scan is in, and the first bytes after the block.
    let mut line_end = end;
    let mut carry: Vec<u8> = Vec::new();
    while upper > 0 {
        let lower = upper.saturating_sub(BLOCK as u64);
        let length = usize::try_from(upper - lower).unwrap_or(BLOCK);
        let mut data = vec![0; length];
        file.seek(io::SeekFrom::Start(lower)).await?;
        file.read_exact(&mut data).await?;
        data.extend_from_slice(&carry);
        // Line starts in this block, from the last to the first.
        let starts = (0..length)
            .rev()
            .filter(|at| data[*at] == b'\n')
            .map(|at| at + 1)
            .chain((lower == 0).then_some(0));
        for at in starts {
            let begin = lower + at as u64;
            if begin >= line_end {
                continue;
            }
            let head = &data[at..data.len().min(at + HEAD)];
            if is_whole(head) {
                // One whole line more than wanted: what is wanted begins after it.
                if wanted == 0 {
                    return Ok(found(line_end));
                }
                wanted -= 1;
            }
            line_end = begin;
        }
        carry = data[..length.min(HEAD)].to_vec();
        upper = lower;
    }
    Ok(Start {
        at: 0,
        missing: wanted,
    })
}

/// Whether a line, of which this is the head, ends what it says.
fn is_whole(head: &[u8]) -> bool {
    let head = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Line::parse(head).is_none_or(|line| !line.partial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    async fn tail(content: &[u8], lines: u64) -> Vec<u8> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        let mut opened = File::open(file.path()).await.unwrap();
        let found = start(&mut opened, lines).await.unwrap();
        content[usize::try_from(found.at).unwrap()..].to_vec()
    }

    fn line(tag: &str, text: &str) -> String {
        format!("2030-01-01T00:00:00.000000000Z stdout {tag} {text}\n")
    }

    #[tokio::test]
    async fn parts_belong_to_the_line_they_make() {
        let log = [
            line("F", "1"),
            line("P", "2"),
            line("F", "2"),
            line("F", "3"),
        ]
        .concat();
        let expect = |from: usize| {
            let lines: Vec<&str> = log.split_inclusive('\n').collect();
            lines[from..].concat().into_bytes()
        };
        assert_eq!(tail(log.as_bytes(), 0).await, b"");
        assert_eq!(tail(log.as_bytes(), 1).await, expect(3));
        assert_eq!(tail(log.as_bytes(), 2).await, expect(1));
        assert_eq!(tail(log.as_bytes(), 3).await, expect(0));
        assert_eq!(tail(log.as_bytes(), 9).await, expect(0));
        assert_eq!(tail(b"", 3).await, b"");
    }

    #[test]
    fn logs_larger_than_a_block_have_the_same_tail_as_small_ones() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        proptest!(ProptestConfig::with_cases(24), |(
            sizes in proptest::collection::vec((0usize..9000, any::<bool>()), 1..40),
            wanted in 0u64..50,
        )| {
            let lines: Vec<(String, bool)> = sizes
                .iter()
                .map(|(size, partial)| {
                    (line(if *partial { "P" } else { "F" }, &"x".repeat(*size)), *partial)
                })
                .collect();
            let log: String = lines.iter().map(|(line, _)| line.as_str()).collect();
            // The plain way: walk back over whole lines.
            let mut from = lines.len();
            let mut left = wanted;
            while from > 0 && (left > 0 || lines[from - 1].1) && wanted > 0 {
                if !lines[from - 1].1 {
                    left -= 1;
                }
                from -= 1;
            }
            let expected: String = lines[from..].iter().map(|(line, _)| line.as_str()).collect();
            let got = runtime.block_on(tail(log.as_bytes(), wanted));
            prop_assert_eq!(String::from_utf8(got).unwrap(), expected);
        });
    }
}
