//! Answers in the form the client asked for: JSON, a table, metadata only.

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::api::{Body, Call, Object, json as json_response};
use crate::query::Form;
use crate::read::Listing;
use crate::registry::Kind;
use crate::status::{ApiError, ApiResult};

/// How much of each object a table row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

pub(crate) fn object(
    code: StatusCode,
    object: &Object,
    call: &Call<'_>,
    now: Timestamp,
) -> ApiResult<Response<Body>> {
    Ok(match call.form {
        Form::Json => json_response(code, object.bytes()),
        Form::Metadata => json_response(code, metadata_only(&object.value()?).to_string()),
        Form::Table => {
            let value = object.value()?;
            let kind = call.resource.kind;
            let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
            let rows = vec![row(kind, &value, include(call)?, now)];
            json_response(code, table(kind, &rows, &metadata, true).to_string())
        }
    })
}

pub(crate) fn list(
    code: StatusCode,
    listing: &Listing,
    call: &Call<'_>,
) -> ApiResult<Response<Body>> {
    let kind = call.resource.kind;
    let mut metadata = json!({"resourceVersion": listing.revision.to_string()});
    if let Some(next) = &listing.next {
        metadata["continue"] = next.as_str().into();
        metadata["remainingItemCount"] = listing.remaining.into();
    }
    if call.form == Form::Json {
        // Stored objects are JSON already: the list is put together without parsing any.
        let mut out = Vec::with_capacity(
            256 + listing
                .entries
                .iter()
                .map(|e| e.value.len() + 1)
                .sum::<usize>(),
        );
        let head = format!(
            "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
            kind.kind,
            kind.api_version()
        );
        out.extend_from_slice(head.as_bytes());
        for (index, entry) in listing.entries.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&entry.value);
        }
        out.extend_from_slice(b"]}");
        return Ok(json_response(code, Bytes::from(out)));
    }
    let values = listing
        .entries
        .iter()
        .map(|e| crate::api::parse(e))
        .collect::<ApiResult<Vec<Value>>>()?;
    let body = if call.form == Form::Table {
        let (include, now) = (include(call)?, Timestamp::now());
        let rows: Vec<Value> = values.iter().map(|v| row(kind, v, include, now)).collect();
        table(kind, &rows, &metadata, true)
    } else {
        json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "items": values.iter().map(metadata_only).collect::<Vec<_>>(),
        })
    };
    Ok(json_response(code, body.to_string()))
}

fn include(call: &Call<'_>) -> ApiResult<Include> {
    match call.query.get("includeObject") {
        None | Some("Metadata") => Ok(Include::Metadata),
        Some("None") => Ok(Include::None),
        Some("Object") => Ok(Include::Object),
        Some(other) => Err(ApiError::bad_request(format!(
            "query parameter includeObject: {other:?} is unknown"
        ))),
    }
}

pub(crate) fn row(kind: &Kind, object: &Value, include: Include, now: Timestamp) -> Value {
    let mut row = Map::new();
    row.insert("cells".into(), (kind.cells)(object, now).into());
    match include {
        Include::None => None,
        Include::Metadata => row.insert("object".into(), metadata_only(object)),
        Include::Object => row.insert("object".into(), object.clone()),
    };
    Value::Object(row)
}

pub(crate) fn table(kind: &Kind, rows: &[Value], metadata: &Value, columns: bool) -> Value {
    let definitions: Vec<Value> = if columns {
        kind.columns
            .iter()
            .map(|c| {
                json!({
                    "name": c.name,
                    "type": "string",
                    "format": c.format,
                    "description": c.description,
                    "priority": c.priority,
                })
            })
            .collect()
    } else {
        Vec::new()
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_default(),
    })
}
