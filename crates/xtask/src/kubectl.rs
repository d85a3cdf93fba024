//! A stock kubectl: the one on the PATH when it is one, else built from its Go module.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::{go, workspace};

/// What is built when none is found.
const KUBERNETES: &str = "v1.36.3";
/// The modules that Kubernetes keeps in its own tree carry the same version with a 0 in front.
const STAGING: &str = "v0.36.3";
/// Older ones differ in what they ask of a server (OpenAPI v3, server-side validation).
const OLDEST_MINOR: u32 = 30;

/// The path of a kubectl to test with.
pub(crate) fn obtain() -> anyhow::Result<PathBuf> {
    let built = workspace::cache()?
        .join("bin")
        .join(format!("kubectl-{KUBERNETES}"));
    for candidate in [Path::new("kubectl"), &built] {
        if client_version(candidate).is_some_and(|version| is_stock(&version)) {
            return Ok(which(candidate));
        }
    }
    build(&built)?;
    Ok(built)
}

fn client_version(kubectl: &Path) -> Option<String> {
    let output = Command::new(kubectl)
        .args(["version", "--client", "-o", "json"])
        .output()
        .ok()?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(answer["clientVersion"]["gitVersion"].as_str()?.to_owned())
}

/// A vendor's build says so behind its version (`v1.32.4-dispatcher`, `v1.30.2+k3s1`).
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

/// A scratch module that requires Kubernetes and replaces the modules of its own tree by their
/// published versions: that is all it takes to build one of its programs.
fn build(target: &Path) -> anyhow::Result<()> {
    let go = go::obtain().context("no stock kubectl, and no Go compiler to build one")?;
    let scratch = workspace::cache()?.join("kubectl-module");
    fs::create_dir_all(&scratch)?;
    println!(
        "building kubectl {KUBERNETES} with {} (once, a few minutes)",
        go.display()
    );

    let run = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new(&go)
            .args(arguments)
            .current_dir(&scratch)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=mod")
            // Distributions pin their own version; Kubernetes asks for a newer one by number.
            .env("GOTOOLCHAIN", "auto")
            .env_remove("GOROOT")
            .output()
            .with_context(|| format!("cannot run {}", go.display()))?;
        anyhow::ensure!(
            output.status.success(),
            "go {} failed in {}: {}{}",
            arguments.join(" "),
            scratch.display(),
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    };

    let module = format!("k8s.io/kubernetes@{KUBERNETES}");
    fs::write(scratch.join("go.mod"), "module belay/kubectl\n")?;
    let downloaded: serde_json::Value =
        serde_json::from_str(&run(&["mod", "download", "-json", &module])?)?;
    let theirs = downloaded["GoMod"].as_str().context("go named no go.mod")?;
    fs::write(
        scratch.join("go.mod"),
        scratch_module(&fs::read_to_string(theirs)?),
    )?;
    fs::write(
        scratch.join("tools.go"),
        "//go:build tools\n\npackage tools\n\nimport _ \"k8s.io/kubernetes/cmd/kubectl\"\n",
    )?;
    run(&["get", &module])?;
    let unfinished = target.with_extension("building");
    if let Some(dir) = target.parent() {
        fs::create_dir_all(dir)?;
    }
    let unfinished_path = unfinished
        .to_str()
        .context("the cache's path is not UTF-8")?;
    // Kubernetes' release scripts stamp the version in the same way.
    let stamp = [
        "k8s.io/client-go/pkg/version",
        "k8s.io/component-base/version",
    ]
    .map(|package| format!("-X {package}.gitVersion={KUBERNETES}"))
    .join(" ");
    let program = "k8s.io/kubernetes/cmd/kubectl";
    run(&["build", "-ldflags", &stamp, "-o", unfinished_path, program])?;
    fs::rename(&unfinished, target)?;
    Ok(())
}

/// Our go.mod from that of Kubernetes: its language version, and a published version for every
/// module that it replaces by a directory of its tree.
fn scratch_module(theirs: &str) -> String {
    let mut ours = String::from("module belay/kubectl\n\n");
    for line in theirs.lines().map(str::trim) {
        if line.starts_with("go ") {
            ours.push_str(line);
            ours.push_str("\n\n");
        }
        if let Some((name, place)) = line.split_once(" => ")
            && place.starts_with("./staging/")
        {
            let name = name.trim_start_matches("replace ").trim();
            ours.push_str(&format!("replace {name} => {name} {STAGING}\n"));
        }
    }
    ours
}

#[cfg(test)]
mod tests {
    use super::{is_stock, scratch_module};

    #[test]
    fn only_an_unchanged_kubectl_of_a_recent_version_is_stock() {
        assert!(is_stock("v1.30.0"));
        assert!(is_stock("v1.36.3"));
        assert!(!is_stock("v0.0.0-master+$Format:%H$"));
        assert!(!is_stock("v1.29.9"));
        assert!(!is_stock("v1.32.4-dispatcher"));
        assert!(!is_stock("v1.31.0+k3s1"));
        assert!(!is_stock(""));
    }

    #[test]
    fn every_module_of_the_tree_is_replaced_by_its_published_version() {
        let theirs = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/api v0.0.0\n)\n\n\
                      replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tother.io/x => ../x\n)\n";
        assert_eq!(
            scratch_module(theirs),
            "module belay/kubectl\n\ngo 1.26.0\n\nreplace k8s.io/api => k8s.io/api v0.36.3\n"
        );
    }
}
