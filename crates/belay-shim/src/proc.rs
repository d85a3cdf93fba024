//! What `/proc` says about processes: read at the edge, judged by pure functions.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};

use crate::sys::Pid;

/// The container a process belongs to; in the environment of everything that runs in it.
pub const CONTAINER_MARK: &str = "BELAY_CONTAINER_ID";
/// The attempt a process belongs to; in the environment of everything an exec starts.
pub const ATTEMPT_MARK: &str = "BELAY_ATTEMPT_ID";
/// In the environment of the shims of a container's execs: their descendants are the container's.
pub const SHIM_MARK: &str = "BELAY_SHIM_OF";

/// An environment is read up to here; the kernel allows no more than a quarter of the stack limit.
const MAX_ENVIRONMENT: u64 = 4 * 1024 * 1024;

/// One line of `/proc/<pid>/stat`, as far as we need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: Pid,
    pub comm: String,
    pub state: char,
    pub parent: Pid,
    pub group: Pid,
    pub session: Pid,
    pub threads: i64,
    /// When it was forked, in clock ticks since boot. With the boot ID and the number it names a
    /// process for good.
    pub start_time: u64,
}

impl Process {
    /// Reads one line of `stat`. The name may contain anything, also spaces and parentheses.
    pub fn parse(line: &str) -> Option<Self> {
        let open = line.find('(')?;
        let close = line.rfind(')')?;
        let pid = line.get(..open)?.trim().parse().ok()?;
        let comm = line.get(open + 1..close)?.to_owned();
        let rest: Vec<&str> = line.get(close + 1..)?.split_ascii_whitespace().collect();
        // The fields after the name begin with the third of proc(5).
        let field = |number: usize| rest.get(number - 3).copied();
        Some(Process {
            pid,
            comm,
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start_time: field(22)?.parse().ok()?,
        })
    }

    /// The process of this number; `None` when there is none. One that cannot be looked at is an
    /// error: it may well live.
    pub fn read(pid: Pid) -> io::Result<Option<Self>> {
        let bytes = match fs::read(format!("/proc/{pid}/stat")) {
            Ok(bytes) => bytes,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let process = Process::parse(&String::from_utf8_lossy(&bytes));
        process.map(Some).ok_or(io::ErrorKind::InvalidData.into())
    }

    /// Nothing of it runs any more. A process whose first thread has ended while others go on
    /// also shows as a zombie.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

/// Whether an error says that there is no such process (any more).
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether an error says that we cannot look at anybody just now, rather than something of the one
/// who was looked at.
pub fn is_blind(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    )
}

/// All processes that can be seen.
pub fn snapshot() -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<Pid>().ok());
        let Some(pid) = pid else { continue };
        match Process::read(pid) {
            // One that ended while we looked is simply not there.
            Ok(process) => all.extend(process),
            Err(error) if is_blind(&error) => return Err(error),
            // A system may hide from users what is not theirs.
            Err(_) => {}
        }
    }
    Ok(all)
}

/// The kernel's name for this boot.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// The environment a process was started with, or nothing where it may not be read.
pub fn environment(pid: Pid) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(format!("/proc/{pid}/environ"))
        .and_then(|file| file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes));
    match read {
        Err(error) if is_blind(&error) => Err(error),
        // What was read before an error is still the truth.
        Ok(_) | Err(_) => Ok(bytes),
    }
}

/// Whether an environment has exactly this variable.
pub fn has_variable(environment: &[u8], name: &str, value: &str) -> bool {
    environment.split(|byte| *byte == 0).any(|variable| {
        variable
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
            .is_some_and(|rest| rest == value.as_bytes())
    })
}

/// What belongs to an instance.
#[derive(Debug, Clone, Default)]
pub struct Membership {
    /// All descendants of this process, itself not.
    pub descendants_of: Option<Pid>,
    /// Everything with all of these variables in its environment, and all its descendants.
    pub marks: Vec<(&'static str, String)>,
    /// All descendants of the shims of this container's execs, the shims themselves not.
    pub execs_of: Option<String>,
    /// Nothing that was forked before this (clock ticks since boot) can belong.
    pub not_before: u64,
}

/// The numbers of a process's children, as the kernel lists them. `None` if the process is gone, or
/// if this kernel keeps no such lists.
///
/// The list may leave out some while others of it end, never all: an empty one is true.
pub fn children(pid: Pid) -> io::Result<Option<Vec<Pid>>> {
    let listed = || -> io::Result<Vec<Pid>> {
        let mut children = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let list = fs::read_to_string(thread?.path().join("children"))?;
            children.extend(
                list.split_ascii_whitespace()
                    .filter_map(|pid| pid.parse::<Pid>().ok()),
            );
        }
        Ok(children)
    };
    match listed() {
        Err(error) if is_blind(&error) => Err(error),
        listed => Ok(listed.ok()),
    }
}

