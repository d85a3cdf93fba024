use super::*;
use crate::pods::objects::Known;
use belay_api::pod::Reference;
use belay_testkit::{reaper::Reaper, skip::skip};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt as _, symlink};

// `json!` literals read better without a borrow.
#[allow(clippy::needless_pass_by_value)]
fn pod(volumes: Value, mounts: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]},
    }))
    .unwrap()
}

fn all_wanted(pod: &Pod) -> Result<Vec<Wanted>, Waiting> {
    let layout = Layout::new(Path::new("/d"), "u");
    let mut env = Environment::default();
    env.known.insert("NAME".to_owned(), "n".to_owned());
    wanted(pod, &pod.spec.containers[0], &layout, &env)
}

#[test]
fn mounts_lead_to_their_volumes() {
    let pod = pod(
        json!([{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/srv"}},
               {"name": "m", "configMap": {"name": "x"}}, {"name": "s", "secret": {"secretName": "y"}}]),
        json!([{"name": "e", "mountPath": "/e", "readOnly": true},
               {"name": "h", "mountPath": "h", "subPath": "a/b", "mountPropagation": "Bidirectional"},
               {"name": "m", "mountPath": "/m", "subPathExpr": "$(NAME)/$$x"},
               {"name": "s", "mountPath": "/s", "mountPropagation": "HostToContainer"}]),
    );
    let wanted = all_wanted(&pod).unwrap();
    let shown: Vec<_> = wanted
        .iter()
        .map(|mount| {
            let path = |path: &Path| path.display().to_string();
            (
                path(&mount.base),
                mount.sub_path.as_deref().map(path),
                path(&mount.container_path),
                mount.read_only,
                mount.propagation,
            )
        })
        .collect();
    let text = str::to_owned;
    assert_eq!(
        shown,
        [
            (
                text("/d/pods/u/volumes/emptyDir/e"),
                None,
                text("/e"),
                true,
                Propagation::None
            ),
            (
                text("/srv"),
                Some(text("a/b")),
                text("/h"),
                false,
                Propagation::Bidirectional
            ),
            (
                text("/d/pods/u/volumes/configMap/m"),
                Some(text("n/$x")),
                text("/m"),
                true,
                Propagation::None
            ),
            (
                text("/d/pods/u/volumes/secret/s"),
                None,
                text("/s"),
                true,
                Propagation::HostToContainer
            ),
        ]
    );
}

#[test]
fn a_mount_that_cannot_be_is_a_mistake_in_the_spec() {
    let volumes = json!([{"name": "e", "emptyDir": {}}]);
    for (mount, part) in [
        (
            json!({"name": "x", "mountPath": "/x"}),
            "cannot find volume \"x\"",
        ),
        (
            json!({"name": "e", "mountPath": "/x", "subPath": "../y"}),
            "leads out of its volume",
        ),
        (
            json!({"name": "e", "mountPath": "/x", "subPath": "/y"}),
            "leads out of its volume",
        ),
        (
            json!({"name": "e", "mountPath": "/x", "subPathExpr": "$(NONE)"}),
            "does not have",
        ),
    ] {
        let waiting = all_wanted(&pod(volumes.clone(), json!([mount]))).unwrap_err();
        assert_eq!(waiting.reason, "CreateContainerConfigError");
        assert!(waiting.message.contains(part), "{}", waiting.message);
    }
}

#[test]
fn what_is_missing_and_what_is_unknown_is_a_problem_of_its_volume_alone() {
    let pod = pod(
        json!([{"name": "e", "emptyDir": {}}, {"name": "m", "configMap": {"name": "x"}},
               {"name": "n", "nfs": {}}, {"name": "s", "secret": {"secretName": "new"}}]),
        json!([]),
    );
    let found = [
        (Reference::config_map("x"), Known::Missing),
        (Reference::secret("new"), Known::Unread(None)),
    ];
    let plan = plan(&pod, &Layout::new(Path::new("/d"), "u"), &found.into());
    assert_eq!(plan.volumes.len(), 1);
    assert!(plan.waits);
    let problems: Vec<_> = plan
        .problems
        .iter()
        .map(|problem| (problem.volume.as_str(), problem.message.as_str()))
        .collect();
    assert_eq!(
        problems,
        [
            ("m", "configmap \"x\" not found"),
            (
                "n",
                "the source nfs is not supported; this agent knows emptyDir, hostPath, configMap and secret"
            ),
        ]
    );
}

fn set_up_all(dir: &Path, volumes: Value) -> (Layout, Vec<Problem>) {
    let layout = Layout::new(dir, "u");
    let plan = plan(&pod(volumes, json!([])), &layout, &Found::new());
    assert!(plan.problems.is_empty() && !plan.waits);
    let problems = set_up(&layout, &plan.volumes);
    (layout, problems)
}

#[test]
fn an_empty_directory_is_open_to_all_and_keeps_its_contents() {
    let dir = tempfile::tempdir().unwrap();
    let volumes = || json!([{"name": "e", "emptyDir": {}}]);
    // An agent that was killed in the middle left this.
    let parent = dir.path().join("pods/u/volumes/emptyDir");
    private_directory(&parent.join("e.new")).unwrap();
    let (layout, problems) = set_up_all(dir.path(), volumes());
    assert_eq!(problems, []);
    let volume = parent.join("e");
    assert_eq!(volume.metadata().unwrap().mode() & 0o7777, 0o777);
    assert_eq!(layout.dir.metadata().unwrap().mode() & 0o7777, 0o700);
    fs::write(volume.join("kept"), "x").unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o700)).unwrap();
    let (layout, problems) = set_up_all(dir.path(), volumes());
    assert_eq!(problems, []);
    assert_eq!(volume.metadata().unwrap().mode() & 0o7777, 0o700);
    assert!(volume.join("kept").exists());
    remove(&layout).unwrap();
    remove(&layout).unwrap();
    assert!(!layout.dir.exists());
}

