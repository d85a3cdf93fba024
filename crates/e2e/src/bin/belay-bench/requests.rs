//! Writes that a server has answered so far, from its own metrics: stock servers and ours count
//! them under the same name.

use std::collections::BTreeMap;

use anyhow::Context;
use belay_testkit::Rest;

/// How often each kind of write was done with success, by verb and resource
/// (`create podnotifications`, `patch podnotifications/status`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Writes(BTreeMap<String, u64>);

impl Writes {
    pub(crate) async fn so_far(rest: &Rest) -> anyhow::Result<Self> {
        Self::parse(&rest.get("/metrics").await?.text())
    }

    fn parse(metrics: &str) -> anyhow::Result<Self> {
        let mut counts = BTreeMap::new();
        for line in metrics.lines() {
            let Some(rest) = line.strip_prefix("apiserver_request_total{") else {
                continue;
            };
            let (labels, value) = rest.rsplit_once("} ").context("a metric without a value")?;
            let label = |name: &str| {
                let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
                let mut found = pairs.filter(|(key, _)| *key == name);
                found
                    .next()
                    .map_or("", |(_, value)| value.trim_matches('"'))
            };
            let Some(verb) = verb(label("verb")).filter(|_| label("code").starts_with('2')) else {
                continue;
            };
            let mut what = format!("{verb} {}", label("resource"));
            if !label("subresource").is_empty() {
                what = format!("{what}/{}", label("subresource"));
            }
            // A stock server may write 1e+06.
            *counts.entry(what).or_default() += value.parse::<f64>()? as u64;
        }
        Ok(Self(counts))
    }

    /// What has been written since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let left = self.0.iter().filter_map(|(what, count)| {
            let new = count - before.0.get(what).copied().unwrap_or_default();
            (new > 0).then(|| (what.clone(), new))
        });
        Self(left.collect())
    }

    /// Writes of this resource, whatever the verb.
    pub(crate) fn of(&self, resource: &str) -> u64 {
        let of_it = self
            .0
            .iter()
            .filter(|(what, _)| what.split(' ').nth(1) == Some(resource));
        of_it.map(|(_, count)| count).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(what, count)| (what.as_str(), *count))
    }
}

/// The verb of a write; a stock server names the method.
fn verb(told: &str) -> Option<&'static str> {
    match told {
        "create" | "POST" => Some("create"),
        "update" | "PUT" => Some("update"),
        "patch" | "PATCH" | "APPLY" => Some("patch"),
        "delete" | "DELETE" => Some("delete"),
        _ => None,
    }
}

/// How many watches are open.
pub(crate) async fn open_watches(rest: &Rest) -> anyhow::Result<u64> {
    let metrics = rest.get("/metrics").await?.text();
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix("apiserver_longrunning_requests "));
    Ok(value.context("no count of open watches")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stock_server_and_ours_tell_the_same() -> anyhow::Result<()> {
        let ours = "apiserver_request_total{verb=\"patch\",group=\"apps.k8s.io\",\
                    resource=\"podnotifications\",subresource=\"status\",code=\"200\"} 7\n\
                    apiserver_request_total{verb=\"get\",group=\"\",resource=\"pods\",\
                    subresource=\"\",code=\"200\"} 5\n";
        let stock = "apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",\
                     group=\"apps.k8s.io\",resource=\"podnotifications\",scope=\"resource\",\
                     subresource=\"status\",verb=\"PATCH\",version=\"v1alpha1\"} 7\n\
                     apiserver_request_total{code=\"409\",component=\"apiserver\",dry_run=\"\",\
                     group=\"apps.k8s.io\",resource=\"podnotifications\",scope=\"resource\",\
                     subresource=\"status\",verb=\"PATCH\",version=\"v1alpha1\"} 3\n";
        let (ours, stock) = (Writes::parse(ours)?, Writes::parse(stock)?);
        assert_eq!(ours, stock);
        assert_eq!(ours.of("podnotifications/status"), 7);
        assert_eq!(ours.of("podnotifications"), 0);
        assert_eq!(ours.since(&stock), Writes::default());
        Ok(())
    }
}
