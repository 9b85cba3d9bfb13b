//! `quelea ctl reload` and `quelea ctl log-level`.

use clap::Args;
use serde_json::json;

use super::table::print;
use super::table::{Column, table};
use super::{Ctl, Failure};
use config::schema::secs_of_text;

#[derive(Clone, Debug, Args)]
pub(super) struct LogLevelArgs {
    /// The level to set: error, warn, info, debug or trace. Default: show the level in force.
    level: Option<String>,
    /// How long, such as 90, 10m or 12h. Then the configured level returns. Default: until a
    /// restart.
    #[arg(long = "for", value_name = "TIME", value_parser = secs_of_text, requires = "level")]
    secs: Option<u64>,
}

impl Ctl {
    pub(super) fn reload(&self) -> Result<(), Failure> {
        let answer = self.http.call("POST", "/reload", None)?;
        if self.json {
            self.print_value(&answer)?;
        } else {
            let parts = answer["parts"].as_array().map_or(&[][..], Vec::as_slice);
            print(table(parts, PARTS).as_bytes());
        }
        match answer["complete"] == true {
            true => Ok(()),
            false => Err(Failure::new("a part was not reloaded; the old one stays in use")),
        }
    }

    pub(super) fn memory(&self) -> Result<(), Failure> {
        let mut answer = self.http.call("GET", "/memory?limit=10", None)?;
        if self.json {
            return self.print_value(&answer);
        }
        let owners = answer["owners"].take();
        if let Some(fields) = answer.as_object_mut() {
            fields.remove("owners");
        }
        self.print_value(&answer)?;
        let owners = owners.as_array().map_or(&[][..], Vec::as_slice);
        print(format!("\n{}", table(owners, OWNERS)).as_bytes());
        Ok(())
    }

    pub(super) fn log_level(&self, args: &LogLevelArgs) -> Result<(), Failure> {
        match &args.level {
            None => self.show("/log-level"),
            Some(level) => {
                let body = json!({ "level": level, "for_secs": args.secs });
                self.print_value(&self.http.call("PUT", "/log-level", Some(&body))?)
            }
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(super) struct LogLinesArgs {
    /// The least severe level: error, warn, info, debug or trace.
    #[arg(long, default_value = "info")]
    level: String,
    /// The number of lines.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

impl Ctl {
    pub(super) fn log_lines(&self, args: &LogLinesArgs) -> Result<(), Failure> {
        self.list("/log-lines", &[("level", &args.level)], args.limit, LOG_LINES)
    }
}

const LOG_LINES: &[Column] =
    &[Column("TIME", "time"), Column("LEVEL", "level"), Column("LINE", "text")];

const PARTS: &[Column] =
    &[Column("PART", "name"), Column("RELOADED", "reloaded"), Column("ERROR", "error")];

const OWNERS: &[Column] = &[
    Column("OWNER", "owner"),
    Column("QUEUED", "queued_bytes"),
    Column("SESSIONS", "session_bytes"),
    Column("RETAINED", "retained_bytes"),
    Column("UNSENT", "unsent_bytes"),
    Column("IN LOGS", "logged_bytes"),
];

pub(super) const AUDIT: &[Column] = &[
    Column("TIME", "time"),
    Column("CALLER", "caller"),
    Column("METHOD", "method"),
    Column("STATUS", "status"),
    Column("SUBJECT", "subject"),
    Column("CALL", "call"),
];

pub(super) const CLIENT_DROPS: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("CLIENT", "client_id"),
    Column("MESSAGES", "messages"),
    Column("MOST BY", "reason"),
    Column("LIMIT", "limit"),
    Column("SINCE (S)", "first_drop_secs"),
    Column("LAST (S)", "last_drop_secs"),
];

pub(super) const ALARMS: &[Column] = &[
    Column("SEVERITY", "severity"),
    Column("KIND", "kind"),
    Column("SUBJECT", "subject"),
    Column("DETAIL", "detail"),
];

pub(super) const DROPS: &[Column] = &[
    Column("REASON", "reason"),
    Column("LIMIT", "limit"),
    Column("MESSAGES", "messages"),
    Column("MEANING", "meaning"),
];
