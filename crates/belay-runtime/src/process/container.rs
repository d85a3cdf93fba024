//! One container's directory: making it, reading it, and clearing up after a shim that is gone.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use belay_action::{AttemptId, ContainerId};
use belay_shim::clock::Wall;
use belay_shim::instance::{self, Durable, Ending, Exit, Started};
use belay_shim::kill;
use belay_shim::proc::{ATTEMPT_MARK, CONTAINER_MARK, Membership};
use belay_shim::spec::{Kind, Spec};
use belay_shim::{gate, record::Record};
use tracing::{info, warn};

use super::mounts;
use super::standing::{Instance, Standing};
use crate::{ContainerConfig, RuntimeError, identity};

/// The container's configuration, for adoption.
pub(crate) const CONFIG: &str = "config";

/// Where programs are looked for unless the container says otherwise.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What programs are told of a terminal, as other runtimes do.
pub(crate) const TERM: (&str, &str) = ("TERM", "xterm");

/// One container of the runtime: its directory and what never changes about it.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    pub(crate) instance: Instance,
    pub(crate) config: ContainerConfig,
    /// It was started on this boot; otherwise it is dead with everything in it.
    pub(crate) same_boot: bool,
}

impl Container {
    /// Reads a container back; `None` when there is none of that ID.
    pub(crate) fn load(
        containers: &Path,
        id: &ContainerId,
        boot_id: &str,
    ) -> Result<Option<Self>, RuntimeError> {
        let dir = containers.join(id.as_str());
        let path = dir.join(CONFIG);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !dir.exists() => {
                return Ok(None);
            }
            Err(error) => return Err(RuntimeError::io("read", &path)(error)),
        };
        let config = serde_json::from_slice(&bytes).map_err(|source| RuntimeError::Damaged {
            path,
            source: source.into(),
        })?;
        let path = dir.join(instance::SPEC);
        let spec = instance::read(&dir, instance::SPEC)
            .map_err(RuntimeError::io("read", &path))?
            .unwrap_or_else(|| Record::parse(b""))
            .and_then(|record| Spec::from_record(&record))
            .map_err(RuntimeError::damaged(&path))?;
        let same_boot = spec.boot_id == boot_id;
        Ok(Some(Container {
            id: id.clone(),
            instance: Instance::new(dir),
            config,
            same_boot,
        }))
    }

    pub(crate) fn exec(&self, attempt: &AttemptId) -> Instance {
        Instance::new(
            self.instance
                .dir
                .join(instance::EXECS)
                .join(attempt.as_str()),
        )
    }

    /// Whether an exec may be tried; the shim that starts it looks again.
    pub(crate) fn is_running(&self) -> Result<bool, RuntimeError> {
        let Some(Standing::Running(first)) = self.instance.standing(self.same_boot)? else {
            return Ok(false);
        };
        // The kernel knows of its end before its shim has noticed.
        let lives = identity::handle(&first, &first.boot_id).map_err(RuntimeError::blind())?;
        Ok(lives.is_some())
    }

    /// Ends a container that has lost its shim: nothing of it may live on, and its end, of which
    /// nobody knows more, is recorded. False when somebody else is at it.
    pub(crate) fn bury(&self, started: Option<&Started>) -> Result<bool, RuntimeError> {
        let Some(_claim) = self.instance.claim()? else {
            return Ok(false);
        };
        if !matches!(
            self.instance.claimed_standing(self.same_boot)?,
            Standing::Abandoned(_)
        ) {
            return Ok(false);
        }
        let survivors = match self.same_boot {
            true => kill_left(&self.instance, &self.id, started)?,
            false => Vec::new(),
        };
        warn!(container = %self.id, ?survivors, same_boot = self.same_boot,
            "the container lost its shim; what it left was killed");
        record_unknown(&self.instance, started, survivors, Durable::Yes)?;
        Ok(true)
    }

    /// The same for an exec.
    pub(crate) fn bury_exec(
        &self,
        attempt: &AttemptId,
        started: Option<&Started>,
    ) -> Result<bool, RuntimeError> {
        let exec = self.exec(attempt);
        let Some(_claim) = exec.claim()? else {
            return Ok(false);
        };
        if !matches!(
            exec.claimed_standing(self.same_boot)?,
            Standing::Abandoned(_)
        ) {
            return Ok(false);
        }
        let mut survivors = Vec::new();
        if self.same_boot {
            let rule = Membership {
                descendants_of: None,
                marks: vec![
                    (CONTAINER_MARK, self.id.to_string()),
                    (ATTEMPT_MARK, attempt.to_string()),
                ],
                execs_of: None,
                not_before: started.map_or(0, |started| started.start_time),
            };
            survivors = kill::kill_members(&rule, kill::PATIENCE, &mut || ())
                .map_err(RuntimeError::blind())?;
        }
        info!(container = %self.id, %attempt, ?survivors, "the exec lost its shim");
        record_unknown(&exec, started, survivors, Durable::No)?;
        Ok(true)
    }
}

