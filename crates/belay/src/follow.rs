//! Waiting for something that a controller carries out, and telling how far it has come: in place
//! on a terminal, line by line elsewhere.
//!
//! A watch that breaks off, because the server is restarted for instance, is taken up again where it
//! was.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use futures::stream::{Stream, StreamExt as _};
use kube::Resource;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::watcher;
use serde::de::DeserializeOwned;

use crate::connect::Connection;
use crate::format;
use crate::signals::Interrupts;

/// How long after `--timeout` the wait goes on: what expires is reported by then.
pub(crate) const SETTLING: Duration = Duration::from_secs(5);
/// How long the end of what was cancelled is waited for.
pub(crate) const CANCELLING: Duration = Duration::from_secs(20);
/// How long nobody may acknowledge a request before that is said.
const UNHEARD: Duration = Duration::from_secs(10);
/// How often progress is told where it cannot be shown in place.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Why the wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    AllFinal,
    TimedOut,
    Interrupted,
}

impl Ending {
    /// The same in words; nothing for one that needs none.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Ending::AllFinal => "",
            Ending::TimedOut => "timed out waiting",
            Ending::Interrupted => "interrupted",
        }
    }
}

/// What is waited for, as far as it is known.
pub(crate) trait Followed {
    type Event;

    fn observe(&mut self, event: Self::Event);

    /// Whether nothing more will come.
    fn is_over(&self) -> bool;

    /// Whether somebody has begun with it.
    fn acknowledged(&self) -> bool;

    /// How far it has come, in a line.
    fn summary(&self) -> String;

    /// What failed since this was last asked.
    fn take_failures(&mut self) -> Vec<String>;
}

/// What a wait needs besides what is waited for.
pub(crate) struct Follow<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) interrupts: &'a Interrupts,
    pub(crate) timeout: Option<Duration>,
}

impl Follow<'_> {
    /// Feeds `events` to `followed` until it is over.
    pub(crate) async fn until_over<F: Followed>(
        &self,
        followed: &mut F,
        events: impl Stream<Item = watcher::Result<F::Event>>,
    ) -> Ending {
        let started = Instant::now();
        let mut progress = Progress::to_stderr();
        let give_up = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout + SETTLING).await,
                None => std::future::pending().await,
            }
        };
        let unheard = tokio::time::sleep(UNHEARD);
        tokio::pin!(give_up, unheard, events);
        let mut lines = tokio::time::interval(BETWEEN_LINES);
        lines.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut away = false;
        let ending = loop {
            if followed.is_over() {
                break Ending::AllFinal;
            }
            let event = tokio::select! {
                () = self.interrupts.received() => break Ending::Interrupted,
                () = &mut give_up => break Ending::TimedOut,
                () = &mut unheard, if !followed.acknowledged() && !unheard.is_elapsed() => {
                    progress.say("nobody has acknowledged it yet: does the controller run? (`belay controller` on a cluster; it is part of `belay up` and `belay server`)");
                    continue;
                }
                _ = lines.tick() => {
                    if followed.acknowledged() {
                        progress.line(started.elapsed(), &followed.summary());
                    }
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    if away {
                        progress.say("the server is back");
                        away = false;
                    }
                    followed.observe(event);
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "watch interrupted");
                    if !away {
                        let server = &self.connection.server;
                        progress.say(&format!("{server} does not answer; still waiting"));
                        away = true;
                    }
                }
                None => {}
            }
            for failure in followed.take_failures() {
                progress.say(&failure);
            }
            progress.in_place(&followed.summary());
        };
        progress.clear();
        ending
    }
}

/// Deletes what was created, and nothing else of the same name. That it is gone already is fine.
///
/// # Errors
///
/// What the server says against it.
pub(crate) async fn delete<K>(
    connection: &Connection,
    api: &Api<K>,
    name: &str,
    uid: &str,
) -> anyhow::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    });
    match api.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(error) => Err(connection.explain(error)),
    }
}

#[derive(Debug)]
struct Progress {
    terminal: bool,
    told: String,
}

impl Progress {
    fn to_stderr() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            told: String::new(),
        }
    }

    /// The summary, over the line before.
    fn in_place(&mut self, summary: &str) {
        if self.terminal && summary != self.told {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{summary}");
            summary.clone_into(&mut self.told);
        }
    }

    /// The summary on a line of its own, where it has changed.
    fn line(&mut self, elapsed: Duration, summary: &str) {
        if !self.terminal && summary != self.told {
            format::note(&format!("+{:.3}s  {summary}", elapsed.as_secs_f64()));
            summary.clone_into(&mut self.told);
        }
    }

    /// A line that stays.
    fn say(&mut self, text: &str) {
        self.clear();
        format::note(text);
    }

    /// Takes away what stands in place.
    fn clear(&mut self) {
        if self.terminal && !self.told.is_empty() {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
            self.told.clear();
        }
    }
}
