//! Who belongs to whom. Pure bookkeeping: watch events and answers come in, tasks go out.
//!
//! Only dependents and their owners are kept, so that objects which belong to nobody cost nothing.

use std::collections::{BTreeSet, HashMap, HashSet};

/// Where an object is: the index of its kind, its namespace, its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) kind: usize,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// One of an object's owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: String,
    /// `None` when nobody here knows where it would be, and so nobody can tell that it is gone.
    pub(super) place: Option<Place>,
    /// Whether a foreground deletion of the owner waits for the dependent.
    pub(super) blocks: bool,
}

/// How an owner that is being deleted leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cascade {
    /// Its dependents stay, without an owner.
    Orphan,
    /// Its dependents go first.
    Foreground,
}

/// An object as a watch shows it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) uid: String,
    pub(super) place: Place,
    pub(super) owners: Vec<Owner>,
    pub(super) terminating: bool,
    pub(super) cascade: Option<Cascade>,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// Tell whether this owner exists.
    Find { uid: String, place: Place },
    /// Every owner of it is gone, or is waiting for it to go.
    Delete { uid: String, place: Place },
    /// Take this owner away from a dependent.
    Disown {
        uid: String,
        place: Place,
        owner: String,
    },
    /// Nothing keeps the owner any more.
    LetGo {
        uid: String,
        place: Place,
        cascade: Cascade,
    },
}

/// An owner as its dependents name it. Anybody may write any UID into a reference: one that gives
/// it another place names something else, and what becomes of that says nothing of this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Named {
    uid: String,
    place: Place,
}

impl Named {
    fn new(uid: &str, place: &Place) -> Self {
        Self {
            uid: uid.to_owned(),
            place: place.clone(),
        }
    }
}

impl Owner {
    fn named(&self) -> Option<Named> {
        Some(Named::new(&self.uid, self.place.as_ref()?))
    }

    fn is(&self, uid: &str, place: &Place) -> bool {
        self.uid == uid && self.place.as_ref() == Some(place)
    }
}

#[derive(Debug, Default)]
struct Known {
    /// UIDs of those that name it as their owner.
    dependents: BTreeSet<String>,
    exists: Option<bool>,
}

#[derive(Debug)]
struct Dependent {
    place: Place,
    owners: Vec<Owner>,
    terminating: bool,
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    dependents: HashMap<String, Dependent>,
    /// Owners of dependents.
    owners: HashMap<Named, Known>,
    leaving: HashMap<String, (Place, Cascade)>,
    /// Dependents and leaving owners to look at.
    due: BTreeSet<String>,
    listings: HashMap<usize, HashSet<String>>,
}

impl Graph {
    pub(super) fn listing(&mut self, kind: usize) {
        self.listings.insert(kind, HashSet::new());
    }

    pub(super) fn listed(&mut self, seen: Seen) {
        if let Some(listing) = self.listings.get_mut(&seen.place.kind) {
            listing.insert(seen.uid.clone());
        }
        self.applied(seen);
    }

    /// The list of one kind is complete; what is known of that kind and was not in it is gone. An
    /// owner that was only heard of by its dependents may be younger than the list, and is asked
    /// for.
    pub(super) fn listing_done(&mut self, kind: usize) {
        let listed = self.listings.remove(&kind).unwrap_or_default();
        let own = self.dependents.iter().filter(|(_, d)| d.place.kind == kind);
        let mut gone: Vec<Named> = own.map(|(uid, d)| Named::new(uid, &d.place)).collect();
        let leaving = self.leaving.iter().filter(|(_, (p, _))| p.kind == kind);
        gone.extend(leaving.map(|(uid, (place, _))| Named::new(uid, place)));
        for named in gone.into_iter().filter(|it| !listed.contains(&it.uid)) {
            self.deleted(&named.uid, &named.place);
        }
        for (named, known) in &mut self.owners {
            if named.place.kind == kind && !listed.contains(&named.uid) {
                known.exists = known.exists.filter(|exists| !exists);
                self.due.extend(known.dependents.iter().cloned());
            }
        }
    }

