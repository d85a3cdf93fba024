//! Why a container does not run, in Kubernetes' words.

/// Reason and message of a waiting container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Waiting {
    /// About to be started.
    pub(crate) fn creating() -> Self {
        Waiting {
            reason: "ContainerCreating",
            message: String::new(),
        }
    }

    /// Its turn has not come: init containers are not done.
    pub(crate) fn initializing() -> Self {
        Waiting {
            reason: "PodInitializing",
            message: String::new(),
        }
    }

    /// The spec asks for what cannot be done.
    pub(crate) fn config(message: String) -> Self {
        Waiting {
            reason: "CreateContainerConfigError",
            message,
        }
    }

    /// It failed too often to be started again right now.
    pub(crate) fn crash_loop(message: String) -> Self {
        Waiting {
            reason: "CrashLoopBackOff",
            message,
        }
    }
}
