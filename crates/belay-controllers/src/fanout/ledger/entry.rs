//! One Notification in the ledger.

use std::collections::HashSet;
use std::time::Duration;

use belay_api::fanout::{Notification, NotificationStatus};
use belay_api::selector::LabelSelector;
use belay_core::fanout::{Fanout, Target};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::fanout::pods::PodFacts;
use crate::fanout::record::{self, Refusal};
use crate::fanout::work::RETRY;

/// The longest pause between attempts to create what the server refuses.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum Entry {
    /// Nobody has begun with it; `busy` while its pods are being listed.
    New {
        object: Box<Notification>,
        busy: bool,
    },
    Active(Box<Active>),
    /// Nothing more will happen, or it is being deleted.
    Final,
}

/// Until when nothing is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) until: Instant,
    pub(super) why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The server did not answer: nobody else would have better luck.
    Unanswered,
    /// It refused all there were. Whoever comes after that need not wait.
    AllRefused,
}

#[derive(Debug)]
pub(super) struct Active {
    /// Without its status, which is `written`.
    pub(super) object: Notification,
    pub(super) fanout: Fanout,
    pub(super) refused: Option<Refusal>,
    selector: Option<LabelSelector>,
    /// The status on the server, as far as it is known.
    pub(super) written: NotificationStatus,
    /// The status that is being written.
    pub(super) writing: Option<NotificationStatus>,
    /// Whether the start is on the server. Nobody is notified before.
    pub(super) started: bool,
    /// Whether its children are still being told.
    pub(super) loading: bool,
    /// Whether something changed since the last look at what is to be written.
    pub(super) dirty: bool,
    pub(super) next_write: Instant,
    /// Not before this, because the last attempt failed.
    pub(super) retry_at: Option<Instant>,
    /// Creations wait because one came to nothing.
    pub(super) hold: Option<Hold>,
    pause: Duration,
    /// When the timer for its deadline goes off, or went.
    pub(super) look_at: Option<Instant>,
    /// How many of its pods wait for their turn, as the ledger has counted them.
    pub(super) waiting: usize,
    /// Whether it stands in the queue of those who may create.
    pub(super) queued: bool,
    /// Pods whose children are being let go.
    pub(super) releasing: HashSet<String>,
}

impl Active {
    /// One that begins; its start has to be written first.
    pub(super) fn new(
        object: Notification,
        targets: Vec<Target>,
        refused: Option<Refusal>,
        now: Instant,
    ) -> Self {
        let fanout = Fanout::new(record::rule(&object), targets);
        Self::with(object, fanout, refused, now)
    }

    /// One that was begun earlier; its children are told next.
    pub(super) fn resumed(object: Notification) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let fanout = Fanout::load(record::rule(&object), record::memory(&status));
        Self {
            started: true,
            loading: true,
            ..Self::with(object, fanout, None, Instant::now())
        }
    }

    fn with(
        mut object: Notification,
        fanout: Fanout,
        refused: Option<Refusal>,
        now: Instant,
    ) -> Self {
        Self {
            written: object.status.take().unwrap_or_default(),
            selector: record::selector(&object).ok(),
            object,
            fanout,
            refused,
            writing: None,
            started: false,
            loading: false,
            dirty: true,
            next_write: now,
            retry_at: None,
            hold: None,
            pause: RETRY,
            look_at: None,
            waiting: 0,
            queued: false,
            releasing: HashSet::new(),
        }
    }

    /// The object as the watch shows it. While its status is the one that was last written, it is
    /// as new as what is known; else it is older, or a conflict will tell.
    pub(super) fn told(&mut self, object: Notification) {
        if self.writing.is_none() && object.status.unwrap_or_default() == self.written {
            self.object.metadata = object.metadata;
        }
    }

    /// A pod, for a Notification with `AllPods`.
    pub(super) fn pod(&mut self, pod: &PodFacts) {
        let matches = self
            .selector
            .as_ref()
            .is_some_and(|selector| selector.matches(&pod.labels));
        if matches && pod.eligible {
            self.fanout.pod_eligible(&pod.target);
        } else {
            self.fanout.pod_ineligible(&pod.target);
        }
        self.dirty = true;
    }

    /// Nobody else is notified once the Notification's own time is over. Returns when to look again.
    pub(super) fn check_time(&mut self, wall: Timestamp, now: Instant) -> Option<Instant> {
        if record::is_expired(&self.object, wall) {
            self.dirty |= !self.fanout.ran_out_of_time();
            self.fanout.expire();
            return None;
        }
        // Not for longer than this at once: the deadline is wall time, and timers are not.
        let left = record::time_left(&self.object, wall)?.min(LONGEST_PAUSE);
        Some(now + left)
    }

    fn over(&self) -> bool {
        self.refused.is_some() || self.fanout.complete()
    }

    /// Whether somebody else may be notified. When its own time is over nobody is any more, although
    /// those who are being notified go on.
    pub(super) fn may_create(&self) -> bool {
        self.started && !self.over() && !self.fanout.ran_out_of_time()
    }

    /// Whether the next one has to wait.
    pub(super) fn is_held_off(&self, now: Instant) -> bool {
        self.hold
            .filter(|hold| hold.until > now)
            .is_some_and(|hold| match hold.why {
                Why::Unanswered => true,
                Why::AllRefused => self.fanout.only_put_off(),
            })
    }

    /// Holds off creations after one that came to nothing; for longer each time. Returns until when,
    /// unless they are held off for that already.
    pub(super) fn hold_off(&mut self, why: Why, now: Instant) -> Option<Instant> {
        let held = self.hold.filter(|hold| hold.until > now);
        if held.is_some_and(|hold| hold.why == why || hold.why == Why::Unanswered) {
            return None;
        }
        let until = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.hold = Some(Hold { until, why });
        Some(until)
    }

    /// A creation was accepted: the next refusal is a first one again.
    pub(super) fn accepted(&mut self) {
        self.pause = RETRY;
    }

    /// The end is written at once, everything else when the pause is over.
    pub(super) fn write_not_before(&self) -> Option<Instant> {
        let paced = (!self.over()).then_some(self.next_write);
        self.retry_at.max(paced)
    }

    /// What has to be written now, if it differs from what is there.
    pub(super) fn write(&mut self, now: Timestamp) -> Option<(Notification, NotificationStatus)> {
        let status = record::status(
            &self.object,
            &self.fanout,
            self.refused.as_ref(),
            &self.written,
            now,
        );
        if status == self.written {
            return None;
        }
        self.writing = Some(status.clone());
        Some((self.object.clone(), status))
    }
}
