//! Acting as somebody else: `kubectl --as`.
//!
//! Whoever has the right to `impersonate` that user, and each of the groups, is treated as them
//! from then on. The audit log names both.

use http::HeaderMap;

use crate::api::Api;
use crate::authority::Right;
use crate::identity::Identity;
use crate::status::{ApiError, ApiResult};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// Whom the headers ask to be, if anybody.
fn wanted(headers: &HeaderMap) -> ApiResult<Option<Identity>> {
    let unsupported = headers
        .keys()
        .map(http::HeaderName::as_str)
        .find(|name| *name == UID || name.starts_with(EXTRA));
    if let Some(name) = unsupported {
        return Err(ApiError::bad_request(format!(
            "{name} is not supported by this server: its users have no UID and no extra \
             information; impersonate a user, and groups"
        )));
    }
    let text = |value: &http::HeaderValue| {
        let text = value.to_str().map(str::to_owned);
        text.map_err(|_| ApiError::bad_request("an impersonation header is not plain text"))
    };
    let mut users = headers.get_all(USER).iter();
    let user = users.next().map(text).transpose()?;
    let user = user.filter(|name| !name.is_empty());
    if users.next().is_some() {
        return Err(ApiError::bad_request(
            "only one user can be impersonated at a time",
        ));
    }
    let groups = headers.get_all(GROUP).iter().map(text);
    let groups = groups.collect::<ApiResult<Vec<String>>>()?;
    match user {
        Some(name) => Ok(Some(Identity::user(&name, &groups))),
        None if groups.is_empty() => Ok(None),
        None => Err(ApiError::bad_request(
            "groups can be impersonated only together with a user (kubectl: --as beside \
             --as-group)",
        )),
    }
}

impl Api {
    /// Whom `requester` acts as: themselves, unless the headers say otherwise and they may.
    pub(crate) fn impersonate(
        &self,
        requester: &Identity,
        headers: &HeaderMap,
    ) -> ApiResult<Option<Identity>> {
        let Some(target) = wanted(headers)? else {
            return Ok(None);
        };
        let account = target.name.strip_prefix("system:serviceaccount:");
        let (resource, namespace, name) = match account.and_then(|rest| rest.split_once(':')) {
            Some((namespace, name)) => ("serviceaccounts", Some(namespace), name),
            None => ("users", None, target.name.as_str()),
        };
        let groups = target.groups.iter().map(|group| ("groups", None, &**group));
        for (resource, namespace, name) in
            std::iter::once((resource, namespace, name)).chain(groups)
        {
            let right = Right {
                verb: "impersonate",
                group: "",
                resource,
                subresource: None,
                namespace,
                name: Some(name),
            };
            if !self.may(requester, &right) {
                return Err(ApiError::forbidden(right.refusal(requester)));
            }
        }
        Ok(Some(target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&'static str, &'static str)]) -> Result<Option<Identity>, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, http::HeaderValue::from_static(value));
        }
        wanted(&map).map_err(|error| error.message)
    }

    #[test]
    fn a_user_and_groups_can_be_asked_for_and_nothing_else() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[(USER, "ann")]), Ok(Some(Identity::user("ann", &[]))));
        let groups = ["a".to_owned(), "b".to_owned()];
        assert_eq!(
            read(&[(USER, "ann"), (GROUP, "a"), (GROUP, "b")]),
            Ok(Some(Identity::user("ann", &groups)))
        );
        for refused in [
            &[(GROUP, "a")][..],
            &[(USER, "ann"), (USER, "bob")],
            &[(USER, "ann"), (UID, "1")],
            &[(USER, "ann"), ("impersonate-extra-scopes", "x")],
            &[("impersonate-extra-scopes", "x")],
        ] {
            assert!(read(refused).is_err(), "{refused:?}");
        }
    }
}