    pub(super) fn applied(&mut self, seen: Seen) {
        if let Some(known) = self.owners.get_mut(&Named::new(&seen.uid, &seen.place)) {
            known.exists = Some(true);
        }
        match seen.cascade.filter(|_| seen.terminating) {
            Some(cascade) => {
                let place = seen.place.clone();
                self.leaving.insert(seen.uid.clone(), (place, cascade));
                self.look_at(&Named::new(&seen.uid, &seen.place));
            }
            None => {
                self.leaving.remove(&seen.uid);
            }
        }
        let known = self.dependents.get(&seen.uid);
        if known.is_some_and(|d| d.owners == seen.owners && d.terminating == seen.terminating) {
            return;
        }
        self.forget(&seen.uid);
        if seen.owners.is_empty() {
            return;
        }
        for owner in seen.owners.iter().filter_map(Owner::named) {
            self.due.insert(owner.uid.clone());
            let known = self.owners.entry(owner).or_default();
            known.dependents.insert(seen.uid.clone());
        }
        let dependent = Dependent {
            place: seen.place,
            owners: seen.owners,
            terminating: seen.terminating,
        };
        self.due.insert(seen.uid.clone());
        self.dependents.insert(seen.uid, dependent);
    }

    pub(super) fn deleted(&mut self, uid: &str, place: &Place) {
        self.leaving.remove(uid);
        self.forget(uid);
        self.found(uid, place, false);
    }

    /// An owner was looked for.
    pub(super) fn found(&mut self, uid: &str, place: &Place, exists: bool) {
        let named = Named::new(uid, place);
        if let Some(known) = self.owners.get_mut(&named) {
            known.exists = Some(exists);
            self.look_at(&named);
        }
    }

    /// A task could not be carried out; it is due again.
    pub(super) fn again(&mut self, task: &Task) {
        match task {
            Task::Find { uid, place } => self.look_at(&Named::new(uid, place)),
            Task::Delete { uid, .. } | Task::LetGo { uid, .. } => {
                self.due.insert(uid.clone());
            }
            Task::Disown { uid, owner, .. } => {
                self.due.extend([uid.clone(), owner.clone()]);
            }
        }
    }

    /// Takes what has to be done now.
    pub(super) fn tasks(&mut self) -> Vec<Task> {
        let due = std::mem::take(&mut self.due);
        let mut tasks = Vec::new();
        let mut asked = HashSet::new();
        for uid in due {
            if let Some((place, cascade)) = self.leaving.get(&uid) {
                self.take_leave(&uid, place, *cascade, &mut tasks);
            }
            if let Some(dependent) = self.dependents.get(&uid) {
                self.judge(&uid, dependent, &mut asked, &mut tasks);
            }
        }
        tasks
    }

    fn take_leave(&self, uid: &str, place: &Place, cascade: Cascade, tasks: &mut Vec<Task>) {
        let known = self.owners.get(&Named::new(uid, place));
        let mut waits = false;
        for dependent in known.into_iter().flat_map(|known| &known.dependents) {
            let Some(known) = self.dependents.get(dependent) else {
                continue;
            };
            let blocks = known.owners.iter().any(|o| o.is(uid, place) && o.blocks);
            match cascade {
                Cascade::Orphan => {
                    waits = true;
                    tasks.push(Task::Disown {
                        uid: dependent.clone(),
                        place: known.place.clone(),
                        owner: uid.to_owned(),
                    });
                }
                Cascade::Foreground => waits |= blocks,
            }
        }
        if !waits {
            tasks.push(Task::LetGo {
                uid: uid.to_owned(),
                place: place.clone(),
                cascade,
            });
        }
    }

    fn judge(
        &self,
        uid: &str,
        dependent: &Dependent,
        asked: &mut HashSet<Named>,
        tasks: &mut Vec<Task>,
    ) {
        if dependent.terminating {
            return;
        }
        let mut kept = false;
        // Whether by somebody who is known to be there.
        let mut for_sure = false;
        let mut waiting = Vec::new();
        for owner in &dependent.owners {
            let Some(named) = owner.named() else {
                kept = true;
                continue;
            };
            let leaving = self.leaving.get(&named.uid);
            let leaving = leaving.filter(|(place, _)| *place == named.place);
            let exists = self.owners.get(&named).and_then(|known| known.exists);
            match (leaving.map(|(_, cascade)| *cascade), exists) {
                (Some(Cascade::Foreground), _) => waiting.push(named.uid),
                (None, Some(false)) => {}
                (Some(Cascade::Orphan), _) | (None, Some(true)) => (kept, for_sure) = (true, true),
                (None, None) => {
                    kept = true;
                    if asked.insert(named.clone()) {
                        tasks.push(Task::Find {
                            uid: named.uid,
                            place: named.place,
                        });
                    }
                }
            }
        }
        if !kept {
            tasks.push(Task::Delete {
                uid: uid.to_owned(),
                place: dependent.place.clone(),
            });
        }
        // Who waits for it to go would wait for ever.
        for owner in waiting.into_iter().filter(|_| for_sure) {
            tasks.push(Task::Disown {
                uid: uid.to_owned(),
                place: dependent.place.clone(),
                owner,
            });
        }
    }

