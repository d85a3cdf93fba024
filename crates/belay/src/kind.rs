//! The kinds that `get` and `describe` know, under all the names people use for them.

use crate::exit::usage;

/// A kind and where the server keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Notification,
    PodNotification,
    ExecutionHook,
    HookAction,
    PodAction,
    Pod,
    Node,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Notification,
        Kind::PodNotification,
        Kind::ExecutionHook,
        Kind::HookAction,
        Kind::PodAction,
        Kind::Pod,
        Kind::Node,
    ];

    fn names(self) -> &'static [&'static str] {
        match self {
            Kind::Notification => &[
                "ntf",
                "notification",
                "notifications",
                "notification.apps.k8s.io",
                "notifications.apps.k8s.io",
            ],
            Kind::PodNotification => &[
                "pn",
                "podnotification",
                "podnotifications",
                "podnotification.apps.k8s.io",
                "podnotifications.apps.k8s.io",
            ],
            Kind::ExecutionHook => &[
                "eh",
                "executionhook",
                "executionhooks",
                "executionhook.apps.k8s.io",
                "executionhooks.apps.k8s.io",
            ],
            Kind::HookAction => &[
                "ha",
                "hookaction",
                "hookactions",
                "hookaction.apps.k8s.io",
                "hookactions.apps.k8s.io",
            ],
            Kind::PodAction => &[
                "podaction",
                "podactions",
                "podaction.apps.k8s.io",
                "podactions.apps.k8s.io",
            ],
            Kind::Pod => &["po", "pod", "pods"],
            Kind::Node => &["no", "node", "nodes"],
        }
    }

    /// The path of the collection, or of one object in it.
    pub(crate) fn path(self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = match self {
            Kind::Pod | Kind::Node => "/api/v1",
            Kind::Notification
            | Kind::PodNotification
            | Kind::ExecutionHook
            | Kind::HookAction
            | Kind::PodAction => "/apis/apps.k8s.io/v1alpha1",
        };
        let mut path = root.to_owned();
        if let Some(namespace) = namespace.filter(|_| self.is_namespaced()) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(self.plural());
        if let Some(name) = name {
            path.push('/');
            path.push_str(name);
        }
        path
    }

    /// Whether its objects live in a namespace.
    pub(crate) fn is_namespaced(self) -> bool {
        self != Kind::Node
    }

    /// What its objects are called in sentences.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Kind::Notification => "notifications",
            Kind::PodNotification => "podnotifications",
            Kind::ExecutionHook => "executionhooks",
            Kind::HookAction => "hookactions",
            Kind::PodAction => "podactions",
            Kind::Pod => "pods",
            Kind::Node => "nodes",
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Kind, anyhow::Error> {
        let lower = text.to_ascii_lowercase();
        Kind::ALL
            .into_iter()
            .find(|kind| kind.names().contains(&lower.as_str()))
            .ok_or_else(|| {
                usage(format!(
                    "unknown kind {text:?}: known are ntf, pn, eh, ha, podactions, pods and nodes"
                ))
            })
    }
}

/// Reads `KIND/NAME`; `default` is the kind of a bare name, where one may be left out.
pub(crate) fn reference(text: &str, default: Option<Kind>) -> anyhow::Result<(Kind, String)> {
    let (kind, name) = match (text.split_once('/'), default) {
        (Some((kind, name)), _) => (read_kind(kind, name, default)?, name),
        (None, Some(kind)) => (kind, text),
        (None, None) => {
            return Err(usage(format!(
                "{text:?} names no object: write KIND/NAME, for example pod/web"
            )));
        }
    };
    // A name goes into a path; what cannot be an object name must not get there.
    let valid = !name.is_empty()
        && name.len() <= 253
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.');
    if valid {
        Ok((kind, name.to_owned()))
    } else {
        Err(usage(format!("{name:?} cannot be the name of an object")))
    }
}

/// The kind before a slash. Where a bare name would do, somebody may have meant a namespace.
fn read_kind(text: &str, name: &str, default: Option<Kind>) -> anyhow::Result<Kind> {
    let read = text.parse();
    match (read, default) {
        (Err(error), Some(_)) if is_name(text) => Err(usage(format!(
            "{error} (if {text:?} is the namespace of {name:?}: {name} -n {text})"
        ))),
        (read, _) => read,
    }
}

fn is_name(text: &str) -> bool {
    belay_api::metadata::names::dns_label(text).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_before_a_slash_is_understood_and_refused() {
        let told = |text| reference(text, Some(Kind::Pod)).unwrap_err().to_string();
        assert!(told("shop/web").ends_with("web -n shop)"));
        assert!(!told("S_op/web").contains("-n"));
        let of_any = reference("shop/web", None).unwrap_err().to_string();
        assert!(!of_any.contains("-n"), "{of_any}");
    }

    #[test]
    fn kinds_answer_to_all_their_names() {
        for (text, kind) in [
            ("pn", Kind::PodNotification),
            ("ntf", Kind::Notification),
            ("notifications", Kind::Notification),
            ("PodNotifications", Kind::PodNotification),
            ("podnotification.apps.k8s.io", Kind::PodNotification),
            ("eh", Kind::ExecutionHook),
            ("hookaction", Kind::HookAction),
            ("podactions.apps.k8s.io", Kind::PodAction),
            ("po", Kind::Pod),
            ("pods", Kind::Pod),
            ("node", Kind::Node),
        ] {
            assert_eq!(text.parse::<Kind>().unwrap(), kind, "{text}");
        }
        assert!("deployments".parse::<Kind>().is_err());
    }

    #[test]
    fn references_are_a_kind_and_a_name() {
        let read = |text, default| reference(text, default).ok();
        assert_eq!(read("pod/web", None), Some((Kind::Pod, "web".into())));
        assert_eq!(
            read("web", Some(Kind::Pod)),
            Some((Kind::Pod, "web".into()))
        );
        for bad in [
            "web", "pod/", "pod/a/b", "pod/../x", "pod/A", "svc/web", "pod/a b",
        ] {
            assert_eq!(read(bad, None), None, "{bad}");
        }
        assert_eq!(read("", Some(Kind::Pod)), None);
    }

    #[test]
    fn paths_are_those_of_the_api() {
        assert_eq!(
            Kind::PodNotification.path(Some("ns"), Some("a")),
            "/apis/apps.k8s.io/v1alpha1/namespaces/ns/podnotifications/a"
        );
        assert_eq!(Kind::Pod.path(None, None), "/api/v1/pods");
        assert_eq!(Kind::Node.path(Some("ns"), None), "/api/v1/nodes");
    }
}
