//! `belay notify -l`: one Notification for all pods that match, its progress, and what came of it.
//!
//! ```text
//!  create --> watch it and its children --> final --> list the children once --> groups, table
//!                        |                                                            |
//!     Ctrl-C, --timeout -'-- delete: cancels what runs, says what had run      delete, unless kept
//! ```
//!
//! **Invariant:** what this command created is deleted when it ends, however it ends short of being
//! killed, unless it was told to keep it or may not watch it. What it could not delete it names.

mod groups;
mod tally;

use std::time::{Duration, Instant};

use belay_api::fanout::{Notification, NotificationSpec, OWNER_LABEL, PodSelectionPolicy};
use belay_api::notification::PodNotification;
use futures::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};

use super::{name_prefix, preview};
use crate::cli::{Global, NotifyArgs};
use crate::connect::{Connection, connect};
use crate::exit::{Exit, usage};
use crate::follow::{self, CANCELLING, CLEANING, Ending, Follow, Followed as _, Lost};
use crate::format::{self, Format};
use crate::selector;
use crate::signals::Interrupts;
use tally::{Tally, Told};

/// How long the watch may lag behind the list when everything has gone.
const CATCHING_UP: Duration = Duration::from_secs(5);
/// What `-l` and the options beside it say.
struct Wish {
    /// As it was written, for messages.
    text: String,
    spec: NotificationSpec,
}

/// Runs the command.
pub(super) async fn run(
    global: &Global,
    args: &NotifyArgs,
    selector: &str,
) -> anyhow::Result<Exit> {
    let wish = wish(args, selector)?;
    let output = global.output;
    let connection = &connect(global).await?;
    if args.dry_run {
        let draft = super::to_value(&draft(args, &wish))?;
        let shown = preview::of_selector(connection, args, &wish.text, draft, output);
        return preview::within(connection, args.timeout, shown).await;
    }
    let interrupts = Interrupts::listen()?;
    let api: Api<Notification> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let draft = draft(args, &wish);
    let params = PostParams::default();
    let started = Instant::now();
    let create = api.create(&params, &draft);
    let created = interrupts.unless(follow::limit(args.timeout), create).await;
    let created = created.map_err(|cut| {
        let namespace = &connection.namespace;
        anyhow::anyhow!(
            "{}; if it took the request all the same, `belay get ntf -n {namespace}` shows it and `kubectl delete ntf NAME -n {namespace}` cancels it",
            cut.told(&connection.server)
        )
    })?;
    let created = created.map_err(|error| connection.explain(error))?;
    let name = created.name_any();
    if args.no_wait {
        match output {
            Some(format @ (Format::Json | Format::Yaml)) => format::print(&created, format)?,
            Some(Format::Wide) | None => {
                format::out(&format!("notification.apps.k8s.io/{name} created\n"))?;
            }
        }
        return Ok(Exit::Done);
    }
    let mut request = Request {
        connection,
        args,
        watched: watch_children(connection, &created),
        tally: Tally::new(created),
        interrupts,
        api,
        started,
    };
    let ending = request.wait().await;
    let cleaned = request.finish(ending).await;
    let tally = &request.tally;
    match output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            format::print_list(&tally.objects()?, format)?;
        }
        Some(Format::Wide) | None => {
            format::out(&groups::render(tally, output == Some(Format::Wide)))?;
        }
    }
    for note in groups::notes(tally, &wish.text, &connection.namespace) {
        format::note(&note);
    }
    if let Err(error) = cleaned {
        format::note(&format!("ntf/{name} is left behind: {error:#}"));
    }
    Ok(match ending {
        Ending::AllFinal => groups::exit(tally),
        Ending::TimedOut | Ending::Interrupted | Ending::Unseen => Exit::Failed,
    })
}

/// Reads the options, as far as only their combination can be wrong.
fn wish(args: &NotifyArgs, text: &str) -> anyhow::Result<Wish> {
    let policy = args
        .policy
        .map_or(PodSelectionPolicy::PreExistingPods, Into::into);
    if policy == PodSelectionPolicy::AllPods && !args.no_wait && !args.dry_run {
        return Err(usage(
            "--policy AllPods also notifies pods that come later, so it never ends and cannot be waited for: add --no-wait (it goes on until `kubectl delete ntf NAME`), or leave --policy out to notify the pods there are now",
        ));
    }
    let mut spec = NotificationSpec::new(selector::object(text)?, &args.notifier);
    spec.policy = policy;
    spec.parallelism = args.parallelism.unwrap_or(0);
    spec.max_failures = args.max_failures;
    if let Some(timeout) = args.timeout {
        spec.deadline_seconds = Some(i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX));
    }
    Ok(Wish {
        text: text.to_owned(),
        spec,
    })
}