    /// An owner and all that belongs to it are to be looked at.
    fn look_at(&mut self, owner: &Named) {
        self.due.insert(owner.uid.clone());
        if let Some(known) = self.owners.get(owner) {
            self.due.extend(known.dependents.iter().cloned());
        }
    }

    /// Drops a dependent; what its owners waited for may have come.
    fn forget(&mut self, uid: &str) {
        let Some(dependent) = self.dependents.remove(uid) else {
            return;
        };
        for owner in dependent.owners.iter().filter_map(Owner::named) {
            if let Some(known) = self.owners.get_mut(&owner) {
                known.dependents.remove(uid);
                if known.dependents.is_empty() {
                    self.owners.remove(&owner);
                }
            }
            self.due.insert(owner.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(kind: usize, name: &str) -> Place {
        Place {
            kind,
            namespace: Some("ns".into()),
            name: name.into(),
        }
    }

    fn owner(uid: &str) -> Owner {
        Owner {
            uid: uid.into(),
            place: Some(place(0, uid)),
            blocks: true,
        }
    }

    fn child(uid: &str, owners: &[&str]) -> Seen {
        Seen {
            uid: uid.into(),
            place: place(1, uid),
            owners: owners.iter().map(|uid| owner(uid)).collect(),
            terminating: false,
            cascade: None,
        }
    }

    fn leaving(uid: &str, cascade: Cascade) -> Seen {
        Seen {
            place: place(0, uid),
            terminating: true,
            cascade: Some(cascade),
            ..child(uid, &[])
        }
    }

    fn find(uid: &str) -> Task {
        Task::Find {
            uid: uid.into(),
            place: place(0, uid),
        }
    }

    fn delete(uid: &str) -> Task {
        Task::Delete {
            uid: uid.into(),
            place: place(1, uid),
        }
    }

    /// A dependent of one owner that exists.
    fn pair() -> Graph {
        let mut graph = Graph::default();
        graph.applied(child("c", &["o"]));
        assert_eq!(graph.tasks(), [find("o")]);
        graph.found("o", &place(0, "o"), true);
        assert_eq!(graph.tasks(), []);
        graph
    }

    #[test]
    fn a_dependent_goes_when_its_owner_is_gone() {
        let mut graph = pair();
        graph.deleted("o", &place(0, "o"));
        assert_eq!(graph.tasks(), [delete("c")]);
        graph.again(&delete("c"));
        assert_eq!(graph.tasks(), [delete("c")]);
        graph.deleted("c", &place(1, "c"));
        assert_eq!(graph.tasks(), []);
        assert!(graph.owners.is_empty());
    }

    #[test]
    fn one_that_comes_after_its_owner_has_gone_goes_too() {
        let mut graph = Graph::default();
        graph.applied(child("c", &["o"]));
        assert_eq!(graph.tasks(), [find("o")]);
        graph.found("o", &place(0, "o"), false);
        assert_eq!(graph.tasks(), [delete("c")]);
    }

    #[test]
    fn the_last_owner_counts_and_an_owner_of_unknown_kind_is_never_gone() {
        let mut graph = Graph::default();
        graph.applied(child("c", &["o", "p"]));
        graph.found("o", &place(0, "o"), true);
        graph.found("p", &place(0, "p"), true);
        graph.tasks();
        graph.deleted("o", &place(0, "o"));
        assert_eq!(graph.tasks(), []);
        graph.deleted("p", &place(0, "p"));
        assert_eq!(graph.tasks(), [delete("c")]);
        let mut foreign = child("d", &["x"]);
        foreign.owners[0].place = None;
        graph.applied(foreign);
        assert!(!graph.tasks().contains(&delete("d")));
    }

    #[test]
    fn an_owner_is_looked_for_once_however_many_belong_to_it() {
        let mut graph = Graph::default();
        for uid in ["a", "b", "c"] {
            graph.applied(child(uid, &["o"]));
        }
        assert_eq!(graph.tasks(), [find("o")]);
    }

    #[test]
    fn what_a_list_does_not_show_is_gone() {
        let mut graph = pair();
        graph.applied(child("d", &["c"]));
        graph.tasks();
        graph.listing(1);
        graph.listed(child("d", &["c"]));
        graph.listing_done(1);
        assert_eq!(graph.dependents.keys().collect::<Vec<_>>(), ["d"]);
    }

    #[test]
    fn an_owner_that_may_be_younger_than_the_list_of_its_kind_is_asked_for() {
        let mut graph = Graph::default();
        graph.listing(0);
        graph.applied(child("c", &["o"]));
        graph.listing_done(0);
        assert_eq!(graph.tasks(), [find("o")]);
        graph.found("o", &place(0, "o"), true);
        assert_eq!(graph.tasks(), []);
        // It may have gone while nobody watched.
        graph.listing(0);
        graph.listing_done(0);
        assert_eq!(graph.tasks(), [find("o")]);
        graph.found("o", &place(0, "o"), false);
        assert_eq!(graph.tasks(), [delete("c")]);
    }

    #[test]
    fn who_names_an_owner_in_the_wrong_place_harms_only_itself() {
        let elsewhere = Place {
            namespace: Some("other".into()),
            ..place(0, "o")
        };
        for wrong in [elsewhere, place(0, "p"), place(2, "o")] {
            let mut graph = Graph::default();
            let mut foreign = child("a", &["o"]);
            foreign.owners[0].place = Some(wrong.clone());
            graph.applied(foreign);
            graph.applied(child("c", &["o"]));
            let uid = "o".to_owned();
            let find_wrong = Task::Find {
                uid,
                place: wrong.clone(),
            };
            assert_eq!(graph.tasks(), [find_wrong, find("o")]);
            graph.found("o", &wrong, false);
            graph.found("o", &place(0, "o"), true);
            assert_eq!(graph.tasks(), [delete("a")]);
            // Nor does it hold the owner up.
            graph.applied(leaving("o", Cascade::Foreground));
            graph.deleted("c", &place(1, "c"));
            let left = graph.tasks();
            assert!(
                left.iter().any(|task| matches!(task, Task::LetGo { .. })),
                "{left:?}"
            );
        }
    }

    #[test]
    fn orphans_lose_their_owner_and_stay() {
        let mut graph = pair();
        graph.applied(leaving("o", Cascade::Orphan));
        let tasks = graph.tasks();
        assert!(
            matches!(&tasks[..], [Task::Disown { uid, .. }] if uid == "c"),
            "{tasks:?}"
        );
        graph.applied(child("c", &[]));
        assert!(matches!(&graph.tasks()[..], [Task::LetGo { .. }]));
        graph.deleted("o", &place(0, "o"));
        assert_eq!(graph.tasks(), []);
    }

    #[test]
    fn an_owner_that_is_deleted_in_the_foreground_does_not_wait_for_what_another_keeps() {
        let mut graph = Graph::default();
        graph.applied(child("c", &["o", "p"]));
        graph.found("o", &place(0, "o"), true);
        graph.applied(leaving("o", Cascade::Foreground));
        assert_eq!(graph.tasks(), [find("p")], "nobody knows of the other");
        graph.found("p", &place(0, "p"), true);
        let disown = Task::Disown {
            uid: "c".into(),
            place: place(1, "c"),
            owner: "o".into(),
        };
        assert_eq!(graph.tasks(), std::slice::from_ref(&disown));
        graph.again(&disown);
        assert_eq!(graph.tasks(), [disown]);
        graph.applied(child("c", &["p"]));
        let left = graph.tasks();
        let lets_go = |task: &Task| matches!(task, Task::LetGo { uid, .. } if uid == "o");
        assert!(left.iter().any(lets_go), "{left:?}");
        assert!(!left.contains(&delete("c")));
    }

    #[test]
    fn an_owner_that_is_deleted_in_the_foreground_waits_for_its_dependents() {
        let mut graph = pair();
        graph.applied(leaving("o", Cascade::Foreground));
        assert_eq!(graph.tasks(), [delete("c")]);
        let mut going = child("c", &["o"]);
        going.terminating = true;
        graph.applied(going);
        assert_eq!(graph.tasks(), []);
        graph.deleted("c", &place(1, "c"));
        assert!(matches!(&graph.tasks()[..], [Task::LetGo { .. }]));
    }
}
