//! Who belongs to an exec in a container, and killing all of them.
//!
//! The low-level runtime makes an exec the leader of a session and a group of its own, and as a
//! child of containerd's shim it has no ancestor of ours. What belongs to it is found by four
//! signs: the leader and its session, descent from a member, a session that a member leads, and
//! the attempt's marks in the environment, which also lead to those whose parents have ended and
//! whom the container's first process has inherited.
//!
//! **Invariant:** a number is believed only while it cannot have been given to somebody else: a
//! process is the one that was seen if its start time is the same, and a session is the one that
//! was seen while a process that was seen in it is still there.

use std::collections::HashSet;

use belay_shim::instance::Started;
use belay_shim::kill::{self, Prey};
use belay_shim::proc::{self, ATTEMPT_MARK, CONTAINER_MARK, Membership, Process};
use belay_shim::sys::Pid;

use crate::RuntimeError;

/// Kills an exec with all it started. Blocks; returns what could not be killed.
///
/// `leader` is the exec's first process, if it may still be there.
pub(crate) fn kill_all(
    container: &str,
    attempt: &str,
    leader: Option<&Started>,
) -> Result<Vec<String>, RuntimeError> {
    Ok(kill_found(container, attempt, leader)?.survivors)
}

/// What a hunt came to.
pub(crate) struct Bag {
    /// There was somebody to be killed.
    pub(crate) any: bool,
    pub(crate) survivors: Vec<String>,
}

/// As [`kill_all`]; tells as well whether anybody was found.
pub(crate) fn kill_found(
    container: &str,
    attempt: &str,
    leader: Option<&Started>,
) -> Result<Bag, RuntimeError> {
    let rule = Membership {
        marks: vec![
            (CONTAINER_MARK, container.to_owned()),
            (ATTEMPT_MARK, attempt.to_owned()),
        ],
        not_before: leader.map_or(0, |leader| leader.start_time),
        ..Membership::default()
    };
    let mut hunt = Hunt::new(leader.map(|leader| (leader.pid, leader.start_time)));
    let mut any = false;
    let mut look = |all: &[Process]| {
        let marked = proc::members(all, &rule, &mut proc::environment)?;
        let members = hunt.round(all, &marked);
        any |= !members.is_empty();
        Ok(Prey {
            groups: hunt.groups(all),
            members,
            reapers: Vec::new(),
            complete: false,
        })
    };
    let killed = kill::kill_prey(&mut look, kill::PATIENCE, &mut || ());
    let survivors = killed.map_err(RuntimeError::blind())?;
    Ok(Bag { any, survivors })
}

/// What was found so far.
#[derive(Debug, Default)]
struct Hunt {
    /// Members by number and start time.
    known: HashSet<(Pid, u64)>,
    /// Sessions that members lead or led.
    sessions: HashSet<Pid>,
}

impl Hunt {
    fn new(leader: Option<(Pid, u64)>) -> Self {
        Hunt {
            known: leader.into_iter().collect(),
            sessions: HashSet::new(),
        }
    }

    /// All members in this picture, given those with the marks.
    fn round(&mut self, all: &[Process], marked: &HashSet<Pid>) -> HashSet<Pid> {
        let known = |process: &Process| self.known.contains(&(process.pid, process.start_time));
        self.sessions
            .retain(|session| all.iter().any(|p| p.session == *session && known(p)));
        let mut members: HashSet<Pid> = all
            .iter()
            .filter(|process| known(process) || marked.contains(&process.pid))
            .map(|process| process.pid)
            .collect();
        loop {
            let before = (members.len(), self.sessions.len());
            let led = all
                .iter()
                .filter(|process| process.pid == process.session && members.contains(&process.pid));
            self.sessions.extend(led.map(|process| process.session));
            let found: Vec<Pid> = all
                .iter()
                .filter(|p| members.contains(&p.parent) || self.sessions.contains(&p.session))
                .map(|process| process.pid)
                .collect();
            members.extend(found);
            if (members.len(), self.sessions.len()) == before {
                break;
            }
        }
        let seen = all.iter().filter(|process| members.contains(&process.pid));
        self.known
            .extend(seen.map(|process| (process.pid, process.start_time)));
        members
    }

