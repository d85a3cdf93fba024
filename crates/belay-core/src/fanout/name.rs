//! What a child is called.

/// Room for the hyphen and the sixteen digits of the hash.
const NAME_MAX: usize = 253 - 17;

/// The name of the child for one pod: the same whenever it is asked for, so that creating it twice
/// is refused by the server, and another one for a Notification of the same name that comes later.
pub fn child_name(notification: &str, notification_uid: &str, pod_uid: &str) -> String {
    let hash = [notification_uid, "/", pod_uid]
        .iter()
        .flat_map(|part| part.bytes())
        .fold(FNV_OFFSET, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
        });
    // Names of objects are ASCII; anything else is cut where that is allowed.
    let end = notification
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= NAME_MAX)
        .last()
        .unwrap_or(0);
    let stem = notification[..end].trim_end_matches(['-', '.']);
    format!("{stem}-{hash:016x}")
}

// FNV-1a: a name must stay the same over versions, which the standard library's hash does not
// promise.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_fixed_by_both_uids_and_never_too_long() {
        assert_eq!(child_name("reload", "n1", "p1"), "reload-bfe45e90262b0732");
        assert_ne!(
            child_name("reload", "n1", "p1"),
            child_name("reload", "n1", "p2")
        );
        assert_ne!(
            child_name("reload", "n1", "p1"),
            child_name("reload", "n2", "p1")
        );
        assert_ne!(
            child_name("reload", "n1", "p1"),
            child_name("reload", "n", "1p1")
        );
        let long = format!("{}.b", "a".repeat(250));
        let name = child_name(&long, "n", "p");
        assert_eq!(name.len(), 253);
        let cut_at_a_dot = format!("{}.{}", "a".repeat(235), "b".repeat(17));
        let name = child_name(&cut_at_a_dot, "n", "p");
        assert!(!name.contains('.') && name.len() < 253, "{name}");
    }
}
