//! Writing: create, replace, patch and subresource actions.
//!
//! Every write is a loop of read, decide, conditional write. A conflict means that somebody was
//! faster: a caller that named a resource version is told so, for all others the decision is made
//! again on the newer object.

mod body;
mod remarks;

use belay_api::decode::{self, FieldValidation};
use belay_api::metadata;
use belay_api::schema::{self, Schema};
use belay_store::{Change, Entry, Expect, Write, WriteError};
use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admission::admit_result;
use crate::api::{Api, Body, Call, Object, json as json_response, parse};
use crate::authority::{allows_change, allows_object};
use crate::object::{
    Meta, encode, has_finalizers, is_terminating, meta_mut, meta_str, name, seconds,
};
use crate::query::content_type;
use crate::registry::{Kind, Remark};
use crate::status::{ApiError, ApiResult};
use body::decode_body;
pub(crate) use body::{decode_argument, decode_object};

/// How often a write that may be decided again is tried before the caller is asked to.
const TRIES: usize = 64;
const GENERATED_SUFFIX: usize = 5;
const GENERATED_PREFIX: usize = 58;

const CHANGED: &str = "the object has been modified; please apply your changes to the latest \
                       version and try again";

/// The refusal of a name that is in use.
fn taken(kind: &Kind, name: &str, current: Option<&Entry<Meta>>) -> ApiError {
    let terminating = current
        .and_then(|entry| parse(entry).ok())
        .is_some_and(|object| is_terminating(&object));
    let mut error = ApiError::already_exists(kind, name);
    if terminating {
        error.message = format!("object is being deleted: {}", error.message);
    }
    error
}

