//! Metrics of a running load, served for Prometheus. The names are described in `docs/flock/metrics.md`.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::Progress;

/// Answers every request with what the run last told. Lives until the program ends.
pub struct Endpoint {
    page: Arc<Mutex<String>>,
    address: SocketAddr,
}

impl Endpoint {
    /// Listens at `address`.
    pub fn start(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let page = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&page);
        std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // A scraper that goes away is its own business.
                let _ = answer(stream, &text);
            }
        })?;
        Ok(Self { page, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn update(&self, progress: &Progress<'_>) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = render(progress);
    }
}

fn answer(stream: TcpStream, text: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut reader = BufReader::new((&stream).take(REQUEST_BYTES_MAX));
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let found = first.starts_with("GET /metrics") || first.starts_with("GET / ");
    let (status, body) = if found { ("200 OK", text) } else { ("404 Not Found", "see /metrics\n") };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (&stream).write_all(head.as_bytes())?;
    (&stream).write_all(body.as_bytes())
}

fn render(progress: &Progress<'_>) -> String {
    let (second, totals) = (progress.second, progress.totals);
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP flock_{name} {help}\n# TYPE flock_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(out, "flock_{name}{labels} {value}");
        }
    };
    let gauge = "gauge";
    metric("clients", gauge, "Clients of the scenario.", &[("", progress.clients as f64)]);
    metric("connections", gauge, "Open connections.", &[("", second.connections as f64)]);
    metric(
        "backlog_messages",
        gauge,
        "Published and not yet received, at the known fan-out.",
        &[("", second.backlog as f64)],
    );
    let counters: [(&str, &str, u64); 11] = [
        ("connects_total", "Successful connects.", totals.connects_ok),
        ("connect_failures_total", "Failed connects.", totals.connects_failed),
        ("connections_lost_total", "Connections that ended unasked.", totals.connections_lost),
        ("subscribes_total", "Successful subscribes.", totals.subscribes_ok),
        (
            "acknowledged_messages_total",
            "Publishes acknowledged with success.",
            totals.acknowledged,
        ),
        ("published_payload_bytes_total", "Payload bytes published.", totals.published_bytes),
        ("received_payload_bytes_total", "Payload bytes received.", totals.received_bytes),
        ("bytes_in_total", "Bytes read from sockets.", totals.bytes_in),
        ("bytes_out_total", "Bytes written to sockets.", totals.bytes_out),
        ("lost_messages", "Deliveries known to be lost so far.", second.lost_so_far),
        ("duplicated_messages", "Deliveries that came twice so far.", second.duplicated_so_far),
    ];
    for (name, help, value) in counters {
        let kind = if name.ends_with("_total") { "counter" } else { gauge };
        metric(name, kind, help, &[("", value as f64)]);
    }
    let by_qos = |values: [u64; 3]| {
        ["{qos=\"0\"}", "{qos=\"1\"}", "{qos=\"2\"}"]
            .into_iter()
            .zip(values.map(|n| n as f64))
            .collect::<Vec<_>>()
    };
    metric(
        "published_messages_total",
        "counter",
        "PUBLISH packets sent.",
        &by_qos(totals.published),
    );
    metric(
        "received_messages_total",
        "counter",
        "PUBLISH packets received.",
        &by_qos(totals.received),
    );
    for (name, help, point) in [
        (
            "end_to_end_latency_seconds",
            "From due time to arrival, over the last second.",
            &second.end_to_end,
        ),
        (
            "publish_ack_latency_seconds",
            "From due time to acknowledgement, over the last second.",
            &second.publish_ack,
        ),
        (
            "connect_latency_seconds",
            "From first packet to CONNACK, over the last second.",
            &second.connect,
        ),
    ] {
        let of = [
            ("{quantile=\"0.5\"}", point.p50_us),
            ("{quantile=\"0.9\"}", point.p90_us),
            ("{quantile=\"0.99\"}", point.p99_us),
            ("{quantile=\"1\"}", point.max_us),
        ];
        metric(name, gauge, help, &of.map(|(labels, us)| (labels, us as f64 / 1e6)));
    }
    metric(
        "lateness_seconds",
        gauge,
        "How late the tool itself was, p99 over the last second.",
        &[("", second.lateness_p99_us as f64 / 1e6)],
    );
    if let Some(cpu) = progress.broker_cpu_percent {
        metric("broker_cpu_cores", gauge, "CPU of the broker in cores.", &[("", cpu / 100.0)]);
    }
    if let Some(memory) = progress.broker_memory_bytes {
        metric(
            "broker_memory_bytes",
            gauge,
            "Resident memory of the broker.",
            &[("", memory as f64)],
        );
    }
    let stage: String = progress.stage.chars().filter(|c| !"\"\\\n".contains(*c)).collect();
    metric(
        "stage",
        gauge,
        "1 for the stage that runs.",
        &[(&format!("{{stage=\"{stage}\"}}"), 1.0)],
    );
    out
}

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_BYTES_MAX: u64 = 8_192;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Second, Totals};

    fn fetch(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_page_is_served_and_described() {
        let endpoint = Endpoint::start("127.0.0.1:0").unwrap();
        endpoint.update(&Progress {
            stage: "pub\"lish",
            second: &Second { connections: 7, ..Second::default() },
            totals: &Totals { published: [1, 2, 3], ..Totals::default() },
            clients: 9,
            broker_cpu_percent: Some(150.0),
            broker_memory_bytes: None,
        });
        let page = fetch(endpoint.address(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        for line in [
            "flock_connections 7",
            "flock_published_messages_total{qos=\"2\"} 3",
            "flock_broker_cpu_cores 1.5",
            "flock_stage{stage=\"publish\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
        }
        assert!(fetch(endpoint.address(), "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        let described = include_str!("../../../docs/flock/metrics.md");
        for name in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = name.split(' ').next().unwrap();
            assert!(described.contains(&format!("`{name}`")), "{name} is not described");
        }
    }
}
