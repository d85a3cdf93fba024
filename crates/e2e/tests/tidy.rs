//! The documentation is about this program: nothing it must have is missing, no link leads nowhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

use belay_api::fanout::NotificationErrorType;
use belay_api::hook::HookErrorType;
use belay_api::notification::ErrorType;
use belay_testkit::source::has_test;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root().join(path)).map_err(|error| anyhow::anyhow!("{path}: {error}"))
}

#[test]
fn every_error_type_has_a_page_that_says_what_to_do() -> anyhow::Result<()> {
    let index = read("docs/errors/README.md")?;
    let of_pods = ErrorType::ALL.map(ErrorType::as_str);
    let of_fanouts = NotificationErrorType::ALL.map(NotificationErrorType::as_str);
    let of_hooks = HookErrorType::ALL.map(HookErrorType::as_str);
    for error in of_pods.into_iter().chain(of_fanouts).chain(of_hooks) {
        let page = read(&format!("docs/errors/{error}.md"))?;
        assert!(page.starts_with(&format!("# {error}\n")), "{error}");
        assert!(
            page.contains("**Means:**") && page.contains("**Do:**"),
            "{error}"
        );
        assert!(
            index.contains(&format!("[{error}]({error}.md)")),
            "{error} is not in the index"
        );
    }
    Ok(())
}

#[test]
fn every_crate_is_in_the_code_map() -> anyhow::Result<()> {
    let map = read("docs/architecture.md")?;
    for entry in fs::read_dir(root().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        assert!(
            map.contains(&format!("**`{name}`**")),
            "{name} is not in docs/architecture.md"
        );
    }
    Ok(())
}

#[test]
fn every_link_between_pages_leads_somewhere() -> anyhow::Result<()> {
    let mut pages = vec![
        root().join("README.md"),
        root().join("CONTRIBUTING.md"),
        root().join("CHANGELOG.md"),
    ];
    let mut dirs = vec![root().join("docs")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    for page in pages {
        let text = fs::read_to_string(&page)?;
        for (_, rest) in text
            .match_indices("](")
            .map(|(at, _)| text.split_at(at + 2))
        {
            let link = rest.split(')').next().unwrap_or_default();
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let found = page.parent().is_some_and(|dir| dir.join(target).exists());
            assert!(
                found,
                "{} links to {target}, which is not there",
                page.display()
            );
        }
    }
    Ok(())
}

/// Each table in `promises` names for every line of a seed or two the tests that try it.
#[test]
fn every_test_that_keeps_a_promise_is_there() -> anyhow::Result<()> {
    for table in [
        include_str!("promises/termination.md"),
        include_str!("promises/notifications.md"),
    ] {
        every_row_names_tests(table)?;
    }
    Ok(())
}

fn every_row_names_tests(table: &str) -> anyhow::Result<()> {
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let tests: Vec<(&str, &str)> = row
            .split('`')
            .filter_map(|part| part.split_once(".rs: "))
            .collect();
        let heads = ["| line ", "| sentence "];
        assert!(
            !tests.is_empty() || heads.iter().any(|head| row.starts_with(head)),
            "nothing tests this: {row}"
        );
        for (path, test) in tests {
            let text = read(&format!("{path}.rs"))?;
            assert!(has_test(&text, test), "{path}.rs has no test {test}");
            named += 1;
        }
    }
    assert!(named > 0);
    Ok(())
}
