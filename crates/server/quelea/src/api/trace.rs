//! The stream of one trace: packets of clients as server-sent events.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broker::{TRACED_PAYLOAD_BYTES_MAX, TRACES_MAX, TraceFilter, Traced};
use codec::Reason;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use web::axum::body::Bytes;
use web::axum::http::StatusCode;
use web::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use web::axum::response::{IntoResponse as _, Response};

use super::call::Call;
use super::clients::check_filter;
use super::events::{MEDIA_TYPE, reader};
use super::problem::Problem;
use super::{Api, base64_of, scopes};
use crate::life_cycle::{LifeCycle, TraceReading};
use crate::run::Shards;
use base::{Clock, moment};
use config::Network;

/// The most that `payload_bytes` may ask for.
pub(crate) const PAYLOAD_BYTES_MAX: u64 = TRACED_PAYLOAD_BYTES_MAX as u64;

/// How often a reader hears that the stream is alive. That it has gone shows by the second one.
const BEAT: Duration = Duration::from_secs(5);

/// Packets that are written and not yet taken by the connection; behind them they wait as packets.
const WRITTEN_MAX: usize = 16;

pub(crate) fn stream(api: &Api, call: &Call) -> Result<Response, Problem> {
    let filter = filter_of(api, call)?;
    let (shards, caller) = (api.shards.clone(), &call.caller.name);
    let life_cycle = api.facts.life_cycle.clone();
    let payload_bytes = filter.payload_bytes;
    let announce = |filters| shards.put_traces(&filters);
    let Some(reading) = life_cycle.traces.add(reader(api, call), filter, announce) else {
        let detail =
            format!("the limit of traces is reached: {TRACES_MAX}, and half of them for one user");
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        return Err(problem.fix("close another trace"));
    };
    let shown = |name: &str| base::shown(call.text(name).unwrap_or_default()).into_owned();
    tracing::info!(
        caller = &*base::shown(caller),
        client_id = shown("client_id"),
        address = shown("address"),
        topic = shown("topic"),
        payload_bytes,
        "trace opened"
    );
    let (bytes, body) = mpsc::channel(WRITTEN_MAX);
    let (open, over) = oneshot::channel();
    let writer = Writer { life_cycle, shards, clock: api.facts.clock, payload_bytes, bytes };
    tokio::spawn(async move {
        writer.run(reading).await;
        drop(open);
    });
    let headers = [(CONTENT_TYPE, MEDIA_TYPE), (CACHE_CONTROL, "no-store")];
    let mut response = (headers, web::stream(body)).into_response();
    response.extensions_mut().insert(web::Lasting::until(over));
    Ok(response)
}

fn filter_of(api: &Api, call: &Call) -> Result<TraceFilter, Problem> {
    let (client_id, topic) = (call.text("client_id"), call.text("topic"));
    if let Some(topic) = topic {
        check_filter(api, "query parameter topic", topic)?;
    }
    let addresses = call.text("address").map(addresses_of).transpose()?;
    if client_id.is_none() && topic.is_none() && addresses.is_none() {
        let detail = "one of `client_id`, `topic` and `address` is required";
        return Err(Problem::bad("query", detail).fix("say what to trace"));
    }
    // A client ID is of one namespace; topics and addresses may be of all.
    let scope = match client_id {
        Some(_) => Some(scopes::of_one(api, call)?),
        None => scopes::of_list(api, call)?,
    };
    Ok(TraceFilter {
        number: 0,
        scope,
        client_id: client_id.map(Into::into),
        addresses,
        topic: topic.map(Into::into),
        payload_bytes: call.number("payload_bytes").unwrap_or_default() as u16,
    })
}

/// An address, or a network such as 10.0.0.0/8.
fn addresses_of(text: &str) -> Result<RangeInclusive<IpAddr>, Problem> {
    let one = text.parse::<IpAddr>().map(|address| address.to_canonical());
    let network = || text.parse::<Network>().map(|network| network.addresses());
    one.map(|address| address..=address).or_else(|_| network()).map_err(|_| {
        let detail = format!("must be an IP address or a network such as 10.0.0.0/8, got '{text}'");
        Problem::bad("query parameter address", detail)
    })
}

/// Writes what a trace has found, as fast as its reader takes it.
struct Writer {
    life_cycle: Arc<LifeCycle>,
    shards: Shards,
    clock: Clock,
    payload_bytes: u16,
    bytes: mpsc::Sender<Bytes>,
}

impl Writer {
    async fn run(self, mut reading: TraceReading) {
        self.write_all(&mut reading).await;
        let announce = |filters| self.shards.put_traces(&filters);
        self.life_cycle.traces.remove(reading.number, announce);
    }

    /// Until the reader has gone, or may read no more.
    async fn write_all(&self, reading: &mut TraceReading) {
        // The first words: who asks knows that packets are traced from here on.
        let mut text = ": from here on\n\n".to_owned();
        loop {
            let lost = reading.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let event = format!("event: lost\ndata: {}\n\n", json!({ "packets": lost }));
                text.insert_str(0, &event);
            }
            if self.bytes.send(Bytes::from(text)).await.is_err() {
                return;
            }
            text = tokio::select! {
                traced = reading.queue.recv() => match traced {
                    Some(traced) => {
                        let json = self.json_of(&traced).to_string();
                        format!("event: packet\ndata: {}\n\n", base::json_line(&json))
                    }
                    None => return,
                },
                () = self.bytes.closed() => return,
                () = tokio::time::sleep(BEAT) => ":\n\n".to_owned(),
            };
        }
    }

    fn json_of(&self, traced: &Traced) -> Value {
        let details = &traced.details;
        let reasons: Vec<String> =
            details.reasons.iter().map(|code| Reason(*code).word()).collect();
        let ago_ms = self.clock.now_ms().saturating_sub(traced.at_ms);
        let at = Duration::from_millis(self.clock.wall_ms().saturating_sub(ago_ms));
        let mut value = json!({
            "time": moment::text_with_micros(at),
            "namespace": self.life_cycle.namespace_of(traced.scope),
            "client_id": traced.client_id,
            "address": traced.address,
            "direction": if traced.is_from_client { "in" } else { "out" },
            "packet": traced.packet,
        });
        let mut put = |name: &str, field: Value| value[name] = field;
        if traced.bytes > 0 {
            put("bytes", traced.bytes.into());
        }
        if let Some(topic) = &details.topic {
            put("topic", (**topic).into());
        }
        if !details.filters.is_empty() {
            put("filters", details.filters.iter().map(|it| Value::from(&**it)).collect());
        }
        if let Some(packet_id) = details.packet_id {
            put("packet_id", packet_id.into());
        }
        if let Some(qos) = details.qos {
            put("qos", qos.into());
        }
        if traced.packet == "PUBLISH" {
            put("retain", details.retain.into());
            put("dup", details.dup.into());
        }
        if !reasons.is_empty() {
            put("reasons", reasons.into());
        }
        if let Some(bytes) = details.payload_bytes {
            put("payload_bytes", bytes.into());
        }
        if self.payload_bytes > 0 && traced.packet == "PUBLISH" {
            let shown = details.payload.len().min(usize::from(self.payload_bytes));
            put("payload_base64", base64_of(&details.payload[..shown]).into());
        }
        if !details.text.is_empty() {
            put("detail", (*details.text).into());
        }
        value
    }
}
