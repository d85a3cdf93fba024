//! A Notification among everything that can happen to it: children end, are deleted, the watch
//! lags, answers are lost, pods come and go, and the controller crashes between any two steps.

// A test that cannot go on stops.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::num::NonZeroUsize;

use belay_core::fanout::{Fanout, Memory, Outcome, Policy, Rule, Target};
use proptest::prelude::*;

fn target(index: usize) -> Target {
    Target {
        name: format!("pod-{index}"),
        uid: format!("uid-{index}"),
    }
}

fn rule(policy: Policy, parallelism: usize, max_failures: usize) -> Rule {
    Rule {
        policy,
        parallelism: NonZeroUsize::new(parallelism),
        max_failures: NonZeroUsize::new(max_failures),
    }
}

/// A child as the server has it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stored {
    outcome: Option<Outcome>,
    terminating: bool,
}

#[derive(Debug, Clone)]
enum Told {
    Child(Target, Stored),
    Gone(Target),
    Pod(Target),
    PodGone(Target),
}

/// What can happen. Indices are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    /// The controller learns the next thing the watch has for it.
    Watch,
    /// It creates a child; the answer may get lost, and so may the request.
    Create(Answer),
    /// It asks what became of creations that were not answered.
    Ask,
    /// The agent ends a child.
    End(usize, bool),
    /// Somebody deletes a child.
    Delete(usize),
    /// The status is written, and what it releases is released.
    Write {
        release: bool,
    },
    /// What the controller wants collected is deleted.
    Collect,
    Crash,
    /// With `AllPods`: another pod runs, or one goes.
    PodComes,
    PodGoes(usize),
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Heard,
    Lost,
    NotSent,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Watch),
        6 => Just(Step::Create(Answer::Heard)),
        1 => Just(Step::Create(Answer::Lost)),
        1 => Just(Step::Create(Answer::NotSent)),
        2 => Just(Step::Ask),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(i, ok)| Step::End(i, ok)),
        2 => any::<usize>().prop_map(Step::Delete),
        3 => any::<bool>().prop_map(|release| Step::Write { release }),
        2 => Just(Step::Collect),
        1 => Just(Step::Crash),
        2 => Just(Step::PodComes),
        1 => any::<usize>().prop_map(Step::PodGoes),
    ]
}

/// The server and everybody but the controller.
#[derive(Debug)]
struct World {
    rule: Rule,
    /// The fixed set, or the pods that run.
    pods: BTreeSet<Target>,
    children: BTreeMap<Target, Stored>,
    status: Memory,
    watch: VecDeque<Told>,
    unanswered: Vec<Target>,
    /// What is true: everyone a child was ever created for, and how those that were deleted ended.
    notified: BTreeSet<Target>,
    gone: BTreeMap<Target, Outcome>,
    next_pod: usize,
    controller: Fanout,
}

impl World {
    fn new(rule: Rule, pods: usize) -> Self {
        let pods: BTreeSet<Target> = (0..pods).map(target).collect();
        let fixed = match rule.policy {
            Policy::PreExistingPods => pods.clone(),
            Policy::AllPods => BTreeSet::new(),
        };
        let controller = Fanout::new(rule, fixed);
        let mut world = Self {
            rule,
            status: controller.memory(),
            next_pod: pods.len(),
            pods,
            children: BTreeMap::new(),
            watch: VecDeque::new(),
            unanswered: Vec::new(),
            notified: BTreeSet::new(),
            gone: BTreeMap::new(),
            controller,
        };
        world.tell_pods();
        world
    }

    fn tell_pods(&mut self) {
        if self.rule.policy == Policy::AllPods {
            for pod in &self.pods {
                self.controller.pod_eligible(pod);
            }
        }
    }

    fn changed(&mut self, target: &Target) {
        let told = match self.children.get(target) {
            Some(child) => Told::Child(target.clone(), *child),
            None => Told::Gone(target.clone()),
        };
        self.watch.push_back(told);
    }

