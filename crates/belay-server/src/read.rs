//! Reading: one object, a page of objects as of one revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use belay_store::{Entry, Revision, WatchError, WatchItem};
use futures::FutureExt as _;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};

use crate::api::{Api, Body, Call, parse};
use crate::authority::allows_object;
use crate::object::Meta;
use crate::render;
use crate::status::{ApiError, ApiResult};

/// Where a paged list goes on: after this key, in the state of this revision.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    rv: u64,
    after: String,
}

/// A page of objects.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) entries: Vec<Arc<Entry<Meta>>>,
    pub(crate) revision: Revision,
    pub(crate) next: Option<String>,
    pub(crate) remaining: usize,
}

impl Api {
    pub(crate) fn get(&self, call: &Call<'_>) -> ApiResult<Arc<Entry<Meta>>> {
        let kind = call.resource.kind;
        let entry = self
            .store
            .get(&call.key())
            .ok_or_else(|| ApiError::not_found(kind, call.name()))?;
        let ask = call.ask();
        if !allows_object(&ask, &parse(&entry)?) {
            return Err(ApiError::forbidden(ask.refusal()));
        }
        Ok(entry)
    }

    pub(crate) fn list(&self, call: &Call<'_>) -> ApiResult<Response<Body>> {
        let listing = self.page(call)?;
        render::list(StatusCode::OK, &listing, call)
    }

    fn page(&self, call: &Call<'_>) -> ApiResult<Listing> {
        let limit = call
            .query
            .number::<usize>("limit")?
            .filter(|n| *n > 0)
            .unwrap_or(usize::MAX);
        let prefix = call
            .resource
            .kind
            .prefix(call.resource.namespace.as_deref());
        let token = call
            .query
            .get("continue")
            .map(|text| decode_continue(text, &prefix))
            .transpose()?;
        let exact = exact_revision(call, self.store.revision())?;
        let at = token.as_ref().map(|token| Revision(token.rv)).or(exact);
        let after = token.as_ref().map(|t| t.after.as_str());
        let selection = &call.selection;
        let now = self
            .store
            .list(&prefix, after, limit, &mut |entry| selection.matches(entry));
        let page = match at {
            Some(revision) if revision != now.revision => {
                self.page_at(call, &prefix, after, limit, revision)?
            }
            _ => {
                let next = now
                    .more
                    .then(|| now.entries.last().map(|e| e.key.to_string()));
                Listing {
                    next: next.flatten(),
                    entries: now.entries,
                    revision: now.revision,
                    remaining: now.remaining,
                }
            }
        };
        let next = page.next.map(|after| {
            encode_continue(&Continue {
                rv: page.revision.0,
                after,
            })
        });
        Ok(Listing { next, ..page })
    }

    /// A page of an earlier state: the current state with everything since taken back.
    ///
    /// # Errors
    /// 410 when the history since that revision is no longer kept.
    fn page_at(
        &self,
        call: &Call<'_>,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        revision: Revision,
    ) -> ApiResult<Listing> {
        let too_old = || {
            ApiError::expired(
                "The provided continue parameter or resource version is too old to display a \
                 consistent list result. Start a new list without it.",
            )
        };
        let mut since = match self.store.watch(prefix, revision) {
            Ok(watch) => watch,
            Err(WatchError::Future { .. }) => {
                return Err(ApiError::bad_request(format!(
                    "resourceVersion {revision} is newer than anything here"
                )));
            }
            Err(_) => return Err(too_old()),
        };
        let now = self.store.list(prefix, after, usize::MAX, &mut |_| true);
        let mut then: BTreeMap<Arc<str>, Arc<Entry<Meta>>> = now
            .entries
            .into_iter()
            .map(|e| (Arc::clone(&e.key), e))
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        while since.seen() < now.revision {
            // Without a budget a watch waits only for what is not there yet.
            match tokio::task::coop::unconstrained(since.next()).now_or_never() {
                Some(Ok(WatchItem::Event(event))) if event.revision <= now.revision => {
                    let key = Arc::clone(&event.entry.key);
                    if after.is_some_and(|after| &*key <= after) || !seen.insert(Arc::clone(&key)) {
                        continue;
                    }
                    // The first change after `revision` knows what stood there before it.
                    match event.previous {
                        Some(previous) => then.insert(key, previous),
                        None => then.remove(&key),
                    };
                }
                Some(Ok(WatchItem::Event(_))) => break,
                Some(Ok(WatchItem::Progress(_))) | None => {}
                Some(Err(_)) => return Err(too_old()),
            }
        }
        let mut matching: Vec<_> = then
            .into_values()
            .filter(|e| call.selection.matches(e))
            .collect();
        let remaining = matching.len().saturating_sub(limit);
        matching.truncate(limit);
        let next = (remaining > 0)
            .then(|| matching.last().map(|e| e.key.to_string()))
            .flatten();
        Ok(Listing {
            entries: matching,
            revision,
            next,
            remaining,
        })
    }
}

/// `resourceVersion` with `resourceVersionMatch=Exact`; anything else is served from now, which is
/// not older than what any client can have seen, unless this data is older than the client's.
fn exact_revision(call: &Call<'_>, newest: Revision) -> ApiResult<Option<Revision>> {
    let given = call
        .query
        .get("resourceVersion")
        .filter(|text| *text != "0");
    if given.is_some() && call.query.get("continue").is_some() {
        return Err(ApiError::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    let revision = given
        .map(|text| {
            text.parse::<u64>().map(Revision).map_err(|_| {
                ApiError::bad_request(format!("resourceVersion: {text:?} is no resource version"))
            })
        })
        .transpose()?;
    if let Some(revision) = revision.filter(|revision| *revision > newest) {
        return Err(ApiError::too_large_revision(revision.0, newest.0));
    }
    match (call.query.get("resourceVersionMatch"), revision) {
        (None | Some("NotOlderThan"), _) => Ok(None),
        (Some("Exact"), Some(revision)) => Ok(Some(revision)),
        (Some("Exact"), None) => Err(ApiError::bad_request(
            "resourceVersionMatch Exact needs a resourceVersion that is set and not 0",
        )),
        (Some(other), _) => Err(ApiError::bad_request(format!(
            "resourceVersionMatch {other:?} is not known"
        ))),
    }
}

fn encode_continue(token: &Continue) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(token).unwrap_or_default())
}

/// A token must lead into the collection it is used on: it is the client's to forge.
fn decode_continue(text: &str, prefix: &str) -> ApiResult<Continue> {
    URL_SAFE_NO_PAD
        .decode(text)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Continue>(&bytes).ok())
        .filter(|token| token.after.starts_with(prefix))
        .ok_or_else(|| ApiError::bad_request("continue key is not valid for this list"))
}
