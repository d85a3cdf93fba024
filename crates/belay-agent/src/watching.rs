//! Watches, and what of them can be read.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::ready;

use belay_api::lenient::{Lenient, read_event};
use futures::stream::{Stream, StreamExt as _};
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::reconnect::Reconnect;

/// Of how many objects that cannot be read it is remembered that they were told of.
const REMEMBERED: usize = 1024;

/// Everything of a kind that the configuration selects. The watch is taken up again when it breaks.
/// What cannot be read is told of, once, and passed over: the node's other objects are not its
/// creator's affair.
pub(crate) fn watch_all<K>(
    client: &Client,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<Lenient<K>> = Api::all(client.clone());
    let mut told = HashSet::new();
    watcher(api, config)
        .backoff(Reconnect::default())
        .filter_map(move |event| {
            ready(match event.map(read_event) {
                Ok(Ok(event)) => Some(Ok(event)),
                Ok(Err(unreadable)) => {
                    if told.len() >= REMEMBERED {
                        told.clear();
                    }
                    if told.insert(unreadable.uid().to_owned()) {
                        warn!("{} {unreadable}; it is passed over", K::plural(&()));
                    }
                    None
                }
                Err(error) => Some(Err(error)),
            })
        })
}
