//! `quelea ctl ban`: who is kept out.

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::http::percent_encoded;
use super::table::Column;
use super::{Ctl, Failure};
use crate::config::schema::secs_of_text;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum BanCommand {
    /// List those that hold.
    List,
    /// Keep somebody out, and end the connections that this means.
    Add {
        kind: Banned,
        /// The client id, user name, address, or network such as 10.0.0.0/8.
        who: String,
        /// How long, such as 90, 5m, 12h or 7d. Without it the ban has no end.
        #[arg(long = "for", value_name = "TIME", value_parser = secs_of_text)]
        secs: Option<u64>,
    },
    /// Take a ban back.
    Remove { kind: Banned, who: String },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Banned {
    Client,
    User,
    Address,
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
            BanCommand::List => self.list("/bans", &[], 0, BANS),
            BanCommand::Add { kind, who, secs } => {
                let body = json!({ "kind": kind.as_str(), "who": who, "for_secs": secs });
                self.http.call("POST", "/bans", Some(&body)).map(drop)
            }
            BanCommand::Remove { kind, who } => {
                let query = format!("kind={}&who={}", kind.as_str(), percent_encoded(who));
                self.http.call("DELETE", &format!("/bans?{query}"), None).map(drop)
            }
        }
    }
}

const BANS: &[Column] = &[
    Column("KIND", "kind"),
    Column("WHO", "who"),
    Column("UNTIL", "until"),
    Column("BY HAND", "by_hand"),
];