/// The members among all processes. `environment` is asked only where it matters.
pub fn members(
    all: &[Process],
    rule: &Membership,
    environment: &mut dyn FnMut(Pid) -> io::Result<Vec<u8>>,
) -> io::Result<HashSet<Pid>> {
    find(all, rule, environment).map(|(members, _)| members)
}

/// The members, and the shims of the container's execs.
pub(crate) fn find(
    all: &[Process],
    rule: &Membership,
    environment: &mut dyn FnMut(Pid) -> io::Result<Vec<u8>>,
) -> io::Result<(HashSet<Pid>, HashSet<Pid>)> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for process in all {
        children
            .entry(process.parent)
            .or_default()
            .push(process.pid);
    }
    let mut members = HashSet::new();
    let mut shims: HashSet<Pid> = HashSet::new();
    if let Some(root) = rule.descendants_of {
        descend(root, &children, &mut members);
    }
    if !rule.marks.is_empty() || rule.execs_of.is_some() {
        for process in all {
            if process.start_time < rule.not_before || process.is_dead() {
                continue;
            }
            let environment = environment(process.pid)?;
            let has = |(name, value): &(&str, String)| has_variable(&environment, name, value);
            if !rule.marks.is_empty() && rule.marks.iter().all(has) {
                members.insert(process.pid);
                descend(process.pid, &children, &mut members);
            }
            // A shim leads a session. The process that forked it, and it itself before it has
            // made its session, have the mark too, but have nothing of the workload under them.
            if let Some(container) = &rule.execs_of
                && process.session == process.pid
                && has_variable(&environment, SHIM_MARK, container)
            {
                shims.insert(process.pid);
            }
        }
    }
    // A shim's child between fork and exec still has the shim's environment: it is told apart by
    // its parent, and belongs.
    for shim in &shims {
        descend(*shim, &children, &mut members);
    }
    if let Some(root) = rule.descendants_of {
        members.remove(&root);
    }
    Ok((members, shims))
}

