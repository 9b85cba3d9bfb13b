//! Definitions of streams, targets and rules: shown, put and deleted.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use base::complain;
use clap::{Args, Subcommand};
use routing::definitions::{self, Entry, Kind};
use serde_json::Value;

use super::table::{self, Column, print};
use super::{Ctl, Failure, query_of};

/// Targets have nothing but their definitions.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum TargetsCommand {
    /// List the targets by name.
    List {
        /// Print at most this many rows; 0: all.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Print the definition of a target, without its secrets.
    Definition { name: String },
    /// Define a target, or replace its definition.
    Put(Put),
    /// Delete a target that the API has defined.
    Delete { name: String },
}

/// A definition in a file.
#[derive(Clone, Debug, Args)]
pub(super) struct Put {
    /// File with one definition, as in the file of rules (TOML); -: standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Ctl {
    pub(super) fn targets(&self, command: Option<&TargetsCommand>) -> Result<(), Failure> {
        match command {
            None => self.list_targets(0),
            Some(TargetsCommand::List { limit }) => self.list_targets(*limit),
            Some(TargetsCommand::Definition { name }) => self.print_definition(Kind::Target, name),
            Some(TargetsCommand::Put(own)) => self.put_definition(Kind::Target, own),
            Some(TargetsCommand::Delete { name }) => {
                self.delete_definition(Kind::Target, name, false)
            }
        }
    }

    fn list_targets(&self, limit: usize) -> Result<(), Failure> {
        let query = [("kind", "target")];
        if self.json {
            return self.list("/definitions", &query, limit, TARGETS);
        }
        let (mut rows, has_more) = self.rows("/definitions", &query, limit)?;
        for row in &mut rows {
            row["type"] = row["definition"]["type"].take();
        }
        print(table::table(&rows, TARGETS).as_bytes());
        if has_more {
            complain(&format!("first {limit} rows; --limit 0 shows all"));
        }
        Ok(())
    }

    /// As the file of rules would have it.
    pub(super) fn print_definition(&self, kind: Kind, name: &str) -> Result<(), Failure> {
        let found = self.http.call("GET", &path(kind, &[("name", name)]), None)?;
        if self.json {
            return self.print_value(&found);
        }
        let keys = found["definition"].as_object().cloned().unwrap_or_default();
        let entry = Entry::new(kind, name, keys).map_err(Failure::new)?;
        let source = match (found["tenant"].as_str(), found["source"].as_str()) {
            (Some(tenant), _) => format!("# Defined by API users of namespace {tenant}."),
            (None, Some("api")) => "# Defined by the API.".to_owned(),
            (None, _) => "# Defined by the file of rules.".to_owned(),
        };
        print(format!("{source}\n{}", definitions::text(&[entry])).as_bytes());
        Ok(())
    }

    pub(super) fn put_definition(&self, kind: Kind, own: &Put) -> Result<(), Failure> {
        let entry = read(kind, &own.file)?;
        let body = Value::Object(entry.keys().clone());
        self.http.call("PUT", &path(kind, &[("name", &entry.name)]), Some(&body)).map(drop)
    }

    pub(super) fn delete_definition(
        &self,
        kind: Kind,
        name: &str,
        is_forced: bool,
    ) -> Result<(), Failure> {
        let mut query = vec![("name", name)];
        query.extend(is_forced.then_some(("force", "true")));
        self.http.call("DELETE", &path(kind, &query), None).map(drop)
    }
}

fn path(kind: Kind, query: &[(&str, &str)]) -> String {
    format!("/{}/definition{}", kind.word(), query_of(query))
}

/// The one definition of a file.
fn read(kind: Kind, file: &Path) -> Result<Entry, Failure> {
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text)),
    };
    let shown = file.display();
    read.map_err(|error| Failure::new(format!("cannot read {shown}: {error}")))?;
    one(kind, &text).map_err(|detail| Failure::new(format!("{shown}: {detail}")))
}

fn one(kind: Kind, text: &str) -> Result<Entry, String> {
    let mut found = definitions::entries(text)?;
    match (found.pop(), found.is_empty()) {
        (Some(entry), true) if entry.kind == kind => Ok(entry),
        (last, _) => {
            let count = found.len() + usize::from(last.is_some());
            Err(format!("must have one [[{}]] and nothing else, got {count} tables", kind.list()))
        }
    }
}

const TARGETS: &[Column] =
    &[Column("TARGET", "name"), Column("TYPE", "type"), Column("DEFINED BY", "source")];

const EXAMPLES: &str = "\
Examples:
  quelea ctl targets
  quelea ctl targets put lake.toml
  quelea ctl targets definition lake
  quelea ctl targets delete lake";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_definition() {
        let rule = "[[rules]]\nname = \"r\"\nfilter = \"a\"\n";
        assert_eq!(one(Kind::Rule, rule).map(|entry| entry.name), Ok("r".to_owned()));
        let expected = Err("must have one [[rules]] and nothing else, got 2 tables".to_owned());
        assert_eq!(one(Kind::Rule, &rule.repeat(2)).map(drop), expected);
        for (kind, text) in [(Kind::Stream, rule), (Kind::Rule, ""), (Kind::Rule, "rules = 1")] {
            assert!(one(kind, text).is_err(), "{kind:?} {text}");
        }
    }
}
