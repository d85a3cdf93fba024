//! Watches, and what of them can be read.

use std::collections::HashSet;
use std::fmt::Debug;

use belay_api::lenient::{Lenient, read_event};
use futures::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::reconnect::Reconnect;

/// Of how many objects that cannot be read it is remembered that they were told of.
const REMEMBERED: usize = 1024;

/// What is told of the objects of a kind.
#[derive(Debug)]
pub(crate) enum Told<K> {
    Event(Event<K>),
    /// The object with this UID is there, and cannot be read.
    Unreadable(String),
    /// It is not there any more, and could not be read when it went.
    Gone(String),
}

/// Everything of a kind that the configuration selects. The watch is taken up again when it breaks.
/// What cannot be read is told of in the log, once, and no more of it than that it is there: the
/// node's other objects are not its creator's affair.
pub(crate) fn watch_all<K>(
    client: &Client,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Told<K>>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<Lenient<K>> = Api::all(client.clone());
    let mut told = HashSet::new();
    follow(api, config).map_ok(move |event| {
        let goes = matches!(event, Event::Delete(_));
        let unreadable = match read_event(event) {
            Ok(event) => return Told::Event(event),
            Err(unreadable) => unreadable,
        };
        let uid = unreadable.uid().to_owned();
        if goes {
            return Told::Gone(uid);
        }
        if told.len() >= REMEMBERED {
            told.clear();
        }
        if told.insert(uid.clone()) {
            warn!("{} {unreadable}; it is passed over", K::plural(&()));
        }
        Told::Unreadable(uid)
    })
}

/// What the API tells of these objects. The watch is taken up again when it breaks, and where its
/// version is too old for the server to go on from, which says so by refusing to begin (410), with
/// another list: [`watcher`] would ask for the same version for ever.
pub(crate) fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let events = stream::unfold((begin(), begin), async |(mut events, begin)| {
        let event = events.next().await?;
        if event.as_ref().is_err_and(is_too_old) {
            events = begin();
        }
        Some((event, (events, begin)))
    });
    events.backoff(Reconnect::default())
}

/// Whether a watch did not begin because its version is too old.
fn is_too_old(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        watcher::Error::WatchStartFailed(_)
        | watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::testing::{Reply, Script, context};

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_may_not_begin_where_it_was_to_begins_with_another_list() {
        let script = Script::by(|asked| {
            if asked.query.contains("watch=true") {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "code": 410, "reason": "Expired", "message": "too old resource version"});
                return Reply::Answer(410, status);
            }
            let list = json!({"kind": "ConfigMapList", "apiVersion": "v1",
                "metadata": {"resourceVersion": "7"}, "items": []});
            Reply::Answer(200, list)
        });
        let dir = tempfile::tempdir().unwrap();
        let client = context(dir.path(), &script).client.clone();
        let api: Api<ConfigMap> = Api::all(client);
        let lists = follow(api, watcher::Config::default())
            .filter(|event| ready(matches!(event, Ok(Event::InitDone))))
            .take(3)
            .collect::<Vec<_>>();
        let listed = tokio::time::timeout(Duration::from_secs(60), lists).await;
        assert_eq!(listed.unwrap().len(), 3);
        let asked = script.requests().into_iter().map(|asked| asked.query);
        let watches: Vec<bool> = asked.map(|query| query.contains("watch=true")).collect();
        assert_eq!(watches, [false, true, false, true, false]);
    }
}
