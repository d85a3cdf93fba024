//! Programs that are built from Go modules, once, into the cache.

use std::{fs, path::PathBuf, process::Command};

use anyhow::Context;

use crate::{go, workspace};

/// A module and the programs in it that we use.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) name: &'static str,
    pub(crate) module: &'static str,
    pub(crate) version: &'static str,
    /// Program and package.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    /// Version of the modules that this one keeps in its own tree and replaces by directories.
    pub(crate) staging: Option<&'static str>,
    /// Variables that the module's release scripts stamp the version into.
    pub(crate) stamps: &'static [&'static str],
}

pub(crate) const KUBERNETES: Bundle = Bundle {
    name: "kubernetes",
    module: "k8s.io/kubernetes",
    version: "v1.36.3",
    programs: &[
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        (
            "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
        ),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    ],
    staging: Some("v0.36.3"),
    stamps: &[
        "k8s.io/client-go/pkg/version.gitVersion",
        "k8s.io/component-base/version.gitVersion",
    ],
};

pub(crate) const ETCD: Bundle = Bundle {
    name: "etcd",
    module: "go.etcd.io/etcd/server/v3",
    version: "v3.6.5",
    programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    staging: None,
    stamps: &[],
};

pub(crate) const CONTAINERD: Bundle = Bundle {
    name: "containerd",
    module: "github.com/containerd/containerd/v2",
    version: "v2.3.7",
    programs: &[
        (
            "containerd",
            "github.com/containerd/containerd/v2/cmd/containerd",
        ),
        (
            "containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        ),
        ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ],
    staging: None,
    stamps: &["github.com/containerd/containerd/v2/version.Version"],
};

impl Bundle {
    /// Where its programs lie once they are built.
    pub(crate) fn dir(&self) -> anyhow::Result<PathBuf> {
        Ok(workspace::cache()?.join(format!("{}-{}", self.name, self.version)))
    }

    /// Builds the programs that are not there yet, and returns their directory.
    pub(crate) fn obtain(&self, wanted: &[&str]) -> anyhow::Result<PathBuf> {
        let dir = self.dir()?;
        let missing: Vec<_> = self
            .programs
            .iter()
            .filter(|(program, _)| wanted.contains(program) && !dir.join(program).is_file())
            .collect();
        if missing.is_empty() {
            return Ok(dir);
        }
        let names: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
        let go = go::obtain()
            .with_context(|| format!("no Go compiler to build {} with", names.join(", ")))?;
        eprintln!(
            "building {} {} from its Go module (once, some minutes)",
            names.join(", "),
            self.version
        );
        fs::create_dir_all(&dir)?;
        let scratch = Scratch {
            go,
            dir: dir.join("module"),
        };
        self.prepare(&scratch)?;
        for (program, package) in missing {
            let unfinished = dir.join(format!("{program}.building"));
            let stamps: Vec<_> = self
                .stamps
                .iter()
                .map(|variable| format!("-X {variable}={}", self.version))
                .collect();
            let output = unfinished
                .to_str()
                .context("the cache's path is not UTF-8")?;
            scratch.run(&[
                "build",
                "-ldflags",
                &stamps.join(" "),
                "-o",
                output,
                package,
            ])?;
            fs::rename(&unfinished, dir.join(program))?;
        }
        Ok(dir)
    }

    /// All of its programs.
    pub(crate) fn obtain_all(&self) -> anyhow::Result<PathBuf> {
        let all: Vec<_> = self.programs.iter().map(|(program, _)| *program).collect();
        self.obtain(&all)
    }

    /// A scratch module that requires this one: that is all it takes to build its programs.
    fn prepare(&self, scratch: &Scratch) -> anyhow::Result<()> {
        let versioned = format!("{}@{}", self.module, self.version);
        fs::create_dir_all(&scratch.dir)?;
        let go_mod = scratch.dir.join("go.mod");
        fs::write(&go_mod, format!("module belay/{}\n", self.name))?;
        if let Some(staging) = self.staging {
            let answer = scratch.run(&["mod", "download", "-json", &versioned])?;
            let answer: serde_json::Value = serde_json::from_str(&answer)?;
            let theirs = answer["GoMod"].as_str().context("go named no go.mod")?;
            let theirs = fs::read_to_string(theirs)?;
            fs::write(&go_mod, scratch_module(self.name, &theirs, staging))?;
        }
        // What nothing imports, `go get` would not complete the requirements of.
        let imports: String = self
            .programs
            .iter()
            .map(|(_, package)| format!("import _ \"{package}\"\n"))
            .collect();
        fs::write(
            scratch.dir.join("tools.go"),
            format!("//go:build tools\n\npackage tools\n\n{imports}"),
        )?;
        scratch.run(&["get", &versioned]).map(drop)
    }
}

/// Where a module is built, and with what.
struct Scratch {
    go: PathBuf,
    dir: PathBuf,
}

impl Scratch {
    fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.go)
            .args(arguments)
            .current_dir(&self.dir)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=mod")
            // Distributions pin their own version; Kubernetes asks for a newer one by number.
            .env("GOTOOLCHAIN", "auto")
            .env_remove("GOROOT")
            .output()
            .with_context(|| format!("cannot run {}", self.go.display()))?;
        anyhow::ensure!(
            output.status.success(),
            "go {} failed in {}: {}{}",
            arguments.join(" "),
            self.dir.display(),
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// Our go.mod from theirs: its language version, and a published version for every module that it
/// replaces by a directory of its tree.
fn scratch_module(name: &str, theirs: &str, staging: &str) -> String {
    let mut ours = format!("module belay/{name}\n\n");
    for line in theirs.lines().map(str::trim) {
        if line.starts_with("go ") {
            ours.push_str(line);
            ours.push_str("\n\n");
        }
        if let Some((name, place)) = line.split_once(" => ")
            && place.starts_with("./staging/")
        {
            let name = name.trim_start_matches("replace ").trim();
            ours.push_str(&format!("replace {name} => {name} {staging}\n"));
        }
    }
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_of_the_tree_is_replaced_by_its_published_version() {
        let theirs = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/api v0.0.0\n)\n\n\
                      replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tother.io/x => ../x\n)\n";
        assert_eq!(
            scratch_module("kubernetes", theirs, "v0.36.3"),
            "module belay/kubernetes\n\ngo 1.26.0\n\nreplace k8s.io/api => k8s.io/api v0.36.3\n"
        );
    }
}
