//! Metrics of a running load, served for Prometheus. The names are described in
//! `docs/flock/metrics.md`.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use web::axum::Router;
use web::axum::extract::State;
use web::axum::http::StatusCode;
use web::axum::response::Response;
use web::axum::routing::get;

use crate::engine::Progress;
use crate::http::{self, Problem};
use flock_measure::{LatencyPoint, Second};

/// Answers every request with what the run last told.
pub struct Endpoint {
    live: Arc<Live>,
    server: web::Server,
}

impl Endpoint {
    /// Listens at `address`.
    pub fn start(address: &str) -> io::Result<Self> {
        let live = Arc::new(Live::default());
        let page = |State(live): State<Arc<Live>>| async move { live.response() };
        let router = Router::new()
            .route("/", get(page))
            .route("/metrics", get(page))
            .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "see /metrics") })
            .with_state(Arc::clone(&live));
        let server = web::Server::start(address, web::Limits::default(), router)?;
        Ok(Self { live, server })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn update(&self, progress: &Progress<'_>) {
        self.live.update(progress);
    }
}

/// The page as it is now.
#[derive(Default)]
pub struct Live {
    page: Mutex<String>,
    sums: Mutex<Sums>,
}

impl Live {
    pub fn update(&self, progress: &Progress<'_>) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = render(progress, &mut sums);
    }

    /// Another run begins: all counts from nothing.
    pub fn clear(&self) {
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = Sums::default();
        self.page.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn response(&self) -> Response {
        let page = self.page.lock().unwrap_or_else(PoisonError::into_inner).clone();
        http::text(StatusCode::OK, "text/plain; version=0.0.4", page)
    }
}

/// Latencies since the run began, in the order of their metrics: how many, and their seconds.
type Sums = [(u64, f64); 3];

fn render(progress: &Progress<'_>, sums: &mut Sums) -> String {
    let mut page = Page(String::new());
    counts(progress, &mut page);
    latencies(progress.second, sums, &mut page);
    if let Some(cpu) = progress.broker_cpu_percent {
        page.gauge("broker_cpu_cores", "CPU of the broker in cores.", cpu / 100.0);
    }
    if let Some(memory) = progress.broker_memory_bytes {
        page.gauge("broker_memory_bytes", "Resident memory of the broker.", memory as f64);
    }
    let stage: String = progress.stage.chars().filter(|c| !"\"\\\n".contains(*c)).collect();
    let labels = format!("{{stage=\"{stage}\"}}");
    page.metric("stage", "gauge", "1 for the stage that runs.", &[(&labels, 1.0)]);
    page.0
}

/// The page as it grows.
struct Page(String);

impl Page {
    fn metric(&mut self, name: &str, kind: &str, help: &str, values: &[(&str, f64)]) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP flock_{name} {help}\n# TYPE flock_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "flock_{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.metric(name, "gauge", help, &[("", value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, "counter", help, &[("", value as f64)]);
    }

    fn by_qos(&mut self, name: &str, help: &str, values: [u64; 3]) {
        let labels = ["{qos=\"0\"}", "{qos=\"1\"}", "{qos=\"2\"}"];
        let values: Vec<(&str, f64)> = labels.into_iter().zip(values.map(|n| n as f64)).collect();
        self.metric(name, "counter", help, &values);
    }
}

fn counts(progress: &Progress<'_>, page: &mut Page) {
    let (second, totals) = (progress.second, progress.totals);
    page.gauge("clients", "Clients of the scenario.", progress.clients as f64);
    page.gauge("connections", "Open connections.", second.connections as f64);
    let backlog = "Deliveries due and not yet received.";
    page.gauge("backlog_messages", backlog, second.backlog as f64);
    let lost = second.lost_so_far as f64;
    page.gauge("lost_messages", "Deliveries lost so far.", lost);
    let duplicated = second.duplicated_so_far as f64;
    page.gauge("duplicated_messages", "Duplicate deliveries so far.", duplicated);
    page.counter("connects_total", "Successful connects.", totals.connects_ok);
    page.counter("connect_failures_total", "Failed connects.", totals.connects_failed);
    page.counter("connections_lost_total", "Connections lost.", totals.connections_lost);
    page.counter("subscribes_total", "Successful subscribes.", totals.subscribes_ok);
    let acknowledged = "Publishes acknowledged without error.";
    page.counter("acknowledged_messages_total", acknowledged, totals.acknowledged);
    page.counter(
        "published_payload_bytes_total",
        "Payload bytes published.",
        totals.published_bytes,
    );
    page.counter("received_payload_bytes_total", "Payload bytes received.", totals.received_bytes);
    page.counter("bytes_in_total", "Bytes read from sockets.", totals.bytes_in);
    page.counter("bytes_out_total", "Bytes written to sockets.", totals.bytes_out);
    page.by_qos("published_messages_total", "PUBLISH packets sent.", totals.published);
    page.by_qos("received_messages_total", "PUBLISH packets received.", totals.received);
}

