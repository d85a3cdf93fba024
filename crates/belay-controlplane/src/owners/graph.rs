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
    /// `None` when nobody here knows its kind, and so nobody can tell that it is gone.
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

#[derive(Debug)]
struct Dependent {
    place: Place,
    owners: Vec<Owner>,
    terminating: bool,
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    dependents: HashMap<String, Dependent>,
    /// UIDs of dependents, by owner.
    by_owner: HashMap<String, BTreeSet<String>>,
    /// Owners of dependents of which it is known whether they exist.
    exists: HashMap<String, bool>,
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

    /// The list of one kind is complete; what is known and was not in it is gone.
    pub(super) fn listing_done(&mut self, kind: usize) {
        let listed = self.listings.remove(&kind).unwrap_or_default();
        let own = self.dependents.iter().filter(|(_, d)| d.place.kind == kind);
        let mut gone: Vec<String> = own.map(|(uid, _)| uid.clone()).collect();
        let leaving = self.leaving.iter().filter(|(_, (p, _))| p.kind == kind);
        gone.extend(leaving.map(|(uid, _)| uid.clone()));
        for owner in self.dependents.values().flat_map(|d| &d.owners) {
            if owner.place.as_ref().is_some_and(|place| place.kind == kind) {
                gone.push(owner.uid.clone());
            }
        }
        for uid in gone.into_iter().filter(|uid| !listed.contains(uid)) {
            self.deleted(&uid);
        }
    }

    pub(super) fn applied(&mut self, seen: Seen) {
        if let Some(exists) = self.exists.get_mut(&seen.uid) {
            *exists = true;
        }
        match seen.cascade.filter(|_| seen.terminating) {
            Some(cascade) => {
                let place = seen.place.clone();
                self.leaving.insert(seen.uid.clone(), (place, cascade));
                self.look_at(&seen.uid);
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
        for owner in &seen.owners {
            let dependents = self.by_owner.entry(owner.uid.clone()).or_default();
            dependents.insert(seen.uid.clone());
            self.due.insert(owner.uid.clone());
        }
        let dependent = Dependent {
            place: seen.place,
            owners: seen.owners,
            terminating: seen.terminating,
        };
        self.due.insert(seen.uid.clone());
        self.dependents.insert(seen.uid, dependent);
    }

    pub(super) fn deleted(&mut self, uid: &str) {
        self.leaving.remove(uid);
        self.forget(uid);
        if self.by_owner.contains_key(uid) {
            self.exists.insert(uid.to_owned(), false);
            self.look_at(uid);
        }
    }

    /// An owner was looked for.
    pub(super) fn found(&mut self, uid: &str, exists: bool) {
        if self.by_owner.contains_key(uid) {
            self.exists.insert(uid.to_owned(), exists);
            self.look_at(uid);
        }
    }

    /// A task could not be carried out; it is due again.
    pub(super) fn again(&mut self, task: &Task) {
        match task {
            Task::Find { uid, .. } | Task::LetGo { uid, .. } => self.look_at(uid),
            Task::Delete { uid, .. } => {
                self.due.insert(uid.clone());
            }
            Task::Disown { owner, .. } => self.look_at(owner),
        }
    }

    /// Takes what has to be done now.
    pub(super) fn tasks(&mut self) -> Vec<Task> {
        let due = std::mem::take(&mut self.due);
        let mut tasks = Vec::new();
        let mut asked = BTreeSet::new();
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
        let dependents = self.by_owner.get(uid).into_iter().flatten();
        let mut waits = false;
        for dependent in dependents {
            let Some(known) = self.dependents.get(dependent) else {
                continue;
            };
            let blocks = known.owners.iter().any(|o| o.uid == uid && o.blocks);
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
        asked: &mut BTreeSet<String>,
        tasks: &mut Vec<Task>,
    ) {
        if dependent.terminating {
            return;
        }
        let mut kept = false;
        for owner in &dependent.owners {
            let leaving = self.leaving.get(&owner.uid).map(|(_, cascade)| *cascade);
            match (leaving, self.exists.get(&owner.uid), &owner.place) {
                (Some(Cascade::Foreground), _, _) | (None, Some(false), _) => {}
                (Some(Cascade::Orphan), _, _) | (None, Some(true), _) | (None, None, None) => {
                    kept = true;
                }
                (None, None, Some(place)) => {
                    kept = true;
                    if asked.insert(owner.uid.clone()) {
                        tasks.push(Task::Find {
                            uid: owner.uid.clone(),
                            place: place.clone(),
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
    }

    /// An owner and all that belongs to it are to be looked at.
    fn look_at(&mut self, owner: &str) {
        self.due.insert(owner.to_owned());
        let dependents = self.by_owner.get(owner).into_iter().flatten();
        self.due.extend(dependents.cloned());
    }

    /// Drops a dependent; what its owners waited for may have come.
    fn forget(&mut self, uid: &str) {
        let Some(dependent) = self.dependents.remove(uid) else {
            return;
        };
        for owner in dependent.owners {
            if let Some(dependents) = self.by_owner.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.by_owner.remove(&owner.uid);
                    self.exists.remove(&owner.uid);
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
        graph.found("o", true);
        assert_eq!(graph.tasks(), []);
        graph
    }

    #[test]
    fn a_dependent_goes_when_its_owner_is_gone() {
        let mut graph = pair();
        graph.deleted("o");
        assert_eq!(graph.tasks(), [delete("c")]);
        graph.again(&delete("c"));
        assert_eq!(graph.tasks(), [delete("c")]);
        graph.deleted("c");
        assert_eq!(graph.tasks(), []);
        assert!(graph.by_owner.is_empty() && graph.exists.is_empty());
    }

    #[test]
    fn one_that_comes_after_its_owner_has_gone_goes_too() {
        let mut graph = Graph::default();
        graph.applied(child("c", &["o"]));
        assert_eq!(graph.tasks(), [find("o")]);
        graph.found("o", false);
        assert_eq!(graph.tasks(), [delete("c")]);
    }

    #[test]
    fn the_last_owner_counts_and_an_owner_of_unknown_kind_is_never_gone() {
        let mut graph = Graph::default();
        graph.applied(child("c", &["o", "p"]));
        graph.found("o", true);
        graph.found("p", true);
        graph.tasks();
        graph.deleted("o");
        assert_eq!(graph.tasks(), []);
        graph.deleted("p");
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
        graph.listing(0);
        graph.listing_done(0);
        assert_eq!(graph.tasks(), [delete("c")]);
        graph.listing(1);
        graph.listing_done(1);
        assert!(graph.dependents.is_empty());
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
        graph.deleted("o");
        assert_eq!(graph.tasks(), []);
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
        graph.deleted("c");
        assert!(matches!(&graph.tasks()[..], [Task::LetGo { .. }]));
    }
}
