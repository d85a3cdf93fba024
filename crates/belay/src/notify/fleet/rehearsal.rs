//! `--dry-run` with a selector: what would run where, who does not declare it, which rights are
//! missing.

use belay_api::pod::Pod;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, ListParams, PostParams};

use super::{Wish, draft};
use crate::cli::NotifyArgs;
use crate::connect::Connection;
use crate::exit::Exit;
use crate::format::{self, Format};
use crate::notify::preview::preview;

/// Looks at the pods that match and at the rights; creates nothing.
pub(super) async fn run(
    connection: &Connection,
    args: &NotifyArgs,
    wish: &Wish,
    output: Option<Format>,
) -> anyhow::Result<Exit> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let params = ListParams::default().labels(&wish.selector.to_string());
    let list = api
        .list(&params)
        .await
        .map_err(|error| connection.explain(error))?;
    let (running, others): (Vec<Pod>, Vec<Pod>) = list
        .items
        .into_iter()
        .partition(|pod| pod.phase() == "Running" && !pod.is_terminating());
    let found: Vec<(String, Option<Pod>)> = running
        .into_iter()
        .map(|pod| (pod.name().to_owned(), Some(pod)))
        .collect();
    let named: Vec<(&str, Option<Pod>)> = found
        .iter()
        .map(|(name, pod)| (name.as_str(), pod.clone()))
        .collect();
    let preview = preview(&args.notifier, &named);
    match output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            format::print(&draft(args, wish), format)?;
        }
        Some(Format::Wide) | None => format::out(&preview.table.to_string())?,
    }
    for note in &preview.notes {
        format::note(note);
    }
    for pod in &others {
        let why = if pod.is_terminating() {
            "being deleted"
        } else {
            pod.phase()
        };
        format::note(&format!(
            "pod {} is {why}; it would not be notified",
            pod.name()
        ));
    }
    if named.is_empty() {
        format::note(&format!(
            "no running pod matches {:?} in namespace {}",
            wish.text, connection.namespace
        ));
    }
    let allowed = rights(connection, &args.notifier).await;
    Ok(match preview.exit {
        exit @ (Exit::Nothing | Exit::Usage | Exit::Failed) => exit,
        Exit::Done if allowed => Exit::Done,
        Exit::Done => Exit::Failed,
    })
}

/// Says which rights are missing; whether none is known to be.
async fn rights(connection: &Connection, notifier: &str) -> bool {
    let mut allowed = true;
    for (verb, resource, name) in [
        ("create", "notifications", None),
        ("notify", "notifiers", Some(notifier)),
    ] {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(belay_api::GROUP.to_owned()),
                    resource: Some(resource.to_owned()),
                    verb: Some(verb.to_owned()),
                    name: name.map(str::to_owned),
                    namespace: Some(connection.namespace.clone()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(connection.client.clone());
        match api.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => {
                allowed = false;
                let object = name.map(|name| format!(" {name:?}")).unwrap_or_default();
                format::note(&format!(
                    "missing right: verb {verb:?} on {resource}.{}{object} in namespace {}",
                    belay_api::GROUP,
                    connection.namespace
                ));
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => {
                format::note("rights could not be checked: this server answers no access reviews");
                return allowed;
            }
            Err(error) => {
                let why = connection.explain(error);
                format::note(&format!("rights could not be checked: {why:#}"));
                return allowed;
            }
        }
    }
    allowed
}
