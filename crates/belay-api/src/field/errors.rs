//! Collecting what is wrong with an object.

use std::ops::Deref;

use super::FieldError;

/// What is wrong with one object: as much of it as anybody will read, and how much more there is.
///
/// An object of three megabytes can be wrong in a million places, and what is said of each is longer
/// than the place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Errors {
    kept: Vec<FieldError>,
    left_out: usize,
}

impl Errors {
    /// How many are kept.
    pub const MOST: usize = 100;

    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, error: FieldError) {
        if self.kept.len() < Self::MOST {
            self.kept.push(error);
        } else {
            self.left_out += 1;
        }
    }

    /// Adds what another check has found.
    pub fn append(&mut self, others: Self) {
        self.left_out += others.left_out;
        self.extend(others.kept);
    }

    /// How many were found and are not kept.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// How many were found.
    #[must_use]
    pub fn total(&self) -> usize {
        self.kept.len() + self.left_out
    }
}

/// Those that are kept.
impl Deref for Errors {
    type Target = [FieldError];

    fn deref(&self) -> &[FieldError] {
        &self.kept
    }
}

impl Extend<FieldError> for Errors {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        for error in errors {
            self.push(error);
        }
    }
}

impl FromIterator<FieldError> for Errors {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> Self {
        let mut all = Self::new();
        all.extend(errors);
        all
    }
}

impl From<FieldError> for Errors {
    fn from(one: FieldError) -> Self {
        Self::from_iter([one])
    }
}

impl<'a> IntoIterator for &'a Errors {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.kept.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;

    #[test]
    fn what_nobody_will_read_is_counted_and_not_kept() {
        let error = |i| FieldError::required(&Path::new("spec").index(i), "");
        let mut errors: Errors = (0..Errors::MOST - 1).map(error).collect();
        assert_eq!(errors.left_out(), 0);
        errors.append((0..3).map(error).collect());
        assert_eq!((errors.len(), errors.left_out()), (Errors::MOST, 2));
        let mut twice = errors.clone();
        twice.append(errors);
        assert_eq!(twice.len(), Errors::MOST);
        assert_eq!(twice.total(), 2 * (Errors::MOST + 2));
    }
}
