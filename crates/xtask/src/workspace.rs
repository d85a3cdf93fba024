//! Where things are: the source tree, the cache outside of it, the cargo that called us.

use std::{env, path::PathBuf, process::Command};

use anyhow::Context;

/// The root of the source tree.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = manifest
        .ancestors()
        .nth(2)
        .context("xtask lies two directories below the root")?;
    Ok(root.to_path_buf())
}

/// The cache for tools that are built once, outside the source tree.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let base = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
        (_, Some(home)) => PathBuf::from(home).join(".cache"),
        (_, None) => anyhow::bail!("neither XDG_CACHE_HOME nor HOME is set; set one of them"),
    };
    Ok(base.join("belay"))
}

/// Where cargo puts what it builds, whoever decided that.
pub(crate) fn target_dir() -> anyhow::Result<PathBuf> {
    let output = cargo()
        .current_dir(root()?)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let dir = answer["target_directory"]
        .as_str()
        .context("cargo named no target directory")?;
    Ok(PathBuf::from(dir))
}

/// The cargo that runs us, so that the toolchain stays the same.
///
/// What cargo says about xtask itself is taken out of its environment: build scripts that look at
/// it would run again, and most of the tree be compiled again, each time the one who asks changes.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let own = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name
            .to_str()
            .is_some_and(|name| own.iter().any(|prefix| name.starts_with(prefix)))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}
