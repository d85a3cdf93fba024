//! Texts for people in the API's objects.

/// Cuts a text to at most so many bytes, and says so.
pub(crate) fn cut(text: &mut String, limit: usize) {
    const MORE: &str = "...";
    if text.len() > limit {
        let end = text.floor_char_boundary(limit.saturating_sub(MORE.len()));
        text.truncate(end);
        text.push_str(MORE);
    }
}
