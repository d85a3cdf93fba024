//! Deleting: at once, gracefully, or when the last finalizer is gone.

use belay_store::{Change, Expect, Write, WriteError};
use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Api, Body, Call, Object, json as json_response, parse};
use crate::authority::allows_object;
use crate::object::{
    encode, has_finalizers, is_terminating, meta_mut, meta_str, parse_time, seconds,
};
use crate::preconditions::Preconditions;
use crate::registry::Strategy;
use crate::render;
use crate::status::{ApiError, ApiResult, deleted};
use crate::write::decode_argument;

const TRIES: usize = 64;

/// The finalizers of the owner collector.
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// `metav1.DeleteOptions`, as far as it matters here.
///
/// What belongs to the object is the owner collector's business. It is told by a finalizer when
/// dependents are to be orphaned, or to go before their owner.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Options {
    grace_period_seconds: Option<i64>,
    preconditions: Preconditions,
    dry_run: Vec<String>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
}

impl Options {
    /// What the request says, in its body or in its query.
    pub(crate) fn of(call: &Call<'_>, body: &Bytes) -> ApiResult<Self> {
        let mut options: Self = if body.is_empty() {
            Self::default()
        } else {
            let mut sent = decode_argument(call, body, "DeleteOptions")?;
            if let Some(fields) = sent.as_object_mut() {
                // As in every object, what is null is not there.
                fields.retain(|_, value| !value.is_null());
            }
            serde_json::from_value(sent).map_err(|e| {
                ApiError::bad_request(format!("the delete options are not valid: {e}"))
            })?
        };
        if let Some(seconds) = call.query.number("gracePeriodSeconds")? {
            options.grace_period_seconds = Some(seconds);
        }
        if options.dry_run.iter().any(|v| v != "All") {
            return Err(ApiError::bad_request(
                "dryRun: the only supported value is \"All\"",
            ));
        }
        if call.query.dry_run()? {
            options.dry_run.push("All".to_owned());
        }
        if options.propagation_policy.is_none() {
            options.propagation_policy = call.query.get("propagationPolicy").map(str::to_owned);
        }
        match (
            options.propagation_policy.as_deref(),
            options.orphan_dependents,
        ) {
            (Some(_), Some(_)) => Err(ApiError::bad_request(
                "orphanDependents and propagationPolicy cannot both be set",
            )),
            (None | Some("Background" | "Foreground" | "Orphan"), _) => Ok(options),
            (Some(other), _) => Err(ApiError::bad_request(format!(
                "propagationPolicy: {other:?} is not one of Background, Foreground, Orphan"
            ))),
        }
    }

    pub(crate) fn dry_run(&self) -> bool {
        !self.dry_run.is_empty()
    }

    /// The finalizer by which the owner collector knows what to do with dependents: none when they
    /// are to go after their owner. `None`: the caller leaves it as it is.
    fn finalizer(&self) -> Option<Option<&'static str>> {
        match (self.propagation_policy.as_deref(), self.orphan_dependents) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Some(ORPHAN)),
            (Some("Foreground"), _) => Some(Some(FOREGROUND)),
            (Some(_), _) | (None, Some(false)) => Some(None),
            (None, None) => None,
        }
    }
}