    fn pick(&self, index: usize, fits: impl Fn(&Stored) -> bool) -> Option<Target> {
        let fitting: Vec<&Target> = self
            .children
            .iter()
            .filter(|(_, child)| fits(child))
            .map(|(target, _)| target)
            .collect();
        let index = index.checked_rem(fitting.len())?;
        Some(fitting[index].clone())
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Watch => {
                if let Some(told) = self.watch.pop_front() {
                    self.tell(&told);
                }
            }
            Step::Create(answer) => {
                let Some(target) = self.controller.start_next() else {
                    return;
                };
                if !matches!(answer, Answer::NotSent) && !self.children.contains_key(&target) {
                    self.create(&target);
                }
                match answer {
                    Answer::Heard => {
                        self.controller.created(&target, None);
                        self.may_be_orphan(&target);
                    }
                    Answer::Lost | Answer::NotSent => self.unanswered.push(target),
                }
            }
            Step::Ask => {
                for target in std::mem::take(&mut self.unanswered) {
                    match self.children.get(&target) {
                        Some(child) => {
                            self.controller.created(&target, child.outcome);
                            self.may_be_orphan(&target);
                        }
                        None => self.controller.not_created(&target),
                    }
                }
            }
            Step::End(index, ok) => {
                let Some(target) = self.pick(*index, |child| child.outcome.is_none()) else {
                    return;
                };
                let child = self.children.get_mut(&target).unwrap();
                // A handler that is cancelled has failed.
                child.outcome = Some(if *ok && !child.terminating {
                    Outcome::Succeeded
                } else {
                    Outcome::Failed
                });
                self.changed(&target);
            }
            Step::Delete(index) => {
                let Some(target) = self.pick(*index, |child| !child.terminating) else {
                    return;
                };
                self.children.get_mut(&target).unwrap().terminating = true;
                self.changed(&target);
            }
            Step::Write { release } => self.write(*release),
            Step::Collect => self.collect(),
            Step::Crash => self.crash(),
            Step::PodComes => {
                if self.rule.policy == Policy::AllPods {
                    let pod = target(self.next_pod);
                    self.next_pod += 1;
                    self.pods.insert(pod.clone());
                    self.watch.push_back(Told::Pod(pod));
                }
            }
            Step::PodGoes(index) => {
                if self.rule.policy == Policy::AllPods
                    && let Some(at) = index.checked_rem(self.pods.len())
                {
                    let pod = self.pods.iter().nth(at).cloned().unwrap();
                    self.pods.remove(&pod);
                    self.watch.push_back(Told::PodGone(pod));
                }
            }
        }
    }

    fn tell(&mut self, told: &Told) {
        match told {
            Told::Child(target, child) => {
                self.controller
                    .child_seen(target, child.outcome, child.terminating);
            }
            Told::Gone(target) => {
                let exists = self.pods.contains(target);
                self.controller.child_gone(&target.uid, exists);
            }
            Told::Pod(target) => {
                // The pod may have gone again; its going is told later.
                self.controller.pod_eligible(target);
            }
            Told::PodGone(target) => {
                self.controller.pod_gone(target);
            }
        }
    }

    fn create(&mut self, target: &Target) {
        assert!(
            self.notified.insert(target.clone()),
            "{target:?} was notified twice"
        );
        assert!(
            self.rule.policy == Policy::AllPods || self.pods.contains(target),
            "{target:?} was not selected"
        );
        let failures = self.truth(Outcome::Failed);
        let known = self.controller.failed();
        if let Some(limit) = self.rule.max_failures {
            assert!(known < limit.get(), "one more after {failures} failures");
        }
        let child = Stored {
            outcome: None,
            terminating: false,
        };
        self.children.insert(target.clone(), child);
        self.changed(target);
    }

    /// A pod may have gone while its child was being created.
    fn may_be_orphan(&mut self, target: &Target) {
        if self.rule.policy == Policy::AllPods && !self.pods.contains(target) {
            self.controller.pod_gone(target);
        }
    }

    fn collect(&mut self) {
        for uid in self.controller.take_collectable() {
            let found = self.children.iter_mut().find(|(t, _)| t.uid == uid);
            // It may be gone already; then there is nothing to delete.
            if let Some((target, child)) = found {
                assert!(child.outcome.is_some(), "{target:?} has not ended");
                assert!(!self.pods.contains(target), "{target:?} is there");
                child.terminating = true;
                let target = target.clone();
                self.changed(&target);
            }
        }
    }

    fn write(&mut self, release: bool) {
        self.status = self.controller.memory();
        if !release {
            return;
        }
        let released: HashSet<String> = self
            .controller
            .released(&self.status.settled)
            .map(str::to_owned)
            .collect();
        let gone: Vec<Target> = self
            .children
            .keys()
            .filter(|target| released.contains(&target.uid))
            .cloned()
            .collect();
        for target in gone {
            let child = self.children.remove(&target).unwrap();
            assert!(child.terminating, "{target:?} was not being deleted");
            self.gone.insert(target.clone(), child.outcome.unwrap());
            self.changed(&target);
        }
    }

    /// Whatever the controller knew is gone, and so is what the watch had for it.
    fn crash(&mut self) {
        self.watch.clear();
        self.unanswered.clear();
        self.controller = Fanout::load(self.rule, self.status.clone());
        for (target, child) in &self.children {
            self.controller
                .child_seen(target, child.outcome, child.terminating);
        }
        self.controller.loaded();
        self.tell_pods();
        let pods = &self.pods;
        self.controller
            .forget_pods(|uid| pods.iter().any(|pod| pod.uid == uid));
    }

    fn truth(&self, outcome: Outcome) -> usize {
        let stored = self.children.values().filter_map(|child| child.outcome);
        stored
            .chain(self.gone.values().copied())
            .filter(|ended| *ended == outcome)
            .count()
    }

    fn unfinished(&self) -> usize {
        let running = |child: &&Stored| child.outcome.is_none();
        self.children.values().filter(running).count()
    }

    fn check(&self) {
        if let Some(limit) = self.rule.parallelism {
            assert!(self.unfinished() <= limit.get(), "{}", self.unfinished());
        }
        assert!(self.controller.succeeded() <= self.truth(Outcome::Succeeded));
        assert!(self.controller.failed() <= self.truth(Outcome::Failed));
        if self.controller.complete() {
            assert_eq!(self.unfinished(), 0);
            assert!(self.controller.stopped() || self.notified == self.pods);
        }
    }

    /// Lets everything run to its end, without more trouble.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let watched = !self.watch.is_empty();
            self.step(&Step::Watch);
            let before = self.notified.len();
            self.step(&Step::Ask);
            self.step(&Step::Create(Answer::Heard));
            let ended = self.unfinished() > 0;
            self.step(&Step::End(0, true));
            self.step(&Step::Collect);
            self.step(&Step::Write { release: true });
            self.check();
            if !watched && !ended && before == self.notified.len() && self.watch.is_empty() {
                return;
            }
        }
        panic!("it never comes to rest");
    }
}

