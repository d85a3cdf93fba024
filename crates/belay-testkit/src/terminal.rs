//! A program on a terminal of its own, and somebody who types and looks.

use std::{
    ffi::OsString,
    fs::File,
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{FdFlags, fcntl_setfd},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe::{Receiver, Sender},
    process::{Child, Command},
    time::timeout,
};

/// Nothing that is waited for here takes this long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// Dropping it hangs up and kills the program.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    ours: OwnedFd,
    keyboard: Sender,
    screen: Receiver,
    /// Everything that was shown so far.
    pub shown: String,
}

impl Terminal {
    /// Starts a program, with its arguments and environment, on a new terminal.
    pub fn start(program: &Command, columns: u16, rows: u16) -> anyhow::Result<Self> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
        fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let path = OsString::from_vec(ptsname(&ours, Vec::new())?.into_bytes());
        let theirs = File::options().read(true).write(true).open(path)?;
        resize(&ours, columns, rows)?;
        // The terminal has to be the program's own: that is how it hears of a new size.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]);
        let program = program.as_std();
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs.try_clone()?))
            .stderr(Stdio::from(theirs))
            .kill_on_drop(true);
        let child = command.spawn().context("cannot start setsid")?;
        Ok(Self {
            child,
            keyboard: Sender::from_file_unchecked(File::from(ours.try_clone()?))?,
            screen: Receiver::from_file_unchecked(File::from(ours.try_clone()?))?,
            ours,
            shown: String::new(),
        })
    }

    pub fn resize(&self, columns: u16, rows: u16) -> anyhow::Result<()> {
        resize(&self.ours, columns, rows)
    }

    pub async fn type_in(&mut self, keys: &str) -> anyhow::Result<()> {
        Ok(self.keyboard.write_all(keys.as_bytes()).await?)
    }

    /// Looks until the text was shown.
    pub async fn until(&mut self, text: &str) -> anyhow::Result<()> {
        let look = async {
            while !self.shown.contains(text) {
                anyhow::ensure!(self.look().await, "it ended; shown was {:?}", self.shown);
            }
            Ok(())
        };
        timeout(PATIENCE, look)
            .await
            .with_context(|| format!("{text:?} was never shown"))?
    }

    /// Looks until nobody has the terminal any more, and waits for the program.
    pub async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let end = async {
            while self.look().await {}
            self.child.wait().await
        };
        Ok(timeout(PATIENCE, end).await.context("it did not end")??)
    }

    /// Closes the terminal as a window is closed.
    pub async fn hang_up(self) -> anyhow::Result<()> {
        let Self {
            mut child,
            ours,
            keyboard,
            screen,
            shown: _,
        } = self;
        drop((ours, keyboard, screen));
        timeout(PATIENCE, child.wait())
            .await
            .context("it did not end")??;
        Ok(())
    }

    async fn look(&mut self) -> bool {
        let mut chunk = [0; 4096];
        // A terminal that nobody has open any more is an error.
        let length = self.screen.read(&mut chunk).await.unwrap_or(0);
        self.shown
            .push_str(&String::from_utf8_lossy(&chunk[..length]));
        length > 0
    }
}

fn resize(terminal: &OwnedFd, columns: u16, rows: u16) -> anyhow::Result<()> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}
