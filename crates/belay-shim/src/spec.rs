//! What one shim is to run.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use crate::mounts::{self, Mount};
use crate::record::{Record, RecordError};

/// What an instance is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Output goes to a log file; when the first process ends, all of it ends.
    Container { log: PathBuf },
    /// The end of the output is kept; the first process alone decides.
    Exec { attempt: String, timeout: Duration },
    /// Somebody sits at the other end of its pipes or its terminal; it does not outlive the agent.
    Session {
        session: String,
        /// The terminal's path. Without one its streams are the pipes in its directory.
        terminal: Option<PathBuf>,
        /// Whether there is anything to read; a terminal can always be read.
        stdin: bool,
    },
}

/// One instance, complete: a shim reads nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub kind: Kind,
    /// The container that the instance is, or that the exec belongs to.
    pub container: String,
    /// The boot on which it was written. Nothing of it lives on another.
    pub boot_id: String,
    /// Program and arguments; never empty.
    pub args: Vec<OsString>,
    /// The whole environment, as `NAME=value`.
    pub env: Vec<OsString>,
    pub working_dir: Option<PathBuf>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    pub no_new_privileges: bool,
    /// Of a container; with any it has a mount namespace.
    pub mounts: Vec<Mount>,
    /// Whether it is to see the mounts of its container.
    pub joins_mounts: bool,
}

impl Spec {
    const KIND: &'static str = "spec";

    pub fn to_record(&self) -> Record {
        let mut record = Record::new(Self::KIND)
            .with("container", &self.container)
            .with("boot", &self.boot_id);
        record = match &self.kind {
            Kind::Container { log } => record
                .with("of", "container")
                .with("log", log.as_os_str().as_bytes()),
            Kind::Exec { attempt, timeout } => record
                .with("of", "exec")
                .with("attempt", attempt)
                .with("timeout-nanos", timeout.as_nanos().to_string()),
            Kind::Session {
                session,
                terminal,
                stdin,
            } => {
                let record = record
                    .with("of", "session")
                    .with("session", session)
                    .with_number("stdin", i64::from(*stdin));
                match terminal {
                    Some(path) => record.with("terminal", path.as_os_str().as_bytes()),
                    None => record,
                }
            }
        };
        for arg in &self.args {
            record = record.with("arg", arg.as_bytes());
        }
        for variable in &self.env {
            record = record.with("env", variable.as_bytes());
        }
        if let Some(dir) = &self.working_dir {
            record = record.with("working-dir", dir.as_os_str().as_bytes());
        }
        if let Some(user) = self.user {
            record = record.with_number("user", user);
        }
        if let Some(group) = self.group {
            record = record.with_number("group", group);
        }
        for group in &self.groups {
            record = record.with("groups", group.to_string());
        }
        if self.no_new_privileges {
            record = record.with_number("no-new-privileges", 1);
        }
        if self.joins_mounts {
            record = record.with_number("joins-mounts", 1);
        }
        mounts::write(&self.mounts, record)
    }

