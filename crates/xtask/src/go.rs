//! A Go compiler that is new enough to fetch the one a module asks for.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::debian;

/// From this version on, `go` fetches a newer toolchain by itself when a module needs it.
const SELF_UPDATING: (u32, u32) = (1, 21);

/// What an older `go` is made to fetch once, as an ordinary module.
const BOOTSTRAP: &str = "go1.24.4";

/// A `go` of at least [`SELF_UPDATING`], from the PATH, from Debian, or fetched by an older one.
pub(crate) fn obtain() -> anyhow::Result<PathBuf> {
    if !debian::on_path("go") {
        debian::install("golang-go")?;
    }
    let found = PathBuf::from("go");
    let printed = output(&found, &["env", "GOVERSION"])?;
    match version(&printed) {
        Some(version) if version >= SELF_UPDATING => Ok(found),
        _ => bootstrap(&found, printed.trim()),
    }
}

/// Toolchains are published as modules, so even a `go` that does not know about toolchains can
/// download one; it only leaves the programs without their execute bit.
fn bootstrap(old: &Path, old_version: &str) -> anyhow::Result<PathBuf> {
    let platform = output(old, &["env", "GOOS", "GOARCH"])?;
    let platform = platform.split_whitespace().collect::<Vec<_>>().join("-");
    let module = format!("golang.org/toolchain@v0.0.1-{BOOTSTRAP}.{platform}");
    eprintln!("{old_version} is too old; fetching {module}");
    let answer = output(old, &["mod", "download", "-json", &module])
        .with_context(|| format!("cannot fetch {module}; install Go 1.21 or newer"))?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    let dir = PathBuf::from(answer["Dir"].as_str().context("go named no directory")?);
    for programs in [
        dir.join("bin"),
        dir.join(format!("pkg/tool/{}", platform.replace('-', "_"))),
    ] {
        for program in fs::read_dir(&programs)? {
            fs::set_permissions(program?.path(), fs::Permissions::from_mode(0o555))?;
        }
    }
    Ok(dir.join("bin/go"))
}

fn output(go: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(go)
        .args(arguments)
        .output()
        .context("cannot run go")?;
    anyhow::ensure!(
        output.status.success(),
        "go {} failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// `go1.26.1` is (1, 26).
fn version(printed: &str) -> Option<(u32, u32)> {
    let mut parts = printed.trim().strip_prefix("go")?.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts
        .next()?
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()?;
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_version_is_read_whatever_follows_it() {
        assert_eq!(version("go1.26.1\n"), Some((1, 26)));
        assert_eq!(version("go1.21"), Some((1, 21)));
        assert_eq!(version("go1.25rc1"), Some((1, 25)));
        assert_eq!(version("devel +abc"), None);
    }
}
