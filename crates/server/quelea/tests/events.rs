//! The tables of `docs/use/events.md` are those of the broker's events.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::fmt::Write as _;
use std::path::Path;

use quelea::life_cycle::{EVENT_KINDS, EventKind};

fn types() -> String {
    let mut text = "| type | fields of `data` | when |\n|---|---|---|\n".to_owned();
    let exported = |kind: &&&EventKind| kind.not_exported.is_none() && !kind.when.is_empty();
    for EventKind { name, fields, when, .. } in EVENT_KINDS.iter().filter(exported) {
        let fields = fields.replace(", ", "`, `");
        writeln!(text, "| `quelea.{name}` | `{fields}` | {when} |").unwrap();
    }
    text
}

fn log_lines() -> String {
    let mut text = "| event | level | log line |\n|---|---|---|\n".to_owned();
    for kind in EVENT_KINDS {
        let Some((level, line)) = kind.line else { continue };
        let name = match kind.not_exported {
            None => format!("`{}`", kind.name),
            Some(why) => format!("`{}`; no CloudEvent: {why}", kind.name),
        };
        writeln!(text, "| {name} | {level} | {line} |").unwrap();
    }
    text
}

#[test]
fn docs_events_are_those_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/use/events.md");
    let on_disk = std::fs::read_to_string(&path).unwrap();
    let mut text = on_disk.clone();
    for (name, table) in [("types", types()), ("log lines", log_lines())] {
        let begin = format!("<!-- {name}: `cargo xtask docs` -->\n\n");
        let (head, rest) = text.split_once(&begin).unwrap();
        let (_, tail) = rest.split_once("\n<!-- end -->").unwrap();
        text = format!("{head}{begin}{table}\n<!-- end -->{tail}");
    }
    if std::env::var_os("QUELEA_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    } else {
        assert!(on_disk == text, "docs/use/events.md is stale: cargo xtask docs");
    }
}
