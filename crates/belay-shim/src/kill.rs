//! Killing everything that belongs to an instance, and naming what will not die.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::proc::{self, Membership, Process};
use crate::sys::{self, Pid};

/// How long the dying may take before they are named as survivors. A process that is killed is
/// gone in milliseconds unless it hangs in the kernel, and then seconds do not help either.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Between two looks at lists of children. The dying need a moment, too.
const SHORT_PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at all processes.
const SHORTEST_ROUND: Duration = Duration::from_micros(200);
/// How often survivors are looked for at least before anybody is called one.
const FEWEST_ROUNDS: u32 = 20;

/// Whom one look at all processes says to kill.
#[derive(Debug, Default)]
pub struct Prey {
    pub members: HashSet<Pid>,
    /// Groups in which everybody belongs.
    pub groups: HashSet<Pid>,
    /// Those whose every descendant belongs, orphans among them included, by number and start time.
    pub reapers: Vec<(Pid, u64)>,
    /// Nobody can have been overlooked: a look that finds no member is the last.
    pub complete: bool,
}

/// Sends SIGKILL to all members until none lives or `patience` is over.
///
/// New members that appear meanwhile are killed as well; `reap` is called on every round so that
/// a subreaper can take note of its dead. Returns the survivors as `pid (name)`.
///
/// # Errors
///
/// When for all of `patience` nobody could be looked at: then nobody knows who lives.
pub fn kill_members(
    rule: &Membership,
    patience: Duration,
    reap: &mut dyn FnMut(),
) -> io::Result<Vec<String>> {
    let own_pid = Pid::try_from(std::process::id()).unwrap_or(0);
    // Marks cannot be read in the moment of an exec. Descent can; without it only a second look
    // is certain.
    let complete = rule.descendants_of.is_some();
    let mut look = |all: &[Process]| {
        let (members, shims) = proc::find(all, rule, &mut proc::environment)?;
        let own = all.iter().find(|process| process.pid == own_pid);
        let groups = if complete {
            whole_groups(all, &members, own.map(|own| own.session))
        } else {
            HashSet::new()
        };
        let reaper = |pid: Pid| rule.descendants_of == Some(pid) || shims.contains(&pid);
        Ok(Prey {
            members,
            groups,
            reapers: all
                .iter()
                .filter(|process| reaper(process.pid))
                .map(|process| (process.pid, process.start_time))
                .collect(),
            complete,
        })
    };
    kill_prey(&mut look, patience, reap)
}

