//! `quelea ctl may`: what a client may do, and the rule that decides it.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::table::plain;
use super::within::Within;
use super::{Ctl, Failure, query_of};
use base::{EXIT_FAILURE, EXIT_UNDECIDED, print};

#[derive(Clone, Debug, Args)]
pub(super) struct MayArgs {
    /// The client ID.
    client_id: String,
    /// The action of the client.
    action: Wanted,
    /// The topic, or the topic filter for `subscribe`.
    topic: String,
    #[command(flatten)]
    within: Within,
    /// Ask about a client with this username instead, connected or not.
    #[arg(short, long = "as", value_name = "USERNAME")]
    username: Option<String>,
    /// The QoS of the publish or subscription.
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// The publish has the retain flag.
    #[arg(short, long)]
    retain: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Wanted {
    Publish,
    Subscribe,
    Receive,
}

impl Wanted {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Receive => "receive",
        }
    }
}

impl Ctl {
    pub(super) fn may(&self, args: &MayArgs) -> Result<(), Failure> {
        let MayArgs { client_id, action, topic, within, username, qos, retain } = args;
        let decision = match username {
            Some(username) => {
                let body = json!({
                    "client_id": client_id, "username": username, "action": action.as_str(),
                    "topic": topic, "qos": qos, "retain": retain,
                });
                let path = format!("/permissions/explain{}", query_of(&within.and(&[])));
                self.http.call("POST", &path, Some(&body))?
            }
            None => {
                let home = self.home(within, client_id, false)?;
                let (qos, retain) = (qos.to_string(), retain.to_string());
                let query = query_of(&[
                    ("client_id", client_id),
                    ("namespace", &home),
                    ("action", action.as_str()),
                    ("topic", topic),
                    ("qos", &qos),
                    ("retain", &retain),
                ]);
                self.http.call("GET", &format!("/client/permissions{query}"), None)?
            }
        };
        match self.json {
            true => self.print_value(&decision)?,
            false => drop(print(line_of(&decision).as_bytes())),
        }
        // The answer is printed already.
        let failed = |code| Err(Failure { code, text: String::new() });
        match decision["allowed"].as_bool() {
            Some(true) => Ok(()),
            Some(false) => failed(EXIT_FAILURE),
            None => failed(EXIT_UNDECIDED),
        }
    }
}

fn line_of(decision: &Value) -> String {
    let text = |name: &str| decision[name].as_str().map(plain);
    let word = match decision["allowed"].as_bool() {
        Some(true) => "allowed",
        Some(false) => "denied",
        None => "undecided",
    };
    let mut line = format!("{word}: {}", text("decided_by").unwrap_or_default());
    if let Some(file) = text("file") {
        line.push_str(&format!(" {file}:{}", decision["line"]));
    }
    if let Some(effect) = text("effect") {
        let rule = text("rule").unwrap_or_else(|| "every topic".into());
        line.push_str(&format!(" ({effect} {rule})"));
    }
    if let Some(binding) = text("binding") {
        line.push_str(&format!(": {binding}"));
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_one_line() {
        let decision = json!({
            "allowed": false, "decided_by": "access_file", "file": "/etc/acl", "line": 7,
            "effect": "deny", "rule": "a/\u{1b}#",
        });
        assert_eq!(line_of(&decision), "denied: access_file /etc/acl:7 (deny a/\\u{1b}#)\n");
        let decision = json!({ "allowed": null, "decided_by": "service" });
        assert_eq!(line_of(&decision), "undecided: service\n");
        let decision = json!({ "allowed": true, "decided_by": "no_rules" });
        assert_eq!(line_of(&decision), "allowed: no_rules\n");
        let decision = json!({
            "allowed": true, "decided_by": "policy_file", "file": "p", "line": 3,
            "effect": "allow", "rule": "a", "binding": "all may publish to x",
        });
        let line = "allowed: policy_file p:3 (allow a): all may publish to x\n";
        assert_eq!(line_of(&decision), line);
    }
}
