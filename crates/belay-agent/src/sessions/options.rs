//! What a client of a session asks for.

use super::Refusal;

/// The parameters of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) terminal: bool,
}

impl Options {
    /// Reads a query string. Unknown parameters are left alone, as the kubelet does.
    pub(super) fn parse(query: &str) -> Result<Self, Refusal> {
        let mut options = Options::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let flag = matches!(&*value, "true" | "1");
            match &*name {
                "command" => options.command.push(value.into_owned()),
                "stdin" => options.stdin = flag,
                "stdout" => options.stdout = flag,
                "stderr" => options.stderr = flag,
                "tty" => options.terminal = flag,
                _ => {}
            }
        }
        if options.terminal {
            // A terminal has one output.
            options.stderr = false;
        }
        if !(options.stdin || options.stdout || options.stderr) {
            return Err(Refusal::bad_request(
                "you must specify at least 1 of stdin, stdout, stderr",
            ));
        }
        if options.command.is_empty() {
            return Err(Refusal::bad_request("you must specify a command"));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_kept_in_order_and_as_they_are() {
        let options = Options::parse("command=sh&command=-c&command=a%20%26+b&stdout=true&stdin=1");
        let options = options.unwrap();
        assert_eq!(options.command, ["sh", "-c", "a & b"]);
        assert!(options.stdin && options.stdout && !options.stderr && !options.terminal);
    }

    #[test]
    fn a_terminal_has_one_output() {
        let options = Options::parse("command=sh&stdout=true&stderr=true&tty=true").unwrap();
        assert!(options.terminal && options.stdout && !options.stderr);
        assert!(Options::parse("command=sh&stderr=true&tty=true").is_err());
    }

    #[test]
    fn a_request_for_nothing_is_refused() {
        for bad in ["", "command=sh", "stdout=true", "command=sh&stdout=no"] {
            assert!(Options::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_taken_without_a_panic(query in "\\PC{0,60}") {
            let _ = Options::parse(&query);
        }
    }
}
