//! The signals that a container can be sent: the closed set of names the Kubernetes API knows.
//!
//! A [`Signal`] is a name, not a number: `SIGCLD` and `SIGCHLD` are the same number and different
//! values, because what a user wrote is stored as it was written.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of the first real-time signal as glibc and every container runtime count them.
const RTMIN: i32 = 34;
/// Number of the last real-time signal.
const RTMAX: i32 = 64;

/// Names and Linux numbers (x86, arm), at the index of their CRI number minus one.
const TABLE: [(&str, i32); 65] = [
    ("SIGABRT", 6),
    ("SIGALRM", 14),
    ("SIGBUS", 7),
    ("SIGCHLD", 17),
    ("SIGCLD", 17),
    ("SIGCONT", 18),
    ("SIGFPE", 8),
    ("SIGHUP", 1),
    ("SIGILL", 4),
    ("SIGINT", 2),
    ("SIGIO", 29),
    ("SIGIOT", 6),
    ("SIGKILL", 9),
    ("SIGPIPE", 13),
    ("SIGPOLL", 29),
    ("SIGPROF", 27),
    ("SIGPWR", 30),
    ("SIGQUIT", 3),
    ("SIGSEGV", 11),
    ("SIGSTKFLT", 16),
    ("SIGSTOP", 19),
    ("SIGSYS", 31),
    ("SIGTERM", 15),
    ("SIGTRAP", 5),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGVTALRM", 26),
    ("SIGWINCH", 28),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
    ("SIGRTMIN", RTMIN),
    ("SIGRTMIN+1", RTMIN + 1),
    ("SIGRTMIN+2", RTMIN + 2),
    ("SIGRTMIN+3", RTMIN + 3),
    ("SIGRTMIN+4", RTMIN + 4),
    ("SIGRTMIN+5", RTMIN + 5),
    ("SIGRTMIN+6", RTMIN + 6),
    ("SIGRTMIN+7", RTMIN + 7),
    ("SIGRTMIN+8", RTMIN + 8),
    ("SIGRTMIN+9", RTMIN + 9),
    ("SIGRTMIN+10", RTMIN + 10),
    ("SIGRTMIN+11", RTMIN + 11),
    ("SIGRTMIN+12", RTMIN + 12),
    ("SIGRTMIN+13", RTMIN + 13),
    ("SIGRTMIN+14", RTMIN + 14),
    ("SIGRTMIN+15", RTMIN + 15),
    ("SIGRTMAX-14", RTMAX - 14),
    ("SIGRTMAX-13", RTMAX - 13),
    ("SIGRTMAX-12", RTMAX - 12),
    ("SIGRTMAX-11", RTMAX - 11),
    ("SIGRTMAX-10", RTMAX - 10),
    ("SIGRTMAX-9", RTMAX - 9),
    ("SIGRTMAX-8", RTMAX - 8),
    ("SIGRTMAX-7", RTMAX - 7),
    ("SIGRTMAX-6", RTMAX - 6),
    ("SIGRTMAX-5", RTMAX - 5),
    ("SIGRTMAX-4", RTMAX - 4),
    ("SIGRTMAX-3", RTMAX - 3),
    ("SIGRTMAX-2", RTMAX - 2),
    ("SIGRTMAX-1", RTMAX - 1),
    ("SIGRTMAX", RTMAX),
];

/// One of the 65 signal names.
///
/// Two signals are equal when their names are; compare [`Signal::number`] to ask whether they are
/// the same signal to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(u8);

impl Signal {
    pub const HUP: Self = Self::named("SIGHUP");
    pub const INT: Self = Self::named("SIGINT");
    pub const KILL: Self = Self::named("SIGKILL");
    pub const TERM: Self = Self::named("SIGTERM");
    pub const USR1: Self = Self::named("SIGUSR1");
    pub const USR2: Self = Self::named("SIGUSR2");

    /// Every signal, in the order of the CRI's numbers.
    pub const ALL: [Self; 65] = {
        let mut all = [Self(0); 65];
        let mut i = 0;
        while i < 65 {
            all[i] = Self(i as u8);
            i += 1;
        }
        all
    };

    /// Looks a name up while compiling; a name that is not in the table does not compile.
    const fn named(name: &str) -> Self {
        let mut i = 0;
        while i < TABLE.len() {
            if same(TABLE[i].0.as_bytes(), name.as_bytes()) {
                return Self(i as u8);
            }
            i += 1;
        }
        panic!("not a signal name")
    }

