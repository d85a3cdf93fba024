use super::*;
use proptest::prelude::*;

const ME: &str = "me";

fn start() -> Election {
    Election::new(ME, Times::default(), 0)
}

fn version(version: u32) -> String {
    version.to_string()
}

fn seen(holder: Option<&str>, number: u32) -> Answer {
    Answer::Seen(Some(Seen {
        holder: holder.map(str::to_owned),
        version: version(number),
        duration: Times::default().lease,
    }))
}

fn written(number: u32) -> Answer {
    Answer::Written {
        version: version(number),
    }
}

fn step(election: &Election) -> (Step, i64) {
    let (step, at) = election.step();
    (step.clone(), at)
}

/// A leader since 0, whose newest version is 1.
fn leader() -> Election {
    let mut election = start();
    election.answered(0, Answer::Seen(None), 0);
    election.answered(0, written(1), 100);
    assert_eq!(election.leads(100), Some(6_000));
    election
}

#[test]
fn a_lease_that_is_not_there_is_made_and_held() {
    let mut election = start();
    assert_eq!(step(&election), (Step::Read, 0));
    election.answered(0, Answer::Seen(None), 10);
    assert_eq!(step(&election), (Step::Create, 10));
    election.answered(10, written(1), 30);
    // Counted from when it was sent, not from when the answer came.
    assert_eq!(election.leads(30), Some(6_010));
    assert_eq!(
        step(&election),
        (
            Step::Renew {
                version: version(1)
            },
            2_010
        )
    );
}

#[test]
fn a_renewal_moves_the_end_on() {
    let mut election = leader();
    election.answered(2_000, written(2), 2_300);
    assert_eq!(election.leads(2_300), Some(8_000));
    assert_eq!(election.release(2_300), Some("2"));
    assert_eq!(
        step(&election),
        (
            Step::Renew {
                version: version(2)
            },
            4_000
        )
    );
}

#[test]
fn a_leader_that_cannot_renew_stops_before_anybody_may_take_over() {
    let mut election = leader();
    election.answered(2_000, Answer::Unknown, 4_000);
    assert_eq!(step(&election), (Step::Read, 4_500));
    assert_eq!(election.leads(5_999), Some(6_000));
    assert_eq!(election.leads(6_000), None);
    assert_eq!(election.release(6_000), None);
    election.tick(6_000);
    assert_eq!(step(&election), (Step::Read, 6_000));
    let times = Times::default();
    assert!(times.renew + times.retry < times.lease);
}

#[test]
fn a_leader_whose_renewal_was_lost_on_the_way_back_finds_its_own_and_goes_on() {
    let mut election = leader();
    election.answered(2_000, Answer::Unknown, 3_000);
    election.answered(3_500, seen(Some(ME), 2), 3_600);
    // What was only seen moves nothing: nobody knows when it was sent.
    assert_eq!(election.leads(3_600), Some(6_000));
    assert_eq!(
        step(&election),
        (
            Step::Renew {
                version: version(2)
            },
            3_600
        )
    );
    election.answered(3_600, written(3), 3_700);
    assert_eq!(election.leads(3_700), Some(9_600));
}

#[test]
fn a_leader_that_sees_another_holder_stops_at_once() {
    let mut election = leader();
    election.answered(2_000, Answer::Refused, 2_100);
    assert_eq!(step(&election), (Step::Read, 2_100));
    assert!(election.leads(2_100).is_some());
    election.answered(2_100, seen(Some("other"), 9), 2_200);
    assert_eq!(election.leads(2_200), None);
}

#[test]
fn a_leader_whose_lease_was_deleted_makes_it_anew_and_one_released_under_it_is_taken_anew() {
    let mut election = leader();
    election.answered(2_000, Answer::Refused, 2_100);
    election.answered(2_100, Answer::Seen(None), 2_200);
    assert_eq!(step(&election), (Step::Create, 2_200));
    assert_eq!(election.leads(2_200), Some(6_000));

    let mut election = leader();
    election.answered(2_000, seen(None, 5), 2_100);
    assert_eq!(election.leads(2_100), None);
    assert_eq!(
        step(&election),
        (
            Step::Take {
                version: version(5)
            },
            2_100
        )
    );
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let mut election = start();
    election.answered(0, seen(None, 7), 50);
    assert_eq!(
        step(&election),
        (
            Step::Take {
                version: version(7)
            },
            50
        )
    );
    election.answered(50, Answer::Refused, 90);
    assert_eq!(step(&election), (Step::Read, 90));
    assert_eq!(election.leads(90), None);
}

#[test]
fn a_held_lease_is_taken_only_after_it_has_not_changed_for_its_duration() {
    let mut election = start();
    election.answered(0, seen(Some("other"), 1), 100);
    assert_eq!(step(&election), (Step::Read, 2_100));
    election.answered(9_000, seen(Some("other"), 1), 9_050);
    // The last look comes exactly when it is free.
    assert_eq!(step(&election), (Step::Read, 10_100));
    // A change begins the wait anew.
    election.answered(10_100, seen(Some("other"), 2), 10_200);
    assert_eq!(step(&election), (Step::Read, 12_200));
    election.answered(20_100, seen(Some("other"), 2), 20_199);
    assert_eq!(step(&election), (Step::Read, 20_200));
    election.answered(20_200, seen(Some("other"), 2), 20_200);
    assert_eq!(
        step(&election),
        (
            Step::Take {
                version: version(2)
            },
            20_200
        )
    );
}

