//! Ends everything that runs on behalf of an instance when its test is over.
//!
//! Containers of the process runtime outlive the agent on purpose, so a test that is killed would
//! leave them running. The reaper is a shell in a session of its own. It waits for the end of its
//! standard input, which happens when the test drops its [`Reaper`] and also when the test's
//! process is gone for any other reason. Then it kills what it finds by three marks, until there
//! is nothing left: the instance's directory in the environment, a program that lies under that
//! directory (the shims), and a container ID of that directory in the environment. With them goes
//! whatever descends from them, for a program may write over its environment, as nginx does. Mounts
//! under the directory and control groups named after it go last.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::Context;

/// In the environment of every program an instance starts.
pub const DIRECTORY_VARIABLE: &str = "BELAY_TEST_DIR";

const SCRIPT: &str = r#"
dir=$1
read -r _
marked() {
    set -- -e "BELAY_TEST_DIR=$dir"
    for id in $(find "$dir" -path '*/containers/*' -prune -type d -printf '%f\n' 2>/dev/null); do
        set -- "$@" -e "BELAY_CONTAINER_ID=$id"
    done
    {
        grep -lzsxF "$@" /proc/[0-9]*/environ
        find /proc -maxdepth 2 -name exe -lname "$dir/*" 2>/dev/null
    } | cut -d/ -f3 | sort -u
}
# These and all that descend from them.
family() {
    cat /proc/[0-9]*/stat 2>/dev/null | sed 's/^\([0-9]*\) (.*) . \([0-9]*\) .*/\1 \2/' |
        awk -v roots="$*" '
            BEGIN { n = split(roots, root, " "); for (i = 1; i <= n; i++) ours[root[i]] = 1 }
            { parent[$1] = $2 }
            END {
                do {
                    more = 0
                    for (pid in parent)
                        if (!(pid in ours) && (parent[pid] in ours)) { ours[pid] = 1; more = 1 }
                } while (more)
                for (pid in ours) print pid
            }'
}
passes=0
while [ $passes -lt 200 ]; do
    pids=$(marked)
    [ -n "$pids" ] || break
    kill -9 $(family $pids) 2>/dev/null
    passes=$((passes + 1))
    sleep 0.05
done
# What a container runtime leaves outside its processes.
cut -d' ' -f2 /proc/self/mounts | grep -F "$dir/" | sort -r | while read -r mount; do
    umount -l "$mount"
done
grep -rhoE '/run/containerd/s/[0-9a-f]+' --include=address --include=bootstrap.json "$dir/state" |
    xargs -r rm -f
find /sys/fs/cgroup -depth -type d -path "*/${dir##*/}*" -exec rmdir {} \; 2>/dev/null
rm -rf "$dir"
"#;

/// Holds the pipe that keeps the reaper waiting.
#[derive(Debug)]
pub struct Reaper {
    shell: Child,
}

impl Reaper {
    /// Starts the shell that watches over `dir`, which must belong to the test alone.
    pub fn watch(dir: &Path) -> anyhow::Result<Self> {
        let shell = Command::new("setsid")
            .args(["sh", "-c", SCRIPT, "reaper"])
            .arg(dir)
            .env_remove(DIRECTORY_VARIABLE)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the shell that cleans up after a test")?;
        Ok(Self { shell })
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nothing is left to do about a shell that cannot be waited for.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes;

    #[test]
    fn what_carries_the_marks_of_a_directory_is_dead_when_the_reaper_is_dropped()
    -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?.keep();
        std::fs::create_dir_all(dir.join("agent/runtime/containers/c-1"))?;
        std::fs::copy("/bin/sleep", dir.join("shim"))?;
        let spawn = |program: &Path, name: &str, value: &str| {
            Command::new(program).arg("3600").env(name, value).spawn()
        };
        let reaper = Reaper::watch(&dir)?;
        let mut marked = [
            spawn(
                Path::new("sleep"),
                DIRECTORY_VARIABLE,
                dir.to_str().unwrap_or_default(),
            )?,
            spawn(Path::new("sleep"), "BELAY_CONTAINER_ID", "c-1")?,
            spawn(&dir.join("shim"), "NOTHING", "")?,
        ];
        let mut other = spawn(Path::new("sleep"), "BELAY_CONTAINER_ID", "c-2")?;
        // One that has nothing in its environment, of a parent that has.
        let mut parent = Command::new("sh")
            .args(["-c", "env -i sleep 3600 & wait"])
            .env("BELAY_CONTAINER_ID", "c-1")
            .spawn()?;
        let child = loop {
            let children = processes::children(parent.id());
            let bare = |pid: &&u32| {
                let environment = std::fs::read(format!("/proc/{pid}/environ"));
                environment.is_ok_and(|text| text.is_empty())
            };
            if let Some(child) = children.iter().find(bare) {
                break *child;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        drop(reaper);
        for child in &mut marked {
            assert!(!child.wait()?.success());
        }
        assert!(!parent.wait()?.success());
        assert!(!processes::is_alive(child), "it went with its parent");
        assert!(
            processes::is_alive(other.id()),
            "another's container is left alone"
        );
        other.kill()?;
        other.wait()?;
        assert!(!dir.exists());
        Ok(())
    }
}
