//! A whole Kubernetes on this machine: etcd, API server, controller manager, scheduler, containerd
//! and a kubelet, one node, in namespaces of its own.
//!
//! ```text
//!   test ── 10.213.N.1 ─┐ veth
//!   ┌───────────────────┴─ network, mount, PID and IPC namespace ──────────────────────┐
//!   │ 10.213.N.2   etcd · kube-apiserver · controller-manager · scheduler              │
//!   │              containerd · kubelet ── pods on a bridge                            │
//!   │ PID 1: a shell that reaps; with it everything here ends                          │
//!   └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Inside, everything lies where an installer would have put it (`/run/containerd`,
//! `/var/lib/kubelet`, ...), so manifests are used as they are printed. The host sees nothing of it.
//!
//! **Invariant:** the end of the first process ends every other one, every mount and the network;
//! the [`Reaper`] sees to it even when the test is killed.

mod belay;
mod credentials;
mod part;

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use tokio::process::{Child, Command};

use crate::{
    containerd,
    image::Image,
    kubectl::Kubectl,
    processes,
    reaper::{DIRECTORY_VARIABLE, Reaper},
    rest::Rest,
    skip::skip,
    wait::{eventually, eventually_within},
};
use credentials::Credentials;
pub use part::Part;

/// The name of the cluster's only node.
pub const NODE: &str = "n1";
/// Address of the API server as pods know it.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// A first start compiles nothing, but reads hundreds of megabytes of programs.
const START: Duration = Duration::from_secs(240);

/// What the first process of the namespaces does: a private view of the places that programs use
/// by habit, a loopback, and then nothing but reaping.
const INIT: &str = r#"
set -e
dir=$1
mount --make-rprivate /
for place in var etc opt; do
    mkdir -p "$dir/over/$place" "$dir/work/$place"
    mount -t overlay overlay -o "lowerdir=/$place,upperdir=$dir/over/$place,workdir=$dir/work/$place" "/$place"
done
mount -t tmpfs tmpfs /run
for place in /var/lib/kubelet /var/lib/containerd /var/lib/belay /var/log/pods /run/containerd; do
    mkdir -p "$place" "$dir/node$place"
    mount --bind "$dir/node$place" "$place"
