//! Pods as a real containerd recorded them.

#![allow(clippy::unwrap_used)]

mod cri;

use belay_runtime::{Containers, RecordedPods};
use belay_testkit::{ContainerSpec, PodSpec};
use cri::*;

fn sleeper(name: &str, attempt: u32) -> ContainerSpec {
    ContainerSpec {
        attempt,
        ..ContainerSpec::sh(name, "exec sleep 1000000")
    }
}

#[tokio::test]
async fn a_pod_is_told_with_its_annotations_and_the_newest_of_each_container() {
    on_each(async |bench| {
        assert_eq!(bench.runtime.name(), "containerd");
        let pod = PodSpec {
            annotations: [
                (
                    "apps.k8s.io/notifiers".to_owned(),
                    "{\"main\":[]}".to_owned(),
                ),
                ("other".to_owned(), "ä\n".to_owned()),
            ]
            .into(),
            ..pod()
        };
        let other = bench.run(&sleeper("main", 7)).await;
        let kubelet = &bench.kubelet;
        let sandbox = kubelet.run_pod(&pod).await.unwrap();
        let run = async |container: ContainerSpec| {
            kubelet
                .run_container(&sandbox, &pod, &container)
                .await
                .unwrap()
        };
        // An init container that is done, a container on its third life, one that has ended.
        run(ContainerSpec::sh("init", "exit 0")).await;
        for attempt in 0..2 {
            let old = run(sleeper("main", attempt)).await;
            kubelet.stop_container(&old, 0).await.unwrap();
        }
        let main = run(sleeper("main", 2)).await;
        let ended = run(sleeper("side", 0)).await;
        kubelet.stop_container(&ended, 0).await.unwrap();

        let found = bench.runtime.recorded_pod(&pod.uid).await.unwrap().unwrap();
        assert_eq!((&found.uid, &found.name), (&pod.uid, &pod.name));
        assert_eq!(found.namespace, "default");
        assert_eq!(found.annotations, pod.annotations);
        assert_eq!(found.address, None, "it is on the host's network");
        let names: Vec<_> = found.containers.keys().map(String::as_str).collect();
        assert_eq!(names, ["init", "main", "side"]);
        let one = &found.containers["main"];
        assert_eq!(
            (one.id.as_str(), one.restart_count, one.running),
            (&*main, 2, true)
        );
        let one = &found.containers["side"];
        assert_eq!(
            (one.id.as_str(), one.restart_count, one.running),
            (&*ended, 0, false)
        );

        let found = bench
            .runtime
            .recorded_pod(&other.spec.uid)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.containers["main"].id, other.id);
        assert_eq!(bench.runtime.recorded_pod("nobody").await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn of_two_sandboxes_the_one_that_is_ready_counts() {
    on_each(async |bench| {
        let annotated = |attempt: u32, spec: &PodSpec| PodSpec {
            attempt,
            annotations: [("sandbox".to_owned(), attempt.to_string())].into(),
            ..spec.clone()
        };
        let spec = pod();
        let kubelet = &bench.kubelet;
        let (first, second) = (annotated(0, &spec), annotated(1, &spec));
        let old = kubelet.run_pod(&first).await.unwrap();
        kubelet
            .run_container(&old, &first, &sleeper("main", 0))
            .await
            .unwrap();
        kubelet
            .run_container(&old, &first, &sleeper("slow", 0))
            .await
            .unwrap();
        kubelet.stop_pod(&old).await.unwrap();

        // Only a dead one: the pod is still told, and that nothing of it runs.
        let found = bench
            .runtime
            .recorded_pod(&spec.uid)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.annotations["sandbox"], "0");
        assert!(
            found
                .containers
                .values()
                .all(|container| !container.running)
        );

        let new = kubelet.run_pod(&second).await.unwrap();
        let main = kubelet
            .run_container(&new, &second, &sleeper("main", 1))
            .await
            .unwrap();
        let found = bench
            .runtime
            .recorded_pod(&spec.uid)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.annotations["sandbox"], "1");
        assert_eq!(found.containers["main"].id.as_str(), main);
        assert!(found.containers["main"].running);
        assert!(
            !found.containers["slow"].running,
            "it has not come up again yet"
        );

        kubelet.stop_pod(&new).await.unwrap();
        kubelet.remove_pod(&new).await.unwrap();
        kubelet.remove_pod(&old).await.unwrap();
        assert_eq!(bench.runtime.recorded_pod(&spec.uid).await.unwrap(), None);
    })
    .await;
}
