//! `quelea ctl retained`.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use clap::Subcommand;
use serde_json::json;

use super::table::Column;
use super::within::Within;
use super::{Ctl, Failure, PAGE_ROWS, qos_level, query_of};
use config::namespaces::DEFAULT;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum RetainedCommand {
    /// List retained messages whose topics match a filter.
    List {
        #[arg(default_value = "#")]
        filter: String,
        #[command(flatten)]
        within: Within,
        /// Print at most this many rows; 0: all.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Show a retained message.
    Get {
        topic: String,
        #[command(flatten)]
        within: Within,
    },
    /// Publish a retained message.
    Set {
        topic: String,
        #[command(flatten)]
        within: Within,
        #[arg(short, long)]
        message: String,
        #[arg(short, long, default_value_t = 1, value_parser = qos_level)]
        qos: u8,
    },
    /// Clear retained messages whose topics match a filter. Subscribers get an empty message on
    /// each topic.
    Clear {
        /// A topic, or a filter with wildcards.
        filter: String,
        #[command(flatten)]
        within: Within,
        /// Count the messages, and clear none.
        #[arg(long)]
        dry_run: bool,
        /// Clear the messages of a filter with wildcards without asking.
        #[arg(short, long)]
        yes: bool,
    },
}

/// What became of the messages that match.
#[derive(Debug, Default)]
struct Cleared {
    matched: u64,
    cleared: u64,
    refused: u64,
}

impl Ctl {
    pub(super) fn retained(&self, command: &RetainedCommand) -> Result<(), Failure> {
        match command {
            RetainedCommand::List { filter, within, limit } => {
                self.list("/retained", &within.and(&[("filter", filter)]), *limit, COLUMNS)
            }
            RetainedCommand::Get { topic, within } => self.show(&path(topic, within)),
            RetainedCommand::Set { topic, within, message, qos } => {
                let body = json!({ "payload": message, "qos": qos });
                self.print_value(&self.http.call("PUT", &path(topic, within), Some(&body))?)
            }
            RetainedCommand::Clear { filter, within, dry_run, yes } => {
                self.clear(filter, within, *dry_run, *yes)
            }
        }
    }

    fn clear(
        &self,
        filter: &str,
        within: &Within,
        is_dry: bool,
        is_confirmed: bool,
    ) -> Result<(), Failure> {
        let has_wildcards = filter.contains(['+', '#']);
        if !has_wildcards && !is_dry {
            // Also on a topic that is refused today.
            return self.http.call("DELETE", &path(filter, within), None).map(drop);
        }
        if has_wildcards && !is_dry && !is_confirmed {
            let Cleared { matched, .. } = self.clear_matching(filter, within, true)?;
            let namespace = within.namespace().unwrap_or(DEFAULT);
            if matched > 0 && !confirm(filter, namespace, matched)? {
                return Err(Failure::new("nothing was cleared"));
            }
        }
        let Cleared { matched, cleared, refused } = self.clear_matching(filter, within, is_dry)?;
        self.print_value(&match is_dry {
            true => json!({ "matched": matched }),
            false => json!({ "matched": matched, "cleared": cleared, "refused": refused }),
        })?;
        match refused {
            0 => Ok(()),
            _ => Err(Failure::new(format!("{refused} messages were not cleared; try again"))),
        }
    }

    fn clear_matching(
        &self,
        filter: &str,
        within: &Within,
        is_dry: bool,
    ) -> Result<Cleared, Failure> {
        let limit = PAGE_ROWS.to_string();
        let dry_run = if is_dry { "true" } else { "false" };
        let mut sum = Cleared::default();
        let mut cursor = None::<String>;
        loop {
            let mut query =
                within.and(&[("filter", filter), ("dry_run", dry_run), ("limit", &limit)]);
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page = self.http.call("DELETE", &format!("/retained{}", query_of(&query)), None)?;
            let count = |name: &str| page[name].as_u64().unwrap_or_default();
            sum.matched += count("matched");
            sum.cleared += count("cleared");
            sum.refused += count("refused");
            cursor = page["cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(sum);
            }
        }
    }
}

/// The retained message of a topic.
fn path(topic: &str, within: &Within) -> String {
    format!("/retained/message{}", query_of(&within.and(&[("topic", topic)])))
}

fn confirm(filter: &str, namespace: &str, count: u64) -> Result<bool, Failure> {
    let what = format!("{count} retained messages match '{filter}' in the namespace '{namespace}'");
    if !io::stdin().is_terminal() {
        let text = format!("{what}; add --yes to clear them without a terminal");
        return Err(Failure::new(text));
    }
    let read = || {
        let mut answer = String::new();
        write!(io::stderr(), "{what}. Clear them? [y/N] ")?;
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    };
    read().map_err(|error: io::Error| Failure::new(format!("cannot ask: {error}")))
}

const COLUMNS: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("TOPIC", "topic"),
    Column("QOS", "qos"),
    Column("BYTES", "payload_bytes"),
    Column("EXPIRES IN", "expires_in_secs"),
    Column("PAYLOAD", "payload"),
];