impl Api {
    pub(crate) async fn create(
        &self,
        call: &Call<'_>,
        body: &Bytes,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Object> {
        let kind = call.resource.kind;
        let object = decode_body(call, body, kind, warnings)?;
        let generated =
            meta_str(&object, "name").is_empty() && !meta_str(&object, "generateName").is_empty();
        for attempt in 1.. {
            let (object, remarks, new_warnings) = self.complete_new(call, object.clone())?;
            if attempt == 1 {
                warnings.extend(new_warnings);
            }
            let name = name(&object).to_owned();
            let own_key = kind.key(call.resource.namespace.as_deref(), &name);
            let mut also = self.namespace_expectation(call)?;
            also.extend(self.need_expectation(call, &object)?);
            if call.query.dry_run()? {
                return match self.store.get(&own_key) {
                    Some(current) if !generated => Err(taken(kind, &name, Some(&current))),
                    _ => Ok(Object::Imagined(object)),
                };
            }
            let write = Write {
                key: own_key.clone(),
                expect: Expect::Absent,
                also,
                change: Change::Put(encode(object, &self.mark)),
                reserve: false,
            };
            match self.store.write(write).await {
                Ok(entry) => {
                    self.remark(call, &entry, remarks).await;
                    return Ok(Object::Stored(entry));
                }
                // The namespace, or what it needs, changed in between: look at it again.
                Err(WriteError::Conflict { key, .. }) if key != own_key && attempt < TRIES => {}
                // A generated name that is taken is no fault of the caller's.
                Err(WriteError::Conflict { .. }) if generated && attempt < TRIES => {}
                Err(WriteError::Conflict { current, .. }) => {
                    return Err(taken(kind, &name, current.as_deref()));
                }
                Err(error) => return Err(ApiError::from_store(error)),
            }
        }
        Err(ApiError::internal("ran out of generated names"))
    }

    /// A decoded new object with everything the server adds, checked.
    fn complete_new(
        &self,
        call: &Call<'_>,
        mut object: Value,
    ) -> ApiResult<(Value, Vec<Remark>, Vec<String>)> {
        let kind = call.resource.kind;
        let rules = kind.strategy.rules();
        let namespace = call.resource.namespace.as_deref();
        let meta = meta_mut(&mut object);
        if meta
            .get("resourceVersion")
            .and_then(Value::as_str)
            .is_some_and(|v| !v.is_empty())
        {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        for field in [
            "resourceVersion",
            "uid",
            "selfLink",
            "generation",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
        ] {
            meta.remove(field);
        }
        match namespace {
            Some(path) => {
                let sent = meta.get("namespace").and_then(Value::as_str);
                same_namespace(sent.unwrap_or_default(), path)?;
                meta.insert("namespace".into(), path.into());
            }
            None => {
                meta.remove("namespace");
            }
        }
        if kind.namespaced && namespace.is_none() {
            return Err(ApiError::bad_request(format!(
                "an empty namespace may not be set during creation of {}; name one in the path",
                kind.plural
            )));
        }
        let given = meta.get("name").and_then(Value::as_str).unwrap_or_default();
        let prefix = meta
            .get("generateName")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if given.is_empty() && !prefix.is_empty() {
            let generated = generate_name(prefix);
            meta.insert("name".into(), generated.into());
        }
        meta.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
        meta.insert("creationTimestamp".into(), seconds(Timestamp::now()).into());
        if kind.generation {
            meta.insert("generation".into(), 1.into());
        }
        // What a closed gate takes away is not worth a warning.
        rules.drop_disabled(&mut object, None, &self.gates);
        let mut warnings = rules.warnings_before_default(&object, None);
        rules.default(&mut object);
        rules.prepare_create(&mut object);
        let mut errors = metadata::validate_create(&object, kind.name_rule, kind.namespaced);
        let review = rules.validate_create(&object, &self.gates);
        errors.append(review.errors);
        warnings.extend(review.warnings);
        if !errors.is_empty() {
            return Err(ApiError::invalid(kind, name(&object), &errors));
        }
        let ask = call.ask();
        if !allows_object(&ask, &object) || !allows_change(&ask, None, &object) {
            return Err(ApiError::forbidden(ask.refusal()));
        }
        self.admit(call, None, &object)?;
        let remarks = kind.strategy.on_create(&mut object, self);
        Ok((object, remarks, warnings))
    }

    /// New objects need a namespace that is there and not on its way out.
    fn namespace_expectation(&self, call: &Call<'_>) -> ApiResult<Vec<(String, Expect)>> {
        let Some(namespace) = call.resource.namespace.as_deref() else {
            return Ok(Vec::new());
        };
        let kind = self
            .registry
            .by_plural("namespaces")
            .ok_or_else(ApiError::no_such_path)?;
        let key = kind.key(None, namespace);
        let entry = self.store.get(&key).ok_or_else(|| no_namespace(call))?;
        if is_terminating(&parse(&entry)?) {
            return Err(ApiError::forbidden(format!(
                "unable to create new content in namespace {namespace} because it is being \
                 terminated"
            )));
        }
        Ok(vec![(key, Expect::At(entry.modified))])
    }

    /// What its kind says that a new object needs, there and not on its way out.
    fn need_expectation(
        &self,
        call: &Call<'_>,
        object: &Value,
    ) -> ApiResult<Option<(String, Expect)>> {
        let Some(needed) = call.resource.kind.strategy.needs(object) else {
            return Ok(None);
        };
        let gone = || {
            ApiError::forbidden(format!(
                "unable to create {}: it belongs to {} {:?} with UID {:?}, which is gone or being deleted",
                call.resource.kind.qualified(),
                needed.plural,
                needed.name,
                needed.uid
            ))
        };
        let kind = self.registry.by_plural(needed.plural).ok_or_else(gone)?;
        let key = kind.key(call.resource.namespace.as_deref(), &needed.name);
        let entry = self.store.get(&key).ok_or_else(gone)?;
        let found = parse(&entry)?;
        if meta_str(&found, "uid") != needed.uid || is_terminating(&found) {
            return Err(gone());
        }
        Ok(Some((key, Expect::At(entry.modified))))
    }

    pub(crate) async fn replace(
        &self,
        call: &Call<'_>,
        body: &Bytes,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Object> {
        let kind = call.resource.kind;
        let sent = decode_body(call, body, kind, warnings)?;
        let sent_name = name(&sent);
        if !sent_name.is_empty() && sent_name != call.name() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({sent_name}) does not match the name on the URL ({})",
                call.name()
            )));
        }
        if let Some(path) = call.resource.namespace.as_deref() {
            same_namespace(meta_str(&sent, "namespace"), path)?;
        }
        if meta_str(&sent, "resourceVersion").is_empty() && !kind.unconditional_update {
            let path = belay_api::field::Path::new("metadata").child("resourceVersion");
            let error =
                belay_api::field::FieldError::invalid(&path, 0, "must be specified for an update");
            return Err(ApiError::invalid(kind, call.name(), &error.into()));
        }
        self.update(call, warnings, |_| Ok(sent.clone())).await
    }

    pub(crate) async fn patch(
        &self,
        call: &Call<'_>,
        body: &Bytes,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Object> {
        let kind = call.resource.kind;
        let schema = schema_of(kind)?;
        let validation = call.query.field_validation()?;
        let style = PatchStyle::of(content_type(call.headers), kind)?;
        let patch: Value = serde_json::from_slice(body)
            .map_err(|e| ApiError::bad_request(format!("the patch is not valid JSON: {e}")))?;
        let mut found = Vec::new();
        let object = self
            .update(call, warnings, |current| {
                let mut next = current.clone();
                let failed = |e: belay_patch::PatchError| patch_error(&e);
                match style {
                    PatchStyle::Json => {
                        belay_patch::json_patch(&mut next, &patch).map_err(failed)?;
                    }
                    PatchStyle::Merge => {
                        if !patch.is_object() {
                            return Err(ApiError::bad_request("a merge patch must be an object"));
                        }
                        belay_patch::merge_patch(&mut next, &patch).map_err(failed)?;
                    }
                    PatchStyle::Strategic => {
                        belay_patch::strategic_merge(&mut next, &patch, schema.node())
                            .map_err(failed)?;
                    }
                }
                found = check(&mut next, schema, validation)?;
                let patched_name = name(&next);
                if patched_name != call.name() {
                    return Err(ApiError::bad_request(format!(
                        "the name of the object ({patched_name}) does not match the name on the \
                         URL ({})",
                        call.name()
                    )));
                }
                Ok(next)
            })
            .await?;
        warnings.append(&mut found);
        Ok(object)
    }

    /// The common way of every change to an existing object.
    async fn update(
        &self,
        call: &Call<'_>,
        warnings: &mut Vec<String>,
        mut change: impl FnMut(&Value) -> ApiResult<Value>,
    ) -> ApiResult<Object> {
        let kind = call.resource.kind;
        let key = call.key();
        for _ in 0..TRIES {
            let entry = self
                .store
                .get(&key)
                .ok_or_else(|| ApiError::not_found(kind, call.name()))?;
            let current = parse(&entry)?;
            let ask = call.ask();
            if !allows_object(&ask, &current) {
                return Err(ApiError::forbidden(ask.refusal()));
            }
            let sent = change(&current)?;
            let version = meta_str(&sent, "resourceVersion");
            let own = meta_str(&current, "resourceVersion");
            if !version.is_empty() && version != own {
                return Err(ApiError::conflict(kind, call.name(), CHANGED));
            }
            // A patch carries the version of what it was applied to without having asked for it.
            let insisted = !version.is_empty() && call.verb == crate::route::Verb::Update;
            let (next, new_warnings) = self.complete_update(call, &current, sent)?;
            if next == current {
                return Ok(Object::Stored(entry));
            }
            if call.query.dry_run()? {
                warnings.extend(new_warnings);
                return Ok(Object::Imagined(next));
            }
            let finished = is_terminating(&next)
                && !has_finalizers(&next)
                && !kind.strategy.keeps_deleted(&next)
                && next
                    .pointer("/metadata/deletionGracePeriodSeconds")
                    .and_then(Value::as_i64)
                    == Some(0);
            if finished && kind.strategy.is_place() {
                self.remove_hidden(call.name()).await?;
            }
            let reserve = leads_to_deletion(call.resource.subresource.as_deref(), &current, &next);
            let encoded = encode(next, &self.mark);
            let write = Write {
                key: key.clone(),
                expect: Expect::At(entry.modified),
                also: Vec::new(),
                change: if finished {
                    Change::Delete(Some(encoded))
                } else {
                    Change::Put(encoded)
                },
                reserve,
            };
            match self.store.write(write).await {
                Ok(entry) => {
                    warnings.extend(new_warnings);
                    return Ok(Object::Stored(entry));
                }
                Err(WriteError::Conflict { .. }) if insisted => {
                    return Err(ApiError::conflict(kind, call.name(), CHANGED));
                }
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(ApiError::from_store(error)),
            }
        }
        Err(ApiError::conflict(kind, call.name(), CHANGED))
    }

    /// What an update comes to: only what this path may change, checked against what was there.
    fn complete_update(
        &self,
        call: &Call<'_>,
        current: &Value,
        sent: Value,
    ) -> ApiResult<(Value, Vec<String>)> {
        let kind = call.resource.kind;
        let rules = kind.strategy.rules();
        let (sent_uid, uid) = (meta_str(&sent, "uid"), meta_str(current, "uid"));
        if !sent_uid.is_empty() && sent_uid != uid {
            let why = format!(
                "Precondition failed: UID in precondition: {sent_uid}, UID in object meta: {uid}"
            );
            return Err(ApiError::conflict(kind, call.name(), &why));
        }
        let mut next = match call.resource.subresource.as_deref() {
            Some(subresource) => {
                let mut next = current.clone();
                kind.strategy
                    .update_subresource(subresource, &mut next, &sent);
                next
            }
            None => {
                let mut next = sent;
                if kind.has_status() {
                    copy_or_remove(&mut next, current, "status");
                }
                next
            }
        };
        keep_system_metadata(&mut next, current);
        if let (Some(next), Some(old)) = (next.as_object_mut(), current.as_object()) {
            for field in ["apiVersion", "kind"] {
                if let Some(value) = old.get(field) {
                    next.insert(field.to_owned(), value.clone());
                }
            }
        }
        rules.drop_disabled(&mut next, Some(current), &self.gates);
        let mut warnings = match call.resource.subresource {
            None => rules.warnings_before_default(&next, Some(current)),
            Some(_) => Vec::new(),
        };
        rules.default(&mut next);
        if kind.generation && spec_changed(&next, current) {
            let generation = current
                .pointer("/metadata/generation")
                .and_then(Value::as_i64);
            meta_mut(&mut next).insert("generation".into(), (generation.unwrap_or(0) + 1).into());
        }
        let mut errors = metadata::validate_update(&next, current);
        let review = if call.resource.subresource.is_some() {
            rules.validate_status(&next, current)
        } else {
            rules.validate_update(&next, current, &self.gates)
        };
        errors.append(review.errors);
        warnings.extend(review.warnings);
        if errors.is_empty() {
            let ask = call.ask();
            if !allows_object(&ask, &next) || !allows_change(&ask, Some(current), &next) {
                return Err(ApiError::forbidden(ask.refusal()));
            }
            match call.resource.subresource {
                None => self.admit(call, Some(current), &next)?,
                Some(_) => admit_result(call, &next)?,
            }
            Ok((next, warnings))
        } else {
            Err(ApiError::invalid(kind, call.name(), &errors))
        }
    }

    /// A POST to a subresource: an action on the object.
    pub(crate) async fn act(
        &self,
        call: &Call<'_>,
        body: &Bytes,
    ) -> ApiResult<http::Response<Body>> {
        let kind = call.resource.kind;
        let subresource = call.resource.subresource.as_deref().unwrap_or_default();
        let body = decode_argument(call, body, "Binding")?;
        let key = call.key();
        for _ in 0..TRIES {
            let entry = self
                .store
                .get(&key)
                .ok_or_else(|| ApiError::not_found(kind, call.name()))?;
            let mut object = parse(&entry)?;
            match kind.strategy.act(subresource, &mut object, &body) {
                Some(done) => done?,
                None => return Err(ApiError::method_not_allowed(&http::Method::POST)),
            }
            if !call.query.dry_run()? {
                let write = Write {
                    key: key.clone(),
                    expect: Expect::At(entry.modified),
                    also: Vec::new(),
                    change: Change::Put(encode(object, &self.mark)),
                    reserve: false,
                };
                match self.store.write(write).await {
                    Ok(_) => {}
                    Err(WriteError::Conflict { .. }) => continue,
                    Err(error) => return Err(ApiError::from_store(error)),
                }
            }
            let done = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "code": 201,
            });
            return Ok(json_response(StatusCode::CREATED, done.to_string()));
        }
        Err(ApiError::conflict(kind, call.name(), CHANGED))
    }
}

