//! `quelea ctl events`: life-cycle events as they happen.

use clap::Args;
use serde_json::Value;
use web::percent_encoded;

use super::table::plain;
use super::table::print;
use super::{Ctl, Failure};

#[derive(Clone, Debug, Args)]
pub(super) struct EventsArgs {
    /// Events whose type begins with this text, such as session. or ban.added.
    #[arg(long = "type", value_name = "BEGIN")]
    kind: Option<String>,
    /// Events about one client.
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
    /// Events about one namespace.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Exit after this many events.
    #[arg(short = 'C', long, value_name = "N")]
    count: Option<u64>,
}

impl Ctl {
    pub(super) fn events(&self, args: &EventsArgs) -> Result<(), Failure> {
        let kind = args.kind.as_ref().map(|kind| format!("quelea.{kind}"));
        let given = [
            ("type", kind.as_ref()),
            ("client_id", args.client.as_ref()),
            ("namespace", args.namespace.as_ref()),
        ];
        let query: Vec<String> = given
            .iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", percent_encoded((*value)?))))
            .collect();
        let mut left = args.count.unwrap_or(u64::MAX);
        if left == 0 {
            return Ok(());
        }
        self.http.follow(&format!("/events?{}", query.join("&")), |line| {
            if let Some(text) = line.strip_prefix("data: ") {
                print(self.event_line(text).as_bytes());
                left -= 1;
            }
            left > 0
        })
    }

    fn event_line(&self, text: &str) -> String {
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        if self.json {
            return format!("{event}\n");
        }
        let (time, kind) = (event["time"].as_str(), event["type"].as_str());
        let mut line = format!("{} {}", time.unwrap_or("-"), kind.unwrap_or("-"));
        for (name, value) in event["data"].as_object().into_iter().flatten() {
            match value {
                Value::Null => {}
                Value::String(text) => line.push_str(&format!(" {name}={}", plain(text))),
                other => line.push_str(&format!(" {name}={}", plain(&other.to_string()))),
            }
        }
        line.push('\n');
        line
    }
}
