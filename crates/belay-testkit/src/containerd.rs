//! A real containerd on directories of its own: started, killed, started again.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

use crate::{
    image::{self, Image},
    kubelet::Kubelet,
    processes,
    reaper::{DIRECTORY_VARIABLE, Reaper},
    skip::skip,
};

/// A directory with `containerd`, `containerd-shim-runc-v2` and `ctr` of another version.
pub const PROGRAMS_VARIABLE: &str = "BELAY_TEST_CONTAINERD";

/// Where Debian has the network plugins.
pub(crate) const PLUGINS: &str = "/usr/lib/cni";

/// Long enough for a machine that does many other things at the same time.
const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(25);
/// Where whatever a pod uses is counted.
const GROUPS: &str = "/sys/fs/cgroup";

/// One containerd that is installed somewhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Installation {
    /// Where its programs are; `None` for those on the PATH.
    programs: Option<PathBuf>,
}

/// What Debian has, and what `cargo xtask test --kubernetes` builds: the one knows nothing of stop
/// signals, the other does.
const OLD: &str = "containerd 1.6 or 1.7 is not installed; install containerd";
const NEW: &str =
    "containerd 2.3 or later is not installed; `cargo xtask test --kubernetes` builds it";

impl Installation {
    /// All that can be used here, from the oldest to the newest: the machine's, and the one that was
    /// given.
    ///
    /// # Errors
    ///
    /// What is missing, when there is none.
    pub fn all() -> Result<Vec<Self>, String> {
        if let Some(missing) = missing("ptp") {
            return Err(missing);
        }
        let mut all = Vec::new();
        if find("containerd").is_some() && find("ctr").is_some() {
            all.push(Installation { programs: None });
        }
        if let Some(programs) = env::var_os(PROGRAMS_VARIABLE) {
            all.push(Installation {
                programs: Some(programs.into()),
            });
        }
        if all.is_empty() {
            return Err("containerd is missing; install containerd".to_owned());
        }
        Ok(all)
    }

    /// The same for a test that is about each of them: it has skipped those that are not there, and
    /// says so.
    pub fn each() -> Vec<Self> {
        let all = Self::all();
        match &all {
            Ok(all) if all.iter().all(Self::is_given) => skip(OLD),
            Ok(all) if !all.iter().any(Self::is_given) => skip(NEW),
            Ok(_) => {}
            Err(missing) => skip(missing),
        }
        all.unwrap_or_default()
    }

    /// The oldest of them, or `None` after having said that the test is skipped.
    pub fn oldest() -> Option<Self> {
        Self::any().into_iter().next()
    }

    /// The newest of them, or `None` after having said that the test is skipped.
    pub fn newest() -> Option<Self> {
        Self::any().pop()
    }

    /// The one on which a test runs that is not worth its time on each of them: half of all tests
    /// have the oldest, half the newest, each the same one every time. `None` after having said that
    /// the test is skipped.
    pub fn of_this_test() -> Option<Self> {
        let thread = std::thread::current();
        if is_for_newest(thread.name().unwrap_or_default()) {
            Self::newest()
        } else {
            Self::oldest()
        }
    }

    fn any() -> Vec<Self> {
        Self::all().unwrap_or_else(|missing| {
            skip(&missing);
            Vec::new()
        })
    }

    fn is_given(&self) -> bool {
        self.programs.is_some()
    }

    /// Its version, by its first two numbers.
    pub fn version(&self) -> anyhow::Result<(u32, u32)> {
        let said = self.command("containerd").arg("--version").output()?;
        let said = String::from_utf8(said.stdout)?;
        version(&said).with_context(|| format!("no version: {said}"))
    }

    fn command(&self, program: &str) -> Command {
        let programs = self.programs.as_deref();
        let mut command =
            Command::new(programs.map_or_else(|| PathBuf::from(program), |dir| dir.join(program)));
        // Its shim must be of the same version.
        let path = env::var("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = programs.iter().map(|dir| dir.to_path_buf()).collect();
        places.extend(env::split_paths(&path));
        places.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
        if let Ok(path) = env::join_paths(places) {
            command.env("PATH", path);
        }
        command
    }
}

/// What no containerd can do without here: root, images, runc, and the network plugin of this name.
pub(crate) fn missing(plugin: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("containers need root".to_owned());
    }
    if find("runc").is_none() {
        return Some("runc is missing; install runc".to_owned());
    }
    image::missing().or_else(|| missing_plugin(Path::new(PLUGINS), plugin))
}