fn run(rule: Rule, pods: usize, steps: &[Step]) -> World {
    let mut world = World::new(rule, pods);
    for step in steps {
        world.step(step);
        world.check();
    }
    world.settle();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_fixed_set_is_notified_once_each_and_counted_right(
        parallelism in 0usize..4,
        max_failures in 0usize..4,
        pods in 0usize..7,
        steps in proptest::collection::vec(any_step(), 0..80),
    ) {
        let world = run(rule(Policy::PreExistingPods, parallelism, max_failures), pods, &steps);
        prop_assert!(world.controller.complete());
        let memory = world.controller.memory();
        prop_assert_eq!(memory.succeeded, world.truth(Outcome::Succeeded));
        prop_assert_eq!(memory.failed, world.truth(Outcome::Failed));
        prop_assert_eq!(memory.targets, pods);
        let left: BTreeSet<Target> = memory.pending.into_iter().collect();
        prop_assert_eq!(memory.succeeded + memory.failed + left.len(), pods);
        prop_assert!(left.is_disjoint(&world.notified));
        prop_assert_eq!(left.is_empty(), !world.controller.stopped());
    }

    #[test]
    fn with_all_pods_whoever_runs_is_notified_once_and_it_never_completes(
        parallelism in 0usize..4,
        pods in 0usize..5,
        steps in proptest::collection::vec(any_step(), 0..80),
    ) {
        let world = run(rule(Policy::AllPods, parallelism, 0), pods, &steps);
        prop_assert!(!world.controller.complete());
        prop_assert!(world.pods.is_subset(&world.notified), "a running pod was left out");
        let memory = world.controller.memory();
        prop_assert_eq!(memory.succeeded, world.truth(Outcome::Succeeded));
        prop_assert_eq!(memory.failed, world.truth(Outcome::Failed));
        prop_assert_eq!(memory.targets, world.notified.len());
        prop_assert!(memory.pending.is_empty());
        // What is kept is bounded by the pods that are there.
        prop_assert!(memory.settled.uids.len() <= world.pods.len());
        let kept: BTreeSet<Target> = world.children.keys().cloned().collect();
        prop_assert!(kept.is_subset(&world.pods), "{kept:?} of {:?}", world.pods);
    }
}

