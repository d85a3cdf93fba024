//! What the tour stands on: a directory, an instance of this program in it, and a way to type
//! commands at it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use kube::Client;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::processes::{self, MARK};
use crate::connect;

/// How long an instance may take to be ready, or to stop.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) struct Stage {
    dir: TempDir,
    /// The directory with no links in it, as the kernel shows it.
    path: PathBuf,
    program: PathBuf,
    instance: Option<Child>,
    address: Option<String>,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(super) struct Typed {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Stage {
    /// Makes the directory. Nothing runs yet.
    pub(super) fn set_up() -> anyhow::Result<Stage> {
        let dir = tempfile::Builder::new()
            .prefix("belay-demo-")
            .tempdir()
            .context("cannot make a temporary directory; set TMPDIR to where one can be made")?;
        let path = dir.path().canonicalize()?;
        let program = std::env::current_exe().context("cannot find this program")?;
        Ok(Stage {
            dir,
            path,
            program,
            instance: None,
            address: None,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.path.join("state")
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("kubeconfig")
    }

    fn log(&self) -> PathBuf {
        self.path.join("instance.log")
    }

    /// Starts `belay up` and waits until it says that it is ready. It listens on a free port the
    /// first time and on the same one after that, so that a client finds it again.
    pub(super) async fn start(&mut self) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())?;
        let listen = self.address.as_deref().unwrap_or("127.0.0.1:0");
        let mut child = Command::new(&self.program)
            .args(["up", "--runtime", "process", "--node-name", "demo"])
            .args(["--listen", listen, "--data-dir"])
            .arg(self.data_dir())
            .env(MARK, &self.path)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is for the tour, which then stops the instance itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let stdout = child.stdout.take().context("no output to read")?;
        self.instance = Some(child);
        let mut lines = BufReader::new(stdout).lines();
        let address = timeout(PATIENCE, async {
            while let Some(line) = lines.next_line().await? {
                if let Some((_, address)) = line.split_once("https://") {
                    return Ok(address.trim().to_owned());
                }
            }
            bail!("the instance ended before it was ready")
        })
        .await
        .map_err(|_| anyhow!("the instance was not ready within {PATIENCE:?}"))??;
        self.address = Some(address);
        // The rest of its words is read and dropped, so that it never writes into a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(())
    }

    /// Kills the instance with SIGKILL, as a crash would, and returns its process number.
    pub(super) async fn kill(&mut self) -> anyhow::Result<u32> {
        let mut child = self.instance.take().context("no instance runs")?;
        let pid = child.id().context("the instance has ended already")?;
        child.start_kill()?;
        timeout(PATIENCE, child.wait())
            .await
            .context("it did not die")??;
        Ok(pid)
    }

    /// Stops the instance with SIGTERM and waits for its end.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        let mut child = self.instance.take().context("no instance runs")?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the instance has ended already")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = timeout(PATIENCE, child.wait())
            .await
            .map_err(|_| anyhow!("the instance did not stop within {PATIENCE:?}"))??;
        ensure!(status.success(), "the instance ended with {status}");
        Ok(())
    }

    /// Starts a command of this program against the instance.
    pub(super) fn type_in(&self, words: &[&str]) -> anyhow::Result<Child> {
        Ok(Command::new(&self.program)
            .args(words)
            .env("KUBECONFIG", self.kubeconfig())
            .env(MARK, &self.path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?)
    }

    /// Runs a command of this program to its end.
    pub(super) async fn belay(&self, words: &[&str]) -> anyhow::Result<Typed> {
        typed(self.type_in(words)?).await
    }

    /// A client for what a user would do with kubectl.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        connect::client(connect::read(&self.kubeconfig()).await?)
    }

    /// The end of the instance's log.
    pub(super) fn log_tail(&self) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let mut tail = String::new();
        for line in lines.iter().rev().take(20).rev() {
            // Writing to a String cannot fail.
            let _ = writeln!(tail, "   log: {line}");
        }
        tail
    }

    /// Ends whatever still runs and removes the directory.
    pub(super) async fn take_down(mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.instance.take() {
            // The sweep finds it too; this collects it.
            let _ = child.start_kill();
            let _ = timeout(PATIENCE, child.wait()).await;
        }
        processes::sweep(&self.path).await?;
        self.dir
            .close()
            .with_context(|| format!("{} cannot be removed", self.path.display()))
    }
}

/// Waits for a command's end.
pub(super) async fn typed(child: Child) -> anyhow::Result<Typed> {
    let output = timeout(PATIENCE * 2, child.wait_with_output())
        .await
        .context("a command did not end")??;
    Ok(Typed {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