fn missing_plugin(dir: &Path, plugin: &str) -> Option<String> {
    let path = dir.join(plugin);
    (!path.exists()).then(|| {
        format!(
            "{} is missing; install containernetworking-plugins",
            path.display()
        )
    })
}

/// Whether [`Installation::of_this_test`] gives the newest to a test of this name. The length of a name
/// is as good as any number that belongs to it, and seen at a glance.
pub fn is_for_newest(test: &str) -> bool {
    let name = test.rsplit("::").next().unwrap_or_default();
    name.len() % 2 == 1
}

/// Reads `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3`.
fn version(said: &str) -> Option<(u32, u32)> {
    let numbers = |word: &str| {
        let mut numbers = word.trim_start_matches('v').split('.');
        let first = numbers.next()?.parse().ok()?;
        Some((first, numbers.next()?.parse().ok()?))
    };
    said.split_whitespace().find_map(numbers)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|path| path.exists())
}

/// Dropping it ends every process it led to and removes its directory.
#[derive(Debug)]
pub struct Containerd {
    installation: Installation,
    /// The image that it wants for sandboxes.
    sandbox_image: &'static str,
    main: Option<Child>,
    dir: PathBuf,
    reaper: Option<Reaper>,
}

impl Containerd {
    /// Starts one and waits until it can run pods.
    pub async fn start(installation: &Installation) -> anyhow::Result<Self> {
        Self::start_with(installation, image::PAUSE).await
    }

    /// One whose sandbox image is neither here nor to be had.
    pub async fn without_sandbox_image(installation: &Installation) -> anyhow::Result<Self> {
        Self::start_with(installation, "127.0.0.1:1/no/such/pause:3").await
    }

    async fn start_with(
        installation: &Installation,
        sandbox_image: &'static str,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("belay-test-")
            .tempdir()?
            .keep();
        let reaper = Reaper::watch(&dir)?;
        let mut containerd = Containerd {
            installation: installation.clone(),
            sandbox_image,
            main: None,
            dir,
            reaper: Some(reaper),
        };
        fs::write(containerd.dir.join("config.toml"), containerd.config())?;
        fs::create_dir(containerd.dir.join("cni"))?;
        fs::write(
            containerd.dir.join("cni/10-pods.conflist"),
            containerd.network(),
        )?;
        let image = containerd.dir.join("image.tar");
        Image::busybox()?
            .environment(containerd.mark())
            .archive(&image)?;
        containerd.start_again().await?;
        containerd.ctr(&[
            "--namespace=k8s.io",
            "images",
            "import",
            "--no-unpack",
            &image.display().to_string(),
        ])?;
        let kubelet = containerd.kubelet();
        crate::eventually("the image", async || {
            kubelet.has_image(image::BUSYBOX).await
        })
        .await?;
        Ok(containerd)
    }

    /// Makes another image known to it.
    pub async fn import(&self, image: Image) -> anyhow::Result<()> {
        let archive = tempfile::Builder::new()
            .suffix(".tar")
            .tempfile_in(&self.dir)?;
        image.environment(self.mark()).archive(archive.path())?;
        let path = archive.path().display().to_string();
        self.ctr(&[
            "--namespace=k8s.io",
            "images",
            "import",
            "--no-unpack",
            &path,
        ])
        .map(drop)
    }

