//! What a pod declares for a notifier, or a hook asks for, as far as this agent can do it.

pub(crate) mod probe;

use std::collections::BTreeMap;
use std::time::Duration;

use belay_action::probe::{Check, Probe};
use belay_api::hook::PodActionSpec;
use belay_api::pod::{ContainerNotifier, NotifierAction, NotifierError, NotifierOutput, Pod};
use belay_api::signal::Signal;
use belay_core::clock::LocalMillis;
use belay_core::delivery::{Entry, Outlook, Record, Verdict};
use belay_core::resolve::unusable;

use crate::clock::boot_millis;
use crate::lookup::Found;
use crate::pods::PodView;

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// A command in the container.
    Exec { command: Vec<String> },
    /// A signal to its first process.
    Signal(Signal),
    /// A request or a connection to the pod, from here.
    Check(Check),
}

/// One container's handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handler {
    pub(crate) action: Action,
    pub(crate) timeout: Duration,
    /// When the time of all attempts is over, in milliseconds since boot, where there may be more
    /// than one.
    pub(crate) until: Option<LocalMillis>,
    /// Whether the output may be shown in the status.
    pub(crate) output: bool,
    /// What decides after a handler that has succeeded.
    pub(crate) probe: Option<Probe>,
}

impl Handler {
    /// How long an attempt may take that starts now.
    pub(crate) fn time(&self) -> Duration {
        match self.until {
            None => self.timeout,
            Some(until) => {
                let left = until.saturating_sub(boot_millis());
                Duration::from_millis(u64::try_from(left).unwrap_or(0).max(1))
            }
        }
    }
}

/// The handlers of a notifier by container; none where the pod is not known any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Handlers(BTreeMap<String, Handler>);

impl Handlers {
    /// Reads them from a pod that is reached at `address`. What cannot be read, or cannot be done,
    /// is an error for all.
    pub(crate) fn of(pod: &Pod, address: &str, notifier: &str) -> Result<Self, String> {
        let declarations = pod
            .declarations(notifier)
            .map_err(|error| unusable(pod.name(), &causes(&error)))?;
        let mut handlers = BTreeMap::new();
        for (container, declared) in declarations {
            let mut handler = handler(container, &declared)?;
            handler.probe = match &declared.probe {
                Some(probe) => Some(
                    probe::resolve(probe, pod.container(container), address).map_err(|why| {
                        format!(
                            "the probe of notifier \"{notifier}\" of container \"{container}\" {why}; nothing was run"
                        )
                    })?,
                ),
                None => None,
            };
            handlers.insert(container.to_owned(), handler);
        }
        Ok(Handlers(handlers))
    }

    /// The action of a hook, in each container that it is for.
    pub(crate) fn of_action(spec: &PodActionSpec, view: &PodView) -> Result<Self, String> {
        let probe = spec.action.probe().map_err(|error| error.to_string())?;
        let one = |container: &String| {
            let declared = view.pod.container(container);
            let check = probe::resolve(&probe, declared, &view.address)
                .map_err(|why| {
                    format!("the action {why}, in container \"{container}\"; nothing was run")
                })?
                .check;
            let handler = Handler {
                action: match check {
                    Check::Exec { command } => Action::Exec { command },
                    check @ (Check::Http(_) | Check::Tcp { .. } | Check::Grpc { .. }) => {
                        Action::Check(check)
                    }
                },
                timeout: spec.timeout(),
                until: None,
                output: true,
                probe: None,
            };
            Ok((container.clone(), handler))
        };
        spec.containers
            .iter()
            .map(one)
            .collect::<Result<_, String>>()
            .map(Handlers)
    }

    pub(crate) fn get(&self, container: &str) -> Option<&Handler> {
        self.0.get(container)
    }

    /// Whether the runtime remembers attempts of this container's action. Where the handler is not
    /// known it is worth asking.
    pub(crate) fn traceable(&self, container: &str) -> bool {
        match self.0.get(container).map(|handler| &handler.action) {
            Some(Action::Signal(_) | Action::Check(_)) => false,
            Some(Action::Exec { .. }) | None => true,
        }
    }

    /// Whether a probe decides after this container's handler.
    pub(crate) fn probed(&self, container: &str) -> bool {
        let handler = self.0.get(container);
        handler.is_some_and(|handler| handler.probe.is_some())
    }

    /// What a claim plans for this container, and for this incarnation of it.
    pub(crate) fn planned(&self, container: &str, id: Option<String>) -> Entry {
        Entry {
            probed: self.probed(container),
            ..Entry::planned(id, self.traceable(container))
        }
    }

    /// The signal that this container is sent.
    pub(crate) fn signal(&self, container: &str) -> Option<Signal> {
        match &self.0.get(container)?.action {
            Action::Signal(signal) => Some(*signal),
            Action::Exec { .. } | Action::Check(_) => None,
        }
    }
}

fn handler(container: &str, declared: &ContainerNotifier) -> Result<Handler, String> {
    let refuse = |what: &str| {
        format!(
            "notifier \"{}\" of container \"{container}\" has {what}, which this agent cannot do yet; nothing was run",
            declared.name
        )
    };
    // Doing half of it would leave something held.
    if declared.holds() {
        return Err(refuse("an undo or a hold"));
    }
    let action = match declared.action().map_err(|error| causes(&error))? {
        NotifierAction::Exec(command) => Action::Exec { command },
        NotifierAction::Signal(signal) => Action::Signal(signal),
    };
    Ok(Handler {
        action,
        timeout: declared.timeout(),
        until: None,
        output: declared.output.unwrap_or_default() == NotifierOutput::Tail,
        probe: None,
    })
}

fn causes(error: &NotifierError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What a fresh claim would be for.
pub(crate) fn outlook(found: &Found, handlers: &Result<Handlers, String>) -> Outlook {
    let view = match found {
        Found::Pod(view) => view,
        Found::Refused(verdict) => return Outlook::Refuse(verdict.clone()),
    };
    if view.pod.is_terminating() {
        return Outlook::Refuse(Verdict::PodTerminating);
    }
    let handlers = match handlers {
        Ok(handlers) => handlers,
        Err(message) => {
            return Outlook::Refuse(Verdict::Runtime {
                message: message.clone(),
            });
        }
    };
    if handlers.0.is_empty() {
        return Outlook::NothingDeclared;
    }
    let entries = handlers
        .0
        .keys()
        .map(|container| {
            let id = view.running(container).map(|id| id.as_str().to_owned());
            (container.clone(), handlers.planned(container, id))
        })
        .collect();
    Outlook::Run(Record {
        pod_uid: view.pod.uid().to_owned(),
        entries,
    })
}
