//! Sessions in containers of a real containerd.

#![allow(clippy::unwrap_used)]

mod cri;
mod session;

use belay_runtime::{SessionEnd, SessionError, Sessions as _};
use belay_testkit::ContainerSpec;
use cri::{Bench, on_each};
use session::{Place, request, show_until, soon, text, unique_seconds, until, with_argument};

async fn nothing_is_left(bench: &Bench) {
    let dir = bench.state.join("sessions");
    until("no session has a directory", || {
        std::fs::read_dir(&dir).is_ok_and(|mut left| left.next().is_none())
    })
    .await;
}

/// One container for all of them: making one is what takes time.
#[tokio::test]
async fn sessions_are_what_they_are_on_every_runtime() {
    on_each(async |bench| {
        let (pod, _) = bench.sleeper().await;
        let place = Place {
            runtime: &bench.runtime,
            container: pod.id.clone(),
        };
        place.streams_are_apart_and_the_exit_code_is_told().await;
        place.without_input_there_is_nothing_to_read().await;
        place.megabytes_go_through_both_ways_unchanged().await;
        place.a_command_need_not_read_its_input().await;
        place.a_terminal_has_a_size_that_can_change().await;
        place.a_typed_interrupt_reaches_the_command().await;
        place.what_is_killed_or_dropped_leaves_nothing().await;
        place
            .what_ends_because_it_is_let_go_of_leaves_nothing()
            .await;
        place
            .a_command_that_drops_its_environment_is_killed_as_any_other()
            .await;
        place
            .what_a_command_leaves_running_is_the_containers()
            .await;
        place.a_command_that_is_not_there_is_named().await;
        place.many_at_once_do_not_mix().await;
        nothing_is_left(&bench).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_is_the_containers_user_and_ends_with_its_container() {
    on_each(async |bench| {
        let container = ContainerSpec {
            user: Some(1000),
            group: Some(2000),
            working_dir: "/srv".into(),
            ..ContainerSpec::sh("main", "exec sleep 1000000")
        };
        let pod = bench.run(&container).await;
        let place = Place {
            runtime: &bench.runtime,
            container: pod.id.clone(),
        };
        let seen = place.run(&request("id -u; id -g; pwd"), Vec::new()).await;
        assert_eq!(text(&seen.stdout), "1000\n2000\n/srv\n");
        let (session, mut streams) = place.open(&request("echo ready; sleep 1000")).await;
        show_until(&mut streams, &mut String::new(), "ready").await;
        bench.kubelet.stop_pod(&pod.sandbox).await.unwrap();
        assert_eq!(soon(session.ended()).await, SessionEnd::Exited(137));
        drop((session, streams));
        let refused = bench.runtime.open(&pod.id, &request("true")).await;
        assert!(
            matches!(refused, Err(SessionError::NotRunning { .. })),
            "{refused:?}"
        );
        nothing_is_left(&bench).await;
    })
    .await;
}

/// Forgetting the handle is what a killed agent does.
#[tokio::test]
async fn a_new_agent_ends_what_a_dead_one_left() {
    on_each(async |mut bench| {
        let (pod, _) = bench.sleeper().await;
        let place = Place {
            runtime: &bench.runtime,
            container: pod.id.clone(),
        };
        let seconds = unique_seconds();
        let script = format!("setsid sleep {seconds} & echo ready; sleep {seconds}");
        let (session, mut streams) = place.open(&request(&script)).await;
        show_until(&mut streams, &mut String::new(), "ready").await;
        std::mem::forget(session);
        drop(streams);
        until("all of it runs", || with_argument(&seconds).len() == 2).await;
        bench.reopen().await;
        assert!(with_argument(&seconds).is_empty());
        nothing_is_left(&bench).await;
    })
    .await;
}

#[tokio::test]
async fn a_new_agent_ends_what_has_dropped_its_environment_too() {
    on_each(async |mut bench| {
        let (pod, _) = bench.sleeper().await;
        let place = Place {
            runtime: &bench.runtime,
            container: pod.id.clone(),
        };
        let seconds = unique_seconds();
        let mut command = request("");
        command.command = ["/bin/env", "-i", "/bin/sleep", &seconds]
            .map(str::to_owned)
            .to_vec();
        let (session, streams) = place.open(&command).await;
        std::mem::forget(session);
        drop(streams);
        until("it runs", || with_argument(&seconds).len() == 1).await;
        bench.reopen().await;
        until("it does not run", || with_argument(&seconds).is_empty()).await;
        nothing_is_left(&bench).await;
    })
    .await;
}

#[tokio::test]
async fn a_runtime_without_tasks_says_what_it_lacks() {
    on_each(async |bench| {
        let (pod, _) = bench.sleeper().await;
        let plain = bench.runtime.without_tasks();
        let refused = plain.open(&pod.id, &request("true")).await.unwrap_err();
        assert!(
            refused.to_string().contains("needs containerd"),
            "{refused}"
        );
    })
    .await;
}
