//! The formats that names and keys have in Kubernetes, with its messages.
//!
//! Every function returns what is wrong, or nothing. Matching is by hand: the grammars are tiny,
//! and a regular expression engine would be the largest part of this crate.

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS_SEARCH: &str = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

/// What is wrong with a value, in Kubernetes' words; empty when nothing is.
pub type Problems = Vec<String>;

fn characters(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

fn bytes(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

fn pattern(message: &str, regex: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{regex}')");
    }
    let examples = examples
        .iter()
        .map(|example| format!("'{example}', "))
        .collect::<Vec<_>>()
        .join(" or ");
    format!("{message} (e.g. {examples}regex used for validation is '{regex}')")
}

/// A range that includes both ends.
#[must_use]
pub fn between(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// Non-empty, `inner` characters only, and `outer` ones at both ends.
fn bounded(text: &str, outer: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => outer(*only),
        [first, middle @ .., last] => {
            outer(*first) && outer(*last) && middle.iter().all(|byte| outer(*byte) || inner(*byte))
        }
    }
}

fn lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn is_dns_label(text: &str) -> bool {
    bounded(text, lower_alphanumeric, |byte| byte == b'-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn is_label_name(text: &str) -> bool {
    bounded(text, alphanumeric, |byte| {
        matches!(byte, b'-' | b'_' | b'.')
    })
}

/// A DNS label (RFC 1123): names of namespaces, containers, volumes.
#[must_use]
pub fn dns_label(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > LABEL_MAX {
        problems.push(characters(LABEL_MAX));
    }
    if is_dns_label(text) {
        return problems;
    }
    if is_dns_subdomain(text) {
        problems.push("must not contain dots".to_owned());
    } else {
        problems.push(pattern(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
            DNS_LABEL,
            &["my-name", "123-abc"],
        ));
    }
    problems
}

/// A DNS subdomain (RFC 1123): names of most objects.
#[must_use]
pub fn dns_subdomain(text: &str) -> Problems {
    subdomain(text, characters(SUBDOMAIN_MAX))
}

fn subdomain(text: &str, too_long: String) -> Problems {
    let mut problems = Problems::new();
    if text.len() > SUBDOMAIN_MAX {
        problems.push(too_long);
    }
    if !is_dns_subdomain(text) {
        problems.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            DNS_SUBDOMAIN,
            &["example.com"],
        ));
    }
    problems
}

/// A DNS search path, which may have underscores.
#[must_use]
pub fn dns_search(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > SUBDOMAIN_MAX {
        problems.push(characters(SUBDOMAIN_MAX));
    }
    let is_part = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        bounded(part, lower_alphanumeric, |byte| matches!(byte, b'-' | b'_'))
    };
    if !text.split('.').all(is_part) {
        problems.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            DNS_SEARCH,
            &["example.com"],
        ));
    }
    problems
}

/// A label key, called a qualified name elsewhere: `name` or `prefix/name`.
#[must_use]
pub fn label_key(text: &str) -> Problems {
    const MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    const EXAMPLES: [&str; 3] = ["MyName", "my.name", "123-abc"];
    let mut problems = Problems::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        ["", name] => {
            problems.push("prefix part must be non-empty".to_owned());
            name
        }
        [prefix, name] => {
            let wrong = subdomain(prefix, bytes(SUBDOMAIN_MAX));
            problems.extend(
                wrong
                    .into_iter()
                    .map(|problem| format!("prefix part {problem}")),
            );
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern(MESSAGE, LABEL_KEY, &EXAMPLES)
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        problems.push(format!("name part {}", bytes(LABEL_MAX)));
    }
    if !is_label_name(name) {
        problems.push(format!(
            "name part {}",
            pattern(MESSAGE, LABEL_KEY, &EXAMPLES)
        ));
    }
    problems
}

