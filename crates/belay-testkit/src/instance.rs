//! A real Belay on a directory of its own: started, killed, started again.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    sync::{Mutex, OnceCell},
    time::timeout,
};

use crate::{
    binary,
    containerd::{Containerd, Installation},
    ports::unique_port,
    reaper::{DIRECTORY_VARIABLE, Reaper},
    rest::Rest,
    wait::eventually,
};

/// The name of the node of `belay up` in tests.
pub const NODE: &str = "n1";

/// No program of ours takes this long to end once it was told to.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the instance is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Everything in one process.
    Up,
    /// The server with its controllers; agents are processes of their own.
    Server,
}

#[derive(Debug, Clone)]
pub struct Builder {
    role: Role,
    runtime: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Builder {
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn gates(self, gates: &str) -> Self {
        self.arg(format!("--feature-gates={gates}"))
    }

    /// Its nodes run their pods on this containerd instead of as plain processes.
    pub fn on(self, containerd: &Containerd) -> Self {
        self.at(&containerd.endpoint())
    }

    /// The same with whatever listens there.
    pub fn at(self, endpoint: &str) -> Self {
        let runtime = ["--runtime", "cri", "--runtime-endpoint", endpoint];
        Builder {
            runtime: runtime.map(str::to_owned).to_vec(),
            ..self
        }
    }

    /// In the environment of the first start only.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it is ready (and, with `up`, until its node is).
    pub async fn start(self) -> anyhow::Result<Instance> {
        let dir = tempfile::Builder::new()
            .prefix("belay-test-")
            .tempdir()?
            .keep();
        let reaper = Reaper::watch(&dir)?;
        fs::create_dir_all(dir.join("kubectl-home"))?;
        // Agents keep the address they were given, so a server of its own has to come back where it
        // was: at a port that nobody else is given in between.
        let port = match self.role {
            Role::Up => 0,
            Role::Server => unique_port()?,
        };
        let mut instance = Instance {
            role: self.role,
            runtime: self.runtime,
            arguments: self.arguments,
            main: None,
            agents: BTreeMap::new(),
            listen: format!("127.0.0.1:{port}"),
            log: dir.join("belay.log"),
            dir,
            reaper: Some(reaper),
        };
        instance.start_with(&self.environment).await?;
        Ok(instance)
    }
}

/// Dropping it ends every process it led to and removes its directory.
#[derive(Debug)]
pub struct Instance {
    role: Role,
    /// What its nodes run pods on.
    runtime: Vec<String>,
    arguments: Vec<String>,
    main: Option<Child>,
    agents: BTreeMap<String, Child>,
    /// Where the server listens.
    listen: String,
    log: PathBuf,
    dir: PathBuf,
    reaper: Option<Reaper>,
}

impl Instance {
    /// One `belay up` for all tests of a test binary that do not disturb each other. It ends with
    /// the test binary.
    pub async fn shared() -> anyhow::Result<&'static Self> {
        static SHARED: OnceCell<Instance> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::up().start()).await
    }

    /// One `belay up` on every containerd that is installed, each shared by a test binary. What is not
    /// installed is said to be skipped.
    pub async fn on_each_containerd() -> anyhow::Result<Vec<&'static Self>> {
        let mut instances = Vec::new();
        for installation in Installation::each() {
            instances.push(Self::shared_on(&installation).await?);
        }
        Ok(instances)
    }

    /// One `belay up` on this containerd, shared by a test binary.
    pub async fn shared_on(installation: &Installation) -> anyhow::Result<&'static Self> {
        static SHARED: Mutex<Vec<(Installation, &'static Instance)>> = Mutex::const_new(Vec::new());
        let mut shared = SHARED.lock().await;
        if let Some((_, found)) = shared.iter().find(|(known, _)| known == installation) {
            return Ok(found);
        }
        let containerd = Containerd::shared(installation).await?;
        let instance = Self::up().on(containerd).start().await?;
        let instance: &'static Self = Box::leak(Box::new(instance));
        shared.push((installation.clone(), instance));
        Ok(instance)
    }

    /// `belay up`.
    pub fn up() -> Builder {
        Builder {
            role: Role::Up,
            runtime: vec!["--runtime".to_owned(), "process".to_owned()],
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// `belay server`, to which agents are added with [`Instance::start_agent`].
    pub fn server() -> Builder {
        Builder {
            role: Role::Server,
            ..Self::up()
        }
    }

    /// Whether its pods are in real containers.
    pub fn is_on_containerd(&self) -> bool {
        self.runtime.iter().any(|word| word == "cri")
    }

    /// The directory that belongs to this instance alone.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What was given as `--data-dir`.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("kubeconfig")
    }

    /// A file for the test's own use, as a path that fits into a shell command.
    pub fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Everything the programs have logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The pid of the main process.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.main
            .as_ref()
            .and_then(Child::id)
            .context("the instance is not running")
    }

    /// The administrator that the instance's own kubeconfig describes.
    pub async fn admin(&self) -> anyhow::Result<Rest> {
        Rest::from_kubeconfig(&self.kubeconfig()).await
    }

    /// What the agent of a node shows at its own `/metrics`.
    pub async fn agent_metrics(&self, node: &str) -> anyhow::Result<String> {
        let path = format!("/api/v1/nodes/{node}");
        let node = self.admin().await?.get(&path).await?.ok()?;
        let status = &node["status"];
        let port = &status["daemonEndpoints"]["kubeletEndpoint"]["Port"];
        let host = status["addresses"][0]["address"]
            .as_str()
            .context("no address")?;
        let url = format!("https://{host}:{port}");
        let agent = Rest::elsewhere(&self.kubeconfig(), &url).await?;
        Ok(agent.get("/metrics").await?.text())
    }

    /// Somebody without credentials.
    pub async fn anonymous(&self) -> anyhow::Result<Rest> {
        Rest::anonymous(&self.kubeconfig()).await
    }

    /// Starts it again on the same directory.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.start_with(&[]).await
    }

    /// Starts it again with other arguments (besides directory, address and node name).
    pub async fn start_again_with_args(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        self.arguments = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        self.start_with(&[]).await
    }

    async fn start_with(&mut self, environment: &[(String, String)]) -> anyhow::Result<()> {
        // Its reappearance tells that the server has bound its port.
        let _ = fs::remove_file(self.kubeconfig());
        let mut command = self.command(match self.role {
            Role::Up => "up",
            Role::Server => "server",
        })?;
        command
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(["--listen", &self.listen]);
        if self.role == Role::Up {
            command.args(&self.runtime).args(["--node-name", NODE]);
        }
        command.args(&self.arguments);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        self.main = Some(command.spawn().context("cannot start belay")?);
        let ready = self.ready().await;
        ready.with_context(|| format!("belay did not become ready; its log:\n{}", self.log()))
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let (kubeconfig, wants_node) = (self.kubeconfig(), self.role == Role::Up);
        let main = self.main.as_mut().context("not started")?;
        let ready = eventually("readiness", async || {
            if !kubeconfig.exists() {
                return Ok(None);
            }
            let admin = Rest::from_kubeconfig(&kubeconfig).await?;
            if !admin.get("/readyz").await?.status.is_success() {
                return Ok(None);
            }
            if wants_node {
                let node = admin.get(&format!("/api/v1/nodes/{NODE}")).await?.ok()?;
                let conditions = node["status"]["conditions"].as_array();
                let ready = conditions.is_some_and(|conditions| {
                    conditions
                        .iter()
                        .any(|one| one["type"] == "Ready" && one["status"] == "True")
                });
                return Ok(ready.then_some(()));
            }
            Ok(Some(()))
        });
        tokio::select! {
            ended = main.wait() => anyhow::bail!("it ended with {}", ended?),
            ready = ready => ready,
        }
    }

    /// Ends the main process as a power cut would, without asking it.
    pub async fn kill9(&mut self) -> anyhow::Result<()> {
        let mut main = self.main.take().context("the instance is not running")?;
        main.kill().await.context("cannot kill belay")
    }

    /// Waits until the main process has ended by itself.
    pub async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let mut main = self.main.take().context("the instance is not running")?;
        let ended = timeout(PATIENCE, main.wait()).await;
        Ok(ended.with_context(|| format!("belay did not end; its log:\n{}", self.log()))??)
    }

    /// Asks the main process to stop and waits for it.
    pub async fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        let main = self.main.as_ref().context("the instance is not running")?;
        terminate(main)?;
        self.ended().await
    }

    /// Joins a node: a token, a kubeconfig from it, an agent with that kubeconfig.
    pub async fn start_agent(
        &mut self,
        node: &str,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        self.start_agent_with_args(node, &[], environment).await
    }

    /// [`Instance::start_agent`] with further arguments.
    pub async fn start_agent_with_args(
        &mut self,
        node: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        let kubeconfig = self.dir.join(format!("{node}.kubeconfig"));
        if !kubeconfig.exists() {
            fs::write(&kubeconfig, self.node_kubeconfig(node).await?)?;
        }
        let data_dir = self.dir.join(node);
        let mut command = self.command("agent")?;
        command.args(["--mode=node", "--node-name", node]);
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(&self.runtime);
        command.arg("--kubeconfig").arg(&kubeconfig);
        command.arg("--data-dir").arg(&data_dir);
        command.args(arguments);
        command.envs(environment.iter().copied());
        let agent = command.spawn().context("cannot start the agent")?;
        self.agents.insert(node.to_owned(), agent);
        Ok(())
    }

    /// The kubeconfig that lets a node in.
    pub async fn node_kubeconfig(&self, node: &str) -> anyhow::Result<String> {
        self.token(&["--node", node]).await
    }

    /// A kubeconfig of a user, in a file of its own.
    pub async fn user_kubeconfig(&self, user: &str, groups: &[&str]) -> anyhow::Result<PathBuf> {
        let mut who = vec!["--user", user];
        who.extend(groups.iter().flat_map(|group| ["--group", group]));
        let path = self.dir.join(format!("{user}.kubeconfig"));
        fs::write(&path, self.token(&who).await?)?;
        Ok(path)
    }

    async fn token(&self, who: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(binary::belay()?);
        command
            .args(["token", "create"])
            .args(who)
            .arg("--data-dir")
            .arg(self.data_dir());
        let output = command.output().await?;
        anyhow::ensure!(
            output.status.success(),
            "belay token create failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Ends one agent without asking it.
    pub async fn kill9_agent(&mut self, node: &str) -> anyhow::Result<()> {
        let mut agent = self.agents.remove(node).context("no such agent")?;
        agent.kill().await.context("cannot kill the agent")
    }

    /// Waits until one agent has ended by itself.
    pub async fn agent_ended(&mut self, node: &str) -> anyhow::Result<ExitStatus> {
        let mut agent = self.agents.remove(node).context("no such agent")?;
        Ok(timeout(PATIENCE, agent.wait())
            .await
            .context("the agent did not end")??)
    }

    /// Runs another command of the program against this instance.
    pub async fn belay(&self, arguments: &[&str]) -> anyhow::Result<std::process::Output> {
        let mut command = Command::new(binary::belay()?);
        command
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig())
            .kill_on_drop(true);
        let ended = timeout(PATIENCE * 3, command.output()).await;
        Ok(ended.with_context(|| format!("belay {} did not end", arguments.join(" ")))??)
    }

    /// A role of the program, with its output in the log.
    fn command(&self, role: &str) -> anyhow::Result<Command> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(binary::belay()?);
        command
            .arg(role)
            .env(DIRECTORY_VARIABLE, &self.dir)
            .env_remove("KUBECONFIG")
            .env_remove("BELAY_CRASH_AT")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the instance ---\n{}", self.log());
        }
        // The reaper kills what it finds until nothing is left, these included; they are dropped
        // first so that no zombie of ours keeps it busy.
        self.main = None;
        self.agents.clear();
        drop(self.reaper.take());
    }
}

fn terminate(child: &Child) -> anyhow::Result<()> {
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    kill_process(pid.context("it has ended already")?, Signal::TERM)?;
    Ok(())
}
