//! `pods/log`: passed on to the agent of the pod's node.

use belay_api::field::{Errors, FieldError, Path};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};

use crate::agents::{container, refusal};
use crate::api::{Api, Body, Call, full, parse};
use crate::object::{meta_str, name};
use crate::query::Query;
use crate::status::{ApiError, ApiResult};

const PASSED_ON: [&str; 7] = [
    "follow",
    "previous",
    "tailLines",
    "sinceSeconds",
    "sinceTime",
    "timestamps",
    "limitBytes",
];

impl Api {
    pub(crate) async fn log(&self, call: &Call<'_>) -> ApiResult<Response<Body>> {
        check(call)?;
        let pod = parse(&*self.get(call)?)?;
        let container = container(&pod, call.query.get("container"))?;
        if pod.pointer("/spec/nodeName").is_none() {
            // Nothing was said anywhere: that is no error, as on a stock server.
            return Ok(plain(full("")));
        }
        let node = self.node_of(&pod)?;
        let path = format!(
            "/containerLogs/{}/{}/{container}?{}",
            meta_str(&pod, "namespace"),
            call.name(),
            passed_on(call.query),
        );
        let request = Request::get(path)
            .body(Empty::new())
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let answer = self.ask_agent(&node, request).await.map_err(|error| {
            let node = name(&node);
            ApiError::bad_gateway(format!(
                "cannot get logs from the agent of node {node}: {error}"
            ))
        })?;
        if answer.status() != StatusCode::OK {
            return Err(refusal(answer).await);
        }
        let body = answer
            .into_body()
            .map_err(std::io::Error::other)
            .boxed_unsync();
        Ok(plain(body))
    }
}

fn plain(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let plain = http::HeaderValue::from_static("text/plain");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, plain);
    response
}

/// Refuses options that mean nothing, in the words of a stock server.
fn check(call: &Call<'_>) -> ApiResult<()> {
    let query = call.query;
    let mut errors = Errors::new();
    for (field, least, words) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
    ] {
        if let Some(value) = query.number::<i64>(field)?
            && value < least
        {
            errors.push(FieldError::invalid(&Path::new(field), value, words));
        }
    }
    if query.get("sinceSeconds").is_some() && query.get("sinceTime").is_some() {
        let words = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(FieldError::forbidden(&Path::root(), words));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid_options(
            "PodLogOptions",
            call.name(),
            &errors,
        ))
    }
}

/// The options of the request that the agent has to know.
fn passed_on(query: &Query) -> String {
    let mut out = form_urlencoded::Serializer::new(String::new());
    for name in PASSED_ON {
        if let Some(value) = query.get(name) {
            out.append_pair(name, value);
        }
    }
    out.finish()
}
