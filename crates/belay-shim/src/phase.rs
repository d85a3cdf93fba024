//! What a shim does next: a pure function from where it stands and what happened.
//!
//! ```text
//!   container   Running ──first process ended──> Done      everything dies with it
//!                  └─ asked to kill: kills, and waits for the end of the first process
//!
//!   exec        Running ──ended, deadline, asked to kill──> Lingering ──nothing left──> Done
//!   session     Running ──ended, asked to kill, agent gone─> Lingering ──nothing left──> Done
//! ```
//!
//! An exec or a session lingers while anything it started lives: its output must not break under a daemon it
//! left behind, and as long as the shim is there the daemon can be found when the container ends.

use crate::instance::Ending;
use crate::sys::WaitStatus;

/// What is supervised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Container,
    Exec,
    Session,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The first process lives.
    Running,
    /// The outcome is recorded; leftovers still run.
    Lingering,
    /// There is nothing left to do.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    FirstEnded(WaitStatus),
    DeadlinePassed,
    KillAsked,
    /// The agent that started the shim has let go of it, or has died.
    AgentGone,
    /// No descendant is left.
    AllGone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Tell those who wait that the first process has ended, before anything else is done.
    Announce,
    /// Let no exec begin in this container any more.
    CloseGate,
    /// Kill everything that belongs to the instance.
    KillAll,
    /// Take what is left of the output, record the end, tell those who wait.
    Finish(Ending),
    /// Tell those who asked to kill what came of it, if the end does not tell them.
    AnswerKill,
}

/// One step. Late and repeated events are normal and change nothing.
pub(crate) fn step(role: Role, phase: Phase, event: Event) -> (Phase, Vec<Effect>) {
    use Effect::{Announce, AnswerKill, CloseGate, Finish, KillAll};
    match (role, phase, event) {
        (Role::Container, Phase::Running, Event::FirstEnded(status)) => (
            Phase::Done,
            vec![Announce, CloseGate, KillAll, Finish(status.into())],
        ),
        (Role::Container, Phase::Running, Event::KillAsked) => {
            (Phase::Running, vec![KillAll, AnswerKill])
        }
        (
            Role::Container,
            Phase::Running,
            Event::DeadlinePassed | Event::AgentGone | Event::AllGone,
        ) => (Phase::Running, vec![]),
        (Role::Container, Phase::Lingering, _) => (Phase::Done, vec![]),

        (Role::Exec | Role::Session, Phase::Running, Event::FirstEnded(status)) => {
            (Phase::Lingering, vec![Finish(status.into())])
        }
        (Role::Exec, Phase::Running, Event::DeadlinePassed) => {
            (Phase::Lingering, vec![KillAll, Finish(Ending::TimedOut)])
        }
        (Role::Exec | Role::Session, Phase::Running, Event::KillAsked)
        | (Role::Session, Phase::Running, Event::AgentGone) => {
            (Phase::Lingering, vec![KillAll, Finish(Ending::Cancelled)])
        }
        (Role::Exec, Phase::Running, Event::AgentGone | Event::AllGone)
        | (Role::Session, Phase::Running, Event::DeadlinePassed | Event::AllGone) => {
            (Phase::Running, vec![])
        }
        (Role::Exec | Role::Session, Phase::Lingering, Event::KillAsked) => {
            (Phase::Lingering, vec![KillAll, AnswerKill])
        }
        (Role::Exec | Role::Session, Phase::Lingering, Event::AllGone) => (Phase::Done, vec![]),
        (
            Role::Exec | Role::Session,
            Phase::Lingering,
            Event::FirstEnded(_) | Event::DeadlinePassed | Event::AgentGone,
        ) => (Phase::Lingering, vec![]),

        (Role::Container | Role::Exec | Role::Session, Phase::Done, _) => (Phase::Done, vec![]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::FirstEnded(WaitStatus::Exited(0))),
            Just(Event::DeadlinePassed),
            Just(Event::KillAsked),
            Just(Event::AgentGone),
            Just(Event::AllGone),
        ]
    }

    fn run(role: Role, events: &[Event]) -> (Phase, Vec<Effect>) {
        let mut all = Vec::new();
        let mut phase = Phase::Running;
        for event in events {
            let (next, effects) = step(role, phase, *event);
            phase = next;
            all.extend(effects);
        }
        (phase, all)
    }

    #[test]
    fn a_container_ends_with_its_first_process_and_takes_everything_along() {
        let end = Event::FirstEnded(WaitStatus::Signaled(15));
        let (phase, effects) = run(Role::Container, &[Event::KillAsked, end]);
        assert_eq!(phase, Phase::Done);
        assert_eq!(
            effects,
            [
                Effect::KillAll,
                Effect::AnswerKill,
                Effect::Announce,
                Effect::CloseGate,
                Effect::KillAll,
                Effect::Finish(Ending::Signaled(15)),
            ]
        );
    }

    #[test]
    fn an_exec_that_ended_leaves_its_daemons_alone() {
        let end = Event::FirstEnded(WaitStatus::Exited(0));
        let (phase, effects) = run(Role::Exec, &[end, Event::DeadlinePassed]);
        assert_eq!(
            (phase, effects),
            (Phase::Lingering, vec![Effect::Finish(Ending::Exited(0))])
        );
    }

    #[test]
    fn a_timed_out_exec_is_killed_before_its_end_is_told() {
        let (_, effects) = run(Role::Exec, &[Event::DeadlinePassed]);
        assert_eq!(effects, [Effect::KillAll, Effect::Finish(Ending::TimedOut)]);
    }

    #[test]
    fn a_session_dies_with_its_agent_and_an_exec_does_not() {
        let (_, effects) = run(Role::Session, &[Event::AgentGone, Event::AgentGone]);
        assert_eq!(
            effects,
            [Effect::KillAll, Effect::Finish(Ending::Cancelled)]
        );
        assert_eq!(run(Role::Exec, &[Event::AgentGone]).1, []);
        assert_eq!(run(Role::Container, &[Event::AgentGone]).1, []);
    }

    #[test]
    fn what_a_session_left_behind_when_it_ended_outlives_the_agent() {
        let end = Event::FirstEnded(WaitStatus::Exited(0));
        let (phase, effects) = run(Role::Session, &[end, Event::AgentGone]);
        assert_eq!(
            (phase, effects),
            (Phase::Lingering, vec![Effect::Finish(Ending::Exited(0))])
        );
    }

    proptest! {
        #[test]
        fn an_end_is_recorded_at_most_once_and_never_before_a_cause(
            events in proptest::collection::vec(event(), 0..12),
            role in prop_oneof![Just(Role::Container), Just(Role::Exec), Just(Role::Session)],
        ) {
            let (phase, effects) = run(role, &events);
            let ends = effects.iter().filter(|effect| matches!(effect, Effect::Finish(_))).count();
            prop_assert_eq!(ends, usize::from(phase != Phase::Running));
        }
    }
}
