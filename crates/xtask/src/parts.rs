//! The real parts that tests run on: what is there, what is installed, what is built.

use std::path::{Path, PathBuf};

use crate::{
    debian,
    modules::{CONTAINERD, ETCD, KUBERNETES},
};

/// Programs of the tests and the packages of Debian that have them.
const DEBIAN: [(&str, &str); 7] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("busybox", "busybox-static"),
    ("nginx", "nginx"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("setsid", "util-linux"),
];

/// The network plugins are no programs on anybody's PATH.
const PLUGINS: (&str, &str) = ("/usr/lib/cni/bridge", "containernetworking-plugins");

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
    missing.iter().map(|error| format!("{error:#}")).collect()
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
