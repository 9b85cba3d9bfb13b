//! `quelea ctl clients kick`: one client, or all that match filters.

use clap::Args;
use serde_json::json;

use super::within::Within;
use super::{Ctl, Failure, client_path, query_of};
use base::print;
use config::schema::secs_of_text;

#[derive(Clone, Debug, Args)]
pub(super) struct KickArgs {
    /// The client.
    #[arg(conflicts_with_all = ["id", "username", "address"])]
    client_id: Option<String>,
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
    /// Ban the client or the user for this time, such as 90, 5m, 12h or 7d, connected or not.
    #[arg(long, value_name = "TIME", value_parser = secs_of_text, conflicts_with_all = ["id", "address"])]
    ban: Option<u64>,
}

impl Ctl {
    pub(super) fn kick(&self, args: &KickArgs) -> Result<(), Failure> {
        let within = &args.within;
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
        let Some(username) = &args.username else {
            return Err(Failure::new("--ban needs a client ID or --username"));
        };
        let namespace = args.within.namespace();
        if namespace.is_none() {
            self.needs_no_namespace("--namespace")?;
        }
        let body = json!({
            "kind": "user", "who": username, "namespace": namespace, "for_secs": secs,
        });
        self.http.call("POST", "/bans", Some(&body)).map(drop)
    }

    fn kick_some(&self, args: &KickArgs) -> Result<(), Failure> {
        let given = [
            ("namespace", args.within.namespace()),
            ("client_id", args.id.as_deref()),
            ("username", args.username.as_deref()),
            ("address", args.address.as_deref()),
        ];
        let query: Vec<_> =
            given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let answer = self.http.call("POST", &format!("/disconnect{}", query_of(&query)), None)?;
        if self.json {
            return self.print_value(&answer);
        }
        print(format!("disconnected: {}\n", answer["disconnected"]).as_bytes());
        Ok(())
    }
}
