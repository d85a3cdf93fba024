//! What is made before the library itself is compiled.

mod protocol;
mod shim;

fn main() {
    println!("cargo::rerun-if-changed=build");
    protocol::build();
    shim::build();
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}
