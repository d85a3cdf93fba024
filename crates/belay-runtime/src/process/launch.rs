//! Bringing an instance into being: its directory, then its shim.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use belay_shim::instance::{self, Durable};
use belay_shim::proc::SHIM_MARK;
use belay_shim::spec::{Kind, Spec};
use belay_shim::sys::OPEN_FILES;

use super::standing::hidden;
use crate::descriptors;

/// What became of a directory.
#[derive(Debug)]
pub(crate) enum Created {
    /// It is there, and its lock is ours to hand over.
    Locked(File),
    /// There is one already.
    Exists,
}

/// Makes the directory of an instance: complete and locked before anybody can see it.
pub(crate) fn create(
    dir: &Path,
    spec: &[u8],
    extra: &[(&str, &[u8])],
    durable: Durable,
) -> io::Result<Created> {
    let hidden = hidden(dir, "new");
    let result = fill(&hidden, spec, extra, durable).and_then(|lock| {
        // Fails on a directory that has anything in it, and an instance always has.
        fs::rename(&hidden, dir)?;
        if durable == Durable::Yes
            && let Some(parent) = dir.parent()
        {
            instance::sync_directory(parent)?;
        }
        Ok(lock)
    });
    match result {
        Ok(lock) => Ok(Created::Locked(lock)),
        Err(error) => {
            let _ = fs::remove_dir_all(&hidden);
            match error.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                    Ok(Created::Exists)
                }
                _ => Err(error),
            }
        }
    }
}

fn fill(dir: &Path, spec: &[u8], extra: &[(&str, &[u8])], durable: Durable) -> io::Result<File> {
    DirBuilder::new().mode(0o700).create(dir)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let lock = options.open(dir.join(instance::LOCK))?;
    lock.lock()?;
    instance::write(dir, instance::SPEC, spec, durable)?;
    for (name, bytes) in extra {
        instance::write(dir, name, bytes, durable)?;
    }
    Ok(lock)
}

/// Starts the shim of an instance, and returns the stream it talks on.
///
/// Lock and stream are handed over as its standard input and output, so that nothing else of this
/// process gets into it. The program forks and its parent ends at once: there is nothing to reap
/// later, and the shim belongs to nobody.
pub(crate) fn launch(
    program: &Path,
    dir: &Path,
    spec: &Spec,
    lock: &File,
) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    let mut patience = 50;
    loop {
        let mut command = Command::new(program);
        command
            .arg0("belay-shim")
            .current_dir(dir)
            .env_clear()
            .process_group(0);
        if let Some(limit) = descriptors::for_workloads() {
            command.env(OPEN_FILES, limit.to_string());
        }
        match &spec.kind {
            Kind::Container { .. } => {
                command.args(["container", &spec.container]);
            }
            Kind::Exec { attempt, .. } => {
                command
                    .args(["exec", attempt])
                    .env(SHIM_MARK, &spec.container);
            }
            Kind::Session { session, .. } => {
                command
                    .args(["session", session])
                    .env(SHIM_MARK, &spec.container);
            }
        }
        command.stdin(Stdio::from(lock.try_clone()?));
        command.stdout(Stdio::from(theirs.try_clone()?));
        command.stderr(Stdio::null());
        match command.spawn() {
            Ok(mut parent) => {
                parent.wait()?;
                return Ok(ours);
            }
            // Another thread forked while the file was open for writing, and has not exec'ed yet.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && patience > 0 => {
                patience -= 1;
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error),
        }
    }
}
