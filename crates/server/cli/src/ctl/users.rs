//! `quelea ctl users`: users of the password file of a running broker.

use clap::Subcommand;
use serde_json::json;

use super::table::Column;
use super::{Ctl, Failure, query_of};
use crate::passwd::ask_password;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum UsersCommand {
    /// List the users.
    List,
    /// Add a user, or change its password, which is read from the terminal or standard input.
    Set {
        username: String,
        /// Also store credentials for SCRAM-SHA-256.
        #[arg(long)]
        scram: bool,
    },
    /// Delete a user.
    Delete { username: String },
}

impl Ctl {
    pub(super) fn users(&self, command: &UsersCommand) -> Result<(), Failure> {
        let path = |username: &str| format!("/user{}", query_of(&[("username", username)]));
        match command {
            UsersCommand::List => self.list("/users", &[], 0, USERS),
            UsersCommand::Set { username, scram } => {
                let asked = ask_password(username).map_err(|error| Failure::new(error.to_string()));
                let password = String::from_utf8(asked?)
                    .map_err(|_| Failure::new("the password must be UTF-8"))?;
                let body = json!({ "password": password, "scram": scram });
                self.http.call("PUT", &path(username), Some(&body)).map(drop)
            }
            UsersCommand::Delete { username } => {
                self.http.call("DELETE", &path(username), None).map(drop)
            }
        }
    }
}

const USERS: &[Column] = &[Column("USER", "username"), Column("SCRAM", "scram")];
