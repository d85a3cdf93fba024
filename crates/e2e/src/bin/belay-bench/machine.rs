//! What the figures were measured on.

use std::{fs, path::Path, process::Command};

pub(crate) fn describe() -> String {
    let cpu = first("/proc/cpuinfo", "model name");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = first("/proc/meminfo", "MemTotal");
    let memory = memory
        .trim_end_matches(" kB")
        .parse::<f64>()
        .unwrap_or_default()
        / 1048576.0;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = fs::read_to_string("/etc/debian_version").map_or_else(
        |_| "not Debian".to_owned(),
        |version| format!("Debian {}", version.trim()),
    );
    let rustc = output("rustc", &["--version"]);
    let place = file_system(&std::env::temp_dir());
    let date = date();
    format!(
        "| machine | |\n|---|---|\n\
         | processor | {cpu}, {cores} cores used by server, nodes and clients together |\n\
         | memory | {memory:.0} GiB |\n\
         | system | {system}, Linux {}, data on {place} |\n\
         | compiler | {rustc} |\n\
         | date | {date} |\n",
        without_vendor(kernel.trim())
    )
}

/// The day of this run.
pub(crate) fn date() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%d").to_string()
}

/// `6.1.0-37-amd64` without what follows the second dash: whoever built the kernel says there
/// what they please.
fn without_vendor(release: &str) -> &str {
    let mut dashes = release.match_indices('-');
    dashes.nth(1).map_or(release, |(at, _)| &release[..at])
}

/// The type of the file system that holds `dir`: that of the longest mount point above it.
fn file_system(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| dir.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map_or_else(
            || "an unknown file system".to_owned(),
            |(_, kind)| kind.to_owned(),
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
