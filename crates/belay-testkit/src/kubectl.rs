//! A stock kubectl, pointed at one instance.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

use crate::{instance::Instance, skip::skip, terminal::Terminal};

/// No command of these tests takes this long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a command came to.
#[derive(Debug, Clone)]
pub struct Ended {
    pub success: bool,
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// Discovery is cached under HOME; each instance has its own.
    home: PathBuf,
}

impl Kubectl {
    /// The kubectl for an instance, or `None` after having said that the test is skipped.
    pub fn of(instance: &Instance) -> Option<Self> {
        let found = Self::found(instance);
        if found.is_none() {
            skip_without();
        }
        found
    }

    /// The kubectl for an instance, if there is one.
    pub(crate) fn found(instance: &Instance) -> Option<Self> {
        Some(Self::new(
            &find()?,
            &instance.kubeconfig(),
            &instance.dir().join("kubectl-home"),
        ))
    }

    /// A kubectl that uses `kubeconfig` and caches under `home`.
    pub fn new(program: &Path, kubeconfig: &Path, home: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            home: home.to_owned(),
        }
    }

    /// The shared instance and the kubectl for it, or `None` after having said that the test is
    /// skipped.
    pub async fn shared() -> anyhow::Result<Option<(&'static Instance, Self)>> {
        let instance = Instance::shared().await?;
        Ok(Self::of(instance).map(|kubectl| (instance, kubectl)))
    }

    /// The same kubectl with other credentials.
    pub fn with_kubeconfig(&self, kubeconfig: PathBuf) -> Self {
        Self {
            kubeconfig,
            ..self.clone()
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.configured(&self.program, arguments)
    }

    /// A program that finds this instance as kubectl does.
    fn configured(&self, program: &Path, arguments: &[&str]) -> Command {
        // Who is started in the background of a script ignores Ctrl-C, and so does all below it.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT")
            .arg(program)
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env("NO_PROXY", "*")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> anyhow::Result<Ended> {
        finish(self.command(arguments).spawn()?, arguments).await
    }

    /// Runs a command with further environment.
    pub async fn run_with_env(
        &self,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Ended> {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        finish(command.spawn()?, arguments).await
    }

    /// Runs a command that must succeed; returns what it printed.
    pub async fn ok(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let ended = self.run(arguments).await?;
        anyhow::ensure!(
            ended.success,
            "kubectl {} failed: {}{}",
            arguments.join(" "),
            ended.stderr,
            ended.stdout
        );
        Ok(ended.stdout)
    }

    /// Runs a command that must fail; returns what it said.
    pub async fn fails(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let ended = self.run(arguments).await?;
        anyhow::ensure!(
            !ended.success,
            "kubectl {} should have failed: {}",
            arguments.join(" "),
            ended.stdout
        );
        Ok(ended.stderr)
    }

    /// Runs a command that reads an object from its standard input (`-f -`).
    pub async fn with_object(&self, arguments: &[&str], object: &Value) -> anyhow::Result<Ended> {
        self.with_text(arguments, &serde_json::to_string(object)?)
            .await
    }

    /// Runs a command that reads text from its standard input (`-f -`).
    pub async fn with_text(&self, arguments: &[&str], text: &str) -> anyhow::Result<Ended> {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn()?;
        let mut stdin = child
            .stdin
            .take()
            .context("kubectl has no standard input")?;
        // A command that refuses its flags does not read; its end tells more than our write.
        let _ = stdin.write_all(text.as_bytes()).await;
        drop(stdin);
        finish(child, arguments).await
    }

    /// Runs a command that prints an object (`-o json` is added).
    pub async fn json(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut arguments = arguments.to_vec();
        arguments.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.ok(&arguments).await?)?)
    }

    /// `kubectl create -f -` of an object that must be accepted.
    pub async fn create(&self, object: &Value) -> anyhow::Result<()> {
        let ended = self.with_object(&["create", "-f", "-"], object).await?;
        anyhow::ensure!(ended.success, "create failed: {}", ended.stderr);
        Ok(())
    }

    /// Creates a pod and waits with kubectl until it is ready.
    pub async fn ready_pod(&self, manifest: &Value) -> anyhow::Result<()> {
        self.create(manifest).await?;
        let name = manifest["metadata"]["name"]
            .as_str()
            .context("a pod without a name")?;
        let pod = format!("pod/{name}");
        self.ok(&["wait", "--for=condition=Ready", &pod, "--timeout=120s"])
            .await
            .map(drop)
    }

    /// A shell script in which `kubectl` is this one.
    pub fn script(&self, script: &str, arguments: &[&str]) -> anyhow::Result<Command> {
        let bin = self.home.join("bin");
        fs::create_dir_all(&bin)?;
        let link = bin.join("kubectl");
        if !link.exists() {
            std::os::unix::fs::symlink(&self.program, &link)?;
        }
        let others = env::var("PATH").unwrap_or_default();
        let mut shell = self.configured(Path::new("sh"), &["-c", script, "script"]);
        shell
            .args(arguments)
            .env("PATH", format!("{}:{others}", bin.display()));
        Ok(shell)
    }

    /// Starts a command that goes on (`get -w`, `logs -f`).
    pub fn start(&self, arguments: &[&str]) -> anyhow::Result<Child> {
        Ok(self.command(arguments).spawn()?)
    }

    /// The same with a standard input to write to (`exec -i`).
    pub fn start_with_input(&self, arguments: &[&str]) -> anyhow::Result<Child> {
        Ok(self.command(arguments).stdin(Stdio::piped()).spawn()?)
    }

    /// Starts a command on a terminal (`exec -it`).
    pub fn on_terminal(
        &self,
        arguments: &[&str],
        columns: u16,
        rows: u16,
    ) -> anyhow::Result<Terminal> {
        Terminal::start(&self.command(arguments), columns, rows)
    }
}

async fn finish(child: Child, arguments: &[&str]) -> anyhow::Result<Ended> {
    let output = timeout(PATIENCE, child.wait_with_output())
        .await
        .with_context(|| format!("kubectl {} did not end", arguments.join(" ")))??;
    Ok(Ended {
        success: output.status.success(),
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

pub(crate) fn skip_without() {
    skip("no stock kubectl; `cargo xtask test` builds one and passes it in BELAY_KUBECTL");
}

/// The one we were told about, else the one that `cargo xtask kubectl` left in the cache.
fn find() -> Option<PathBuf> {
    if let Some(given) = env::var_os("BELAY_KUBECTL") {
        return Some(PathBuf::from(given));
    }
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")))?;
    let mut built: Vec<_> = fs::read_dir(cache.join("belay"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("kubernetes-v"))
        })
        .map(|dir| dir.join("kubectl"))
        .filter(|kubectl| kubectl.is_file())
        .collect();
    built.sort();
    built.pop()
}
