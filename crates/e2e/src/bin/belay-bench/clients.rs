//! Many clients that share some work, each with a connection of its own.

use std::{
    future::Future,
    path::Path,
    time::{Duration, Instant},
};

use belay_testkit::{CONFIG_MAPS, Rest, rest::config_map};
use tokio::task::JoinSet;

pub(crate) const CLIENTS: usize = 32;

pub(crate) struct Clients(Vec<Rest>);

impl Clients {
    pub(crate) async fn connect(kubeconfig: &Path) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for _ in 0..CLIENTS {
            all.push(Rest::from_kubeconfig(kubeconfig).await?);
        }
        Ok(Self(all))
    }

    /// Does `act` for every number below `count`; each client does one after the other.
    pub(crate) async fn each<F>(
        &self,
        count: usize,
        act: impl Fn(Rest, usize) -> F + Clone + Send + 'static,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>> + Send,
    {
        let mut working = JoinSet::new();
        for (first, rest) in self.0.iter().enumerate() {
            let (rest, act) = (rest.clone(), act.clone());
            working.spawn(async move {
                for number in (first..count).step_by(CLIENTS) {
                    act(rest.clone(), number).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = working.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// What that many durable writes take, and nothing else.
    pub(crate) async fn writes_alone(&self, tag: &str, count: usize) -> anyhow::Result<Duration> {
        let tag = tag.to_owned();
        let begin = Instant::now();
        self.each(count, move |rest, number| {
            let object = config_map(&format!("{tag}-{number}"), "value", "x");
            async move {
                rest.post(CONFIG_MAPS, &object).await?.ok()?;
                Ok(())
            }
        })
        .await?;
        Ok(begin.elapsed())
    }
}