    /// One for all tests of a test binary that do not disturb each other. It ends with the test
    /// binary.
    pub async fn shared(installation: &Installation) -> anyhow::Result<&'static Self> {
        static ALL: Mutex<Vec<&'static Containerd>> = Mutex::new(Vec::new());
        static STARTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _one = STARTING.lock().await;
        let found = || {
            let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter()
                .find(|one| one.installation == *installation)
                .copied()
        };
        if let Some(found) = found() {
            return Ok(found);
        }
        let started: &'static Containerd = Box::leak(Box::new(Self::start(installation).await?));
        ALL.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(started);
        Ok(started)
    }

    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The directory that belongs to this instance alone.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// As a kubelet is told where its runtime is.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Whoever runs pods here.
    pub fn kubelet(&self) -> Kubelet {
        let group = self.dir.file_name().unwrap_or_default();
        Kubelet::new(&self.socket(), &group.to_string_lossy())
    }

    /// Everything it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default()
    }

    /// In the environment of everything that runs here.
    fn mark(&self) -> String {
        format!("{DIRECTORY_VARIABLE}={}", self.dir.display())
    }

    /// Ends it without asking; containers go on.
    pub fn kill9(&mut self) -> anyhow::Result<()> {
        let mut main = self.main.take().context("containerd is not running")?;
        main.kill().context("cannot kill containerd")?;
        main.wait()?;
        Ok(())
    }

    /// Makes it hang: its socket takes calls, and nothing comes back. Containers go on.
    pub fn hang(&self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::STOP)?;
        // Its threads stop one after the other, and until then they answer.
        let main = self.main.as_ref().context("containerd is not running")?;
        let begin = Instant::now();
        while !processes::is_halted(main.id()) {
            ensure!(begin.elapsed() < PATIENCE, "containerd does not halt");
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends [`hang`](Self::hang).
    pub fn go_on(&self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let main = self.main.as_ref().context("containerd is not running")?;
        rustix::process::kill_process(rustix::process::Pid::from_child(main), signal)?;
        Ok(())
    }

    /// Starts it again on the same directories.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("containerd.log"))?;
        let mut command = self.installation.command("containerd");
        command
            .arg("--config")
            .arg(self.dir.join("config.toml"))
            .env(DIRECTORY_VARIABLE, &self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.main = Some(command.spawn().context("cannot start containerd")?);
        let begin = Instant::now();
        loop {
            let kubelet = self.kubelet();
            if kubelet.version().await.is_ok() {
                return Ok(());
            }
            let main = self.main.as_mut().context("not started")?;
            if let Some(status) = main.try_wait()? {
                bail!("containerd ended with {status}; its log:\n{}", self.log());
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "containerd did not answer; its log:\n{}",
                self.log()
            );
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Runs `ctr` against it.
    pub fn ctr(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let done = self
            .installation
            .command("ctr")
            .arg("--address")
            .arg(self.socket())
            .args(arguments)
            .output()
            .context("cannot run ctr")?;
        ensure!(
            done.status.success(),
            "ctr {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(String::from_utf8(done.stdout)?)
    }

    /// The IDs of all sandboxes and containers that it knows, and what it knows of each.
    fn known(&self) -> anyhow::Result<Vec<(String, String)>> {
        let ids = self.ctr(&["--namespace=k8s.io", "containers", "list", "-q"])?;
        let info = |id: &str| {
            let info = self.ctr(&["--namespace=k8s.io", "containers", "info", id])?;
            Ok((id.to_owned(), info))
        };
        ids.lines().map(info).collect()
    }

    /// Fails while there are addresses, network namespaces or leases that belong to none of these.
    fn no_strays(&self, known: &[(String, String)]) -> anyhow::Result<()> {
        let is_known = |id: &str| known.iter().any(|(known, _)| known == id);
        for entry in fs::read_dir(self.dir.join("addresses"))
            .into_iter()
            .flatten()
        {
            // Whose an address is stands in the first line of its file.
            for file in fs::read_dir(entry?.path())? {
                let path = file?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name.parse::<std::net::IpAddr>().is_ok() {
                    let text = fs::read_to_string(&path)?;
                    let owner = text.lines().next().unwrap_or_default().trim();
                    ensure!(is_known(owner), "the address {name} is left, of {owner}");
                }
            }
        }
        for namespace in self.network_namespaces()? {
            let used = known.iter().any(|(_, info)| info.contains(&namespace));
            ensure!(used, "the network namespace {namespace} is left");
        }
        for lease in self
            .ctr(&["--namespace=k8s.io", "leases", "list", "-q"])?
            .lines()
        {
            ensure!(is_known(lease.trim()), "the lease {lease} is left");
        }
        Ok(())
    }

    /// Where it has mounted network namespaces.
    fn network_namespaces(&self) -> anyhow::Result<Vec<String>> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let dir = format!("{}/", self.dir.display());
        let places = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, kind) = (fields.next()?, fields.next()?);
            (kind == "nsfs" && place.starts_with(&dir)).then(|| place.to_owned())
        });
        Ok(places.collect())
    }

    /// Waits until nothing of these pods is left: no container, no sandbox, no process with `mark` in
    /// its command, no control group, and nothing of what sandboxes are given.
    pub async fn nothing_left(&self, uids: &[String], mark: &str) -> anyhow::Result<()> {
        crate::eventually(&format!("nothing to be left of {uids:?}"), async || {
            let known = self.known()?;
            for (id, info) in &known {
                let mentioned = uids.iter().find(|uid| info.contains(uid.as_str()));
                ensure!(
                    mentioned.is_none(),
                    "container {id} of {mentioned:?} is left"
                );
            }
            let left = processes::with_command(mark);
            ensure!(left.is_empty(), "processes: {left:?}");
            let groups = Command::new("find").args([GROUPS, "-type", "d"]).output()?;
            let groups = String::from_utf8(groups.stdout)?;
            let of_them = |group: &&str| uids.iter().any(|uid| group.contains(uid.as_str()));
            let left: Vec<_> = groups.lines().filter(of_them).collect();
            ensure!(left.is_empty(), "control groups: {left:?}");
            self.no_strays(&known)?;
            Ok(Some(()))
        })
        .await
    }

    /// Waits until it has nothing but this many pods of one container.
    pub async fn pods_left(&self, count: usize) -> anyhow::Result<()> {
        crate::eventually("containerd to have forgotten the others", async || {
            let ids = self.ctr(&["--namespace=k8s.io", "containers", "list", "-q"])?;
            ensure!(ids.lines().count() == 2 * count, "{ids}");
            Ok(Some(()))
        })
        .await
    }

    /// Waits until there is nothing of what sandboxes are given but what belongs to one.
    pub async fn nothing_astray(&self) -> anyhow::Result<()> {
        crate::eventually("nothing to have gone astray", async || {
            self.no_strays(&self.known()?)?;
            Ok(Some(()))
        })
        .await
    }

    fn config(&self) -> String {
        let dir = self.dir.display();
        let (image, plugins) = (self.sandbox_image, PLUGINS);
        // The oldest form, which newer ones read as well. Not every machine allows to change the
        // OOM score, and none of what tests do needs it.
        format!(
            r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
[grpc]
  address = "{dir}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{dir}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"#
        )
    }
}

