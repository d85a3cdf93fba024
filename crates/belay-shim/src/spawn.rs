//! Making the first process: everything between fork and exec, and what can go wrong there.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::clock::Wall;
use crate::instance::{StartError, StartFailure};
use crate::mounts::{self, Failed};
use crate::output::Ends;
use crate::spec::Spec;
use crate::sys::{self, Fork, Pid, Watched};

/// How long a child may take until it is the command: its working directory or the command itself
/// may be on storage that does not answer.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Where programs are looked for when the workload's environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The step of the child that failed; one byte on the wire between child and shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Prepare,
    User,
    WorkingDirectory,
    Exec,
    /// A mount namespace of its own, or its container's.
    Namespace,
    /// This one of the mounts.
    Mount(u8),
}

/// From here on a byte is a mount.
const MOUNTS: u8 = 16;

impl Step {
    fn from_byte(byte: u8) -> Self {
        match byte {
            2 => Step::User,
            3 => Step::WorkingDirectory,
            4 => Step::Exec,
            5 => Step::Namespace,
            MOUNTS.. => Step::Mount(byte - MOUNTS),
            _ => Step::Prepare,
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            Step::Prepare => 1,
            Step::User => 2,
            Step::WorkingDirectory => 3,
            Step::Exec => 4,
            Step::Namespace => 5,
            Step::Mount(index) => MOUNTS.saturating_add(index),
        }
    }
}

/// Starts the first process on its ends of the streams. Returns when it has been exec'ed.
///
/// `joined` are the mounts that it is to see instead of the host's; `end` kills all that has come of
/// a start.
pub(crate) fn start(
    spec: &Spec,
    ends: &Ends,
    joined: Option<&File>,
    end: &dyn Fn(),
) -> Result<Pid, StartError> {
    start_if(&|report| comes(report, PATIENCE), spec, ends, joined, end)
}

/// Starts it, unless `comes` says that nothing comes of it.
fn start_if(
    comes: &dyn Fn(&PipeReader) -> bool,
    spec: &Spec,
    ends: &Ends,
    joined: Option<&File>,
    end: &dyn Fn(),
) -> Result<Pid, StartError> {
    let system = |error: io::Error| {
        failed(
            StartFailure::System,
            format!("cannot start a process: {error}"),
        )
    };
    let image = Image::new(spec).map_err(system)?;
    let (mut report, mut reporter) = io::pipe().map_err(system)?;
    let shim = std::process::id();
    match sys::fork().map_err(system)? {
        Fork::Child => {
            let (step, error) = become_workload(spec, &image, shim, ends, joined);
            tell(&mut reporter, step, &error);
            sys::exit_now(127);
        }
        Fork::Parent { child } => {
            drop(reporter);
            if !comes(&report) {
                // Where that fails it dies with us.
                let _ = sys::pidfd_open(child)
                    .and_then(|child| sys::pidfd_send_signal(child.as_fd(), libc::SIGKILL));
                // It may have begun just now.
                end();
                return Err(late(spec));
            }
            listen(&mut report).map_or(Ok(child), |(step, error)| Err(explain(spec, step, &error)))
        }
    }
}

