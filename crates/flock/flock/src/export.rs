//! Live figures pushed to where others are kept: InfluxDB's line protocol and OpenTelemetry
//! (OTLP over HTTP, JSON). One line or request a second, from a thread of its own, so that a slow
//! receiver delays no load; what it cannot take in time is left out and counted.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::mpsc::{self, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use net::Url;
use serde_json::{Value, json};
use web::ureq;

use crate::engine::Progress;

/// Where the figures go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The line protocol to a write address, with a token if the database wants one.
    Influx { url: String, token: Option<String> },
    /// The line protocol into a file, line after line.
    InfluxFile(String),
    /// OTLP/HTTP with JSON.
    Otlp(String),
}

/// Pushes until it is dropped.
pub struct Exporter {
    queue: Option<SyncSender<String>>,
    thread: Option<JoinHandle<Told>>,
    form: Form,
    scenario: String,
    started_ns: u128,
    left_out: u64,
}

enum Form {
    Lines,
    Otlp,
}

/// What became of the figures.
#[derive(Clone, Debug, Default)]
struct Told {
    failed: u64,
    last: String,
}

impl Sink {
    /// An `http://` or `https://` address, or else a file.
    pub fn influx(text: &str) -> Result<Self, String> {
        match text.contains("://") {
            true => {
                let token = std::env::var("INFLUX_TOKEN").ok();
                Ok(Self::Influx { url: address(text, "/write?db=flock")?, token })
            }
            false => Ok(Self::InfluxFile(text.to_owned())),
        }
    }

    pub fn otlp(text: &str) -> Result<Self, String> {
        address(text, "/v1/metrics").map(Self::Otlp)
    }

    fn open(self) -> io::Result<Receiver> {
        let (url, kind, authorization) = match self {
            Self::InfluxFile(path) => return File::create(path).map(Receiver::File),
            Self::Influx { url, token } => {
                let token = token.map(|token| format!("Token {token}"));
                (url, "text/plain; charset=utf-8", token)
            }
            Self::Otlp(url) => (url, "application/json", None),
        };
        let agent = web::agent(
            &Url::parse(&url).map_err(io::Error::other)?,
            &web::ClientTls::default(),
            TIMEOUT,
        );
        let agent = agent.map_err(io::Error::other)?;
        Ok(Receiver::Http { agent, url, kind, authorization })
    }
}

impl Exporter {
    pub fn start(sink: Sink, scenario: &str) -> io::Result<Self> {
        let (queue, bodies) = sync_channel(QUEUE_MAX);
        let form = if matches!(sink, Sink::Otlp(_)) { Form::Otlp } else { Form::Lines };
        let receiver = sink.open()?;
        let thread = std::thread::Builder::new()
            .name("export".to_owned())
            .spawn(move || push_all(receiver, &bodies))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            form,
            scenario: scenario.to_owned(),
            started_ns: now_ns(),
            left_out: 0,
        })
    }

    pub fn update(&mut self, progress: &Progress<'_>) {
        let figures = figures(progress);
        let body = match self.form {
            Form::Lines => line(&self.scenario, progress.stage, &figures, now_ns()),
            Form::Otlp => {
                let times = (self.started_ns, now_ns());
                otlp(&self.scenario, progress.stage, &figures, times).to_string()
            }
        };
        let sent = self.queue.as_ref().map(|queue| queue.try_send(body));
        if let Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) = sent {
            self.left_out += 1;
        }
    }

    /// Waits until all is sent, and says what was not.
    pub fn finish(mut self) -> Option<String> {
        self.queue = None;
        let told = self.thread.take()?.join().unwrap_or_default();
        let missing = told.failed + self.left_out;
        (missing > 0).then(|| {
            let why = if told.last.is_empty() { "the receiver was too slow" } else { &told.last };
            format!("{missing} seconds of metrics were not delivered: {why}")
        })
    }
}

/// An open sink.
enum Receiver {
    File(File),
    Http { agent: ureq::Agent, url: String, kind: &'static str, authorization: Option<String> },
}

impl Receiver {
    fn push(&mut self, body: &str) -> io::Result<()> {
        let (agent, url, kind, authorization) = match self {
            Self::File(file) => return file.write_all(body.as_bytes()),
            Self::Http { agent, url, kind, authorization } => (agent, url, kind, authorization),
        };
        let mut request = agent.post(&*url).content_type(*kind);
        if let Some(authorization) = authorization {
            request = request.header("Authorization", &*authorization);
        }
        match request.send(body).map_err(ureq::Error::into_io)?.status() {
            status if status.is_success() => Ok(()),
            status => Err(io::Error::other(format!("{url} answered `{status}`"))),
        }
    }
}

fn push_all(mut receiver: Receiver, bodies: &mpsc::Receiver<String>) -> Told {
    let mut told = Told::default();
    for body in bodies {
        if let Err(error) = receiver.push(&body) {
            told.failed += 1;
            told.last = error.to_string();
        }
    }
    told
}

/// With a path where it has none.
fn address(text: &str, path: &str) -> Result<String, String> {
    web::http_url(text, 80, path)
        .map_err(|why| format!("`{text}` {why}; write one like http://127.0.0.1:8086{path}"))
}

fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// One live figure.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
    /// Counts from the start of the run on, and only rises.
    is_total: bool,
}

