//! Lets one of several replicas act: the driver of [`belay_core::election`].
//!
//! # Guarantees
//!
//! - The work runs only while this replica holds the lease. It is told to end, and after
//!   [`STOPPING`] dropped, before another replica may take over: the lease is good for longer than a
//!   leader leads without renewing it.
//! - A client that is bound to the candidate's [`Mandate`] sends nothing after that, however late the
//!   work learns of it.
//! - On a clean shutdown the work ends first, then the lease is released, so that the next replica
//!   need not wait for it to run out.
//!
//! Time is counted since boot, sleep included: a machine that slept finds its lease run out.

mod mandate;

use std::sync::Arc;
use std::time::Duration;

use belay_core::clock::LocalMillis;
use belay_core::election::{Answer, Election, Seen, Step, Times};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::Metrics;
use crate::clock::boot_millis as now;
pub use mandate::Mandate;

/// How long the work may take to end before it is dropped where it stands.
const STOPPING: Duration = Duration::from_secs(2);
/// How long the release of the lease may take.
const RELEASING: Duration = Duration::from_secs(2);

/// What is held, and who wants it.
#[derive(Clone)]
pub struct Candidate {
    /// The way to the API server.
    pub client: Client,
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// This process, and no other.
    pub identity: String,
    /// How long things take.
    pub times: Times,
    /// What the clients of the work are bound to.
    pub mandate: Mandate,
    /// Where it is shown who leads.
    pub metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// Runs `work` whenever this replica leads, until `shutdown`. The token given to the work is
/// cancelled when it has to end.
///
/// # Panics
///
/// When the work does: a leader whose work is gone must not look alive.
pub async fn run<W>(
    candidate: Candidate,
    work: impl Fn(CancellationToken) -> W,
    shutdown: CancellationToken,
) where
    W: Future<Output = ()> + Send + 'static,
{
    let api: Api<Lease> = Api::namespaced(candidate.client.clone(), &candidate.namespace);
    let mut election = Election::new(&candidate.identity, candidate.times, now());
    let mut driver = Driver {
        candidate,
        api,
        held: None,
        complained: false,
    };
    let mut leading: Option<Leading> = None;
    loop {
        let leads = election.leads(now());
        driver.candidate.mandate.last_until(leads);
        match (leads, leading.take()) {
            (Some(_), None) => {
                info!(identity = driver.candidate.identity, "leads");
                leading = Some(Leading::start(&work));
            }
            (None, Some(work)) => {
                warn!(
                    identity = driver.candidate.identity,
                    "leads no more; its loops end"
                );
                work.stop().await;
            }
            (_, kept) => leading = kept,
        }
        driver.candidate.metrics.leads(leading.is_some());
        let (step, at) = election.step();
        let step = step.clone();
        let wake = election.leads(now()).map_or(at, |until| at.min(until));
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(between(now(), wake)) => {}
            () = Leading::ended(leading.as_mut()) => {}
        }
        election.tick(now());
        if now() < at || *election.step().0 != step {
            continue;
        }
        let sent = now();
        // A leader waits no longer for an answer than it leads.
        let limit = election
            .leads(sent)
            .map_or(driver.candidate.times.retry, |until| {
                (until - sent).min(driver.candidate.times.retry)
            });
        let answer = tokio::select! {
            () = shutdown.cancelled() => break,
            answer = tokio::time::timeout(between(0, limit), driver.carry_out(&step)) => {
                answer.unwrap_or(Answer::Unknown)
            }
        };
        election.answered(sent, answer, now());
    }
    let leads = election.leads(now()).is_some();
    if let Some(leading) = leading {
        leading.stop().await;
    }
    driver.candidate.metrics.leads(false);
    if leads
        && tokio::time::timeout(RELEASING, driver.release())
            .await
            .is_err()
    {
        debug!("the lease could not be released in time; it runs out by itself");
    }
}

/// The work of a leader.
struct Leading {
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl Leading {
    fn start<W>(work: &impl Fn(CancellationToken) -> W) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let token = CancellationToken::new();
        let task = tokio::spawn(work(token.clone()));
        Leading { token, task }
    }

    /// Returns never: work ends when it is told to. Work that panicked takes the candidate along.
    async fn ended(leading: Option<&mut Leading>) {
        if let Some(leading) = leading
            && let Err(error) = (&mut leading.task).await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
        std::future::pending::<()>().await;
    }

