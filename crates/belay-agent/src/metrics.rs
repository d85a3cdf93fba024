//! What the agent counts and measures, under `/metrics`.

use belay_api::gates::FeatureGates;
use belay_core::termination::Early;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::lease::LeaseHealth;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    pub(crate) outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CauseLabel {
    pub(crate) cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EarlyLabel {
    pub(crate) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FeatureLabel {
    name: &'static str,
}

/// Handles to every metric of the agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// From the moment a notification is met to the moment its result is on the server.
    pub(crate) delivery: Histogram,
    /// How long handlers ran.
    pub(crate) action: Histogram,
    /// Handlers that wait for a slot.
    pub(crate) queued: Gauge,
    /// Handlers that run.
    pub(crate) running: Gauge,
    /// Attempts that were started.
    pub(crate) attempts: Counter,
    /// Containers' parts of notifications and hooks by what they came to.
    pub(crate) outcomes: Family<OutcomeLabel, Counter>,
    /// Containers started again.
    pub(crate) restarts: Counter,
    /// Terminations of pods and of single containers by what brought them about.
    pub(crate) terminations: Family<CauseLabel, Counter>,
    /// Pods with a `preStop.sleep` that ended before its time.
    pub(crate) early_sleeps: Family<EarlyLabel, Counter>,
    /// Whether the agent's lease is kept.
    pub(crate) lease: LeaseHealth,
}

impl Metrics {
    /// Metrics of an agent with these gates.
    pub fn new(gates: FeatureGates) -> Self {
        Self::with(Some(gates))
    }

    /// Metrics of deliveries alone, for a role that shows its gates itself.
    pub fn of_deliveries() -> Self {
        Self::with(None)
    }

    fn with(gates: Option<FeatureGates>) -> Self {
        let mut registry = Registry::default();
        // 1 ms to about 65 s.
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 17));
        let metrics = Metrics {
            delivery: seconds(),
            action: seconds(),
            queued: Gauge::default(),
            running: Gauge::default(),
            attempts: Counter::default(),
            outcomes: Family::default(),
            restarts: Counter::default(),
            terminations: Family::default(),
            early_sleeps: Family::default(),
            lease: LeaseHealth::default(),
            registry: Registry::default(),
        };
        registry.register(
            "belay_delivery_seconds",
            "Time from meeting a notification to its result being on the server",
            metrics.delivery.clone(),
        );
        registry.register(
            "belay_action_seconds",
            "How long handlers of notifications ran",
            metrics.action.clone(),
        );
        registry.register(
            "belay_action_queue_depth",
            "Handlers that wait for one of the node's slots",
            metrics.queued.clone(),
        );
        registry.register(
            "belay_actions_running",
            "Handlers that run",
            metrics.running.clone(),
        );
        registry.register(
            "belay_action_attempts",
            "Attempts that were started, of notifications and of hooks",
            metrics.attempts.clone(),
        );
        registry.register(
            "belay_action_outcomes",
            "Containers' parts of notifications and hooks by what they came to",
            metrics.outcomes.clone(),
        );
        registry.register(
            "belay_container_restarts",
            "Containers started again",
            metrics.restarts.clone(),
        );
        if let Some(gates) = gates {
            registry.register(
                "belay_terminations",
                "Terminations of pods and of single containers by what brought them about",
                metrics.terminations.clone(),
            );
            for reason in [Early::ContainerExited, Early::GraceShortened] {
                let reason = reason.as_str();
                // Shown from the beginning: a counter that is missing cannot be watched.
                drop(metrics.early_sleeps.get_or_create(&EarlyLabel { reason }));
            }
            registry.register(
                "sleep_action_terminated_early",
                "Pods with a preStop sleep that ended before its time",
                metrics.early_sleeps.clone(),
            );
            let features = Family::<FeatureLabel, Gauge>::default();
            for (feature, enabled) in gates.iter() {
                features
                    .get_or_create(&FeatureLabel {
                        name: feature.name(),
                    })
                    .set(i64::from(enabled));
            }
            registry.register(
                "kubernetes_feature_enabled",
                "Whether a feature gate is on",
                features,
            );
        }
        Metrics {
            registry,
            ..metrics
        }
    }

    /// Whether the agent's lease was renewed so lately that nobody takes the agent for lost.
    pub fn lease_is_kept(&self) -> bool {
        self.lease.is_kept()
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
    fn gates_and_outcomes_are_shown_by_name() {
        let metrics = Metrics::new(FeatureGates::default().with(Feature::ContainerNotifier, false));
        metrics
            .outcomes
            .get_or_create(&OutcomeLabel {
                outcome: "HandlerFailed",
            })
            .inc();
        let text = metrics.text();
        assert!(
            text.contains("kubernetes_feature_enabled{name=\"ContainerNotifier\"} 0"),
            "{text}"
        );
        assert!(text.contains("kubernetes_feature_enabled{name=\"ContainerStopSignals\"} 1"));
        assert!(text.contains("belay_action_outcomes_total{outcome=\"HandlerFailed\"} 1"));
        // The name that the seed gives, there before the first one ends early.
        let early = "sleep_action_terminated_early_total{reason=\"grace_shortened\"} 0";
        assert!(text.contains(early), "{text}");
    }
}
