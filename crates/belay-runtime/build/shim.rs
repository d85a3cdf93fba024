//! Builds the shim as a small static program, for the library to carry along.
//!
//! It is a nested cargo with a target directory and flags of its own: a shim must not depend on
//! how the agent around it is built, and it must start without a dynamic linker.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::variable;

/// Static and at a fixed address: nothing to relocate at start, so its pages stay shared.
const FLAGS: [&str; 2] = ["-Ctarget-feature=+crt-static", "-Crelocation-model=static"];

pub(crate) fn build() {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let shim = here.join("../belay-shim");
    for input in ["src", "Cargo.toml", "../../Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", shim.join(input).display());
    }
    let built = compile(&shim, &out.join("shim"));
    fs::copy(&built, out.join("belay-shim"))
        .unwrap_or_else(|error| panic!("cannot copy {}: {error}", built.display()));
}

fn compile(shim: &Path, target_dir: &Path) -> PathBuf {
    let target = variable("TARGET");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(shim);
    cargo.args([
        "build",
        "--locked",
        "--profile",
        "shim",
        "--bin",
        "belay-shim",
    ]);
    cargo.args(["--target", &target]);
    cargo.arg("--target-dir").arg(target_dir);
    for (name, _) in env::vars_os() {
        if disturbs(&name.to_string_lossy()) {
            cargo.env_remove(name);
        }
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    let status = cargo
        .status()
        .unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    assert!(
        status.success(),
        "building belay-shim failed; its errors are above"
    );
    target_dir.join(target).join("shim/belay-shim")
}

/// What cargo sets for build scripts, and what its caller set for the outer build. Where crates
/// come from (CARGO_HOME, CARGO_NET_..., CARGO_REGISTRIES_...) stays.
fn disturbs(name: &str) -> bool {
    let kept = [
        "CARGO_HOME",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_HTTP_",
        "CARGO_SOURCE_",
    ];
    let cargo = name.starts_with("CARGO") && !kept.iter().any(|prefix| name.starts_with(prefix));
    let linker = name.starts_with("CARGO_TARGET_") && name.ends_with("_LINKER");
    let flags = ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"];
    (cargo && !linker) || flags.contains(&name) || name.starts_with("CLIPPY_")
}