/// Kills what a container without a shim has left. Returns what could not be killed.
fn kill_left(
    instance: &Instance,
    id: &ContainerId,
    started: Option<&Started>,
) -> Result<Vec<String>, RuntimeError> {
    let dir = &instance.dir;
    gate::close(dir).map_err(RuntimeError::io("close the gate in", dir))?;
    let rule = Membership {
        descendants_of: None,
        marks: vec![(CONTAINER_MARK, id.to_string())],
        execs_of: Some(id.to_string()),
        not_before: started.map_or(0, |started| started.start_time),
    };
    kill::kill_members(&rule, kill::PATIENCE, &mut || ()).map_err(RuntimeError::blind())
}

/// Kills what a container without a shim has left, and forgets it, whatever can be read of it. False
/// when there is a shim.
pub(crate) fn discard(instance: &Instance, id: &ContainerId) -> Result<bool, RuntimeError> {
    if !instance.dir.exists() {
        return Ok(true);
    }
    // Nothing starts any more for as long as this is held.
    let claim = instance.claim()?;
    if claim.is_none() && instance.dir.join(instance::LOCK).exists() {
        return Ok(false);
    }
    let survivors = kill_left(instance, id, None)?;
    warn!(container = %id, ?survivors, "a container was killed and is forgotten");
    instance.remove()?;
    Ok(true)
}

fn record_unknown(
    instance: &Instance,
    started: Option<&Started>,
    survivors: Vec<String>,
    durable: Durable,
) -> Result<(), RuntimeError> {
    let now = Wall::now();
    let exit = Exit {
        ending: Ending::Unknown,
        started: started.map_or(now, |started| started.at),
        finished: now,
        survivors,
        output: Vec::new(),
        output_cut: false,
    };
    let path = instance.dir.join(instance::EXIT);
    let bytes = exit
        .to_record()
        .encode()
        .map_err(RuntimeError::damaged(&path))?;
    instance::write(&instance.dir, instance::EXIT, &bytes, durable)
        .map_err(RuntimeError::io("write", &path))
}

/// What the container's shim is to run.
pub(crate) fn container_spec(
    config: &ContainerConfig,
    id: &ContainerId,
    boot_id: &str,
) -> Result<Spec, RuntimeError> {
    let log = std::path::absolute(&config.log_path)
        .map_err(RuntimeError::io("resolve", &config.log_path))?;
    if config.command.is_empty() {
        return Err(RuntimeError::StartFailed {
            reason: "InvalidConfig",
            message: "there is no command to run; `image` is not used by this runtime".into(),
        });
    }
    let command = [config.command.as_slice(), &config.args].concat();
    spec(config, id, boot_id, Kind::Container { log }, &command)
}

/// What the shim of one of its execs is to run.
pub(crate) fn exec_spec(
    container: &Container,
    boot_id: &str,
    attempt: &AttemptId,
    command: &[String],
    timeout: Duration,
) -> Result<Spec, RuntimeError> {
    let kind = Kind::Exec {
        attempt: attempt.to_string(),
        timeout,
    };
    spec(&container.config, &container.id, boot_id, kind, command)
}

