//! Pods that wait for another turn, in the order in which they came.

use std::collections::{BTreeMap, HashMap};

use super::Target;

/// Each pod stands in it once. Thousands may be refused at the same time while events go on to tell
/// of each, so finding or removing one must not mean looking at all.
#[derive(Debug, Default)]
pub(super) struct Queue {
    by_turn: BTreeMap<u64, Target>,
    turns: HashMap<Target, u64>,
    next: u64,
}

impl Queue {
    /// Puts it after all the others.
    pub(super) fn push(&mut self, target: Target) {
        self.remove(&target);
        self.by_turn.insert(self.next, target.clone());
        self.turns.insert(target, self.next);
        self.next += 1;
    }

    pub(super) fn pop(&mut self) -> Option<Target> {
        let (_, target) = self.by_turn.pop_first()?;
        self.turns.remove(&target);
        Some(target)
    }

    pub(super) fn remove(&mut self, target: &Target) {
        if let Some(turn) = self.turns.remove(target) {
            self.by_turn.remove(&turn);
        }
    }

    pub(super) fn contains(&self, target: &Target) -> bool {
        self.turns.contains_key(target)
    }

    pub(super) fn len(&self) -> usize {
        self.by_turn.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Target> {
        self.by_turn.values()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(number: u8) -> Target {
        let uid = number.to_string();
        Target {
            name: format!("p{uid}"),
            uid,
        }
    }

    proptest! {
        #[test]
        fn it_is_a_list_in_which_nobody_stands_twice(
            steps in proptest::collection::vec((0u8..4, 0u8..6), 0..60),
        ) {
            let mut queue = Queue::default();
            let mut list: Vec<Target> = Vec::new();
            for (step, number) in steps {
                let target = target(number);
                match step {
                    0 => {
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(queue.pop(), first);
                    }
                    1 => {
                        list.retain(|other| *other != target);
                        queue.remove(&target);
                    }
                    _ => {
                        list.retain(|other| *other != target);
                        list.push(target.clone());
                        queue.push(target.clone());
                    }
                }
                prop_assert_eq!(queue.contains(&target), list.contains(&target));
                prop_assert_eq!(queue.len(), list.len());
                prop_assert_eq!(queue.turns.len(), list.len());
                prop_assert!(queue.iter().eq(&list));
            }
        }
    }
}
