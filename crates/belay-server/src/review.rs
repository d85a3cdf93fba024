//! Questions that are asked by creating an object and answered in its status: who am I, what may I
//! do, may they. Nothing is stored.

use belay_api::rbac::PolicyRule;
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::{Answer, Api, json as json_response};
use crate::audit::Record;
use crate::authority::{OPEN_PATHS, Right};
use crate::identity::{Identity, Role};
use crate::query::{Query, form};
use crate::route::Verb;
use crate::status::{ApiError, ApiResult};
use crate::write::decode_object;

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// A kind of question.
#[derive(Debug)]
pub(crate) struct Review {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) namespaced: bool,
    question: Question,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    WhoAmI,
    MayI,
    WhatMayI,
    MayThey,
    MayTheyHere,
}

const fn review(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    question: Question,
) -> Review {
    Review {
        group,
        version: "v1",
        kind,
        plural,
        singular,
        namespaced: matches!(question, Question::MayTheyHere),
        question,
    }
}

/// All of them, in the order discovery shows them.
pub(crate) static REVIEWS: [Review; 5] = [
    review(
        AUTHENTICATION,
        "SelfSubjectReview",
        "selfsubjectreviews",
        "selfsubjectreview",
        Question::WhoAmI,
    ),
    review(
        AUTHORIZATION,
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        Question::MayTheyHere,
    ),
    review(
        AUTHORIZATION,
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        Question::MayI,
    ),
    review(
        AUTHORIZATION,
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        Question::WhatMayI,
    ),
    review(
        AUTHORIZATION,
        "SubjectAccessReview",
        "subjectaccessreviews",
        "subjectaccessreview",
        Question::MayThey,
    ),
];

/// The question that a path asks, and in which namespace.
pub(crate) fn find<'a>(
    group: &str,
    version: &str,
    rest: &[&'a str],
) -> Option<(&'static Review, Option<&'a str>)> {
    let (namespace, plural) = match rest {
        ["namespaces", namespace, plural] => (Some(*namespace), *plural),
        [plural] => (None, *plural),
        _ => return None,
    };
    let review = REVIEWS
        .iter()
        .find(|r| r.group == group && r.version == version && r.plural == plural)?;
    (review.namespaced == namespace.is_some()).then_some((review, namespace))
}

impl Review {
    pub(crate) fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Everybody may ask about themselves; about others needs a right.
    fn about_oneself(&self) -> bool {
        match self.question {
            Question::WhoAmI | Question::MayI | Question::WhatMayI => true,
            Question::MayThey | Question::MayTheyHere => false,
        }
    }
}

