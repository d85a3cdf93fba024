//! What is known of each notification of one command, and what of that is news. Pure: watch events
//! and times come in, lines and counts go out.

use std::collections::HashMap;
use std::time::Duration;

use belay_api::notification::{PodNotification, PodNotificationStatus};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use serde_json::Value;

use crate::follow::Followed;
use crate::table::printable;

/// One target and what became of it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) pod: String,
    pub(super) standing: Standing,
}

/// Where a target stands.
#[derive(Debug)]
pub(super) enum Standing {
    /// The server would not create the notification.
    Refused(anyhow::Error),
    /// It exists, in this state.
    There(Box<PodNotification>),
    /// Somebody else deleted it before it ended; this is how it was.
    Gone(Box<PodNotification>),
}

/// All targets, in the order in which they were named.
#[derive(Debug, Default)]
pub(super) struct Board {
    entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
    listed: Vec<String>,
    news: Vec<String>,
}

impl Board {
    /// The server created a notification for this pod.
    pub(super) fn created(&mut self, pod: String, object: PodNotification) {
        self.news
            .push(format!("{pod}: created pn/{}", object.name_any()));
        self.tell_end(&pod, &object);
        self.by_name.insert(object.name_any(), self.entries.len());
        self.entries.push(Entry {
            pod,
            standing: Standing::There(Box::new(object)),
        });
    }

    /// The server refused to.
    pub(super) fn refused(&mut self, pod: String, error: anyhow::Error) {
        let why = printable(&format!("{error:#}"));
        self.news.push(format!("{pod}: refused: {why}"));
        self.entries.push(Entry {
            pod,
            standing: Standing::Refused(error),
        });
    }

    fn update(&mut self, object: &PodNotification) {
        let Some(index) = self.by_name.get(&object.name_any()).copied() else {
            return;
        };
        let entry = &mut self.entries[index];
        let Standing::There(known) = &mut entry.standing else {
            return;
        };
        if known.state().is_final() {
            return;
        }
        let pod = entry.pod.clone();
        if claim(known).is_none()
            && let Some(executor) = claim(object)
            && !object.state().is_final()
        {
            let containers = container_names(object.status.as_ref());
            self.news
                .push(format!("{pod}: started on {executor}{containers}"));
        }
        **known = object.clone();
        self.tell_end(&pod, object);
    }

    fn tell_end(&mut self, pod: &str, object: &PodNotification) {
        if object.state().is_final() {
            let state = object.state().as_str().to_lowercase();
            self.news.push(format!("{pod}: {state}"));
        }
    }

    fn gone(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        if let Standing::There(object) = &entry.standing
            && !object.state().is_final()
        {
            let pod = &entry.pod;
            self.news.push(format!(
                "{pod}: its notification was deleted by somebody else"
            ));
            entry.standing = Standing::Gone(object.clone());
        }
    }

    /// How many have not ended yet.
    pub(super) fn pending(&self) -> usize {
        self.entries
            .iter()
            .filter(|entry| match &entry.standing {
                Standing::There(object) => !object.state().is_final(),
                Standing::Refused(_) | Standing::Gone(_) => false,
            })
            .count()
    }

    /// How many were created, and how many refused.
    pub(super) fn created_and_refused(&self) -> (usize, usize) {
        let created = self.by_name.len();
        (created, self.entries.len() - created)
    }

    /// The error of the first target that was refused.
    pub(super) fn into_first_refusal(self) -> anyhow::Error {
        self.entries
            .into_iter()
            .find_map(|entry| match entry.standing {
                Standing::Refused(error) => Some(error),
                Standing::There(_) | Standing::Gone(_) => None,
            })
            .unwrap_or_else(|| anyhow::anyhow!("nothing was refused"))
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Names of what was created.
    pub(super) fn names(&self) -> Vec<String> {
        self.entries
            .iter()
            .filter_map(Entry::object)
            .map(|o| o.name_any())
            .collect()
    }

    /// What was created and is not known to be gone.
    pub(super) fn still_there(&self) -> Vec<PodNotification> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.standing {
                Standing::There(object) => Some((**object).clone()),
                Standing::Refused(_) | Standing::Gone(_) => None,
            })
            .collect()
    }

    /// The objects as they were last seen.
    pub(super) fn objects(&self) -> anyhow::Result<Vec<Value>> {
        self.entries
            .iter()
            .filter_map(Entry::object)
            .map(super::to_value)
            .collect()
    }
}

impl Followed for Board {
    type Event = Event<PodNotification>;
    const UNHEARD: &'static str = "does the agent of the pod's node run, and on a cluster the controller? (`belay get nodes`)";

    fn is_heard(event: &Event<PodNotification>) -> bool {
        !matches!(event, Event::Init)
    }

