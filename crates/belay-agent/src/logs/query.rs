//! What a reader of a log asks for.

use std::time::Duration;

use jiff::Timestamp;

/// The parameters of a request for a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogQuery {
    pub(crate) follow: bool,
    pub(crate) previous: bool,
    pub(crate) timestamps: bool,
    pub(crate) tail_lines: Option<u64>,
    pub(crate) since_seconds: Option<u64>,
    pub(crate) since_time: Option<Timestamp>,
    pub(crate) limit_bytes: Option<usize>,
}

/// A parameter that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parameter {name}: {value:?} is not {expected}")]
pub(crate) struct QueryError {
    name: String,
    value: String,
    expected: &'static str,
}

impl LogQuery {
    /// Reads a query string. Unknown parameters are left alone, as the kubelet does.
    pub(crate) fn parse(query: &str) -> Result<Self, QueryError> {
        let mut parsed = LogQuery::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value);
            let refuse = |expected| QueryError {
                name: name.to_owned(),
                value: value.chars().take(100).collect(),
                expected,
            };
            let flag = || match value.as_str() {
                "true" | "1" | "" => Ok(true),
                "false" | "0" => Ok(false),
                _ => Err(refuse("true or false")),
            };
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| refuse("a number of 0 or more"))
            };
            match name {
                "follow" => parsed.follow = flag()?,
                "previous" => parsed.previous = flag()?,
                "timestamps" => parsed.timestamps = flag()?,
                "tailLines" => parsed.tail_lines = Some(number()?),
                "sinceSeconds" => parsed.since_seconds = Some(number()?),
                "limitBytes" => {
                    parsed.limit_bytes = Some(usize::try_from(number()?).unwrap_or(usize::MAX));
                }
                "sinceTime" => {
                    let time = value
                        .parse()
                        .map_err(|_| refuse("a time like 2030-01-01T00:00:00Z"))?;
                    parsed.since_time = Some(time);
                }
                _ => {}
            }
        }
        Ok(parsed)
    }

    /// The oldest time that is wanted.
    pub(super) fn since(&self, now: Timestamp) -> Option<Timestamp> {
        let ago = self.since_seconds.map(|seconds| {
            now.checked_sub(Duration::from_secs(seconds))
                .unwrap_or(Timestamp::MIN)
        });
        ago.max(self.since_time)
    }
}

/// Undoes percent encoding; a broken escape stays as it is.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = bytes[at] == b'%';
        let hex = text
            .get(at + 1..at + 3)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (escaped, hex) {
            (true, Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_parameter_of_kubectl_logs_is_read() {
        let query = LogQuery::parse(
            "follow=true&previous=false&tailLines=10&sinceSeconds=5&timestamps=true&limitBytes=99&pretty=x",
        )
        .unwrap();
        assert!(query.follow && !query.previous && query.timestamps);
        assert_eq!(
            (query.tail_lines, query.since_seconds, query.limit_bytes),
            (Some(10), Some(5), Some(99))
        );
        let query = LogQuery::parse("sinceTime=2030-01-01T00%3A00%3A00Z").unwrap();
        assert_eq!(
            query.since_time,
            Some("2030-01-01T00:00:00Z".parse().unwrap())
        );
    }

    #[test]
    fn a_parameter_that_cannot_be_read_is_named() {
        for bad in [
            "tailLines=-1",
            "tailLines=x",
            "follow=perhaps",
            "sinceTime=noon",
            "limitBytes=1e3",
        ] {
            let error = LogQuery::parse(bad).unwrap_err().to_string();
            assert!(error.contains(bad.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_huge_age_means_everything() {
        let query = LogQuery {
            since_seconds: Some(u64::MAX),
            ..LogQuery::default()
        };
        assert_eq!(query.since(Timestamp::UNIX_EPOCH), Some(Timestamp::MIN));
    }

    proptest! {
        #[test]
        fn any_query_is_taken_without_a_panic(query in "\\PC{0,60}") {
            let _ = LogQuery::parse(&query);
        }
    }
}
