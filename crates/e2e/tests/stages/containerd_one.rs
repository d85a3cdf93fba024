//! The first containerd that is installed: the machine's own, where it has one.

use belay_testkit::{Containerd, Stage};

#[path = "../promises/hooks.rs"]
mod hooks;
#[path = "../promises/images.rs"]
mod images;
#[path = "../promises/seed_002.rs"]
mod seed_002;
#[path = "../promises/seed_003.rs"]
mod seed_003;

async fn containerd() -> anyhow::Result<Option<&'static Containerd>> {
    super::containerd(0).await
}

async fn stage() -> anyhow::Result<Option<Stage>> {
    super::stage(0).await
}
