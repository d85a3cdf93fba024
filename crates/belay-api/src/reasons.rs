//! Reasons of events and types of conditions, in one place so that nothing is spelled twice.

// Reasons of events about pods and nodes; the kubelet's names where it has one.

/// A pod was bound to a node.
pub const SCHEDULED: &str = "Scheduled";
/// A container was made.
pub const CREATED: &str = "Created";
/// A container's first process runs.
pub const STARTED: &str = "Started";
/// A container is being stopped.
pub const KILLING: &str = "Killing";
/// A container could not be started, or a pod could not be run.
pub const FAILED: &str = "Failed";
/// A volume could not be set up.
pub const FAILED_MOUNT: &str = "FailedMount";
/// A restart waits because earlier ones failed.
pub const BACK_OFF: &str = "BackOff";
/// An image is being fetched.
pub const PULLING: &str = "Pulling";
/// An image is fetched without the credentials that its pod names.
pub const FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET: &str = "FailedToRetrieveImagePullSecret";
/// An image is there.
pub const PULLED: &str = "Pulled";
/// An image is not there, and must not be fetched.
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
/// The name of an image cannot be read, or the runtime cannot tell whether it is there.
pub const INSPECT_FAILED: &str = "InspectFailed";
/// What the containers of a pod share could not be made.
pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
/// What the containers of a pod share is gone, and is made anew.
pub const SANDBOX_CHANGED: &str = "SandboxChanged";
/// The stop signal of an image is none; its containers are stopped with SIGTERM.
pub const INVALID_STOP_SIGNAL: &str = "InvalidStopSignal";
/// A pod ran longer than its `activeDeadlineSeconds`.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// A probe failed.
pub const UNHEALTHY: &str = "Unhealthy";
/// A `postStart` hook failed.
pub const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
/// A `preStop` hook failed.
pub const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";
/// Processes of a container or an action could not be killed.
pub const PROCESSES_SURVIVED: &str = "ProcessesSurvived";
/// A node became ready.
pub const NODE_READY: &str = "NodeReady";
/// An agent started on its node.
pub const STARTING: &str = "Starting";

// Reasons of events about notifications.

/// An executor claimed a notification and starts its handlers.
pub const NOTIFICATION_STARTED: &str = "NotificationStarted";
/// Every handler of a notification succeeded.
pub const NOTIFICATION_SUCCEEDED: &str = "NotificationSucceeded";
/// A notification failed; its status says how.
pub const NOTIFICATION_FAILED: &str = "NotificationFailed";
/// A notification was deleted while its handlers ran; they were killed.
pub const NOTIFICATION_CANCELLED: &str = "NotificationCancelled";
/// No container of the pod declares the notifier; also the reason of `NotifierFound=False`.
pub const NOT_DECLARED: &str = "NotDeclared";
/// A PodNotification of a Notification could not be created.
pub const FAILED_CREATE: &str = "FailedCreate";
/// A signal was sent to a process that has no handler for it.
pub const SIGNAL_NOT_HANDLED: &str = "SignalNotHandled";
/// A hold was released by the node because its time was over or its handler failed.
pub const HOLD_RELEASED: &str = "HoldReleased";

// Reasons of events about hooks.

/// The action of a hook succeeded in all its containers.
pub const HOOK_SUCCEEDED: &str = "HookSucceeded";
/// A hook failed; its status says where and how.
pub const HOOK_FAILED: &str = "HookFailed";

// Types of conditions.

/// Of a pod: bound to a node.
pub const POD_SCHEDULED: &str = "PodScheduled";
/// Of a pod: its sandbox is there, with its network.
pub const POD_READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";
/// Of a pod: its init containers are done.
pub const INITIALIZED: &str = "Initialized";
/// Of a pod: all its containers are ready.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// Of a pod or a node.
pub const READY: &str = "Ready";
/// Of a notification: whether a container of the pod declares the notifier.
pub const NOTIFIER_FOUND: &str = "NotifierFound";
/// Of a notification by signal: whether every process it went to has a handler for it.
pub const SIGNAL_HANDLED: &str = "SignalHandled";
/// Of a notification: whether it was run with all that Belay promises. False where no agent ran it;
/// the message says what is missing.
pub const FULL_GUARANTEES: &str = "FullGuarantees";
/// Of a Notification: whether its selector matched a running pod when it was created.
pub const PODS_FOUND: &str = "PodsFound";
/// Of a Notification: whether it has stopped notifying more pods.
pub const STOPPED: &str = "Stopped";
/// Of a notification that took a hold: whether the node had to release it by itself.
pub const HOLD_FORCIBLY_RELEASED: &str = "HoldForciblyReleased";

// Reasons inside conditions.

/// `NotifierFound=True`.
pub const DECLARED: &str = "Declared";
/// `PodsFound=True`.
pub const SELECTED: &str = "Selected";
/// `PodsFound=False`: no running pod matches.
pub const NO_PODS: &str = "NoPods";
/// `Stopped=True`: as many PodNotifications failed as `maxFailures` allows.
pub const TOO_MANY_FAILURES: &str = "TooManyFailures";
/// `Stopped=True`: the deadline of the Notification is over.
pub const EXPIRED: &str = "Expired";
/// `FullGuarantees=False`: the controller ran it, over `pods/exec`.
pub const NO_AGENT: &str = "NoAgent";
/// `SignalHandled=True`.
pub const HANDLED: &str = "Handled";
/// `SignalHandled=False`: the process ignores the signal.
pub const IGNORED: &str = "Ignored";
/// `SignalHandled=False`: the signal has its default effect on the process.
pub const DEFAULT_ACTION: &str = "DefaultAction";
/// `SignalHandled=Unknown`: the runtime cannot tell.
pub const UNKNOWN: &str = "Unknown";

/// How long a name may be, in bytes: a DNS subdomain's length.
const LONGEST_NAME: usize = 253;
/// How long the message of an event may be that names when it happened, in bytes.
const LONGEST_MESSAGE: usize = 1024;
const MORE: &str = "...";

/// The name of an event: of the object that it is about, as much as fits, and of what tells it from
/// the others.
pub fn event_name(object: &str, suffix: &str) -> String {
    let room = LONGEST_NAME.saturating_sub(suffix.len() + 1);
    let fits = &object[..object.floor_char_boundary(room)];
    // What is cut must still end like a name.
    let fits = fits.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("{fits}.{suffix}")
}

/// The message of an event, as much of it as servers take.
pub fn event_message(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE - MORE.len()));
        message.push_str(MORE);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_an_object_with_the_longest_name_has_a_name() {
        assert_eq!(event_name("db", "1f"), "db.1f");
        let longest = format!("{}.{}", "a".repeat(126), "b".repeat(126));
        let name = event_name(&longest, "18c2a5b3e4f56789");
        assert_eq!(name.len(), LONGEST_NAME);
        assert!(name.ends_with("bb.18c2a5b3e4f56789"), "{name}");
        assert!(crate::metadata::names::dns_subdomain(&name).is_empty());
        // The cut falls behind a dash.
        let dashed = format!("{}-{}", "a".repeat(235), "b".repeat(17));
        let name = event_name(&dashed, "18c2a5b3e4f56789");
        assert!(name.ends_with("aa.18c2a5b3e4f56789"), "{name}");
        assert!(crate::metadata::names::dns_subdomain(&name).is_empty());
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        assert_eq!(event_message("short".into()), "short");
        let full = "x".repeat(1024);
        assert_eq!(event_message(full.clone()), full);
        let cut = event_message("ä".repeat(600));
        assert!(cut.len() <= 1024 && cut.ends_with("ä..."), "{cut}");
    }
}
