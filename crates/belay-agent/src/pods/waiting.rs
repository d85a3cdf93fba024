//! Why a container does not run, in Kubernetes' words.

/// It was made, and could not be run.
pub(crate) const RUN_CONTAINER_ERROR: &str = "RunContainerError";

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

    /// The next try to get its image has to wait; `before` is why.
    pub(crate) fn pull_back_off(image: &str, before: &Waiting) -> Self {
        let Waiting { reason, message } = before;
        Waiting {
            reason: "ImagePullBackOff",
            message: format!("Back-off pulling image \"{image}\": {reason}: {message}"),
        }
    }
}
