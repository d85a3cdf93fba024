//! `belay manifests`: everything that a stock cluster needs, as one document to apply.
//!
//! The objects are templates, because their comments are for whoever reads what they are about to
//! install; tests hold them to the types of Kubernetes and to the names that the roles rely on.

use anyhow::Context as _;
use belay_api::policies;
use serde_json::Value;

use crate::cli::{Executor, ManifestsArgs};
use crate::exit::{Exit, usage};
use crate::format::{self, Format};

const NAMESPACE: &str = include_str!("manifests/namespace.yaml");
const PEOPLE: &str = include_str!("manifests/people.yaml");
const AGENT_RIGHTS: &str = include_str!("manifests/agent-rights.yaml");
const CONTROLLER_RIGHTS: &str = include_str!("manifests/controller-rights.yaml");
const EXECUTOR_RIGHTS: &str = include_str!("manifests/executor-rights.yaml");
const POLICIES: &str = include_str!("manifests/policies.yaml");
const AGENT_POLICIES: &str = include_str!("manifests/agent-policies.yaml");
const AGENT: &str = include_str!("manifests/agent.yaml");
const CONTROLLER: &str = include_str!("manifests/controller.yaml");

/// Prints them.
///
/// # Errors
///
/// When the namespace or the image cannot be what they say they are.
pub(crate) fn run(
    namespace: Option<&str>,
    args: &ManifestsArgs,
    output: Option<Format>,
) -> anyhow::Result<Exit> {
    let namespace = namespace.unwrap_or(belay_api::SYSTEM_NAMESPACE);
    let image = match &args.image {
        Some(image) => image.clone(),
        None => format!("belay:{}", env!("CARGO_PKG_VERSION")),
    };
    let text = text(namespace, &image, args.executor)?;
    if output == Some(Format::Json) {
        // JSON has no documents, and no comments either.
        format::print_list(&objects(&text)?, Format::Json)?;
    } else {
        format::out(&text)?;
    }
    Ok(Exit::Done)
}

/// What stands in the documents of a text.
fn objects(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents = text.split("\n---\n");
    let objects = documents.map(|document| {
        serde_saphyr::from_str(document).context("a printed object cannot be read")
    });
    objects.collect()
}

/// The whole document.
fn text(namespace: &str, image: &str, executor: Executor) -> anyhow::Result<String> {
    let problems = belay_api::metadata::names::dns_label(namespace);
    if !problems.is_empty() {
        let problems = problems.join("; ");
        return Err(usage(format!("--namespace {namespace:?}: {problems}")));
    }
    // What is put into a template must not become more than a word of it.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if image.is_empty() || !image.chars().all(plain) {
        return Err(usage(format!(
            "--image {image:?} is no image: name one such as registry.example.com/belay:1.0"
        )));
    }
    let parts: &[&str] = match executor {
        Executor::Agent => &[
            PEOPLE,
            AGENT_RIGHTS,
            CONTROLLER_RIGHTS,
            POLICIES,
            AGENT_POLICIES,
            AGENT,
            CONTROLLER,
        ],
        Executor::Controller => &[
            PEOPLE,
            CONTROLLER_RIGHTS,
            EXECUTOR_RIGHTS,
            POLICIES,
            CONTROLLER,
        ],
    };
    let word = match executor {
        Executor::Agent => "agent",
        Executor::Controller => "controller",
    };
    let fill = |template: &str| {
        template
            .replace("${NAMESPACE}", namespace)
            .replace("${IMAGE}", image)
            .replace("${EXECUTOR}", word)
            .replace("${POLICIES}", &required(executor).join(", "))
    };
    let mut text = fill(NAMESPACE);
    for crd in belay_api::crd::crds() {
        text.push_str("---\n");
        text.push_str(&format::yaml(&crd)?);
    }
    for part in parts {
        text.push_str("---\n");
        text.push_str(&fill(part));
    }
    Ok(text)
}

/// The policies that an installation needs.
pub(crate) fn required(executor: Executor) -> &'static [&'static str] {
    match executor {
        Executor::Agent => policies::WITH_AGENTS,
        Executor::Controller => policies::ALWAYS,
    }
}

/// The policies and their bindings as this version prints them for a namespace, with or without
/// those for agents.
///
/// # Errors
///
/// When the namespace is none.
pub(crate) fn printed_policies(namespace: &str, executor: Executor) -> anyhow::Result<Vec<Value>> {
    let parts: &[&str] = match executor {
        Executor::Agent => &[POLICIES, AGENT_POLICIES],
        Executor::Controller => &[POLICIES],
    };
    let mut all = Vec::new();
    for part in parts {
        all.extend(objects(&part.replace("${NAMESPACE}", namespace))?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