#[derive(Debug, Clone, Copy)]
enum PatchStyle {
    Json,
    Merge,
    Strategic,
}

impl PatchStyle {
    fn of(content_type: &str, kind: &Kind) -> ApiResult<Self> {
        match content_type {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if kind.strategic_merge => Ok(Self::Strategic),
            "application/strategic-merge-patch+json" => {
                Err(ApiError::unsupported_media_type(format!(
                    "{} takes application/json-patch+json and application/merge-patch+json, not \
                     strategic merge patches",
                    kind.plural
                )))
            }
            "application/apply-patch+yaml" => Err(ApiError::unsupported_media_type(
                "this server has no server-side apply yet; use client-side apply (kubectl apply \
                 without --server-side)",
            )),
            other => Err(ApiError::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, \
                 application/strategic-merge-patch+json (got {other:?})"
            ))),
        }
    }
}

fn patch_error(error: &belay_patch::PatchError) -> ApiError {
    if error.is_malformed() {
        ApiError::bad_request(error.to_string())
    } else {
        ApiError::unprocessable(error.to_string())
    }
}

fn schema_of(kind: &Kind) -> ApiResult<&'static Schema> {
    schema::of(kind.kind).ok_or_else(|| ApiError::internal(format!("{} has no schema", kind.kind)))
}

