//! Defaults that depend on the machine: where data lives and what the node is called.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The data directory when none is named: `/var/lib/belay` for root, else
/// `$XDG_STATE_HOME/belay` or `~/.local/state/belay`.
pub(crate) fn default_data_dir() -> anyhow::Result<PathBuf> {
    choose_data_dir(
        rustix::process::geteuid().is_root(),
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
        std::env::home_dir(),
    )
    .context("cannot tell where to keep data: neither XDG_STATE_HOME nor HOME is set; use --data-dir DIR")
}

fn choose_data_dir(
    root: bool,
    state_home: Option<PathBuf>,
    home: Option<PathBuf>,
) -> Option<PathBuf> {
    if root {
        return Some(PathBuf::from("/var/lib/belay"));
    }
    // The specification of XDG says that a relative path is to be ignored.
    let state_home = state_home.filter(|dir| dir.is_absolute());
    let base = state_home.or_else(|| {
        home.filter(|dir| dir.is_absolute())
            .map(|home| home.join(".local/state"))
    })?;
    Some(base.join("belay"))
}

/// Makes the data directory for its owner alone and returns its absolute path: sockets and
/// messages name it, whatever the working directory was.
pub(crate) fn prepare_data_dir(dir: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot make the data directory {}", dir.display()))?;
    dir.canonicalize()
        .with_context(|| format!("cannot read the data directory {}", dir.display()))
}

/// The node name when none is given: the host name as Kubernetes would have it.
pub(crate) fn default_node_name() -> String {
    let uname = rustix::system::uname();
    node_name_from(&uname.nodename().to_string_lossy())
}

/// A host name made fit for an object name: lower case, and anything but letters, digits, `-` and
/// `.` replaced.
fn node_name_from(host: &str) -> String {
    let name: String = host
        .to_ascii_lowercase()
        .chars()
        .map(|c| match c {
            'a'..='z' | '0'..='9' | '-' | '.' => c,
            _ => '-',
        })
        .take(63)
        .collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_follows_the_user() {
        let path = |p: &str| Some(PathBuf::from(p));
        let check = |root, state: &str, home: &str, expected: Option<&str>| {
            let some = |p: &str| (!p.is_empty()).then(|| PathBuf::from(p));
            let found = choose_data_dir(root, some(state), some(home));
            assert_eq!(found, expected.and_then(path));
        };
        check(true, "/state", "/root", Some("/var/lib/belay"));
        check(false, "/state", "/home/u", Some("/state/belay"));
        check(false, "", "/home/u", Some("/home/u/.local/state/belay"));
        check(
            false,
            "relative",
            "/home/u",
            Some("/home/u/.local/state/belay"),
        );
        check(false, "", "", None);
    }

    #[test]
    fn any_host_name_gives_a_valid_node_name() {
        for (host, expected) in [
            ("laptop", "laptop"),
            ("Ada's MacBook", "ada-s-macbook"),
            ("db-1.example.com", "db-1.example.com"),
            ("-x-", "x"),
            ("", "localhost"),
            ("___", "localhost"),
        ] {
            assert_eq!(node_name_from(host), expected);
        }
    }
}