done
mkdir -p /etc/cni/net.d
rm -f /etc/cni/net.d/*
cp "$dir/cni.conflist" /etc/cni/net.d/10-test.conflist
mount --make-rshared /
ip link set lo up
ip address add 10.96.0.1/32 dev lo
echo 1 > /proc/sys/net/ipv4/ip_forward
touch "$dir/namespaces"
while :; do sleep 5 & wait $!; done
"#;

const NETWORK: &str = r#"{"cniVersion": "0.4.0", "name": "test", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}"#;

/// Where the programs are.
#[derive(Debug, Clone)]
struct Programs {
    kubernetes: PathBuf,
    etcd: PathBuf,
    containerd: PathBuf,
}

impl Programs {
    /// From the variables that `cargo xtask test --kubernetes` sets.
    ///
    /// # Errors
    ///
    /// What is missing, of them or of what else a node needs.
    fn find() -> Result<Self, String> {
        let variable = |name: &str| {
            env::var_os(name).map(PathBuf::from).ok_or_else(|| {
                "no Kubernetes; `cargo xtask test --kubernetes` builds one and runs these tests"
                    .to_owned()
            })
        };
        let found = Self {
            kubernetes: variable("BELAY_KUBERNETES")?,
            etcd: variable("BELAY_ETCD")?,
            containerd: variable("BELAY_TEST_CONTAINERD")?,
        };
        // The plugin that `NETWORK` names.
        match containerd::missing("bridge") {
            Some(missing) => Err(missing),
            None => Ok(found),
        }
    }
}

/// Says that the calling test is skipped because no cluster can be had, and why.
pub(crate) fn skip_without_programs() {
    if let Err(missing) = Programs::find() {
        skip(&missing);
    }
}

/// Dropping it ends every process it led to and removes its directory.
#[derive(Debug)]
pub struct Cluster {
    programs: Programs,
    dir: PathBuf,
    /// The first process of the namespaces, by its pid out here.
    init: u32,
    address: Ipv4Addr,
    parts: BTreeMap<Part, Child>,
    unshare: Option<Child>,
    reaper: Option<Reaper>,
}

impl Cluster {
    /// A cluster whose node is ready, or `None` after having said that the test is skipped.
    pub async fn start() -> anyhow::Result<Option<Self>> {
        let programs = match Programs::find() {
            Ok(programs) => programs,
            Err(missing) => {
                skip(&missing);
                return Ok(None);
            }
        };
        let dir = tempfile::Builder::new()
            .prefix("belay-test-")
            .tempdir()?
            .keep();
        let reaper = Reaper::watch(&dir)?;
        let mut cluster = Self {
            programs,
            init: 0,
            address: Ipv4Addr::UNSPECIFIED,
            parts: BTreeMap::new(),
            unshare: None,
            reaper: Some(reaper),
            dir,
        };
        cluster.make_namespaces().await?;
        cluster.connect().await?;
        cluster.make_credentials()?;
        cluster.make_cgroups()?;
        for part in [Part::Etcd, Part::Containerd, Part::ApiServer] {
            cluster.start_part(part)?;
        }
        cluster.load(&Image::busybox()?).await?;
        cluster.api_server_ready().await?;
        for part in [Part::ControllerManager, Part::Scheduler, Part::Kubelet] {
            cluster.start_part(part)?;
        }
        cluster.node_ready().await?;
        Ok(Some(cluster))
    }

    /// The directory that belongs to this cluster alone.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.credentials_dir().join("admin.kubeconfig")
    }

    /// A kubeconfig of somebody who shows this token.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        let (dir, user) = (self.credentials_dir(), format!("token: {token}"));
        credentials::kubeconfig(&dir, &self.server(), name, &user)
    }

    /// Address of the node, and of the API server on port 443.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub async fn admin(&self) -> anyhow::Result<Rest> {
        Rest::from_kubeconfig(&self.kubeconfig()).await
    }

    /// The kubectl of the same version, as the administrator.
    pub fn kubectl(&self) -> Kubectl {
        self.kubectl_with(&self.kubeconfig())
    }

    /// The kubectl of the same version, as whoever the kubeconfig says.
    pub fn kubectl_with(&self, kubeconfig: &Path) -> Kubectl {
        Kubectl::new(
            &self.programs.kubernetes.join("kubectl"),
            kubeconfig,
            &self.dir.join("kubectl-home"),
        )
    }

    /// What a part has logged so far.
    pub fn log(&self, part: Part) -> String {
        fs::read_to_string(self.log_path(part)).unwrap_or_default()
    }

    /// The API server's own record of what Belay's controllers have written.
    pub fn audit(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.audit_path()).unwrap_or_default();
        let events = text.lines().map(serde_json::from_str);
        // The last line may be on its way.
        events.filter_map(Result::ok).collect()
    }

    /// Starts a part, also one that was killed.
    pub fn start_part(&mut self, part: Part) -> anyhow::Result<()> {
        let arguments = part.arguments(self)?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path(part))?;
        let program = part.directory(&self.programs).join(part.program());
        let child = self
            .inside(&program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", part.program()))?;
        self.parts.insert(part, child);
        Ok(())
    }

    /// Ends a part without asking it. What it started goes on.
    pub async fn kill9(&mut self, part: Part) -> anyhow::Result<()> {
        let mut child = self.parts.remove(&part).context("it does not run")?;
        let entered = child.id().context("it has ended already")?;
        // The one that entered the namespaces waits for the part itself.
        let pid = eventually("the part's process", async || {
            Ok(processes::children(entered).first().copied())
        })
        .await?;
        processes::kill(pid);
        child.wait().await?;
        Ok(())
    }

    /// Whether a process, by its pid out here, belongs to the cluster.
    pub fn contains(&self, pid: u32) -> bool {
        processes::descends_from(pid, self.init)
    }

    /// The pid of a part, as it is known out here.
    pub fn pid(&self, part: Part) -> Option<u32> {
        let entered = self.parts.get(&part)?.id()?;
        processes::children(entered).first().copied()
    }

    /// A program that runs inside, where the cluster's files and network are.
    pub fn inside(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--mount", "--net", "--pid", "--ipc", "--target"])
            .arg(self.init.to_string())
            .arg("--")
            .arg(program)
            .env(DIRECTORY_VARIABLE, &self.dir)
            .env_remove("KUBECONFIG")
            .env("NO_PROXY", "*")
            // containerd finds its shim on the PATH.
            .env(
                "PATH",
                format!(
                    "{}:/usr/sbin:/usr/bin:/sbin:/bin",
                    self.programs.containerd.display()
                ),
            )
            .kill_on_drop(true);
        command
    }

    /// Makes an image known to the node.
    pub async fn load(&self, image: &Image) -> anyhow::Result<()> {
        let archive = tempfile::Builder::new()
            .suffix(".tar")
            .tempfile_in(&self.dir)?;
        image.archive(archive.path())?;
        eventually("containerd to take an image", async || {
            let imported = self
                .inside(&self.programs.containerd.join("ctr"))
                .args(["-n", "k8s.io", "images", "import"])
                .arg(archive.path())
                .output()
                .await?;
            anyhow::ensure!(
                imported.status.success(),
                "ctr: {}",
                String::from_utf8_lossy(&imported.stderr)
            );
            Ok(Some(()))
        })
        .await
    }

    /// Waits until containerd answers. A kubelet that is started before that ends.
    pub async fn containerd_ready(&self) -> anyhow::Result<()> {
        eventually("containerd to answer", async || {
            let mut asked = self.inside(&self.programs.containerd.join("ctr"));
            let answer = asked.arg("version").output().await?;
            Ok(answer.status.success().then_some(()))
        })
        .await
        .with_context(|| self.last_words(Part::Containerd))
    }

    /// Waits until the API server answers.
    pub async fn api_server_ready(&self) -> anyhow::Result<()> {
        let ready = eventually_within(START, "the API server", async || {
            let reply = self.admin().await?.get("/readyz").await?;
            anyhow::ensure!(reply.status.is_success(), "{}", reply.text());
            Ok(Some(()))
        });
        ready
            .await
            .with_context(|| self.last_words(Part::ApiServer))
    }

    /// Waits until pods can run.
    pub async fn node_ready(&self) -> anyhow::Result<()> {
        let ready = eventually_within(START, "the node", async || {
            let admin = self.admin().await?;
            // Pods are refused before the account they run under is there.
            let account = "/api/v1/namespaces/default/serviceaccounts/default";
            admin.get(account).await?.ok()?;
            let node = admin.get(&format!("/api/v1/nodes/{NODE}")).await?.ok()?;
            let conditions = node["status"]["conditions"].as_array();
            let ready = conditions.is_some_and(|all| {
                all.iter()
                    .any(|one| one["type"] == "Ready" && one["status"] == "True")
            });
            let tainted = node["spec"]["taints"]
                .as_array()
                .is_some_and(|taints| !taints.is_empty());
            Ok((ready && !tainted).then_some(()))
        });
        ready.await.with_context(|| self.last_words(Part::Kubelet))
    }

    fn last_words(&self, part: Part) -> String {
        let log = self.log(part);
        let from = log.len().saturating_sub(4000);
        let tail = log.get(from..).unwrap_or(&log);
        format!("the end of the log of {}:\n{tail}", part.program())
    }

    fn log_path(&self, part: Part) -> PathBuf {
        self.dir.join(format!("{}.log", part.program()))
    }

    fn audit_path(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    fn server(&self) -> String {
        format!("https://{}:443", self.address)
    }

    fn credentials_dir(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// The name under which the cluster's pods are found in the cgroup hierarchies.
    fn cgroup(&self) -> anyhow::Result<&str> {
        let name = self.dir.file_name().and_then(|name| name.to_str());
        name.context("the directory has no name")
    }

    async fn make_namespaces(&mut self) -> anyhow::Result<()> {
        fs::write(self.dir.join("cni.conflist"), NETWORK)?;
        fs::create_dir_all(self.dir.join("kubectl-home"))?;
        let log = File::create(self.dir.join("init.log"))?;
        let unshare = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--ipc"])
            .args(["--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", INIT, "init"])
            .arg(&self.dir)
            .env(DIRECTORY_VARIABLE, &self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot run unshare")?;
        let outer = unshare.id().context("unshare has ended")?;
        self.unshare = Some(unshare);
        let made = eventually("the namespaces", async || {
            Ok(self.dir.join("namespaces").exists().then_some(()))
        });
        made.await.with_context(|| {
            let said = fs::read_to_string(self.dir.join("init.log")).unwrap_or_default();
            format!("the namespaces of a cluster were not made (root is needed): {said}")
        })?;
        let first = processes::children(outer).first().copied();
        self.init = first.context("the first process has ended")?;
        Ok(())
    }

    /// Lays a cable into the network namespace. It goes when the namespace goes.
    async fn connect(&mut self) -> anyhow::Result<()> {
        let ip = async |arguments: &[&str]| -> anyhow::Result<()> {
            let output = Command::new("ip").args(arguments).output().await?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            anyhow::ensure!(
                output.status.success(),
                "ip {}: {said}",
                arguments.join(" ")
            );
            Ok(())
        };
        let init = self.init.to_string();
        let mut last = None;
        for attempt in 0..50_u32 {
            // Another cluster may have taken a number already; the name shows it.
            let number = u8::try_from((std::process::id() + attempt) % 250)? + 1;
            let name = format!("belay-test{number}");
            let add = [
                "link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &init,
            ];
            if let Err(error) = ip(&add).await {
                last = Some(error);
                continue;
            }
            ip(&[
                "address",
                "add",
                &format!("10.213.{number}.1/24"),
                "dev",
                &name,
            ])
            .await?;
            ip(&["link", "set", &name, "up"]).await?;
            self.address = Ipv4Addr::new(10, 213, number, 2);
            let inside = format!(
                "ip address add {}/24 dev eth0 && ip link set eth0 up && ip route add default via 10.213.{number}.1",
                self.address
            );
            let output = self
                .inside(Path::new("/bin/sh"))
                .args(["-c", &inside])
                .output()
                .await?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            anyhow::ensure!(output.status.success(), "{inside}: {said}");
            return Ok(());
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no number was tried")))
    }

    fn make_credentials(&self) -> anyhow::Result<()> {
        let credentials = Credentials::create(&self.credentials_dir(), self.server())?;
        let addresses = [self.address, SERVICE, Ipv4Addr::LOCALHOST].map(IpAddr::V4);
        credentials.serving("apiserver", &addresses)?;
        for (name, user, groups) in [
            ("admin", "admin", &["system:masters"][..]),
            ("kubelet", "system:node:n1", &["system:nodes"]),
            ("controller-manager", "system:kube-controller-manager", &[]),
            ("scheduler", "system:kube-scheduler", &[]),
        ] {
            credentials.client(name, user, groups)?;
        }
        Ok(())
    }

    /// Pods get cgroups of their own below the cluster's; the reaper removes them.
    fn make_cgroups(&self) -> anyhow::Result<()> {
        let root = Path::new("/sys/fs/cgroup");
        let name = self.cgroup()?;
        if root.join("cgroup.controllers").exists() {
            fs::create_dir_all(root.join(name))?;
            return Ok(());
        }
        for hierarchy in fs::read_dir(root)? {
            let hierarchy = hierarchy?.path();
            if hierarchy.join("cgroup.procs").exists() {
                fs::create_dir_all(hierarchy.join(name))?;
            }
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for part in [Part::ApiServer, Part::Kubelet] {
                eprintln!("--- {}", self.last_words(part));
            }
        }
        self.parts.clear();
        self.unshare = None;
        drop(self.reaper.take());
    }
}
