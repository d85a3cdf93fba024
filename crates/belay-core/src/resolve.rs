//! What a PodNotification comes to at its creation.
//!
//! The embedded server asks in the creating write, so that a notification which can reach nobody is
//! final from its first revision and nobody has to wait for an agent to say so. On a stock cluster
//! the controller asks, as soon as it sees the notification.

/// What is known of the pod that a notification names. The caller borrows it from its own copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodFacts<'a> {
    /// UID of the pod: a later pod of the same name is another pod.
    pub uid: &'a str,
    /// Node that the pod is bound to.
    pub node: Option<&'a str>,
    /// `status.phase`.
    pub phase: &'a str,
    /// Whether `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// Whether any container that may carry notifiers declares the one asked for.
    pub declares: Declares<'a>,
}

/// What a pod's notifiers say about the one asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declares<'a> {
    /// A container declares it.
    Yes,
    /// No container does.
    No,
    /// Nobody can tell: the pod's notifiers break a rule. Only a pod that no rule was applied to at
    /// its creation is like this.
    Unusable {
        /// Names the field and says what is wrong with it.
        problem: &'a str,
    },
}

/// What becomes of the notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The node's agent will claim it: `status.nodeName` and `status.podUID` are set, once.
    Assign {
        /// Node whose agent runs the pod.
        node: String,
        /// The pod as it is now.
        pod_uid: String,
    },
    /// Final at once.
    Failed {
        /// Error type: `PodNotFound`, `PodTerminating`, `ContainerNotRunning` or `RuntimeError`.
        error: &'static str,
        /// Says what to do.
        message: String,
    },
    /// Final at once and succeeded, with no containers and the condition `NotifierFound=False`.
    NothingDeclared {
        /// Names the pod and the notifier.
        message: String,
    },
}

/// Decides for one notification.
///
/// The order of the questions is the order in which a user can act on the answers: a pod that is
/// not there, one that is going, one that does not run, and only then one that runs but declares
/// nothing that can be used, or not this notifier.
///
/// `wanted` is the UID in the notification's spec: another pod of the same name is not the one that
/// was meant.
pub fn resolve(
    pod_name: &str,
    wanted: Option<&str>,
    notifier: &str,
    pod: Option<PodFacts<'_>>,
) -> Resolution {
    let Some(pod) = pod else {
        return Resolution::Failed {
            error: "PodNotFound",
            message: format!(
                "pod \"{pod_name}\" does not exist in this namespace; nothing was run"
            ),
        };
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != pod.uid) {
        return Resolution::Failed {
            error: "PodNotFound",
            message: format!(
                "pod \"{pod_name}\" with UID {wanted} is gone, and the pod that has its name now is \
                 another one; nothing was run"
            ),
        };
    }
    if pod.terminating {
        return Resolution::Failed {
            error: "PodTerminating",
            message: format!(
                "pod \"{pod_name}\" is being deleted; notifier \"{notifier}\" was not run"
            ),
        };
    }
    match (pod.phase, pod.node, pod.declares) {
        ("Running", Some(node), Declares::Yes) => Resolution::Assign {
            node: node.to_owned(),
            pod_uid: pod.uid.to_owned(),
        },
        ("Running", Some(_), Declares::No) => Resolution::NothingDeclared {
            message: format!("no container of pod {pod_name} declares {notifier:?}"),
        },
        ("Running", Some(_), Declares::Unusable { problem }) => Resolution::Failed {
            error: "RuntimeError",
            message: unusable(pod_name, problem),
        },
        (phase, _, _) => Resolution::Failed {
            error: "ContainerNotRunning",
            message: format!(
                "pod \"{pod_name}\" is {}, not Running; create the notification again when it runs",
                if phase.is_empty() { "Pending" } else { phase }
            ),
        },
    }
}

/// Why nothing is run in a pod whose notifiers break a rule; the same words from whoever finds it.
pub fn unusable(pod_name: &str, problem: &str) -> String {
    format!(
        "the notifiers of pod \"{pod_name}\" cannot be used: {problem}; nothing was run. Create the \
         pod again with this put right"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running<'a>() -> PodFacts<'a> {
        PodFacts {
            uid: "u1",
            node: Some("n1"),
            phase: "Running",
            terminating: false,
            declares: Declares::Yes,
        }
    }

    fn error_of(resolution: &Resolution) -> &'static str {
        match resolution {
            Resolution::Failed { error, .. } => error,
            Resolution::Assign { .. } => "assigned",
            Resolution::NothingDeclared { .. } => "nothing declared",
        }
    }

    #[test]
    fn a_running_pod_that_declares_the_notifier_is_assigned_to_its_node() {
        assert_eq!(
            resolve("db", None, "lock", Some(running())),
            Resolution::Assign {
                node: "n1".into(),
                pod_uid: "u1".into()
            }
        );
    }

    #[test]
    fn the_podnotification_fails_immediately_if_the_pod_does_not_exist() {
        assert_eq!(error_of(&resolve("db", None, "lock", None)), "PodNotFound");
    }

    #[test]
    fn a_successor_of_the_same_name_is_not_the_pod_that_was_meant() {
        let asked = |uid| resolve("db", Some(uid), "lock", Some(running()));
        assert_eq!(error_of(&asked("u1")), "assigned");
        assert_eq!(error_of(&asked("u0")), "PodNotFound");
    }

    #[test]
    fn the_podnotification_completes_immediately_if_no_container_declares_the_notifier() {
        let pod = PodFacts {
            declares: Declares::No,
            ..running()
        };
        assert_eq!(
            resolve("db", None, "lock", Some(pod)),
            Resolution::NothingDeclared {
                message: "no container of pod db declares \"lock\"".into()
            }
        );
    }

    #[test]
    fn every_combination_of_facts_has_the_answer_of_its_first_obstacle() {
        for phase in ["", "Pending", "Running", "Succeeded", "Failed", "Unknown"] {
            for node in [None, Some("n1")] {
                for terminating in [false, true] {
                    for (declares, then) in [
                        (Declares::Yes, "assigned"),
                        (Declares::No, "nothing declared"),
                        (Declares::Unusable { problem: "f: no" }, "RuntimeError"),
                    ] {
                        let facts = PodFacts {
                            uid: "u1",
                            node,
                            phase,
                            terminating,
                            declares,
                        };
                        let expected = if terminating {
                            "PodTerminating"
                        } else if phase != "Running" || node.is_none() {
                            "ContainerNotRunning"
                        } else {
                            then
                        };
                        assert_eq!(
                            error_of(&resolve("db", None, "lock", Some(facts))),
                            expected,
                            "{facts:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn messages_name_the_pod_and_the_phase() {
        let pod = PodFacts {
            phase: "Pending",
            ..running()
        };
        let Resolution::Failed { message, .. } = resolve("db", None, "lock", Some(pod)) else {
            panic!("a pending pod cannot be notified");
        };
        assert!(
            message.contains("\"db\"") && message.contains("Pending"),
            "{message}"
        );
    }
}