#[test]
fn an_unknown_medium_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, problems) = set_up_all(
        dir.path(),
        json!([{"name": "e", "emptyDir": {"medium": "HugePages"}}]),
    );
    assert_eq!(problems[0].message, "unknown storage medium \"HugePages\"");
}

#[test]
fn a_link_in_a_volume_is_removed_and_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    let (layout, _) = set_up_all(dir.path(), json!([{"name": "e", "emptyDir": {}}]));
    symlink(&outside, layout.volume("emptyDir", "e").join("link")).unwrap();
    symlink(&outside, layout.dir.join("volumes/emptyDir/other")).unwrap();
    remove(&layout).unwrap();
    assert!(!layout.dir.exists());
    assert!(outside.join("precious").exists());
}

#[test]
fn orphans_are_the_directories_of_unknown_pods() {
    let dir = tempfile::tempdir().unwrap();
    assert!(orphans(dir.path(), &HashSet::new()).is_empty());
    for uid in ["a", "b"] {
        private_directory(&Layout::new(dir.path(), uid).dir).unwrap();
    }
    fs::write(dir.path().join("pods/file"), "").unwrap();
    let found = orphans(dir.path(), &["a"].into());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "b");
}

/// Mounting takes root.
fn skipped() -> bool {
    if !is_root() {
        skip("only root can mount");
    }
    !is_root()
}

#[test]
fn memory_is_mounted_once_with_its_limit_and_goes_with_the_pod() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // A test that is killed leaves nothing mounted.
    let _reaper = Reaper::watch(dir.path()).unwrap();
    let volumes = || json!([{"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}}]);
    for _ in 0..2 {
        let (_, problems) = set_up_all(dir.path(), volumes());
        assert_eq!(problems, []);
    }
    let layout = Layout::new(dir.path(), "u");
    let volume = layout.volume("emptyDir", "e");
    assert_eq!(volume.metadata().unwrap().mode() & 0o7777, 0o777);
    fs::write(volume.join("fits"), vec![0; 32 << 10]).unwrap();
    fs::write(volume.join("too-much"), vec![0; 128 << 10]).unwrap_err();
    let real = layout.dir.canonicalize().unwrap();
    assert_eq!(mount_table::below(&real).unwrap().len(), 1);
    remove(&layout).unwrap();
    assert!(!layout.dir.exists());
    assert_eq!(mount_table::below(&real).unwrap().len(), 0);
}

#[test]
fn with_a_group_what_is_in_a_volume_is_the_groups() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // A test that is killed leaves nothing mounted.
    let _reaper = Reaper::watch(dir.path()).unwrap();
    let layout = Layout::new(dir.path(), "u");
    let mut pod = pod(
        json!([{"name": "e", "emptyDir": {}}, {"name": "t", "emptyDir": {"medium": "Memory"}},
               {"name": "m", "configMap": {"name": "m", "defaultMode": 0o400,
                   "items": [{"key": "k", "path": "d/k"}]}}]),
        json!([]),
    );
    pod.spec.security_context = serde_json::from_value(json!({"fsGroup": 4321})).unwrap();
    let object = crate::pods::objects::Object {
        data: [("k".to_owned(), b"x".to_vec())].into(),
        ..Default::default()
    };
    let found = [(Reference::config_map("m"), Known::Found(object.into()))];
    let plan = plan(&pod, &layout, &found.into());
    assert_eq!(set_up(&layout, &plan.volumes), []);
    let base = layout.dir.join("volumes");
    for (path, mode) in [
        ("emptyDir/e", 0o2777),
        ("emptyDir/t", 0o2777),
        ("configMap/m/d", 0o2755),
        ("configMap/m/d/k", 0o440),
    ] {
        let found = base.join(path).metadata().unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (4321, mode), "{path}");
    }
    remove(&layout).unwrap();
}

#[test]
fn a_part_of_a_host_path_is_unmounted_and_never_emptied() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // A test that is killed leaves nothing mounted.
    let _reaper = Reaper::watch(dir.path()).unwrap();
    let host = dir.path().join("host");
    fs::create_dir_all(host.join("sub")).unwrap();
    fs::write(host.join("sub/precious"), "x").unwrap();
    fs::write(host.join("file"), "y").unwrap();
    let layout = Layout::new(dir.path(), "u");
    let want = |index: usize, sub: &str| Wanted {
        volume: "h".to_owned(),
        index,
        base: host.clone(),
        sub_path: Some(sub.into()),
        container_path: "/x".into(),
        read_only: false,
        propagation: Propagation::None,
    };
    let mut made = Vec::new();
    // Again, as for the next incarnation of the container; and then for something else.
    for subs in [["sub", "file"], ["sub", "file"], ["file", "sub"]] {
        let wanted = [want(0, subs[0]), want(1, subs[1])];
        made = mounts(&layout, "c", &wanted).unwrap();
    }
    assert_eq!(fs::read_to_string(&made[0].host_path).unwrap(), "y");
    assert!(made[1].host_path.join("precious").exists());
    remove(&layout).unwrap();
    assert!(!layout.dir.exists());
    assert_eq!(fs::read_to_string(host.join("file")).unwrap(), "y");
    assert!(host.join("sub/precious").exists());
}
