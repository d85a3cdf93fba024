//! Sessions in containers of the process runtime.

#![allow(clippy::unwrap_used)]

mod fixture;
mod session;

use belay_runtime::{PodRuntime as _, SessionEnd, SessionError, Sessions as _};
use fixture::Bench;
use session::{Place, request, show_until, soon, until};

macro_rules! hold {
    ($($rule:ident)*) => {$(
        #[tokio::test]
        async fn $rule() {
            let bench = Bench::new();
            let (container, _) = bench.sleeper().await;
            let place = Place { runtime: &bench.runtime, container: container.clone() };
            place.$rule().await;
            let execs = bench.container_dir(&container).join("execs");
            until("no session has a directory", || {
                std::fs::read_dir(&execs).unwrap().next().is_none()
            })
            .await;
        }
    )*};
}

hold! {
    streams_are_apart_and_the_exit_code_is_told
    without_input_there_is_nothing_to_read
    megabytes_go_through_both_ways_unchanged
    a_command_need_not_read_its_input
    a_terminal_has_a_size_that_can_change
    a_typed_interrupt_reaches_the_command
    what_is_killed_or_dropped_leaves_nothing
    what_ends_because_it_is_let_go_of_leaves_nothing
    a_command_that_drops_its_environment_is_killed_as_any_other
    what_a_command_leaves_running_is_the_containers
    a_command_that_is_not_there_is_named
    many_at_once_do_not_mix
}

#[tokio::test]
async fn a_session_ends_with_its_container() {
    let bench = Bench::new();
    let (container, _) = bench.sleeper().await;
    let place = Place {
        runtime: &bench.runtime,
        container: container.clone(),
    };
    let (session, mut streams) = place.open(&request("echo ready; sleep 1000")).await;
    show_until(&mut streams, &mut String::new(), "ready").await;
    assert!(
        bench
            .runtime
            .kill_tree(&container)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(soon(session.ended()).await, SessionEnd::Signaled(9));
    let refused = bench.runtime.open(&container, &request("true")).await;
    assert!(
        matches!(refused, Err(SessionError::NotRunning { .. })),
        "{refused:?}"
    );
}
