//! What every handler works with: the store, the registry, and how a request finds its handler.

use std::sync::Arc;
use std::time::Duration;

use belay_api::gates::FeatureGates;
use belay_store::{Entry, Store};
use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::upgrade::OnUpgrade;
use jiff::Timestamp;
use serde_json::Value;

use crate::audit::{Audit, Record};
use crate::authority::Ask;
use crate::delete::Options;
use crate::identity::{Identity, Tokens};
use crate::metrics::Metrics;
use crate::object::{Meta, RevisionMark};
use crate::pki::Pki;
use crate::query::{Form, Query, form};
use crate::rbac::Rbac;
use crate::registry::{Registry, World};
use crate::route::{Health, Resource, Route, Verb, route};
use crate::select::Selection;
use crate::sessions::{is_connection, unserved};
use crate::status::{ApiError, ApiResult};
use crate::{discovery, openapi, render};

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The API, independent of how requests reach it.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) store: Store<Meta>,
    pub(crate) registry: Registry,
    pub(crate) gates: FeatureGates,
    pub(crate) mark: RevisionMark,
    pub(crate) tokens: Tokens,
    pub(crate) rbac: Rbac,
    pub(crate) pki: Pki,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Audit,
    /// Made when it is first asked for: it costs a whole document for each group version.
    pub(crate) openapi_index: std::sync::OnceLock<Value>,
    /// How often a quiet watch that asked for bookmarks gets one.
    pub(crate) bookmark_every: Duration,
    /// Cancelled when the server stops: ends watches, which would otherwise hold connections open.
    pub(crate) stopping: tokio_util::sync::CancellationToken,
}

/// One authorised request on a resource.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) who: &'a Identity,
    pub(crate) verb: Verb,
    pub(crate) resource: &'a Resource,
    pub(crate) query: &'a Query,
    pub(crate) headers: &'a http::HeaderMap,
    pub(crate) selection: Selection,
    pub(crate) form: Form,
}

impl Call<'_> {
    pub(crate) fn ask(&self) -> Ask<'_> {
        Ask {
            who: self.who,
            verb: self.verb,
            group: self.resource.kind.group,
            resource: self.resource.kind.plural,
            subresource: self.resource.subresource.as_deref(),
            namespace: self.resource.namespace.as_deref(),
            name: self.resource.name.as_deref(),
            fields: &self.selection.exact,
        }
    }

    /// The name in the path. Routing guarantees it for the verbs that need one.
    pub(crate) fn name(&self) -> &str {
        self.resource.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn key(&self) -> String {
        self.resource
            .kind
            .key(self.resource.namespace.as_deref(), self.name())
    }
}

/// An object as an answer: what is stored, or what would have been.
#[derive(Debug)]
pub(crate) enum Object {
    Stored(Arc<Entry<Meta>>),
    Imagined(Value),
}

impl Object {
    pub(crate) fn value(&self) -> ApiResult<Value> {
        match self {
            Self::Stored(entry) => parse(entry),
            Self::Imagined(value) => Ok(value.clone()),
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Stored(entry) => entry.value.clone(),
            Self::Imagined(value) => Bytes::from(value.to_string()),
        }
    }
}

/// A stored object as JSON.
pub(crate) fn parse(entry: &Entry<Meta>) -> ApiResult<Value> {
    serde_json::from_slice(&entry.value)
        .map_err(|e| ApiError::internal(format!("{} is not readable JSON: {e}", entry.key)))
}

/// What a handler answers before it becomes HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Body>,
    /// The object written, for the audit log.
    pub(crate) about: Option<String>,
    /// Its name, which the path of a creation does not have.
    pub(crate) name: Option<String>,
}

