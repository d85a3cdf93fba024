//! How soon a watch that broke is tried again.
//!
//! A node has few watches, so it need not spare the server the way a fleet of controllers must: when
//! the server is back, its nodes are back within [`LONGEST`].

use std::time::Duration;

use kube::runtime::utils::Backoff;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// Doubling pauses; a watch that works begins anew.
#[derive(Debug, Clone)]
pub(crate) struct Reconnect {
    next: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Reconnect { next: FIRST }
    }
}

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        Some(pause)
    }
}

impl Backoff for Reconnect {
    fn reset(&mut self) {
        *self = Reconnect::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_success() {
        let mut reconnect = Reconnect::default();
        let pauses: Vec<u128> = reconnect
            .by_ref()
            .take(7)
            .map(|pause| pause.as_millis())
            .collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        reconnect.reset();
        assert_eq!(reconnect.next(), Some(FIRST));
    }
}
