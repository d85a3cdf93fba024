//! Which rights a notification needs, and which of them the caller does not have.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use serde::Serialize;

use crate::cli::NotifyArgs;
use crate::connect::Connection;

/// A verb on a resource of Belay's group, or on one object of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Right {
    verb: &'static str,
    resource: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

impl Right {
    /// The rule that would grant it, in words.
    pub(super) fn told(&self, namespace: &str) -> String {
        let object = self.name.as_deref();
        let object = object.map(|name| format!(" {name:?}")).unwrap_or_default();
        format!(
            "missing right: verb {:?} on {}.{}{object} in namespace {namespace}",
            self.verb,
            self.resource,
            belay_api::GROUP
        )
    }
}

/// What the command as it was written will do. With a selector it creates one Notification and
/// follows its children.
pub(super) fn needed(args: &NotifyArgs) -> Vec<Right> {
    let right = |verb, resource| Right {
        verb,
        resource,
        name: None,
    };
    let created = match args.selector {
        Some(_) => "notifications",
        None => "podnotifications",
    };
    let mut needed = vec![
        right("create", created),
        Right {
            name: Some(args.notifier.clone()),
            ..right("notify", "notifiers")
        },
    ];
    if !args.no_wait {
        for verb in ["list", "watch"] {
            needed.push(right(verb, created));
            if args.selector.is_some() {
                needed.push(right(verb, "podnotifications"));
            }
        }
        if !args.keep {
            needed.push(right("delete", created));
        }
    }
    needed
}

/// Those of `needed` that the server says the caller does not have.
///
/// # Errors
///
/// When the server does not tell.
pub(super) async fn missing(
    connection: &Connection,
    needed: Vec<Right>,
) -> anyhow::Result<Vec<Right>> {
    let api: Api<SelfSubjectAccessReview> = Api::all(connection.client.clone());
    let mut missing = Vec::new();
    for right in needed {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(belay_api::GROUP.to_owned()),
                    resource: Some(right.resource.to_owned()),
                    verb: Some(right.verb.to_owned()),
                    name: right.name.clone(),
                    namespace: Some(connection.namespace.clone()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = api
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| connection.explain(error))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(right);
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    fn told(args: &NotifyArgs) -> Vec<String> {
        needed(args)
            .iter()
            .map(|right| format!("{} {}", right.verb, right.resource))
            .collect()
    }

    #[test]
    fn what_is_needed_follows_what_will_be_done() {
        let mut asked = args(&["web"]);
        assert_eq!(
            told(&asked),
            [
                "create podnotifications",
                "notify notifiers",
                "list podnotifications",
                "watch podnotifications",
                "delete podnotifications"
            ]
        );
        asked.selector = Some("app=web".into());
        asked.keep = true;
        assert_eq!(
            told(&asked),
            [
                "create notifications",
                "notify notifiers",
                "list notifications",
                "list podnotifications",
                "watch notifications",
                "watch podnotifications"
            ]
        );
        asked.no_wait = true;
        assert_eq!(told(&asked), ["create notifications", "notify notifiers"]);
    }

    #[test]
    fn a_missing_right_reads_like_the_rule_that_grants_it() {
        let right = Right {
            verb: "notify",
            resource: "notifiers",
            name: Some("reload".into()),
        };
        assert_eq!(
            right.told("shop"),
            "missing right: verb \"notify\" on notifiers.apps.k8s.io \"reload\" in namespace shop"
        );
    }
}