    /// Groups of the members' own sessions: everybody in them belongs.
    fn groups(&self, all: &[Process]) -> HashSet<Pid> {
        all.iter()
            .filter(|process| self.sessions.contains(&process.session))
            .map(|process| process.group)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(pid: Pid, parent: Pid, session: Pid, start_time: u64) -> Process {
        Process {
            pid,
            comm: "x".to_owned(),
            state: 'S',
            parent,
            group: session,
            session,
            threads: 1,
            start_time,
        }
    }

    fn sorted(members: HashSet<Pid>) -> Vec<Pid> {
        let mut members: Vec<Pid> = members.into_iter().collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn the_leader_its_session_its_descendants_and_the_marked_belong() {
        let all = [
            // containerd's shim, the container's first process, and a child of that.
            process(5, 1, 5, 1),
            process(10, 5, 10, 2),
            process(11, 10, 10, 3),
            // The exec; a child in a session of its own; an orphan in the exec's session; an
            // orphan in the child's session; a marked orphan with a child.
            process(20, 5, 20, 9),
            process(21, 20, 21, 9),
            process(22, 10, 20, 9),
            process(23, 10, 21, 9),
            process(24, 10, 24, 9),
            process(25, 24, 24, 9),
        ];
        let mut hunt = Hunt::new(Some((20, 9)));
        let members = hunt.round(&all, &HashSet::from([24]));
        assert_eq!(sorted(members), [20, 21, 22, 23, 24, 25]);
        assert_eq!(sorted(hunt.groups(&all)), [20, 21, 24]);
    }

    #[test]
    fn whether_anybody_was_found_is_told() {
        let attempt = format!("hunted-{}", std::process::id());
        let hunt = || kill_found("c1", &attempt, None).unwrap();
        assert!(!hunt().any);
        let mut prey = std::process::Command::new("sleep")
            .arg("1000")
            .env(CONTAINER_MARK, "c1")
            .env(ATTEMPT_MARK, &attempt)
            .spawn()
            .unwrap();
        assert!(hunt().any);
        assert!(!prey.wait().unwrap().success());
        assert!(!hunt().any);
    }

    #[test]
    fn somebody_with_the_leaders_number_is_not_the_leader() {
        let all = [process(20, 5, 20, 10), process(21, 20, 20, 11)];
        let mut hunt = Hunt::new(Some((20, 9)));
        assert!(hunt.round(&all, &HashSet::new()).is_empty());
    }

    #[test]
    fn a_session_outlives_its_leader_and_is_given_up_when_nobody_of_it_is_left() {
        let mut hunt = Hunt::new(Some((20, 9)));
        hunt.round(
            &[process(20, 5, 20, 9), process(21, 20, 20, 9)],
            &HashSet::new(),
        );
        // The leader is gone; one who was seen remains and has forked.
        let all = [process(21, 10, 20, 9), process(22, 10, 20, 12)];
        assert_eq!(sorted(hunt.round(&all, &HashSet::new())), [21, 22]);
        // Nobody who was seen is left: the number may be another's by now.
        let all = [process(30, 10, 20, 13)];
        assert!(hunt.round(&all, &HashSet::new()).is_empty());
    }

    proptest! {
        #[test]
        fn the_containers_own_processes_are_never_prey(
            edges in proptest::collection::vec((0usize..12, any::<bool>()), 1..12),
        ) {
            // A random tree under the first process, in its session or in own sessions, beside an
            // exec without marks that none of them descends from.
            let mut all = vec![process(10, 5, 10, 1), process(100, 5, 100, 9)];
            for (index, (parent, own)) in edges.iter().enumerate() {
                let pid = 11 + Pid::try_from(index).unwrap();
                let parent = if *parent < index { 11 + Pid::try_from(*parent).unwrap() } else { 10 };
                all.push(process(pid, parent, if *own { pid } else { 10 }, 2));
            }
            let mut hunt = Hunt::new(Some((100, 9)));
            prop_assert_eq!(sorted(hunt.round(&all, &HashSet::new())), [100]);
        }
    }
}
