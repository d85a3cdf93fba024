//! What a whole test run came to, read from the output of its test binaries.
//!
//! libtest knows passed, failed and ignored. A test that finds a facility missing at run time
//! prints `SKIPPED: <test>: <why>` and returns, which libtest counts as passed; it is moved to the
//! skipped ones here. Output of passing tests is asked for (`--show-output`) only to find those
//! lines, so it is kept from the terminal.

use std::collections::BTreeMap;

/// More failures than this are nobody's bad moment.
const MOST_TRIED_AGAIN: usize = 3;

/// The line that a test prints instead of doing its work.
const SKIPPED: &str = "SKIPPED: ";

#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Why, by the number of the binary and the test in it: two binaries may have tests of one name.
    skipped: BTreeMap<(usize, String), String>,
    failures: Vec<String>,
    /// Failed, and passed when they were tried again.
    flaky: Vec<String>,
    section: Section,
    /// How many tests the binary that runs now has announced.
    announced: Option<usize>,
    /// How many binaries have announced theirs.
    binaries: usize,
    /// How many binaries said at their end that tests of theirs have failed.
    failed_binaries: usize,
}

/// Where in one binary's output we are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Section {
    #[default]
    Running,
    /// Output of tests that passed.
    Successes,
    /// Output and list of tests that failed.
    Failures,
}

impl Summary {
    /// Takes one line in; tells whether a reader wants to see it.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        let text = line.trim();
        if let Some(skip) = text.split_once(SKIPPED).map(|(_, skip)| skip) {
            let (test, why) = skip.split_once(": ").unwrap_or((skip, "no reason given"));
            let key = (self.binaries, test.to_owned());
            self.skipped.insert(key, why.to_owned());
            return false;
        }
        match text {
            "successes:" => self.section = Section::Successes,
            "failures:" => self.section = Section::Failures,
            _ => {}
        }
        if let Some(tests) = announced(text) {
            self.end();
            self.announced = Some(tests);
            self.binaries += 1;
            self.section = Section::Running;
        }
        if let Some(counts) = text.strip_prefix("test result: ") {
            self.section = Section::Running;
            self.announced = None;
            self.failed_binaries += usize::from(counts.starts_with("FAILED"));
            self.passed += count(counts, "passed");
            self.failed += count(counts, "failed");
            self.ignored += count(counts, "ignored");
        }
        if let Some(name) = text
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
        self.section != Section::Successes
    }

    /// The output is over, or the next binary begins. One that was killed has left no result.
    pub(crate) fn end(&mut self) {
        if let Some(tests) = self.announced.take() {
            self.failed += 1;
            let what = format!("a binary of {tests} tests ended without a result; see above");
            self.failures.push(what);
        }
    }

    /// The names of what failed, if that may have been a bad moment. A binary that left no result has
    /// no name to try.
    pub(crate) fn to_be_tried_again(&self) -> Vec<String> {
        if self.failed != self.failures.len() || self.failed > MOST_TRIED_AGAIN {
            return Vec::new();
        }
        let mut names = self.failures.clone();
        names.retain(|name| !name.contains(' '));
        if names.len() == self.failures.len() {
            names
        } else {
            Vec::new()
        }
    }

    /// Whether tests that failed are all that was wrong with so many binaries that failed, of those
    /// that cargo names. One that crashed after its tests had passed says nothing here.
    pub(crate) fn accounts_for(&self, failed_targets: usize) -> bool {
        failed_targets == self.failed_binaries
    }

    /// What failed was tried again, with that result.
    pub(crate) fn tried_again(&mut self, again: &Summary) {
        let failures = std::mem::take(&mut self.failures);
        let ran = again.passed + again.failed >= failures.len();
        let (flaky, failed): (Vec<_>, Vec<_>) = failures.into_iter().partition(|name| {
            // One that could not do its work proves nothing, unless it is a part that it has not done
            // the first time either.
            let skipped = again.has_skipped(name) && !self.has_skipped(name);
            ran && !again.failures.contains(name) && !skipped
        });
        self.passed += flaky.len();
        self.failed = failed.len();
        self.flaky = flaky;
        self.failures = failed;
        if self.failures.is_empty() && again.failed() {
            self.failed = again.failed;
            self.failures.clone_from(&again.failures);
        }
    }

    fn has_skipped(&self, name: &str) -> bool {
        self.skipped.keys().any(|(_, test)| test == name)
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed > 0
    }

    /// The end of the report; its last line is the one that scripts read.
    pub(crate) fn report(&self) -> String {
        let mut report = String::new();
        if !self.failures.is_empty() {
            report.push_str("failed:\n");
            for test in &self.failures {
                report.push_str(&format!("  {test}\n"));
            }
        }
        if !self.flaky.is_empty() {
            report.push_str("flaky (failed, and passed when tried again alone):\n");
            for test in &self.flaky {
                report.push_str(&format!("  {test}\n"));
            }
        }
        if !self.skipped.is_empty() || self.ignored > 0 {
            report.push_str("skipped:\n");
            for ((_, test), why) in &self.skipped {
                report.push_str(&format!("  {test}: {why}\n"));
            }
            if self.ignored > 0 {
                report.push_str(&format!("  {} marked #[ignore]\n", self.ignored));
            }
        }
        // One that has failed in spite of what it skipped is not among those that passed.
        let failed = |test: &String| self.failures.contains(test);
        let skipped = self.skipped.keys().filter(|(_, test)| !failed(test));
        let skipped = skipped.count();
        report.push_str(&format!(
            "{} passed, {} failed, {} skipped",
            self.passed.saturating_sub(skipped),
            self.failed,
            skipped + self.ignored
        ));
        report
    }
}

