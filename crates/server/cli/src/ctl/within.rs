//! In which namespace something is.

use clap::Args;
use serde_json::Value;

use super::table::print;
use super::{Ctl, EXIT_NONE, Failure};
use config::namespaces::DEFAULT;

#[derive(Clone, Debug, Default, Args)]
pub(super) struct Within {
    /// The namespace. Default: all of them for lists, that of the client, and `default` for topics.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

/// Namespaces that are named at most where one has to be chosen.
const NAMED_MAX: usize = 10;

impl Within {
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// A query, with the namespace if there is one.
    pub(super) fn and<'a>(&'a self, query: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = self.namespace().map(|name| ("namespace", name));
        query.iter().copied().chain(own).collect()
    }
}

impl Ctl {
    /// The namespace of a client: the one that was named, or the only one that has such a client.
    pub(super) fn home(
        &self,
        within: &Within,
        client_id: &str,
        only_connected: bool,
    ) -> Result<String, Failure> {
        if let Some(name) = within.namespace() {
            return Ok(name.to_owned());
        }
        let (lacks, has) = match only_connected {
            true => ("is not connected", "is connected"),
            false => ("has no session", "has sessions"),
        };
        match self.homes(client_id, only_connected)?.as_slice() {
            [] => {
                let text = format!("'{client_id}' {lacks}");
                Err(Failure { code: EXIT_NONE, text })
            }
            [one] => Ok(one.clone()),
            several => Err(Failure::new(format!(
                "'{client_id}' {has} in several namespaces: {}; choose one with --namespace",
                listed(several)
            ))),
        }
    }

    /// Where to ban a client id that may be nowhere yet.
    pub(super) fn home_to_ban(&self, within: &Within, client_id: &str) -> Result<String, Failure> {
        match within.namespace() {
            None if self.homes(client_id, false)?.is_empty() => {
                self.needs_no_namespace("--namespace")?;
                Ok(DEFAULT.to_owned())
            }
            _ => self.home(within, client_id, false),
        }
    }

    /// Fails if there are others than the default one, so that one has to be chosen.
    pub(super) fn needs_no_namespace(&self, choices: &str) -> Result<(), Failure> {
        let (rows, has_more) = self.rows("/namespaces", &[], NAMED_MAX)?;
        let mut names: Vec<String> = rows.iter().map(|row| text_of(row, "name")).collect();
        if names.is_empty() {
            return Ok(());
        }
        names.insert(0, DEFAULT.to_owned());
        let more = if has_more { ", …" } else { "" };
        let text = format!(
            "the broker has several namespaces ({}{more}); choose with {choices}",
            names.join(", ")
        );
        Err(Failure::new(text))
    }

    fn homes(&self, client_id: &str, only_connected: bool) -> Result<Vec<String>, Failure> {
        let (rows, _) = self.rows("/client/namespaces", &[("client_id", client_id)], 0)?;
        let wanted = rows.iter().filter(|row| !only_connected || row["connected"] == true);
        Ok(wanted.map(|row| text_of(row, "namespace")).collect())
    }

    /// Says where something was done, unless that goes without saying.
    pub(super) fn print_home(
        &self,
        namespace: &str,
        what: &str,
        client_id: &str,
    ) -> Result<(), Failure> {
        if namespace != DEFAULT && !self.json {
            let client_id = super::table::plain(client_id);
            print(format!("{what}: {client_id} in namespace {namespace}\n").as_bytes());
        }
        Ok(())
    }
}

fn listed(names: &[String]) -> String {
    let more = if names.len() > NAMED_MAX { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(NAMED_MAX)].join(", "))
}

fn text_of(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or_default().to_owned()
}
