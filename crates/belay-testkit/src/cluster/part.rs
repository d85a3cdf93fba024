//! The programs of a cluster and how each is told to run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{Cluster, NODE, Programs, SERVICE};
use crate::image;

/// One program of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Etcd,
    Containerd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Kubelet,
}

const ETCD: &str = "http://127.0.0.1:2379";
const RUNTIME: &str = "/run/containerd/containerd.sock";
const GATES: &str = "--feature-gates=ContainerStopSignals=true";

impl Part {
    /// Its program, which is also the name of its log.
    pub fn program(self) -> &'static str {
        match self {
            Part::Etcd => "etcd",
            Part::Containerd => "containerd",
            Part::ApiServer => "kube-apiserver",
            Part::ControllerManager => "kube-controller-manager",
            Part::Scheduler => "kube-scheduler",
            Part::Kubelet => "kubelet",
        }
    }

    pub(super) fn directory(self, programs: &Programs) -> &Path {
        match self {
            Part::Etcd => &programs.etcd,
            Part::Containerd => &programs.containerd,
            Part::ApiServer | Part::ControllerManager | Part::Scheduler | Part::Kubelet => {
                &programs.kubernetes
            }
        }
    }

    /// Its arguments; configuration files are written on the way.
    pub(super) fn arguments(self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let pki = |name: &str| cluster.credentials_dir().join(name).display().to_string();
        let kubeconfig =
            |name: &str| format!("--kubeconfig={}", pki(&format!("{name}.kubeconfig")));
        let address = cluster.address();
        Ok(match self {
            Part::Etcd => vec![
                format!("--data-dir={}", cluster.dir().join("etcd").display()),
                format!("--listen-client-urls={ETCD}"),
                format!("--advertise-client-urls={ETCD}"),
                "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
                "--log-level=error".to_owned(),
            ],
            Part::Containerd => {
                let file = write(cluster, "containerd.toml", &containerd())?;
                vec![format!("--config={}", file.display())]
            }
            Part::ApiServer => vec![
                format!(
                    "--audit-policy-file={}",
                    write(cluster, "audit-policy.json", &audit())?.display()
                ),
                format!("--audit-log-path={}", cluster.audit_path().display()),
                format!("--etcd-servers={ETCD}"),
                "--secure-port=443".to_owned(),
                format!("--advertise-address={address}"),
                format!("--client-ca-file={}", pki("ca.crt")),
                format!("--tls-cert-file={}", pki("apiserver.crt")),
                format!("--tls-private-key-file={}", pki("apiserver.key")),
                format!("--service-account-key-file={}", pki("sa.pub")),
                format!("--service-account-signing-key-file={}", pki("sa.key")),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-cluster-ip-range={SERVICE}/16"),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--enable-admission-plugins=NodeRestriction".to_owned(),
                format!("--kubelet-client-certificate={}", pki("admin.crt")),
                format!("--kubelet-client-key={}", pki("admin.key")),
                "--kubelet-preferred-address-types=InternalIP".to_owned(),
                "--allow-privileged=true".to_owned(),
                GATES.to_owned(),
            ],
            Part::ControllerManager => vec![
                kubeconfig("controller-manager"),
                format!("--service-account-private-key-file={}", pki("sa.key")),
                format!("--root-ca-file={}", pki("ca.crt")),
                "--use-service-account-credentials=true".to_owned(),
                "--leader-elect=false".to_owned(),
            ],
            Part::Scheduler => vec![kubeconfig("scheduler"), "--leader-elect=false".to_owned()],
            Part::Kubelet => {
                let config = kubelet(cluster.cgroup()?, &pki("ca.crt"));
                let file = write(cluster, "kubelet.json", &config)?;
                vec![
                    kubeconfig("kubelet"),
                    format!("--config={}", file.display()),
                    format!("--hostname-override={NODE}"),
                    format!("--node-ip={address}"),
                    GATES.to_owned(),
                ]
            }
        })
    }
}

fn write(cluster: &Cluster, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let file = cluster.dir().join(name);
    fs::write(&file, text)?;
    Ok(file)
}

/// What Belay's controllers write is told, by whom and when; nothing else.
fn audit() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {
                "level": "Metadata",
                "users": ["system:serviceaccount:belay-system:belay-controller"],
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            },
            {"level": "None"},
        ],
    })
    .to_string()
}

fn containerd() -> String {
    format!(
        "version = 2\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\n\
         [grpc]\n  address = \"{RUNTIME}\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"{}\"\n  restrict_oom_score_adj = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/usr/lib/cni\"\n  conf_dir = \"/etc/cni/net.d\"\n",
        image::PAUSE
    )
}

fn kubelet(cgroup: &str, ca: &str) -> String {
    // What a container inside another machine's limits may not do is switched off; the rest is
    // what a node in production has.
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{RUNTIME}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 300,
        "resolvConf": "",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": ca},
        },
        "authorization": {"mode": "Webhook"},
    })
    .to_string()
}
