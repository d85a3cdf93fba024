//! A containerd of a test leaves nothing behind.

use std::{fs, path::Path, process::Command};

use belay_testkit::{
    ContainerSpec, Containerd, PodSpec, containerd::Installation, processes,
    reaper::DIRECTORY_VARIABLE,
};

fn mounts_under(dir: &Path) -> anyhow::Result<usize> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let dir = format!(" {}/", dir.display());
    Ok(mounts.lines().filter(|line| line.contains(&dir)).count())
}

fn control_groups_of(dir: &Path) -> anyhow::Result<usize> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name", &name])
        .output()?;
    Ok(String::from_utf8(found.stdout)?.lines().count())
}

#[tokio::test]
async fn processes_mounts_and_control_groups_go_with_it() -> anyhow::Result<()> {
    for installation in Installation::each() {
        let containerd = Containerd::start(&installation).await?;
        let dir = containerd.dir().to_owned();
        let mark = format!("{DIRECTORY_VARIABLE}={}", dir.display());
        let kubelet = containerd.kubelet();
        let pod = PodSpec {
            uid: "u".to_owned(),
            name: "p".to_owned(),
            namespace: "default".to_owned(),
            ..PodSpec::default()
        };
        let sandbox = kubelet.run_pod(&pod).await?;
        let container = ContainerSpec::sh("main", "sleep 1000000 & exec sleep 1000000");
        kubelet.run_container(&sandbox, &pod, &container).await?;
        // containerd, its shim, the sandbox, two processes of the container.
        let running = async || {
            let count = processes::with_environment(&mark).len();
            Ok((count >= 5).then_some(()))
        };
        belay_testkit::eventually("the container's processes", running).await?;
        assert_ne!(mounts_under(&dir)?, 0);
        assert_ne!(control_groups_of(&dir)?, 0);
        drop(containerd);
        assert_eq!(processes::with_environment(&mark), []);
        assert_eq!(mounts_under(&dir)?, 0);
        assert_eq!(control_groups_of(&dir)?, 0);
        assert!(!dir.exists());
    }
    Ok(())
}
