//! What the sources of tests say, for tables that name tests.

/// Whether this source has a test of this name.
pub fn has_test(source: &str, name: &str) -> bool {
    tests(source).contains(&name)
}

/// The names of all tests of this source: functions with an attribute that makes them tests.
pub fn tests(source: &str) -> Vec<&str> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_test = |at: usize| {
        let above = lines[..at].iter().rev();
        above
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
            .any(|line| makes_a_test(line))
    };
    let names = lines.iter().enumerate().filter_map(|(at, line)| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let (name, _) = line.strip_prefix("fn ")?.split_once('(')?;
        is_test(at).then_some(name)
    });
    names.collect()
}

fn makes_a_test(attribute: &str) -> bool {
    let names = ["#[test]", "#[tokio::test]", "#[tokio::test(", "#[rstest]"];
    names.iter().any(|name| attribute.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::{has_test, tests};

    #[test]
    fn only_what_is_run_is_a_test() {
        let source = "#[tokio::test(flavor = \"multi_thread\")]\n// Why.\n#[ignore]\n\
                      async fn runs() {}\n\n#[test]\nfn runs_too() {}\n\n\
                      #[allow(unused)]\nfn helps() {}\n\n/// Says #[test].\nfn is_told() {}\n\
                      // fn commented() {}\n";
        for (name, expected) in [
            ("runs", true),
            ("runs_too", true),
            ("helps", false),
            ("is_told", false),
            ("commented", false),
            ("run", false),
        ] {
            assert_eq!(has_test(source, name), expected, "{name}");
        }
        assert_eq!(tests(source), ["runs", "runs_too"]);
    }
}
