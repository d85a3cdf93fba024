//! The product's reconcile loops. They speak only to a `kube::Client` and cannot tell the embedded
//! server from a stock one.
//!
//! ```text
//!  watch podnotifications --> Tracker (who is due when) --due--> read again --decide--> write
//!  watch leases ------------> heartbeats per executor -------------'          (resourceVersion)
//!
//!  watch podnotifications that nobody resolved --> read the pod --resolve--> write
//! ```
//!
//! Long-running tasks, all of them in [`Controllers::run`]: [`expiry`] ends what nobody will end (a
//! PodNotification that no agent claimed before its deadline, one whose executor was lost after the
//! claim, and, where its spec asks for it, one that finished long enough ago to be collected);
//! [`assignment`] settles who is to act on a new PodNotification; [`fanout`] carries out
//! Notifications, one PodNotification for each pod; [`hooks`] carries out ExecutionHooks, one
//! PodAction for each pod. Where several replicas run, [`election`] lets
//! one of them act.
//!
//! **Invariant:** every write carries the resource version of the object the decision was made on,
//! so a claim or a result that comes at the same moment wins.
//!
//! **Invariant:** nothing is expired early. A late verdict costs a moment; an early one would
//! contradict an agent that still may start.
//!
//! **Invariant:** times in a status, as deadlines and times to live, are the server's, whatever clock
//! the machine has that a loop runs on.
//!
//! **Invariant:** finished notifications cost nothing: nothing is kept of them, and no loop looks at
//! them again.

pub mod assignment;
mod clock;
mod deadline;
pub mod election;
mod event;
pub mod expiry;
pub mod fanout;
pub mod hooks;
mod metrics;
mod objects;
mod reconnect;
mod release;
#[cfg(test)]
mod testing;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use belay_api::gates::FeatureGates;
use belay_api::hook::PodAction;
use belay_api::notification::PodNotification;
use kube::Client;
use tokio_util::sync::CancellationToken;

use clock::Clock;
pub use metrics::Metrics;

/// What the loops work with.
#[derive(Clone)]
pub struct Controllers {
    /// The way to the API server.
    pub client: Client,
    /// What they count.
    pub metrics: Arc<Metrics>,
    /// Where Belay's roles keep their leases.
    pub namespace: String,
    /// How long a finished hook is kept that does not say so itself.
    pub hook_ttl: Duration,
}

/// How long a finished hook is kept unless somebody says otherwise.
pub const DEFAULT_HOOK_TTL: Duration = Duration::from_secs(3600);

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Controllers {
    /// Loops with metrics of their own, and leases where they are by default.
    pub fn new(client: Client) -> Self {
        Controllers {
            client,
            metrics: Arc::new(Metrics::new(FeatureGates::default())),
            namespace: belay_api::SYSTEM_NAMESPACE.to_owned(),
            hook_ttl: DEFAULT_HOOK_TTL,
        }
    }

    /// Runs all loops until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let (this, clock) = self.dated();
        futures::join!(
            Box::pin(expiry::run::<PodNotification>(
                this.clone(),
                clock.clone(),
                shutdown.clone()
            )),
            Box::pin(assignment::run(
                this.clone(),
                clock.clone(),
                shutdown.clone()
            )),
            Box::pin(fanout::run(this.clone(), clock.clone(), shutdown.clone())),
            Box::pin(this.hooks(clock, shutdown)),
        );
    }

    /// With the clock of its server, which its client keeps.
    fn dated(self) -> (Self, Clock) {
        let clock = Clock::default();
        let client = clock.bind(self.client);
        (Controllers { client, ..self }, clock)
    }

    /// With the gate `ContainerNotifier` off: carries out hooks, which have no gate, and of
    /// notifications only lets go what is deleted, until `shutdown`.
    pub async fn run_gated(self, shutdown: CancellationToken) {
        let (this, clock) = self.dated();
        futures::join!(
            fanout::idle::run(this.client.clone(), clock.clone(), shutdown.clone()),
            Box::pin(this.hooks(clock, shutdown)),
        );
    }

    /// Carries out hooks until `shutdown`.
    pub async fn run_hooks(self, shutdown: CancellationToken) {
        let (this, clock) = self.dated();
        this.hooks(clock, shutdown).await;
    }

    async fn hooks(self, clock: Clock, shutdown: CancellationToken) {
        futures::join!(
            Box::pin(expiry::run::<PodAction>(
                self.clone(),
                clock.clone(),
                shutdown.clone()
            )),
            Box::pin(hooks::run(self, clock, shutdown)),
        );
    }
}
