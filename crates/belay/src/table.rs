//! Plain text tables: aligned columns two spaces apart, nothing after the last cell.

use std::fmt;

/// A header and rows of text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    cells: Vec<String>,
    /// Lines printed beneath the row, indented.
    beneath: Vec<String>,
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Table {
        Table {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.row_with(cells, std::iter::empty());
    }

    /// Adds a row with lines beneath it. Line breaks inside a cell would tear the table, so they
    /// become spaces.
    pub(crate) fn row_with<S: Into<String>>(
        &mut self,
        cells: impl IntoIterator<Item = S>,
        beneath: impl Iterator<Item = String>,
    ) {
        self.rows.push(Row {
            cells: cells
                .into_iter()
                .map(|cell| printable(&cell.into().replace(['\n', '\r', '\t'], " ")))
                .collect(),
            beneath: beneath.map(|line| printable(&line)).collect(),
        });
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Text from a container's output or from the server, safe for a terminal: control characters
/// (escape sequences among them) are shown, not obeyed. A tab stays.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => '\t',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.header.len();
        let mut widths: Vec<usize> = self.header.iter().map(|cell| width(cell)).collect();
        for row in &self.rows {
            for (i, cell) in row.cells.iter().take(columns).enumerate() {
                widths[i] = widths[i].max(width(cell));
            }
        }
        if self.header.iter().any(|cell| !cell.is_empty()) {
            line(f, &self.header, &widths)?;
        }
        for row in &self.rows {
            line(f, &row.cells, &widths)?;
            for text in &row.beneath {
                writeln!(f, "{}", format!("    {text}").trim_end())?;
            }
        }
        Ok(())
    }
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

fn line(f: &mut fmt::Formatter<'_>, cells: &[String], widths: &[usize]) -> fmt::Result {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        if !text.is_empty() {
            text.push_str("  ");
        }
        text.push_str(&format!("{cell:<width$}"));
    }
    writeln!(f, "{}", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_text() {
        let mut table = Table::new(["POD", "RESULT"]);
        table.row(["web", "succeeded"]);
        table.row_with(["database-0", ""], ["locked".to_owned()].into_iter());
        assert_eq!(
            table.to_string(),
            "POD         RESULT\nweb         succeeded\ndatabase-0\n    locked\n"
        );
    }

    #[test]
    fn line_breaks_and_escape_sequences_do_not_reach_the_terminal() {
        let mut table = Table::new(["A", "B"]);
        table.row_with(
            ["x\ny", "\u{1b}[31mred"],
            ["\u{7}bell".to_owned()].into_iter(),
        );
        assert_eq!(
            table.to_string(),
            "A    B\nx y  \u{fffd}[31mred\n    \u{fffd}bell\n"
        );
    }

    #[test]
    fn a_table_without_headings_has_no_heading_line() {
        let mut table = Table::new(["", ""]);
        table.row(["Name:", "web"]);
        assert_eq!(table.to_string(), "Name:  web\n");
    }
}
