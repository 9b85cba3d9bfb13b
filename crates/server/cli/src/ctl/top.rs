//! `quelea ctl top`: what the broker does, as it goes on.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use super::table::print;
use super::table::{Column, table};
use super::{Ctl, Failure};
use config::schema::secs_of_text;

/// Clients that are looked at for the slowest of them.
const SLOW_LOOKED_AT: usize = 1_000;

/// Those that are shown.
const SLOW_SHOWN: usize = 10;

/// Moves a terminal's cursor to the top left, and clears what is below.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

#[derive(Clone, Debug, Args)]
pub(super) struct TopArgs {
    /// Interval of updates, such as 2s or 1m.
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = secs_of_text)]
    interval: u64,
    /// Exit after this many updates.
    #[arg(short = 'C', long, value_name = "N")]
    count: Option<u64>,
}

/// What is shown as it is, and what per second.
const GAUGES: [(&str, &str); 5] = [
    ("connections", "connections"),
    ("sessions", "sessions"),
    ("subscriptions", "subscriptions"),
    ("retained", "retained_messages"),
    ("resident bytes", "resident_bytes"),
];
const RATES: [(&str, &str); 4] = [
    ("received/s", "messages_received"),
    ("sent/s", "messages_sent"),
    ("dropped/s", "messages_dropped"),
    ("refused/s", "publishes_refused"),
];

impl Ctl {
    pub(super) fn top(&self, args: &TopArgs) -> Result<(), Failure> {
        let is_terminal = std::io::stdout().is_terminal();
        let mut last: Option<(Instant, Value)> = None;
        let mut left = args.count.unwrap_or(u64::MAX);
        while left > 0 {
            let (now, info) = (Instant::now(), self.http.call("GET", "/broker", None)?);
            let mut text = shown(&info, last.as_ref().map(|(at, info)| (now - *at, info)));
            let slow = [("queued_min", "1")];
            let (mut rows, _) = self.rows("/clients", &slow, SLOW_LOOKED_AT)?;
            rows.sort_by_key(|row| std::cmp::Reverse(row["queued_messages"].as_u64()));
            rows.truncate(SLOW_SHOWN);
            if !rows.is_empty() {
                text.push('\n');
                text.push_str(&table(&rows, SLOW));
            }
            if !print(format!("{}{text}", if is_terminal { CLEAR } else { "" }).as_bytes()) {
                return Ok(());
            }
            last = Some((now, info));
            left -= 1;
            if left > 0 {
                std::thread::sleep(Duration::from_secs(args.interval));
            }
        }
        Ok(())
    }
}

fn shown(info: &Value, last: Option<(Duration, &Value)>) -> String {
    let word = |name: &str| info[name].as_str().unwrap_or("-").to_owned();
    let number = |info: &Value, name: &str| info[name].as_u64().unwrap_or_default();
    let uptime = number(info, "uptime_secs");
    let detail = info["detail"].as_str().map(|detail| format!(" ({detail})")).unwrap_or_default();
    let (version, state) = (word("version"), word("state"));
    let mut text = format!("quelea {version}, {state}{detail}, up {uptime} s\n");
    for (title, name) in GAUGES {
        text.push_str(&format!("{title:<16}{:>14}\n", number(info, name)));
    }
    for (title, name) in RATES {
        let rate = last.map(|(elapsed, last)| {
            let more = number(info, name).saturating_sub(number(last, name));
            format!("{:.1}", more as f64 / elapsed.as_secs_f64().max(1e-3))
        });
        text.push_str(&format!("{title:<16}{:>14}\n", rate.as_deref().unwrap_or("-")));
    }
    text
}

const SLOW: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("SLOW CLIENT", "client_id"),
    Column("USER", "username"),
    Column("ONLINE", "connected"),
    Column("QUEUED", "queued_messages"),
    Column("IN FLIGHT", "in_flight"),
    Column("UNSENT", "unsent_bytes"),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let info = |received: u64| json!({ "version": "1", "state": "ready", "connections": 3, "messages_received": received });
        let first = shown(&info(10), None);
        assert!(
            first.starts_with("quelea 1, ready, up 0 s\n")
                && first.contains("received/s                   -")
        );
        let second = shown(&info(35), Some((Duration::from_secs(2), &info(10))));
        assert!(second.contains("received/s                12.5"), "{second}");
        assert!(second.contains("connections                  3"), "{second}");
    }
}