/// What the shim of a session is to run.
pub(crate) fn session_spec(
    container: &Container,
    boot_id: &str,
    kind: Kind,
    command: &[String],
) -> Result<Spec, RuntimeError> {
    spec(&container.config, &container.id, boot_id, kind, command)
}

fn spec(
    config: &ContainerConfig,
    id: &ContainerId,
    boot_id: &str,
    kind: Kind,
    command: &[String],
) -> Result<Spec, RuntimeError> {
    let invalid = |message: String| RuntimeError::StartFailed {
        reason: "InvalidConfig",
        message,
    };
    if command.first().is_none_or(String::is_empty) {
        return Err(invalid("there is no command to run".into()));
    }
    if let Some(arg) = command.iter().find(|arg| arg.contains('\0')) {
        return Err(invalid(format!(
            "the argument {arg:?} contains a NUL character"
        )));
    }
    let mut marks = vec![(CONTAINER_MARK.to_owned(), id.to_string())];
    match &kind {
        Kind::Container { .. } => {}
        Kind::Exec { attempt, .. } => marks.push((ATTEMPT_MARK.to_owned(), attempt.clone())),
        Kind::Session {
            session, terminal, ..
        } => {
            marks.push((ATTEMPT_MARK.to_owned(), session.clone()));
            if terminal.is_some() {
                marks.push((TERM.0.to_owned(), TERM.1.to_owned()));
            }
        }
    }
    let is_container = matches!(kind, Kind::Container { .. });
    Ok(Spec {
        kind,
        container: id.to_string(),
        boot_id: boot_id.to_owned(),
        args: command.iter().map(OsString::from).collect(),
        env: environment(&defaults(config), &config.env, &marks).map_err(invalid)?,
        working_dir: config.working_dir.clone(),
        user: config.user,
        group: config.group,
        groups: config.security.supplemental_groups.clone(),
        no_new_privileges: config.security.no_new_privileges,
        joins_mounts: !is_container && !config.mounts.is_empty(),
        mounts: if is_container {
            mounts::mounts(config)?
        } else {
            Vec::new()
        },
    })
}

/// What an image and its runtime would have set.
fn defaults(config: &ContainerConfig) -> [(String, String); 3] {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    [
        pair("PATH", DEFAULT_PATH),
        pair("HOSTNAME", &config.pod_name),
        pair("HOME", "/"),
    ]
}

/// The environment as the process sees it: of a name given twice the last counts, as in
/// Kubernetes, and our marks cannot be changed.
fn environment(
    defaults: &[(String, String)],
    env: &[(String, String)],
    marks: &[(String, String)],
) -> Result<Vec<OsString>, String> {
    let all: Vec<&(String, String)> = defaults.iter().chain(env).chain(marks).collect();
    let mut out = Vec::with_capacity(all.len());
    for (index, (name, value)) in all.iter().enumerate() {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!("the environment variable {name:?} cannot be set"));
        }
        if !all[index + 1..].iter().any(|(later, _)| later == name) {
            out.push(OsString::from(format!("{name}={value}")));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn the_last_of_a_name_counts_and_marks_cannot_be_changed() {
        let env = [
            pair("A", "1"),
            pair("BELAY_CONTAINER_ID", "x"),
            pair("A", "2"),
            pair("B", "="),
        ];
        let config = ContainerConfig {
            pod_name: "p".into(),
            ..ContainerConfig::default()
        };
        let marks = [pair("BELAY_CONTAINER_ID", "c")];
        let out = environment(&defaults(&config), &env, &marks).unwrap();
        let expected = [
            &format!("PATH={DEFAULT_PATH}"),
            "HOSTNAME=p",
            "HOME=/",
            "A=2",
            "B==",
            "BELAY_CONTAINER_ID=c",
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn a_path_of_its_own_replaces_the_default() {
        let defaults = [pair("PATH", DEFAULT_PATH)];
        assert_eq!(
            environment(&defaults, &[pair("PATH", "/x")], &[]).unwrap(),
            ["PATH=/x"]
        );
    }

    #[test]
    fn names_that_the_kernel_would_misread_are_refused() {
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            assert!(environment(&[], &[pair(name, value)], &[]).is_err());
        }
    }
}