impl From<Response<Body>> for Answer {
    fn from(response: Response<Body>) -> Self {
        Self {
            response,
            about: None,
            name: None,
        }
    }
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub(crate) fn json(code: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = code;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn text(code: StatusCode, body: &'static str) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

/// How many warnings an answer has, and how long one may be, in bytes: clients give up on too many
/// headers.
const WARNINGS: usize = 16;
const WARNING_BYTES: usize = 1024;

/// The warnings that fit, and how many do not.
fn told(mut warnings: Vec<String>) -> Vec<String> {
    if warnings.len() > WARNINGS {
        let left_out = warnings.len() - (WARNINGS - 1);
        warnings.truncate(WARNINGS - 1);
        warnings.push(format!("and {left_out} further warnings"));
    }
    for warning in &mut warnings {
        if warning.len() > WARNING_BYTES {
            warning.truncate(warning.floor_char_boundary(WARNING_BYTES));
            warning.push_str("...");
        }
    }
    warnings
}

impl World for Api {
    fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        let kind = self.registry.by_plural(plural)?;
        let entry = self.store.get(&kind.key(namespace, name))?;
        parse(&entry).ok()
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

impl Api {
    /// Who is asking: the connection's certificate, else a bearer token, else nobody.
    ///
    /// # Errors
    /// A credential that is given and wrong is refused; it is never treated as absent.
    pub(crate) fn authenticate(
        &self,
        connection: Option<&Identity>,
        headers: &http::HeaderMap,
    ) -> ApiResult<Identity> {
        if let Some(identity) = connection {
            return Ok(identity.clone());
        }
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Ok(Identity::anonymous());
        };
        value
            .to_str()
            .ok()
            .and_then(|v| v.strip_prefix("Bearer "))
            .and_then(|token| self.tokens.identify(token.trim()))
            .ok_or_else(ApiError::unauthorized)
    }

    /// Answers one request. Never fails: errors become `metav1.Status`.
    pub(crate) async fn handle(
        &self,
        connection: Option<&Identity>,
        parts: &http::request::Parts,
        body: Bytes,
    ) -> Response<Body> {
        let started = std::time::Instant::now();
        let mut record = Record::new(parts);
        let result = self.dispatch(connection, parts, body, &mut record).await;
        let mut response = match result {
            Ok(answer) => {
                record.set_about(answer.about.as_deref());
                record.name = record.name.take().or(answer.name);
                answer.response
            }
            Err(error) => {
                record.set_message(&error.message);
                let mut response = json(error.code, error.status().to_string());
                if error.code == StatusCode::UNAUTHORIZED {
                    let challenge = HeaderValue::from_static("Bearer");
                    response
                        .headers_mut()
                        .insert(header::WWW_AUTHENTICATE, challenge);
                }
                response
            }
        };
        if parts.method == Method::HEAD {
            *response.body_mut() = full("");
        }
        record.code = response.status().as_u16();
        self.metrics.request(&record, started.elapsed());
        self.audit.write(record);
        response
    }

    async fn dispatch(
        &self,
        connection: Option<&Identity>,
        parts: &http::request::Parts,
        body: Bytes,
        record: &mut Record,
    ) -> ApiResult<Answer> {
        let requester = self.authenticate(connection, &parts.headers)?;
        record.user.clone_from(&requester.name);
        let found = route(parts.uri.path(), &self.registry);
        // Health and version are all that a stranger may see, not even which paths exist.
        let open = matches!(found, Ok(Route::Health(_) | Route::Version));
        if requester.is_anonymous() && !open {
            return Err(ApiError::unauthorized());
        }
        let who = match self.impersonate(&requester, &parts.headers)? {
            Some(target) => {
                record.acts_as = Some(target.name.clone());
                target
            }
            None => requester,
        };
        let query = Query::parse(parts.uri.query());
        match found? {
            Route::Resource(resource) => {
                self.on_resource(&who, parts, &query, &resource, body, record)
                    .await
            }
            Route::Review { review, namespace } => {
                let asked = (review, namespace.as_deref());
                self.answer_review(&who, asked, parts, &query, &body, record)
            }
            other if matches!(parts.method, Method::GET | Method::HEAD) => {
                let path = parts.uri.path();
                if !open && !self.may_path(&who, "get", path) {
                    let user = &who.name;
                    return Err(ApiError::forbidden(format!(
                        "forbidden: User {user:?} cannot get path {path:?}"
                    )));
                }
                self.on_static(&other, &parts.headers).map(Answer::from)
            }
            _ => Err(ApiError::method_not_allowed(&parts.method)),
        }
    }

    fn on_static(&self, route: &Route, headers: &http::HeaderMap) -> ApiResult<Response<Body>> {
        let answer = |value: Value| Ok(json(StatusCode::OK, value.to_string()));
        match route {
            Route::Resource(_) | Route::Review { .. } => Err(ApiError::no_such_path()),
            Route::Health(Health::Live) => Ok(text(StatusCode::OK, "ok")),
            // The store is open and replayed before the listener exists, so what answers is ready
            // until it stops.
            Route::Health(Health::Ready) if self.stopping.is_cancelled() => {
                Ok(text(StatusCode::SERVICE_UNAVAILABLE, "stopping"))
            }
            Route::Health(Health::Ready) => Ok(text(StatusCode::OK, "ok")),
            Route::Metrics => {
                let mut response = Response::new(full(self.metrics.text(&self.store)));
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
                Ok(response)
            }
            Route::Version => answer(discovery::version()),
            Route::Root => answer(discovery::root(&self.registry)),
            Route::CoreVersions => answer(discovery::core_versions()),
            Route::Groups => answer(discovery::groups(&self.registry)),
            Route::Group(name) => {
                answer(discovery::group(&self.registry, name).ok_or_else(ApiError::no_such_path)?)
            }
            Route::GroupVersion { group, version } => answer(
                discovery::resources(&self.registry, group, version)
                    .ok_or_else(ApiError::no_such_path)?,
            ),
            Route::OpenApiV2 => {
                let mut response = Response::new(full(openapi::EMPTY_V2));
                response.headers_mut().insert(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static(openapi::V2_CONTENT_TYPE),
                );
                Ok(response)
            }
            Route::OpenApiIndex => answer(
                self.openapi_index
                    .get_or_init(|| openapi::index(&self.registry))
                    .clone(),
            ),
            Route::OpenApi { group, version } => {
                // kubectl asks for JSON; nothing else is produced.
                form(headers)?;
                answer(
                    openapi::document(&self.registry, group, version)
                        .ok_or_else(ApiError::no_such_path)?,
                )
            }
        }
    }

    async fn on_resource(
        &self,
        who: &Identity,
        parts: &http::request::Parts,
        query: &Query,
        resource: &Resource,
        body: Bytes,
        record: &mut Record,
    ) -> ApiResult<Answer> {
        let watch = query.flag("watch")? && resource.subresource.is_none();
        let connects = is_connection(resource.subresource.as_deref());
        let verb = match parts.method {
            // A connection is the same right with every method that can begin one.
            Method::GET | Method::POST if connects => Verb::Create,
            _ => Verb::of(&parts.method, resource.name.is_some(), watch)?,
        };
        record.set_resource(resource, verb, who);
        // Connections are opened all the same, as on a stock server. A value that is not known is
        // refused where it matters.
        record.dry_run = verb.writes() && !connects && query.dry_run().unwrap_or(false);
        let mut selection = Selection::parse(resource.kind, query)?;
        if let (Verb::Watch, Some(name)) = (verb, &resource.name) {
            // A watch on one object is a watch on the collection with its name selected.
            selection.only(name);
        }
        let form = if connects || resource.subresource.as_deref() == Some("log") {
            Form::Json
        } else {
            form(&parts.headers)?
        };
        let call = Call {
            who,
            verb,
            resource,
            query,
            headers: &parts.headers,
            selection,
            form,
        };
        let ask = call.ask();
        if !self.may_ask(&ask) {
            return Err(ApiError::forbidden(ask.refusal()));
        }
        let mut warnings = Vec::new();
        let subresource = resource.subresource.as_deref();
        let mut answer = match (verb, subresource) {
            (Verb::Get, Some("log")) => self.log(&call).await?.into(),
            (Verb::Get, None | Some("status")) => render::object(
                StatusCode::OK,
                &Object::Stored(self.get(&call)?),
                &call,
                Timestamp::now(),
            )?
            .into(),
            (Verb::List, None) => self.list(&call)?.into(),
            (Verb::Watch, None) => self.watch(call)?.into(),
            (Verb::Create, None) if resource.name.is_none() => {
                let object = self.create(&call, &body, &mut warnings).await?;
                self.written(StatusCode::CREATED, &object, &call)?
            }
            (Verb::Create, Some("exec")) => {
                let upgrade = parts.extensions.get::<OnUpgrade>().cloned();
                self.exec(&call, upgrade).await?
            }
            (Verb::Create, Some(unknown)) if connects => return Err(unserved(unknown)),
            (Verb::Create, Some(_)) => self.act(&call, &body).await?.into(),
            // The other subresources are actions and connections, not parts of an object.
            (Verb::Update, None | Some("status" | "finalize")) => {
                let object = self.replace(&call, &body, &mut warnings).await?;
                self.written(StatusCode::OK, &object, &call)?
            }
            (Verb::Patch, None | Some("status" | "finalize")) => {
                let object = self.patch(&call, &body, &mut warnings).await?;
                self.written(StatusCode::OK, &object, &call)?
            }
            (Verb::DeleteCollection, _) if !resource.goes_at_once() => {
                return Err(ApiError::method_not_allowed(&parts.method));
            }
            (Verb::Delete | Verb::DeleteCollection, None) => {
                let options = Options::of(&call, &body)?;
                record.dry_run = options.dry_run();
                match verb {
                    Verb::Delete => self.delete(&call, &options).await?.into(),
                    _ => self.delete_collection(&call, &options).await?.into(),
                }
            }
            _ => return Err(ApiError::method_not_allowed(&parts.method)),
        };
        for warning in told(warnings) {
            // 299 is "miscellaneous persistent warning"; the text must stay on one line.
            let text = warning
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace(['\n', '\r'], " ");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                answer.response.headers_mut().append(header::WARNING, value);
            }
        }
        Ok(answer)
    }

    fn written(&self, code: StatusCode, object: &Object, call: &Call<'_>) -> ApiResult<Answer> {
        let response = render::object(code, object, call, Timestamp::now())?;
        let audited = call.resource.kind.audited;
        let about = if audited.is_empty() {
            None
        } else {
            let value = object.value()?;
            let text = |pointer: &str| {
                let asked = value.pointer(pointer)?;
                Some(
                    asked
                        .as_str()
                        .map_or_else(|| asked.to_string(), str::to_owned),
                )
            };
            Some(
                audited
                    .iter()
                    .filter_map(|p| text(p))
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        let name = match object {
            Object::Stored(entry) => entry.key.rsplit('/').next().map(str::to_owned),
            Object::Imagined(_) => None,
        };
        Ok(Answer {
            response,
            about,
            name,
        })
    }
}
