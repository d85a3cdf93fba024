//! What the server tells about itself at `/metrics`, under the names a stock server uses where it
//! has them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belay_api::gates::FeatureGates;
use belay_store::Store;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::audit::Record;
use crate::object::Meta;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: String,
    code: u16,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Latency {
    verb: &'static str,
    resource: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GateName {
    name: &'static str,
}

/// All of the server's metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    latency: Family<Latency, Histogram, fn() -> Histogram>,
    watches: Gauge,
    revision: Gauge,
    beside: Beside,
}

type Text = Box<dyn Fn() -> String + Send + Sync>;

/// What roles in the same process have to show.
#[derive(Default)]
struct Beside(Mutex<Vec<Text>>);

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Beside")
    }
}

/// The end of an exposition.
const END: &str = "# EOF\n";

/// A watch that is counted until it ends.
#[derive(Debug)]
pub(crate) struct Watching(Gauge);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn latency_buckets() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
    ])
}

impl Metrics {
    pub(crate) fn new(gates: &FeatureGates) -> Self {
        let mut registry = Registry::default();
        let requests = Family::<Request, Counter>::default();
        let latency: Family<Latency, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(latency_buckets as fn() -> Histogram);
        let watches: Gauge = Gauge::default();
        let revision: Gauge = Gauge::default();
        let features = Family::<GateName, Gauge>::default();
        for (feature, on) in gates.iter() {
            features
                .get_or_create(&GateName {
                    name: feature.name(),
                })
                .set(i64::from(on));
        }
        // `_total` is added by the encoder.
        registry.register(
            "apiserver_request",
            "Requests by verb, resource and code",
            requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Time until the answer began, without watches",
            latency.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Open watches",
            watches.clone(),
        );
        registry.register(
            "belay_store_revision",
            "Newest visible revision",
            revision.clone(),
        );
        registry.register("kubernetes_feature_enabled", "Feature gates", features);
        Self {
            registry,
            requests,
            latency,
            watches,
            revision,
            beside: Beside::default(),
        }
    }

    /// Shows from now on what another role has to show, beside what the server has. Both in the text
    /// format of OpenMetrics, and no metric in both.
    pub(crate) fn show_beside(&self, text: Text) {
        let mut beside = self.beside.0.lock().unwrap_or_else(PoisonError::into_inner);
        beside.push(text);
    }

    pub(crate) fn request(&self, record: &Record, elapsed: Duration) {
        let labels = Request {
            verb: record.verb,
            group: record.group,
            resource: record.resource,
            subresource: record.subresource.clone().unwrap_or_default(),
            code: record.code,
        };
        self.requests.get_or_create(&labels).inc();
        if record.verb != "watch" && !record.resource.is_empty() {
            let labels = Latency {
                verb: record.verb,
                resource: record.resource,
            };
            self.latency
                .get_or_create(&labels)
                .observe(elapsed.as_secs_f64());
        }
    }

    pub(crate) fn watching(&self) -> Watching {
        self.watches.inc();
        Watching(self.watches.clone())
    }

    pub(crate) fn text(&self, store: &Store<Meta>) -> String {
        self.revision
            .set(i64::try_from(store.revision().0).unwrap_or(i64::MAX));
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut out, &self.registry);
        let beside = self.beside.0.lock().unwrap_or_else(PoisonError::into_inner);
        for text in beside.iter() {
            // There is one end.
            let own = out.strip_suffix(END).map_or(out.len(), str::len);
            out.truncate(own);
            out.push_str(&text());
        }
        out
    }
}
