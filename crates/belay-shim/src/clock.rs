//! Wall time for people, boot time for deadlines.

use std::fmt::Write as _;
use std::time::Duration;

use crate::sys;

/// A moment of wall time: nanoseconds since 1970. Good until the year 2262.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall(pub i64);

impl Wall {
    pub fn now() -> Self {
        let (seconds, nanos) = sys::clock(sys::Clock::Real);
        Wall(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// `2026-01-02T03:04:05.000000006Z`, always nine digits: log lines then sort as text.
    pub fn rfc3339(self) -> String {
        let seconds = self.0.div_euclid(1_000_000_000);
        let nanos = self.0.rem_euclid(1_000_000_000);
        let (year, month, day) = civil(seconds.div_euclid(86_400));
        let time = seconds.rem_euclid(86_400);
        let mut out = String::with_capacity(30);
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{nanos:09}Z",
            time / 3600,
            time / 60 % 60,
            time % 60
        );
        out
    }
}

/// A moment of boot time: it goes on while the machine sleeps, and nobody can set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boot(pub i64);

impl Boot {
    pub fn now() -> Self {
        let (seconds, nanos) = sys::clock(sys::Clock::Boot);
        Boot(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Boot(
            self.0
                .saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)),
        )
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Counted in eras of 400 years that begin on the first of March, so that the leap day is the
    // last day of its year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_kubernetes_writes_them() {
        assert_eq!(Wall(0).rfc3339(), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(
            Wall(951_782_400_000_000_006).rfc3339(),
            "2000-02-29T00:00:00.000000006Z"
        );
        assert_eq!(
            Wall(1_475_713_029_669_794_202).rfc3339(),
            "2016-10-06T00:17:09.669794202Z"
        );
        assert_eq!(
            Wall(4_107_542_399_000_000_000).rfc3339(),
            "2100-02-28T23:59:59.000000000Z"
        );
        assert_eq!(
            Wall(4_107_542_400_000_000_000).rfc3339(),
            "2100-03-01T00:00:00.000000000Z"
        );
        assert_eq!(Wall(-1).rfc3339(), "1969-12-31T23:59:59.999999999Z");
    }

    #[test]
    fn boot_time_goes_forward_and_a_huge_timeout_does_not_wrap() {
        assert!(Boot::now().0 > 0);
        assert_eq!(Boot(1).after(Duration::MAX), Boot(i64::MAX));
    }
}
