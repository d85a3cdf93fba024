//! Query parameters and headers, parsed once into what handlers need. Pure.

use std::str::FromStr;

use belay_api::decode::FieldValidation;
use belay_api::selector::{FieldSelector, LabelSelector};
use http::HeaderMap;

use crate::status::{ApiError, ApiResult};

/// The query string, decoded, in order.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(raw: Option<&str>) -> Self {
        Self(
            form_urlencoded::parse(raw.unwrap_or_default().as_bytes())
                .map(|(k, v)| (k.into_owned(), v.into_owned()))
                .collect(),
        )
    }

    /// The first non-empty value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, v)| k == name && !v.is_empty())
            .map(|(_, v)| v.as_str())
    }

    /// Every value of a parameter, the empty ones too.
    pub(crate) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// A parameter that is true or false; without a value it is true, as on a stock server.
    pub(crate) fn flag(&self, name: &str) -> ApiResult<bool> {
        match self.all(name).next() {
            None => Ok(false),
            Some("" | "1" | "true" | "True" | "TRUE") => Ok(true),
            Some("0" | "false" | "False" | "FALSE") => Ok(false),
            Some(other) => Err(ApiError::bad_request(format!(
                "query parameter {name}: {other:?} is not true or false"
            ))),
        }
    }

    pub(crate) fn number<T: FromStr>(&self, name: &str) -> ApiResult<Option<T>> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| {
                    ApiError::bad_request(format!("query parameter {name}: {text:?} is no number"))
                })
            })
            .transpose()
    }

    pub(crate) fn dry_run(&self) -> ApiResult<bool> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => Err(ApiError::bad_request(format!(
                "query parameter dryRun: unsupported value {other:?}: supported values: \"All\""
            ))),
        }
    }

    pub(crate) fn field_validation(&self) -> ApiResult<FieldValidation> {
        self.get("fieldValidation")
            .unwrap_or_default()
            .parse()
            .map_err(|e| ApiError::bad_request(format!("query parameter fieldValidation: {e}")))
    }

    pub(crate) fn label_selector(&self) -> ApiResult<Option<LabelSelector>> {
        self.get("labelSelector")
            .map(|text| {
                text.parse().map_err(|e| {
                    ApiError::bad_request(format!("unable to parse labelSelector {text:?}: {e}"))
                })
            })
            .transpose()
    }

    pub(crate) fn field_selector(&self) -> ApiResult<Option<FieldSelector>> {
        self.get("fieldSelector")
            .map(|text| {
                text.parse().map_err(|e| {
                    ApiError::bad_request(format!("unable to parse fieldSelector {text:?}: {e}"))
                })
            })
            .transpose()
    }
}

/// The form an answer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Table,
    /// `PartialObjectMetadata`, alone or in a list.
    Metadata,
}

/// Picks the first form of the `Accept` header that can be produced.
pub(crate) fn form(headers: &HeaderMap) -> ApiResult<Form> {
    let Some(accept) = headers.get(http::header::ACCEPT) else {
        return Ok(Form::Json);
    };
    let accept = accept.to_str().map_err(|_| ApiError::not_acceptable())?;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        if !matches!(media, "" | "*/*" | "application/*" | "application/json") {
            continue;
        }
        match parts.find_map(|p| p.strip_prefix("as=")) {
            None => return Ok(Form::Json),
            Some("Table") => return Ok(Form::Table),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                return Ok(Form::Metadata);
            }
            Some(_) => {}
        }
    }
    Err(ApiError::not_acceptable())
}

/// The media type of the request body, without parameters.
pub(crate) fn content_type(headers: &HeaderMap) -> &str {
    headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split(';').next())
        .map_or("", str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, value.parse().unwrap());
        form(&headers).ok()
    }

    #[test]
    fn the_first_form_that_can_be_produced_wins() {
        assert_eq!(
            accept("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            Some(Form::Table)
        );
        assert_eq!(
            accept("application/vnd.kubernetes.protobuf,application/json"),
            Some(Form::Json)
        );
        assert_eq!(
            accept(
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
            ),
            Some(Form::Json)
        );
        assert_eq!(accept("*/*"), Some(Form::Json));
        assert_eq!(accept("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(accept("text/html"), None);
    }

    #[test]
    fn a_flag_is_set_by_its_name_alone() {
        for (raw, set) in [
            ("", false),
            ("watch", true),
            ("watch=", true),
            ("watch=1", true),
            ("watch=false", false),
        ] {
            assert_eq!(
                Query::parse(Some(raw)).flag("watch").ok(),
                Some(set),
                "{raw}"
            );
        }
        assert!(Query::parse(Some("watch=maybe")).flag("watch").is_err());
    }

    #[test]
    fn unknown_values_of_known_parameters_are_refused() {
        for raw in [
            "dryRun=some",
            "fieldValidation=x",
            "labelSelector=a in",
            "fieldSelector=a",
        ] {
            let q = Query::parse(Some(raw));
            let refused = q.dry_run().is_err()
                || q.field_validation().is_err()
                || q.label_selector().is_err()
                || q.field_selector().is_err();
            assert!(refused, "{raw}");
        }
    }
}