impl Containerd {
    /// A network for pods that want one of their own: a cable to the host for each, and addresses
    /// that no other instance has.
    fn network(&self) -> String {
        let name = self.dir.as_os_str().as_encoded_bytes();
        let hash = name.iter().fold(7_u32, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(u32::from(*byte))
        });
        let (second, third) = (128 + hash % 100, hash / 100 % 256);
        let dir = self.dir.display();
        format!(
            r#"{{"cniVersion": "0.4.0", "name": "belay-test", "plugins": [{{
  "type": "ptp",
  "ipam": {{"type": "host-local", "subnet": "10.{second}.{third}.0/24", "dataDir": "{dir}/addresses"}}
}}]}}"#
        )
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of containerd ---\n{}", self.log());
        }
        if self.main.is_some() {
            // The reaper would end it as well; reaped by us it leaves no zombie.
            let _ = self.kill9();
        }
        drop(self.reaper.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_plugin_that_is_not_there_is_named_with_its_package() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let missing = missing_plugin(dir.path(), "ptp").context("found in an empty directory")?;
        assert!(missing.contains("containernetworking-plugins"), "{missing}");
        fs::write(dir.path().join("ptp"), "")?;
        assert_eq!(missing_plugin(dir.path(), "ptp"), None);
        Ok(())
    }

    #[test]
    fn a_version_is_read_from_what_containerd_says_of_itself() {
        let debian =
            "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n";
        let built = "containerd github.com/containerd/containerd/v2 v2.3.7 \n";
        assert_eq!(version(debian), Some((1, 6)));
        assert_eq!(version(built), Some((2, 3)));
        assert_eq!(version("containerd"), None);
    }

    /// Tables say of tests that they ran on both: the two must be what they are taken for.
    #[test]
    fn one_containerd_knows_no_stop_signals_and_the_other_does() -> anyhow::Result<()> {
        let all = Installation::each();
        for installation in &all {
            let version = installation.version()?;
            if installation.is_given() {
                assert!(version >= (2, 3), "{NEW}: {version:?}");
            } else {
                assert!(matches!(version, (1, 6 | 7)), "{OLD}: {version:?}");
            }
        }
        if let [oldest, newest] = all.as_slice() {
            assert!(!oldest.is_given() && newest.is_given());
        }
        Ok(())
    }

    #[test]
    fn a_test_has_its_containerd_by_its_name_wherever_it_is() {
        assert!(is_for_newest("odd"));
        assert!(is_for_newest("scripts::odd"));
        assert!(!is_for_newest("even"));
    }
}
