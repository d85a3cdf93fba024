//! Watches: how they begin, what of them can be read, and what is said of one that does not work.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::ready;
use std::time::Duration;

use belay_api::lenient::{Lenient, read_event};
use futures::future::FutureExt as _;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{self, Error, Event, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use crate::reconnect::Reconnect;

pub(crate) type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// Of how many objects that cannot be read it is remembered that they were told of.
const REMEMBERED: usize = 1024;

/// Everything of a kind in all namespaces, as far as the configuration selects it.
pub(crate) fn watch_all<K>(client: &Client, config: watcher::Config) -> Events<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watch(Api::all(client.clone()), config)
}

/// Watches, and takes the watch up again when it breaks. What cannot be read is told of, once, and
/// passed over: it is its creator's affair, and the others are not.
pub(crate) fn watch<K>(api: Api<Lenient<K>>, config: watcher::Config) -> Events<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let url = api.resource_url().to_owned();
    let mut told = HashSet::new();
    listing_anew(api, config)
        .backoff(Reconnect::default())
        .filter_map(move |event| {
            ready(match event.map(read_event) {
                Ok(Ok(event)) => Some(Ok(event)),
                Ok(Err(unreadable)) => {
                    if told.len() >= REMEMBERED {
                        told.clear();
                    }
                    if told.insert(unreadable.uid().to_owned()) {
                        let kind = url.rsplit('/').next().unwrap_or_default();
                        warn!("{kind} {unreadable}; it is passed over");
                    }
                    None
                }
                Err(error) => Some(Err(error)),
            })
        })
        .boxed()
}

/// As [`watcher`], but lists anew where the server answers to the start of a watch that it has
/// forgotten the version. A `watcher` by itself would ask for that version for ever.
fn listing_anew<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = move |pause| {
        let watcher = watcher(api.clone(), config.clone());
        async move {
            tokio::time::sleep(pause).await;
            watcher
        }
        .flatten_stream()
        .boxed()
    };
    let begun = begin(Duration::ZERO);
    // Of its own, because a list that succeeds is no sign that the watch will.
    let pauses = Reconnect::default();
    futures::stream::unfold(
        (begun, pauses, begin),
        |(mut events, mut pauses, begin)| async move {
            let event = events.next().await?;
            match &event {
                Ok(Event::Apply(_) | Event::Delete(_)) => pauses.reset(),
                Ok(Event::Init | Event::InitApply(_) | Event::InitDone) => {}
                Err(error) if has_forgotten(error) => {
                    events = begin(pauses.next().unwrap_or_default());
                }
                Err(_) => {}
            }
            Some((event, (events, pauses, begin)))
        },
    )
}

fn has_forgotten(error: &Error) -> bool {
    matches!(error, Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// The next event of a watch, if there is one to wait for.
pub(crate) async fn next<K>(events: &mut Option<Events<K>>) -> Option<watcher::Result<Event<K>>> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Whether the missing kind has been told of.
#[derive(Debug, Default)]
pub(crate) struct Told {
    missing: bool,
}

impl Told {
    /// The watch was interrupted, and is resumed. That a kind is not served, or is not what is
    /// expected, needs somebody to do something; the former is said once. All else passes by itself.
    pub(crate) fn interrupted(&mut self, what: &str, error: &Error) {
        if !is_missing(error) {
            self.missing = false;
            if is_unreadable(error) {
                return warn!(%error, "{what} cannot be read; trying again");
            }
            return debug!(%error, "watch of {what} interrupted; it is resumed");
        }
        if !self.missing {
            self.missing = true;
            warn!(
                "the API server does not serve {what}: install Belay with `belay manifests | kubectl apply -f -`; trying again until it does"
            );
        }
    }
}

fn is_missing(error: &Error) -> bool {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        Error::InitialListFailed(_)
        | Error::WatchStartFailed(_)
        | Error::WatchError(_)
        | Error::WatchFailed(_)
        | Error::NoResourceVersion => false,
    }
}

fn is_unreadable(error: &Error) -> bool {
    match error {
        Error::InitialListFailed(error)
        | Error::WatchStartFailed(error)
        | Error::WatchFailed(error) => matches!(error, kube::Error::SerdeError(_)),
        Error::WatchError(_) | Error::NoResourceVersion => false,
    }
}

#[cfg(test)]
mod tests;
