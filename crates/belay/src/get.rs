//! `belay get`: the server's own table, or the objects.

use anyhow::Context as _;
use http::Request;
use http::header::ACCEPT;
use serde::Deserialize;
use serde_json::Value;

use crate::cli::{GetArgs, Global};
use crate::connect::{Connection, connect};
use crate::exit::{Exit, usage};
use crate::format::{self, Format};
use crate::kind::{Kind, reference};
use crate::table::Table;

/// What the server is asked for, so that columns are the same as kubectl's.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// A `meta.k8s.io/v1` Table, as far as it is printed.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServerTable {
    column_definitions: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Column {
    name: String,
    priority: i32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    cells: Vec<Value>,
    object: Value,
}

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &GetArgs) -> anyhow::Result<Exit> {
    let (kind, names) = what(args)?;
    if !names.is_empty() && (args.selector.is_some() || args.all_namespaces) {
        return Err(usage(
            "a name goes with neither --selector nor --all-namespaces",
        ));
    }
    let connection = connect(global).await?;
    let namespace = (!args.all_namespaces).then_some(connection.namespace.as_str());
    let query = args
        .selector
        .as_deref()
        .map(|s| format!("?labelSelector={}", encode(s)));
    let mut paths: Vec<String> = names
        .iter()
        .map(|name| kind.path(namespace, Some(name)))
        .collect();
    if paths.is_empty() {
        paths.push(kind.path(namespace, None) + query.as_deref().unwrap_or_default());
    }
    match global.output {
        Some(Format::Json | Format::Yaml) => {
            let format = global.output.unwrap_or(Format::Json);
            let mut objects = Vec::new();
            for path in &paths {
                objects.push(fetch::<Value>(&connection, path, "application/json").await?);
            }
            format::print_asked(paths.len(), objects, format)?;
            Ok(Exit::Done)
        }
        Some(Format::Wide) | None => {
            let mut merged = ServerTable::default();
            for path in &paths {
                let table: ServerTable = fetch(&connection, path, TABLE).await?;
                merged.column_definitions = table.column_definitions;
                merged.rows.extend(table.rows);
            }
            let wide = global.output == Some(Format::Wide);
            show(&merged, kind, namespace, wide)
        }
    }
}

/// `pods a b`, `pods/a pods/b` and `pods` are all good.
fn what(args: &GetArgs) -> anyhow::Result<(Kind, Vec<String>)> {
    if !args.kind.contains('/') {
        let kind: Kind = args.kind.parse()?;
        let names: anyhow::Result<Vec<_>> = args
            .names
            .iter()
            .map(|name| reference(name, Some(kind)))
            .collect();
        return one_kind(kind, names?);
    }
    let first = reference(&args.kind, None)?;
    let mut all = vec![first.clone()];
    for name in &args.names {
        all.push(reference(name, None)?);
    }
    one_kind(first.0, all)
}

fn one_kind(kind: Kind, all: Vec<(Kind, String)>) -> anyhow::Result<(Kind, Vec<String>)> {
    if all.iter().any(|(other, _)| *other != kind) {
        return Err(usage("objects of one kind at a time, please"));
    }
    Ok((kind, all.into_iter().map(|(_, name)| name).collect()))
}

async fn fetch<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    path: &str,
    accept: &str,
) -> anyhow::Result<T> {
    let request = Request::get(path)
        .header(ACCEPT, accept)
        .body(Vec::new())
        .with_context(|| format!("cannot ask for {path}"))?;
    connection
        .client
        .request(request)
        .await
        .map_err(|error| connection.explain(error))
}

fn show(
    table: &ServerTable,
    kind: Kind,
    namespace: Option<&str>,
    wide: bool,
) -> anyhow::Result<Exit> {
    if table.rows.is_empty() {
        let place = match namespace.filter(|_| kind.is_namespaced()) {
            Some(namespace) => format!(" in namespace {namespace}"),
            None => String::new(),
        };
        format::note(&format!("No {} found{place}.", kind.plural()));
        return Ok(Exit::Done);
    }
    let with_namespace = kind.is_namespaced() && namespace.is_none();
    format::out(&render(table, with_namespace, wide).to_string())?;
    Ok(Exit::Done)
}

fn render(table: &ServerTable, with_namespace: bool, wide: bool) -> Table {
    let shown: Vec<usize> = (0..table.column_definitions.len())
        .filter(|i| wide || table.column_definitions[*i].priority == 0)
        .collect();
    let mut header: Vec<String> = shown
        .iter()
        .map(|i| table.column_definitions[*i].name.to_uppercase())
        .collect();
    if with_namespace {
        header.insert(0, "NAMESPACE".to_owned());
    }
    let mut text = Table::new(header);
    for row in &table.rows {
        let mut cells: Vec<String> = shown
            .iter()
            .map(|i| row.cells.get(*i).map_or_else(String::new, cell))
            .collect();
        if with_namespace {
            let namespace = row.object.pointer("/metadata/namespace");
            cells.insert(0, namespace.map_or_else(String::new, cell));
        }
        text.row(cells);
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) if text.is_empty() => "<none>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Percent-encodes all but unreserved characters, for a query.
pub(crate) fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table() -> ServerTable {
        serde_json::from_value(json!({
            "kind": "Table",
            "columnDefinitions": [
                {"name": "Name", "type": "string", "priority": 0},
                {"name": "State", "type": "string"},
                {"name": "Node", "type": "string", "priority": 1},
            ],
            "rows": [
                {"cells": ["a", "Succeeded", "n1"], "object": {"metadata": {"namespace": "x"}}},
                {"cells": ["bbb", null, 3]},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn columns_of_lower_priority_are_for_wide_tables() {
        assert_eq!(
            render(&table(), false, false).to_string(),
            "NAME  STATE\na     Succeeded\nbbb   <none>\n"
        );
        assert_eq!(
            render(&table(), true, true).to_string(),
            "NAMESPACE  NAME  STATE      NODE\n\
             x          a     Succeeded  n1\n           \
             bbb   <none>     3\n"
        );
    }

    #[test]
    fn kind_and_names_may_be_written_in_both_ways() {
        let read = |words: &[&str]| {
            let args = GetArgs {
                kind: words[0].to_owned(),
                names: words[1..].iter().map(|w| (*w).to_owned()).collect(),
                selector: None,
                all_namespaces: false,
            };
            what(&args)
                .ok()
                .map(|(kind, names)| (kind, names.join(",")))
        };
        assert_eq!(read(&["pods"]), Some((Kind::Pod, String::new())));
        assert_eq!(read(&["pods", "a", "b"]), Some((Kind::Pod, "a,b".into())));
        assert_eq!(read(&["pod/a", "po/b"]), Some((Kind::Pod, "a,b".into())));
        assert_eq!(read(&["pod/a", "pn/b"]), None);
        assert_eq!(read(&["pod/a", "b"]), None);
        assert_eq!(read(&["pods", "nodes/b"]), None);
        assert_eq!(read(&["services"]), None);
    }

    #[test]
    fn selectors_are_encoded_for_the_query() {
        assert_eq!(encode("app in (a,b)"), "app%20in%20%28a%2Cb%29");
    }
}