fn check(
    value: &mut Value,
    schema: &Schema,
    validation: FieldValidation,
) -> ApiResult<Vec<String>> {
    decode::check(value, schema, validation).map_err(|e| ApiError::bad_request(e.to_string()))
}

/// An object may leave out the namespace that the path names; it cannot name another.
fn same_namespace(sent: &str, path: &str) -> ApiResult<()> {
    if sent.is_empty() || sent == path {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the namespace of the provided object does not match the namespace sent on the request \
         ({sent:?} and {path:?})"
    )))
}

fn no_namespace(call: &Call<'_>) -> ApiError {
    let namespace = call.resource.namespace.as_deref().unwrap_or_default();
    let mut error = ApiError::no_such_path();
    error.message = format!("namespaces {namespace:?} not found");
    error
}

/// A name that begins with `prefix`, in the alphabet Kubernetes uses: no vowels, so no words.
fn generate_name(prefix: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut cut = prefix.len().min(GENERATED_PREFIX);
    while !prefix.is_char_boundary(cut) {
        cut -= 1;
    }
    let random = uuid::Uuid::new_v4();
    let suffix = random.as_bytes()[..GENERATED_SUFFIX]
        .iter()
        .map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()]));
    prefix[..cut].chars().chain(suffix).collect()
}