fn figures(progress: &Progress<'_>) -> Vec<Figure> {
    let (second, totals) = (progress.second, progress.totals);
    let gauge = |name, unit, value: f64| Figure { name, unit, value, is_total: false };
    let total = |name, value: u64| Figure { name, unit: "1", value: value as f64, is_total: true };
    let mut all = vec![
        gauge("connections", "1", second.connections as f64),
        gauge("scheduled_per_sec", "1/s", second.scheduled as f64),
        gauge("published_per_sec", "1/s", second.published as f64),
        gauge("received_per_sec", "1/s", second.received as f64),
        gauge("backlog", "1", second.backlog as f64),
        gauge("lost", "1", second.lost_so_far as f64),
        gauge("duplicated", "1", second.duplicated_so_far as f64),
        total("connects_total", totals.connects_ok),
        total("connect_failures_total", totals.connects_failed),
        total("connections_lost_total", totals.connections_lost),
        total("published_total", totals.published_all()),
        total("acknowledged_total", totals.acknowledged),
        total("received_total", totals.received_all()),
    ];
    if second.end_to_end.count > 0 {
        all.push(gauge("latency_average_us", "us", second.end_to_end.average_us));
        all.push(gauge("latency_p50_us", "us", second.end_to_end.p50_us as f64));
        all.push(gauge("latency_p99_us", "us", second.end_to_end.p99_us as f64));
        all.push(gauge("latency_max_us", "us", second.end_to_end.max_us as f64));
    }
    if second.connect.count > 0 {
        all.push(gauge("connect_latency_p99_us", "us", second.connect.p99_us as f64));
    }
    if let Some(percent) = progress.broker_cpu_percent {
        all.push(gauge("broker_cpu_cores", "1", percent / 100.0));
    }
    if let Some(memory) = progress.broker_memory_bytes {
        all.push(gauge("broker_memory_bytes", "By", memory as f64));
    }
    all
}

/// The line protocol: measurement, tags, fields, time.
fn line(scenario: &str, stage: &str, figures: &[Figure], at_ns: u128) -> String {
    let tag = |text: &str| {
        let mut out = String::new();
        // A backslash stands for itself, unless it comes before what has to be escaped: the last
        // one of a tag would take the comma behind it.
        for symbol in text.trim_end_matches('\\').chars().filter(|symbol| *symbol != '\n') {
            if ",= ".contains(symbol) {
                out.push('\\');
            }
            out.push(symbol);
        }
        if out.is_empty() { "none".to_owned() } else { out }
    };
    let mut text = format!("flock,scenario={},stage={}", tag(scenario), tag(stage));
    for (n, figure) in figures.iter().enumerate() {
        let separator = if n == 0 { ' ' } else { ',' };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{}={}", figure.name, figure.value);
    }
    let _ = writeln!(text, " {at_ns}");
    text
}

fn otlp(scenario: &str, stage: &str, figures: &[Figure], times: (u128, u128)) -> Value {
    let (started_ns, at_ns) = (times.0.to_string(), times.1.to_string());
    let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let metrics: Vec<Value> = figures
        .iter()
        .map(|figure| {
            let point = json!({
                "attributes": [attribute("stage", stage)],
                "startTimeUnixNano": started_ns,
                "timeUnixNano": at_ns,
                "asDouble": figure.value,
            });
            let (kind, data) = match figure.is_total {
                true => (
                    "sum",
                    // 2 is cumulative.
                    json!({"dataPoints": [point], "aggregationTemporality": 2, "isMonotonic": true}),
                ),
                false => ("gauge", json!({"dataPoints": [point]})),
            };
            let name = format!("flock.{}", figure.name);
            json!({"name": name, "unit": figure.unit, kind: data})
        })
        .collect();
    json!({"resourceMetrics": [{
        "resource": {"attributes": [
            attribute("service.name", "flock"),
            attribute("flock.scenario", scenario),
        ]},
        "scopeMetrics": [{
            "scope": {"name": "flock", "version": env!("CARGO_PKG_VERSION")},
            "metrics": metrics,
        }],
    }]})
}

