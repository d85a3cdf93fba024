//! Makes the client with which tests run pods as a kubelet does.

fn main() {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["kubelet.proto"], ["proto"])
        .unwrap_or_else(|error| panic!("proto/kubelet.proto: {error:?}"));
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .include_file("protocol.rs")
        .compile_fds(files)
        .unwrap_or_else(|error| panic!("cannot make a client: {error}"));
}
