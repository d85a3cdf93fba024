//! Ages as `kubectl` shows them.

use jiff::Timestamp;
use serde_json::Value;

/// The age of an object, by its creation.
pub(super) fn of(object: &Value, now: Timestamp) -> Value {
    since(super::text(object, "/metadata/creationTimestamp"), now)
}

/// The time since `then`, short; `<unknown>` when there is no such time.
pub(super) fn since(then: &str, now: Timestamp) -> Value {
    match then.parse::<Timestamp>() {
        Ok(then) => human(now.as_second() - then.as_second()).into(),
        Err(_) => "<unknown>".into(),
    }
}

/// A duration with two significant units at most.
fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |big: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{small}{small_unit}")
        }
    };
    match seconds {
        i64::MIN..-1 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => pair(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (-5, "<invalid>"),
        ] {
            assert_eq!(human(seconds), text, "{seconds}");
        }
    }
}
