//! What a container may do, from the security contexts of its pod and its own.

use std::path::Path;

use belay_api::pod::{Container, Pod, SecurityContext};
use belay_runtime::{ImageUser, Seccomp, Security};
use serde_json::Value;

use super::waiting::Waiting;

/// Who a container runs as, and what it may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) security: Security,
}

/// The container's own context where it says something, the pod's where it does not. Profiles of
/// the node are in `profiles`.
pub(crate) fn effective(
    pod: &Pod,
    container: &Container,
    profiles: &Path,
) -> Result<Effective, Waiting> {
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
    if let Some(what) = unsupported(pod, of_pod, own) {
        let message = format!("{what} is not supported by this agent");
        return Err(Waiting::config(message));
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
            seccomp: seccomp(of_pod, own, profiles),
        },
    })
}

/// Whichever of two contexts has something in a field of an object, the container's own first.
fn either<'a>(
    of_pod: &'a SecurityContext,
    own: &'a SecurityContext,
    field: &str,
) -> Option<&'a Value> {
    let set = |context: &'a SecurityContext| {
        let value = context.other.get(field)?;
        let empty = value.as_object().is_none_or(serde_json::Map::is_empty);
        (!empty).then_some(value)
    };
    set(own).or_else(|| set(of_pod))
}

fn seccomp(of_pod: &SecurityContext, own: &SecurityContext, profiles: &Path) -> Seccomp {
    let Some(profile) = either(of_pod, own, "seccompProfile") else {
        return Seccomp::Unset;
    };
    match profile["type"].as_str() {
        Some("Unconfined") => Seccomp::Unconfined,
        Some("Localhost") => {
            let name = profile["localhostProfile"].as_str().unwrap_or_default();
            Seccomp::Localhost(profiles.join(name.trim_start_matches('/')))
        }
        // What is not known is no more than the default.
        _ => Seccomp::RuntimeDefault,
    }
}

/// What would confine the container further, and is not carried out: better no container than one
/// that may more than it was to.
fn unsupported(pod: &Pod, of_pod: &SecurityContext, own: &SecurityContext) -> Option<&'static str> {
    let spec = &pod.spec.other;
    let app_armor = either(of_pod, own, "appArmorProfile");
    let groups = of_pod.other.get("supplementalGroupsPolicy");
    let class = spec.get("runtimeClassName").and_then(Value::as_str);
    let local =
        either(of_pod, own, "seccompProfile").and_then(|it| it["localhostProfile"].as_str());
    let asked = [
        (
            local.is_some_and(|path| path.split('/').any(|part| part == "..")),
            "a localhostProfile with `..` in it",
        ),
        (
            app_armor.is_some_and(|profile| profile["type"] == "Localhost"),
            "an appArmorProfile of type Localhost",
        ),
        (
            either(of_pod, own, "seLinuxOptions").is_some(),
            "seLinuxOptions",
        ),
        (
            groups.is_some_and(|policy| policy == "Strict"),
            "supplementalGroupsPolicy: Strict",
        ),
        (
            spec.get("hostUsers") == Some(&Value::Bool(false)),
            "hostUsers: false",
        ),
        (
            class.is_some_and(|class| !class.is_empty()),
            "runtimeClassName",
        ),
    ];
    let refused = asked.into_iter().find(|(asked, _)| *asked);
    refused.map(|(_, what)| what)
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
        effective(&pod, &pod.spec.containers[0], "/profiles".as_ref())
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
                seccomp: Seccomp::Unset,
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
    fn system_calls_are_restricted_as_the_container_says_or_else_the_pod() {
        let profile = |kind: &str| json!({"seccompProfile": {"type": kind}});
        let told = |of_pod, own| check(of_pod, own).unwrap().security.seccomp;
        assert_eq!(told(json!({}), json!({})), Seccomp::Unset);
        let (default, free) = (profile("RuntimeDefault"), profile("Unconfined"));
        assert_eq!(told(default.clone(), json!({})), Seccomp::RuntimeDefault);
        assert_eq!(told(free.clone(), default.clone()), Seccomp::RuntimeDefault);
        assert_eq!(told(default, free), Seccomp::Unconfined);
        let own = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
        let path = "/profiles/a/b.json".into();
        assert_eq!(told(json!({}), own), Seccomp::Localhost(path));
    }

    #[test]
    fn what_would_confine_it_and_is_not_carried_out_is_refused() {
        let refused = |of_pod: Value, own: Value, spec: Value| {
            let mut pod = pod(of_pod, own);
            pod.spec.other.extend(spec.as_object().unwrap().clone());
            let container = &pod.spec.containers[0];
            effective(&pod, container, "/profiles".as_ref()).map_err(|waiting| waiting.message)
        };
        let local = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}});
        let own = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        let fine = [
            (local.clone(), own, json!({})),
            (
                json!({"seLinuxOptions": {}}),
                json!({}),
                json!({"hostUsers": true}),
            ),
            (
                json!({"supplementalGroupsPolicy": "Merge"}),
                json!({}),
                json!({"runtimeClassName": ""}),
            ),
        ];
        for (of_pod, own, spec) in fine {
            refused(of_pod, own, spec).unwrap();
        }
        for (of_pod, own, spec, words) in [
            (local.clone(), json!({}), json!({}), "appArmorProfile"),
            (json!({}), local, json!({}), "appArmorProfile"),
            (
                json!({}),
                json!({"seLinuxOptions": {"level": "s0"}}),
                json!({}),
                "seLinuxOptions",
            ),
            (
                json!({"supplementalGroupsPolicy": "Strict"}),
                json!({}),
                json!({}),
                "Strict",
            ),
            (
                json!({}),
                json!({}),
                json!({"hostUsers": false}),
                "hostUsers",
            ),
            (
                json!({}),
                json!({}),
                json!({"runtimeClassName": "gvisor"}),
                "runtimeClassName",
            ),
        ] {
            let message = refused(of_pod, own, spec).unwrap_err();
            assert!(message.contains(words), "{message}");
            assert!(
                message.contains("is not supported by this agent"),
                "{message}"
            );
        }
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
