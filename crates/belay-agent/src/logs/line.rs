//! One line of a log in the CRI's format: `<time> stdout|stderr F|P <content>`.

use jiff::Timestamp;

use super::LogQuery;

/// A line that was read. `P` lines go on in the next one of their stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) time: &'a str,
    pub(super) partial: bool,
    pub(super) content: &'a [u8],
}

impl<'a> Line<'a> {
    /// Reads a line with its newline. Rubbish is `None`.
    pub(super) fn parse(raw: &'a [u8]) -> Option<Self> {
        let raw = raw.strip_suffix(b"\n").unwrap_or(raw);
        let (time, rest) = split(raw)?;
        let (stream, rest) = split(rest)?;
        // A line without content may lack the last space.
        let (tag, content) = split(rest).unwrap_or((rest, b""));
        if stream != b"stdout" && stream != b"stderr" {
            return None;
        }
        // Tags may be followed by others, after a colon.
        let partial = match tag.split(|byte| *byte == b':').next()? {
            b"P" => true,
            b"F" => false,
            _ => return None,
        };
        Some(Line {
            time: std::str::from_utf8(time).ok()?,
            partial,
            content,
        })
    }
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b' ')?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Turns lines into what a reader gets.
#[derive(Debug)]
pub(super) struct Printer {
    since: Option<Timestamp>,
    timestamps: bool,
    left: Option<usize>,
    /// Whether the next content begins a line.
    fresh: bool,
}

impl Printer {
    pub(super) fn new(query: &LogQuery, now: Timestamp) -> Self {
        Printer {
            since: query.since(now),
            timestamps: query.timestamps,
            left: query.limit_bytes,
            fresh: true,
        }
    }

    /// Whether the limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    pub(super) fn print(&mut self, line: &Line<'_>, out: &mut Vec<u8>) {
        if let Some(since) = self.since
            && line
                .time
                .parse::<Timestamp>()
                .is_ok_and(|time| time < since)
        {
            return;
        }
        if self.fresh && self.timestamps {
            self.put(line.time.as_bytes(), out);
            self.put(b" ", out);
        }
        self.put(line.content, out);
        if !line.partial {
            self.put(b"\n", out);
        }
        self.fresh = !line.partial;
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let taken = self.left.map_or(bytes.len(), |left| left.min(bytes.len()));
        out.extend_from_slice(&bytes[..taken]);
        if let Some(left) = &mut self.left {
            *left -= taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn print(query: &LogQuery, lines: &[&str]) -> String {
        let now: Timestamp = "2030-01-01T00:01:00Z".parse().unwrap();
        let mut printer = Printer::new(query, now);
        let mut out = Vec::new();
        for line in lines {
            if let Some(line) = Line::parse(line.as_bytes()) {
                printer.print(&line, &mut out);
            }
        }
        String::from_utf8(out).unwrap()
    }

    const LINES: [&str; 4] = [
        "2030-01-01T00:00:00.1Z stdout F one\n",
        "2030-01-01T00:00:30.2Z stderr P tw\n",
        "2030-01-01T00:00:31Z stderr F o\n",
        "2030-01-01T00:00:59.123456789Z stdout F three words here\n",
    ];

    #[test]
    fn parts_are_joined_and_rubbish_is_left_out() {
        let mut lines = LINES.to_vec();
        lines.insert(1, "rubbish\n");
        lines.insert(2, "2030-01-01T00:00:00Z stdin F no\n");
        lines.insert(3, "2030-01-01T00:00:00Z stdout X no\n");
        lines.insert(4, "\n");
        assert_eq!(
            print(&LogQuery::default(), &lines),
            "one\ntwo\nthree words here\n"
        );
    }

    #[test]
    fn an_empty_line_stays_one() {
        assert_eq!(
            print(&LogQuery::default(), &["2030-01-01T00:00:00Z stdout F \n"]),
            "\n"
        );
        assert_eq!(
            print(&LogQuery::default(), &["2030-01-01T00:00:00Z stdout F\n"]),
            "\n"
        );
    }

    #[test]
    fn times_stand_at_the_beginning_of_a_line_only() {
        let query = LogQuery {
            timestamps: true,
            ..LogQuery::default()
        };
        assert_eq!(print(&query, &LINES[1..3]), "2030-01-01T00:00:30.2Z two\n");
    }

    #[test]
    fn older_lines_are_left_out() {
        let query = LogQuery {
            since_seconds: Some(30),
            ..LogQuery::default()
        };
        assert_eq!(print(&query, &LINES), "two\nthree words here\n");
    }

    #[test]
    fn the_limit_cuts_within_a_line() {
        let query = LogQuery {
            limit_bytes: Some(6),
            ..LogQuery::default()
        };
        assert_eq!(print(&query, &LINES), "one\ntw");
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_without_a_panic(raw in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Line::parse(&raw);
        }

        #[test]
        fn what_was_written_is_read(content in "[^\n]{0,40}", partial in any::<bool>()) {
            let tag = if partial { "P" } else { "F" };
            let raw = format!("2030-01-01T00:00:00Z stdout {tag} {content}\n");
            let line = Line::parse(raw.as_bytes()).unwrap();
            prop_assert_eq!(line.content, content.as_bytes());
            prop_assert_eq!(line.partial, partial);
        }
    }
}
