//! From a URL path to what is meant by it. Pure; knows the registry, no kind by name.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::registry::{Kind, Registry};
use crate::review::{self, Review};
use crate::status::{ApiError, ApiResult};

/// Where a request goes.
#[derive(Debug)]
pub(crate) enum Route {
    Resource(Resource),
    /// A question that is answered and not stored.
    Review {
        review: &'static Review,
        namespace: Option<String>,
    },
    Health(Health),
    Version,
    Metrics,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(String),
    /// `/api/v1` or `/apis/GROUP/VERSION`
    GroupVersion {
        group: String,
        version: String,
    },
    /// `/openapi/v2`
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiIndex,
    /// `/openapi/v3/...`
    OpenApi {
        group: String,
        version: String,
    },
    /// `/`
    Root,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Ready,
    Live,
}

/// One resource, collection or object, as the path names it.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) kind: &'static Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Resource {
    /// Whether one request may delete all of this collection. None empties the whole cluster of
    /// what is in namespaces, and none deletes all namespaces, as on a stock server.
    pub(crate) fn goes_at_once(&self) -> bool {
        self.kind.deleted_as_collection() && self.kind.namespaced == self.namespace.is_some()
    }
}

/// What the caller wants to do, in the words of authorisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// The verb that is written like this.
    pub(crate) fn named(text: &str) -> Option<Self> {
        [
            Self::Get,
            Self::List,
            Self::Watch,
            Self::Create,
            Self::Update,
            Self::Patch,
            Self::Delete,
            Self::DeleteCollection,
        ]
        .into_iter()
        .find(|verb| verb.as_str() == text)
    }

    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// The verb of a method on a collection or an object.
    pub(crate) fn of(method: &Method, named: bool, watch: bool) -> ApiResult<Self> {
        Ok(match (method.as_str(), named) {
            ("GET" | "HEAD", _) if watch => Self::Watch,
            ("GET" | "HEAD", true) => Self::Get,
            ("GET" | "HEAD", false) => Self::List,
            // A POST to a named object is a POST to a subresource; `handle` refuses the rest.
            ("POST", _) => Self::Create,
            ("PUT", true) => Self::Update,
            ("PATCH", true) => Self::Patch,
            ("DELETE", true) => Self::Delete,
            ("DELETE", false) => Self::DeleteCollection,
            _ => return Err(ApiError::method_not_allowed(method)),
        })
    }
}

/// Parses a request path.
pub(crate) fn route(path: &str, registry: &Registry) -> ApiResult<Route> {
    let segments = segments(path)?;
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    Ok(match parts.as_slice() {
        [] => Route::Root,
        ["readyz", ..] => Route::Health(Health::Ready),
        ["livez" | "healthz", ..] => Route::Health(Health::Live),
        ["version"] => Route::Version,
        ["metrics"] => Route::Metrics,
        ["openapi", "v2"] => Route::OpenApiV2,
        ["openapi", "v3"] => Route::OpenApiIndex,
        ["openapi", "v3", "api", version] => Route::OpenApi {
            group: String::new(),
            version: (*version).to_owned(),
        },
        ["openapi", "v3", "apis", group, version] => Route::OpenApi {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
        },
        ["api"] => Route::CoreVersions,
        ["apis"] => Route::Groups,
        ["apis", group] => Route::Group((*group).to_owned()),
        ["api", version] => Route::GroupVersion {
            group: String::new(),
            version: (*version).to_owned(),
        },
        ["apis", group, version] => Route::GroupVersion {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
        },
        ["api", version, rest @ ..] => Route::Resource(resource(registry, "", version, rest)?),
        ["apis", group, version, rest @ ..] => match review::find(group, version, rest) {
            Some((review, namespace)) => Route::Review {
                review,
                namespace: namespace.map(str::to_owned),
            },
            None => Route::Resource(resource(registry, group, version, rest)?),
        },
        _ => return Err(ApiError::no_such_path()),
    })
}