/// What `execve` wants, made before the fork.
struct Image {
    programs: Vec<CString>,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Image {
    fn new(spec: &Spec) -> io::Result<Self> {
        let strings = |strings: &[OsString]| -> io::Result<Vec<CString>> {
            strings
                .iter()
                .map(|string| Ok(CString::new(string.as_bytes())?))
                .collect()
        };
        Ok(Image {
            programs: strings(&candidates(&spec.args[0], search_path(spec)))?,
            args: strings(&spec.args)?,
            env: strings(&spec.env)?,
        })
    }
}

fn search_path(spec: &Spec) -> &OsStr {
    spec.env
        .iter()
        .find_map(|variable| variable.as_bytes().strip_prefix(b"PATH="))
        .map_or(OsStr::new(DEFAULT_PATH), OsStr::from_bytes)
}

/// The files a command can mean, in the order in which they are tried.
fn candidates(command: &OsStr, path: &OsStr) -> Vec<OsString> {
    if command.as_bytes().contains(&b'/') {
        return vec![command.to_owned()];
    }
    path.as_bytes()
        .split(|byte| *byte == b':')
        .map(|dir| if dir.is_empty() { b".".as_slice() } else { dir })
        .map(|dir| {
            Path::new(OsStr::from_bytes(dir))
                .join(command)
                .into_os_string()
        })
        .collect()
}

/// Runs in the child, and returns only when something failed.
fn become_workload(
    spec: &Spec,
    image: &Image,
    shim: u32,
    ends: &Ends,
    joined: Option<&File>,
) -> (Step, io::Error) {
    let prepare = || -> io::Result<()> {
        sys::setsid()?;
        if ends.terminal {
            sys::control_terminal(ends.stdout.as_fd())?;
        }
        if let Some(stdin) = &ends.stdin {
            sys::duplicate_onto(stdin.as_fd(), 0)?;
        }
        sys::duplicate_onto(ends.stdout.as_fd(), 1)?;
        sys::duplicate_onto(ends.stderr.as_fd(), 2)?;
        sys::set_umask(0o022);
        Ok(())
    };
    if let Err(error) = prepare() {
        return (Step::Prepare, error);
    }
    let mounted = match joined {
        Some(mounts) => mounts::join(mounts).map_err(Failed::Leave),
        None => mounts::make(&spec.mounts),
    };
    match mounted {
        Ok(()) => {}
        Err(Failed::Leave(error)) => return (Step::Namespace, error),
        Err(Failed::At(index, error)) => {
            return (Step::Mount(u8::try_from(index).unwrap_or(u8::MAX)), error);
        }
    }
    if (spec.user.is_some() || spec.group.is_some() || !spec.groups.is_empty())
        && let Err(error) = sys::become_user(spec.user, spec.group, &spec.groups)
    {
        return (Step::User, error);
    }
    if spec.no_new_privileges
        && let Err(error) = sys::keep_from_new_privileges()
    {
        return (Step::Prepare, error);
    }
    // After the change of user, which would undo it; then a look whether it came too late.
    if let Err(error) = sys::die_with_parent() {
        return (Step::Prepare, error);
    }
    if std::os::unix::process::parent_id() != shim {
        sys::exit_now(127);
    }
    let dir = spec.working_dir.as_deref().unwrap_or(Path::new("/"));
    if let Err(error) = std::env::set_current_dir(dir) {
        return (Step::WorkingDirectory, error);
    }
    sys::reset_signals();
    let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
    for program in &image.programs {
        let error = sys::exec(program, &image.args, &image.env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // Somewhere later in the path there may be one that can be executed.
            Some(libc::EACCES) => worst = error,
            _ => return (Step::Exec, error),
        }
    }
    (Step::Exec, worst)
}

fn tell(reporter: &mut PipeWriter, step: Step, error: &io::Error) {
    let mut message = vec![step.to_byte()];
    message.extend_from_slice(&error.raw_os_error().unwrap_or(0).to_le_bytes());
    // Without it the shim sees a first process that ended with 127 at once.
    let _ = reporter.write_all(&message);
}

/// Whether anything comes of a start in time: a word, or the end of the pipe.
fn comes(report: &PipeReader, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut watched = [Watched::new(report.as_fd())];
        match sys::poll(&mut watched, Some(left)) {
            Ok(()) if !watched[0].ready && left.is_zero() => return false,
            Ok(()) if !watched[0].ready => {}
            Ok(()) | Err(_) => return true,
        }
    }
}

fn late(spec: &Spec) -> StartError {
    let dir = spec.working_dir.as_deref().unwrap_or(Path::new("/"));
    failed(
        StartFailure::System,
        format!(
            "command {:?} did not begin within {} seconds and was killed: it, what it mounts, or the \
             working directory {} may be on storage that does not answer",
            spec.args[0],
            PATIENCE.as_secs(),
            dir.display()
        ),
    )
}

/// `None` when the pipe was closed by a successful exec.
fn listen(report: &mut PipeReader) -> Option<(Step, io::Error)> {
    let mut message = [0; 5];
    report.read_exact(&mut message).ok()?;
    let [step, errno @ ..] = message;
    Some((
        Step::from_byte(step),
        io::Error::from_raw_os_error(i32::from_le_bytes(errno)),
    ))
}

fn explain(spec: &Spec, step: Step, error: &io::Error) -> StartError {
    let command = &spec.args[0];
    let code = error.raw_os_error().unwrap_or(0);
    match step {
        Step::Prepare => failed(
            StartFailure::System,
            format!("cannot set up the process: {error}"),
        ),
        Step::User => failed(
            StartFailure::User,
            format!(
                "cannot run as user {} and group {}: {error}",
                id(spec.user),
                id(spec.group)
            ),
        ),
        Step::Namespace => failed(
            StartFailure::Mount,
            format!("cannot have mounts of its own: {error}"),
        ),
        Step::Mount(index) => {
            let none = Path::new("");
            let mount = spec.mounts.get(usize::from(index));
            let (source, target) = mount.map_or((none, none), |m| (&*m.source, &*m.target));
            failed(
                StartFailure::Mount,
                format!(
                    "cannot mount {} on {}: {error}",
                    source.display(),
                    target.display()
                ),
            )
        }
        Step::WorkingDirectory => {
            let dir = spec.working_dir.as_deref().unwrap_or(Path::new("/"));
            failed(
                StartFailure::WorkingDirectory,
                format!(
                    "cannot enter the working directory {}: {error}",
                    dir.display()
                ),
            )
        }
        Step::Exec if matches!(code, libc::ENOENT | libc::ENOTDIR) => {
            let place = if command.as_bytes().contains(&b'/') {
                "there is no such file, or its interpreter is missing".to_owned()
            } else {
                format!(
                    "it is in none of the directories of PATH ({})",
                    search_path(spec).display()
                )
            };
            failed(
                StartFailure::NotFound,
                format!("command {command:?} was not found: {place}"),
            )
        }
        Step::Exec if matches!(code, libc::E2BIG | libc::ENOMEM | libc::EAGAIN) => failed(
            StartFailure::System,
            format!("cannot execute {command:?}: {error}"),
        ),
        Step::Exec => failed(
            StartFailure::NotExecutable,
            format!("command {command:?} cannot be executed: {error}"),
        ),
    }
}