#[test]
fn no_more_than_parallelism_at_a_time_and_zero_or_more_than_there_are_is_all() {
    for (parallelism, at_once) in [(0, 5), (1, 1), (3, 3), (5, 5), (9, 5)] {
        let mut fanout = Fanout::new(
            rule(Policy::PreExistingPods, parallelism, 0),
            (0..5).map(target),
        );
        let first: Vec<Target> = std::iter::from_fn(|| fanout.start_next()).collect();
        assert_eq!(first.len(), at_once, "parallelism {parallelism}");
        if at_once < 5 {
            fanout.created(&first[0], None);
            assert_eq!(fanout.start_next(), None, "what is created still runs");
            fanout.child_seen(&first[0], Some(Outcome::Succeeded), false);
            assert!(fanout.start_next().is_some());
        }
    }
}

#[test]
fn nothing_to_notify_is_complete_at_once() {
    let fanout = Fanout::new(rule(Policy::PreExistingPods, 0, 0), []);
    assert!(fanout.complete() && !fanout.stopped());
}

#[test]
fn a_deleted_child_is_counted_and_not_made_again() {
    let mut fanout = Fanout::new(rule(Policy::PreExistingPods, 0, 0), [target(0), target(1)]);
    let deleted = fanout.start_next().unwrap();
    fanout.created(&deleted, None);
    fanout.child_seen(&deleted, None, true);
    assert_eq!(
        fanout.memory().settled.uids.len(),
        0,
        "it may still succeed"
    );
    fanout.child_seen(&deleted, Some(Outcome::Failed), true);
    let memory = fanout.memory();
    assert_eq!((memory.failed, memory.settled.failed), (1, 1));
    assert_eq!(fanout.released(&memory.settled).count(), 1);
    assert_eq!(
        fanout.released(&Memory::default().settled).count(),
        0,
        "not before it is in the status"
    );
    fanout.child_gone(&deleted.uid, true);
    assert_eq!(fanout.start_next(), Some(target(1)));
    assert_eq!(fanout.start_next(), None);
}

#[test]
fn what_was_removed_by_force_while_nobody_looked_counts_as_failed() {
    let rule = rule(Policy::PreExistingPods, 0, 0);
    let memory = Memory {
        targets: 3,
        pending: vec![target(2)],
        ..Memory::default()
    };
    let mut fanout = Fanout::load(rule, memory);
    fanout.child_seen(&target(0), Some(Outcome::Succeeded), false);
    fanout.loaded();
    assert_eq!((fanout.succeeded(), fanout.failed()), (1, 1));
    // And once that is written it is not counted again.
    let mut again = Fanout::load(rule, fanout.memory());
    again.child_seen(&target(0), Some(Outcome::Succeeded), false);
    again.loaded();
    assert_eq!((again.succeeded(), again.failed()), (1, 1));
}

#[test]
fn a_list_tells_who_is_gone_but_not_of_those_who_came_after_it() {
    let mut fanout = Fanout::new(rule(Policy::PreExistingPods, 0, 0), (0..3).map(target));
    while let Some(next) = fanout.start_next() {
        fanout.created(&next, None);
    }
    fanout.child_seen(&target(0), None, false);
    fanout.child_seen(&target(1), None, false);
    let listed = HashSet::from([target(1).uid]);
    assert_eq!(fanout.missing(&listed), [target(0).uid]);
}

#[test]
fn with_all_pods_a_child_is_collected_when_it_has_ended_and_its_pod_is_gone() {
    let mut fanout = Fanout::new(rule(Policy::AllPods, 0, 0), []);
    for index in 0..3 {
        fanout.pod_eligible(&target(index));
        let next = fanout.start_next().unwrap();
        fanout.created(&next, None);
    }
    fanout.child_seen(&target(0), Some(Outcome::Succeeded), false);
    fanout.child_seen(&target(1), Some(Outcome::Failed), false);
    assert!(fanout.take_collectable().is_empty(), "their pods are there");
    fanout.pod_gone(&target(0));
    fanout.pod_gone(&target(0));
    fanout.pod_gone(&target(2));
    assert_eq!(fanout.take_collectable(), [target(0).uid]);
    for _ in 0..2 {
        fanout.child_seen(&target(2), Some(Outcome::Succeeded), false);
    }
    assert_eq!(fanout.take_collectable(), [target(2).uid]);
    for gone in [0, 2] {
        fanout.child_seen(&target(gone), Some(Outcome::Succeeded), true);
        fanout.child_gone(&target(gone).uid, false);
    }
    let memory = fanout.memory();
    assert_eq!((memory.targets, memory.succeeded, memory.failed), (3, 2, 1));
    assert!(memory.settled.uids.is_empty(), "a pod never comes back");
}

