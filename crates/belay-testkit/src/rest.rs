//! The API as any HTTP client sees it: a method, a path, a body; a code, headers, a body.
//!
//! Tests of the wire want to send what a typed client cannot express, and to see the code that
//! came back, so this is deliberately thin.

use std::{path::Path, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use futures::AsyncBufReadExt;
use http::{HeaderMap, Method, Request, StatusCode, header};
use kube::{Client, Config, client::Body, config::Kubeconfig};
use serde_json::{Value, json};

use crate::wait::eventually;

/// An answer, whatever its code.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// The body as JSON; `Null` when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The object of a successful answer.
    pub fn ok(self) -> anyhow::Result<Value> {
        anyhow::ensure!(self.status.is_success(), "{}: {}", self.status, self.text());
        serde_json::from_slice(&self.body).context("the answer is not JSON")
    }

    /// The `Status` of a refusal with exactly this code.
    pub fn refused(self, code: u16) -> anyhow::Result<Value> {
        anyhow::ensure!(
            self.status.as_u16() == code,
            "expected {code}, got {}: {}",
            self.status,
            self.text()
        );
        let status = self.json();
        anyhow::ensure!(status["kind"] == "Status", "not a Status: {}", self.text());
        anyhow::ensure!(
            status["code"] == code,
            "the Status has another code: {status}"
        );
        Ok(status)
    }

    /// The texts of the `Warning` headers.
    pub fn warnings(&self) -> Vec<String> {
        self.headers
            .get_all(header::WARNING)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .map(str::to_owned)
            .collect()
    }
}

/// One caller of the API.
#[derive(Clone)]
pub struct Rest {
    client: Client,
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rest")
    }
}