/// Summaries, whose quantiles are those of the last second only.
fn latencies(second: &Second, sums: &mut Sums, page: &mut Page) {
    let mut sums = sums.iter_mut();
    let mut latency = |name: &str, help: &str, point: &LatencyPoint| {
        let of = [
            ("{quantile=\"0.5\"}", point.p50_us),
            ("{quantile=\"0.9\"}", point.p90_us),
            ("{quantile=\"0.99\"}", point.p99_us),
            ("{quantile=\"1\"}", point.max_us),
        ];
        page.metric(name, "summary", help, &of.map(|(labels, us)| (labels, us as f64 / 1e6)));
        let Some((count, secs)) = sums.next() else { return };
        *count += point.count;
        *secs += point.average_us * point.count as f64 / 1e6;
        // Writing to a String cannot fail.
        let _ = writeln!(page.0, "flock_{name}_sum {secs}\nflock_{name}_count {count}");
    };
    let help = "From due time to arrival, over the last second.";
    latency("end_to_end_latency_seconds", help, &second.end_to_end);
    let help = "From due time to acknowledgement, over the last second.";
    latency("publish_ack_latency_seconds", help, &second.publish_ack);
    let help = "From the first attempt to CONNACK, over the last second.";
    latency("connect_latency_seconds", help, &second.connect);
    let help = "Lateness of the tool, p99 over the last second.";
    page.gauge("lateness_seconds", help, second.lateness_p99_us as f64 / 1e6);
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;
    use flock_measure::Totals;
    use flock_model::Length;

    fn fetch(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// What `promtool check metrics` has against a page, as far as this one could err.
    fn refused(page: &str) -> Vec<String> {
        let (mut found, mut name, mut kind) = (Vec::new(), "", "");
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                name = rest.split_once(' ').map_or("", |(name, _)| name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (of, as_kind) = rest.split_once(' ').unwrap();
                kind = as_kind;
                let is_total = of.ends_with("_total");
                if of != name || is_total != (kind == "counter") {
                    found.push(line.to_owned());
                }
            } else {
                let is_suffixed = ["_sum", "_count"]
                    .iter()
                    .any(|end| kind == "summary" && line.starts_with(&format!("{name}{end} ")));
                let is_plain =
                    line.starts_with(&format!("{name} ")) || line.starts_with(&format!("{name}{{"));
                let is_value = line.rsplit(' ').next().is_some_and(|n| n.parse::<f64>().is_ok());
                let wrong_label = line.contains("quantile=") != (kind == "summary" && !is_suffixed);
                if !(is_suffixed || is_plain) || !is_value || wrong_label {
                    found.push(line.to_owned());
                }
            }
        }
        found
    }

    #[test]
    fn the_page_is_served_and_described() {
        let endpoint = Endpoint::start("127.0.0.1:0").unwrap();
        let end_to_end = LatencyPoint { count: 4, average_us: 500.0, ..LatencyPoint::default() };
        let second = Second { connections: 7, end_to_end, ..Second::default() };
        let totals = Totals { published: [1, 2, 3], ..Totals::default() };
        let progress = Progress {
            stage: "pub\"lish",
            second: &second,
            totals: &totals,
            clients: 9,
            agents: &[],
            length: Length { us: 75_000_000, is_open: false },
            broker_cpu_percent: Some(150.0),
            broker_memory_bytes: None,
        };
        endpoint.update(&progress);
        endpoint.update(&progress);
        let page = fetch(endpoint.address(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        for line in [
            "flock_connections 7",
            "flock_published_messages_total{qos=\"2\"} 3",
            "flock_broker_cpu_cores 1.5",
            "flock_stage{stage=\"publish\"} 1",
            "flock_end_to_end_latency_seconds_sum 0.004",
            "flock_end_to_end_latency_seconds_count 8",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
        }
        assert!(fetch(endpoint.address(), "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        let body = page.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(refused(body), Vec::<String>::new());
        let described = include_str!("../../../../docs/flock/metrics.md");
        for name in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = name.split(' ').next().unwrap();
            assert!(described.contains(&format!("`{name}`")), "{name} is not described");
        }
    }
}
