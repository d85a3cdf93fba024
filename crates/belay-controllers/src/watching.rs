//! Watches that have not begun, and what is said of one that does not work.

use futures::stream::{BoxStream, StreamExt as _};
use kube::runtime::watcher::{self, Error, Event};
use tracing::{debug, warn};

/// The next event of a watch, if there is one to wait for.
pub(crate) async fn next<K>(
    events: &mut Option<BoxStream<'static, watcher::Result<Event<K>>>>,
) -> Option<watcher::Result<Event<K>>> {
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
    /// The watch was interrupted, and is resumed. That a kind is not served needs somebody to do
    /// something, so it is said, once; all else passes by itself.
    pub(crate) fn interrupted(&mut self, what: &str, error: &Error) {
        if !is_missing(error) {
            self.missing = false;
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
