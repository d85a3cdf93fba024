//! Names of images, as registries and runtimes understand them.

use std::fmt;

const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A name in full: `[domain/]path[:tag][@digest]` with everything that may be left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    domain: String,
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    /// Checks a name and completes it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty".to_owned());
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        // A colon after the last slash begins the tag; one before it a port.
        let last = name.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match name[last..].split_once(':') {
            Some((base, tag)) => (&name[..last + base.len()], Some(tag)),
            None => (name, None),
        };
        if name.len() > MAX_NAME {
            return Err(format!("it is longer than {MAX_NAME} characters"));
        }
        let (domain, path) = split_domain(name);
        if let Some(domain) = domain
            && !is_domain(domain)
        {
            return Err(format!("{domain:?} is not a registry"));
        }
        for part in path.split('/') {
            if !is_component(part) {
                return Err(format!(
                    "{part:?} must be lower-case letters and digits, with single '.', '_', '__' or \
                     dashes between them"
                ));
            }
        }
        if domain.is_none() && path.len() == 64 && path.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("64 hexadecimal digits alone are an ID and not a name".to_owned());
        }
        if let Some(tag) = tag
            && !is_tag(tag)
        {
            return Err(format!("{tag:?} is not a tag"));
        }
        if let Some(digest) = digest
            && !is_digest(digest)
        {
            return Err(format!("{digest:?} is not a digest"));
        }
        let official = domain.is_none() && !path.contains('/');
        Ok(Reference {
            domain: domain.unwrap_or("docker.io").to_owned(),
            path: if official {
                format!("library/{path}")
            } else {
                path.to_owned()
            },
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        match (&self.tag, &self.digest) {
            (_, Some(digest)) => write!(f, "@{digest}"),
            (Some(tag), None) => write!(f, ":{tag}"),
            (None, None) => write!(f, ":latest"),
        }
    }
}

/// The first part is a registry if it looks like a host, and otherwise part of the path.
fn split_domain(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (Some(first), rest)
        }
        _ => (None, name),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((address, rest)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
            return rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        }
        Some(_) => return false,
        None => match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

fn is_component(part: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let separators = part.split(|c: char| c.is_ascii() && alphanumeric(c as u8));
    let good = |separator: &str| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
    };
    let edge = |b: Option<&u8>| b.is_some_and(|b| alphanumeric(*b));
    edge(part.as_bytes().first())
        && edge(part.as_bytes().last())
        && separators.into_iter().all(good)
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=MAX_TAG).contains(&tag.len())
        && word(tag.as_bytes()[0])
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let part = |part: &str| {
        part.bytes().all(|b| b.is_ascii_alphanumeric())
            && part.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
    };
    algorithm.split(['+', '.', '-', '_']).all(part)
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_is_completed_as_every_runtime_completes_it() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (text, full) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.25-alpine", "docker.io/library/nginx:1.25-alpine"),
            ("me/app", "docker.io/me/app:latest"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost/a", "localhost/a:latest"),
            ("127.0.0.1:5000/a/b__c:x", "127.0.0.1:5000/a/b__c:x"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ] {
            assert_eq!(Reference::parse(text).unwrap().to_string(), full);
        }
        let both = Reference::parse(&format!("a.b/c:1@{digest}")).unwrap();
        assert_eq!(both.to_string(), format!("a.b/c@{digest}"));
    }

    #[test]
    fn what_is_not_a_name_says_why() {
        let id = "a".repeat(64);
        let long = "a".repeat(256);
        for text in [
            "",
            " ",
            "UPPER",
            "a b",
            "a:",
            "a@",
            "a@sha256:12",
            "a//b",
            "/a",
            "a/",
            "a:b:c",
            "a__.b",
            "-a",
            "a-",
            "ä",
            "host:port/a",
            "-h.x/a",
            "a:-tag",
            "[::1/a",
            &id,
            &long,
        ] {
            let problem = Reference::parse(text).unwrap_err();
            assert!(!problem.is_empty(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn rubbish_is_never_a_panic_and_a_full_name_stays_what_it_is(
            text in r"[a-zA-Z0-9./:@_\[\]ä -]{0,30}"
        ) {
            if let Ok(name) = Reference::parse(&text) {
                let again = Reference::parse(&name.to_string()).unwrap();
                prop_assert_eq!(again.to_string(), name.to_string());
            }
        }
    }
}
