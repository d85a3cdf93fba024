//! Errors as Kubernetes tells them: `metav1.Status`. The only place where an error becomes HTTP.

use belay_api::field::Errors;
use belay_store::WriteError;
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::registry::Kind;

/// A refused request: HTTP code, machine-readable reason, a message that says what to fix.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) code: StatusCode,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    details: Map<String, Value>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Map::new(),
        }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        if !name.is_empty() {
            self.details.insert("name".into(), name.into());
        }
        if !kind.group.is_empty() {
            self.details.insert("group".into(), kind.group.into());
        }
        self.details.insert("kind".into(), kind.plural.into());
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.qualified());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(kind, name)
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(kind, name)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            kind.qualified()
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(kind, name)
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, errors: &Errors) -> Self {
        let mut error = Self::invalid_options(&kind.kind_with_group(), name, errors);
        let causes = error.details.remove("causes").unwrap_or_default();
        error = error.about(kind, name);
        error.details.insert("kind".into(), kind.kind.into());
        error.details.insert("causes".into(), causes);
        error
    }

    /// Parameters of a request that cannot be meant.
    pub(crate) fn invalid_options(kind: &str, name: &str, errors: &Errors) -> Self {
        let more = match errors.left_out() {
            0 => None,
            count => Some(format!("and {count} more")),
        };
        let list = match &errors[..] {
            [one] => one.to_string(),
            many => {
                let mut texts: Vec<String> = many.iter().map(ToString::to_string).collect();
                texts.extend(more.clone());
                format!("[{}]", texts.join(", "))
            }
        };
        let message = format!("{kind} {name:?} is invalid: {list}");
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        error.details.insert("name".into(), name.into());
        error.details.insert("kind".into(), kind.into());
        let mut causes: Vec<Value> = errors
            .iter()
            .map(|e| {
                let (reason, message, field) = e.cause();
                json!({"reason": reason, "message": message, "field": field})
            })
            .collect();
        causes.extend(more.map(|more| json!({"message": more})));
        error.details.insert("causes".into(), causes.into());
        error
    }

    /// What was asked is well formed and cannot be done to this object.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    pub(crate) fn method_not_allowed(method: &http::Method) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            format!("{method} is not allowed on the requested resource"),
        )
    }

    /// Something that a stock server has and this one does not.
    pub(crate) fn unserved(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    pub(crate) fn not_acceptable() -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "only application/json (also as=Table and as=PartialObjectMetadata) can be produced here",
        )
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// A client has seen what is not here: this data is older than it, say from a backup. Clients
    /// know the cause by its name and start over.
    pub(crate) fn too_large_revision(asked: u64, newest: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {newest}");
        let mut error = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        error.details.insert("causes".into(), json!([cause]));
        error.details.insert("retryAfterSeconds".into(), 1.into());
        error
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("the request body is larger than {limit} bytes"),
        )
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(crate) fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "ServiceUnavailable", message)
    }

    /// What a failed store write means to the caller of `name`. Conflicts are the caller's to
    /// explain, because only it knows what it expected.
    pub(crate) fn from_store<M>(error: WriteError<M>) -> Self
    where
        WriteError<M>: std::fmt::Display,
    {
        match error {
            WriteError::Conflict { ref key, .. } => Self::new(
                StatusCode::CONFLICT,
                "Conflict",
                format!("{key} has changed"),
            ),
            WriteError::Full { .. } => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "InsufficientStorage",
                error.to_string(),
            ),
            _ => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                error.to_string(),
            ),
        }
    }

    /// The `metav1.Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        }
        status
    }
}

/// The answer to a deletion that left nothing behind.
pub(crate) fn deleted(kind: &Kind, name: &str, uid: &str) -> Value {
    let mut details = json!({"name": name, "kind": kind.plural, "uid": uid});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}
