//! Which runtime runs the pods of a node.
//!
//! `auto` takes the first CRI runtime that answers, else plain processes; never processes where an
//! endpoint was named. A directory remembers what its pods were started on: a containerd that was
//! installed later, or that is not up yet, must not make an agent forget the pods it has.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use belay_runtime::{Containers as _, CriRuntime, PodRuntime, ProcessRuntime};
use sha2::{Digest as _, Sha256};

use crate::cli::Runtime;
use crate::place;

/// Where a kubelet's runtime usually listens.
pub(crate) const CONTAINERD: &str = "unix:///run/containerd/containerd.sock";
const CRIO: &str = "unix:///run/crio/crio.sock";
/// Where the choice is remembered, in the agent's directory.
const CHOICE: &str = "runtime.json";

/// A runtime, and what is said about it.
pub(crate) struct Chosen {
    pub(crate) runtime: Arc<dyn PodRuntime>,
    pub(crate) words: String,
}

/// What a directory's pods run on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
enum Choice {
    Process,
    Cri {
        endpoint: String,
        /// What the runtime called itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

impl Choice {
    /// The name of the runtime there, if the pods of this directory run on it.
    fn name_at(&self, place: &str) -> Option<&str> {
        match self {
            Choice::Cri { endpoint, name } if endpoint == place => name.as_deref(),
            Choice::Cri { .. } | Choice::Process => None,
        }
    }
}

/// Who a node is on a runtime that others may use as well: its name, under its server's authority.
/// Two servers may have nodes of one name, and must not take each other's pods for orphans.
pub(crate) fn owner(node: &str, authority_pem: &str) -> String {
    // However its lines are broken.
    let authority: String = authority_pem.split_whitespace().collect();
    let hash = Sha256::digest(authority.as_bytes());
    let hex: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{node}.{hex}")
}

/// Opens the runtime for the agent in `dir`. `endpoint` is where the user says that it listens.
pub(crate) async fn choose(
    wanted: Runtime,
    endpoint: Option<&str>,
    dir: &Path,
    owner: &str,
) -> anyhow::Result<Chosen> {
    choose_among(wanted, endpoint, &[CONTAINERD, CRIO], dir, owner).await
}

/// The same; `usual` is where a runtime may listen if nobody says where.
async fn choose_among(
    wanted: Runtime,
    endpoint: Option<&str>,
    usual: &[&str],
    dir: &Path,
    owner: &str,
) -> anyhow::Result<Chosen> {
    let dir = place::prepare_data_dir(dir)?;
    let remembered = remembered(&dir);
    let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
    let first = async |endpoint: Option<&str>| {
        let named = endpoint.as_slice();
        let places = if named.is_empty() { usual } else { named };
        first(places, &dir, owner, remembered.as_ref()).await
    };
    let chosen = match (wanted, &remembered, endpoint) {
        (Runtime::Process, _, _) | (Runtime::Auto, Some(Choice::Process), None) => {
            process(&dir).await?
        }
        (Runtime::Auto, Some(Choice::Process), Some(endpoint)) => {
            return Err(anyhow!(
                "the pods of this node run as plain processes ({} remembers it), and \
                 --runtime-endpoint or $CONTAINER_RUNTIME_ENDPOINT names {endpoint}: leave that out \
                 to stay with processes; to change, delete the pods of the node first, then say \
                 --runtime cri",
                dir.join(CHOICE).display()
            ));
        }
        (Runtime::Cri, _, _) => {
            let found = first(endpoint).await;
            found.map_err(|tried| {
                let tried = tried.join("\n  ");
                anyhow!(
                    "no CRI runtime answers (--runtime-endpoint says where it listens, --runtime \
                     process needs none):\n  {tried}"
                )
            })?
        }
        (Runtime::Auto, Some(Choice::Cri { endpoint: old, .. }), endpoint)
            if endpoint.is_none_or(|endpoint| endpoint == old) =>
        {
            let found = first(Some(old)).await;
            found.map_err(|tried| {
                anyhow!(
                    "the pods of this node run on a CRI runtime that does not answer: {}; start \
                     it, or leave them to it with --runtime process",
                    tried.join("; ")
                )
            })?
        }
        (Runtime::Auto, _, Some(endpoint)) => {
            let found = first(Some(endpoint)).await;
            found.map_err(|tried| {
                anyhow!(
                    "the endpoint that --runtime-endpoint or $CONTAINER_RUNTIME_ENDPOINT names does \
                     not answer: {}; start the runtime there, or leave the endpoint out",
                    tried.join("; ")
                )
            })?
        }
        (Runtime::Auto, _, None) => match first(None).await {
            Ok(found) => found,
            Err(tried) => {
                tracing::debug!(?tried, "no CRI runtime answers");
                process(&dir).await?
            }
        },
    };
    let (runtime, choice) = chosen;
    if let Some(told) = remembered.and_then(|before| changed(&before, &choice)) {
        tracing::warn!("{told}");
    }
    remember(&dir, &choice)?;
    let words = match &choice {
        Choice::Process => {
            "process: containers are plain processes, nothing is isolated".to_owned()
        }
        Choice::Cri { endpoint, .. } => format!("{} at {endpoint}", runtime.name()),
    };
    Ok(Chosen { runtime, words })
}

/// What is to be said where the pods of a directory ran on something else until now.
fn changed(before: &Choice, now: &Choice) -> Option<String> {
    let told = |choice: &Choice| match choice {
        Choice::Process => "plain processes".to_owned(),
        Choice::Cri { endpoint, .. } => format!("the runtime at {endpoint}"),
    };
    let (before, now) = (told(before), told(now));
    (before != now).then(|| {
        format!(
            "the pods of this node ran on {before} until now, and run on {now} from now on; \
             containers that are left there go on, and nobody ends them"
        )
    })
}

type Found = (Arc<dyn PodRuntime>, Choice);

/// The first CRI runtime that answers, or why each of them does not. One that the pods run on
/// already need not answer now.
async fn first(
    places: &[&str],
    dir: &Path,
    owner: &str,
    remembered: Option<&Choice>,
) -> Result<Found, Vec<String>> {
    let dir = dir.join("runtime");
    let mut tried = Vec::new();
    for &endpoint in places {
        let opened = match remembered.and_then(|choice| choice.name_at(endpoint)) {
            Some(name) => CriRuntime::for_node_again(endpoint, &dir, owner, name).await,
            None => CriRuntime::for_node(endpoint, &dir, owner).await,
        };
        match opened {
            Ok(runtime) => {
                let choice = Choice::Cri {
                    endpoint: endpoint.to_owned(),
                    name: Some(runtime.name().to_owned()),
                };
                return Ok((Arc::new(runtime), choice));
            }
            Err(error) => tried.push(format!("{endpoint}: {:#}", anyhow::Error::new(error))),
        }
    }
    Err(tried)
}

async fn process(dir: &Path) -> anyhow::Result<Found> {
    let dir = dir.join("runtime");
    let opened = tokio::task::spawn_blocking(move || ProcessRuntime::open(&dir)).await?;
    let runtime = opened.context("the process runtime cannot start")?;
    Ok((Arc::new(runtime), Choice::Process))
}

/// What cannot be read is chosen again.
fn remembered(dir: &Path) -> Option<Choice> {
    let text = fs::read(dir.join(CHOICE)).ok()?;
    serde_json::from_slice(&text)
        .map_err(|error| tracing::warn!(%error, "{CHOICE} cannot be read"))
        .ok()
}

fn remember(dir: &Path, choice: &Choice) -> anyhow::Result<()> {
    if remembered(dir).as_ref() == Some(choice) {
        return Ok(());
    }
    let path = dir.join(CHOICE);
    let new = dir.join(format!("{CHOICE}.new"));
    fs::write(&new, serde_json::to_vec(choice)?)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Option<&str> = Some("unix:///nonexistent/containerd.sock");

    #[test]
    fn nodes_of_one_name_are_told_apart_by_their_server() {
        let one = owner("n1", "-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n");
        assert_eq!(one, owner("n1", "-----BEGIN CERTIFICATE-----\nAAAABBBB"));
        assert_ne!(one, owner("n1", "-----BEGIN CERTIFICATE-----\nAAAACCCC"));
        assert_ne!(one, owner("n2", "-----BEGIN CERTIFICATE-----\nAAAABBBB"));
        assert!(one.starts_with("n1.") && one.len() == 19, "{one}");
    }

    #[tokio::test]
    async fn cri_is_an_error_when_nobody_answers_and_auto_takes_processes() {
        let dir = tempfile::tempdir().unwrap();
        let error = choose(Runtime::Cri, NOWHERE, dir.path(), "n1").await;
        let error = error.err().unwrap().to_string();
        assert!(error.starts_with("no CRI runtime answers"), "{error}");
        assert!(error.contains("unix:///nonexistent"), "{error}");
        assert_eq!(remembered(dir.path()), None, "nothing was chosen");
        let usual = NOWHERE.as_slice();
        let chosen = choose_among(Runtime::Auto, None, usual, dir.path(), "n1").await;
        let chosen = chosen.unwrap();
        assert_eq!(chosen.runtime.name(), "process");
        assert!(chosen.words.contains("nothing is isolated"));
        assert_eq!(remembered(dir.path()), Some(Choice::Process));
    }

    #[tokio::test]
    async fn who_names_an_endpoint_gets_no_processes() {
        let dir = tempfile::tempdir().unwrap();
        let error = choose(Runtime::Auto, NOWHERE, dir.path(), "n1").await;
        let error = error.err().unwrap().to_string();
        assert!(
            error.contains("does not answer") && error.contains("unix:///nonexistent"),
            "{error}"
        );
        assert_eq!(remembered(dir.path()), None, "nothing was chosen");
        // Nor does a choice that was made before go on without a word.
        remember(dir.path(), &Choice::Process).unwrap();
        let error = choose(Runtime::Auto, NOWHERE, dir.path(), "n1").await;
        let error = error.err().unwrap().to_string();
        for words in ["run as plain processes", "runtime.json", "--runtime cri"] {
            assert!(error.contains(words), "{words}: {error}");
        }
        // An empty variable names nothing.
        let chosen = choose(Runtime::Auto, Some(""), dir.path(), "n1").await;
        assert_eq!(chosen.unwrap().runtime.name(), "process");
    }

    #[test]
    fn a_change_of_the_runtime_is_told() {
        let at = |endpoint: &str, name: Option<&str>| Choice::Cri {
            endpoint: endpoint.to_owned(),
            name: name.map(str::to_owned),
        };
        assert_eq!(changed(&Choice::Process, &Choice::Process), None);
        assert_eq!(changed(&at("a", None), &at("a", Some("containerd"))), None);
        for (before, now) in [
            (at("a", None), at("b", None)),
            (Choice::Process, at("b", None)),
            (at("a", None), Choice::Process),
        ] {
            assert!(changed(&before, &now).is_some(), "{before:?} {now:?}");
        }
    }

    #[tokio::test]
    async fn a_runtime_that_pods_run_on_need_not_answer_when_the_agent_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let choice = Choice::Cri {
            endpoint: NOWHERE.unwrap().to_owned(),
            name: Some("containerd".to_owned()),
        };
        remember(dir.path(), &choice).unwrap();
        let chosen = choose(Runtime::Cri, NOWHERE, dir.path(), "n1").await;
        assert_eq!(chosen.unwrap().runtime.name(), "containerd");
        // Another one has no pods here.
        let other = Some("unix:///nonexistent/other.sock");
        let error = choose(Runtime::Cri, other, dir.path(), "n1").await;
        let error = error.err().unwrap().to_string();
        assert!(error.starts_with("no CRI runtime answers"), "{error}");
        assert_eq!(remembered(dir.path()), Some(choice));
    }

    #[tokio::test]
    async fn auto_does_not_leave_the_pods_of_a_runtime_that_is_not_up_yet() {
        let dir = tempfile::tempdir().unwrap();
        let choice = Choice::Cri {
            endpoint: NOWHERE.unwrap().to_owned(),
            name: None,
        };
        remember(dir.path(), &choice).unwrap();
        let error = choose(Runtime::Auto, None, dir.path(), "n1").await;
        let error = error.err().unwrap().to_string();
        assert!(error.contains("run on a CRI runtime"), "{error}");
        // Who says so may.
        let chosen = choose(Runtime::Process, None, dir.path(), "n1").await;
        assert_eq!(chosen.unwrap().runtime.name(), "process");
        assert_eq!(remembered(dir.path()), Some(Choice::Process));
    }
}