/// Seconds that wait for the receiver; later ones are left out.
const QUEUE_MAX: usize = 60;
const TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::net::TcpListener;

    use super::*;
    use flock_measure::{LatencyPoint, Second, Totals};
    use flock_model::Length;

    fn second() -> (Second, Totals) {
        let end_to_end = LatencyPoint { count: 3, p99_us: 70, ..LatencyPoint::default() };
        let second = Second { published: 5, received: 10, end_to_end, ..Second::default() };
        (second, Totals { acknowledged: 9, ..Totals::default() })
    }

    fn progress<'a>(second: &'a Second, totals: &'a Totals) -> Progress<'a> {
        Progress {
            stage: "pub lish",
            second,
            totals,
            clients: 2,
            agents: &[],
            length: Length { us: 75_000_000, is_open: false },
            broker_cpu_percent: Some(150.0),
            broker_memory_bytes: None,
        }
    }

    /// Takes requests until one says stop, and gives back head and body of each.
    fn receiver(answers: usize) -> (String, JoinHandle<Vec<(String, String)>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            for _ in 0..answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                    head.push_str(&line);
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
                seen.push((head, String::from_utf8(body).unwrap()));
            }
            seen
        });
        (address, thread)
    }

    #[test]
    fn influx_gets_a_line_a_second() {
        let (address, seen) = receiver(2);
        let sink = Sink::influx(&format!("http://{address}")).unwrap();
        let mut exporter = Exporter::start(sink, "MB-B1").unwrap();
        let (second, totals) = second();
        exporter.update(&progress(&second, &totals));
        exporter.update(&progress(&second, &totals));
        assert_eq!(exporter.finish(), None);
        let seen = seen.join().unwrap();
        assert!(seen[0].0.starts_with("POST /write?db=flock HTTP/1.1"), "{}", seen[0].0);
        let line = &seen[1].1;
        assert!(line.starts_with("flock,scenario=MB-B1,stage=pub\\ lish connections=0,"), "{line}");
        for part in ["published_per_sec=5", "latency_p99_us=70", "broker_cpu_cores=1.5"] {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
        let time = line.trim().rsplit(' ').next().unwrap();
        assert!(line.ends_with('\n') && time.parse::<u128>().unwrap() > 1_000_000_000_000_000_000);
    }

    #[test]
    fn names_are_escaped_as_influxdb_reads_them() {
        let text = line(r#"a\b,"c" d=\"#, "", &[], 1);
        assert_eq!(text, "flock,scenario=a\\b\\,\"c\"\\ d\\=,stage=none 1\n");
    }

    #[test]
    fn open_telemetry_gets_gauges_and_sums() {
        let (address, seen) = receiver(1);
        let sink = Sink::otlp(&format!("http://{address}/")).unwrap();
        let mut exporter = Exporter::start(sink, "MB-B1").unwrap();
        let (second, totals) = second();
        exporter.update(&progress(&second, &totals));
        assert_eq!(exporter.finish(), None);
        let seen = seen.join().unwrap();
        assert!(seen[0].0.starts_with("POST /v1/metrics HTTP/1.1"), "{}", seen[0].0);
        let body: Value = serde_json::from_str(&seen[0].1).unwrap();
        let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
        let sum = &named("flock.acknowledged_total")["sum"];
        assert_eq!(
            (&sum["isMonotonic"], &sum["aggregationTemporality"]),
            (&json!(true), &json!(2))
        );
        assert_eq!(sum["dataPoints"][0]["asDouble"], json!(9.0));
        let gauge = &named("flock.received_per_sec")["gauge"]["dataPoints"][0];
        assert_eq!(gauge["asDouble"], json!(10.0));
    }

    #[test]
    fn a_receiver_that_is_not_there_is_told_and_holds_nothing_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let sink = Sink::otlp(&format!("http://{address}")).unwrap();
        let mut exporter = Exporter::start(sink, "x").unwrap();
        let (second, totals) = second();
        for _ in 0..QUEUE_MAX * 3 {
            exporter.update(&progress(&second, &totals));
        }
        let said = exporter.finish().unwrap();
        assert!(said.starts_with(&format!("{} seconds", QUEUE_MAX * 3)), "{said}");
    }

    #[test]
    fn addresses() {
        let url = |text: &str| address(text, "/x");
        assert_eq!(url("http://h").unwrap(), "http://h:80/x");
        assert_eq!(url("https://h:9/a?b=c").unwrap(), "https://h:9/a?b=c");
        assert!(url("ftp://h").is_err() && url("http://").is_err());
        assert_eq!(Sink::influx("a.txt"), Ok(Sink::InfluxFile("a.txt".to_owned())));
    }
}
