//! Another version of containerd, where the tests were told of one.

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
    super::containerd(1).await
}

async fn stage() -> anyhow::Result<Option<Stage>> {
    super::stage(1).await
}