#[test]
fn a_write_that_was_acknowledged_too_late_makes_nobody_leader() {
    let mut election = start();
    election.answered(0, Answer::Seen(None), 0);
    election.answered(0, written(1), 6_000);
    assert_eq!(election.leads(6_000), None);
    assert_eq!(step(&election), (Step::Read, 6_000));
}

/// One write on its way to the lease, or its answer on its way back.
#[derive(Debug, Clone)]
struct Flight {
    step: Step,
    sent: i64,
    lands: i64,
    /// `None`: the answer is lost.
    answered: Option<i64>,
    outcome: Option<Answer>,
}

/// The lease itself.
#[derive(Debug, Default)]
struct Register {
    holder: Option<String>,
    version: u32,
}

impl Register {
    fn carry_out(&mut self, who: &str, step: &Step) -> Answer {
        let current = self.version.to_string();
        let there = self.version > 0;
        let lands = match step {
            Step::Read => {
                let seen = there.then(|| Seen {
                    holder: self.holder.clone(),
                    version: current,
                    duration: Times::default().lease,
                });
                return Answer::Seen(seen);
            }
            Step::Create => !there,
            Step::Take { version } | Step::Renew { version } => there && *version == current,
        };
        if !lands {
            return Answer::Refused;
        }
        self.version += 1;
        self.holder = Some(who.to_owned());
        Answer::Written {
            version: self.version.to_string(),
        }
    }
}

#[derive(Debug)]
struct Replica {
    name: String,
    election: Election,
    flight: Option<Flight>,
    stopped_until: i64,
}

/// What the network and the scheduler do to one step.
type Fate = (i64, i64, bool, i64);

/// Runs three replicas for as long as there are fates, and stops for good whoever leads at
/// `death`; returns how often the leader changed.
fn simulate(fates: &[Fate], death: Option<i64>) -> Result<usize, TestCaseError> {
    let mut register = Register::default();
    // Requests that nobody waits for any more, and that land all the same.
    let mut strays: Vec<(String, Flight)> = Vec::new();
    let mut replicas: Vec<Replica> = ["a", "b", "c"]
        .iter()
        .map(|name| Replica {
            name: (*name).to_owned(),
            election: Election::new(*name, Times::default(), 0),
            flight: None,
            stopped_until: 0,
        })
        .collect();
    let mut fates = fates.iter();
    let (mut now, mut led_by, mut changes) = (0, None, 0);
    loop {
        strays.retain(|(name, stray)| {
            let lands = now >= stray.lands;
            if lands {
                register.carry_out(name, &stray.step);
            }
            !lands
        });
        for replica in &mut replicas {
            let name = replica.name.clone();
            if death == Some(now) && replica.election.leads(now).is_some() {
                replica.stopped_until = i64::MAX;
            }
            if let Some(flight) = &mut replica.flight {
                if flight.outcome.is_none() && now >= flight.lands {
                    flight.outcome = Some(register.carry_out(&name, &flight.step));
                }
                // A process that does not run still has its requests under way.
                if now < replica.stopped_until {
                    continue;
                }
                let limit = flight.sent + Times::default().retry;
                let outcome = flight.outcome.clone();
                let (sent, answered) = (flight.sent, flight.answered);
                match (outcome, answered) {
                    (Some(outcome), Some(at)) if now >= at => {
                        replica.election.answered(sent, outcome, now);
                        replica.flight = None;
                    }
                    _ if now >= limit => {
                        replica.election.answered(sent, Answer::Unknown, now);
                        if flight.outcome.is_none() {
                            strays.push((name.clone(), flight.clone()));
                        }
                        replica.flight = None;
                    }
                    _ => {}
                }
            }
            if now < replica.stopped_until {
                continue;
            }
            replica.election.tick(now);
            let (step, at) = replica.election.step();
            if replica.flight.is_none() && now >= at {
                let Some((out, back, lost, pause)) = fates.next() else {
                    return Ok(changes);
                };
                replica.flight = Some(Flight {
                    step: step.clone(),
                    sent: now,
                    lands: now + out,
                    answered: (!lost).then_some(now + out + back),
                    outcome: None,
                });
                replica.stopped_until = now + pause;
            }
        }
        let leaders: Vec<&str> = replicas
            .iter()
            .filter(|replica| replica.election.leads(now).is_some())
            .map(|replica| replica.name.as_str())
            .collect();
        prop_assert!(leaders.len() <= 1, "{leaders:?} lead at {now}");
        if let Some(leader) = leaders.first().map(|leader| (*leader).to_owned())
            && led_by.as_ref() != Some(&leader)
        {
            led_by = Some(leader);
            changes += 1;
        }
        now += 50;
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    let pause = prop_oneof![8 => Just(0i64), 1 => 0i64..30_000];
    (0i64..3_000, 0i64..3_000, prop::bool::weighted(0.2), pause)
}

proptest! {
    /// Requests are late, answers get lost, processes stand still: never two leaders.
    #[test]
    fn never_two_leaders(fates in proptest::collection::vec(fate(), 10..200)) {
        simulate(&fates, None)?;
    }
}

#[test]
fn in_a_quiet_world_one_leads_for_ever_and_after_its_death_the_next_one_does() {
    let quiet = vec![(10, 10, false, 0); 400];
    assert_eq!(simulate(&quiet, None).unwrap(), 1);
    assert_eq!(simulate(&quiet, Some(5_000)).unwrap(), 2);
}
