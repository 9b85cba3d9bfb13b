//! `quelea ctl ns`: namespaces.

use clap::Subcommand;
use serde_json::{Map, Value};

use super::table::print;
use super::table::{Column, table};
use super::{Ctl, Failure, query_of};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum NsCommand {
    /// List all namespaces but the default one, with their usage.
    List,
    /// Show limits, usage and refusals of a namespace.
    Show { name: String },
    /// Disconnect its clients, and refuse new connections, also after a restart.
    Suspend { name: String },
    /// Accept connections again.
    Resume { name: String },
}

impl Ctl {
    pub(super) fn ns(&self, command: &NsCommand) -> Result<(), Failure> {
        match command {
            NsCommand::List if self.json => self.list("/namespaces", &[], 0, &[]),
            NsCommand::List => {
                let (mut rows, _) = self.rows("/namespaces", &[], 0)?;
                rows.iter_mut().for_each(put_counts);
                print(table(&rows, NAMESPACES).as_bytes());
                Ok(())
            }
            NsCommand::Suspend { name } => self.hold_ns(name, "/suspend"),
            NsCommand::Resume { name } => self.hold_ns(name, "/resume"),
            NsCommand::Show { name } => {
                let one = self.http.call("GET", &namespace_path(name, ""), None)?;
                if self.json {
                    return self.print_value(&one);
                }
                let mut fields = one.as_object().cloned().unwrap_or_default();
                let quotas = fields.remove("quotas");
                self.print_value(&Value::Object(fields))?;
                let quotas = quotas.as_ref().and_then(Value::as_array);
                let quotas = quotas.map_or(&[][..], Vec::as_slice);
                let shown = if quotas.is_empty() { WITHOUT_QUOTAS } else { &table(quotas, QUOTAS) };
                print(format!("\n{shown}").as_bytes());
                Ok(())
            }
        }
    }
}

impl Ctl {
    fn hold_ns(&self, name: &str, what: &str) -> Result<(), Failure> {
        self.http.call("POST", &namespace_path(name, what), None).map(drop)
    }
}

fn namespace_path(name: &str, what: &str) -> String {
    format!("/namespace{what}{}", query_of(&[("name", name)]))
}

/// What it has becomes columns.
fn put_counts(row: &mut Value) {
    let quotas = row["quotas"].as_array().cloned().unwrap_or_default();
    let counts: Map<String, Value> = quotas
        .iter()
        .filter_map(|quota| Some((quota["name"].as_str()?.to_owned(), quota["count"].clone())))
        .collect();
    if let Some(fields) = row.as_object_mut() {
        fields.extend(counts);
    }
}

const NAMESPACES: &[Column] = &[
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("CONNECTIONS", "connections"),
    Column("SESSIONS", "sessions"),
    Column("SUBSCRIPTIONS", "subscriptions"),
    Column("RETAINED", "retained_messages"),
    Column("MESSAGES IN", "messages_in"),
    Column("MESSAGES OUT", "messages_out"),
];

const WITHOUT_QUOTAS: &str = "The limits of the broker apply: see `quelea ctl config`.\n\
    `quelea ctl info` shows the usage of all namespaces together.\n";

const QUOTAS: &[Column] = &[
    Column("OF", "name"),
    Column("MOST", "max"),
    Column("NOW", "count"),
    Column("REFUSED", "refused"),
];
