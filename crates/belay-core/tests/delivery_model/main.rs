//! Model of one delivery: server, journal, runtime and an agent that may die between any two steps.
//!
//! Every interleaving of landing writes, answers, crashes, deletion, the deadline, a restarting
//! container, a killed shim, a lost journal and a controller that gives up on the node is visited.

mod world;

use stateright::{Checker, Model, Property};
use world::{Act, Limits, World};

#[derive(Debug)]
struct Delivering {
    /// Containers: name, and whether the runtime remembers attempts of its action.
    containers: Vec<(&'static str, bool)>,
    limits: Limits,
}

impl Model for Delivering {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.containers, self.limits)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        actions.extend(world.actions());
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        next.act(act);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("no start breaks a promise", |_, world| {
                world.broken_start().is_none()
            }),
            Property::<Self>::always("every result is truthful", |_, world| {
                world.broken_result().is_none()
            }),
            Property::<Self>::always("where nothing can happen any more, all is resolved", |_, world| {
                !world.actions().is_empty() || world.is_resolved()
            }),
            Property::<Self>::sometimes("a delivery succeeds", |_, world| world.has_succeeded()),
            Property::<Self>::sometimes("an agent follows what its predecessor left", |_, world| {
                world.was_followed()
            }),
        ]
    }
}

fn check(containers: Vec<(&'static str, bool)>, limits: Limits) {
    let checker = Delivering { containers, limits }.checker().threads(2).spawn_bfs().join();
    for (name, path) in checker.discoveries() {
        let world = path.last_state().clone();
        if !name.starts_with("a delivery") && !name.starts_with("an agent") {
            panic!(
                "{name}: {:?} {:?}\n{world:#?}\nafter {:#?}",
                world.broken_start(),
                world.broken_result(),
                path.into_actions()
            );
        }
    }
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn one_exec_with_every_fault() {
    let limits = Limits {
        crashes: 2,
        restarts: 1,
        shim_kills: 1,
        journal_losses: 1,
        deletions: 1,
        rivals: 1,
        finalizer: false,
    };
    check(vec![("a", true)], limits);
}

#[test]
fn one_signal_with_every_fault() {
    let limits = Limits {
        crashes: 2,
        restarts: 1,
        shim_kills: 0,
        journal_losses: 1,
        deletions: 1,
        rivals: 1,
        finalizer: false,
    };
    // A signal has no trace, so nobody ever follows one.
    let checker =
        Delivering { containers: vec![("s", false)], limits }.checker().threads(2).spawn_bfs().join();
    for name in [
        "no start breaks a promise",
        "every result is truthful",
        "where nothing can happen any more, all is resolved",
    ] {
        checker.assert_no_discovery(name);
    }
    assert!(checker.discovery("a delivery succeeds").is_some());
}

#[test]
fn an_exec_and_a_signal_with_a_crash_and_a_deletion_held_by_a_finalizer() {
    let limits = Limits {
        crashes: 1,
        restarts: 0,
        shim_kills: 0,
        journal_losses: 0,
        deletions: 1,
        rivals: 0,
        finalizer: true,
    };
    check(vec![("a", true), ("s", false)], limits);
}