impl Rest {
    /// The caller that a kubeconfig describes.
    pub async fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        Self::from_config(config(Kubeconfig::read_from(path)?).await?)
    }

    /// The caller that a kubeconfig's text describes.
    pub async fn from_kubeconfig_text(text: &str) -> anyhow::Result<Self> {
        Self::from_config(config(Kubeconfig::from_yaml(text)?).await?)
    }

    /// Somebody who trusts the server and shows no credentials.
    pub async fn anonymous(kubeconfig: &Path) -> anyhow::Result<Self> {
        let mut config = config(Kubeconfig::read_from(kubeconfig)?).await?;
        config.auth_info = Default::default();
        Self::from_config(config)
    }

    /// Somebody with this bearer token and nothing else.
    pub async fn with_token(kubeconfig: &Path, token: &str) -> anyhow::Result<Self> {
        let mut config = config(Kubeconfig::read_from(kubeconfig)?).await?;
        config.auth_info = Default::default();
        config.auth_info.token = Some(token.to_owned().into());
        Self::from_config(config)
    }

    /// The caller that a kubeconfig describes, at another address, whoever answers there.
    pub async fn elsewhere(kubeconfig: &Path, url: &str) -> anyhow::Result<Self> {
        let mut config = config(Kubeconfig::read_from(kubeconfig)?).await?;
        config.cluster_url = url.parse()?;
        config.accept_invalid_certs = true;
        Self::from_config(config)
    }

    /// The host and port that a kubeconfig names.
    pub async fn address(kubeconfig: &Path) -> anyhow::Result<String> {
        let config = config(Kubeconfig::read_from(kubeconfig)?).await?;
        let authority = config
            .cluster_url
            .authority()
            .context("no server in the kubeconfig")?;
        Ok(authority.to_string())
    }

    fn from_config(config: Config) -> anyhow::Result<Self> {
        Ok(Self {
            client: Client::try_from(config)?,
        })
    }

    /// For tests that want the typed client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sends exactly this.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Reply> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.into();
        let request = request.body(Body::from(body.to_vec()))?;
        let (parts, body) = self.client.send(request).await?.into_parts();
        let body = body.collect_bytes().await?;
        Ok(Reply {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Reply> {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> anyhow::Result<Reply> {
        self.with_json(Method::POST, path, object, "application/json")
            .await
    }

    pub async fn put(&self, path: &str, object: &Value) -> anyhow::Result<Reply> {
        self.with_json(Method::PUT, path, object, "application/json")
            .await
    }

    /// A merge patch.
    pub async fn merge(&self, path: &str, patch: &Value) -> anyhow::Result<Reply> {
        self.with_json(Method::PATCH, path, patch, "application/merge-patch+json")
            .await
    }

    pub async fn delete(&self, path: &str) -> anyhow::Result<Reply> {
        self.send(Method::DELETE, path, &[], Bytes::new()).await
    }

    /// Deletes with options in the body, as kubectl does.
    pub async fn delete_with(&self, path: &str, options: &Value) -> anyhow::Result<Reply> {
        self.with_json(Method::DELETE, path, options, "application/json")
            .await
    }

    async fn with_json(
        &self,
        method: Method,
        path: &str,
        object: &Value,
        content_type: &str,
    ) -> anyhow::Result<Reply> {
        let headers = [("content-type", content_type)];
        self.send(method, path, &headers, serde_json::to_vec(object)?)
            .await
    }

    /// Opens a watch; `path` carries its own query.
    pub async fn watch(&self, path: &str) -> anyhow::Result<Watch> {
        let request = Request::get(path).body(Vec::new())?;
        let lines = self.client.request_stream(request).await?;
        Ok(Watch {
            lines: Box::pin(lines),
        })
    }

    /// Asks for the object until `holds` finds in it what it looks for.
    pub async fn until<T>(
        &self,
        path: &str,
        what: &str,
        mut holds: impl FnMut(&Value) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut last = Value::Null;
        let found = eventually(&format!("{what} of {path}"), async || {
            let object = self.get(path).await?.ok()?;
            let answer = holds(&object);
            last = object;
            Ok(answer)
        })
        .await;
        found.with_context(|| format!("it last was {last:#}"))
    }

    /// Waits until every container of the pod runs; returns the pod.
    pub async fn running(&self, name: &str) -> anyhow::Result<Value> {
        self.until(
            &format!("{}/{name}", crate::PODS),
            "Running and ready",
            |pod| {
                let statuses = pod["status"]["containerStatuses"].as_array()?;
                let containers = pod["spec"]["containers"].as_array()?;
                let all = statuses.len() == containers.len()
                    && statuses
                        .iter()
                        .all(|status| status["state"]["running"].is_object());
                (all && pod["status"]["phase"] == "Running").then(|| pod.clone())
            },
        )
        .await
    }

    /// Creates the pod and waits until it runs.
    pub async fn run(&self, pod: &Value) -> anyhow::Result<Value> {
        let created = self.post(crate::PODS, pod).await?.ok()?;
        let name = created["metadata"]["name"]
            .as_str()
            .context("a pod without a name")?;
        self.running(name).await
    }

    /// Waits until the notification is final; returns it.
    pub async fn finished(&self, name: &str) -> anyhow::Result<Value> {
        self.until(
            &format!("{}/{name}", crate::NOTIFICATIONS),
            "a final state",
            |object| {
                let state = object["status"]["state"].as_str()?;
                (state != "New").then(|| object.clone())
            },
        )
        .await
    }

    /// Creates the notification and waits until it is final.
    pub async fn notify(&self, notification: &Value) -> anyhow::Result<Value> {
        let created = self.post(crate::NOTIFICATIONS, notification).await?.ok()?;
        let name = created["metadata"]["name"]
            .as_str()
            .context("no name")?
            .to_owned();
        self.finished(&name).await
    }

    /// What `logs` shows of one container, all of it.
    pub async fn logs(&self, pod: &str, container: &str) -> anyhow::Result<String> {
        let path = format!("{}/{pod}/log?container={container}", crate::PODS);
        let reply = self.get(&path).await?;
        anyhow::ensure!(
            reply.status.is_success(),
            "{}: {}",
            reply.status,
            reply.text()
        );
        Ok(reply.text())
    }
}

async fn config(kubeconfig: Kubeconfig) -> anyhow::Result<Config> {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(30));
    config.read_timeout = None;
    config.proxy_url = None;
    Ok(config)
}

/// An open watch.
pub struct Watch {
    lines: std::pin::Pin<Box<dyn futures::AsyncBufRead + Send>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// The next event; `None` when the server ended the watch or the connection broke.
    pub async fn next(&mut self) -> Option<Value> {
        serde_json::from_str(&self.next_line().await?).ok()
    }

    /// The next event as it came, for those who have no time to read it.
    pub async fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line),
        }
    }
}

/// An object's name.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// An object's revision as a number.
pub fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// A config map, the smallest object there is.
pub fn config_map(name: &str, key: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name },
        "data": { key: value },
    })
}
