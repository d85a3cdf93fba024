//! Control groups: they tell who belongs to a container, without the runtime and without memory.
//!
//! Runtimes put a container into a group that has its ID in its name, and whatever it starts is
//! born there. Only a privileged process can leave.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use belay_shim::kill::{self, Prey};
use belay_shim::proc::{self, Process};

use crate::RuntimeError;

const ROOT: &str = "/sys/fs/cgroup";

/// Whether a process whose groups are listed in `groups` belongs to the container.
pub(crate) fn holds(groups: &str, id: &str) -> bool {
    let named = |component: &str| {
        component == id
            || component
                .strip_suffix(".scope")
                .and_then(|scope| scope.strip_suffix(id))
                .is_some_and(|prefix| prefix.ends_with('-'))
    };
    groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| path.split('/').any(named))
}

/// Kills everything that belongs to a container. Blocks; returns what could not be killed.
pub(crate) fn kill_all(id: &str) -> Result<Vec<String>, RuntimeError> {
    let mut look = |all: &[Process]| {
        let mut members = HashSet::new();
        for process in all.iter().filter(|process| !process.is_dead()) {
            match fs::read_to_string(format!("/proc/{}/cgroup", process.pid)) {
                Ok(groups) if holds(&groups, id) => {
                    members.insert(process.pid);
                }
                Err(error) if proc::is_blind(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(Prey {
            members,
            ..Prey::default()
        })
    };
    kill::kill_prey(&mut look, kill::PATIENCE, &mut || ()).map_err(RuntimeError::blind())
}

/// Where the kernel counts whom it has killed in a group for want of memory. With the group it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OomCount(PathBuf);

impl OomCount {
    /// That of the group that a process is in.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Self::among(&groups)
    }

    fn among(groups: &str) -> Option<Self> {
        let own = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let memory = controllers.split(',').any(|one| one == "memory");
            memory.then(|| format!("{ROOT}/memory{path}/memory.oom_control"))
        });
        let unified = || {
            let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
            Some(format!("{ROOT}{path}/memory.events"))
        };
        own.or_else(unified).map(|path| OomCount(path.into()))
    }

    /// Whether it has killed anybody, as far as that can still be read.
    pub(crate) fn has_killed(&self) -> bool {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let mut counts = text
            .lines()
            .filter_map(|line| line.strip_prefix("oom_kill "));
        counts.any(|count| count.trim() != "0")
    }
}

/// Removes a group, in every hierarchy, that nobody is in any more.
pub(crate) fn remove(parent: &str) {
    let parent = parent.trim_start_matches('/');
    if parent.is_empty() {
        return;
    }
    for hierarchy in hierarchies() {
        // One that is still in use is busy, and goes with its last sandbox.
        let _ = remove_empty(&hierarchy.join(parent));
    }
}

/// Where groups are: below the root itself, and where every controller has its own, below each.
fn hierarchies() -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from(ROOT)];
    let below = fs::read_dir(ROOT).into_iter().flatten().flatten();
    all.extend(below.map(|entry| entry.path()).filter(|path| path.is_dir()));
    all
}

fn remove_empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_empty(&entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_known_by_its_group_and_not_by_a_name_that_looks_alike() {
        let id = "0123abcd";
        for groups in [
            "5:memory:/belay/pod1/0123abcd\n0::/",
            "0::/kubepods.slice/cri-containerd-0123abcd.scope",
            "0::/system.slice/crio-0123abcd.scope/inner",
            "3:cpu,cpuacct:/../../0123abcd",
        ] {
            assert!(holds(groups, id), "{groups}");
        }
        for groups in [
            "",
            "0::/",
            "0::/belay/0123abcde",
            "0::/belay/x0123abcd.scope",
            "0::/0123abcd-old",
            "1:name=0123abcd:/",
        ] {
            assert!(!holds(groups, id), "{groups}");
        }
    }

    #[test]
    fn the_count_of_the_killed_is_where_the_memory_is_counted() {
        let found = |groups| OomCount::among(groups).map(|count| count.0);
        let apart = "7:cpu,cpuacct:/a\n5:memory:/belay/pod1/0123\n0::/b";
        let path = "/sys/fs/cgroup/memory/belay/pod1/0123/memory.oom_control";
        assert_eq!(found(apart), Some(path.into()));
        let path = "/sys/fs/cgroup/belay/0123/memory.events";
        assert_eq!(found("0::/belay/0123\n"), Some(path.into()));
        assert_eq!(found(""), None);
    }

    #[test]
    fn a_kill_is_one_that_was_counted() {
        let dir = tempfile::tempdir().unwrap();
        let count = OomCount(dir.path().join("memory.oom_control"));
        assert!(!count.has_killed(), "it is gone");
        for (text, killed) in [
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", true),
            ("oom_kill_disable 1\nunder_oom 1\noom_kill 0\n", false),
            ("low 0\nmax 7\noom 2\noom_kill 12\noom_group_kill 0\n", true),
        ] {
            fs::write(&count.0, text).unwrap();
            assert_eq!(count.has_killed(), killed, "{text}");
        }
    }

    #[test]
    fn nobody_is_killed_for_a_container_that_is_not_there() {
        assert!(kill_all("no-such-container-id").unwrap().is_empty());
    }
}