/// The object with this of the owner collector's finalizers, and no other. Who deletes again may
/// have thought better of what is to become of the dependents.
fn with_finalizer(mut object: Value, wanted: Option<&str>) -> Value {
    let meta = meta_mut(&mut object);
    let mut finalizers = match meta.remove("finalizers") {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    finalizers.retain(|known| known != ORPHAN && known != FOREGROUND);
    finalizers.extend(wanted.map(Value::from));
    if !finalizers.is_empty() {
        meta.insert("finalizers".into(), finalizers.into());
    }
    object
}

/// What a deletion does to an object.
#[derive(Debug, PartialEq)]
enum Plan {
    /// It goes now.
    Remove,
    /// It stays for a while, marked.
    Mark(Box<Value>),
    /// It is already going, at least as fast as asked.
    Unchanged,
}

impl Api {
    pub(crate) async fn delete(
        &self,
        call: &Call<'_>,
        options: &Options,
    ) -> ApiResult<Response<Body>> {
        let kind = call.resource.kind;
        match self
            .delete_one(call, call.name(), &call.key(), options)
            .await?
        {
            (Plan::Remove, object) => {
                let answer = deleted(kind, call.name(), meta_str(&object, "uid"));
                Ok(json_response(StatusCode::OK, answer.to_string()))
            }
            (_, object) => render::object(
                StatusCode::OK,
                &Object::Imagined(object),
                call,
                Timestamp::now(),
            ),
        }
    }

    pub(crate) async fn delete_collection(
        &self,
        call: &Call<'_>,
        options: &Options,
    ) -> ApiResult<Response<Body>> {
        let kind = call.resource.kind;
        let prefix = kind.prefix(call.resource.namespace.as_deref());
        let page = self.store.list(&prefix, None, usize::MAX, &mut |e| {
            call.selection.matches(e)
        });
        for entry in &page.entries {
            let name = entry.key.rsplit('/').next().unwrap_or_default();
            match self.delete_one(call, name, &entry.key, options).await {
                Ok(_) => {}
                Err(error) if error.code == StatusCode::NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
        let done =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        Ok(json_response(StatusCode::OK, done.to_string()))
    }

    /// Removes what a closed gate hides in a namespace that is about to go: nobody who empties the
    /// namespace can see it, and it would be there again with the gate, in another namespace of that
    /// name. With the gate closed nobody acts on it, so that no finalizer is worth waiting for.
    pub(crate) async fn remove_hidden(&self, namespace: &str) -> ApiResult<()> {
        for kind in self.registry.hidden().filter(|kind| kind.namespaced) {
            let prefix = kind.prefix(Some(namespace));
            let page = self.store.list(&prefix, None, usize::MAX, &mut |_| true);
            for entry in &page.entries {
                let write = Write::delete(&*entry.key, Expect::Present);
                match self.store.write(write).await {
                    Ok(_) | Err(WriteError::Conflict { .. }) => {}
                    Err(error) => return Err(ApiError::from_store(error)),
                }
            }
        }
        Ok(())
    }

    async fn delete_one(
        &self,
        call: &Call<'_>,
        name: &str,
        key: &str,
        options: &Options,
    ) -> ApiResult<(Plan, Value)> {
        let kind = call.resource.kind;
        if let Some(why) = kind.strategy.forbids_deletion(name) {
            let what = kind.qualified();
            return Err(ApiError::forbidden(format!(
                "{what} {name:?} is forbidden: {why}"
            )));
        }
        for _ in 0..TRIES {
            let entry = self
                .store
                .get(key)
                .ok_or_else(|| ApiError::not_found(kind, name))?;
            let stored = parse(&entry)?;
            let ask = call.ask();
            if !allows_object(&ask, &stored) {
                return Err(ApiError::forbidden(ask.refusal()));
            }
            options.preconditions.check(kind, &stored)?;
            let object = match options.finalizer() {
                Some(finalizer) => with_finalizer(stored.clone(), finalizer),
                None => stored.clone(),
            };
            let plan = match plan(
                kind.strategy,
                &object,
                options.grace_period_seconds,
                Timestamp::now(),
            ) {
                Plan::Unchanged if object != stored => Plan::Mark(Box::new(object.clone())),
                plan => plan,
            };
            let change = match &plan {
                Plan::Unchanged => return Ok((plan, object)),
                Plan::Mark(marked) if options.dry_run() => {
                    let marked = (**marked).clone();
                    return Ok((plan, marked));
                }
                Plan::Remove if options.dry_run() => return Ok((plan, object)),
                Plan::Remove => Change::Delete(Some(encode(object.clone(), &self.mark))),
                Plan::Mark(marked) => Change::Put(encode((**marked).clone(), &self.mark)),
            };
            let write = Write {
                key: key.to_owned(),
                expect: Expect::At(entry.modified),
                also: Vec::new(),
                change,
                reserve: true,
            };
            match self.store.write(write).await {
                Ok(entry) => return Ok((plan, parse(&entry)?)),
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(ApiError::from_store(error)),
            }
        }
        Err(ApiError::conflict(
            kind,
            name,
            "the object keeps changing; try again",
        ))
    }
}

/// Decides what a deletion does. The grace period may shrink while the object is going, never grow.
fn plan(strategy: &dyn Strategy, object: &Value, requested: Option<i64>, now: Timestamp) -> Plan {
    let held = has_finalizers(object) || strategy.keeps_deleted(object);
    let grace = strategy.grace(object, requested);
    let mut marked = object.clone();
    if is_terminating(object) {
        let pointer = "/metadata/deletionGracePeriodSeconds";
        let current = object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        let wanted = match (grace, requested) {
            (None, _) => 0,
            // Asking again without a period changes nothing.
            (Some(_), None) => current,
            (Some(grace), Some(_)) => grace,
        };
        if wanted == 0 && !held {
            return Plan::Remove;
        }
        if wanted >= current {
            return Plan::Unchanged;
        }
        let end = parse_time(meta_str(object, "deletionTimestamp")).unwrap_or(now);
        let less = SignedDuration::from_secs(current.saturating_sub(wanted));
        let shortened = end.checked_sub(less).unwrap_or(Timestamp::MIN);
        // Never into the past: what is overdue gets a last second, unless none was asked for.
        let (end, seconds_left) = if shortened < now {
            (now, wanted.min(1))
        } else {
            (shortened, wanted)
        };
        let meta = meta_mut(&mut marked);
        meta.insert("deletionTimestamp".into(), seconds(end).into());
        meta.insert("deletionGracePeriodSeconds".into(), seconds_left.into());
        return Plan::Mark(Box::new(marked));
    }
    // No longer than time can be written down.
    let longest = Timestamp::MAX.duration_since(now);
    let grace = grace.unwrap_or(0).min(longest.as_secs());
    if grace == 0 && !held {
        return Plan::Remove;
    }
    let end = now + SignedDuration::from_secs(grace);
    let meta = meta_mut(&mut marked);
    meta.insert("deletionTimestamp".into(), seconds(end).into());
    meta.insert("deletionGracePeriodSeconds".into(), grace.into());
    if let Some(generation) = meta.get("generation").and_then(Value::as_i64) {
        meta.insert("generation".into(), (generation + 1).into());
    }
    strategy.on_deletion(&mut marked);
    Plan::Mark(Box::new(marked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;
    use belay_api::gates::FeatureGates;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn pod(metadata: &Value) -> Value {
        let spec = json!({"nodeName": "n", "terminationGracePeriodSeconds": 30});
        json!({"metadata": metadata, "spec": spec})
    }

    fn check(plural: &str, object: &Value, requested: Option<i64>) -> Plan {
        let registry = Registry::new(&FeatureGates::default());
        let strategy = registry.by_plural(plural).unwrap().strategy;
        plan(strategy, object, requested, NOW.parse().unwrap())
    }

    fn marked(plan: Plan) -> (String, i64) {
        let Plan::Mark(object) = plan else {
            panic!("{plan:?}")
        };
        let seconds = object["metadata"]["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap();
        (meta_str(&object, "deletionTimestamp").to_owned(), seconds)
    }

    #[test]
    fn a_running_pod_is_marked_and_a_config_map_goes_at_once() {
        let at = "2026-01-01T00:01:30Z".to_owned();
        assert_eq!(marked(check("pods", &pod(&json!({})), None)), (at, 30));
        assert_eq!(check("pods", &pod(&json!({})), Some(0)), Plan::Remove);
        assert_eq!(
            check("configmaps", &json!({"metadata": {}}), None),
            Plan::Remove
        );
        let held = json!({"metadata": {"finalizers": ["a/b"]}});
        assert_eq!(marked(check("configmaps", &held, None)).1, 0);
    }

    #[test]
    fn grace_may_shrink_and_never_grows() {
        let going = pod(&json!({
            "deletionTimestamp": "2026-01-01T00:01:20Z", "deletionGracePeriodSeconds": 30}));
        assert_eq!(check("pods", &going, None), Plan::Unchanged);
        assert_eq!(check("pods", &going, Some(60)), Plan::Unchanged);
        let at = "2026-01-01T00:01:05Z".to_owned();
        assert_eq!(marked(check("pods", &going, Some(15))), (at, 15));
        assert_eq!(marked(check("pods", &going, Some(2))), (NOW.to_owned(), 1));
        assert_eq!(check("pods", &going, Some(0)), Plan::Remove);
    }

    #[test]
    fn a_grace_beyond_all_time_ends_with_time() {
        let endless = check("pods", &pod(&json!({})), Some(i64::MAX));
        let (end, seconds) = marked(endless);
        assert!(end.starts_with("9999-12-30T"), "{end}");
        let going = pod(&json!({
            "deletionTimestamp": end, "deletionGracePeriodSeconds": seconds}));
        let at = "2026-01-01T00:01:10Z".to_owned();
        assert_eq!(marked(check("pods", &going, Some(10))), (at, 10));
        let odd = pod(&json!({
            "deletionTimestamp": NOW, "deletionGracePeriodSeconds": i64::MAX}));
        assert_eq!(marked(check("pods", &odd, Some(5))), (NOW.to_owned(), 1));
    }

    #[test]
    fn finalizers_keep_even_a_forced_deletion() {
        let held = pod(&json!({"finalizers": ["a/b"]}));
        assert_eq!(marked(check("pods", &held, Some(0))).1, 0);
        let going = pod(&json!({"finalizers": ["a/b"],
            "deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0}));
        assert_eq!(check("pods", &going, Some(0)), Plan::Unchanged);
    }

    #[test]
    fn a_namespace_terminates_until_its_finalizer_is_gone() {
        let namespace = json!({"metadata": {}, "spec": {"finalizers": ["kubernetes"]}});
        let Plan::Mark(object) = check("namespaces", &namespace, None) else {
            panic!()
        };
        assert_eq!(object["status"]["phase"], "Terminating");
    }
}