    fn observe(&mut self, event: Event<PodNotification>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.listed.push(object.name_any());
                self.update(&object);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let missing: Vec<usize> = self
                    .by_name
                    .iter()
                    .filter(|(name, _)| !listed.contains(name))
                    .map(|(_, index)| *index)
                    .collect();
                for index in missing {
                    self.gone(index);
                }
            }
            Event::Apply(object) => self.update(&object),
            Event::Delete(object) => {
                if let Some(index) = self.by_name.get(&object.name_any()).copied() {
                    // The last state may be in the deletion only.
                    self.update(&object);
                    self.gone(index);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.pending() == 0
    }

    fn acknowledged(&self) -> bool {
        let mut known = self.entries.iter().filter_map(Entry::object);
        known.any(|object| claim(object).is_some() || object.state().is_final())
    }

    fn summary(&self) -> String {
        String::new()
    }

    fn take_news(&mut self, elapsed: Duration) -> Vec<String> {
        std::mem::take(&mut self.news)
            .into_iter()
            .map(|line| format!("+{:.3}s  {line}", elapsed.as_secs_f64()))
            .collect()
    }
}

impl Entry {
    /// The notification as it was last seen, if there ever was one.
    pub(super) fn object(&self) -> Option<&PodNotification> {
        match &self.standing {
            Standing::There(object) | Standing::Gone(object) => Some(object),
            Standing::Refused(_) => None,
        }
    }
}

fn claim(object: &PodNotification) -> Option<&str> {
    object.status.as_ref()?.executor.as_deref()
}

fn container_names(status: Option<&PodNotificationStatus>) -> String {
    let names: Vec<&str> = status
        .iter()
        .flat_map(|status| &status.containers)
        .map(|container| container.name.as_str())
        .collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!(", in {}", names.join(", ")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub(in crate::notify) fn object(name: &str, status: &Value) -> PodNotification {
        serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "PodNotification",
            "metadata": {"name": name, "uid": name},
            "spec": {"podName": "web", "notifier": "reload"},
            "status": status,
        }))
        .unwrap()
    }

    pub(in crate::notify) fn claimed() -> Value {
        json!({"state": "New", "executor": "n1", "containers": [{"name": "main"}]})
    }

    pub(in crate::notify) fn done() -> Value {
        json!({"state": "Succeeded", "executor": "n1", "completeTime": "2026-01-01T00:00:00Z"})
    }

    fn news(board: &mut Board) -> Vec<String> {
        board
            .take_news(Duration::ZERO)
            .into_iter()
            .map(|line| line.trim_start_matches("+0.000s  ").to_owned())
            .collect()
    }

    #[test]
    fn every_step_is_told_once() {
        let mut board = Board::default();
        board.created("web".into(), object("a", &json!({"state": "New"})));
        assert_eq!(news(&mut board), ["web: created pn/a"]);
        assert_eq!(board.pending(), 1);
        board.observe(Event::Apply(object("a", &claimed())));
        board.observe(Event::Apply(object("a", &claimed())));
        assert_eq!(news(&mut board), ["web: started on n1, in main"]);
        board.observe(Event::Apply(object("a", &done())));
        assert_eq!(news(&mut board), ["web: succeeded"]);
        assert_eq!(board.pending(), 0);
    }

    #[test]
    fn one_that_is_final_at_its_creation_is_told_and_not_waited_for() {
        let mut board = Board::default();
        board.created("web".into(), object("a", &done()));
        assert_eq!(news(&mut board), ["web: created pn/a", "web: succeeded"]);
        assert_eq!(board.pending(), 0);
    }

    #[test]
    fn one_that_somebody_deletes_is_not_waited_for() {
        for by_list in [false, true] {
            let mut board = Board::default();
            board.created("web".into(), object("a", &json!({"state": "New"})));
            news(&mut board);
            if by_list {
                board.observe(Event::Init);
                board.observe(Event::InitDone);
            } else {
                board.observe(Event::Delete(object("a", &claimed())));
            }
            assert_eq!(board.pending(), 0);
            let told = news(&mut board);
            let last = told.last().unwrap();
            assert_eq!(last, "web: its notification was deleted by somebody else");
            assert!(board.still_there().is_empty());
        }
    }

    #[test]
    fn a_result_that_comes_with_the_deletion_counts() {
        let mut board = Board::default();
        board.created("web".into(), object("a", &claimed()));
        board.observe(Event::Delete(object("a", &done())));
        assert_eq!(board.pending(), 0);
        assert!(matches!(board.entries()[0].standing, Standing::There(_)));
    }

    #[test]
    fn it_is_acknowledged_when_somebody_has_begun_with_one() {
        let mut board = Board::default();
        for name in ["a", "b"] {
            board.created(name.into(), object(name, &json!({"state": "New"})));
        }
        assert!(!board.acknowledged());
        board.observe(Event::Apply(object("b", &claimed())));
        assert!(board.acknowledged());
    }

    #[test]
    fn why_one_was_refused_is_told_whatever_is_printed_later() {
        let mut board = Board::default();
        board.refused("web".into(), anyhow::anyhow!("no\u{1b}[31m right"));
        assert_eq!(news(&mut board), ["web: refused: no\u{fffd}[31m right"]);
    }

    #[test]
    fn what_others_created_is_not_our_news() {
        let mut board = Board::default();
        board.observe(Event::Apply(object("other", &done())));
        board.observe(Event::Delete(object("other", &done())));
        assert!(news(&mut board).is_empty());
        assert_eq!(board.pending(), 0);
    }
}
