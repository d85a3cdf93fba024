//! Which process is the first of an exec.
//!
//! Its number containerd tells. That the number is not somebody else's already the exec's mark in
//! the environment tells; a command that has dropped its environment is known by its place.

use std::fs;
use std::time::Duration;

use belay_shim::clock::Wall;
use belay_shim::instance::Started;
use belay_shim::proc::{self, ATTEMPT_MARK, Process};
use belay_shim::sys::Pid;
use tokio::time::{sleep, timeout};

use super::client::{Client, ExecName};
use super::group;
use super::traces::Sight;

/// How long the first process of an exec may take from its start until it is the command, and how
/// often that is looked for.
const BECOMING: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);
/// How often an environment may be empty before it is believed to be.
const UNREADABLE: usize = 5;
/// What the names of variables begin with that runc gives to itself inside a container.
const RUNC: &[u8] = b"_LIBCONTAINER_";
/// How long containerd may take to tell whose process a number is.
const PROMPT: Duration = Duration::from_secs(3);

/// When the process was forked, if it is the exec's and can still be seen.
pub(super) async fn start_time(
    client: &Client,
    name: &ExecName,
    attempt: &str,
    pid: Pid,
) -> Option<u64> {
    match timeout(BECOMING, by_mark(pid, attempt)).await {
        Ok(Some(start_time)) => Some(start_time),
        Ok(None) | Err(_) => by_place(client, name, pid).await,
    }
}

async fn by_mark(pid: Pid, attempt: &str) -> Option<u64> {
    let mut unreadable = 0;
    loop {
        let looked = Process::read(pid).and_then(|seen| Ok((seen, proc::environment(pid)?)));
        let Ok((process, environment)) = looked else {
            sleep(LOOK).await;
            continue;
        };
        let process = process.filter(|process| !process.is_dead())?;
        if proc::has_variable(&environment, ATTEMPT_MARK, attempt) {
            return Some(process.start_time);
        }
        // A start is told when the low-level runtime is about to become the command. In the
        // moment when it does, there is no environment to be read.
        match (environment.is_empty(), has_name(&environment, RUNC)) {
            (true, _) if unreadable < UNREADABLE => unreadable += 1,
            (false, true) => {}
            (true | false, _) => return None,
        }
        sleep(LOOK).await;
    }
}

/// The same for a command without the mark: it leads a session in the container's control group,
/// and containerd, asked after it was seen there, calls it the one that runs. So it was not reaped
/// in between, and its number is nobody else's.
async fn by_place(client: &Client, name: &ExecName, pid: Pid) -> Option<u64> {
    let seen = in_place(&name.container, pid)?;
    let told = timeout(PROMPT, client.get(name)).await.ok()?.ok()?;
    if Sight::of(&told) != Some(Sight::Running { pid }) {
        return None;
    }
    let again = in_place(&name.container, pid)?;
    (again.start_time == seen.start_time).then_some(seen.start_time)
}

fn in_place(container: &str, pid: Pid) -> Option<Process> {
    let process = Process::read(pid).ok()?;
    let process = process.filter(|process| !process.is_dead())?;
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let placed = process.session == process.pid && group::holds(&groups, container);
    placed.then_some(process)
}

/// The first process of an exec that is to be killed. Of one that could not be told from others
/// when it was started, containerd is asked again.
pub(super) async fn to_be_killed(
    client: &Client,
    name: &ExecName,
    started: &Started,
) -> Option<Started> {
    if started.start_time > 0 {
        return Some(started.clone());
    }
    let start_time = by_place(client, name, started.pid).await?;
    Some(Started {
        start_time,
        ..started.clone()
    })
}

/// The first process of an exec of which nothing is known but its name.
pub(super) async fn unknown(client: &Client, name: &ExecName, boot_id: &str) -> Option<Started> {
    let told = timeout(PROMPT, client.get(name)).await.ok()?.ok()?;
    let Some(Sight::Running { pid }) = Sight::of(&told) else {
        return None;
    };
    let start_time = by_place(client, name, pid).await?;
    Some(Started {
        pid,
        start_time,
        boot_id: boot_id.to_owned(),
        at: Wall::now(),
        deadline: None,
    })
}

/// Who of an exec goes on after everybody was killed that was known to belong to it, as
/// `pid (name)`.
pub(super) async fn survivor(client: &Client, name: &ExecName) -> Option<String> {
    let told = timeout(PROMPT, client.get(name)).await.ok()?.ok()?;
    let Some(Sight::Running { pid }) = Sight::of(&told) else {
        return None;
    };
    let process = in_place(&name.container, pid)?;
    Some(format!("{pid} ({})", process.comm))
}

/// Whether an environment has a variable whose name begins like this.
fn has_name(environment: &[u8], prefix: &[u8]) -> bool {
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable.starts_with(prefix))
}
