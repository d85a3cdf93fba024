//! What volumes do, wherever containers run. Each function is one test, called for each runtime.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use belay_testkit::{Instance, Kubectl, PodBuilder, eventually, image, pod, until_file};
use serde_json::{Value, json};

/// An instance with one node, and how a pod is written for its runtime.
pub(crate) struct Place<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) kubectl: Kubectl,
    /// Where the agent of the node keeps its things.
    pub(crate) agent: PathBuf,
}

impl<'a> Place<'a> {
    /// `belay up` and the kubectl for it, or `None` after having said that the test is skipped.
    pub(crate) fn on(instance: &'a Instance) -> Option<Self> {
        Some(Place {
            kubectl: Kubectl::of(instance)?,
            agent: instance.data_dir().join("agent"),
            instance,
        })
    }

    /// A path on which a container can have a volume. Plain processes are on the host's file
    /// system, and what is mounted on has to be there.
    pub(crate) fn directory(&self, name: &str) -> anyhow::Result<String> {
        if self.instance.is_on_containerd() {
            return Ok(format!("/volumes/{name}"));
        }
        let path = self.instance.file(&format!("mnt-{name}"));
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// The same for a single file.
    fn mounted_file(&self, name: &str) -> anyhow::Result<String> {
        if self.instance.is_on_containerd() {
            return Ok(format!("/volumes/{name}"));
        }
        let path = self.instance.file(&format!("mnt-{name}"));
        fs::write(&path, "")?;
        Ok(path)
    }

    /// A directory of the host that every container of the test sees under the same path.
    pub(crate) fn files(&self) -> (String, Value, Value) {
        let path = self.instance.file("files");
        let _ = fs::create_dir_all(&path);
        let volume = json!({"name": "files", "hostPath": {"path": path, "type": "Directory"}});
        let mount = json!({"name": "files", "mountPath": path});
        (path, volume, mount)
    }

    /// Creates the pod, in an image that its node has.
    async fn create(&self, pod: PodBuilder) -> anyhow::Result<()> {
        let mut manifest = pod.build();
        for list in ["initContainers", "containers"] {
            let containers = manifest["spec"][list].as_array_mut();
            for container in containers.into_iter().flatten() {
                if self.instance.is_on_containerd() {
                    container["image"] = image::BUSYBOX.into();
                }
            }
        }
        self.kubectl.create(&manifest).await
    }

    async fn create_from_text(
        &self,
        what: &str,
        name: &str,
        data: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        let mut arguments: Vec<String> = vec!["create".into(), what.into()];
        if what == "secret" {
            arguments.push("generic".into());
        }
        arguments.push(name.into());
        for (key, value) in data {
            let file = self.instance.file(&format!("{name}-{key}"));
            fs::write(&file, value)?;
            arguments.push(format!("--from-file={key}={file}"));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.kubectl.ok(&arguments).await.map(drop)
    }

    pub(crate) async fn config_map(&self, name: &str, data: &[(&str, &str)]) -> anyhow::Result<()> {
        self.create_from_text("configmap", name, data).await
    }

    pub(crate) async fn secret(&self, name: &str, data: &[(&str, &str)]) -> anyhow::Result<()> {
        self.create_from_text("secret", name, data).await
    }

    pub(crate) async fn set(&self, what: &str, patch: Value) -> anyhow::Result<()> {
        let patch = patch.to_string();
        let arguments = ["patch", what, "--type=merge", "-p", &patch];
        self.kubectl.ok(&arguments).await.map(drop)
    }

    /// Waits until an event of the pod says this.
    pub(crate) async fn told(&self, pod: &str, reason: &str, text: &str) -> anyhow::Result<()> {
        let selector = format!("involvedObject.name={pod},reason={reason}");
        let arguments = ["get", "events", "--field-selector", &selector];
        eventually(&format!("event {reason}: {text}"), async || {
            let events = self.kubectl.json(&arguments).await?;
            let mut items = events["items"].as_array().into_iter().flatten();
            Ok(items.any(|e| e["message"] == text).then_some(()))
        })
        .await
    }

    pub(crate) async fn delete(&self, pod: &str) -> anyhow::Result<()> {
        let arguments = ["delete", "pod", pod, "--grace-period=1"];
        self.kubectl.ok(&arguments).await.map(drop)
    }

    /// Waits until nothing is left of a pod's volumes, neither on disk nor mounted.
    pub(crate) async fn nothing_left(&self, uid: &str) -> anyhow::Result<()> {
        let dir = self.agent.join("pods").join(uid);
        eventually("the pod's volumes to be gone", async || {
            Ok((!dir.exists() && mounted(&dir)?.is_empty()).then_some(()))
        })
        .await
    }

    pub(crate) async fn uid(&self, pod: &str) -> anyhow::Result<String> {
        let pod = self.kubectl.json(&["get", "pod", pod]).await?;
        let uid = pod["metadata"]["uid"].as_str();
        Ok(uid.context("a pod without a UID")?.to_owned())
    }

    async fn running(&self, name: &str) -> anyhow::Result<()> {
        eventually(&format!("pod {name} to run"), async || {
            let pod = self.kubectl.json(&["get", "pod", name]).await?;
            Ok((pod["status"]["phase"] == "Running").then_some(()))
        })
        .await
    }
}

/// What is mounted in a directory.
pub(crate) fn mounted(dir: &Path) -> anyhow::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let below = points.filter(|point| Path::new(point).starts_with(dir));
    Ok(below.map(str::to_owned).collect())
}

pub(crate) async fn a_pod_reads_what_kubectl_made(place: &Place<'_>) -> anyhow::Result<()> {
    place
        .config_map("conf", &[("a.conf", "one"), ("b.conf", "two")])
        .await?;
    place
        .secret("pass", &[("user", "me"), ("word", "s3cret")])
        .await?;
    let (all, some, pass) = (
        place.directory("all")?,
        place.directory("some")?,
        place.directory("pass")?,
    );
    let (one, shared) = (place.mounted_file("one")?, place.directory("shared")?);
    let (files, files_volume, files_mount) = place.files();
    let script = format!(
        "{{ cat {all}/a.conf {some}/deep/er {pass}/word {one}; echo; stat -L -c %a {all}/a.conf {some}/deep/er; \
         touch {all}/x || echo read-only; echo $USER-$GREETING; cat {shared}/from-init; }} > {files}/said 2>/dev/null; \
         until grep -q 1 {all}/a.conf; do sleep 0.1; done; cat {all}/a.conf {one} > {files}/later; \
         ls {all} >> {files}/later; exec sleep 1000"
    );
    let init = format!("echo from-init > {shared}/from-init");
    let mounts = json!([
        {"name": "all", "mountPath": all}, {"name": "some", "mountPath": some},
        {"name": "pass", "mountPath": pass}, {"name": "all", "mountPath": one, "subPath": "a.conf"},
        {"name": "shared", "mountPath": shared}, files_mount,
    ]);
    let manifest = pod("reads")
        .container("main", ["sh", "-c", &script])
        .container_field("volumeMounts", mounts)
        .container_field("env", json!([
            {"name": "USER", "valueFrom": {"secretKeyRef": {"name": "pass", "key": "user"}}},
            {"name": "GREETING", "value": "hello $(USER)"}]))
        .spec("volumes", json!([
            {"name": "all", "configMap": {"name": "conf"}},
            {"name": "some", "configMap": {"name": "conf", "defaultMode": 0o600,
                "items": [{"key": "b.conf", "path": "deep/er", "mode": 0o440}]}},
            {"name": "pass", "secret": {"secretName": "pass"}},
            {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, files_volume]))
        .spec("initContainers", json!([{
            "name": "init", "image": "none", "command": ["sh", "-c", init],
            "volumeMounts": [{"name": "shared", "mountPath": shared}]}]));
    place.create(manifest).await?;
    let said = until_file(&format!("{files}/said"), |text| text.contains("from-init")).await?;
    assert_eq!(
        said,
        "onetwos3cretone\n644\n440\nread-only\nme-hello me\nfrom-init\n"
    );
    let uid = place.uid("reads").await?;
    // Secrets and the directory in memory never touch a disk; the part of a volume is held fast.
    let points = mounted(&place.agent.join("pods").join(&uid))?;
    for part in [
        "secret/pass",
        "emptyDir/shared",
        "volume-subpaths/all/main/3",
    ] {
        assert!(
            points.iter().any(|point| point.ends_with(part)),
            "{part} in {points:?}"
        );
    }
    // An update is seen as a whole; what is mounted as a part stays as it was.
    place
        .set(
            "configmap/conf",
            json!({"data": {"a.conf": "1", "c.conf": "3", "b.conf": null}}),
        )
        .await?;
    let later = until_file(&format!("{files}/later"), |text| text.contains("c.conf")).await?;
    assert_eq!(later, "1onea.conf\nc.conf\n");
    place.delete("reads").await?;
    place.nothing_left(&uid).await?;
    assert!(
        Path::new(&files).join("said").exists(),
        "a path of the host is the host's"
    );
    Ok(())
}

pub(crate) async fn what_is_missing_is_waited_for(place: &Place<'_>) -> anyhow::Result<()> {
    let (dir, gone) = (place.directory("late")?, place.directory("gone")?);
    let (files, files_volume, files_mount) = place.files();
    let script =
        format!("ls {gone} > {files}/optional; cat {dir}/k > {files}/late; exec sleep 1000");
    let manifest = pod("waits")
        .container("main", ["sh", "-c", &script])
        .container_field(
            "volumeMounts",
            json!([
            {"name": "late", "mountPath": dir}, {"name": "gone", "mountPath": gone}, files_mount]),
        )
        .spec(
            "volumes",
            json!([
            {"name": "late", "configMap": {"name": "late"}},
            {"name": "gone", "secret": {"secretName": "gone", "optional": true}}, files_volume]),
        );
    place.create(manifest).await?;
    let told = "MountVolume.SetUp failed for volume \"late\" : configmap \"late\" not found";
    place.told("waits", "FailedMount", told).await?;
    let pod = place.kubectl.json(&["get", "pod", "waits"]).await?;
    assert_eq!(pod["status"]["phase"], "Pending");
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "ContainerCreating", "{pod:#}");
    place.config_map("late", &[("k", "came")]).await?;
    place.running("waits").await?;
    let late = until_file(&format!("{files}/late"), |text| !text.is_empty()).await?;
    assert_eq!(late, "came");
    assert_eq!(fs::read_to_string(format!("{files}/optional"))?, "");
    let uid = place.uid("waits").await?;
    place.delete("waits").await?;
    place.nothing_left(&uid).await
}

pub(crate) async fn a_host_path_has_to_be_what_it_is_taken_for(
    place: &Place<'_>,
) -> anyhow::Result<()> {
    let (path, dir) = (
        place.instance.file("no-directory"),
        place.directory("host")?,
    );
    fs::write(&path, "a file")?;
    let manifest = pod("typed")
        .idle("main")
        .container_field("volumeMounts", json!([{"name": "h", "mountPath": dir}]))
        .spec(
            "volumes",
            json!([{"name": "h", "hostPath": {"path": path, "type": "Directory"}}]),
        );
    place.create(manifest).await?;
    let told = format!(
        "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: {path} is not a directory"
    );
    place.told("typed", "FailedMount", &told).await?;
    // Nobody tells the agent: it looks again by itself.
    fs::remove_file(&path)?;
    fs::create_dir(&path)?;
    fs::write(format!("{path}/precious"), "")?;
    place.running("typed").await?;
    let uid = place.uid("typed").await?;
    place.delete("typed").await?;
    place.nothing_left(&uid).await?;
    assert!(Path::new(&path).join("precious").exists());
    Ok(())
}

pub(crate) async fn probes_and_notifiers_see_the_containers_volumes(
    place: &Place<'_>,
) -> anyhow::Result<()> {
    let dir = place.directory("seen")?;
    let (files, files_volume, files_mount) = place.files();
    let look = format!("cat {dir}/mark >> {files}/looked");
    let main = format!("echo inside > {dir}/mark; exec sleep 1000");
    let manifest = pod("looks")
        .container("main", ["sh", "-c", &main])
        .container_field("volumeMounts", json!([{"name": "v", "mountPath": dir}, files_mount]))
        .container_field("readinessProbe", json!({
            "exec": {"command": ["sh", "-c", format!("grep inside {dir}/mark")]}, "periodSeconds": 1}))
        .container_field("notifiers", json!([
            {"name": "look", "timeoutSeconds": 30, "handler": {"exec": {"command": ["sh", "-c", look]}}}]))
        .spec("volumes", json!([{"name": "v", "emptyDir": {}}, files_volume]))
        ;
    place.create(manifest).await?;
    place
        .kubectl
        .ok(&[
            "wait",
            "--for=condition=Ready",
            "pod/looks",
            "--timeout=120s",
        ])
        .await?;
    let notified = place
        .instance
        .belay(&["notify", "look", "pod/looks"])
        .await?;
    assert!(notified.status.success(), "{notified:?}");
    assert_eq!(fs::read_to_string(format!("{files}/looked"))?, "inside\n");
    assert!(
        !Path::new(&dir).join("mark").exists(),
        "the host does not see it"
    );
    place.delete("looks").await
}
