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
use kube::core::Status;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use crate::connect::Connection;
use crate::format;
use crate::signals::{Cut, Interrupts};

/// How long after `--timeout` the wait goes on: what expires is reported by then.
pub(crate) const SETTLING: Duration = Duration::from_secs(5);
/// How long each request may take with which a command tidies up.
pub(crate) const CLEANING: Duration = Duration::from_secs(10);
/// How long the end of what was cancelled is waited for.
pub(crate) const CANCELLING: Duration = Duration::from_secs(20);
/// How long nobody may acknowledge a request before that is said.
const UNHEARD: Duration = Duration::from_secs(10);
/// How often progress is told where it cannot be shown in place.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Who acknowledges what a controller carries out.
pub(crate) const CONTROLLER: &str = "does the controller run? (`belay controller` on a cluster; it is part of `belay up` and `belay server`)";
/// After how many refusals in a row one that could be watched before no longer can: a server that
/// comes up may not know yet who may do what.
const REFUSALS: u32 = 3;

/// How long a request that creates something may take: as long as what it asks for.
pub(crate) fn limit(timeout: Option<Duration>) -> Option<Duration> {
    timeout.map(|timeout| timeout + SETTLING)
}

/// Why the wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    AllFinal,
    TimedOut,
    Interrupted,
    /// What becomes of it cannot be seen, which has been said.
    Unseen,
}

impl From<Cut> for Ending {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Interrupted => Ending::Interrupted,
            Cut::Late(_) => Ending::TimedOut,
        }
    }
}

impl Ending {
    /// The same in words; nothing for one that needs none.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Ending::AllFinal => "",
            Ending::TimedOut => "timed out waiting",
            Ending::Interrupted => "interrupted",
            Ending::Unseen => "not seen to its end",
        }
    }
}

/// What is waited for, as far as it is known.
pub(crate) trait Followed {
    type Event;
    /// Why it may be that nobody has begun with it.
    const UNHEARD: &'static str;

    /// Whether the server said this. That a list begins is the watcher's own word, which it gives
    /// before it asks.
    fn is_heard(event: &Self::Event) -> bool;

    fn observe(&mut self, event: Self::Event);

    /// Whether nothing more will come.
    fn is_over(&self) -> bool;

    /// Whether somebody has begun with it.
    fn acknowledged(&self) -> bool;

    /// How far it has come, in a line; nothing where the news say all.
    fn summary(&self) -> String;

    /// What is to be told since this was last asked, so long after the start.
    fn take_news(&mut self, elapsed: Duration) -> Vec<String>;
}

/// Whether there is anybody at the other end of a watch, by what it tells and by its errors. Each watch
/// has its own: that one is answered says nothing of another.
#[derive(Debug, Default)]
struct Contact {
    heard: bool,
    refusals: u32,
}

/// What an error of a watch comes to.
#[derive(Debug)]
pub(crate) enum Lost {
    /// There is nobody now; it is tried again.
    Away,
    /// The server will not tell, however often it is asked.
    Refused(Box<Status>),
}

/// The events of a watch, and what its errors come to.
pub(crate) fn contact<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
) -> impl Stream<Item = Result<Event<K>, Lost>> {
    let mut contact = Contact::default();
    events.map(move |event| match event {
        Ok(event) => {
            // That a list begins is the watcher's own word, which it gives before it asks.
            if !matches!(event, Event::Init) {
                contact.heard();
            }
            Ok(event)
        }
        Err(error) => {
            tracing::debug!(%error, "watch interrupted");
            Err(contact.lost(&error))
        }
    })
}

impl Contact {
    /// The server said something.
    fn heard(&mut self) {
        self.heard = true;
        self.refusals = 0;
    }

    fn lost(&mut self, error: &watcher::Error) -> Lost {
        let refusal = match error {
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchFailed(kube::Error::Api(status))
            | watcher::Error::WatchError(status) => is_refusal(status).then(|| status.clone()),
            watcher::Error::InitialListFailed(_)
            | watcher::Error::WatchStartFailed(_)
            | watcher::Error::WatchFailed(_)
            | watcher::Error::NoResourceVersion => None,
        };
        match refusal {
            Some(status) => {
                self.refusals += 1;
                if !self.heard || self.refusals >= REFUSALS {
                    return Lost::Refused(status);
                }
            }
            None => self.refusals = 0,
        }
        Lost::Away
    }
}

/// Whether asking again would be answered alike: no credentials, no right, no such kind or verb.
pub(crate) fn is_refusal(status: &Status) -> bool {
    matches!(status.code, 401 | 403 | 404 | 405)
}

/// What a wait needs besides what is waited for.
pub(crate) struct Follow<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) interrupts: &'a Interrupts,
    pub(crate) timeout: Option<Duration>,
    pub(crate) started: Instant,
}

impl Follow<'_> {
    /// Feeds `events` to `followed` until it is over.
    pub(crate) async fn until_over<F: Followed>(
        &self,
        followed: &mut F,
        events: impl Stream<Item = Result<F::Event, Lost>>,
    ) -> Ending {
        let started = self.started;
        let mut progress = Progress::to_stderr();
        let give_up = async {
            match limit(self.timeout) {
                Some(limit) => tokio::time::sleep(limit).await,
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
                    progress.say(&format!("nobody has acknowledged it yet: {}", F::UNHEARD));
                    continue;
                }
                _ = lines.tick() => {
                    if followed.acknowledged() {
                        progress.line(started.elapsed(), &followed.summary());
                    }
                    continue;
                }
                Some(event) = events.next() => event,
            };
            match event {
                Ok(event) => {
                    if F::is_heard(&event) && std::mem::take(&mut away) {
                        progress.say("the server is back");
                    }
                    followed.observe(event);
                }
                Err(Lost::Away) => {
                    if !std::mem::replace(&mut away, true) {
                        let server = &self.connection.server;
                        progress.say(&format!("{server} does not answer; still waiting"));
                    }
                }
                Err(Lost::Refused(status)) => {
                    let why = self.connection.explain(kube::Error::Api(status));
                    progress.say(&format!("it cannot be watched: {why:#}"));
                    break Ending::Unseen;
                }
            }
            for line in followed.take_news(started.elapsed()) {
                progress.say(&line);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> watcher::Error {
        let status = Status {
            code,
            ..Status::default()
        };
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn who_may_not_watch_is_told_at_once_and_a_busy_server_is_waited_for() {
        for code in [401, 403, 404, 405] {
            let lost = Contact::default().lost(&refused(code));
            assert!(matches!(lost, Lost::Refused(status) if status.code == code));
        }
        for code in [410, 429, 500, 503, 504] {
            let mut contact = Contact::default();
            for _ in 0..2 * REFUSALS {
                assert!(matches!(contact.lost(&refused(code)), Lost::Away), "{code}");
            }
        }
    }

    #[test]
    fn one_refusal_of_a_server_that_comes_up_again_ends_no_wait() {
        let mut contact = Contact::default();
        contact.heard();
        for _ in 0..2 {
            assert!(matches!(contact.lost(&refused(403)), Lost::Away));
            assert!(matches!(contact.lost(&refused(403)), Lost::Away));
            contact.heard();
        }
        contact.lost(&refused(403));
        contact.lost(&refused(403));
        assert!(matches!(contact.lost(&refused(403)), Lost::Refused(_)));
    }
}
