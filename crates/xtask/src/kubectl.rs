//! A stock kubectl: the one on the PATH when it is one, else built from its Go module.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::modules::KUBERNETES;

/// Older ones run commands in pods over SPDY, which Belay does not speak.
const OLDEST_MINOR: u32 = 31;

/// The path of a kubectl to test with.
pub(crate) fn obtain() -> anyhow::Result<PathBuf> {
    let built = KUBERNETES.dir()?.join("kubectl");
    for candidate in [Path::new("kubectl"), &built] {
        if client_version(candidate).is_some_and(|version| is_stock(&version)) {
            return Ok(which(candidate));
        }
    }
    Ok(KUBERNETES.obtain(&["kubectl"])?.join("kubectl"))
}

fn client_version(kubectl: &Path) -> Option<String> {
    let output = Command::new(kubectl)
        .args(["version", "--client", "-o", "json"])
        .output()
        .ok()?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(answer["clientVersion"]["gitVersion"].as_str()?.to_owned())
}

/// A vendor's build says so behind its version (`v1.32.4-dispatcher`, `v1.31.2+k3s1`).
fn is_stock(version: &str) -> bool {
    let Some(numbers) = version.strip_prefix('v') else {
        return false;
    };
    let numbers: Option<Vec<u32>> = numbers.split('.').map(|part| part.parse().ok()).collect();
    matches!(numbers.as_deref(), Some([1, minor, _]) if *minor >= OLDEST_MINOR)
}

/// A bare name is looked up, so that tests get a path that holds in every directory.
fn which(program: &Path) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| program.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::is_stock;

    #[test]
    fn only_an_unchanged_kubectl_of_a_recent_version_is_stock() {
        assert!(is_stock("v1.31.0"));
        assert!(is_stock("v1.36.3"));
        assert!(!is_stock("v0.0.0-master+$Format:%H$"));
        assert!(!is_stock("v1.30.14"));
        assert!(!is_stock("v1.32.4-dispatcher"));
        assert!(!is_stock("v1.31.0+k3s1"));
        assert!(!is_stock(""));
    }
}
