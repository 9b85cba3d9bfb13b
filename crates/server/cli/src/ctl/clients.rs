//! `quelea ctl clients`.

use clap::{Args, Subcommand};
use serde_json::json;

use super::table::print;
use super::table::{Column, table};
use super::within::Within;
use super::{Ctl, Failure, client_path, query_of};
use config::schema::secs_of_text;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum ClientsCommand {
    /// List clients that match all filters.
    List(ListArgs),
    /// Show a client.
    Show {
        client_id: String,
        #[command(flatten)]
        within: Within,
    },
    /// Disconnect a client, or all that match all filters (0x98); their sessions stay. A filter
    /// other than --namespace is needed, or --all.
    Kick(KickArgs),
    /// Remove cached answers of the authorization service for connections that match all filters.
    ClearRights(Filters),
    /// Delete the session of a client with its queued messages.
    Purge {
        client_id: String,
        #[command(flatten)]
        within: Within,
    },
}

#[derive(Clone, Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filters: Filters,
    /// Clients with a connection.
    #[arg(long, conflicts_with = "offline")]
    online: bool,
    /// Clients without a connection.
    #[arg(long)]
    offline: bool,
    /// Clients with at least this many queued messages.
    #[arg(long, value_name = "N")]
    queued_min: Option<u32>,
    /// Print at most this many rows; 0: all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Clone, Debug, Args)]
pub(super) struct KickArgs {
    /// The client.
    #[arg(conflicts_with_all = ["id", "username", "address", "all"])]
    client_id: Option<String>,
    #[command(flatten)]
    filters: Filters,
    /// All clients, with --namespace those of one namespace.
    #[arg(long, conflicts_with_all = ["id", "username", "address", "ban"])]
    all: bool,
    /// Ban the client or the user for this time, such as 90, 5m, 12h or 7d, connected or not.
    #[arg(long, value_name = "TIME", value_parser = secs_of_text, conflicts_with_all = ["id", "address"])]
    ban: Option<u64>,
}

/// Filters of clients; those that are given must all match.
#[derive(Clone, Debug, Args)]
pub(super) struct Filters {
    #[command(flatten)]
    within: Within,
    /// Clients whose client ID contains this text.
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Clients with this username; empty: clients without one.
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Clients whose address begins with this text.
    #[arg(long, value_name = "PREFIX")]
    address: Option<String>,
}

impl Ctl {
    pub(super) fn clients(&self, command: &ClientsCommand) -> Result<(), Failure> {
        match command {
            ClientsCommand::List(args) => {
                let queued_min = args.queued_min.map(|min| min.to_string());
                let more = [("queued_min", queued_min.as_deref()), ("connected", args.connected())];
                let query: Vec<_> = args.filters.query().chain(given(more)).collect();
                self.list("/clients", &query, args.limit, CLIENTS)
            }
            ClientsCommand::Show { client_id, within } => {
                let home = self.home(within, client_id, false)?;
                self.show_client(&client_path(client_id, "", &home))
            }
            ClientsCommand::Kick(args) => self.kick(args),
            ClientsCommand::ClearRights(filters) => {
                let query: Vec<_> = filters.query().collect();
                let path = format!("/authorization/cache{}", query_of(&query));
                let answer = self.http.call("DELETE", &path, None)?;
                self.print_count(&answer, "connections")
            }
            ClientsCommand::Purge { client_id, within } => {
                let home = self.home(within, client_id, false)?;
                self.http.call("DELETE", &client_path(client_id, "", &home), None)?;
                self.print_home(&home, "purged", client_id)
            }
        }
    }

    /// Its details are fields like the others, and its events a table below.
    fn show_client(&self, path: &str) -> Result<(), Failure> {
        let mut client = self.http.call("GET", path, None)?;
        if self.json {
            return self.print_value(&client);
        }
        let mut details = client["details"].take();
        let events = details["events"].take();
        if let (Some(fields), Some(more)) = (client.as_object_mut(), details.as_object_mut()) {
            fields.remove("details");
            more.remove("events");
            fields.append(more);
        }
        self.print_value(&client)?;
        match events.as_array().map(Vec::as_slice) {
            None | Some([]) => {}
            Some(events) => drop(print(format!("\n{}", table(events, EVENTS)).as_bytes())),
        }
        Ok(())
    }

    fn kick(&self, args: &KickArgs) -> Result<(), Failure> {
        let within = &args.filters.within;
        match (&args.client_id, args.ban) {
            (Some(client_id), None) => {
                let home = self.home(within, client_id, true)?;
                self.http.call("POST", &client_path(client_id, "/disconnect", &home), None)?;
                self.print_home(&home, "disconnected", client_id)
            }
            (Some(client_id), Some(secs)) => {
                let home = self.home_to_ban(within, client_id)?;
                let path = client_path(client_id, "/disconnect", &home);
                self.http.call("POST", &format!("{path}&ban_secs={secs}"), None)?;
                self.print_home(&home, "banned", client_id)
            }
            (None, Some(secs)) => self.ban_user(args, secs),
            (None, None) => self.kick_some(args),
        }
    }

    fn ban_user(&self, args: &KickArgs, secs: u64) -> Result<(), Failure> {
        let Some(username) = &args.filters.username else {
            return Err(Failure::new("--ban needs a client ID or --username"));
        };
        let namespace = args.filters.within.namespace();
        if namespace.is_none() {
            self.needs_no_namespace("--namespace")?;
        }
        let body = json!({
            "kind": "user", "who": username, "namespace": namespace, "for_secs": secs,
        });
        self.http.call("POST", "/bans", Some(&body)).map(drop)
    }

    fn kick_some(&self, args: &KickArgs) -> Result<(), Failure> {
        let all = args.all.then_some(("all", "true"));
        let query: Vec<_> = args.filters.query().chain(all).collect();
        let answer = self.http.call("POST", &format!("/disconnect{}", query_of(&query)), None)?;
        self.print_count(&answer, "disconnected")
    }

    fn print_count(&self, answer: &serde_json::Value, name: &str) -> Result<(), Failure> {
        if self.json {
            return self.print_value(answer);
        }
        print(format!("{name}: {}\n", answer[name]).as_bytes());
        Ok(())
    }
}

impl Filters {
    fn query(&self) -> impl Iterator<Item = (&'static str, &str)> {
        given([
            ("namespace", self.within.namespace()),
            ("client_id", self.id.as_deref()),
            ("username", self.username.as_deref()),
            ("address", self.address.as_deref()),
        ])
    }
}

impl ListArgs {
    const fn connected(&self) -> Option<&'static str> {
        match (self.online, self.offline) {
            (true, _) => Some("true"),
            (_, true) => Some("false"),
            _ => None,
        }
    }
}

/// The parameters that have a value.
fn given<'a, const N: usize>(
    all: [(&'static str, Option<&'a str>); N],
) -> impl Iterator<Item = (&'static str, &'a str)> {
    all.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

const EVENTS: &[Column] =
    &[Column("TIME", "time"), Column("EVENT", "kind"), Column("DETAILS", "data")];

const CLIENTS: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("CLIENT", "client_id"),
    Column("USER", "username"),
    Column("ONLINE", "connected"),
    Column("ADDRESS", "address"),
    Column("MQTT", "protocol"),
    Column("SUBS", "subscriptions"),
    Column("QUEUED", "queued_messages"),
    Column("IN FLIGHT", "in_flight"),
];
