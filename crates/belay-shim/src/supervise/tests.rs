//! What a shim does that cannot do what it should.

use super::*;

fn spec(kind: Kind) -> Spec {
    Spec {
        kind,
        container: "c1".into(),
        boot_id: "b".into(),
        args: vec!["sleep".into()],
        env: Vec::new(),
        working_dir: None,
        user: None,
        group: None,
        groups: Vec::new(),
        no_new_privileges: false,
        joins_mounts: false,
        mounts: Vec::new(),
    }
}

fn blind(_: &Membership, _: Duration, _: &mut dyn FnMut()) -> io::Result<Vec<String>> {
    Err(io::Error::from_raw_os_error(libc::EMFILE))
}

fn seeing(_: &Membership, _: Duration, _: &mut dyn FnMut()) -> io::Result<Vec<String>> {
    Ok(vec!["7 (x)".to_owned()])
}

/// A shim that may be blind, and who asks it.
fn supervisor(kind: Kind, kill: Kill) -> (tempfile::TempDir, Supervisor, UnixStream) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("control")).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let control = Control::new(listener, theirs).unwrap();
    let started = Started {
        pid: 7,
        start_time: 1,
        boot_id: "b".into(),
        at: Wall(0),
        deadline: None,
    };
    let signals = File::open("/dev/null").unwrap().into();
    let output = Output::elsewhere();
    let mut supervisor = Supervisor::new(spec(kind), &started, output, control, signals, None);
    supervisor.kill = kill;
    (dir, supervisor, ours)
}

fn ask(supervisor: &mut Supervisor, stream: &mut UnixStream) -> Record {
    Record::new(control::KILL).send(stream).unwrap();
    assert!(supervisor.control.read(None));
    supervisor.act(Event::KillAsked);
    Record::receive(stream).unwrap()
}

#[test]
fn a_shim_that_can_see_nobody_does_not_say_that_it_has_killed() {
    let exec = Kind::Exec {
        attempt: "a".into(),
        timeout: Duration::from_secs(1),
    };
    for kind in [Kind::Container { log: "log".into() }, exec] {
        let (_dir, mut supervisor, mut stream) = supervisor(kind, blind);
        let answer = ask(&mut supervisor, &mut stream);
        assert_eq!(answer.kind, control::ERROR);
        assert_eq!(supervisor.phase, Phase::Running);
        assert!(supervisor.end.is_none() && supervisor.survivors.is_empty());
    }
}

#[test]
fn it_kills_when_it_is_asked_again() {
    let (_dir, mut supervisor, mut stream) =
        supervisor(Kind::Container { log: "log".into() }, blind);
    ask(&mut supervisor, &mut stream);
    supervisor.kill = seeing;
    let answer = ask(&mut supervisor, &mut stream);
    assert_eq!(answer.kind, control::KILLED);
    assert_eq!(answer.text("survivor"), Ok("7 (x)"));
}

#[test]
fn of_one_whose_first_process_has_ended_the_rest_is_unknown() {
    let (_dir, mut supervisor, _stream) = supervisor(Kind::Container { log: "log".into() }, blind);
    supervisor.first_ended = Some(Wall(1));
    supervisor.carry_out(Effect::KillAll).unwrap_err();
    supervisor.act(Event::KillAsked);
    assert!(supervisor.survivors[0].starts_with("unknown"));
}
