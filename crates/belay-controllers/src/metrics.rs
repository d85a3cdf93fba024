//! What the controllers count, under `/metrics` of the controller's role.

use belay_api::gates::FeatureGates;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FeatureLabel {
    name: &'static str,
}

/// Handles to every metric of the controllers.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    assignments: Family<OutcomeLabel, Counter>,
    expirations: Family<OutcomeLabel, Counter>,
    leader: Gauge,
}

impl Metrics {
    /// Metrics of a role with these gates.
    pub fn new(gates: FeatureGates) -> Self {
        let mut registry = Registry::default();
        let assignments = Family::<OutcomeLabel, Counter>::default();
        let expirations = Family::<OutcomeLabel, Counter>::default();
        let leader = Gauge::default();
        // `_total` is added by the encoder.
        registry.register(
            "belay_assignments",
            "Notifications resolved after their creation, by what they came to",
            assignments.clone(),
        );
        registry.register(
            "belay_expirations",
            "Notifications that nobody else would have ended, by what they came to",
            expirations.clone(),
        );
        registry.register(
            "belay_is_leader",
            "Whether this controller acts",
            leader.clone(),
        );
        let features = Family::<FeatureLabel, Gauge>::default();
        for (feature, enabled) in gates.iter() {
            let name = feature.name();
            features
                .get_or_create(&FeatureLabel { name })
                .set(i64::from(enabled));
        }
        registry.register(
            "kubernetes_feature_enabled",
            "Whether a feature gate is on",
            features,
        );
        Metrics {
            registry,
            assignments,
            expirations,
            leader,
        }
    }

    pub(crate) fn assigned(&self, outcome: &'static str) {
        self.assignments
            .get_or_create(&OutcomeLabel { outcome })
            .inc();
    }

    pub(crate) fn expired(&self, outcome: &'static str) {
        self.expirations
            .get_or_create(&OutcomeLabel { outcome })
            .inc();
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Everything in the text format of OpenMetrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            Ok(()) => text,
            // Writing into a string fails only if a metric's own encoding does.
            Err(std::fmt::Error) => String::from("# EOF\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_api::gates::Feature;

    #[test]
    fn gates_leadership_and_outcomes_are_shown_by_name() {
        let metrics = Metrics::new(FeatureGates::default().with(Feature::ContainerNotifier, false));
        metrics.assigned("PodNotFound");
        metrics.expired("Expired");
        metrics.leads(true);
        let text = metrics.text();
        for line in [
            "kubernetes_feature_enabled{name=\"ContainerNotifier\"} 0",
            "belay_assignments_total{outcome=\"PodNotFound\"} 1",
            "belay_expirations_total{outcome=\"Expired\"} 1",
            "belay_is_leader 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
