//! `quelea ctl ban`: who is kept out.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::table::Column;
use super::within::Within;
use super::{Ctl, Failure, query_of};
use config::schema::secs_of_text;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum BanCommand {
    /// List the bans in force.
    List(Within),
    /// Ban a client, user or address, and close its connections.
    Add {
        kind: Banned,
        /// The client ID, username, address, or network such as 10.0.0.0/8.
        who: String,
        /// Duration, such as 90, 5m, 12h or 7d. Default: no end.
        #[arg(long = "for", value_name = "TIME", value_parser = secs_of_text)]
        secs: Option<u64>,
        #[command(flatten)]
        scope: BanScope,
    },
    /// Remove a ban.
    Remove {
        kind: Banned,
        who: String,
        #[command(flatten)]
        scope: BanScope,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Banned {
    Client,
    User,
    Address,
}

/// The namespaces in which a client ID or username is banned. Addresses are banned in all
/// namespaces.
#[derive(Clone, Debug, Args)]
pub(super) struct BanScope {
    /// In this namespace.
    #[arg(long, value_name = "NAME", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// In all namespaces, present and future.
    #[arg(long)]
    all_namespaces: bool,
}

impl BanScope {
    /// As the API takes it. None: nothing was said.
    fn as_text(&self) -> Option<&str> {
        if self.all_namespaces { Some("*") } else { self.namespace.as_deref() }
    }
}

impl Banned {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::User => "user",
            Self::Address => "address",
        }
    }
}

impl Ctl {
    pub(super) fn ban(&self, command: &BanCommand) -> Result<(), Failure> {
        match command {
            BanCommand::List(within) => self.list("/bans", &within.and(&[]), 0, BANS),
            BanCommand::Add { kind, who, secs, scope } => {
                let namespace = scope.as_text();
                if namespace.is_none() && !matches!(kind, Banned::Address) {
                    self.needs_no_namespace("--namespace or --all-namespaces")?;
                }
                let body = json!({
                    "kind": kind.as_str(), "who": who, "namespace": namespace, "for_secs": secs,
                });
                self.http.call("POST", "/bans", Some(&body)).map(drop)
            }
            BanCommand::Remove { kind, who, scope } => {
                let namespace = scope.as_text().map(|name| ("namespace", name));
                let query = [("kind", kind.as_str()), ("who", who)].into_iter().chain(namespace);
                let query = query_of(&query.collect::<Vec<_>>());
                self.http.call("DELETE", &format!("/bans{query}"), None).map(drop)
            }
        }
    }
}

const BANS: &[Column] = &[
    Column("KIND", "kind"),
    Column("WHO", "who"),
    Column("NAMESPACE", "namespace"),
    Column("UNTIL", "until"),
    Column("BY HAND", "by_hand"),
];
