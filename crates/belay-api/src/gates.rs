//! Feature gates: one table, read everywhere, set once at start.
//!
//! What a gate that is off does to stored objects is said by the rules that use it
//! ([`crate::rules`]); what it does to a running role is that role's business.

use std::fmt;
use std::str::FromStr;

/// A feature that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// `notifiers` on containers, `podnotifications` and `notifications`.
    ContainerNotifier,
    /// `stopSignal` on containers, in either of its two places.
    ContainerStopSignals,
    /// `sleep` as a lifecycle handler.
    PodLifecycleSleepAction,
}

impl Feature {
    /// Every feature, in alphabetical order.
    pub const ALL: [Self; 3] = [
        Self::ContainerNotifier,
        Self::ContainerStopSignals,
        Self::PodLifecycleSleepAction,
    ];

    /// The name used on the command line and in the metric `kubernetes_feature_enabled`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ContainerNotifier => "ContainerNotifier",
            Self::ContainerStopSignals => "ContainerStopSignals",
            Self::PodLifecycleSleepAction => "PodLifecycleSleepAction",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Feature {
    type Err = GatesError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|feature| feature.name() == name)
            .ok_or_else(|| GatesError::UnknownFeature {
                name: name.to_owned(),
            })
    }
}

/// Which features are on. All are, unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FeatureGates {
    off: u8,
}

impl FeatureGates {
    /// Every feature on.
    pub const ALL_ON: Self = Self { off: 0 };

    #[must_use]
    pub fn enabled(&self, feature: Feature) -> bool {
        self.off & feature.bit() == 0
    }

    /// The same gates with one feature set.
    #[must_use]
    pub fn with(self, feature: Feature, enabled: bool) -> Self {
        let off = if enabled {
            self.off & !feature.bit()
        } else {
            self.off | feature.bit()
        };
        Self { off }
    }

    /// Every feature and whether it is on.
    pub fn iter(&self) -> impl Iterator<Item = (Feature, bool)> + use<> {
        let gates = *self;
        Feature::ALL
            .into_iter()
            .map(move |feature| (feature, gates.enabled(feature)))
    }
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self::ALL_ON
    }
}

impl fmt::Display for FeatureGates {
    /// The form that [`FeatureGates::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (feature, enabled)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{feature}={enabled}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FeatureGates({self})")
    }
}

/// Why `--feature-gates` could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatesError {
    #[error("unknown feature gate {name:?}: known are {}", known())]
    UnknownFeature { name: String },
    #[error("feature gate {item:?} has no value: write {item}=true or {item}=false")]
    NoValue { item: String },
    #[error("feature gate {name} is set to {value:?}: use true or false")]
    NotBoolean { name: String, value: String },
}

fn known() -> String {
    Feature::ALL.map(Feature::name).join(", ")
}

impl FromStr for FeatureGates {
    type Err = GatesError;

    /// Reads `Name=bool,Name=bool`; the last setting of a name wins, as in Kubernetes.
    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let mut gates = Self::default();
        for item in list
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            let (name, value) = item.split_once('=').ok_or_else(|| GatesError::NoValue {
                item: item.to_owned(),
            })?;
            let (name, value) = (name.trim(), value.trim());
            let feature: Feature = name.parse()?;
            let enabled = match value {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => {
                    return Err(GatesError::NotBoolean {
                        name: name.to_owned(),
                        value: value.to_owned(),
                    });
                }
            };
            gates = gates.with(feature, enabled);
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_on_by_default() {
        assert!(FeatureGates::default().iter().all(|(_, enabled)| enabled));
        assert_eq!("".parse(), Ok(FeatureGates::default()));
    }

    #[test]
    fn a_list_sets_what_it_names_and_leaves_the_rest() {
        let gates: FeatureGates = "ContainerNotifier=false, PodLifecycleSleepAction=true,"
            .parse()
            .unwrap();
        assert!(!gates.enabled(Feature::ContainerNotifier));
        assert!(gates.enabled(Feature::ContainerStopSignals));
        assert!(gates.enabled(Feature::PodLifecycleSleepAction));
        assert_eq!(gates.to_string().parse(), Ok(gates));
    }

    #[test]
    fn the_last_setting_of_a_name_wins() {
        let gates: FeatureGates = "ContainerNotifier=false,ContainerNotifier=true"
            .parse()
            .unwrap();
        assert!(gates.enabled(Feature::ContainerNotifier));
    }

    #[test]
    fn errors_say_what_is_known_and_how_to_write_it() {
        let check = |list: &str, message: &str| {
            assert_eq!(
                list.parse::<FeatureGates>().unwrap_err().to_string(),
                message
            );
        };
        check(
            "Nope=true",
            "unknown feature gate \"Nope\": known are ContainerNotifier, ContainerStopSignals, PodLifecycleSleepAction",
        );
        check(
            "ContainerNotifier",
            "feature gate \"ContainerNotifier\" has no value: write ContainerNotifier=true or ContainerNotifier=false",
        );
        check(
            "ContainerNotifier=maybe",
            "feature gate ContainerNotifier is set to \"maybe\": use true or false",
        );
    }
}
