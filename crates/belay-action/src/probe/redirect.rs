//! Where an HTTP answer sends the one who asked. Pure.

use http::Uri;
use http::uri::PathAndQuery;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// What a URI's path cannot have as it is. `%` is let through: it begins what is encoded already.
const NOT_IN_A_PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

/// A place to send an HTTP request to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: PathAndQuery,
}

/// A path as users write it: with or without its first slash, maybe with a query.
pub(super) fn path(text: &str) -> Option<PathAndQuery> {
    let text = text.split('#').next().unwrap_or_default();
    let slash = if text.starts_with('/') { "" } else { "/" };
    let encoded = utf8_percent_encode(text, NOT_IN_A_PATH);
    format!("{slash}{encoded}").parse().ok()
}

/// What a `Location` means to one who was at `from`; `None` when it means nothing here.
pub(super) fn follow(from: &Place, location: &str) -> Option<Place> {
    let scheme = if from.tls { "https" } else { "http" };
    let location = location.split('#').next().unwrap_or_default();
    let absolute = match location.strip_prefix("//") {
        Some(rest) => Some(format!("{scheme}://{rest}")),
        None if has_scheme(location) => Some(location.to_owned()),
        None => None,
    };
    let Some(absolute) = absolute else {
        return Some(Place {
            path: relative(&from.path, location)?,
            ..from.clone()
        });
    };
    let (scheme, rest) = absolute.split_once("://")?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let until = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(until);
    let uri: Uri = format!("http://{authority}/").parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    Some(Place {
        tls,
        host: host.to_owned(),
        port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
        path: path(rest)?,
    })
}

/// Whether a reference begins with a scheme, as RFC 3986 has it.
fn has_scheme(location: &str) -> bool {
    location.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
    })
}

fn relative(from: &PathAndQuery, location: &str) -> Option<PathAndQuery> {
    let (there, query) = match location.split_once('?') {
        Some((there, query)) => (there, Some(query)),
        None => (location, None),
    };
    let merged = if there.is_empty() {
        if query.is_none() {
            return Some(from.clone());
        }
        from.path().to_owned()
    } else if there.starts_with('/') {
        without_dots(there)
    } else {
        let directory = from
            .path()
            .rsplit_once('/')
            .map_or("", |(before, _)| before);
        without_dots(&format!("{directory}/{there}"))
    };
    match query {
        Some(query) => path(&format!("{merged}?{query}")),
        None => path(&merged),
    }
}

/// Takes `.` and `..` out of an absolute path.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(text: &str) -> Place {
        let nowhere = Place {
            tls: false,
            host: "nowhere".into(),
            port: 1,
            path: PathAndQuery::from_static("/"),
        };
        follow(&nowhere, text).unwrap()
    }

    fn text(place: &Place) -> String {
        let scheme = if place.tls { "https" } else { "http" };
        format!("{scheme}://{}:{}{}", place.host, place.port, place.path)
    }

    #[test]
    fn a_path_is_taken_as_it_is_meant() {
        for (given, sent) in [
            ("", "/"),
            ("healthz", "/healthz"),
            ("/a?b=c#d", "/a?b=c"),
            ("/a b/ü", "/a%20b/%C3%BC"),
            ("/a%20b", "/a%20b"),
        ] {
            assert_eq!(path(given).unwrap().as_str(), sent, "{given:?}");
        }
    }

    #[test]
    fn references_are_resolved_as_the_standard_says() {
        let from = place("http://10.0.0.1:8080/a/b/c?q=1");
        for (location, expected) in [
            ("/x", "http://10.0.0.1:8080/x"),
            ("/x/../y/./z?r=2#f", "http://10.0.0.1:8080/y/z?r=2"),
            ("d", "http://10.0.0.1:8080/a/b/d"),
            ("./d", "http://10.0.0.1:8080/a/b/d"),
            ("../d", "http://10.0.0.1:8080/a/d"),
            ("../../../../d/..", "http://10.0.0.1:8080/"),
            ("?r=2", "http://10.0.0.1:8080/a/b/c?r=2"),
            ("", "http://10.0.0.1:8080/a/b/c?q=1"),
            ("//other/x", "http://other:80/x"),
            ("https://10.0.0.1", "https://10.0.0.1:443/"),
            ("HTTPS://10.0.0.1:8443?x", "https://10.0.0.1:8443/?x"),
            ("http://[::1]:81/x", "http://::1:81/x"),
            ("/x:y", "http://10.0.0.1:8080/x:y"),
        ] {
            let to = follow(&from, location).unwrap();
            assert_eq!(text(&to), expected, "{location:?}");
        }
        for location in ["ftp://10.0.0.1/", "mailto:me", "http://", "http://a b/"] {
            assert_eq!(follow(&from, location), None, "{location:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_server_sends_leads_to_a_path_or_nowhere(
            location in prop_oneof![".{0,40}", "[a-z:/?#.%\\[\\]@ 0-9]{0,40}"]
        ) {
            let from = place("http://10.0.0.1:8080/a/b");
            if let Some(to) = follow(&from, &location) {
                prop_assert!(to.path.path().starts_with('/'));
                prop_assert!(!to.host.is_empty());
            }
        }
    }
}
