//! The command line of Belay, and the wiring of its roles.
//!
//! ```text
//!  cli (what can be said) --> one module per command --> exit code
//!                              |            |
//!            roles: up, server, agent     notify, hook, get, describe: a client of any server
//! ```
//!
//! **Invariant:** results go to standard output, everything else to standard error; exit codes are
//! those of [`exit::Exit`].

mod backup;
mod cli;
mod cluster;
mod connect;
mod demo;
mod describe;
mod exit;
mod follow;
mod format;
mod get;
mod hook;
mod kind;
mod log;
mod manifests;
mod monitor;
mod notify;
mod place;
mod protection;
mod roles;
mod runtime;
mod selector;
mod signals;
mod table;
mod timeline;

use std::future::Future;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Command};
use exit::Exit;
use format::Format;

/// With very many objects in memory glibc's allocator searches long for what is free, and every
/// notification pays for it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Exit {
    let cli = Cli::parse();
    match run(cli) {
        Ok(exit) => exit,
        Err(error) => {
            format::note(&format!("error: {error:#}"));
            exit::of_error(&error)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { global, command } = cli;
    let level = match &command {
        Command::Server(_) | Command::Controller(_) | Command::Agent(_) => "info",
        _ => "warn",
    };
    log::start(global.log_level.as_deref(), global.log_format, level)?;
    match command {
        Command::Up(args) => on_all_cores(roles::up(args)),
        Command::Server(args) => on_all_cores(roles::server(args)),
        Command::Controller(args) => on_all_cores(cluster::controller(&global, args)),
        Command::Agent(args) => on_all_cores(roles::agent(&global, args)),
        Command::Token(args) => roles::token(args.command),
        Command::Notify(args) => on_one_core(notify::run(&global, &args)),
        Command::Hook(args) => on_one_core(hook::run(&global, &args.command)),
        Command::Get(args) => on_one_core(get::run(&global, &args)),
        Command::Describe(args) => on_one_core(describe::run(&global, &args)),
        Command::Demo => on_one_core(demo::run()),
        Command::Backup(args) => on_one_core(backup::backup(args.data_dir, &args.file)),
        Command::Restore(args) => on_one_core(backup::restore(args.data_dir, &args.file)),
        Command::Crds => crds(global.output),
        Command::Manifests(args) => {
            manifests::run(global.namespace.as_deref(), &args, global.output)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "belay", &mut script);
            format::out(&String::from_utf8_lossy(&script))?;
            Ok(Exit::Done)
        }
    }
}

/// The definitions as YAML documents; as JSON a list of them, for that has no documents.
fn crds(output: Option<Format>) -> anyhow::Result<Exit> {
    let crds = belay_api::crd::crds();
    if output == Some(Format::Json) {
        let crds: Result<Vec<_>, _> = crds.iter().map(serde_json::to_value).collect();
        format::print_list(&crds?, Format::Json)?;
    } else {
        for crd in crds {
            format::out(&format!("---\n{}", format::yaml(&crd)?))?;
        }
    }
    Ok(Exit::Done)
}

/// Roles serve many at once.
fn on_all_cores(work: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    belay_runtime::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start worker threads")?;
    let ended = runtime.block_on(Box::pin(work));
    // A blocking call that still runs must not keep a process that was told to stop.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// A command waits more than it works.
fn on_one_core(work: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let ended = runtime.block_on(Box::pin(work));
    // The look-up of a name that hangs must not keep a command that has ended.
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_command_that_has_ended_does_not_wait_for_a_call_that_hangs() {
        let (release, hanging) = mpsc::channel::<()>();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let exit = on_one_core(async move {
                let (begin, begun) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    let _ = begin.send(());
                    let _ = hanging.recv();
                });
                begun.await?;
                Ok(Exit::Done)
            });
            end.send(exit.unwrap()).unwrap();
        });
        let exit = ended.recv_timeout(Duration::from_secs(60));
        drop(release);
        assert_eq!(exit, Ok(Exit::Done));
    }
}
