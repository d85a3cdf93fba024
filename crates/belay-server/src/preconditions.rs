//! What a caller may insist on: that an object is still the one it has seen.

use serde::Deserialize;
use serde_json::Value;

use crate::object::{meta_str, name};
use crate::registry::Kind;
use crate::status::{ApiError, ApiResult};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Preconditions {
    /// Those that the metadata of an argument states about the object that it is for.
    pub(crate) fn of(argument: &Value) -> Self {
        let stated = |field| match meta_str(argument, field) {
            "" => None,
            text => Some(text.to_owned()),
        };
        Self {
            uid: stated("uid"),
            resource_version: stated("resourceVersion"),
        }
    }

    pub(crate) fn check(&self, kind: &Kind, object: &Value) -> ApiResult<()> {
        for (wanted, field) in [
            (&self.uid, "uid"),
            (&self.resource_version, "resourceVersion"),
        ] {
            let actual = meta_str(object, field);
            if let Some(wanted) = wanted.as_deref().filter(|w| *w != actual) {
                let why = format!(
                    "the {field} in the precondition ({wanted}) does not match the {field} in record ({actual}). The object might have been deleted and then recreated"
                );
                return Err(ApiError::conflict(kind, name(object), &why));
            }
        }
        Ok(())
    }
}