    async fn stop(mut self) {
        self.token.cancel();
        let ended = match tokio::time::timeout(STOPPING, &mut self.task).await {
            Ok(ended) => ended,
            Err(_) => {
                self.task.abort();
                self.task.await
            }
        };
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

struct Driver {
    candidate: Candidate,
    api: Api<Lease>,
    /// The lease as it was last read or written.
    held: Option<Lease>,
    /// Whether its trouble with the lease has been told.
    complained: bool,
}

impl Driver {
    async fn carry_out(&mut self, step: &Step) -> Answer {
        let result = match step {
            Step::Read => match self.api.get_opt(&self.candidate.name).await {
                Ok(lease) => {
                    self.held = lease;
                    self.complained = false;
                    return Answer::Seen(self.held.as_ref().map(seen));
                }
                Err(error) => Err(error),
            },
            Step::Create => self.create().await,
            Step::Take { version } => self.write(version, true).await,
            Step::Renew { version } => self.write(version, false).await,
        };
        match result {
            Ok(version) => Answer::Written { version },
            Err(kube::Error::Api(status)) if status.code == 409 => Answer::Refused,
            Err(kube::Error::Api(status)) if status.code == 404 && *step != Step::Create => {
                Answer::Refused
            }
            Err(error) => {
                self.complain(&error);
                Answer::Unknown
            }
        }
    }

    /// Says what is wrong once, until it has worked again.
    fn complain(&mut self, error: &kube::Error) {
        let Candidate {
            namespace, name, ..
        } = &self.candidate;
        if std::mem::replace(&mut self.complained, true) {
            return debug!(%error, "the lease {namespace}/{name} cannot be used; trying again");
        }
        let hint = match error {
            kube::Error::Api(status) if matches!(status.code, 403 | 404) => {
                "; `belay manifests | kubectl apply -f -` makes the namespace and the rights"
            }
            _ => "",
        };
        warn!(%error, "the lease {namespace}/{name} cannot be used; trying again{hint}");
    }

    async fn create(&mut self) -> kube::Result<String> {
        let mut lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.candidate.name.clone()),
                namespace: Some(self.candidate.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        lease.spec = Some(self.spec(None, true));
        let written = self.api.create(&PostParams::default(), &lease).await?;
        Ok(self.keep(written))
    }

    async fn write(&mut self, version: &str, take: bool) -> kube::Result<String> {
        let mut lease = self.held.clone().unwrap_or_default();
        lease.metadata.name = Some(self.candidate.name.clone());
        // The condition under which the server takes it.
        lease.metadata.resource_version = Some(version.to_owned());
        lease.spec = Some(self.spec(lease.spec.as_ref(), take));
        let written = self
            .api
            .replace(&self.candidate.name, &PostParams::default(), &lease)
            .await?;
        Ok(self.keep(written))
    }

    fn keep(&mut self, written: Lease) -> String {
        self.complained = false;
        let version = written.resource_version().unwrap_or_default();
        self.held = Some(written);
        version
    }

    fn spec(&self, before: Option<&LeaseSpec>, take: bool) -> LeaseSpec {
        let time = MicroTime(Timestamp::now());
        let mut spec = before.cloned().unwrap_or_default();
        if take {
            spec.acquire_time = Some(time.clone());
            let transitions = before.map_or(0, |spec| spec.lease_transitions.unwrap_or(0) + 1);
            spec.lease_transitions = Some(transitions);
        }
        spec.holder_identity = Some(self.candidate.identity.clone());
        let seconds = self.candidate.times.lease / 1000;
        spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
        spec.renew_time = Some(time);
        spec
    }

    /// Makes the lease free. A renewal that was under way may have changed it, so it is read again
    /// when the copy there is turns out to be old.
    async fn release(&mut self) {
        let name = self.candidate.name.clone();
        for _ in 0..2 {
            let Some(mut lease) = self.held.clone() else {
                return;
            };
            let Some(spec) = &mut lease.spec else { return };
            if spec.holder_identity.as_ref() != Some(&self.candidate.identity) {
                return;
            }
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            match self
                .api
                .replace(&name, &PostParams::default(), &lease)
                .await
            {
                Ok(_) => return info!("released its lease"),
                Err(error) => debug!(%error, "the lease was not released"),
            }
            self.held = self.api.get_opt(&name).await.ok().flatten();
        }
    }
}

fn seen(lease: &Lease) -> Seen {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or(0).max(1);
    Seen {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        version: lease.resource_version().unwrap_or_default(),
        duration: i64::from(seconds) * 1000,
    }
}

fn between(from: LocalMillis, to: LocalMillis) -> Duration {
    Duration::from_millis(u64::try_from(to.saturating_sub(from)).unwrap_or(0))
}