    pub fn from_record(record: &Record) -> Result<Self, RecordError> {
        record.expect(Self::KIND)?;
        let missing = |field: &str| RecordError::Field {
            field: field.to_owned(),
        };
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let kind = match record.text("of")? {
            "container" => Kind::Container {
                log: record
                    .bytes("log")
                    .map(os)
                    .ok_or_else(|| missing("log"))?
                    .into(),
            },
            "exec" => {
                let nanos: u128 = record.number("timeout-nanos")?;
                let seconds =
                    u64::try_from(nanos / 1_000_000_000).map_err(|_| missing("timeout-nanos"))?;
                Kind::Exec {
                    attempt: record.text("attempt")?.to_owned(),
                    timeout: Duration::from_secs(seconds)
                        + Duration::from_nanos((nanos % 1_000_000_000) as u64),
                }
            }
            "session" => Kind::Session {
                session: record.text("session")?.to_owned(),
                terminal: record.bytes("terminal").map(|path| os(path).into()),
                stdin: record.number::<u8>("stdin")? != 0,
            },
            _ => return Err(missing("of")),
        };
        let args: Vec<OsString> = record.all("arg").map(os).collect();
        if args.is_empty() {
            return Err(missing("arg"));
        }
        Ok(Spec {
            kind,
            container: record.text("container")?.to_owned(),
            boot_id: record.text("boot")?.to_owned(),
            args,
            env: record.all("env").map(os).collect(),
            working_dir: record.bytes("working-dir").map(|dir| os(dir).into()),
            user: record.optional_number("user")?,
            group: record.optional_number("group")?,
            groups: record
                .all("groups")
                .map(|group| std::str::from_utf8(group).ok()?.parse().ok())
                .collect::<Option<_>>()
                .ok_or_else(|| missing("groups"))?,
            no_new_privileges: record.optional_number("no-new-privileges")? == Some(1),
            mounts: mounts::read(record)?,
            joins_mounts: record.optional_number("joins-mounts")? == Some(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn os() -> impl Strategy<Value = OsString> {
        proptest::collection::vec(1u8.., 0..20).prop_map(OsString::from_vec)
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            os().prop_map(|log| Kind::Container { log: log.into() }),
            ("[a-z0-9.-]{1,20}", any::<u64>(), 0..1_000_000_000u32).prop_map(
                |(attempt, seconds, nanos)| Kind::Exec {
                    attempt,
                    timeout: Duration::new(seconds, nanos)
                }
            ),
            (
                "[a-z0-9.-]{1,20}",
                proptest::option::of(os()),
                any::<bool>()
            )
                .prop_map(|(session, terminal, stdin)| Kind::Session {
                    session,
                    terminal: terminal.map(PathBuf::from),
                    stdin,
                }),
        ]
    }

    proptest! {
        #[test]
        fn a_spec_reads_back_whatever_bytes_its_strings_have(
            kind in kind(),
            args in proptest::collection::vec(os(), 1..5),
            env in proptest::collection::vec(os(), 0..5),
            working_dir in proptest::option::of(os()),
            ids in (proptest::option::of(any::<u32>()), proptest::option::of(any::<u32>())),
            groups in proptest::collection::vec(any::<u32>(), 0..3),
            mounts in proptest::collection::vec((os(), os(), any::<bool>(), any::<bool>()), 0..3),
            flags in (any::<bool>(), any::<bool>()),
        ) {
            let mounts = mounts.into_iter().map(|(source, target, read_only, follows_host)| Mount {
                source: source.into(), target: target.into(), read_only, follows_host,
            });
            let spec = Spec {
                kind, container: "c".to_owned(), boot_id: "b".to_owned(), args, env,
                working_dir: working_dir.map(PathBuf::from), user: ids.0, group: ids.1,
                groups, no_new_privileges: flags.0, mounts: mounts.collect(), joins_mounts: flags.1,
            };
            let bytes = spec.to_record().encode().unwrap();
            prop_assert_eq!(Spec::from_record(&Record::parse(&bytes).unwrap()), Ok(spec));
        }

        #[test]
        fn rubbish_is_an_error_and_never_a_panic(
            fields in proptest::collection::vec(
                (prop_oneof![Just("of"), Just("timeout-nanos"), Just("arg"), Just("user"),
                    Just("container"), Just("boot"), Just("attempt"), Just("log"),
                    Just("session"), Just("stdin"), Just("groups"), Just("mount-source"),
                    Just("mount-target"), Just("mount-flags")],
                 prop_oneof![Just("exec".to_owned()), Just("container".to_owned()),
                    Just("session".to_owned()),
                    "[0-9]{1,45}", ".{0,8}"]), 0..12),
        ) {
            let mut record = Record::new("spec");
            for (key, value) in fields {
                record = record.with(key, value);
            }
            let _ = Spec::from_record(&record);
        }
    }
}
