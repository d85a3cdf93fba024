//! Writing a status, whatever the network does.

use std::time::Duration;

use belay_api::lenient::Lenient;
use kube::api::{Api, PostParams};
use kube::{Error, ResourceExt as _};
use tracing::{debug, warn};

use super::errand::Errand;
use crate::context::Context;
use crate::lookup::is_gone;

/// What became of a write.
#[derive(Debug)]
pub(crate) enum Written<E> {
    /// It is on the server; the object as it is now.
    Landed(Box<E>),
    /// It is not, or nobody knows; the object as read afterwards, `None` when it is gone.
    Refused(Option<Box<E>>),
    /// The server does not take it, whatever becomes of the object; as read afterwards.
    Denied { code: u16, object: Box<E> },
}

/// Why a write did not land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// The object is another one by now, or gone.
    Stale,
    /// The server does not take it.
    Denied { code: u16 },
    /// Nobody knows whether it arrived, or it did not.
    Unanswered,
}

impl Failure {
    fn of(error: &Error, name: &str) -> Self {
        let Error::Api(status) = error else {
            return Failure::Unanswered;
        };
        match status.code {
            409 => Failure::Stale,
            404 if is_gone(error, name) => Failure::Stale,
            // The kind is not served, or not now; too slow; too many.
            404 | 408 | 429 => Failure::Unanswered,
            code @ 400..500 => Failure::Denied { code },
            _ => Failure::Unanswered,
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Puts the status, conditional on the object's resource version.
///
/// Returns only with an answer: as long as the server is away, it is asked again. A write whose
/// answer got lost is never repeated blindly; the object is read, and whoever asked decides.
pub(crate) async fn put<E: Errand>(context: &Context, object: &E) -> Written<E> {
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let api: Api<Lenient<E>> = Api::namespaced(context.client.clone(), &namespace);
    let sent = Lenient::from(object.clone());
    let mut pause = FIRST_PAUSE;
    loop {
        let result = {
            // Never closed.
            let _permit = context.status_writes.acquire().await;
            let written = api
                .replace_status(&name, &PostParams::default(), &sent)
                .await;
            written.and_then(|written| Ok(written.read()?))
        };
        let error = match result {
            Ok(written) => return Written::Landed(Box::new(written)),
            Err(error) => error,
        };
        let failure = Failure::of(&error, &name);
        if failure == Failure::Stale {
            debug!(namespace, name, %error, "a status write came too late");
        } else {
            warn!(namespace, name, %error, "a status could not be written; reading it again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let read = read(&api, &namespace, &name, &mut pause).await;
        let Some(read) = read.filter(|read| read.meta().uid == object.meta().uid) else {
            return Written::Refused(None);
        };
        let unchanged = read.meta().resource_version == object.meta().resource_version;
        let read = Box::new(read);
        return match failure {
            // It never arrived.
            Failure::Unanswered if unchanged => continue,
            Failure::Unanswered | Failure::Stale => Written::Refused(Some(read)),
            Failure::Denied { code } => Written::Denied { code, object: read },
        };
    }
}

async fn read<E: Errand>(
    api: &Api<Lenient<E>>,
    namespace: &str,
    name: &str,
    pause: &mut Duration,
) -> Option<E> {
    loop {
        let read = api.get(name).await;
        match read.and_then(|object| Ok(object.read()?)) {
            Ok(object) => return Some(object),
            Err(error) if is_gone(&error, name) => return None,
            Err(error) => {
                warn!(namespace, name, %error, "cannot be read; trying again");
                tokio::time::sleep(*pause).await;
                *pause = (*pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Reply, Script, context};
    use belay_api::notification::PodNotification;
    use serde_json::{Value, json};

    fn object(uid: &str, version: &str) -> Value {
        json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
            "metadata": {"name": "n", "namespace": "ns", "uid": uid, "resourceVersion": version},
            "spec": {"podName": "db", "notifier": "lock"},
        })
    }

    fn refusal(code: u16) -> Reply {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "message": "refused", "reason": if code == 404 { "NotFound" } else { "Refused" },
            "details": {"name": "n", "group": "apps.k8s.io", "kind": "podnotifications"},
        });
        Reply::Answer(code, body)
    }

    /// What a server says that has no such kind, or a proxy that has no such path.
    fn not_served() -> Reply {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
            "message": "the server could not find the requested resource", "reason": "NotFound",
        });
        Reply::Answer(404, body)
    }

    fn here(uid: &str, version: &str) -> Reply {
        Reply::Answer(200, object(uid, version))
    }

    /// Puts version 5 of the object with UID `u` and returns the version that came back, if any,
    /// whether the write landed, and what was asked.
    async fn put_against(replies: Vec<Reply>) -> (Option<String>, bool, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let script = Script::new(replies);
        let context = context(dir.path(), &script);
        let object: PodNotification = serde_json::from_value(object("u", "5")).unwrap();
        let (object, landed) = match put(&context, &object).await {
            Written::Landed(object) => (Some(object), true),
            Written::Refused(object) => (object, false),
            Written::Denied { object, .. } => (Some(object), false),
        };
        let asked = script
            .asked()
            .into_iter()
            .map(|asked| asked.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        (
            object.and_then(|object| object.metadata.resource_version),
            landed,
            asked,
        )
    }

    #[tokio::test]
    async fn a_write_that_lands_is_one_request() {
        let (version, landed, asked) = put_against(vec![here("u", "6")]).await;
        assert_eq!((version.as_deref(), landed), (Some("6"), true));
        assert_eq!(asked, ["PUT"]);
    }

    #[tokio::test]
    async fn a_conflict_brings_the_object_as_it_is_now() {
        let (version, landed, asked) = put_against(vec![refusal(409), here("u", "7")]).await;
        assert_eq!((version.as_deref(), landed), (Some("7"), false));
        assert_eq!(asked, ["PUT", "GET"]);
    }

    #[tokio::test]
    async fn an_object_that_is_gone_or_replaced_is_gone() {
        for replies in [
            vec![refusal(404), refusal(404)],
            vec![refusal(409), here("other", "9")],
        ] {
            let (version, landed, _) = put_against(replies).await;
            assert_eq!((version, landed), (None, false));
        }
    }

    #[tokio::test]
    async fn a_kind_that_is_not_served_is_waited_for() {
        let replies = vec![not_served(), not_served(), here("u", "5"), here("u", "6")];
        let (version, landed, asked) = put_against(replies).await;
        assert_eq!((version.as_deref(), landed), (Some("6"), true));
        assert_eq!(asked, ["PUT", "GET", "GET", "PUT"]);
    }

    #[tokio::test]
    async fn a_server_that_has_no_time_is_asked_again() {
        for code in [408, 429] {
            let replies = vec![refusal(code), here("u", "5"), here("u", "6")];
            let (version, landed, _) = put_against(replies).await;
            assert_eq!((version.as_deref(), landed), (Some("6"), true));
        }
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_not_repeated() {
        let (version, landed, asked) =
            put_against(vec![Reply::Broken, refusal(503), here("u", "6")]).await;
        assert_eq!((version.as_deref(), landed), (Some("6"), false));
        assert_eq!(asked, ["PUT", "GET", "GET"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_answers_is_asked_after_and_repeated() {
        let replies = vec![
            Reply::Silence,
            Reply::Silence,
            here("u", "5"),
            here("u", "6"),
        ];
        let (version, landed, asked) = put_against(replies).await;
        assert_eq!((version.as_deref(), landed), (Some("6"), true));
        assert_eq!(asked, ["PUT", "GET", "GET", "PUT"]);
    }

    #[tokio::test]
    async fn a_write_that_never_arrived_is_repeated() {
        let (version, landed, asked) =
            put_against(vec![Reply::Broken, here("u", "5"), here("u", "6")]).await;
        assert_eq!((version.as_deref(), landed), (Some("6"), true));
        assert_eq!(asked, ["PUT", "GET", "PUT"]);
    }

    #[tokio::test]
    async fn a_write_that_was_rejected_is_not_repeated_blindly() {
        let (version, landed, asked) = put_against(vec![refusal(422), here("u", "5")]).await;
        assert_eq!((version.as_deref(), landed), (Some("5"), false));
        assert_eq!(asked, ["PUT", "GET"]);
    }
}
