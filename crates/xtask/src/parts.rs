//! The real parts that tests run on: what is there, what is installed, what is built.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{
    debian,
    modules::{CONTAINERD, ETCD, KUBERNETES},
};

/// Programs of the tests and the packages of Debian that have them.
const DEBIAN: [(&str, &str); 7] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("nginx", "nginx"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("setsid", "util-linux"),
    ("kill", "procps"),
];

/// The network plugins are no programs on anybody's PATH.
const PLUGINS: (&str, &str) = ("/usr/lib/cni/bridge", "containernetworking-plugins");

/// What the tests' images are made of. Debian's other busybox has the same path and loads libraries,
/// which are not in those images.
const BUSYBOX: (&str, &str) = ("/bin/busybox", "busybox-static");

/// Installs what Debian has, and returns what could not be had.
pub(crate) fn debian() -> Vec<String> {
    let mut missing: Vec<_> = DEBIAN
        .iter()
        .filter_map(|(program, package)| debian::provide(program, package).err())
        .collect();
    let (file, package) = PLUGINS;
    if !Path::new(file).is_file() {
        missing.extend(debian::install(package).err());
    }
    let (file, package) = BUSYBOX;
    if !is_static(Path::new(file)) {
        missing.extend(debian::install(package).err());
    }
    missing.iter().map(|error| format!("{error:#}")).collect()
}

/// Whether the program is there and loads nothing, as `ldd` tells it.
fn is_static(program: &Path) -> bool {
    let listed = Command::new("ldd").arg(program).output();
    let loads = |listed: &[u8]| {
        let listed = String::from_utf8_lossy(listed);
        listed.split_whitespace().any(|word| word.starts_with('/'))
    };
    program.is_file() && listed.is_ok_and(|listed| !loads(&listed.stdout))
}

/// Builds Kubernetes, etcd and containerd, and returns the variables that tests find them by.
pub(crate) fn kubernetes() -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let kubernetes = KUBERNETES.obtain_all()?;
    Ok(vec![
        ("BELAY_KUBECTL", kubernetes.join("kubectl")),
        ("BELAY_KUBERNETES", kubernetes),
        ("BELAY_ETCD", ETCD.obtain_all()?),
        ("BELAY_TEST_CONTAINERD", CONTAINERD.obtain_all()?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loads_libraries_or_is_not_there_is_not_static() {
        let own = std::env::current_exe().unwrap_or_default();
        assert!(!is_static(&own), "this test loads the C library");
        assert!(!is_static(Path::new("/no/such/program")));
    }
}
