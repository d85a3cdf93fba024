//! Objects that are dropped by themselves: events, an hour after they were last seen.

use belay_store::{Change, Expect, Write};
use jiff::Timestamp;
use serde_json::Value;

use crate::api::{Api, parse};
use crate::object::{encode, parse_time};
use crate::registry::Kind;

impl Api {
    /// Drops what has expired. Deleting is conditional: what is seen again meanwhile stays.
    pub(crate) async fn drop_expired(&self, now: Timestamp) {
        for kind in self.registry.kinds().filter(|k| k.expires_after.is_some()) {
            let page = self
                .store
                .list(&kind.prefix(None), None, usize::MAX, &mut |_| true);
            for entry in page.entries {
                let Ok(object) = parse(&entry) else {
                    continue;
                };
                if !has_expired(kind, &object, now) {
                    continue;
                }
                let write = Write {
                    key: entry.key.to_string(),
                    expect: Expect::At(entry.modified),
                    also: Vec::new(),
                    change: Change::Delete(Some(encode(object, &self.mark))),
                    reserve: false,
                };
                if let Err(error) = self.store.write(write).await {
                    tracing::debug!(%error, "an expired object stays");
                }
            }
        }
    }
}

fn has_expired(kind: &Kind, object: &Value, now: Timestamp) -> bool {
    let Some(after) = kind.expires_after else {
        return false;
    };
    let last = [
        "/metadata/creationTimestamp",
        "/lastTimestamp",
        "/eventTime",
        "/series/lastObservedTime",
    ]
    .iter()
    .filter_map(|pointer| parse_time(object.pointer(pointer)?.as_str()?))
    // Nobody has seen it in the future, whatever a clock somewhere says.
    .filter(|seen| *seen <= now)
    .max();
    last.is_some_and(|last| now.duration_since(last).unsigned_abs() >= after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;
    use belay_api::gates::FeatureGates;
    use serde_json::json;

    #[test]
    fn an_event_goes_an_hour_after_it_was_last_seen_and_nothing_else_goes() {
        let registry = Registry::new(&FeatureGates::default());
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let check = |plural: &str, object: Value| {
            has_expired(registry.by_plural(plural).unwrap(), &object, now)
        };
        let old = json!({"metadata": {"creationTimestamp": "2026-01-01T10:59:00Z"}});
        assert!(check("events", old.clone()));
        assert!(!check("pods", old));
        assert!(!check(
            "events",
            json!({
                "metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
                "lastTimestamp": "2026-01-01T11:30:00Z",
            })
        ));
        assert!(!check(
            "events",
            json!({"metadata": {"creationTimestamp": "2026-01-01T14:00:00Z"}})
        ));
        assert!(check(
            "events",
            json!({
                "metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
                "lastTimestamp": "2999-01-01T00:00:00Z",
            })
        ));
    }
}
