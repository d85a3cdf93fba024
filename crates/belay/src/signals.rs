//! SIGINT and SIGTERM as something to wait for, once each time they come.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use std::sync::Arc;

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
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.task.abort();
    }
}
