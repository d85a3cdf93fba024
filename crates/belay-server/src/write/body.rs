//! What a request carries, read from the form it came in: JSON, or Kubernetes' protobuf.

use belay_api::decode::{self, FieldValidation};
use belay_api::protobuf::{self, Envelope, ProtobufError};
use belay_api::schema;
use bytes::Bytes;
use serde_json::Value;

use crate::api::Call;
use crate::query::{Query, content_type};
use crate::registry::Kind;
use crate::status::{ApiError, ApiResult};

/// The object in a body, of the kind that the path names.
pub(super) fn decode_body(
    call: &Call<'_>,
    body: &Bytes,
    kind: &Kind,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let of = (kind.kind, &*kind.api_version());
    decode_object(call.headers, call.query, body, of, warnings)
}

/// The object in a body, of a kind and `apiVersion`.
pub(crate) fn decode_object(
    headers: &http::HeaderMap,
    query: &Query,
    body: &Bytes,
    (kind, api_version): (&str, &str),
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let schema =
        schema::of(kind).ok_or_else(|| ApiError::internal(format!("{kind} has no schema")))?;
    let validation = query.field_validation()?;
    let decoded = match content_type(headers) {
        "" | "application/json" => decode::decode(body, schema, validation)
            .map_err(|e| ApiError::bad_request(e.to_string()))?,
        protobuf::CONTENT_TYPE => {
            let envelope = Envelope::open(body).map_err(|e| protobuf_error(&e))?;
            // Read as another kind, its fields would get the wrong names.
            expect("apiVersion", envelope.api_version, api_version)?;
            expect("kind", envelope.kind, kind)?;
            let decoded = envelope.read(schema, validation);
            decoded.map_err(|e| protobuf_error(&e))?
        }
        other => {
            return Err(ApiError::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json, application/vnd.kubernetes.protobuf (got {other:?})"
            )));
        }
    };
    warnings.extend(decoded.warnings);
    let mut object = decoded.value;
    if !object.is_object() {
        return Err(ApiError::bad_request("the body must be a JSON object"));
    }
    for (field, expected) in [("apiVersion", api_version), ("kind", kind)] {
        let sent = object.get(field).and_then(Value::as_str);
        expect(field, sent.unwrap_or_default(), expected)?;
        object[field] = expected.into();
    }
    Ok(object)
}

/// A body that says how to do something: options, or a binding. In protobuf it is of `kind`, in
/// whatever group: clients send such kinds in the group of what they are about.
pub(crate) fn decode_argument(call: &Call<'_>, body: &Bytes, kind: &str) -> ApiResult<Value> {
    if content_type(call.headers) != protobuf::CONTENT_TYPE {
        return serde_json::from_slice(body)
            .map_err(|e| ApiError::bad_request(format!("the body is not valid JSON: {e}")));
    }
    let schema =
        schema::of(kind).ok_or_else(|| ApiError::internal(format!("{kind} has no schema")))?;
    let envelope = Envelope::open(body).map_err(|e| protobuf_error(&e))?;
    expect("kind", envelope.kind, kind)?;
    let decoded = envelope.read(schema, FieldValidation::Ignore);
    Ok(decoded.map_err(|e| protobuf_error(&e))?.value)
}

fn expect(field: &str, sent: &str, expected: &str) -> ApiResult<()> {
    if sent.is_empty() || sent == expected {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the {field} in the data ({sent}) does not match the expected {field} ({expected})"
    )))
}

/// A body that is not what its media type says has the wrong type; a damaged one is a bad request.
fn protobuf_error(error: &ProtobufError) -> ApiError {
    match error {
        ProtobufError::NoEnvelope | ProtobufError::Encoded(_) | ProtobufError::NoMessage { .. } => {
            ApiError::unsupported_media_type(error.to_string())
        }
        ProtobufError::Damaged { .. } | ProtobufError::Value(_) => {
            ApiError::bad_request(error.to_string())
        }
    }
}
