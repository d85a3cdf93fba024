//! Killing everything that belongs to an instance, and naming what will not die.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::proc::{self, Membership, Process};
use crate::sys::{self, Pid};

/// How long the dying may take before they are named as survivors. A process that is killed is
/// gone in milliseconds unless it hangs in the kernel, and then seconds do not help either.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Whom one look at all processes says to kill.
#[derive(Debug, Default)]
pub struct Prey {
    pub members: HashSet<Pid>,
    /// Groups in which everybody belongs.
    pub groups: HashSet<Pid>,
    /// Nobody can have been overlooked: a look that finds no member is the last.
    pub complete: bool,
}

/// Sends SIGKILL to all members until none lives or `patience` is over.
///
/// New members that appear meanwhile are killed as well; `reap` is called on every round so that
/// a subreaper can take note of its dead. Returns the survivors as `pid (name)`.
pub fn kill_members(rule: &Membership, patience: Duration, reap: &mut dyn FnMut()) -> Vec<String> {
    let own_pid = Pid::try_from(std::process::id()).unwrap_or(0);
    let own_session = Process::read(own_pid).map(|process| process.session);
    // Marks cannot be read in the moment of an exec. Descent can; without it only a second look
    // is certain.
    let complete = rule.descendants_of.is_some();
    let mut look = |all: &[Process]| {
        let members = proc::members(all, rule, &mut proc::environment);
        let groups = if complete {
            whole_groups(all, &members, own_session)
        } else {
            HashSet::new()
        };
        Prey {
            members,
            groups,
            complete,
        }
    };
    kill_prey(&mut look, patience, reap)
}

/// [`kill_members`] for whoever tells members apart in another way. `look` is asked again on every
/// round.
pub fn kill_prey(
    look: &mut dyn FnMut(&[Process]) -> Prey,
    patience: Duration,
    reap: &mut dyn FnMut(),
) -> Vec<String> {
    let begin = Instant::now();
    let own_pid = Pid::try_from(std::process::id()).unwrap_or(0);
    let mut pause = Duration::from_micros(200);
    let mut seen = HashSet::new();
    let mut clean = false;
    loop {
        let Ok(all) = proc::snapshot() else {
            return vec!["unknown: /proc cannot be read".to_owned()];
        };
        let prey = look(&all);
        let living: Vec<&Process> = all
            .iter()
            .filter(|p| p.pid != own_pid && prey.members.contains(&p.pid) && !p.is_dead())
            .collect();
        let fresh = living
            .iter()
            .any(|process| seen.insert((process.pid, process.start_time)));
        for group in living.iter().map(|process| process.group) {
            if prey.groups.contains(&group) {
                // It may have emptied meanwhile; what could not be killed shows on the next round.
                let _ = sys::kill_group(group);
            }
        }
        for process in &living {
            kill_one(process);
        }
        reap();
        if living.is_empty() {
            if prey.complete || clean {
                return Vec::new();
            }
            clean = true;
            thread::sleep(Duration::from_millis(5));
            continue;
        }
        clean = false;
        if begin.elapsed() >= patience {
            return living
                .iter()
                .map(|p| format!("{} ({})", p.pid, p.comm))
                .collect();
        }
        if fresh {
            // Somebody may be forking: look again before anything new can settle.
            pause = Duration::from_micros(200);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Whole groups first: that is one step for the kernel. A descendant's session was made by the
/// instance itself, so everybody in its groups belongs; only a child that has not yet left the
/// shim's own session is spared here and killed by its number.
fn whole_groups(all: &[Process], members: &HashSet<Pid>, own_session: Option<Pid>) -> HashSet<Pid> {
    all.iter()
        .filter(|process| members.contains(&process.pid) && !process.is_dead())
        .filter(|process| Some(process.session) != own_session)
        .map(|process| process.group)
        .collect()
}

/// Kills exactly the process that was seen, never a newer one of the same number.
fn kill_one(process: &Process) {
    let Ok(handle) = sys::pidfd_open(process.pid) else {
        return;
    };
    let same = Process::read(process.pid).is_some_and(|now| now.start_time == process.start_time);
    if same {
        // A refusal shows as a survivor.
        let _ = sys::pidfd_send_signal(handle.as_fd(), libc::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn marked_processes_die_wherever_they_went() {
        let id = format!("kill-test-{}", std::process::id());
        let mut child = Command::new("/bin/sh")
            .args([
                "-c",
                "setsid sleep 600 & setsid sh -c 'sleep 601 & sleep 602' & wait",
            ])
            .env(proc::CONTAINER_MARK, &id)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let rule = Membership {
            marks: vec![(proc::CONTAINER_MARK, id)],
            ..Membership::default()
        };
        let count = || {
            let all = proc::snapshot().unwrap();
            let members = proc::members(&all, &rule, &mut proc::environment);
            all.iter()
                .filter(|p| members.contains(&p.pid) && !p.is_dead())
                .count()
        };
        while count() < 5 {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(
            kill_members(&rule, PATIENCE, &mut || ()),
            Vec::<String>::new()
        );
        assert_eq!(count(), 0);
        assert!(!child.wait().unwrap().success());
    }
}
