//! How a strategic merge patch treats the lists of the built-in kinds.
//!
//! The types this crate compiles from do not carry this, so it is written down here. It says what
//! upstream's Go tags `patchStrategy` and `patchMergeKey` say. A list that is not named is atomic: a
//! patch replaces it. Those that surprise are `command`, `args`, `envFrom`, `tolerations`,
//! `readinessGates`, a node's `taints` and `images`, every list inside an affinity or a volume
//! source, `containerStatuses` and its siblings, and `managedFields`.

/// How one list field is merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    /// The field that tells elements apart; none for a list of scalars, merged as a set.
    pub(super) key: Option<&'static str>,
    /// Published for clients, which then send `$retainKeys` with a changed element so that
    /// switching from one member of a union to another leaves no trace of the first.
    pub(super) retain_keys: bool,
}

const fn by(key: &'static str) -> Merge {
    Merge {
        key: Some(key),
        retain_keys: false,
    }
}

const fn retaining(key: &'static str) -> Merge {
    Merge {
        key: Some(key),
        retain_keys: true,
    }
}

const SET: Merge = Merge {
    key: None,
    retain_keys: false,
};

const CORE: &str = "io.k8s.api.core.v1.";
const APPS: &str = "io.k8s.api.apps.v1.";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Package, type, field, and how it is merged.
const TABLE: &[(&str, &str, &str, Merge)] = &[
    (META, "ObjectMeta", "finalizers", SET),
    (META, "ObjectMeta", "ownerReferences", by("uid")),
    (CORE, "PodSpec", "containers", by("name")),
    (CORE, "PodSpec", "initContainers", by("name")),
    (CORE, "PodSpec", "ephemeralContainers", by("name")),
    (CORE, "PodSpec", "imagePullSecrets", by("name")),
    (CORE, "PodSpec", "schedulingGates", by("name")),
    (CORE, "PodSpec", "volumes", retaining("name")),
    (CORE, "PodSpec", "resourceClaims", retaining("name")),
    (CORE, "PodSpec", "hostAliases", by("ip")),
    // Two constraints may share a topology key and differ in `whenUnsatisfiable`; a strategic merge
    // cannot tell them apart, here as upstream.
    (
        CORE,
        "PodSpec",
        "topologySpreadConstraints",
        by("topologyKey"),
    ),
    (CORE, "Container", "env", by("name")),
    // One port number may be declared for TCP and for UDP. A strategic merge looks at the number
    // alone and patches the first that matches, here as upstream.
    (CORE, "Container", "ports", by("containerPort")),
    (CORE, "Container", "volumeMounts", by("mountPath")),
    (CORE, "Container", "volumeDevices", by("devicePath")),
    (CORE, "Container", "notifiers", by("name")),
    (CORE, "EphemeralContainer", "env", by("name")),
    (CORE, "EphemeralContainer", "ports", by("containerPort")),
    (CORE, "EphemeralContainer", "volumeMounts", by("mountPath")),
    (
        CORE,
        "EphemeralContainer",
        "volumeDevices",
        by("devicePath"),
    ),
    (CORE, "EphemeralContainer", "notifiers", by("name")),
    (CORE, "PodStatus", "conditions", by("type")),
    (CORE, "PodStatus", "podIPs", by("ip")),
    (CORE, "PodStatus", "hostIPs", by("ip")),
    (
        CORE,
        "PodStatus",
        "resourceClaimStatuses",
        retaining("name"),
    ),
    (
        CORE,
        "ContainerStatus",
        "allocatedResourcesStatus",
        by("name"),
    ),
    (CORE, "ContainerStatus", "volumeMounts", by("mountPath")),
    (CORE, "NodeStatus", "conditions", by("type")),
    // A node with two addresses of one type (IPv4 and IPv6) loses one to a plain merge, here as
    // upstream; who writes such a status says `$patch: replace`.
    (CORE, "NodeStatus", "addresses", by("type")),
    (CORE, "NodeSpec", "podCIDRs", SET),
    (CORE, "NamespaceStatus", "conditions", by("type")),
    (APPS, "DaemonSetStatus", "conditions", by("type")),
];

/// The merge strategy of `field` in the definition called `definition`; none means the default.
pub(super) fn merge(definition: &str, field: &str) -> Option<Merge> {
    TABLE
        .iter()
        .find(|(package, ty, name, _)| {
            *name == field && definition.strip_prefix(package) == Some(*ty)
        })
        .map(|(.., merge)| *merge)
}

/// Definition and field of every entry.
#[cfg(test)]
pub(super) fn entries() -> impl Iterator<Item = (String, &'static str)> {
    TABLE
        .iter()
        .map(|(package, ty, field, _)| (format!("{package}{ty}"), *field))
}
