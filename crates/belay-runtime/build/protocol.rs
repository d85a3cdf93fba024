//! Makes clients from the protocol files, without a `protoc` on the machine.

use std::path::PathBuf;

use crate::variable;

const FILES: [&str; 6] = [
    "cri.proto",
    "tasks.proto",
    "containers.proto",
    "content.proto",
    "images.proto",
    "leases.proto",
];

pub(crate) fn build() {
    let dir = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("proto");
    println!("cargo::rerun-if-changed={}", dir.display());
    let files = protox::compile(FILES, [&dir])
        .unwrap_or_else(|error| panic!("the files in {}: {error:?}", dir.display()));
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .include_file("protocol.rs")
        .compile_fds(files)
        .unwrap_or_else(|error| panic!("cannot make clients: {error}"));
}
