//! One place to try a promise on: the embedded server with plain processes or with a containerd, or
//! a real Kubernetes with Belay installed as its manifests say. A test that is written for a stage
//! runs on all of them.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{Cluster, Instance, Kubectl, PODS, PodBuilder, Rest, image, kubectl, rest};

/// Where a test runs, with the administrator's rights.
#[derive(Debug, Clone)]
pub struct Stage {
    admin: Rest,
    /// Files here are seen under the same path by the test and by every container.
    files: PathBuf,
    place: Place,
    kubectl: Option<Kubectl>,
}

/// What a pod has to say to be run there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Processes,
    Containers,
    Kubernetes,
}

impl Stage {
    /// The embedded server and its node, shared by a test binary.
    pub async fn embedded() -> anyhow::Result<Option<Self>> {
        Ok(Some(Self::on(Instance::shared().await?).await?))
    }

    /// An instance of the test's own.
    pub async fn on(instance: &Instance) -> anyhow::Result<Self> {
        Ok(Self {
            admin: instance.admin().await?,
            files: instance.dir().to_owned(),
            place: if instance.is_on_containerd() {
                Place::Containers
            } else {
                Place::Processes
            },
            kubectl: Kubectl::found(instance),
        })
    }

    /// The embedded server and its node on every containerd that is installed, each shared by a test
    /// binary. What is not installed is said to be skipped.
    pub async fn on_each_containerd() -> anyhow::Result<Vec<Self>> {
        let mut stages = Vec::new();
        for instance in Instance::on_each_containerd().await? {
            stages.push(Self::on(instance).await?);
        }
        Ok(stages)
    }

    /// A cluster on which Belay is installed, shared by a test binary; `None` after having said
    /// that the test is skipped.
    pub async fn kubernetes() -> anyhow::Result<Option<Self>> {
        static SHARED: OnceCell<Option<Cluster>> = OnceCell::const_new();
        let cluster = SHARED.get_or_try_init(Cluster::with_belay).await?;
        match cluster {
            Some(cluster) => Ok(Some(Self::of(cluster).await?)),
            None => {
                crate::cluster::skip_without_programs();
                Ok(None)
            }
        }
    }

    /// A cluster of the test's own.
    pub async fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let files = cluster.dir().join("files");
        std::fs::create_dir_all(&files)?;
        Ok(Self {
            admin: cluster.admin().await?,
            files,
            place: Place::Kubernetes,
            kubectl: Some(cluster.kubectl()),
        })
    }

    pub fn admin(&self) -> &Rest {
        &self.admin
    }

    /// A stock kubectl as the administrator, or `None` after having said that the test is skipped.
    pub fn kubectl(&self) -> Option<&Kubectl> {
        if self.kubectl.is_none() {
            kubectl::skip_without();
        }
        self.kubectl.as_ref()
    }

    /// A file for the test's own use, as a path that fits into a shell command.
    pub fn file(&self, name: &str) -> String {
        self.files.join(name).display().to_string()
    }

    /// Whether it is a stock server, which knows nothing of notifiers.
    pub fn is_kubernetes(&self) -> bool {
        self.place == Place::Kubernetes
    }

    /// A program of this machine as words of a shell command that every container can run: it is
    /// copied with the libraries it loads, because a container has others or none.
    pub fn program(&self, program: &Path) -> anyhow::Result<String> {
        let dir = self.files.join("programs");
        std::fs::create_dir_all(&dir)?;
        let libraries = image::libraries(program)?;
        for file in libraries.iter().map(PathBuf::as_path).chain([program]) {
            let name = file.file_name().context("a file has a name")?;
            std::fs::copy(file, dir.join(name))?;
        }
        let loader = libraries
            .iter()
            .filter_map(|library| library.file_name()?.to_str())
            .find(|name| name.starts_with("ld-"))
            .context("the program is not loaded by ld.so")?;
        let name = program.file_name().context("a program has a name")?;
        Ok(format!(
            "{dir}/{loader} --library-path {dir} {dir}/{}",
            name.display(),
            dir = dir.display()
        ))
    }

    /// The pod as this place takes it: a stock server drops fields it does not know, so notifiers
    /// are given as an annotation there.
    pub fn manifest(&self, pod: PodBuilder) -> Value {
        match self.place {
            Place::Processes => pod.build(),
            Place::Containers => pod.in_containers(&self.files).build(),
            Place::Kubernetes => pod.for_kubernetes(&self.files).build(),
        }
    }

    /// Creates the pod.
    pub async fn create(&self, pod: PodBuilder) -> anyhow::Result<Value> {
        self.admin.post(PODS, &self.manifest(pod)).await?.ok()
    }

    /// What a pod shows of its containers and of when it became ready, once it is. What is not the
    /// pod's own trouble changes nothing of it.
    pub async fn health(&self, pod: &str) -> anyhow::Result<Value> {
        let path = format!("{PODS}/{pod}");
        let health = |pod: &Value| {
            let status = &pod["status"];
            let mut conditions = status["conditions"].as_array()?.iter();
            let ready = conditions.find(|one| one["type"] == "Ready" && one["status"] == "True")?;
            Some(json!({ "containers": status["containerStatuses"], "ready": ready }))
        };
        self.admin.until(&path, "readiness", health).await
    }

    /// Creates the pod and waits until it runs.
    pub async fn run(&self, pod: PodBuilder) -> anyhow::Result<Value> {
        let created = self.create(pod).await.context("the pod was refused")?;
        self.admin.running(rest::name(&created)).await
    }
}