/// Fields of `metadata` that only the server writes.
fn keep_system_metadata(next: &mut Value, current: &Value) {
    let old = crate::object::meta(current).cloned().unwrap_or_default();
    let meta = meta_mut(next);
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
    ] {
        match old.get(field) {
            Some(value) => meta.insert(field.to_owned(), value.clone()),
            None => meta.remove(field),
        };
    }
    meta.remove("managedFields");
    meta.remove("selfLink");
}

/// Whether an object cannot go before this is written: who holds it lets go, or reports what came of
/// it.
fn leads_to_deletion(subresource: Option<&str>, current: &Value, next: &Value) -> bool {
    let finalizers = |object: &Value| {
        let list = object.pointer("/metadata/finalizers");
        list.and_then(Value::as_array).map_or(0, Vec::len)
    };
    is_terminating(current) && (subresource.is_some() || finalizers(next) < finalizers(current))
}

fn copy_or_remove(next: &mut Value, current: &Value, field: &str) {
    if let Some(next) = next.as_object_mut() {
        match current.get(field) {
            Some(value) => next.insert(field.to_owned(), value.clone()),
            None => next.remove(field),
        };
    }
}

/// Whether anything but metadata and status differs: not every kind has a spec.
fn spec_changed(next: &Value, current: &Value) -> bool {
    let differs = |one: &Value, other: &Value| {
        let fields = one.as_object().into_iter().flatten();
        fields
            .filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"))
            .any(|(field, value)| other.get(field) != Some(value))
    };
    differs(next, current) || differs(current, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lets_a_deleted_object_go_may_use_the_last_of_the_disk() {
        let held = |finalizers: &[&str]| {
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": finalizers}})
        };
        let (two, one) = (held(&["a/b", "c/d"]), held(&["a/b"]));
        let there = json!({"metadata": {"finalizers": ["a/b"]}});
        assert!(leads_to_deletion(None, &two, &one));
        assert!(leads_to_deletion(Some("status"), &one, &one));
        assert!(!leads_to_deletion(None, &one, &one));
        assert!(!leads_to_deletion(None, &there, &json!({"metadata": {}})));
        assert!(!leads_to_deletion(Some("status"), &there, &there));
    }

    #[test]
    fn a_generated_name_keeps_its_prefix_and_its_length_in_bounds() {
        let name = generate_name("web-");
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        let long = generate_name(&"x".repeat(300));
        assert_eq!(long.len(), GENERATED_PREFIX + GENERATED_SUFFIX);
        generate_name(&"é".repeat(40));
    }
}
