//! Model of one termination: a runtime, a journal, an agent that may die between any two effects,
//! and time that passes in seconds.
//!
//! Every interleaving of exits, ends of hooks, answers, refusals, a shorter grace, crashes and
//! returns is visited: for one container with an agent that dies, and for one with a sidecar.

mod world;

use belay_core::termination::Hook;
use stateright::{Checker, Model, Property};
use world::{Act, World};

#[derive(Debug)]
struct Stopping {
    /// The main container's.
    hook: Option<Hook>,
    /// Whether it is served by a sidecar, whose hook is an exec.
    served: bool,
    crashes: u8,
    refusals: u8,
}

impl Model for Stopping {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(
            self.hook,
            self.served,
            self.crashes,
            self.refusals,
        )]
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
            Property::<Self>::always("no effect breaks a promise", |_, world| {
                world.broken.is_none()
            }),
            Property::<Self>::always("everything is killed by its deadline", |_, world| {
                world.is_in_time()
            }),
            Property::<Self>::always(
                "where nothing can happen any more, all is over",
                |_, world| !world.actions().is_empty() || world.is_over(),
            ),
            Property::<Self>::sometimes("SIGKILL is needed", |_, world| world.was_killed()),
            Property::<Self>::sometimes("the stop signal is enough", |_, world| world.was_obeyed()),
        ]
    }
}

fn check(model: Stopping) {
    let checker = model.checker().spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn a_hook_and_an_agent_that_dies() {
    check(Stopping {
        hook: Some(Hook::Exec),
        served: false,
        crashes: 1,
        refusals: 0,
    });
}

#[test]
fn a_request_that_leaves_no_trace_and_an_agent_that_dies() {
    check(Stopping {
        hook: Some(Hook::HttpGet),
        served: false,
        crashes: 1,
        refusals: 1,
    });
}

#[test]
fn a_sleep_and_a_runtime_that_refuses_signals() {
    let time = std::time::Duration::from_secs(1);
    check(Stopping {
        hook: Some(Hook::Sleep { time }),
        served: false,
        crashes: 1,
        refusals: 2,
    });
}

#[test]
fn a_container_and_its_sidecar() {
    check(Stopping {
        hook: None,
        served: true,
        crashes: 0,
        refusals: 0,
    });
}
