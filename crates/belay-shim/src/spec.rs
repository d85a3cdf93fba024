//! What one shim is to run.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use crate::record::{Record, RecordError};

/// What an instance is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Output goes to a log file; when the first process ends, all of it ends.
    Container { log: PathBuf },
    /// The end of the output is kept; the first process alone decides.
    Exec { attempt: String, timeout: Duration },
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
        record
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
        ) {
            let spec = Spec {
                kind, container: "c".to_owned(), boot_id: "b".to_owned(), args, env,
                working_dir: working_dir.map(PathBuf::from), user: ids.0, group: ids.1,
            };
            let bytes = spec.to_record().encode().unwrap();
            prop_assert_eq!(Spec::from_record(&Record::parse(&bytes).unwrap()), Ok(spec));
        }

        #[test]
        fn rubbish_is_an_error_and_never_a_panic(
            fields in proptest::collection::vec(
                (prop_oneof![Just("of"), Just("timeout-nanos"), Just("arg"), Just("user"),
                    Just("container"), Just("boot"), Just("attempt"), Just("log")],
                 prop_oneof![Just("exec".to_owned()), Just("container".to_owned()),
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