impl Api {
    pub(crate) fn answer_review(
        &self,
        who: &Identity,
        (review, namespace): (&'static Review, Option<&str>),
        parts: &http::request::Parts,
        query: &Query,
        body: &Bytes,
        record: &mut Record,
    ) -> ApiResult<Answer> {
        record.set_review(review, namespace);
        if parts.method != Method::POST {
            return Err(ApiError::method_not_allowed(&parts.method));
        }
        form(&parts.headers)?;
        let right = Right {
            verb: Verb::Create.as_str(),
            group: review.group,
            resource: review.plural,
            subresource: None,
            namespace,
            name: None,
        };
        let allowed = review.about_oneself() && !who.is_anonymous() || self.may(who, &right);
        if !allowed {
            return Err(ApiError::forbidden(right.refusal(who)));
        }
        let mut warnings = Vec::new();
        let mut object = decode_object(
            &parts.headers,
            query,
            body,
            (review.kind, &review.api_version()),
            &mut warnings,
        )?;
        let spec = object.get("spec").cloned().unwrap_or_default();
        object["status"] = match review.question {
            Question::WhoAmI => json!({"userInfo": {
                "username": who.name,
                "groups": who.all_groups().collect::<Vec<_>>(),
            }}),
            Question::MayI => self.decide(who, &spec)?,
            Question::WhatMayI => self.list_rules(who, &spec)?,
            Question::MayThey => self.decide(&subject(&spec)?, &spec)?,
            Question::MayTheyHere => {
                let asked = spec.pointer("/resourceAttributes/namespace");
                if asked.and_then(Value::as_str) != namespace {
                    return Err(ApiError::bad_request(
                        "spec.resourceAttributes.namespace must be the namespace in the path",
                    ));
                }
                self.decide(&subject(&spec)?, &spec)?
            }
        };
        if object.get("metadata").is_none() {
            object["metadata"] = json!({});
        }
        Ok(json_response(StatusCode::CREATED, object.to_string()).into())
    }

    fn decide(&self, who: &Identity, spec: &Value) -> ApiResult<Value> {
        let field = |object: &'_ Value, name: &str| {
            let text = object.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let resource = spec.get("resourceAttributes").filter(|v| v.is_object());
        let path = spec.get("nonResourceAttributes").filter(|v| v.is_object());
        let allowed = match (resource, path) {
            (Some(asked), None) => {
                let text = |name| field(asked, name);
                let (subresource, namespace, name) =
                    (text("subresource"), text("namespace"), text("name"));
                let right = Right {
                    verb: &text("verb").unwrap_or_default(),
                    group: &text("group").unwrap_or_default(),
                    resource: &text("resource").unwrap_or_default(),
                    subresource: subresource.as_deref(),
                    namespace: namespace.as_deref(),
                    name: name.as_deref(),
                };
                self.may(who, &right)
            }
            (None, Some(asked)) => {
                let verb = field(asked, "verb").unwrap_or_default();
                let path = field(asked, "path").unwrap_or_default();
                self.may_path(who, &verb, &path)
            }
            _ => {
                return Err(ApiError::bad_request(
                    "exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be \
                     set",
                ));
            }
        };
        Ok(json!({"allowed": allowed}))
    }

    fn list_rules(&self, who: &Identity, spec: &Value) -> ApiResult<Value> {
        let namespace = spec.get("namespace").and_then(Value::as_str);
        let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) else {
            return Err(ApiError::bad_request("spec.namespace must be set"));
        };
        let mut rules = vec![
            PolicyRule::on(
                &[AUTHORIZATION],
                &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                &["create"],
            ),
            PolicyRule::on(&[AUTHENTICATION], &["selfsubjectreviews"], &["create"]),
            PolicyRule::on_paths(&OPEN_PATHS, &["get"]),
        ];
        let fixed = match who.role() {
            Role::Nobody => None,
            Role::Admin => {
                rules.push(PolicyRule::on(&["*"], &["*"], &["*"]));
                rules.push(PolicyRule::on_paths(&["*"], &["*"]));
                None
            }
            Role::Node(_) | Role::Controller | Role::ControlPlane => {
                Some("what this identity may by the server's fixed rules is not listed")
            }
        };
        rules.extend(self.rbac.rules_for(&self.store, who, Some(namespace)));
        let (on_paths, on_resources): (Vec<_>, Vec<_>) = rules
            .into_iter()
            .partition(|rule| !rule.non_resource_urls.is_empty());
        let mut status = json!({
            "resourceRules": on_resources,
            "nonResourceRules": on_paths,
            "incomplete": fixed.is_some(),
        });
        if let Some(why) = fixed {
            status["evaluationError"] = why.into();
        }
        Ok(status)
    }
}

/// Whom a question about others means.
fn subject(spec: &Value) -> ApiResult<Identity> {
    let name = spec.get("user").and_then(Value::as_str).unwrap_or_default();
    let groups: Vec<String> = spec
        .get("groups")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|group| group.as_str().map(str::to_owned))
        .collect();
    if name.is_empty() && groups.is_empty() {
        return Err(ApiError::bad_request(
            "at least one of spec.user and spec.groups must be set",
        ));
    }
    Ok(Identity::user(name, &groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_asked_where_it_belongs() {
        let found = |path: &[&'static str]| {
            find(AUTHORIZATION, "v1", path).map(|(review, namespace)| (review.kind, namespace))
        };
        assert_eq!(
            found(&["selfsubjectaccessreviews"]),
            Some(("SelfSubjectAccessReview", None))
        );
        assert_eq!(
            found(&["namespaces", "a", "localsubjectaccessreviews"]),
            Some(("LocalSubjectAccessReview", Some("a")))
        );
        assert_eq!(found(&["localsubjectaccessreviews"]), None);
        assert_eq!(found(&["namespaces", "a", "subjectaccessreviews"]), None);
        assert_eq!(found(&["selfsubjectreviews"]), None, "of another group");
    }
}
