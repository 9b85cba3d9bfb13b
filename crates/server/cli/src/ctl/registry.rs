//! `quelea ctl registry`: registered clients of a running broker.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::table::Column;
use super::{Ctl, Failure, query_of};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum RegistryCommand {
    /// List the clients of a registry by name.
    List {
        #[command(flatten)]
        of: Of,
        /// A part of the name, in any case.
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        /// Only disabled clients.
        #[arg(long)]
        disabled: bool,
        /// Print at most this many rows; 0: all.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Show a client.
    Show {
        name: String,
        #[command(flatten)]
        of: Of,
    },
    /// Add a client, or replace its entry.
    Put {
        name: String,
        /// File with the client in the JSON of Event Grid; -: standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        of: Of,
    },
    /// Delete a client, and close its connections.
    Delete {
        name: String,
        #[command(flatten)]
        of: Of,
    },
    /// Enable a client.
    Enable {
        name: String,
        #[command(flatten)]
        of: Of,
    },
    /// Disable a client, and close its connections.
    Disable {
        name: String,
        #[command(flatten)]
        of: Of,
    },
}

/// The registry that is meant.
#[derive(Clone, Debug, Args)]
pub(super) struct Of {
    /// The name of the provider. Default: the only registry.
    #[arg(long, value_name = "PROVIDER")]
    registry: Option<String>,
}

impl Of {
    fn pairs(&self) -> Vec<(&str, &str)> {
        self.registry.iter().map(|name| ("registry", name.as_str())).collect()
    }

    fn path(&self, name: &str, what: &str) -> String {
        let mut pairs = self.pairs();
        pairs.insert(0, ("name", name));
        format!("/registry/client{what}{}", query_of(&pairs))
    }
}

impl Ctl {
    pub(super) fn registry(&self, command: &RegistryCommand) -> Result<(), Failure> {
        let change = |method: &str, path: String| self.http.call(method, &path, None).map(drop);
        match command {
            RegistryCommand::List { of, name, disabled, limit } => {
                let mut query = of.pairs();
                query.extend(name.iter().map(|name| ("name", name.as_str())));
                query.extend(disabled.then_some(("enabled", "false")));
                self.list("/registry/clients", &query, *limit, CLIENTS)
            }
            RegistryCommand::Show { name, of } => self.show(&of.path(name, "")),
            RegistryCommand::Put { name, file, of } => {
                self.http.call("PUT", &of.path(name, ""), Some(&read(file)?)).map(drop)
            }
            RegistryCommand::Delete { name, of } => change("DELETE", of.path(name, "")),
            RegistryCommand::Enable { name, of } => change("POST", of.path(name, "/enable")),
            RegistryCommand::Disable { name, of } => change("POST", of.path(name, "/disable")),
        }
    }
}

fn read(file: &Path) -> Result<Value, Failure> {
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text)),
    };
    let shown = file.display();
    read.map_err(|error| Failure::new(format!("cannot read {shown}: {error}")))?;
    let value = identity::json::read(text.as_bytes());
    value.map_err(|error| Failure::new(format!("{shown}: JSON: {error}")))
}

const CLIENTS: &[Column] = &[
    Column("CLIENT", "authenticationName"),
    Column("STATE", "state"),
    Column("CERTIFICATE", "clientCertificateAuthentication"),
    Column("ATTRIBUTES", "attributes"),
];
