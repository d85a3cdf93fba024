//! nginx without a failed request, on three nodes with real containers that have addresses of their
//! own: on the oldest containerd that is installed, which knows nothing of stop signals.

use std::path::Path;

use belay_testkit::containerd::Installation;
use belay_testkit::image::Image;
use belay_testkit::{Builder, Containerd, Instance};

#[path = "nginx/balancer.rs"]
mod balancer;
#[path = "nginx/load.rs"]
mod load;
#[path = "nginx/replaced.rs"]
mod replaced;

use replaced::Without;

/// The rest is nginx's own doing, and the same with plain processes.
const WITHOUT: &[Without] = &[Without::ALL[0]];

/// What the manifest's image is called in full: nobody pulls what is there.
const IMAGE: &str = "docker.io/library/nginx:1.22";

async fn server() -> anyhow::Result<Option<Builder>> {
    let Some(installation) = Installation::oldest() else {
        return Ok(None);
    };
    let containerd = Containerd::shared(&installation).await?;
    let image = Image::of_program(Path::new("/usr/sbin/nginx"), IMAGE)?;
    containerd.import(image).await?;
    Ok(Some(Instance::server().on(containerd)))
}