fn id(id: Option<u32>) -> String {
    id.map_or_else(|| "unchanged".to_owned(), |id| id.to_string())
}

pub(crate) fn failed(failure: StartFailure, message: String) -> StartError {
    StartError {
        failure,
        message,
        at: Wall::now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kill;
    use crate::proc::{self, CONTAINER_MARK, Membership};

    fn found(command: &str, path: &str) -> Vec<OsString> {
        candidates(OsStr::new(command), OsStr::new(path))
    }

    #[test]
    fn a_command_with_a_slash_is_that_file_alone() {
        assert_eq!(found("./x", "/bin"), ["./x"]);
    }

    #[test]
    fn a_bare_command_is_looked_for_along_the_path() {
        assert_eq!(found("x", "/a::/b/"), ["/a/x", "./x", "/b/x"]);
    }

    #[test]
    fn steps_survive_the_way_to_the_shim() {
        use Step::{Exec, Mount, Namespace, Prepare, User, WorkingDirectory};
        let steps = [
            Prepare,
            User,
            WorkingDirectory,
            Exec,
            Namespace,
            Mount(0),
            Mount(99),
        ];
        for step in steps {
            assert_eq!(Step::from_byte(step.to_byte()), step);
        }
    }

    #[test]
    fn a_start_that_comes_to_nothing_is_not_waited_for_for_ever() {
        let (report, mut reporter) = io::pipe().unwrap();
        assert!(!comes(&report, Duration::from_millis(5)));
        reporter.write_all(b"x").unwrap();
        assert!(comes(&report, PATIENCE));
        let (report, reporter) = io::pipe().unwrap();
        drop(reporter);
        assert!(comes(&report, PATIENCE));
    }

    fn spec(args: &[&str], env: &[&str]) -> Spec {
        Spec {
            kind: crate::spec::Kind::Container { log: "/l".into() },
            container: String::new(),
            boot_id: String::new(),
            args: args.iter().map(Into::into).collect(),
            env: env.iter().map(Into::into).collect(),
            working_dir: None,
            user: None,
            group: None,
            groups: Vec::new(),
            no_new_privileges: false,
            mounts: Vec::new(),
            joins_mounts: false,
        }
    }

    #[test]
    fn one_that_begins_just_when_it_is_given_up_dies_with_all_it_has_started() {
        let id = format!("late-{}", std::process::id());
        let mark = format!("{CONTAINER_MARK}={id}");
        let script = "setsid sleep 1000 & sleep 1000";
        let spec = spec(&["/bin/sh", "-c", script], &["PATH=/usr/bin:/bin", &mark]);
        let null = || File::options().write(true).open("/dev/null").unwrap();
        let ends = Ends {
            stdin: None,
            stdout: null(),
            stderr: null(),
            terminal: false,
        };
        let rule = Membership {
            marks: vec![(CONTAINER_MARK, id)],
            ..Membership::default()
        };
        let living = || {
            let all = proc::snapshot().unwrap();
            let members = proc::members(&all, &rule, &mut proc::environment).unwrap();
            let living = all.iter().filter(|process| !process.is_dead());
            living
                .filter(|process| members.contains(&process.pid))
                .count()
        };
        let given_up = |_: &PipeReader| {
            while living() < 3 {
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        };
        let end = || {
            kill::kill_members(&rule, kill::PATIENCE, &mut || ()).unwrap();
        };
        let error = start_if(&given_up, &spec, &ends, None, &end).unwrap_err();
        assert_eq!(error.failure, StartFailure::System);
        assert_eq!(living(), 0);
    }

    #[test]
    fn the_workloads_own_path_is_used() {
        let spec = spec(&["x"], &["XPATH=/no", "PATH=/yes"]);
        assert_eq!(search_path(&spec), "/yes");
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        let error = explain(&spec, Step::Exec, &error);
        assert_eq!(error.failure, StartFailure::NotFound);
        assert_eq!(
            error.message,
            "command \"x\" was not found: it is in none of the directories of PATH (/yes)"
        );
    }
}