fn descend(root: Pid, children: &HashMap<Pid, Vec<Pid>>, members: &mut HashSet<Pid>) {
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if *child != root && members.insert(*child) {
                open.push(*child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(pid: Pid, parent: Pid) -> Process {
        Process {
            pid,
            comm: "x".to_owned(),
            state: 'S',
            parent,
            group: pid,
            session: pid,
            threads: 1,
            start_time: 100,
        }
    }

    fn sorted(members: HashSet<Pid>) -> Vec<Pid> {
        let mut members: Vec<Pid> = members.into_iter().collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = "42 (a) (b c)) S 7 42 41 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 12345 1 2";
        let process = Process::parse(line).unwrap();
        assert_eq!(process.comm, "a) (b c)");
        assert_eq!((process.pid, process.parent, process.group), (42, 7, 42));
        assert_eq!(
            (process.session, process.threads, process.start_time),
            (41, 3, 12345)
        );
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let process = Process::read(pid).unwrap().unwrap();
        assert_eq!(process.pid, pid);
        assert!(!process.is_dead());
        assert!(snapshot().unwrap().iter().any(|process| process.pid == pid));
    }

    #[test]
    fn the_children_of_a_process_are_listed_whichever_of_its_threads_started_them() {
        let own = Pid::try_from(std::process::id()).unwrap();
        let start = || {
            std::process::Command::new("sleep")
                .arg("1000")
                .spawn()
                .unwrap()
        };
        let mut sleeps = [start(), std::thread::spawn(start).join().unwrap()];
        let listed = children(own).unwrap().unwrap();
        for sleep in &mut sleeps {
            let pid = Pid::try_from(sleep.id()).unwrap();
            assert!(listed.contains(&pid), "{pid} is not in {listed:?}");
            assert_eq!(children(pid).unwrap(), Some(Vec::new()));
            sleep.kill().unwrap();
            sleep.wait().unwrap();
            assert_eq!(children(pid).unwrap(), None);
        }
    }

    #[test]
    fn a_zombie_with_living_threads_is_not_dead() {
        let mut zombie = process(5, 1);
        zombie.state = 'Z';
        assert!(zombie.is_dead());
        zombie.threads = 2;
        assert!(!zombie.is_dead());
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_the_root_is_not_one() {
        let all = [
            process(10, 1),
            process(11, 10),
            process(12, 11),
            process(13, 1),
        ];
        let rule = Membership {
            descendants_of: Some(10),
            ..Membership::default()
        };
        assert_eq!(
            sorted(members(&all, &rule, &mut |_| Ok(Vec::new())).unwrap()),
            [11, 12]
        );
    }

    #[test]
    fn marked_processes_belong_with_what_they_started() {
        let all = [process(20, 1), process(21, 20), process(22, 1)];
        let rule = Membership {
            marks: vec![(CONTAINER_MARK, "c1".to_owned())],
            ..Membership::default()
        };
        let mut environment = |pid| match pid {
            20 => Ok(b"A=b\0BELAY_CONTAINER_ID=c1\0".to_vec()),
            22 => Ok(b"BELAY_CONTAINER_ID=c11\0XBELAY_CONTAINER_ID=c1\0".to_vec()),
            _ => Ok(Vec::new()),
        };
        assert_eq!(
            sorted(members(&all, &rule, &mut environment).unwrap()),
            [20, 21]
        );
    }

    #[test]
    fn all_marks_are_needed() {
        let all = [process(20, 1), process(21, 1)];
        let marks = vec![
            (CONTAINER_MARK, "c1".to_owned()),
            (ATTEMPT_MARK, "a1".to_owned()),
        ];
        let rule = Membership {
            marks,
            ..Membership::default()
        };
        let mut environment = |pid| match pid {
            20 => Ok(b"BELAY_CONTAINER_ID=c2\0BELAY_ATTEMPT_ID=a1\0".to_vec()),
            _ => Ok(b"BELAY_CONTAINER_ID=c1\0BELAY_ATTEMPT_ID=a1\0".to_vec()),
        };
        assert_eq!(
            sorted(members(&all, &rule, &mut environment).unwrap()),
            [21]
        );
    }

    #[test]
    fn the_shims_of_execs_are_spared_and_their_children_are_not() {
        // 31 is a child of shim 30 that has not yet exec'ed, so it still looks like a shim.
        let all = [
            process(30, 1),
            process(31, 30),
            process(32, 1),
            process(33, 32),
        ];
        let rule = Membership {
            execs_of: Some("c1".to_owned()),
            ..Membership::default()
        };
        let mut environment = |pid| match pid {
            30..=32 => Ok(b"BELAY_SHIM_OF=c1\0".to_vec()),
            _ => Ok(Vec::new()),
        };
        assert_eq!(
            sorted(members(&all, &rule, &mut environment).unwrap()),
            [31, 33]
        );
    }

    #[test]
    fn a_shim_is_spared_while_the_process_that_forked_it_is_still_there() {
        let mut forker = process(30, 1);
        (forker.group, forker.session) = (30, 5);
        let rule = Membership {
            execs_of: Some("c1".to_owned()),
            ..Membership::default()
        };
        let mut environment = |_| Ok(b"BELAY_SHIM_OF=c1\0".to_vec());
        for session in [5, 31] {
            let mut shim = process(31, 30);
            shim.session = session;
            let all = [forker.clone(), shim];
            assert!(members(&all, &rule, &mut environment).unwrap().is_empty());
        }
    }

    #[test]
    fn members_are_not_told_when_an_environment_cannot_be_looked_at() {
        let rule = Membership {
            marks: vec![(CONTAINER_MARK, "c1".to_owned())],
            ..Membership::default()
        };
        let mut blind = |_| Err(io::Error::from_raw_os_error(libc::EMFILE));
        let error = members(&[process(20, 1)], &rule, &mut blind).unwrap_err();
        assert!(is_blind(&error));
    }

    #[test]
    fn a_number_that_nobody_has_is_no_process_and_no_error() {
        // Beyond what the kernel gives to anybody.
        assert_eq!(Process::read(Pid::MAX).unwrap(), None);
        assert_eq!(children(Pid::MAX).unwrap(), None);
        assert_eq!(environment(Pid::MAX).unwrap(), Vec::<u8>::new());
    }

    #[test]
    fn what_is_older_than_the_container_is_not_even_looked_at() {
        let mut old = process(40, 1);
        old.start_time = 5;
        let rule = Membership {
            marks: vec![(CONTAINER_MARK, "c1".to_owned())],
            not_before: 6,
            ..Membership::default()
        };
        assert!(
            members(&[old], &rule, &mut |_| panic!("asked"))
                .unwrap()
                .is_empty()
        );
    }

    proptest! {
        #[test]
        fn rubbish_lines_are_no_process_and_never_a_panic(line in ".{0,120}") {
            let _ = Process::parse(&line);
        }

        #[test]
        fn rubbish_shaped_like_stat_never_panics(
            line in "[0-9]{0,12} ?\\(?.{0,10}\\)?( [-0-9A-Z]{0,22}){0,30}"
        ) {
            let _ = Process::parse(&line);
        }

        #[test]
        fn any_shape_of_parents_ends(pairs in proptest::collection::vec((1..12, 1..12), 0..24)) {
            let all: Vec<Process> = pairs.into_iter().map(|(pid, parent)| process(pid, parent)).collect();
            let rule = Membership { descendants_of: Some(1), ..Membership::default() };
            prop_assert!(!members(&all, &rule, &mut |_| Ok(Vec::new())).unwrap().contains(&1));
        }
    }
}
