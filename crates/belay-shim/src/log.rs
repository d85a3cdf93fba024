//! Container output in the log format of the CRI: `<time> stdout|stderr F|P <line>`.

use crate::clock::Wall;

/// A longer line is written in parts, all but the last marked `P`.
pub(crate) const MAX_LINE: usize = 16 * 1024;

/// Cuts one stream into log lines. What has no line end yet waits here, at most [`MAX_LINE`].
#[derive(Debug)]
pub(crate) struct Splitter {
    stream: &'static str,
    pending: Vec<u8>,
}

impl Splitter {
    pub(crate) fn new(stream: &'static str) -> Self {
        Splitter {
            stream,
            pending: Vec::new(),
        }
    }

    /// Takes what was read at `now`, and appends to `out` every line that it completes.
    pub(crate) fn push(&mut self, mut bytes: &[u8], now: Wall, out: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let time = now.rfc3339();
        loop {
            let room = MAX_LINE - self.pending.len();
            match bytes.iter().take(room + 1).position(|byte| *byte == b'\n') {
                Some(end) => {
                    self.line(&time, "F", &bytes[..end], out);
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    self.line(&time, "P", &bytes[..room], out);
                    bytes = &bytes[room..];
                }
                None => break,
            }
        }
        self.pending.extend_from_slice(bytes);
    }

    /// The stream has ended: what it left without a line end is a line as well.
    pub(crate) fn finish(&mut self, now: Wall, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.line(&now.rfc3339(), "F", b"", out);
        }
    }

    fn line(&mut self, time: &str, tag: &str, rest: &[u8], out: &mut Vec<u8>) {
        for part in [time, " ", self.stream, " ", tag, " "] {
            out.extend_from_slice(part.as_bytes());
        }
        out.extend_from_slice(&self.pending);
        out.extend_from_slice(rest);
        out.push(b'\n');
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]]) -> String {
        let mut splitter = Splitter::new("stdout");
        let mut out = Vec::new();
        for chunk in chunks {
            splitter.push(chunk, Wall(0), &mut out);
        }
        splitter.finish(Wall(0), &mut out);
        String::from_utf8(out)
            .unwrap()
            .replace("1970-01-01T00:00:00.000000000Z stdout ", "")
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(
            split(&[b"one\ntw", b"o\n\nthree"]),
            "F one\nF two\nF \nF three\n"
        );
    }

    #[test]
    fn a_long_line_is_written_in_marked_parts() {
        let long = vec![b'x'; MAX_LINE * 2 + 5];
        let out = split(&[&long, b"\nnext\n"]);
        let tags: Vec<(&str, usize)> = out
            .lines()
            .map(|line| (&line[..1], line.len() - 2))
            .collect();
        assert_eq!(tags, [("P", MAX_LINE), ("P", MAX_LINE), ("F", 5), ("F", 4)]);
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_one_line() {
        let mut line = vec![b'x'; MAX_LINE];
        line.push(b'\n');
        assert_eq!(split(&[&line]).lines().count(), 1);
    }

    proptest! {
        #[test]
        fn joined_parts_are_the_input(
            pieces in proptest::collection::vec((0usize..20_000, any::<bool>()), 0..12),
            cut in 1usize..5000,
        ) {
            let mut input = Vec::new();
            for (length, newline) in pieces {
                input.extend(std::iter::repeat_n(b'y', length));
                if newline {
                    input.push(b'\n');
                }
            }
            let chunks: Vec<&[u8]> = input.chunks(cut).collect();
            let out = split(&chunks);
            let mut joined = String::new();
            for line in out.lines() {
                prop_assert!(line.len() <= MAX_LINE + 2);
                joined.push_str(&line[2..]);
                if line.starts_with('F') {
                    joined.push('\n');
                }
            }
            let mut expected = String::from_utf8(input).unwrap();
            if !expected.is_empty() && !expected.ends_with('\n') {
                expected.push('\n');
            }
            prop_assert_eq!(joined, expected);
        }
    }
}
