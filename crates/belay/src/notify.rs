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
//! being killed, unless it was told to keep it. Deleting what still runs cancels it.

mod board;
mod fleet;
mod preview;
mod report;
mod rights;

use std::time::Instant;

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
use crate::follow::{self, Ending, SETTLING};
use crate::format::{self, Format};
use crate::kind::{Kind, reference};
use crate::signals::Interrupts;
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
        return preview::of_pods(&connection, args, &pods, global.output).await;
    }
    let request = uuid::Uuid::new_v4().simple().to_string();
    let interrupts = Interrupts::listen()?;
    let started = Instant::now();

    let wanted = pods
        .iter()
        .map(|pod| draft(pod, args, Some(&request)))
        .collect();
    let mut board = tokio::select! {
        board = create(&connection, wanted) => board,
        () = interrupts.received() => return Err(anyhow::anyhow!(
            "interrupted before {} answered; `kubectl delete pn -l {REQUEST_LABEL}={request}` cancels what it took all the same",
            connection.server
        )),
    };
    let (created, refused) = board.created_and_refused();
    if created == 0 && refused == 1 {
        // One target, one refusal: the server's own words are the whole answer.
        return Err(board.into_first_refusal());
    }
    for line in board.take_news(started.elapsed()) {
        format::note(&line);
    }
    if args.no_wait {
        return no_wait(&board, global.output);
    }

    let ending = wait(
        &connection,
        &mut board,
        &request,
        args,
        &interrupts,
        started,
    )
    .await;
    if !args.keep {
        // A second Ctrl-C ends the cleaning up too.
        tokio::select! {
            () = clean_up(&connection, &board) => {}
            () = interrupts.received() => format::note("not cleaned up; `belay get pn` shows what is left"),
        }
    }
    match ending {
        Ending::AllFinal => {}
        Ending::TimedOut => format::note(if args.keep {
            "timed out waiting; what has no result yet goes on"
        } else {
            "timed out waiting; what had no result yet was cancelled"
        }),
        Ending::Interrupted => {
            format::note(if args.keep {
                "interrupted; the notifications are kept and go on"
            } else {
                "interrupted; the notifications were deleted, which cancels what was running"
            });
        }
    }
    let exit = report::exit(&board);
    match global.output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            format::print_objects(board.objects()?, format)?;
        }
        Some(Format::Wide) | None => {
            format::out(&report::render(&board))?;
            for note in report::notes(&board) {
                format::note(&note);
            }
        }
    }
    match ending {
        Ending::AllFinal => Ok(exit),
        Ending::TimedOut | Ending::Interrupted => Ok(Exit::Failed),
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

async fn create(connection: &Connection, wanted: Vec<PodNotification>) -> Board {
    let api: Api<PodNotification> =
        Api::namespaced(connection.client.clone(), &connection.namespace);
    let answers: Vec<_> = futures::stream::iter(wanted)
        .map(|object| {
            let api = api.clone();
            async move {
                let answer = api.create(&PostParams::default(), &object).await;
                (object.spec.pod_name, answer)
            }
        })
        .buffered(CONCURRENT)
        .collect()
        .await;
    let mut board = Board::default();
    for (pod, answer) in answers {
        match answer {
            Ok(object) => board.created(pod, object),
            Err(error) => board.refused(pod, connection.explain(error)),
        }
    }
    board
}

fn no_wait(board: &Board, output: Option<Format>) -> anyhow::Result<Exit> {
    match output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            format::print_objects(board.objects()?, format)?;
        }
        Some(Format::Wide) | None => {
            for name in board.names() {
                format::out(&format!("podnotification.apps.k8s.io/{name} created\n"))?;
            }
        }
    }
    let (_, refused) = board.created_and_refused();
    Ok(if refused == 0 {
        Exit::Done
    } else {
        Exit::Failed
    })
}

/// Watches until everything has its final state. A watch that breaks off, because the server is
/// restarted for instance, is taken up again where it was.
async fn wait(
    connection: &Connection,
    board: &mut Board,
    request: &str,
    args: &NotifyArgs,
    interrupts: &Interrupts,
    started: Instant,
) -> Ending {
    let api: Api<PodNotification> =
        Api::namespaced(connection.client.clone(), &connection.namespace);
    let selector = format!("{REQUEST_LABEL}={request}");
    let mut events = watcher(api, watcher::Config::default().labels(&selector))
        .default_backoff()
        .boxed();
    let give_up = async {
        match args.timeout {
            Some(timeout) => tokio::time::sleep(timeout + SETTLING).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(give_up);
    let mut away = false;
    while board.pending() > 0 {
        let event = tokio::select! {
            () = interrupts.received() => return Ending::Interrupted,
            () = &mut give_up => return Ending::TimedOut,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                if away {
                    format::note("the server is back");
                    away = false;
                }
                board.observe(event);
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "watch interrupted");
                if !away {
                    format::note(&format!(
                        "{} does not answer; still waiting",
                        connection.server
                    ));
                    away = true;
                }
            }
            None => return Ending::TimedOut,
        }
        for line in board.take_news(started.elapsed()) {
            format::note(&line);
        }
    }
    Ending::AllFinal
}

async fn clean_up(connection: &Connection, board: &Board) {
    let api: Api<PodNotification> =
        Api::namespaced(connection.client.clone(), &connection.namespace);
    futures::stream::iter(board.still_there())
        .for_each_concurrent(CONCURRENT, |object| {
            let api = api.clone();
            async move {
                let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
                if let Err(error) = follow::delete(connection, &api, &name, &uid).await {
                    format::note(&format!("pn/{name} is left behind: {error:#}"));
                }
            }
        })
        .await;
}

/// An object as JSON, as `-o json` prints it.
fn to_value(object: &impl Serialize) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(object)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
    fn the_timeout_becomes_the_deadline() {
        let mut with_timeout = args(&["web"]);
        assert_eq!(draft("web", &with_timeout, None).spec.deadline_seconds, 60);
        with_timeout.timeout = Some(Duration::from_secs(5));
        let object = draft("web", &with_timeout, Some("r1"));
        assert_eq!(object.spec.deadline_seconds, 5);
        assert_eq!(object.labels()[REQUEST_LABEL], "r1");
    }
}
