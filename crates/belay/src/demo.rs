//! `belay demo`: a guided tour on a throw-away instance.
//!
//! The tour types the commands a user would type, at a real instance that is this same program,
//! and checks everything it shows: it looks at processes and files itself rather than believing
//! what is reported. It uses nothing but `/bin/sh` and `sleep`, and no network but the loopback.
//!
//! **Invariant:** whatever happens, short of this process being killed, nothing that was started
//! here is left running and the directory is removed.

mod processes;
mod stage;
mod tour;
mod workload;

use std::time::Instant;

use crate::exit::Exit;
use crate::format;
use crate::signals::Interrupts;
use stage::Stage;

/// Runs the tour, then takes everything down.
pub(crate) async fn run() -> anyhow::Result<Exit> {
    let started = Instant::now();
    let interrupts = Interrupts::listen()?;
    let mut stage = Stage::set_up()?;
    let walked = tokio::select! {
        walked = Box::pin(tour::walk(&mut stage)) => walked,
        () = interrupts.received() => Err(anyhow::anyhow!("interrupted")),
    };
    if let Err(error) = &walked {
        format::out(&format!(
            "\nThe tour ended early: {error:#}\n{}",
            stage.log_tail()
        ))?;
    }
    if let Err(error) = stage.take_down().await {
        format::out(&format!(
            "\nNot everything could be taken down: {error:#}\n"
        ))?;
        return Ok(Exit::Failed);
    }
    if walked.is_err() {
        format::out("Everything that was started has been stopped.\n")?;
        return Ok(Exit::Failed);
    }
    format::out(&format!(
        "\nEverything shown was checked, and everything started was stopped ({:.1} s).\n",
        started.elapsed().as_secs_f64()
    ))?;
    Ok(Exit::Done)
}
