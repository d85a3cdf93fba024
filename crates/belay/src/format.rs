//! How objects are printed.

use std::io::Write as _;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

/// The value of `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Json,
    Yaml,
    // The table with all its columns.
    Wide,
}

/// Prints a `v1` List, however many there are: what reads it must not depend on what was found.
pub(crate) fn print_list(objects: &[Value], format: Format) -> anyhow::Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    print(&list, format)
}

/// Prints what was asked for: the object where that was one, else a List, as kubectl does.
pub(crate) fn print_asked(
    asked: usize,
    mut objects: Vec<Value>,
    format: Format,
) -> anyhow::Result<()> {
    if asked == 1 && objects.len() == 1 {
        print(&objects.remove(0), format)
    } else {
        print_list(&objects, format)
    }
}

/// Prints a value as JSON or YAML.
pub(crate) fn print(value: &impl Serialize, format: Format) -> anyhow::Result<()> {
    let text = match format {
        Format::Yaml => yaml(value)?,
        Format::Json | Format::Wide => {
            let mut text = serde_json::to_string_pretty(value)?;
            text.push('\n');
            text
        }
    };
    out(&text)
}

/// A YAML document.
pub(crate) fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_saphyr::to_string(value)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Writes to standard output. A reader that has gone (`| head`) is no error of ours.
pub(crate) fn out(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes a line to standard error, where progress and notes go; that it cannot be written is no
/// reason to fail.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
