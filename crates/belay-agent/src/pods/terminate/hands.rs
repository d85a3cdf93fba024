//! What a termination does: hooks, signals, SIGKILL. Each in a task of its own, with a word about
//! what came of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belay_action::{AttemptId, ContainerId, Found, TargetError};
use belay_api::pod::Pod;
use belay_api::signal::Signal;
use belay_core::clock::LocalMillis;
use belay_core::termination::{HookResult, HookTrace, News};
use belay_runtime::{PodRuntime, RuntimeError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::clock::boot_millis;
use crate::context::Host;
use crate::crash;
use crate::pods::hook::{self, Came, Hook, PAUSE, Place};

/// Something that came of it, about one incarnation.
#[derive(Debug)]
pub(crate) struct Word {
    pub(super) container: String,
    pub(super) id: String,
    pub(super) news: News,
}

/// Does things. Dropping it lets go of what is under way; commands go on under the runtime.
pub(super) struct Hands {
    host: Arc<Host>,
    /// The pod as it was last seen, and where it is reached. Hooks are read from it, and wait for
    /// it if need be.
    pod: watch::Sender<(Arc<Pod>, String)>,
    words: mpsc::UnboundedSender<Word>,
    /// Hooks that a task here looks after, by attempt.
    hooks: HashMap<String, CancellationToken>,
    /// Incarnations whose end a task here waits for.
    watched: HashSet<ContainerId>,
    tasks: JoinSet<()>,
}

/// Before a runtime is asked again that cannot tell where a container is.
const FIND: Duration = Duration::from_secs(1);

/// How long a signal waits for the journal at the most: on a disk that works the record comes first,
/// so that nobody gets his grace again, and one that hangs delays no end by more than that.
const JOURNAL: Duration = Duration::from_millis(250);

/// Whom the words are about.
#[derive(Clone)]
struct Teller {
    words: mpsc::UnboundedSender<Word>,
    container: String,
    id: ContainerId,
}

impl Teller {
    fn say(&self, news: News) {
        let word = Word {
            container: self.container.clone(),
            id: self.id.as_str().to_owned(),
            news,
        };
        // Nobody listens when the agent is about to end.
        let _ = self.words.send(word);
    }

    /// The end of a hook. That of its container comes first, if it was that.
    async fn hook_came(&self, place: &Place, came: Came) {
        if hook::container_ended(place, &came).await {
            self.say(News::Exited);
        }
        self.say(match came {
            Came::Ended(result) => News::HookEnded(result),
            Came::Lost => News::HookFound(HookTrace::Lost),
        });
    }
}

impl Hands {
    pub(super) fn new(host: Arc<Host>, pod: Arc<Pod>, words: mpsc::UnboundedSender<Word>) -> Self {
        Hands {
            pod: watch::Sender::new((pod, host.node_address.clone())),
            host,
            words,
            hooks: HashMap::new(),
            watched: HashSet::new(),
            tasks: JoinSet::new(),
        }
    }

    pub(super) fn see(&self, pod: &Arc<Pod>, address: &str) {
        self.pod.send_if_modified(|(seen, at)| {
            let same = Arc::ptr_eq(seen, pod) && at == address;
            if !same {
                *seen = Arc::clone(pod);
                address.clone_into(at);
            }
            !same
        });
    }

    fn teller(&self, container: String, id: ContainerId) -> Teller {
        Teller {
            words: self.words.clone(),
            container,
            id,
        }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        // Those that have ended need no memory.
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }

    /// Tells when the first process of a container has ended. The kernel knows that, also while the
    /// runtime does not come to tell how.
    pub(super) fn watch(&mut self, container: String, id: ContainerId) {
        if !self.watched.insert(id.clone()) {
            return;
        }
        let teller = self.teller(container, id.clone());
        let runtime = Arc::clone(&self.host.runtime);
        self.spawn(async move {
            loop {
                match runtime.target(&id).await {
                    Ok(target) => match target.wait().await {
                        Ok(()) => break,
                        Err(error) => debug!(container = %id, %error, "cannot wait for it"),
                    },
                    Err(RuntimeError::NotFound { .. }) => break,
                    Err(error) => debug!(container = %id, %error, "cannot find it"),
                }
                tokio::time::sleep(FIND).await;
            }
            teller.say(News::Exited);
        });
    }

    /// A hook's place, with a token by which it is cancelled from now on.
    fn place(&mut self, id: ContainerId, attempt: &str) -> Result<Place, String> {
        let name = AttemptId::new(attempt).map_err(|error| error.to_string())?;
        let cancel = CancellationToken::new();
        self.hooks.insert(attempt.to_owned(), cancel.clone());
        Ok(Place {
            runtime: Arc::clone(&self.host.runtime),
            id,
            attempt: name,
            cancel,
        })
    }

    pub(super) fn run_hook(
        &mut self,
        container: String,
        id: ContainerId,
        attempt: &str,
        deadline: LocalMillis,
        journalled: impl Future<Output = ()> + Send + 'static,
    ) {
        let teller = self.teller(container.clone(), id.clone());
        let failed = |message| News::HookEnded(HookResult::Failed { message });
        let place = match self.place(id, attempt) {
            Ok(place) => place,
            Err(message) => return teller.say(failed(message)),
        };
        let mut pod = self.pod.subscribe();
        self.spawn(async move {
            let ready = async {
                journalled.await;
                crash::at(crash::STOP_JOURNALLED);
                // An agent that came back before its server knows no more than the container's
                // name; when the time is over it is cancelled.
                match pod
                    .wait_for(|(pod, _)| pod.container(&container).is_some())
                    .await
                {
                    Ok(seen) => pre_stop(&seen.0, &container, &seen.1),
                    Err(_) => Err("the agent ends".to_owned()),
                }
            };
            let hook = tokio::select! {
                hook = ready => hook,
                () = place.cancel.cancelled() => {
                    return teller.say(News::HookEnded(hook::never_started()));
                }
            };
            let hook = match hook {
                Ok(hook) => hook,
                Err(message) => return teller.say(failed(message)),
            };
            let left = deadline.saturating_sub(boot_millis());
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            let came = hook::run(&place, hook, left).await;
            crash::at(crash::HOOK_ENDED);
            debug!(attempt = %place.attempt, ?came, "a preStop hook ended");
            teller.hook_came(&place, came).await;
        });
    }

    /// Nobody here looks after this hook any more.
    pub(super) fn hook_is_over(&mut self, attempt: &str) {
        self.hooks.remove(attempt);
    }

    pub(super) fn find_hook(&mut self, container: String, id: ContainerId, attempt: &str) {
        let teller = self.teller(container, id.clone());
        let Ok(place) = self.place(id, attempt) else {
            return teller.say(News::HookFound(HookTrace::Lost));
        };
        self.spawn(async move {
            let found = hook::find(&place).await;
            debug!(attempt = %place.attempt, ?found, "looked for a preStop hook");
            match found {
                Found::NeverStarted => teller.say(News::HookFound(HookTrace::NeverStarted)),
                Found::Ended(report) => {
                    let came = Came::Ended(hook::result(report));
                    teller.hook_came(&place, came).await;
                }
                Found::Lost => teller.hook_came(&place, Came::Lost).await,
                Found::Running(running) => {
                    teller.say(News::HookFound(HookTrace::Running));
                    let came = hook::follow(&place, running).await;
                    teller.hook_came(&place, came).await;
                }
            }
        });
    }

    pub(super) fn cancel_hook(&mut self, container: String, id: ContainerId, attempt: &str) {
        if let Some(cancel) = self.hooks.get(attempt) {
            // Whoever looks after it tells of its end, or has told already.
            return cancel.cancel();
        }
        // One that an agent before this one started.
        let teller = self.teller(container, id.clone());
        let Ok(place) = self.place(id, attempt) else {
            return teller.say(News::HookEnded(hook::never_started()));
        };
        place.cancel.cancel();
        self.spawn(async move {
            let result = match hook::find(&place).await {
                Found::NeverStarted | Found::Lost => hook::never_started(),
                Found::Ended(report) => hook::result(report),
                Found::Running(running) => match hook::follow(&place, running).await {
                    Came::Ended(result) => result,
                    Came::Lost => hook::never_started(),
                },
            };
            teller.say(News::HookEnded(result));
        });
    }

    pub(super) fn signal(
        &mut self,
        container: String,
        id: ContainerId,
        name: &str,
        journalled: impl Future<Output = ()> + Send + 'static,
    ) {
        let teller = self.teller(container, id.clone());
        let signal: Signal = match name.parse() {
            Ok(signal) => signal,
            Err(error) => {
                let message = format!("{error}");
                return teller.say(News::SignalFailed { message });
            }
        };
        let runtime = Arc::clone(&self.host.runtime);
        self.spawn(async move {
            if tokio::time::timeout(JOURNAL, journalled).await.is_err() {
                warn!(container = %id, "the journal is late; its stop signal does not wait for it");
            }
            let sent = match runtime.target(&id).await {
                Ok(target) => target.signal(signal).await.map_err(|error| match error {
                    TargetError::NotRunning { .. } | TargetError::Restarted { .. } => None,
                    error => Some(error.to_string()),
                }),
                Err(RuntimeError::NotFound { .. }) => Err(None),
                Err(error) => Err(Some(error.to_string())),
            };
            crash::at(crash::SIGNAL_SENT);
            teller.say(match sent {
                Ok(()) => News::SignalSent,
                // Nobody was left to take it.
                Err(None) => News::Exited,
                Err(Some(message)) => News::SignalFailed { message },
            });
        });
    }

    pub(super) fn kill(&mut self, container: String, id: ContainerId) {
        let teller = self.teller(container, id.clone());
        let runtime = Arc::clone(&self.host.runtime);
        self.spawn(async move {
            let survivors = kill(&*runtime, &id).await;
            crash::at(crash::KILLED);
            teller.say(News::Killed { survivors });
        });
    }

    /// Kills again and again, until nothing survives.
    pub(super) fn sweep(&mut self, container: String, id: ContainerId) {
        let teller = self.teller(container, id.clone());
        let runtime = Arc::clone(&self.host.runtime);
        self.spawn(async move {
            let mut pause = PAUSE.0;
            loop {
                let survivors = kill(&*runtime, &id).await;
                if survivors.is_empty() {
                    return teller.say(News::Killed { survivors });
                }
                let survivors = survivors.join(", ");
                warn!(container = %id, survivors, "what it left could not be killed; trying again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        });
    }
}

/// Kills all that belongs to an incarnation, and returns what survived. A runtime that cannot is
/// asked again.
async fn kill(runtime: &dyn PodRuntime, id: &ContainerId) -> Vec<String> {
    let mut pause = PAUSE.0;
    loop {
        match runtime.kill_tree(id).await {
            Ok(survivors) => return survivors,
            Err(RuntimeError::NotFound { .. }) => return Vec::new(),
            Err(error) => {
                warn!(container = %id, %error, "cannot kill a container; trying again");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// What a container declares to be done before its stop signal.
fn pre_stop(pod: &Pod, container: &str, address: &str) -> Result<Hook, String> {
    let declared = pod.container(container);
    let handler = declared
        .and_then(|declared| declared.lifecycle.as_ref())
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let (Some(declared), Some(handler)) = (declared, handler) else {
        return Err("the pod declares no hook any more".to_owned());
    };
    hook::resolve(handler, declared, address).map_err(|why| format!("the hook {why}"))
}
