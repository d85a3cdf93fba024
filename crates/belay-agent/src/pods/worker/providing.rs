//! What the containers of a pod need besides their spec: objects to take data from, and volumes.
//!
//! Volumes are set up in the background, all of them before the first container is started, and
//! again whenever an object in them changes. What could not be set up is told as an event and tried
//! again, at the latest after a while.

use std::time::Duration;

use belay_api::pod::Pod;
use belay_api::reasons;
use futures::future::FutureExt as _;
use futures::stream::StreamExt as _;
use tracing::warn;

use super::{Happening, Worker};
use crate::context::Host;
use crate::pods::objects::{Found, Uses};
use crate::pods::volumes::{self, Layout, Plan, Problem};

/// How long a volume that could not be set up waits, at first and at most; the kubelet's.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));

/// What has been got so far.
#[derive(Debug)]
pub(super) struct Provided {
    uses: Option<Uses>,
    /// Whether a change would be told.
    listening: bool,
    /// Whether every volume has been set up once. Then containers may be started, also while a
    /// later change cannot be shown in a volume.
    ready: bool,
    /// Whether volumes are to be set up, and whether that is under way.
    due: bool,
    busy: bool,
    /// Counts the attempts, and those that failed since one succeeded.
    attempt: u32,
    failures: u32,
}

impl Default for Provided {
    fn default() -> Self {
        Provided {
            uses: None,
            listening: false,
            ready: false,
            due: true,
            busy: false,
            attempt: 0,
            failures: 0,
        }
    }
}

/// What came of an attempt to set volumes up.
#[derive(Debug)]
pub(super) struct Tried {
    /// Whether some wait for an object that has not been read.
    waits: bool,
    problems: Vec<Problem>,
}

impl Provided {
    pub(super) fn found(&self) -> Found {
        self.uses.as_ref().map(Uses::found).unwrap_or_default()
    }

    pub(super) fn volumes_ready(&self) -> bool {
        self.ready
    }

    pub(super) fn changed(&mut self) {
        self.listening = false;
        self.due = true;
    }

    /// Nothing is being set up any more.
    pub(super) fn settled(&mut self) {
        self.busy = false;
    }

    pub(super) fn due(&mut self, attempt: u32) {
        self.due |= attempt == self.attempt;
    }
}

impl Worker {
    /// Gets what is missing, and sees to it that changes are told.
    pub(super) fn provide(&mut self, pod: &Pod) {
        let (provided, context) = (&mut self.provided, &self.context);
        let uses = provided.uses.get_or_insert_with(|| context.objects.of(pod));
        // Before anything is read: what changes from now on is told.
        if !provided.listening {
            provided.listening = true;
            let changed = uses.changed().map(|()| Happening::ObjectsChanged);
            self.happenings.push(changed.boxed());
        }
        if pod.spec.volumes.is_empty() {
            provided.ready = true;
        } else if provided.due && !provided.busy {
            provided.due = false;
            provided.busy = true;
            provided.attempt = provided.attempt.wrapping_add(1);
            let layout = Layout::new(&context.data_dir, &self.uid);
            let plan = volumes::plan(pod, &layout, &uses.found());
            self.happenings.push(set_up(layout, plan).boxed());
        }
    }

    pub(super) fn volumes_set_up(&mut self, pod: &Pod, tried: Tried) {
        let provided = &mut self.provided;
        provided.busy = false;
        if tried.problems.is_empty() {
            provided.failures = 0;
            provided.ready |= !tried.waits;
            return;
        }
        let wait = RETRY.0 * 2_u32.saturating_pow(provided.failures);
        provided.failures = provided.failures.saturating_add(1);
        let again = Happening::VolumesDue(provided.attempt);
        let retry = tokio::time::sleep(wait.min(RETRY.1)).map(|()| again);
        self.happenings.push(retry.boxed());
        for Problem { volume, message } in tried.problems {
            warn!(pod = self.uid, volume, message, "cannot set a volume up");
            let about = self.reference(pod, None);
            self.context.events.warning(
                about,
                reasons::FAILED_MOUNT,
                format!("MountVolume.SetUp failed for volume {volume:?} : {message}"),
            );
        }
    }

    /// Waits until nothing is being set up any more.
    pub(super) async fn volumes_settle(&mut self) {
        while self.provided.busy {
            match self.happenings.next().await {
                Some(Happening::VolumesSetUp(_)) | None => self.provided.settled(),
                Some(_) => {}
            }
        }
    }
}

async fn set_up(layout: Layout, plan: Plan) -> Happening {
    let Plan {
        volumes,
        waits,
        mut problems,
    } = plan;
    let setting_up = move || volumes::set_up(&layout, &volumes);
    match tokio::task::spawn_blocking(setting_up).await {
        Ok(failed) => problems.extend(failed),
        Err(error) => problems.push(Problem {
            volume: String::new(),
            message: error.to_string(),
        }),
    }
    Happening::VolumesSetUp(Tried { waits, problems })
}

/// Removes everything of a pod's volumes. What cannot be removed now is an orphan at the next start.
pub(crate) async fn remove_volumes(context: &Host, uid: &str) {
    let layout = Layout::new(&context.data_dir, uid);
    let removed = tokio::task::spawn_blocking(move || volumes::remove(&layout)).await;
    if let Err(error) = removed.unwrap_or_else(|error| Err(error.into())) {
        warn!(pod = uid, %error, "volumes could not be removed");
    }
}
