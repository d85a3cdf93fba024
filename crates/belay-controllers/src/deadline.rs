//! What is left of a deadline for those that are made within it.

use std::time::Duration;

/// The shortest deadline of a child; children's are in whole seconds.
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);

/// Whether what is left of so many seconds is too little for a child: one that had more than is left
/// could start too late. Only of a single second the last part is good enough, because nothing else is
/// ever left of it: times of creation are cut.
pub(crate) fn is_over(left: Duration, whole: i32) -> bool {
    left.is_zero() || (left < SHORTEST && whole > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_second_is_too_little_unless_there_was_never_more() {
        let cases = [
            (0, 1, true),
            (1, 1, false),
            (999, 1, false),
            (0, 5, true),
            (999, 5, true),
            (1000, 5, false),
            (4999, 5, false),
        ];
        for (millis, whole, over) in cases {
            let left = Duration::from_millis(millis);
            assert_eq!(is_over(left, whole), over, "{millis} ms of {whole} s");
        }
    }
}