/// `running 12 tests` announces 12.
fn announced(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    let number = rest
        .strip_suffix(" tests")
        .or_else(|| rest.strip_suffix(" test"))?;
    number.parse().ok()
}

/// `ok. 12 passed; 0 failed; ...` has 12 of `passed`.
fn count(counts: &str, what: &str) -> usize {
    counts
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(what))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Summary;

    fn summary(output: &str) -> (Summary, Vec<&str>) {
        let mut summary = Summary::default();
        let shown = output.lines().filter(|line| summary.take(line)).collect();
        summary.end();
        (summary, shown)
    }

    #[test]
    fn counts_are_summed_over_all_binaries() {
        let (summary, _) = summary(
            "test a ... ok\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
             test b ... FAILED\n\
             test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert!(summary.failed());
        assert_eq!(
            summary.report(),
            "failed:\n  b\nskipped:\n  1 marked #[ignore]\n7 passed, 1 failed, 1 skipped"
        );
    }

    #[test]
    fn a_test_that_says_skipped_is_not_counted_as_passed() {
        let (summary, shown) = summary(
            "test logs ... ok\n\nsuccesses:\n\n---- logs stdout ----\nSKIPPED: logs: no kubectl\nnoise\n\n\
             successes:\n    logs\n\ntest result: ok. 2 passed; 0 failed; 0 ignored",
        );
        assert_eq!(
            summary.report(),
            "skipped:\n  logs: no kubectl\n1 passed, 0 failed, 1 skipped"
        );
        assert!(
            !shown.contains(&"noise"),
            "output of passing tests is not shown: {shown:?}"
        );
        assert!(shown.contains(&"test logs ... ok"));
    }

    #[test]
    fn tests_of_one_name_in_two_binaries_are_two_that_were_skipped() {
        let binary = "running 2 tests\nSKIPPED: logs: no kubectl\n\
                      test logs ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";
        let (summary, _) = summary(&binary.repeat(2));
        assert_eq!(
            summary.report(),
            "skipped:\n  logs: no kubectl\n  logs: no kubectl\n2 passed, 0 failed, 2 skipped"
        );
    }

    #[test]
    fn a_binary_that_was_killed_counts_as_a_failure() {
        let (summary, _) = summary(
            "running 3 tests\ntest a ... ok\n\nrunning 1 test\ntest b ... ok\n\n\
             test result: ok. 1 passed; 0 failed; 0 ignored\nrunning 2 tests\n",
        );
        let lost =
            |tests| format!("  a binary of {tests} tests ended without a result; see above\n");
        assert_eq!(
            summary.report(),
            format!(
                "failed:\n{}{}1 passed, 2 failed, 0 skipped",
                lost(3),
                lost(2)
            )
        );
    }

    #[test]
    fn what_passes_when_tried_again_is_told_as_flaky_and_what_fails_again_has_failed() {
        let first = "running 3 tests\ntest a ... FAILED\ntest b::c ... FAILED\n\
                     test result: FAILED. 1 passed; 2 failed; 0 ignored";
        let (mut one, _) = summary(first);
        assert_eq!(one.to_be_tried_again(), ["a", "b::c"]);
        let (again, _) = summary(
            "test a ... ok\ntest b::c ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored",
        );
        one.tried_again(&again);
        assert!(one.failed());
        assert_eq!(
            one.report(),
            "failed:\n  b::c\nflaky (failed, and passed when tried again alone):\n  a\n\
             2 passed, 1 failed, 0 skipped"
        );
        let (mut one, _) = summary(first);
        let (again, _) = summary("test result: ok. 2 passed; 0 failed; 0 ignored");
        one.tried_again(&again);
        assert!(!one.failed());
        // Names that nothing answers to prove nothing.
        let (mut one, _) = summary(first);
        one.tried_again(&Summary::default());
        assert!(one.failed());
    }

    #[test]
    fn a_binary_that_crashed_at_its_end_is_not_accounted_for_by_a_test_that_failed() {
        let (one, _) = summary(
            "running 2 tests\ntest a ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n\
             running 1 test\ntest b ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!(one.to_be_tried_again(), ["a"]);
        assert!(one.accounts_for(1));
        assert!(!one.accounts_for(2));
        // What cargo did not say is not known to be good either.
        assert!(!one.accounts_for(0));
    }

    #[test]
    fn a_test_that_skips_a_part_of_its_work_both_times_is_flaky_like_any_other() {
        let (mut one, _) = summary(
            "running 2 tests\nSKIPPED: a: no other containerd\ntest a ... FAILED\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored",
        );
        assert!(one.report().ends_with("1 passed, 1 failed, 0 skipped"));
        let (again, _) = summary(
            "running 1 test\nSKIPPED: a: no other containerd\ntest a ... ok\n\
             test result: ok. 1 passed; 0 failed; 0 ignored",
        );
        one.tried_again(&again);
        assert!(!one.failed());
        assert!(one.report().ends_with("1 passed, 0 failed, 1 skipped"));
    }

    #[test]
    fn many_failures_and_what_was_killed_are_not_tried_again() {
        let many = "test a ... FAILED\n".repeat(4);
        let (many, _) = summary(&format!("{many}test result: FAILED. 0 passed; 4 failed"));
        assert!(many.to_be_tried_again().is_empty());
        let (killed, _) = summary("running 3 tests\ntest a ... ok\n");
        assert!(killed.failed() && killed.to_be_tried_again().is_empty());
    }

    #[test]
    fn output_of_failing_tests_is_shown() {
        let (_, shown) = summary(
            "test a ... FAILED\n\nsuccesses:\n\nfailures:\n\n---- a stdout ----\nwhy it failed\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored",
        );
        assert!(shown.contains(&"why it failed"));
    }
}
