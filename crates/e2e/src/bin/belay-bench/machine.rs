//! What the figures were measured on.

use std::{fs, process::Command};

pub(crate) fn describe() -> String {
    let cpu = first("/proc/cpuinfo", "model name");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = first("/proc/meminfo", "MemTotal");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = fs::read_to_string("/etc/debian_version").map_or_else(
        |_| "not Debian".to_owned(),
        |version| format!("Debian {}", version.trim()),
    );
    let rustc = output("rustc", &["--version"]);
    let directory = std::env::temp_dir();
    let place = output(
        "stat",
        &["-f", "-c", "%T", &directory.display().to_string()],
    );
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d");
    format!(
        "| machine | |\n|---|---|\n\
         | processor | {cpu}, {cores} cores used by server, nodes and clients together |\n\
         | memory | {memory} |\n\
         | system | {system}, Linux {}, data on {place} |\n\
         | compiler | {rustc} |\n\
         | date | {date} |\n",
        kernel.trim()
    )
}

/// The value of the first line of a `name : value` file with that name.
fn first(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

fn output(program: &str, arguments: &[&str]) -> String {
    Command::new(program)
        .args(arguments)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_else(|_| "unknown".to_owned())
}