#[test]
fn when_the_time_is_over_nobody_else_is_notified_and_who_was_left_out_is_known() {
    let mut fanout = Fanout::new(rule(Policy::PreExistingPods, 1, 0), (0..3).map(target));
    let first = fanout.start_next().unwrap();
    fanout.expire();
    fanout.created(&first, None);
    assert!(!fanout.complete(), "what was started goes on");
    fanout.child_seen(&first, Some(Outcome::Succeeded), false);
    assert_eq!(fanout.start_next(), None);
    assert!(fanout.complete() && fanout.ran_out_of_time() && !fanout.stopped());
    assert_eq!(fanout.memory().pending, [target(1), target(2)]);

    let mut none_left = Fanout::new(rule(Policy::PreExistingPods, 0, 0), [target(0)]);
    let only = none_left.start_next().unwrap();
    none_left.created(&only, Some(Outcome::Succeeded));
    none_left.expire();
    assert!(none_left.complete() && !none_left.ran_out_of_time());
}

#[test]
fn a_pod_whose_child_is_refused_has_its_next_turn_after_all_the_others() {
    let mut fanout = Fanout::new(rule(Policy::PreExistingPods, 1, 0), (0..3).map(target));
    let first = fanout.start_next().unwrap();
    fanout.not_created(&first);
    assert!(!fanout.only_put_off());
    for _ in 0..2 {
        let next = fanout.start_next().unwrap();
        assert_ne!(next, first);
        fanout.created(&next, Some(Outcome::Succeeded));
    }
    assert!(fanout.only_put_off() && !fanout.complete());
    assert_eq!(
        (fanout.waiting(), fanout.memory().pending),
        (1, vec![first.clone()])
    );
    assert_eq!(fanout.start_next(), Some(first.clone()));
    fanout.created(&first, Some(Outcome::Succeeded));
    assert!(fanout.complete());
}

#[test]
fn a_pod_whose_child_s_name_is_taken_counts_as_failed_also_after_a_crash() {
    let rule = rule(Policy::PreExistingPods, 1, 0);
    let mut fanout = Fanout::new(rule, (0..2).map(target));
    let first = fanout.start_next().unwrap();
    let before = fanout.memory();
    fanout.taken(&first);
    let second = fanout.start_next().unwrap();
    fanout.created(&second, Some(Outcome::Succeeded));
    assert!(fanout.complete());
    assert_eq!((fanout.succeeded(), fanout.failed()), (1, 1));

    // What was written before the crash knows of it, or finds the same again.
    for (memory, asked_again) in [(before, true), (fanout.memory(), false)] {
        let mut restarted = Fanout::load(rule, memory);
        restarted.child_seen(&second, Some(Outcome::Succeeded), false);
        restarted.loaded();
        assert_eq!(restarted.complete(), !asked_again);
        while let Some(next) = restarted.start_next() {
            assert_eq!(next, first);
            restarted.taken(&next);
        }
        assert!(restarted.complete());
        assert_eq!((restarted.succeeded(), restarted.failed()), (1, 1));
    }
}

#[test]
fn with_all_pods_one_whose_child_s_name_is_taken_is_not_tried_again_while_it_is_there() {
    let mut fanout = Fanout::new(rule(Policy::AllPods, 0, 0), []);
    fanout.pod_eligible(&target(0));
    let first = fanout.start_next().unwrap();
    fanout.taken(&first);
    fanout.pod_eligible(&first);
    assert_eq!((fanout.start_next(), fanout.targets()), (None, 1));
    fanout.pod_gone(&first);
    assert_eq!(
        (fanout.failed(), fanout.memory().settled.uids.len()),
        (1, 0)
    );
}
