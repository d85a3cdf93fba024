//! Until when a replica may act, asked once more right before each request.
//!
//! A process that was stopped, or starved of the processor, goes on wherever it was: its loops may send
//! what they have in their hands before the election has noticed how late it is. So the clock is
//! looked at where requests leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use belay_core::clock::LocalMillis;
use http::Request;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use super::now;

/// Shared by the election, which renews it, and by the clients that are bound to it.
#[derive(Debug, Clone)]
pub struct Mandate(Arc<AtomicI64>);

/// Why a request was not sent.
#[derive(Debug)]
struct LeadsNoMore;

impl std::fmt::Display for LeadsNoMore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("this replica leads no more; the request was not sent")
    }
}

impl std::error::Error for LeadsNoMore {}

impl Default for Mandate {
    /// One that has not begun.
    fn default() -> Self {
        Mandate(Arc::new(AtomicI64::new(LocalMillis::MIN)))
    }
}

impl Mandate {
    /// A client that sends nothing after the mandate has run out.
    #[must_use]
    pub fn bind(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let mandate = self.clone();
        let guarded = service_fn(move |request: Request<Body>| {
            let (client, mandate) = (client.clone(), mandate.clone());
            async move {
                if now() >= mandate.0.load(Ordering::Acquire) {
                    return Err(kube::Error::Service(Box::new(LeadsNoMore)));
                }
                client.send(request).await
            }
        });
        Client::new(guarded, namespace)
    }

    /// Moves its end; `None` ends it now.
    pub(super) fn last_until(&self, until: Option<LocalMillis>) {
        self.0
            .store(until.unwrap_or(LocalMillis::MIN), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reply;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::api::Api;
    use serde_json::json;

    #[tokio::test]
    async fn nothing_is_sent_before_a_mandate_and_after_it() {
        let answered = service_fn(async |_: Request<Body>| {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}});
            Ok::<_, std::io::Error>(reply(200, &namespace))
        });
        let mandate = Mandate::default();
        let api: Api<Namespace> = Api::all(mandate.bind(Client::new(answered, "ns")));
        let refused = async || api.get("a").await.expect_err("it is not sent").to_string();
        assert!(refused().await.contains("leads no more"));
        mandate.last_until(Some(now() + 60_000));
        api.get("a").await.expect("an answer");
        mandate.last_until(Some(now()));
        assert!(refused().await.contains("leads no more"));
        mandate.last_until(None);
        assert!(refused().await.contains("leads no more"));
    }
}