fn draft(args: &NotifyArgs, wish: &Wish) -> Notification {
    let mut object = Notification::new("", wish.spec.clone());
    object.metadata = ObjectMeta {
        generate_name: Some(name_prefix("notify", &args.notifier)),
        ..ObjectMeta::default()
    };
    object
}

fn label_of(notification: &Notification) -> String {
    format!("{OWNER_LABEL}={}", notification.uid().unwrap_or_default())
}

fn watch_children(connection: &Connection, notification: &Notification) -> Events<PodNotification> {
    let api = Api::namespaced(connection.client.clone(), &connection.namespace);
    let config = watcher::Config::default().labels(&label_of(notification));
    watcher(api, config).default_backoff().boxed()
}

/// One Notification that is waited for.
struct Request<'a> {
    connection: &'a Connection,
    args: &'a NotifyArgs,
    api: Api<Notification>,
    /// Its children, until all is over: how each ended is told here, and nowhere else once it is gone.
    watched: Events<PodNotification>,
    tally: Tally,
    interrupts: Interrupts,
    started: Instant,
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

impl Request<'_> {
    fn children(&self) -> (Api<PodNotification>, String) {
        let (client, namespace) = (self.connection.client.clone(), &self.connection.namespace);
        let label = label_of(self.tally.notification());
        (Api::namespaced(client, namespace), label)
    }

    /// Watches until it is final.
    async fn wait(&mut self) -> Ending {
        let own = format!("metadata.name={}", self.tally.name());
        let own = watcher(self.api.clone(), watcher::Config::default().fields(&own));
        let own = follow::contact(own.default_backoff()).map_ok(Told::Own);
        let connection = self.connection;
        // Not to be told of single pods is no reason to give up: the Notification counts them.
        let children = follow::contact(&mut self.watched).map(move |event| match event {
            Ok(event) => Ok(Told::Child(event)),
            Err(Lost::Refused(status)) => {
                let why = connection.explain(kube::Error::Api(status));
                Ok(Told::Unseen(format!("{why:#}")))
            }
            Err(Lost::Away) => Err(Lost::Away),
        });
        let follow = Follow {
            connection: self.connection,
            interrupts: &self.interrupts,
            timeout: self.args.timeout,
            started: self.started,
        };
        let events = futures::stream::select(own, children);
        follow.until_over(&mut self.tally, events).await
    }

    /// Brings the tally to its end, and deletes what was created unless it is to be kept.
    async fn finish(&mut self, ending: Ending) -> anyhow::Result<()> {
        let (why, name, namespace) = (ending.why(), self.tally.name(), &self.connection.namespace);
        let cancels = format!("`kubectl delete ntf {name} -n {namespace}` cancels it");
        match ending {
            Ending::AllFinal => self.complete().await,
            Ending::Unseen => {
                format::note(&format!(
                    "ntf/{name} was created and goes on; {cancels}. To wait for it takes the verbs list and watch on notifications.{} in namespace {namespace}; --no-wait takes neither",
                    belay_api::GROUP
                ));
                return Ok(());
            }
            Ending::TimedOut | Ending::Interrupted if self.args.keep => format::note(&format!(
                "{why}: ntf/{name} is kept and goes on; {}. {cancels}",
                self.tally.summary()
            )),
            Ending::TimedOut | Ending::Interrupted => {
                format::note(&format!("{why}: {}; cancelling", self.tally.summary()));
            }
        }
        if self.args.keep {
            return Ok(());
        }
        // A second Ctrl-C ends the cleaning up too.
        let deleted = self.interrupts.unless(Some(CLEANING), self.delete()).await;
        let deleted = deleted.unwrap_or_else(|cut| {
            Err(anyhow::anyhow!(
                "{}; {cancels}",
                cut.told(&self.connection.server)
            ))
        });
        if ending != Ending::AllFinal && deleted.is_ok() {
            self.cancelled().await;
        }
        deleted
    }

    /// Reads the children once more: their watch may be behind that of their Notification.
    async fn complete(&mut self) {
        if self.tally.only_counted() {
            return;
        }
        let (api, label) = self.children();
        let params = ListParams::default().labels(&label);
        let list = api.list(&params);
        let why = match self.interrupts.unless(Some(CLEANING), list).await {
            Ok(Ok(list)) => {
                for child in list {
                    self.tally.child(Event::Apply(child));
                }
                return;
            }
            Ok(Err(error)) => format!("{:#}", self.connection.explain(error)),
            Err(cut) => cut.told(&self.connection.server),
        };
        format::note(&format!("the results may not be complete: {why}"));
    }

    async fn delete(&self) -> anyhow::Result<()> {
        let (name, uid) = (self.tally.name(), self.tally.uid());
        follow::delete(self.connection, &self.api, &name, uid).await
    }

    /// Waits until what ran is dead, which is when its PodNotification has ended or is gone, and says
    /// so. None can come later: the Notification is gone, and without it none is started.
    async fn cancelled(&mut self) {
        let (api, label) = self.children();
        let params = ListParams::default().labels(&label);
        let (name, namespace) = (self.tally.name(), self.connection.namespace.clone());
        let unknown = format!(
            "ntf/{name} is deleted, but not every handler is known to be dead yet; `belay get pn -l {label} -n {namespace}` shows what is left"
        );
        let until = Instant::now() + CANCELLING;
        let mut over: Option<Instant> = None;
        let mut look = tokio::time::interval(Duration::from_millis(200));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            tokio::select! {
                event = self.watched.next() => {
                    if let Some(Ok(event)) = event {
                        self.tally.child(event);
                    }
                }
                _ = look.tick(), if over.is_none() => {
                    let list = api.list(&params);
                    match self.interrupts.unless(Some(left), list).await {
                        Ok(Ok(list)) => {
                            let running = list.items.iter().any(|child| !child.state().is_final());
                            for child in list.items {
                                self.tally.child(Event::Apply(child));
                            }
                            over = (!running).then(Instant::now);
                        }
                        Ok(Err(kube::Error::Api(status))) if follow::is_refusal(&status) => {
                            let why = self.connection.explain(kube::Error::Api(status));
                            return format::note(&format!(
                                "ntf/{name} is deleted, which kills what runs; whether all of it is dead cannot be seen: {why:#}"
                            ));
                        }
                        Ok(Err(error)) => tracing::debug!(%error, "cannot be listed"),
                        Err(_) => return format::note(&unknown),
                    }
                }
                () = tokio::time::sleep(CATCHING_UP), if over.is_some() => {}
                () = self.interrupts.received() => return format::note(&unknown),
            }
            if let Some(over) = over
                && (self.tally.unsettled() == 0 || over.elapsed() >= CATCHING_UP)
            {
                self.tally.none_is_left();
                let had = self.tally.summary();
                return format::note(&format!(
                    "cancelled: ntf/{name} is deleted and nothing of it runs any more; {had}"
                ));
            }
            if over.is_none() && left.is_zero() {
                return format::note(&unknown);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;
    use crate::cli::Policy;

    #[test]
    fn the_pods_there_are_now_are_notified_unless_told_otherwise() {
        let wish = wish(&args(&[]), "app=web,tier in (a,b)").unwrap();
        assert_eq!(wish.spec.policy, PodSelectionPolicy::PreExistingPods);
        assert_eq!(
            serde_json::to_value(&wish.spec.selector).unwrap(),
            serde_json::json!({
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
            })
        );
        let object = draft(&args(&[]), &wish);
        assert_eq!(
            object.metadata.generate_name.as_deref(),
            Some("notify-reload-")
        );
    }

    #[test]
    fn what_never_ends_cannot_be_waited_for() {
        let mut all = args(&[]);
        all.policy = Some(Policy::AllPods);
        let error = wish(&all, "app=web").err().unwrap();
        assert_eq!(crate::exit::of_error(&error), Exit::Usage);
        assert!(error.to_string().contains("--no-wait"), "{error}");
        all.no_wait = true;
        assert!(wish(&all, "app=web").is_ok());
    }

    #[test]
    fn a_selector_that_cannot_be_read_or_stored_is_wrong_usage() {
        for text in ["app in", "n>3", "a b"] {
            let error = wish(&args(&[]), text).err().unwrap();
            assert_eq!(crate::exit::of_error(&error), Exit::Usage, "{text}");
            assert!(error.to_string().starts_with("-l "), "{error}");
        }
    }
}
