//! `quelea ctl streams` and `quelea ctl rules`.

use clap::{Args, Subcommand};
use routing::definitions::Kind;
use serde_json::{Value, json};

use super::definitions::Put;
use super::table::{self, Column, print};
use super::{Ctl, Failure, query_of};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum StreamsCommand {
    /// List the streams by name.
    List(Listed),
    /// Show a stream.
    Show { name: String },
    /// Print the definition of a stream.
    Definition { name: String },
    /// Define a stream, or replace its definition.
    Put(Put),
    /// Delete a stream that the API has defined.
    Delete {
        name: String,
        /// Delete its messages, and the rules that read it.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Clone, Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum RulesCommand {
    /// List the rules by name.
    List(Listed),
    /// Show a rule: its state, and what became of the messages of its stream.
    Show { name: String },
    /// Pause a rule. It sends nothing more, also after a restart, until it is resumed.
    Pause { name: String },
    /// Resume a rule.
    Resume { name: String },
    /// Move a rule to another position of its stream. Messages from there are sent, also those that
    /// were delivered before.
    Seek {
        name: String,
        /// beginning, end, a time such as 2026-12-31T23:59:59Z, or a position of `rules show`.
        #[arg(long, value_name = "POSITION")]
        to: String,
    },
    /// Print the definition of a rule.
    Definition { name: String },
    /// Define a rule, or replace its definition.
    Put(Put),
    /// Delete a rule that the API has defined.
    Delete { name: String },
}

/// Which rows are wanted.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Listed {
    /// Only those of this namespace.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Print at most this many rows; 0: all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

impl Ctl {
    pub(super) fn streams(&self, command: Option<&StreamsCommand>) -> Result<(), Failure> {
        match command {
            None => self.list("/streams", &[], 0, STREAMS),
            Some(StreamsCommand::List(own)) => {
                self.list("/streams", &own.query(), own.limit, STREAMS)
            }
            Some(StreamsCommand::Show { name }) => {
                self.show(&format!("/stream{}", query_of(&[("name", name)])))
            }
            Some(StreamsCommand::Definition { name }) => self.print_definition(Kind::Stream, name),
            Some(StreamsCommand::Put(own)) => self.put_definition(Kind::Stream, own),
            Some(StreamsCommand::Delete { name, force }) => {
                self.delete_definition(Kind::Stream, name, *force)
            }
        }
    }

    pub(super) fn rules(&self, command: Option<&RulesCommand>) -> Result<(), Failure> {
        let path = |name: &str, what: &str| format!("/rule{what}{}", query_of(&[("name", name)]));
        let change = |name: &str, what: &str, body: Option<&Value>| {
            self.print_rule(self.http.call("POST", &path(name, what), body)?)
        };
        match command {
            None => self.list("/rules", &[], 0, RULES),
            Some(RulesCommand::List(own)) => self.list("/rules", &own.query(), own.limit, RULES),
            Some(RulesCommand::Show { name }) => {
                self.print_rule(self.http.call("GET", &path(name, ""), None)?)
            }
            Some(RulesCommand::Pause { name }) => change(name, "/pause", None),
            Some(RulesCommand::Resume { name }) => change(name, "/resume", None),
            Some(RulesCommand::Seek { name, to }) => {
                change(name, "/seek", Some(&json!({ "to": to })))
            }
            Some(RulesCommand::Definition { name }) => self.print_definition(Kind::Rule, name),
            Some(RulesCommand::Put(own)) => self.put_definition(Kind::Rule, own),
            Some(RulesCommand::Delete { name }) => self.delete_definition(Kind::Rule, name, false),
        }
    }

    /// A rule, with its sum and its counters as tables of their own.
    fn print_rule(&self, mut rule: Value) -> Result<(), Failure> {
        if self.json {
            return self.print_value(&rule);
        }
        let (sum, counters) = (rule["sum"].take(), rule["counters"].take());
        if let Some(fields) = rule.as_object_mut() {
            fields.retain(|name, _| !["sum", "counters"].contains(&name.as_str()));
        }
        self.print_value(&rule)?;
        let part = |title: &str, value: &Value| format!("\n{title}\n{}", table::fields(value));
        print(part("Messages of this run:", &sum).as_bytes());
        print(part("Since the start of the broker:", &counters).as_bytes());
        Ok(())
    }
}

impl Listed {
    fn query(&self) -> Vec<(&str, &str)> {
        self.namespace.iter().map(|name| ("namespace", name.as_str())).collect()
    }
}

const STREAMS: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("STREAM", "name"),
    Column("STORED", "stored_messages"),
    Column("IN FILES", "file_messages"),
    Column("BYTES", "file_bytes"),
    Column("IN LOG", "log_messages"),
    Column("RULES", "rules"),
    Column("FULL", "full"),
    Column("WRITE FAULT", "write_fault"),
];

const RULES: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("RULE", "name"),
    Column("STREAM", "stream"),
    Column("TARGET", "target"),
    Column("STATE", "state"),
    Column("LAG", "lag_messages"),
    Column("LAG (S)", "lag_seconds"),
    Column("REASON", "reason"),
];

const EXAMPLES: &str = "\
Examples:
  quelea ctl rules
  quelea ctl rules show archive
  quelea ctl rules pause archive
  quelea ctl rules resume archive
  quelea ctl rules seek archive --to beginning
  quelea ctl rules seek archive --to 2026-12-31T23:59:59Z
  quelea ctl rules seek archive --to 0.17-1.3      a position of `rules show`
  quelea ctl rules put archive.toml                a file with one [[rules]]
  quelea ctl rules delete archive";