    /// The name, spelled as it was given: aliases stay what they are.
    #[must_use]
    pub fn name(self) -> &'static str {
        TABLE[usize::from(self.0)].0
    }

    /// What the kernel calls it (Linux on x86 and arm).
    #[must_use]
    pub fn number(self) -> i32 {
        TABLE[usize::from(self.0)].1
    }

    /// Its value in the CRI's `Signal` enum, where 0 stands for the runtime's default.
    #[must_use]
    pub fn cri_number(self) -> i32 {
        i32::from(self.0) + 1
    }

    /// The first name of a kernel signal number; an alias is never returned.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|signal| signal.number() == number && !signal.is_alias())
    }

    /// The signal with this value in the CRI's `Signal` enum.
    #[must_use]
    pub fn from_cri_number(number: i32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|signal| signal.cri_number() == number)
    }

    /// Whether this is a second name of another signal.
    #[must_use]
    pub fn is_alias(self) -> bool {
        matches!(self.name(), "SIGCLD" | "SIGIOT" | "SIGPOLL")
    }

    /// Whether containers on Windows can be sent it.
    #[must_use]
    pub fn on_windows(self) -> bool {
        self == Self::KILL || self == Self::TERM
    }

    /// Whether a process that does not handle it survives it. As a stop signal such a signal
    /// means that the container is most likely killed at the end of its grace period.
    #[must_use]
    pub fn leaves_running(self) -> bool {
        matches!(
            self.name(),
            "SIGSTOP" | "SIGCONT" | "SIGCHLD" | "SIGCLD" | "SIGURG" | "SIGWINCH"
        )
    }

    /// All names in alphabetical (byte) order, as error messages list them.
    #[must_use]
    pub fn names_sorted() -> Vec<&'static str> {
        let mut names: Vec<_> = TABLE.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// A string that is not one of the 65 names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown signal {name:?}: use a full upper-case name such as SIGTERM, SIGRTMIN+1 (up to +15) or SIGRTMAX-1 (down to -14)"
)]
pub struct UnknownSignal {
    pub name: String,
}

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|signal| signal.name() == name)
            .ok_or_else(|| UnknownSignal {
                name: name.to_owned(),
            })
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Signal {
    fn schema_name() -> Cow<'static, str> {
        "Signal".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": Self::names_sorted() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_the_65_names_with_the_cri_and_linux_numbers_of_upstream() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../tests/data/cri_signal_enum.json")).unwrap();
        let mut seen = 0;
        for case in file["cases"].as_array().unwrap() {
            let Some(name) = case["k8s_name"].as_str() else {
                assert_eq!(case["cri_number"], 0, "only the default has no name");
                continue;
            };
            let signal: Signal = name.parse().unwrap();
            assert_eq!(signal.to_string(), name);
            assert_eq!(i64::from(signal.cri_number()), case["cri_number"], "{name}");
            assert_eq!(
                i64::from(signal.number()),
                case["linux_signo_glibc_x86_arm"],
                "{name}"
            );
            assert_eq!(signal.on_windows(), case["windows_allowed"], "{name}");
            assert_eq!(Signal::from_cri_number(signal.cri_number()), Some(signal));
            seen += 1;
        }
        assert_eq!(seen, Signal::ALL.len());
        for (alias, name) in file["aliases"].as_object().unwrap() {
            let alias: Signal = alias.parse().unwrap();
            assert!(alias.is_alias());
            let name: Signal = name.as_str().unwrap().parse().unwrap();
            assert_eq!(alias.number(), name.number());
            assert_eq!(Signal::from_number(alias.number()), Some(name));
        }
    }

    #[test]
    fn an_alias_keeps_its_spelling_through_json() {
        for name in ["SIGCLD", "SIGIOT", "SIGPOLL"] {
            let signal: Signal = serde_json::from_value(name.into()).unwrap();
            assert_eq!(serde_json::to_value(signal).unwrap(), name);
        }
    }

    #[test]
    fn lower_case_short_numeric_and_out_of_range_names_are_refused() {
        for name in [
            "sigterm",
            "TERM",
            "15",
            "",
            "SIGRTMIN+0",
            "SIGRTMIN+16",
            "SIGRTMAX-15",
            "SIGRTMAX-0",
            "SIGTERM ",
        ] {
            let refused = name.parse::<Signal>().unwrap_err();
            assert!(refused.to_string().contains("SIGTERM"), "says what to use");
        }
    }
}
