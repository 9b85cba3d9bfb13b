//! Rows for people: aligned columns, nothing that a terminal could take for an order.

use std::io::{IsTerminal as _, stdout};

use serde_json::Value;

use config::namespaces::DEFAULT;

/// Its heading, and the field that it shows.
pub(super) struct Column(pub(super) &'static str, pub(super) &'static str);

/// The widest that a column gets; the last one is not cut.
const WIDTH_MAX: usize = 48;

/// Rows under their headings.
pub(super) fn table(rows: &[Value], columns: &[Column]) -> String {
    let is_bold = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    lay_out(rows, columns, is_bold)
}

/// Where all rows are of the default namespace, nobody needs to know that there are others.
fn is_shown(column: &Column, rows: &[Value]) -> bool {
    column.1 != "namespace" || rows.iter().any(|row| row["namespace"] != DEFAULT)
}

fn lay_out(rows: &[Value], columns: &[Column], is_bold: bool) -> String {
    let columns: Vec<&Column> = columns.iter().filter(|column| is_shown(column, rows)).collect();
    let heads = columns.iter().map(|Column(head, _)| (*head).to_owned()).collect();
    let cells = rows.iter().map(|row| columns.iter().map(|column| cell(&row[column.1])).collect());
    let lines: Vec<Vec<String>> = std::iter::once(heads).chain(cells).collect();
    let width = |at: usize| {
        let widest = lines.iter().map(|line| line[at].chars().count()).max();
        widest.unwrap_or_default().min(WIDTH_MAX)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let mut shown = String::new();
        for (at, cell) in line.iter().enumerate() {
            let is_last = at + 1 == line.len();
            match is_last {
                true => shown.push_str(cell),
                false => shown.push_str(&format!("{:<1$}  ", cut(cell, widths[at]), widths[at])),
            }
        }
        let shown = shown.trim_end();
        match is_bold && number == 0 {
            true => text.push_str(&format!("\x1b[1m{shown}\x1b[0m\n")),
            false => text.push_str(&format!("{shown}\n")),
        }
    }
    text
}

/// One thing, a line for each field.
pub(super) fn fields(value: &Value) -> String {
    let Some(object) = value.as_object() else { return String::new() };
    let width = object.keys().map(|key| key.chars().count()).max().unwrap_or_default();
    object.iter().map(|(key, value)| format!("{key:<width$}  {}\n", cell(value))).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::String(text) if text.is_empty() => "\"\"".into(),
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

/// Writes to standard output. Texts of clients are [`plain`] in it, and in JSON as good as that.
/// `false`: whoever read it has had enough.
pub(super) fn print(text: &[u8]) -> bool {
    base::print(base::seen_json(&String::from_utf8_lossy(text)).as_bytes())
}

/// Nothing in it steers the terminal, or is hidden.
pub(super) fn plain(text: &str) -> String {
    base::seen(text).into_owned()
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let begin: String = text.chars().take(width - 1).collect();
    begin + "…"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COLUMNS: &[Column] = &[Column("NAME", "name"), Column("ON", "on"), Column("N", "n")];

    #[test]
    fn columns_are_aligned_and_cut() {
        let rows = [
            json!({ "name": "a", "on": true, "n": 1 }),
            json!({ "name": "long".repeat(20), "on": false, "n": null }),
        ];
        let text = lay_out(&rows, COLUMNS, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("NAME ") && lines[0].ends_with("ON   N"), "{text}");
        assert!(lines[1].ends_with("yes  1") && lines[2].ends_with("…  no   -"), "{text}");
        assert_eq!(lay_out(&[], COLUMNS, true), "\x1b[1mNAME  ON  N\x1b[0m\n");
    }

    #[test]
    fn a_name_gives_the_terminal_no_orders() {
        let text = lay_out(&[json!({ "name": "\x1b[2J\n", "on": "", "n": {} })], COLUMNS, false);
        assert!(!text.contains('\x1b'), "{text}");
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn one_thing_is_reported_field_by_field() {
        assert_eq!(fields(&json!({ "a": 1, "long": null })), "a     1\nlong  -\n");
    }
}
