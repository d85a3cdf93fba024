//! `belay notify`: creates PodNotifications, waits for them, says what came of them, cleans up.
//! With a selector it is one Notification; see [`fleet`].
//!
//! ```text
//!  targets --> create (one each, one label for all) --> watch by that label --> report
//!                                                            |                    |
//!                                 Ctrl-C, --timeout ---------'        delete, unless kept
//! ```
//!
//! **Invariant:** what this command created is deleted when it ends, however it ends short of
//! being killed, unless it was told to keep it or may not watch it. Deleting what still runs cancels
//! it. What could not be deleted is named.
//!
//! **Invariant:** an answer that comes is not thrown away: what a request under way has created is
//! known when Ctrl-C ends the others.

mod board;
mod fleet;
mod preview;
mod report;
mod rights;

use std::cell::Cell;
use std::future::ready;
use std::time::{Duration, Instant};

use belay_api::notification::{PodNotification, PodNotificationSpec};
use futures::stream::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use serde::Serialize;
use serde_json::Value;

use crate::cli::{Global, NotifyArgs};
use crate::connect::{Connection, connect};
use crate::exit::{Exit, usage};
use crate::follow::{self, CLEANING, Ending, Follow, Followed as _};
use crate::format::{self, Format};
use crate::kind::{Kind, reference};
use crate::signals::{Cut, Interrupts};
use board::Board;

pub(crate) use preview::action;
pub(crate) use report::{detail, failure, result};

/// The label that ties together what one command created, so that one watch sees all of it.
const REQUEST_LABEL: &str = "apps.k8s.io/notify-request";
/// How many notifications are created or deleted at once.
const CONCURRENT: usize = 16;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &NotifyArgs) -> anyhow::Result<Exit> {
    if let Some(selector) = &args.selector {
        return fleet::run(global, args, selector).await;
    }
    let pods = targets(args)?;
    let connection = connect(global).await?;
    if args.dry_run {
        let shown = preview::of_pods(&connection, args, &pods, global.output);
        return preview::within(&connection, args.timeout, shown).await;
    }
    let request = Request {
        connection: &connection,
        id: uuid::Uuid::new_v4().simple().to_string(),
        interrupts: Interrupts::listen()?,
        started: Instant::now(),
    };
    let wanted = pods
        .iter()
        .map(|pod| draft(pod, args, Some(&request.id)))
        .collect();
    let (mut board, cut) = request.create(wanted, follow::limit(args.timeout)).await;
    let (created, refused) = board.created_and_refused();
    if created == 0 && refused == 1 && cut.is_none() {
        // One target, one refusal: the server's own words are the whole answer.
        return Err(board.into_first_refusal());
    }
    for line in board.take_news(request.started.elapsed()) {
        format::note(&line);
    }
    let unanswered = pods.len() - created - refused;
    if let Some(cut) = cut.filter(|_| unanswered > 0) {
        let told = format!(
            "{} ({unanswered} of {} requests); {} what it took all the same",
            cut.told(&connection.server),
            pods.len(),
            request.cancels()
        );
        if created == 0 {
            return Err(anyhow::anyhow!(told));
        }
        format::note(&told);
    }
    if args.no_wait {
        return no_wait(&board, pods.len(), cut, global.output);
    }
    let ending = match cut {
        Some(cut) => cut.into(),
        None => request.wait(&mut board, args.timeout).await,
    };
    let fate = match ending {
        Ending::Unseen => Fate::GoesOn,
        _ if args.keep => Fate::GoesOn,
        _ if request.clean_up(&board).await => Fate::Deleted,
        _ => Fate::LeftBehind,
    };
    if let Some(told) = told_of(ending, fate) {
        format::note(told);
    }
    if ending == Ending::Unseen {
        format::note(&format!(
            "to wait for them takes the verbs list and watch on podnotifications.{} in namespace {}; --no-wait takes neither. {} them",
            belay_api::GROUP,
            connection.namespace,
            request.cancels()
        ));
    }
    let exit = report::exit(&board);
    match global.output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            format::print_asked(pods.len(), board.objects()?, format)?;
        }
        Some(Format::Wide) | None => format::out(&report::render(&board))?,
    }
    for note in report::notes(&board) {
        format::note(&note);
    }
    match ending {
        Ending::AllFinal => Ok(exit),
        Ending::TimedOut | Ending::Interrupted | Ending::Unseen => Ok(Exit::Failed),
    }
}

/// What becomes of the notifications when the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Deleted,
    /// Not all could be deleted.
    LeftBehind,
    GoesOn,
}

