//! The program: see the library's documentation.

fn main() -> std::process::ExitCode {
    belay_shim::main()
}
