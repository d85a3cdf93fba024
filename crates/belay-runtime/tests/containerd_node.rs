//! Running pods on a real containerd: what only containers have.

#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "conformance/bench.rs"]
mod bench;
mod fixture;

use std::net::IpAddr;
use std::sync::Arc;

use belay_action::ContainerId;
use belay_runtime::*;
use belay_shim::proc::Process;
use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::image::{BUSYBOX, QUITTER};
use belay_testkit::skip::skip;
use belay_testkit::{ContainerSpec, PodSpec};
use bench::*;
use fixture::{kill_9, soon, unique_seconds, until, with_argument};

fn missing(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::NotFound { .. })
}

#[tokio::test]
async fn a_pod_has_an_address_a_name_and_a_network_of_its_own() {
    on_each_containerd(async |bench| {
        let own = PodConfig {
            host_network: false,
            hostname: "a-name-of-its-own".into(),
            ..bench.other_pod()
        };
        let sandbox = soon(bench.runtime.sandbox(&own)).await.unwrap();
        assert!(
            matches!(sandbox.address, Some(IpAddr::V4(_))),
            "{sandbox:?}"
        );
        assert_eq!(bench.sandbox.address, None, "the host's is not its own");
        let config = ContainerConfig {
            pod_uid: own.uid.clone(),
            pod_name: own.name.clone(),
            sandbox: sandbox.id.clone(),
            ..bench.sh("hostname; echo $HOSTNAME; ip -o -4 addr show eth0")
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 0);
        until("all is logged", || log(&config).len() == 3).await;
        let logged = log(&config);
        assert_eq!(&logged[..2], ["stdout F a-name-of-its-own"; 2]);
        let address = sandbox.address.unwrap().to_string();
        assert!(logged[2].contains(&address), "{logged:?}");
        let mut all = bench.runtime.sandboxes().await.unwrap();
        all.retain(|one| one.pod_uid == own.uid);
        assert_eq!(all, [sandbox]);
        soon(bench.runtime.remove_sandboxes(&own.uid))
            .await
            .unwrap();
        // With what was left in it.
        assert!(missing(&bench.runtime.state(&id).await.unwrap_err()));
        soon(bench.runtime.remove_sandboxes(&own.uid))
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_that_is_stopped_stays_known_with_what_ended_in_it() {
    on_each_containerd(async |bench| {
        let pod = PodConfig {
            host_network: false,
            ..bench.other_pod()
        };
        let sandbox = soon(bench.runtime.sandbox(&pod)).await.unwrap();
        let config = ContainerConfig {
            pod_uid: pod.uid.clone(),
            pod_name: pod.name.clone(),
            sandbox: sandbox.id.clone(),
            ..bench.sh("echo said; exit 3")
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        logged(&config, "stdout F said").await;
        let before = bench.runtime.state(&id).await.unwrap();
        let of_pod = async || {
            let mut all = bench.runtime.sandboxes().await.unwrap();
            all.retain(|one| one.pod_uid == pod.uid);
            all
        };
        assert_eq!(of_pod().await, std::slice::from_ref(&sandbox));
        let pause = pause_of(&sandbox);
        for _ in 0..2 {
            soon(bench.runtime.stop_sandboxes(&pod.uid)).await.unwrap();
        }
        let dead = || {
            Process::read(pause)
                .unwrap()
                .is_none_or(|process| process.is_dead())
        };
        until("its process is gone", dead).await;
        let stopped = Sandbox {
            ready: false,
            address: None,
            ..sandbox
        };
        assert_eq!(of_pod().await, [stopped]);
        assert_eq!(bench.runtime.state(&id).await.unwrap(), before);
        assert_eq!(log(&config), ["stdout F said"]);
        soon(bench.runtime.remove_sandboxes(&pod.uid))
            .await
            .unwrap();
        assert_eq!(of_pod().await, []);
    })
    .await;
}

#[tokio::test]
async fn a_log_whose_rotation_somebody_did_not_finish_is_opened_anew_at_the_next_look() {
    on_each_containerd(async |bench| {
        let counts = "while :; do i=$((i + 1)); echo $i; sleep 0.01; done";
        let (id, config) = bench.start(counts).await;
        logged(&config, "stdout F 1").await;
        bench.runtime.bound_logs().await.unwrap();
        assert_eq!(
            rotation::rotated(&config.log_path).unwrap(),
            [],
            "it is short"
        );
        rotation::rotate(&config.log_path).unwrap();
        bench.runtime.bound_logs().await.unwrap();
        until("it goes on", || log(&config).len() > 1).await;
        bench.runtime.kill_tree(&id).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        let (_, old) = rotation::rotated(&config.log_path).unwrap().remove(0);
        let old = ContainerConfig {
            log_path: old,
            ..config.clone()
        };
        let all = [log(&old), log(&config)].concat();
        let expected = (1..=all.len()).map(|number| format!("stdout F {number}"));
        assert_eq!(all, expected.collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_asked_for_many_times_at_once_is_made_once() {
    on_each_containerd(async |bench| {
        let pod = bench.other_pod();
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let (runtime, pod) = (Arc::clone(&bench.runtime), pod.clone());
            asking.spawn(async move { soon(runtime.sandbox(&pod)).await.unwrap() });
        }
        let told = asking.join_all().await;
        assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
        assert_eq!((told[0].attempt, told[0].ready), (0, true));
        let all = bench.runtime.sandboxes().await.unwrap();
        assert_eq!(all.iter().filter(|one| one.pod_uid == pod.uid).count(), 1);
        soon(bench.runtime.remove_sandboxes(&pod.uid))
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn only_a_nodes_own_pods_are_seen_and_touched() {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await.unwrap();
        let (mut one, mut other) = (
            Bench::on_containerd(containerd).await,
            Bench::on_containerd(containerd).await,
        );
        let kubelet = containerd.kubelet();
        let spec = PodSpec {
            uid: format!("kubelets-{}", unique()),
            name: "kubelets".into(),
            namespace: "default".into(),
            ..PodSpec::default()
        };
        let sandbox = kubelet.run_pod(&spec).await.unwrap();
        let container = ContainerSpec::sh("main", "exec sleep 1000000");
        let kubelets = kubelet.run_container(&sandbox, &spec, &container).await;
        let kubelets = ContainerId::new(kubelets.unwrap()).unwrap();
        let (others, _) = other.sleeper().await;
        assert_eq!(one.runtime.list().await.unwrap().states, []);
        assert_eq!(
            one.runtime.sandboxes().await.unwrap(),
            [one.sandbox.clone()]
        );
        for uid in [&other.pod.uid, &spec.uid] {
            soon(one.runtime.remove_sandboxes(uid)).await.unwrap();
        }
        assert!(missing(&one.runtime.state(&kubelets).await.unwrap_err()));
        assert!(one.runtime.is_running(&kubelets).await.unwrap());
        assert!(other.is_running(&others).await);
        for bench in [&mut one, &mut other] {
            bench.finish().await;
        }
        kubelet.stop_pod(&sandbox).await.unwrap();
        kubelet.remove_pod(&sandbox).await.unwrap();
    }
}

/// The first process of a sandbox.
fn pause_of(sandbox: &Sandbox) -> i32 {
    let all = belay_shim::proc::snapshot().unwrap();
    let found = all.iter().find(|process| {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        groups.is_ok_and(|groups| groups.contains(&sandbox.id))
    });
    found.unwrap().pid
}

#[tokio::test]
async fn a_sandbox_that_was_killed_is_replaced_and_its_containers_are_dead() {
    on_each_containerd(async |bench| {
        let pod = bench.other_pod();
        let old = soon(bench.runtime.sandbox(&pod)).await.unwrap();
        let config = ContainerConfig {
            pod_uid: pod.uid.clone(),
            pod_name: pod.name.clone(),
            sandbox: old.id.clone(),
            ..bench.config(&["sleep", "1000000"])
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        kill_9(pause_of(&old)).await;
        belay_testkit::eventually("it is seen", async || {
            let all = bench.runtime.sandboxes().await?;
            let one = all.into_iter().find(|one| one.id == old.id);
            Ok(one.filter(|one| !one.ready))
        })
        .await
        .unwrap();
        let new = soon(bench.runtime.sandbox(&pod)).await.unwrap();
        assert_ne!(new.id, old.id);
        assert_eq!((new.attempt, new.ready), (1, true));
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 137);
        let mut next = config.clone();
        (next.sandbox, next.restart_count) = (new.id.clone(), 1);
        let next = soon(bench.runtime.start(&next)).await.unwrap();
        assert!(bench.is_running(&next).await);
        soon(bench.runtime.remove_sandboxes(&pod.uid))
            .await
            .unwrap();
        assert!(missing(&bench.runtime.state(&next).await.unwrap_err()));
    })
    .await;
}

#[tokio::test]
async fn no_registry_is_needed_for_sandboxes() {
    for installation in Installation::each() {
        let containerd = Containerd::without_sandbox_image(&installation)
            .await
            .unwrap();
        let mut bench = Bench::on_containerd(&containerd).await;
        let (id, _) = bench.start("exit 3").await;
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 3);
        // The first process of a sandbox reaps those whose parents have ended.
        let pod = PodConfig {
            share_processes: true,
            ..bench.other_pod()
        };
        let sandbox = soon(bench.runtime.sandbox(&pod)).await.unwrap();
        let mark = unique_seconds();
        let config = ContainerConfig {
            pod_uid: pod.uid.clone(),
            sandbox: sandbox.id.clone(),
            ..bench.sh(&format!("(sleep {mark} &) ; sleep 1000000; :"))
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        until("it has an orphan", || with_argument(&mark).len() == 1).await;
        let orphan = with_argument(&mark)[0];
        let parent = || {
            belay_shim::proc::Process::read(orphan)
                .unwrap()
                .map(|process| process.parent)
        };
        until("it is adopted", || parent() == Some(pause_of(&sandbox))).await;
        kill_9(orphan).await;
        until("it is reaped", || parent().is_none()).await;
        soon(bench.runtime.kill_tree(&id)).await.unwrap();
        bench.remove_sandboxes(&pod.uid).await;
        bench.finish().await;
    }
}

#[tokio::test]
async fn of_sandboxes_that_died_only_the_last_stays() {
    on_each_containerd(async |bench| {
        let pod = bench.other_pod();
        let of_pod = async || {
            let mut all = bench.runtime.sandboxes().await.unwrap();
            all.retain(|one| one.pod_uid == pod.uid);
            all
        };
        let mut sandbox = soon(bench.runtime.sandbox(&pod)).await.unwrap();
        // What ended in the first one is known for as long as somebody wants it.
        let config = ContainerConfig {
            pod_uid: pod.uid.clone(),
            pod_name: pod.name.clone(),
            sandbox: sandbox.id.clone(),
            ..bench.config(&["true"])
        };
        let first = sandbox.id.clone();
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        for attempt in 1..5 {
            kill_9(pause_of(&sandbox)).await;
            belay_testkit::eventually("it is seen", async || {
                let all = bench.runtime.sandboxes().await?;
                let one = all.into_iter().find(|one| one.id == sandbox.id);
                Ok(one.filter(|one| !one.ready))
            })
            .await
            .unwrap();
            if attempt == 4 {
                soon(bench.runtime.remove(&id)).await.unwrap();
            }
            let next = soon(bench.runtime.sandbox(&pod)).await.unwrap();
            assert_eq!(next.attempt, attempt);
            let mut expected = vec![sandbox.id.clone(), next.id.clone()];
            if attempt == 2 || attempt == 3 {
                expected.insert(0, first.clone());
            }
            let known: Vec<_> = of_pod().await.into_iter().map(|one| one.id).collect();
            assert_eq!(known, expected);
            sandbox = next;
        }
        bench.remove_sandboxes(&pod.uid).await;
    })
    .await;
}

#[tokio::test]
async fn names_are_resolved_as_the_pod_says() {
    on_each_containerd(async |bench| {
        let pod = PodConfig {
            dns: Some(Dns {
                servers: vec!["192.0.2.53".into()],
                searches: vec!["example.test".into()],
                options: vec!["ndots:3".into()],
            }),
            ..bench.other_pod()
        };
        let sandbox = soon(bench.runtime.sandbox(&pod)).await.unwrap();
        let config = ContainerConfig {
            pod_uid: pod.uid.clone(),
            pod_name: pod.name.clone(),
            sandbox: sandbox.id.clone(),
            ..bench.sh("cat /etc/resolv.conf")
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        for line in [
            "nameserver 192.0.2.53",
            "search example.test",
            "options ndots:3",
        ] {
            logged(&config, &format!("stdout F {line}")).await;
        }
        bench.remove_sandboxes(&pod.uid).await;
    })
    .await;
}

#[tokio::test]
async fn images_are_found_refused_and_not_to_be_had() {
    on_each_containerd(async |bench| {
        let runtime = &bench.runtime;
        for pull in [Pull::Never, Pull::IfNotPresent] {
            let found = runtime.image(BUSYBOX, pull).await.unwrap();
            assert!(found.id.contains("sha256:"), "{found:?}");
            assert_eq!(found.stop_signal, None);
        }
        let found = runtime.image(QUITTER, Pull::IfNotPresent).await.unwrap();
        assert_eq!(found.stop_signal.as_deref(), Some("SIGQUIT"));
        let config = ContainerConfig {
            image: QUITTER.into(),
            image_id: found.id,
            ..bench.config(&["sleep", "1000000"])
        };
        let id = soon(runtime.start(&config)).await.unwrap();
        let state = runtime.state(&id).await.unwrap();
        assert_eq!(state.image_stop_signal.as_deref(), Some("SIGQUIT"));

        let nowhere = "127.0.0.1:1/no/such/image:1";
        for pull in [Pull::Always, Pull::IfNotPresent] {
            let error = soon(runtime.image(nowhere, pull)).await.unwrap_err();
            assert!(matches!(error, ImageError::Pull { .. }), "{error}");
            assert!(error.to_string().contains("connection refused"), "{error}");
        }
        let error = runtime.image(nowhere, Pull::Never).await.unwrap_err();
        assert!(matches!(error, ImageError::NeverPull { .. }), "{error}");
        let error = runtime.image("UPPER case", Pull::Always).await.unwrap_err();
        assert!(matches!(error, ImageError::InvalidName { .. }), "{error}");
        let absent = ContainerConfig {
            image: nowhere.into(),
            ..bench.config(&["true"])
        };
        let error = soon(runtime.start(&absent)).await.unwrap_err();
        assert!(matches!(error, RuntimeError::Call { .. }), "{error}");
        assert!(error.to_string().contains(nowhere), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_container_is_as_restricted_as_it_was_asked_for() {
    on_each_containerd(async |bench| {
        std::fs::create_dir_all(bench.path("volume")).unwrap();
        std::fs::write(bench.path("volume/file"), "content\n").unwrap();
        let script = "cat /volume/file; touch /volume/x || echo no-volume; touch /x || echo no-root; \
                      grep -E 'CapBnd|NoNewPrivs|Groups' /proc/self/status | tr -d '\\t '; \
                      cat /proc/timer_list | wc -c";
        let mut config = bench.sh(&format!("({script}) 2>/dev/null"));
        config.mounts.push(Mount {
            host_path: bench.path("volume"),
            container_path: "/volume".into(),
            read_only: true,
            propagation: Propagation::None,
        });
        config.security = Security {
            read_only_root: true,
            no_new_privileges: true,
            drop_capabilities: vec!["ALL".into()],
            add_capabilities: vec!["CHOWN".into()],
            supplemental_groups: vec![4711],
            ..Security::default()
        };
        config.args = vec!["ignored".into()];
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 0);
        until("all is logged", || log(&config).len() >= 7).await;
        let said: Vec<String> = log(&config)
            .into_iter()
            .map(|line| line.replace("stdout F ", ""))
            .collect();
        assert_eq!(said[..3], ["content", "no-volume", "no-root"]);
        assert!(said[3].contains("4711"), "{said:?}");
        let rest = ["CapBnd:0000000000000001", "NoNewPrivs:1", "0"];
        assert_eq!(said[4..], rest, "{said:?}");
        // And the other way round.
        let mut free = bench.sh("grep CapBnd /proc/self/status | tr -d '\\t'");
        free.security.privileged = true;
        let id = soon(bench.runtime.start(&free)).await.unwrap();
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 0);
        until("all is logged", || log(&free).len() == 1).await;
        assert!(log(&free)[0].contains("CapBnd:000001ff"), "{:?}", log(&free));
    })
    .await;
}

#[tokio::test]
async fn containers_with_large_environments_are_listed_and_their_logs_bounded() {
    on_each_containerd(async |bench| {
        // Together more than one answer of the runtime may have.
        let large = |letter: &str| (format!("LARGE_{letter}"), letter.repeat(100_000));
        let env: Vec<_> = ('a'..='q')
            .map(|letter| large(&letter.to_string()))
            .collect();
        let mut ids = Vec::new();
        for _ in 0..10 {
            let config = ContainerConfig {
                env: env.clone(),
                ..bench.config(&["sleep", "1000000"])
            };
            ids.push(soon(bench.runtime.start(&config)).await.unwrap());
        }
        let listed = soon(bench.runtime.list()).await.unwrap();
        let listed: Vec<_> = listed.states.into_iter().map(|state| state.id).collect();
        ids.sort_unstable();
        assert_eq!(listed, ids);
        soon(bench.runtime.bound_logs()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn system_calls_are_filtered_as_asked_for() {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    if actions.is_err() {
        return skip("the kernel has no seccomp");
    }
    on_each_containerd(async |bench| {
        for (asked, mode) in [
            (Seccomp::Unset, "0"),
            (Seccomp::Unconfined, "0"),
            (Seccomp::RuntimeDefault, "2"),
            (Seccomp::Localhost("/no/such/profile".into()), "none"),
        ] {
            let mut config = bench.sh("grep Seccomp: /proc/self/status | tr -d '\\t'");
            config.security.seccomp = asked;
            let started = soon(bench.runtime.start(&config)).await;
            if mode == "none" {
                let error = started.unwrap_err().to_string();
                assert!(error.contains("/no/such/profile"), "{error}");
                continue;
            }
            soon(bench.runtime.wait(&started.unwrap())).await.unwrap();
            logged(&config, &format!("stdout F Seccomp:{mode}")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn who_uses_more_memory_than_allowed_is_told_so() {
    on_each_containerd(async |bench| {
        let mut config = bench.sh("head -c 200000000 /dev/zero | tail -c 190000000 | wc -c");
        // The whole pipeline in the first process.
        config.command = ["tail", "-c", "190000000", "/dev/zero"]
            .map(str::to_owned)
            .to_vec();
        config.resources.memory_limit = Some(32 << 20);
        config.resources.cpu_limit = Some(2000);
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        let exit = soon(bench.runtime.wait(&id)).await.unwrap();
        assert_eq!((exit.code, exit.reason), (137, ExitReason::OomKilled));
    })
    .await;
}

#[tokio::test]
async fn a_runtime_that_honours_the_stop_signal_is_told_of_it() {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await.unwrap();
        let mut bench = Bench::on_containerd(containerd).await;
        let script = "trap 'echo usr1; exit 1' USR1; trap 'echo term; exit 2' TERM; echo ready; \
                      while :; do sleep 0.05; done";
        let config = ContainerConfig {
            stop_signal: Some("SIGUSR1".into()),
            ..bench.sh(script)
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        logged(&config, "stdout F ready").await;
        let kubelet = containerd.kubelet();
        kubelet.stop_container(id.as_str(), 30).await.unwrap();
        let old = kubelet.version().await.unwrap().starts_with("1.");
        // Older ones know of no such field: there the signal is sent by whoever stops it.
        let code = soon(bench.runtime.wait(&id)).await.unwrap().code;
        assert_eq!(code, if old { 2 } else { 1 });
        bench.finish().await;
    }
}

#[tokio::test]
async fn a_container_that_shares_its_processes_dies_whole_and_alone() {
    on_each_containerd(async |bench| {
        let shared = PodConfig {
            share_processes: true,
            ..bench.other_pod()
        };
        let hosts = PodConfig {
            host_pid: true,
            host_ipc: true,
            ..bench.other_pod()
        };
        for pod in [shared, hosts] {
            let sandbox = soon(bench.runtime.sandbox(&pod)).await.unwrap();
            let [mark, neighbours] = [(); 2].map(|()| unique_seconds());
            let go = bench.path(&format!("go-{mark}"));
            let config = |script: &str| ContainerConfig {
                pod_uid: pod.uid.clone(),
                pod_name: pod.name.clone(),
                sandbox: sandbox.id.clone(),
                ..bench.sh(script)
            };
            let script = format!(
                "(setsid env -i /bin/sleep {mark} &); while [ ! -e {} ]; do sleep 0.02; done; exit 4",
                go.display()
            );
            let one = config(&script);
            let two = config(&format!("(setsid /bin/sleep {neighbours} &); sleep 1000000; :"));
            let id = soon(bench.runtime.start(&one)).await.unwrap();
            let neighbour = soon(bench.runtime.start(&two)).await.unwrap();
            until("both have daemons", || {
                with_argument(&mark).len() == 1 && with_argument(&neighbours).len() == 1
            })
            .await;
            std::fs::write(&go, "").unwrap();
            assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 4);
            assert_eq!(with_argument(&mark), [0; 0]);
            assert!(bench.is_running(&neighbour).await);
            let left = soon(bench.runtime.kill_tree(&neighbour)).await.unwrap();
            assert_eq!((left.len(), with_argument(&neighbours)), (0, vec![]));
            bench.remove_sandboxes(&pod.uid).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_container_has_a_terminal_if_it_asks_for_one() {
    on_each_containerd(async |bench| {
        for terminal in [true, false] {
            let script = "[ -t 1 ] && echo terminal || echo none; echo to-stderr >&2";
            let config = ContainerConfig {
                tty: terminal,
                stdin: terminal,
                ..bench.sh(script)
            };
            let id = soon(bench.runtime.start(&config)).await.unwrap();
            soon(bench.runtime.wait(&id)).await.unwrap();
            until("all is logged", || log(&config).len() == 2).await;
            let mut said = log(&config);
            said.sort();
            let expected = if terminal {
                ["stdout F terminal", "stdout F to-stderr"]
            } else {
                ["stderr F to-stderr", "stdout F none"]
            };
            assert_eq!(said, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn a_second_incarnation_is_not_started_beside_the_first() {
    on_each_containerd(async |bench| {
        let config = bench.config(&["sleep", "1000000"]);
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        assert_eq!(soon(bench.runtime.start(&config)).await.unwrap(), id);
        let next = ContainerConfig {
            restart_count: 1,
            ..config
        };
        let error = soon(bench.runtime.start(&next)).await.unwrap_err();
        assert!(
            matches!(error, RuntimeError::StillRunning { .. }),
            "{error}"
        );
        soon(bench.runtime.kill_tree(&id)).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        let next = soon(bench.runtime.start(&next)).await.unwrap();
        assert_ne!(next, id);
    })
    .await;
}

#[tokio::test]
async fn a_companion_runs_no_pods() {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await.unwrap();
        let dir = containerd.dir().join(format!("companion-{}", unique()));
        let runtime = CriRuntime::connect(&containerd.endpoint(), &dir)
            .await
            .unwrap();
        let error = runtime.sandbox(&PodConfig::default()).await.unwrap_err();
        assert!(error.to_string().contains("somebody else"), "{error}");
        assert!(runtime.list().await.is_err() && runtime.sandboxes().await.is_err());
    }
}
