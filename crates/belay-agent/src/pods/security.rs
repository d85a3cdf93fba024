//! What a container may do, from the security contexts of its pod and its own.

use belay_api::pod::{Container, Pod, SecurityContext};
use belay_runtime::{ImageUser, Security};

use super::waiting::Waiting;

/// Who a container runs as, and what it may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) security: Security,
}

/// The container's own context where it says something, the pod's where it does not.
pub(crate) fn effective(pod: &Pod, container: &Container) -> Result<Effective, Waiting> {
    let none = SecurityContext::default();
    let of_pod = pod.spec.security_context.as_ref().unwrap_or(&none);
    let own = container.security_context.as_ref().unwrap_or(&none);
    let capabilities = own.capabilities.clone().unwrap_or_default();
    let bare = |names: Vec<String>| {
        let names = names.into_iter();
        names
            .map(|name| name.strip_prefix("CAP_").unwrap_or(&name).to_owned())
            .collect()
    };
    let groups = of_pod.fs_group.iter().chain(&of_pod.supplemental_groups);
    let user = id("runAsUser", own.run_as_user.or(of_pod.run_as_user))?;
    if user == Some(0) && non_root(of_pod, own) {
        return Err(breaks_policy(
            pod,
            container,
            "container's runAsUser breaks non-root policy",
        ));
    }
    Ok(Effective {
        user,
        group: id("runAsGroup", own.run_as_group.or(of_pod.run_as_group))?,
        security: Security {
            privileged: own.privileged == Some(true),
            read_only_root: own.read_only_root_filesystem == Some(true),
            no_new_privileges: own.allow_privilege_escalation == Some(false),
            add_capabilities: bare(capabilities.add),
            drop_capabilities: bare(capabilities.drop),
            supplemental_groups: groups
                .filter_map(|group| id("supplementalGroups", Some(*group)).transpose())
                .collect::<Result<_, _>>()?,
        },
    })
}

/// The group that owns the pod's volumes.
pub(crate) fn fs_group(pod: &Pod) -> Option<u32> {
    let context = pod.spec.security_context.as_ref()?;
    u32::try_from(context.fs_group?).ok()
}

/// Whether a container that must not run as root will not, as far as its image decides.
pub(crate) fn verify_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
) -> Result<(), Waiting> {
    let none = SecurityContext::default();
    let of_pod = pod.spec.security_context.as_ref().unwrap_or(&none);
    let own = container.security_context.as_ref().unwrap_or(&none);
    if !non_root(of_pod, own) || own.run_as_user.or(of_pod.run_as_user).is_some() {
        return Ok(());
    }
    let problem = match image {
        ImageUser::Id(0) => "container has runAsNonRoot and image will run as root".to_owned(),
        ImageUser::Id(_) => return Ok(()),
        ImageUser::Name(name) => format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
        ),
    };
    Err(breaks_policy(pod, container, &problem))
}

fn non_root(of_pod: &SecurityContext, own: &SecurityContext) -> bool {
    own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true)
}

/// The kubelet's sentence, which people search for.
fn breaks_policy(pod: &Pod, container: &Container, problem: &str) -> Waiting {
    let pod = format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid());
    let container = &container.name;
    Waiting::config(format!("{problem} (pod: {pod:?}, container: {container})"))
}

fn id(field: &str, value: Option<i64>) -> Result<Option<u32>, Waiting> {
    value
        .map(u32::try_from)
        .transpose()
        .map_err(|_| Waiting::config(format!("{field} is not a user or group ID")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    // `json!` literals read better without a borrow.
    #[allow(clippy::needless_pass_by_value)]
    fn pod(of_pod: Value, own: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"securityContext": of_pod,
                     "containers": [{"name": "c", "securityContext": own}]},
        }))
        .unwrap()
    }

    fn check(of_pod: Value, own: Value) -> Result<Effective, Waiting> {
        let pod = pod(of_pod, own);
        effective(&pod, &pod.spec.containers[0])
    }

    #[test]
    fn the_containers_own_words_come_before_the_pods() {
        let both = check(
            json!({"runAsUser": 7, "runAsGroup": 8, "fsGroup": 5, "supplementalGroups": [6, 5]}),
            json!({"runAsUser": 9, "privileged": true, "readOnlyRootFilesystem": true,
                "capabilities": {"add": ["CAP_NET_ADMIN", "SYS_TIME"], "drop": ["ALL"]}}),
        );
        let expected = Effective {
            user: Some(9),
            group: Some(8),
            security: Security {
                privileged: true,
                read_only_root: true,
                no_new_privileges: false,
                add_capabilities: vec!["NET_ADMIN".into(), "SYS_TIME".into()],
                drop_capabilities: vec!["ALL".into()],
                supplemental_groups: vec![5, 6, 5],
            },
        };
        assert_eq!(both.unwrap(), expected);
        assert_eq!(check(json!({}), json!({})).unwrap(), Effective::default());
        let kept = check(json!({}), json!({"allowPrivilegeEscalation": false})).unwrap();
        assert!(kept.security.no_new_privileges);
        let wrong = check(json!({"supplementalGroups": [-1]}), json!({}));
        assert!(wrong.unwrap_err().message.contains("supplementalGroups"));
    }

    #[test]
    fn what_must_not_be_root_is_refused_as_root() {
        let must = json!({"runAsNonRoot": true});
        let root = check(must.clone(), json!({"runAsUser": 0})).unwrap_err();
        assert_eq!(
            root.message,
            "container's runAsUser breaks non-root policy (pod: \"p_ns(u)\", container: c)"
        );
        let verify = |of_pod: Value, own: Value, image: ImageUser| {
            let pod = pod(of_pod, own);
            verify_non_root(&pod, &pod.spec.containers[0], &image)
        };
        let by_image = verify(must.clone(), json!({}), ImageUser::Id(0)).unwrap_err();
        assert!(by_image.message.contains("image will run as root"));
        let named = verify(must.clone(), json!({}), ImageUser::Name("www".into())).unwrap_err();
        assert!(named.message.contains("non-numeric user (www)"));
        verify(must.clone(), json!({}), ImageUser::Id(1)).unwrap();
        verify(must.clone(), json!({"runAsUser": 1}), ImageUser::Id(0)).unwrap();
        verify(must, json!({"runAsNonRoot": false}), ImageUser::Id(0)).unwrap();
        verify(json!({}), json!({}), ImageUser::Id(0)).unwrap();
    }
}