/// What is said of a command that did not see its end.
fn told_of(ending: Ending, fate: Fate) -> Option<&'static str> {
    match (ending, fate) {
        (Ending::AllFinal, _) => None,
        (Ending::Unseen, _) => Some("the notifications were created and go on"),
        (Ending::TimedOut, Fate::Deleted) => Some(
            "timed out waiting; the notifications were deleted, which cancels what was running",
        ),
        (Ending::TimedOut, Fate::GoesOn) => {
            Some("timed out waiting; what has no result yet goes on")
        }
        (Ending::TimedOut, Fate::LeftBehind) => {
            Some("timed out waiting; what is left behind and has no result yet goes on")
        }
        (Ending::Interrupted, Fate::Deleted) => {
            Some("interrupted; the notifications were deleted, which cancels what was running")
        }
        (Ending::Interrupted, Fate::GoesOn) => {
            Some("interrupted; the notifications are kept and go on")
        }
        (Ending::Interrupted, Fate::LeftBehind) => Some("interrupted; what is left behind goes on"),
    }
}

/// The pods named on the command line, each once, in order.
fn targets(args: &NotifyArgs) -> anyhow::Result<Vec<String>> {
    let mut pods = Vec::new();
    for text in &args.pods {
        let (kind, name) = reference(text, Some(Kind::Pod))?;
        if kind != Kind::Pod {
            return Err(usage(format!(
                "{text:?} is no pod; only pods can be notified"
            )));
        }
        if !pods.contains(&name) {
            pods.push(name);
        }
    }
    if pods.is_empty() {
        return Err(usage(
            "no pod named: belay notify NOTIFIER pod/NAME ..., or -l SELECTOR (`belay get pods` lists them)",
        ));
    }
    Ok(pods)
}

/// The object that asks for one pod.
fn draft(pod: &str, args: &NotifyArgs, request: Option<&str>) -> PodNotification {
    let mut spec = PodNotificationSpec::new(pod, &args.notifier);
    if let Some(timeout) = args.timeout {
        spec.deadline_seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
    }
    let mut object = PodNotification::new("", spec);
    object.metadata = ObjectMeta {
        generate_name: Some(name_prefix(pod, &args.notifier)),
        labels: request.map(|id| [(REQUEST_LABEL.to_owned(), id.to_owned())].into()),
        ..ObjectMeta::default()
    };
    object
}

/// What generated names begin with: pod and notifier, made fit for an object name and short enough
/// that the server's random ending stays whole.
pub(crate) fn name_prefix(pod: &str, notifier: &str) -> String {
    let fit: String = format!("{pod}-{notifier}")
        .to_ascii_lowercase()
        .chars()
        .map(|c| match c {
            'a'..='z' | '0'..='9' | '-' => c,
            _ => '-',
        })
        .take(57)
        .collect();
    format!("{}-", fit.trim_end_matches('-'))
}

/// The notifications of one command.
struct Request<'a> {
    connection: &'a Connection,
    /// In their label.
    id: String,
    interrupts: Interrupts,
    started: Instant,
}

impl Request<'_> {
    fn api(&self) -> Api<PodNotification> {
        Api::namespaced(self.connection.client.clone(), &self.connection.namespace)
    }

    /// What cancels all of them, as the beginning of a sentence.
    fn cancels(&self) -> String {
        let (id, namespace) = (&self.id, &self.connection.namespace);
        format!("`kubectl delete pn -l {REQUEST_LABEL}={id} -n {namespace}` cancels")
    }

    /// Creates them, a few at a time. When a signal comes or the time is over no more are sent; what is
    /// under way may still be answered for a while, or until the next signal.
    async fn create(
        &self,
        wanted: Vec<PodNotification>,
        within: Option<Duration>,
    ) -> (Board, Option<Cut>) {
        let api = self.api();
        let stopped = Cell::new(false);
        let sent = futures::stream::iter(wanted.into_iter().enumerate())
            .take_while(|_| ready(!stopped.get()))
            .map(|(place, object)| {
                let api = &api;
                async move {
                    let answer = api.create(&PostParams::default(), &object).await;
                    (place, object.spec.pod_name, answer)
                }
            })
            .buffer_unordered(CONCURRENT);
        let mut answers = Vec::new();
        let cut = {
            let mut collecting = std::pin::pin!(sent.for_each(|answer| {
                answers.push(answer);
                ready(())
            }));
            let interrupts = &self.interrupts;
            let cut = interrupts.unless(within, collecting.as_mut()).await.err();
            if let Some(cut) = cut {
                stopped.set(true);
                format::note(&format!(
                    "{}; waiting for what is under way, once more Ctrl-C ends that",
                    cut.told(&self.connection.server)
                ));
                // Whoever called counts what was not answered then either.
                let _ = interrupts.unless(Some(CLEANING), collecting.as_mut()).await;
            }
            cut
        };
        // They are told in the order in which they were named.
        answers.sort_by_key(|(place, ..)| *place);
        let mut board = Board::default();
        for (_, pod, answer) in answers {
            match answer {
                Ok(object) => board.created(pod, object),
                Err(error) => board.refused(pod, self.connection.explain(error)),
            }
        }
        (board, cut)
    }

    /// Watches until everything has its final state.
    async fn wait(&self, board: &mut Board, timeout: Option<Duration>) -> Ending {
        let label = format!("{REQUEST_LABEL}={}", self.id);
        let events =
            watcher(self.api(), watcher::Config::default().labels(&label)).default_backoff();
        let follow = Follow {
            connection: self.connection,
            interrupts: &self.interrupts,
            timeout,
            started: self.started,
        };
        follow.until_over(board, follow::contact(events)).await
    }

    /// Deletes them, a few at a time, and names what could not be. Returns whether all have gone.
    async fn clean_up(&self, board: &Board) -> bool {
        let api = self.api();
        let (all_went, silent) = (Cell::new(true), Cell::new(false));
        let cleaning = futures::stream::iter(board.still_there())
            // A server that has not answered one will not answer the next.
            .take_while(|_| ready(!silent.get()))
            .for_each_concurrent(CONCURRENT, |object| {
                let (api, all_went, silent) = (&api, &all_went, &silent);
                async move {
                    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
                    let delete = follow::delete(self.connection, api, &name, &uid);
                    match tokio::time::timeout(CLEANING, delete).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            all_went.set(false);
                            format::note(&format!("pn/{name} is left behind: {error:#}"));
                        }
                        Err(_) => silent.set(true),
                    }
                }
            });
        // A second Ctrl-C ends the cleaning up too.
        let cut = self.interrupts.unless(None, cleaning).await.err();
        let cut = cut.or_else(|| silent.get().then_some(Cut::Late(CLEANING)));
        if let Some(cut) = cut {
            let told = cut.told(&self.connection.server);
            format::note(&format!(
                "not all were cleaned up: {told}; {} what is left",
                self.cancels()
            ));
        }
        all_went.get() && cut.is_none()
    }
}