/// A label value: empty, or like the name part of a key.
#[must_use]
pub fn label_value(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > LABEL_MAX {
        problems.push(bytes(LABEL_MAX));
    }
    if !text.is_empty() && !is_label_name(text) {
        problems.push(pattern(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    problems
}

/// A segment of a URL path: the least that a name must be.
#[must_use]
pub fn path_segment(text: &str) -> Problems {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|bad| text.contains(bad))
        .map(|bad| format!("may not contain '{bad}'"))
        .collect()
}

/// A name of an environment variable.
#[must_use]
pub fn env_var(text: &str) -> Problems {
    if text.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    let printable = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    if text.bytes().all(printable) {
        return Problems::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// A key of a ConfigMap, which becomes a file name.
#[must_use]
pub fn config_key(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > SUBDOMAIN_MAX {
        problems.push(characters(SUBDOMAIN_MAX));
    }
    let allowed = |byte: u8| alphanumeric(byte) || matches!(byte, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(allowed) {
        problems.push(pattern(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match text {
        "." => problems.push("must not be '.'".to_owned()),
        ".." => problems.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => problems.push("must not start with '..'".to_owned()),
        _ => {}
    }
    problems
}

/// A name of a port.
#[must_use]
pub fn port_name(text: &str) -> Problems {
    let mut problems = Problems::new();
    if text.len() > 15 {
        problems.push(characters(15));
    }
    let allowed = |byte: u8| lower_alphanumeric(byte) || byte == b'-';
    if text.is_empty() || !text.bytes().all(allowed) {
        problems.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        problems.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        problems.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        problems.push("must not begin or end with a hyphen".to_owned());
    }
    problems
}

/// A number of a port.
#[must_use]
pub fn port_number(port: i64) -> Problems {
    in_range(port, 1, 65535)
}

/// A user or group ID.
#[must_use]
pub fn user_or_group_id(id: i64) -> Problems {
    in_range(id, 0, i64::from(i32::MAX))
}

fn in_range(number: i64, low: i64, high: i64) -> Problems {
    if (low..=high).contains(&number) {
        Problems::new()
    } else {
        vec![between(low, high)]
    }
}

/// A name of an HTTP header.
#[must_use]
pub fn http_header(text: &str) -> Problems {
    let allowed = |byte: u8| alphanumeric(byte) || byte == b'-';
    if !text.is_empty() && text.bytes().all(allowed) {
        return Problems::new();
    }
    vec![pattern(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&str) -> Problems, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(rule(text), Problems::new(), "{text:?} is good");
        }
        for text in bad {
            assert_ne!(rule(text), Problems::new(), "{text:?} is bad");
        }
    }

    #[test]
    fn names_are_accepted_and_refused_as_upstream_does() {
        let long = "a".repeat(64);
        let longer = "a.".repeat(126) + "ab";
        check(
            dns_label,
            &["a", "0", "a-b", "my-name", &long[..63]],
            &["", "-a", "a-", "A", "a.b", "a_b", "ä", &long],
        );
        check(
            dns_subdomain,
            &["a", "a.b", "0.0", "my-name.example.com"],
            &["", ".", "a.", ".a", "a..b", "A", "a_b", "a.-b", &longer],
        );
        check(
            label_key,
            &["a", "A-b_c.d", "example.com/MyName", "1", "k8s.io/x"],
            &[
                "",
                "/",
                "a/",
                "/a",
                "a/b/c",
                "-a",
                "a-",
                "Example.com/a",
                "a b",
                &long,
            ],
        );
        check(
            label_value,
            &["", "a", "A_b-c.d"],
            &["-", "a b", ".a", "ä", &long],
        );
        check(
            dns_search,
            &["a", "_a.b_c", "example.com"],
            &["", "__a", "a_", "A", "a..b"],
        );
        check(path_segment, &["a", "...", ""], &[".", "..", "a/b", "a%b"]);
        check(env_var, &["A", "a b", "1", "-"], &["", "A=B", "ä", "a\n"]);
        check(
            config_key,
            &["a", "A_b-c.d", ".a"],
            &["", ".", "..", "..a", "a/b"],
        );
        check(
            port_name,
            &["http", "a1", "8a"],
            &["", "80", "a--b", "-a", "a-", "A", "abcdefghijklmnop"],
        );
        check(http_header, &["X-A", "a"], &["", "a b", "a_b"]);
        assert!(port_number(0).len() == 1 && port_number(65536).len() == 1);
        assert!(port_number(1).is_empty() && port_number(65535).is_empty());
    }

    #[test]
    fn messages_are_those_of_upstream() {
        assert_eq!(
            dns_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            label_key("a/"),
            [
                "name part must be non-empty",
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
    }
}
