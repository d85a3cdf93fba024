//! Durations and what is told of them.

use std::time::Duration;

#[derive(Debug, Default, Clone)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn extend(&mut self, other: Samples) {
        self.0.extend(other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The sample below which `percent` of all lie; zero of none.
    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn p50(&self) -> Duration {
        self.percentile(50.0)
    }

    pub(crate) fn p99(&self) -> Duration {
        self.percentile(99.0)
    }
}

/// Milliseconds with two decimals.
pub(crate) fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

/// Microseconds with one decimal, for what is over in a few.
pub(crate) fn us(duration: Duration) -> String {
    format!("{:.1} µs", duration.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_that_were_taken() {
        let mut samples = Samples::default();
        for millis in 1..=100 {
            samples.push(Duration::from_millis(millis));
        }
        assert_eq!(samples.p50(), Duration::from_millis(50));
        assert_eq!(samples.p99(), Duration::from_millis(99));
        assert_eq!(Samples::default().p50(), Duration::ZERO);
    }
}
