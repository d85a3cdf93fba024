//! What time it is on the server, by which deadlines count. It is learnt from the answers to what is
//! asked anyway.

use std::sync::{Arc, Mutex, PoisonError};

use belay_core::clock::{LocalMillis, Sample, ServerClock, ServerMillis};
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;
use tower::service_fn;

use crate::expiry::tracker::Now;

/// Milliseconds since boot, suspended time included.
pub(crate) fn boot_millis() -> LocalMillis {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec
        .saturating_mul(1000)
        .saturating_add(time.tv_nsec / 1_000_000)
}

/// The estimate of the server's clock that all loops share. Before the first answer the machine's own
/// clock has to do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Arc<Mutex<ServerClock>>);

impl Clock {
    /// A client whose answers are taken note of.
    pub(crate) fn bind(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let clock = self.clone();
        let dated = service_fn(move |request: Request<Body>| {
            let (client, clock) = (client.clone(), clock.clone());
            async move {
                let sent = boot_millis();
                let answer = client.send(request).await?;
                let date = answer.headers().get(header::DATE);
                if let Some(date) = date.and_then(|date| date.to_str().ok()) {
                    clock.observe(sent, date);
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(dated, namespace)
    }

    fn observe(&self, sent: LocalMillis, date: &str) {
        let Ok(date) = jiff::fmt::rfc2822::parse(date) else {
            return;
        };
        let sample = Sample {
            sent,
            received: boot_millis(),
            date_seconds: date.timestamp().as_second(),
        };
        self.estimate(|clock| clock.observe(sample));
    }

    /// The earliest time that it can be on the server: what is over then is over.
    pub(crate) fn earliest(&self) -> Timestamp {
        self.read(ServerClock::earliest)
    }

    /// The latest time that it can be on the server: what is not over then may still begin.
    pub(crate) fn latest(&self) -> Timestamp {
        self.read(ServerClock::latest)
    }

    /// Both clocks, for whoever ends what is over.
    pub(crate) fn now(&self) -> Now {
        Now {
            wall: self.earliest(),
            steady: Instant::now(),
        }
    }

    fn read(&self, end: fn(&ServerClock, LocalMillis) -> Option<ServerMillis>) -> Timestamp {
        let known = self.estimate(|clock| end(clock, boot_millis()));
        let known = known.and_then(|millis| Timestamp::from_millisecond(millis).ok());
        known.unwrap_or_else(Timestamp::now)
    }

    fn estimate<T>(&self, with: impl FnOnce(&mut ServerClock) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
