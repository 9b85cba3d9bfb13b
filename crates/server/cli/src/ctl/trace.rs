//! `quelea ctl trace`: the packets of a client as they come and go.

use clap::Args;
use serde_json::Value;

use super::table::plain;
use super::table::print;
use super::within::Within;
use super::{Ctl, Failure, query_of};

#[derive(Clone, Debug, Args)]
pub(super) struct TraceArgs {
    /// The client ID. It need not be connected yet.
    #[arg(required_unless_present_any = ["topic", "address"])]
    client_id: Option<String>,
    #[command(flatten)]
    within: Within,
    /// PUBLISH packets whose topic this filter matches.
    #[arg(long, value_name = "FILTER")]
    topic: Option<String>,
    /// Clients from this address or network.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Show this many bytes of each payload.
    #[arg(long, value_name = "N", default_value_t = 0)]
    payload_bytes: u16,
    /// Exit after this many packets.
    #[arg(short = 'C', long, value_name = "N")]
    count: Option<u64>,
}

impl Ctl {
    pub(super) fn trace(&self, args: &TraceArgs) -> Result<(), Failure> {
        let payload_bytes = args.payload_bytes.to_string();
        let given = [
            ("client_id", args.client_id.as_deref()),
            ("namespace", args.within.namespace()),
            ("topic", args.topic.as_deref()),
            ("address", args.address.as_deref()),
            ("payload_bytes", Some(payload_bytes.as_str())),
        ];
        let query: Vec<_> =
            given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let mut left = args.count.unwrap_or(u64::MAX);
        if left == 0 {
            return Ok(());
        }
        self.http.follow(&format!("/trace{}", query_of(&query)), |line| {
            if let Some(text) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(text).unwrap_or_default();
                let line = match self.json {
                    true => format!("{event}\n"),
                    false => line_of(&event),
                };
                left -= u64::from(event["packet"].is_string());
                return print(line.as_bytes()) && left > 0;
            }
            true
        })
    }
}

fn line_of(event: &Value) -> String {
    if let Some(lost) = event["packets"].as_u64() {
        return format!("{lost} packets were lost: the reader is too slow\n");
    }
    let text = |name: &str| event[name].as_str().map(plain).unwrap_or_default();
    let arrow = if event["direction"] == "in" { "->" } else { "<-" };
    let mut line = format!("{} {} {arrow} {}", text("time"), text("client_id"), text("packet"));
    for (name, value) in event.as_object().into_iter().flatten() {
        if HEAD.contains(&name.as_str()) {
            continue;
        }
        let value = match value {
            Value::String(text) => plain(text),
            Value::Array(items) => {
                let items = items.iter().filter_map(Value::as_str).map(plain);
                items.collect::<Vec<_>>().join(",")
            }
            other => other.to_string(),
        };
        line.push_str(&format!(" {name}={value}"));
    }
    line + "\n"
}

/// Fields that are at the beginning of each line, or the same in most.
const HEAD: [&str; 6] = ["time", "client_id", "packet", "direction", "namespace", "address"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_packet_is_one_line() {
        let event = json!({
            "time": "t", "client_id": "a\n", "packet": "SUBACK", "direction": "out",
            "packet_id": 7, "reasons": ["granted_qos_1", "not_authorized"],
        });
        let line = "t a\\n <- SUBACK packet_id=7 reasons=granted_qos_1,not_authorized\n";
        assert_eq!(line_of(&event), line);
        assert!(line_of(&json!({ "packets": 3 })).starts_with("3 packets were lost"));
    }
}
