//! What the controllers count, under `/metrics` of the controller's role, or of the server where they
//! run inside it.

use std::time::Duration;

use belay_api::gates::FeatureGates;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
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
    fanouts: Family<OutcomeLabel, Counter>,
    fanout_children: Counter,
    fanout_pending: Gauge,
    fanout_duration: Histogram,
    hooks: Family<OutcomeLabel, Counter>,
    hook_actions: Counter,
    hook_duration: Histogram,
    leader: Gauge,
}

/// Seconds: one pod takes a moment, ten thousand one after the other take hours.
const DURATIONS: [f64; 12] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0,
];

impl Metrics {
    /// Metrics of a role with these gates.
    pub fn new(gates: FeatureGates) -> Self {
        let mut metrics = Metrics::of_loops();
        metrics.registry.register(
            "belay_is_leader",
            "Whether this controller acts",
            metrics.leader.clone(),
        );
        let features = Family::<FeatureLabel, Gauge>::default();
        for (feature, enabled) in gates.iter() {
            let name = feature.name();
            features
                .get_or_create(&FeatureLabel { name })
                .set(i64::from(enabled));
        }
        metrics.registry.register(
            "kubernetes_feature_enabled",
            "Whether a feature gate is on",
            features,
        );
        metrics
    }

    /// Metrics of the loops alone, to be shown beside those of the server they run in, which shows
    /// its gates itself.
    pub fn of_loops() -> Self {
        let mut registry = Registry::default();
        let assignments = Family::<OutcomeLabel, Counter>::default();
        let expirations = Family::<OutcomeLabel, Counter>::default();
        let fanouts = Family::<OutcomeLabel, Counter>::default();
        let fanout_children = Counter::default();
        let fanout_pending = Gauge::default();
        let fanout_duration = Histogram::new(DURATIONS);
        let hooks = Family::<OutcomeLabel, Counter>::default();
        let hook_actions = Counter::default();
        let hook_duration = Histogram::new(DURATIONS);
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
            "belay_fanouts",
            "Notifications over many pods that have ended, by their state",
            fanouts.clone(),
        );
        registry.register(
            "belay_fanout_children",
            "PodNotifications created for Notifications",
            fanout_children.clone(),
        );
        registry.register(
            "belay_fanout_pending_pods",
            "Pods of Notifications whose turn has not come",
            fanout_pending.clone(),
        );
        registry.register(
            "belay_fanout_duration_seconds",
            "Time from the creation of a Notification over many pods to its end",
            fanout_duration.clone(),
        );
        registry.register(
            "belay_hooks",
            "Execution hooks that have ended, by what they came to",
            hooks.clone(),
        );
        registry.register(
            "belay_hook_actions",
            "PodActions created for execution hooks",
            hook_actions.clone(),
        );
        registry.register(
            "belay_hook_duration_seconds",
            "Time from the creation of an execution hook to its end",
            hook_duration.clone(),
        );
        Metrics {
            registry,
            assignments,
            expirations,
            fanouts,
            fanout_children,
            fanout_pending,
            fanout_duration,
            hooks,
            hook_actions,
            hook_duration,
            leader: Gauge::default(),
        }
    }

    /// A Notification over many pods has ended.
    pub(crate) fn fanned_out(&self, state: &'static str, took: Duration) {
        let label = OutcomeLabel { outcome: state };
        self.fanouts.get_or_create(&label).inc();
        self.fanout_duration.observe(took.as_secs_f64());
    }

    /// An execution hook has ended.
    pub(crate) fn hooked(&self, succeeded: bool, took: Duration) {
        let outcome = if succeeded { "Succeeded" } else { "Failed" };
        self.hooks.get_or_create(&OutcomeLabel { outcome }).inc();
        self.hook_duration.observe(took.as_secs_f64());
    }

    pub(crate) fn action_created(&self) {
        self.hook_actions.inc();
    }

    pub(crate) fn child_created(&self) {
        self.fanout_children.inc();
    }

    /// So many pods wait for their turn now.
    pub(crate) fn pending(&self, pods: usize) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        self.fanout_pending.set(pods);
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
        metrics.fanned_out("Succeeded", Duration::from_secs(2));
        metrics.child_created();
        metrics.hooked(false, Duration::from_secs(2));
        metrics.action_created();
        metrics.pending(7);
        let text = metrics.text();
        for line in [
            "kubernetes_feature_enabled{name=\"ContainerNotifier\"} 0",
            "belay_assignments_total{outcome=\"PodNotFound\"} 1",
            "belay_expirations_total{outcome=\"Expired\"} 1",
            "belay_is_leader 1",
            "belay_fanouts_total{outcome=\"Succeeded\"} 1",
            "belay_fanout_children_total 1",
            "belay_hooks_total{outcome=\"Failed\"} 1",
            "belay_hook_actions_total 1",
            "belay_hook_duration_seconds_count 1",
            "belay_fanout_pending_pods 7",
            "belay_fanout_duration_seconds_bucket{le=\"1.0\"} 0",
            "belay_fanout_duration_seconds_bucket{le=\"2.5\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