fn no_wait(
    board: &Board,
    asked: usize,
    cut: Option<Cut>,
    output: Option<Format>,
) -> anyhow::Result<Exit> {
    match output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            format::print_asked(asked, board.objects()?, format)?;
        }
        Some(Format::Wide) | None => {
            for name in board.names() {
                format::out(&format!("podnotification.apps.k8s.io/{name} created\n"))?;
            }
        }
    }
    for note in report::notes(board) {
        format::note(&note);
    }
    let (_, refused) = board.created_and_refused();
    Ok(if refused == 0 && cut.is_none() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

/// An object as JSON, as `-o json` prints it.
fn to_value(object: &impl Serialize) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(object)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn args(pods: &[&str]) -> NotifyArgs {
        NotifyArgs {
            notifier: "reload".into(),
            pods: pods.iter().map(|p| (*p).to_owned()).collect(),
            selector: None,
            policy: None,
            parallelism: None,
            max_failures: None,
            timeout: None,
            dry_run: false,
            no_wait: false,
            keep: false,
        }
    }

    #[test]
    fn pods_are_named_with_or_without_their_kind_and_count_once() {
        let found = targets(&args(&["pod/a", "b", "pods/a", "po/c"])).unwrap();
        assert_eq!(found, ["a", "b", "c"]);
    }

    #[test]
    fn what_is_no_pod_is_wrong_usage() {
        for pods in [&["node/a"][..], &["svc/a"], &["A"], &[]] {
            let error = targets(&args(pods)).unwrap_err();
            assert_eq!(crate::exit::of_error(&error), Exit::Usage, "{pods:?}");
        }
    }

    #[test]
    fn generated_names_begin_with_pod_and_notifier_and_leave_room() {
        assert_eq!(name_prefix("web", "reload"), "web-reload-");
        assert_eq!(
            name_prefix("web.v1", "Example.com/Flush_It"),
            "web-v1-example-com-flush-it-"
        );
        let long = name_prefix(&"p".repeat(200), "reload");
        assert_eq!(long.len(), 58);
        assert!(long.ends_with("p-"));
    }

    #[test]
    fn only_what_was_deleted_is_said_to_be_cancelled() {
        for ending in [Ending::TimedOut, Ending::Interrupted] {
            for fate in [Fate::Deleted, Fate::LeftBehind, Fate::GoesOn] {
                let told = told_of(ending, fate).unwrap();
                assert_eq!(told.contains("cancel"), fate == Fate::Deleted, "{told}");
            }
        }
        assert_eq!(told_of(Ending::AllFinal, Fate::LeftBehind), None);
    }

    #[test]
    fn the_timeout_becomes_the_deadline() {
        let mut with_timeout = args(&["web"]);
        assert_eq!(draft("web", &with_timeout, None).spec.deadline_seconds, 60);
        with_timeout.timeout = Some(Duration::from_secs(5));
        let object = draft("web", &with_timeout, Some("r1"));
        assert_eq!(object.spec.deadline_seconds, 5);
        assert_eq!(object.labels()[REQUEST_LABEL], "r1");
    }
}
