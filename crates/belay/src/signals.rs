//! SIGINT and SIGTERM as something to wait for, once each time they come.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Why an answer was not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Interrupted,
    /// It did not come within this time.
    Late(Duration),
}

impl Cut {
    /// The same in words.
    pub(crate) fn told(self, server: &str) -> String {
        match self {
            Cut::Interrupted => format!("interrupted before {server} answered"),
            Cut::Late(time) => format!("{server} did not answer within {} s", time.as_secs()),
        }
    }
}

/// Listens from its creation on: from then on neither signal ends the process by itself.
#[derive(Debug)]
pub(crate) struct Interrupts {
    arrived: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Interrupts {
    /// Starts to listen.
    pub(crate) fn listen() -> anyhow::Result<Interrupts> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let arrived = Arc::new(Notify::new());
        let sender = arrived.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                // Kept for whoever asks next, so that none is lost between two waits.
                sender.notify_one();
            }
        });
        Ok(Interrupts { arrived, task })
    }

    /// Waits for the next signal that nobody has waited for yet.
    pub(crate) async fn received(&self) {
        self.arrived.notified().await;
    }

    /// Waits for an answer: until a signal comes, and no longer than `within` where that is given. A
    /// server that hangs is told from one that takes its time by nothing else.
    pub(crate) async fn unless<T>(
        &self,
        within: Option<Duration>,
        answer: impl Future<Output = T>,
    ) -> Result<T, Cut> {
        let late = async {
            match within {
                Some(time) => {
                    tokio::time::sleep(time).await;
                    Cut::Late(time)
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // What has come is not thrown away.
            biased;
            answer = answer => Ok(answer),
            () = self.received() => Err(Cut::Interrupted),
            cut = late => Err(cut),
        }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.task.abort();
    }
}