/// [`kill_members`] for whoever tells members apart in another way. `look` is asked again on every
/// round.
///
/// # Errors
///
/// As [`kill_members`].
pub fn kill_prey(
    look: &mut dyn FnMut(&[Process]) -> io::Result<Prey>,
    patience: Duration,
    reap: &mut dyn FnMut(),
) -> io::Result<Vec<String>> {
    let end = Instant::now() + patience;
    let mut pause = SHORTEST_ROUND;
    let mut seen = HashSet::new();
    let mut clean = false;
    let mut rounds = 0;
    loop {
        rounds += 1;
        // A machine that stands still for a while has not looked in vain.
        let over = Instant::now() >= end && rounds >= FEWEST_ROUNDS;
        match round(look, &mut seen) {
            Ok(round) => {
                reap();
                if round.living.is_empty() {
                    // A chain of processes that start each other and end may have slipped through a
                    // look, but not out of the list of a reaper's children.
                    if clean || (round.complete && childless(&round.reapers)) {
                        return Ok(Vec::new());
                    }
                    clean = true;
                    chase(&round.reapers, end, reap);
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                clean = false;
                if over {
                    return match round.blind {
                        Some(error) => Err(error),
                        None => Ok(round.living),
                    };
                }
                chase(&round.reapers, end, reap);
                if round.fresh {
                    // Somebody may be forking: look again before anything new can settle.
                    pause = SHORTEST_ROUND;
                }
            }
            Err(error) if over => return Err(error),
            // Others may let go of what we lack.
            Err(_) => clean = false,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONG_PAUSE);
    }
}

/// What one look at all processes has come to.
struct Round {
    /// Members, as `pid (name)`.
    living: Vec<String>,
    /// One of them was not seen before.
    fresh: bool,
    reapers: Vec<(Pid, u64)>,
    complete: bool,
    /// Why some were not even tried.
    blind: Option<io::Error>,
}

/// Looks at all processes once, and sends SIGKILL to the members that live.
fn round(
    look: &mut dyn FnMut(&[Process]) -> io::Result<Prey>,
    seen: &mut HashSet<(Pid, u64)>,
) -> io::Result<Round> {
    let own_pid = Pid::try_from(std::process::id()).unwrap_or(0);
    let all = proc::snapshot()?;
    let prey = look(&all)?;
    let living: Vec<&Process> = all
        .iter()
        .filter(|p| p.pid != own_pid && prey.members.contains(&p.pid) && !p.is_dead())
        .collect();
    let mut fresh = false;
    for process in &living {
        fresh |= seen.insert((process.pid, process.start_time));
    }
    for group in living.iter().map(|process| process.group) {
        if prey.groups.contains(&group) {
            // It may have emptied meanwhile; what could not be killed shows on the next round.
            let _ = sys::kill_group(group);
        }
    }
    let mut blind = None;
    for process in &living {
        if let Err(error) = kill_one(process) {
            blind = Some(error);
        }
    }
    Ok(Round {
        living: living
            .iter()
            .map(|p| format!("{} ({})", p.pid, p.comm))
            .collect(),
        fresh,
        reapers: prey.reapers,
        complete: prey.complete,
        blind,
    })
}

/// Whether the kernel's lists show nobody under the reapers. On a kernel without such lists there
/// is no more to be known.
fn childless(reapers: &[(Pid, u64)]) -> bool {
    reapers.iter().all(|(reaper, _)| {
        proc::children(*reaper)
            .is_ok_and(|children| children.is_none_or(|children| children.is_empty()))
    })
}

/// Kills what is under the reapers, by the kernel's lists of children, until these show nobody
/// alive or it is `end`.
///
/// A look at all processes takes milliseconds, and on a busy machine many of them. A chain of
/// processes that start each other and end is faster than that; it is not faster than this.
fn chase(reapers: &[(Pid, u64)], end: Instant, reap: &mut dyn FnMut()) {
    let mut pause = SHORT_PAUSE;
    let mut seen = HashSet::new();
    while Instant::now() < end {
        let mut living = false;
        let mut fresh = false;
        let mut parents: Vec<(Pid, u64)> = reapers.to_vec();
        while let Some(parent) = parents.pop() {
            // What cannot be listed shows on the next look at all processes.
            let children = proc::children(parent.0).ok().flatten();
            for child in children.into_iter().flatten() {
                let Some(child) = kill_child(child, parent) else {
                    continue;
                };
                let identity = (child.pid, child.start_time);
                living |= !child.is_dead();
                fresh |= seen.insert(identity);
                parents.push(identity);
            }
        }
        reap();
        if !living {
            return;
        }
        if fresh {
            pause = SHORT_PAUSE;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONG_PAUSE);
    }
}

/// Kills a process if it is a child of exactly this parent, and tells what it was.
fn kill_child(pid: Pid, parent: (Pid, u64)) -> Option<Process> {
    let handle = sys::pidfd_open(pid).ok()?;
    let read = |pid| Process::read(pid).ok().flatten();
    let child = read(pid).filter(|child| child.parent == parent.0)?;
    // The parent's number was not given to somebody else before the child was read.
    read(parent.0).filter(|now| now.start_time == parent.1)?;
    if !child.is_dead() {
        // A refusal shows as a survivor.
        let _ = sys::pidfd_send_signal(handle.as_fd(), libc::SIGKILL);
    }
    Some(child)
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
///
/// An error says that it was not tried. A refusal shows as a survivor.
fn kill_one(process: &Process) -> io::Result<()> {
    let handle = match sys::pidfd_open(process.pid) {
        Ok(handle) => handle,
        Err(error) if proc::is_blind(&error) => return Err(error),
        Err(_) => return Ok(()),
    };
    let now = Process::read(process.pid)?;
    if now.is_some_and(|now| now.start_time == process.start_time) {
        let _ = sys::pidfd_send_signal(handle.as_fd(), libc::SIGKILL);
    }
    Ok(())
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
            let members = proc::members(&all, &rule, &mut proc::environment).unwrap();
            all.iter()
                .filter(|p| members.contains(&p.pid) && !p.is_dead())
                .count()
        };
        while count() < 5 {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(
            kill_members(&rule, PATIENCE, &mut || ()).unwrap(),
            Vec::<String>::new()
        );
        assert_eq!(count(), 0);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn who_could_not_look_tells_no_survivors_and_no_success() {
        let blind = || io::Error::from_raw_os_error(libc::EMFILE);
        let mut looks = 0;
        let killed = kill_prey(&mut |_| Err(blind()), Duration::ZERO, &mut || ());
        assert!(proc::is_blind(&killed.unwrap_err()));
        // What is in the way for a moment only is not told at all.
        let mut look = |_: &[Process]| {
            looks += 1;
            if looks < 3 {
                Err(blind())
            } else {
                Ok(Prey::default())
            }
        };
        assert!(
            kill_prey(&mut look, PATIENCE, &mut || ())
                .unwrap()
                .is_empty()
        );
    }
}
