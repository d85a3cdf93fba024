//! The last bytes of an endless output, in bounded memory.

/// How much of an exec's output is kept.
pub(crate) const TAIL: usize = 4096;

/// Keeps the last [`TAIL`] bytes pushed into it.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    ring: Vec<u8>,
    next: usize,
    dropped: bool,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if bytes.len() > TAIL {
            self.dropped = true;
        }
        for byte in &bytes[bytes.len().saturating_sub(TAIL)..] {
            if self.ring.len() < TAIL {
                self.ring.push(*byte);
            } else {
                self.ring[self.next] = *byte;
                self.next = (self.next + 1) % TAIL;
                self.dropped = true;
            }
        }
    }

    /// What is kept, oldest first, and whether anything came before it.
    pub(crate) fn contents(&self) -> (Vec<u8>, bool) {
        let mut out = Vec::with_capacity(self.ring.len());
        out.extend_from_slice(&self.ring[self.next..]);
        out.extend_from_slice(&self.ring[..self.next]);
        (out, self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exactly_the_size_of_the_tail_loses_nothing() {
        let mut tail = Tail::default();
        tail.push(&[7; TAIL]);
        assert_eq!(tail.contents(), (vec![7; TAIL], false));
        tail.push(&[8]);
        let (bytes, dropped) = tail.contents();
        assert!(dropped);
        assert_eq!((bytes[0], bytes[TAIL - 1]), (7, 8));
    }

    proptest! {
        #[test]
        fn the_tail_is_the_end_of_all_that_was_pushed(
            chunks in proptest::collection::vec((any::<u8>(), 0usize..9000), 0..8)
        ) {
            let mut tail = Tail::default();
            let mut all = Vec::new();
            for (seed, length) in chunks {
                let chunk: Vec<u8> = (0..length).map(|i| seed.wrapping_add((i % 251) as u8)).collect();
                tail.push(&chunk);
                all.extend_from_slice(&chunk);
            }
            let (bytes, dropped) = tail.contents();
            prop_assert_eq!(dropped, all.len() > TAIL);
            prop_assert_eq!(&bytes[..], &all[all.len().saturating_sub(TAIL)..]);
        }
    }
}