fn segments(path: &str) -> ApiResult<Vec<String>> {
    path.split('/')
        .filter(|s| !s.is_empty())
        .map(|s| {
            let text = percent_decode_str(s)
                .decode_utf8()
                .map_err(|_| ApiError::bad_request("the request path is not UTF-8"))?;
            // A decoded slash or NUL must never reach a storage key.
            if text.contains(['/', '\0']) || text == "." || text == ".." {
                return Err(ApiError::bad_request(format!(
                    "{text:?} cannot be part of a path"
                )));
            }
            Ok(text.into_owned())
        })
        .collect()
}

fn resource(registry: &Registry, group: &str, version: &str, rest: &[&str]) -> ApiResult<Resource> {
    let owned = |s: &&str| Some((*s).to_owned());
    // `namespaces/NAME/status` is the object's subresource, `namespaces/NAME/pods` a collection.
    let (namespace, plural, name, subresource) = match rest {
        ["namespaces"] => (None, "namespaces", None, None),
        ["namespaces", name] => (None, "namespaces", owned(name), None),
        ["namespaces", name, sub @ ("status" | "finalize")] => {
            (None, "namespaces", owned(name), owned(sub))
        }
        ["namespaces", ns, plural] => (owned(ns), *plural, None, None),
        ["namespaces", ns, plural, name] => (owned(ns), *plural, owned(name), None),
        ["namespaces", ns, plural, name, sub] => (owned(ns), *plural, owned(name), owned(sub)),
        [plural] => (None, *plural, None, None),
        [plural, name] => (None, *plural, owned(name), None),
        [plural, name, sub] => (None, *plural, owned(name), owned(sub)),
        _ => return Err(ApiError::no_such_path()),
    };
    let kind = registry
        .find(group, version, plural)
        .ok_or_else(ApiError::no_such_path)?;
    let scoped_right = if kind.namespaced {
        // Only the whole collection may be addressed across namespaces.
        namespace.is_some() || name.is_none()
    } else {
        namespace.is_none()
    };
    let known = subresource
        .as_deref()
        .is_none_or(|s| kind.subresources.contains(&s));
    if !scoped_right || !known {
        return Err(ApiError::no_such_path());
    }
    Ok(Resource {
        kind,
        namespace,
        name,
        subresource,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_api::gates::FeatureGates;

    /// Plural, namespace, name and subresource.
    type Parsed = (String, Option<String>, Option<String>, Option<String>);

    fn check(path: &str) -> Option<Parsed> {
        let registry = Registry::new(&FeatureGates::default());
        match route(path, &registry) {
            Ok(Route::Resource(r)) => {
                Some((r.kind.plural.to_owned(), r.namespace, r.name, r.subresource))
            }
            _ => None,
        }
    }

    #[test]
    fn paths_name_collections_objects_and_subresources() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(
            check("/api/v1/pods"),
            Some(("pods".into(), None, None, None))
        );
        assert_eq!(
            check("/api/v1/namespaces/a/pods/b/status"),
            Some(("pods".into(), some("a"), some("b"), some("status")))
        );
        assert_eq!(
            check("/api/v1/namespaces/a"),
            Some(("namespaces".into(), None, some("a"), None))
        );
        assert_eq!(
            check("/apis/apps.k8s.io/v1alpha1/namespaces/a/podnotifications"),
            Some(("podnotifications".into(), some("a"), None, None))
        );
    }

    #[test]
    fn paths_that_mean_nothing_are_refused() {
        for path in [
            "/api/v1/pods/x",
            "/api/v1/namespaces/a/nodes/n",
            "/api/v1/namespaces/a/pods/b/nonsense",
            "/api/v2/pods",
            "/apis/apps/v1/deployments",
            "/api/v1/namespaces/a/pods/b/status/c",
            "/api/v1/namespaces/a%2fb/pods",
            "/api/v1/namespaces/../pods/%00",
        ] {
            assert_eq!(check(path), None, "{path}");
        }
    }
}
