//! Sends numbered records to Kafka and says what became of them, for the tests in `tests/kafka` and
//! to measure the client. Each lane has some of the keys and one batch under way.
//!
//! It prints lines of JSON: `{"accepted": N}` after each `--progress` records, `{"first": KIND}` with
//! the first outcome of a kind, `{"failed": N}` when twice as many as last time were not stored for
//! sure, and a summary.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use targets::kafka::{Kafka, Login, Settings, TokenEndpoint};
use targets::{
    Answer, Batch, Networks, Outcome, Record, Secret, System, Target, Threads, TlsFiles,
};

struct Options {
    settings: Settings,
    topic: Arc<str>,
    count: u64,
    size: usize,
    keys: u64,
    lanes: u64,
    batch: usize,
    /// Number and size of the one record that has another size.
    large: Option<(u64, usize)>,
    progress: u64,
    give_up: Duration,
    /// Records per second. 0: no limit.
    rate: u64,
}

struct Lane {
    number: u64,
    /// What comes after all that was sent once.
    next: u64,
    again: VecDeque<u64>,
    under_way: Option<Vec<u64>>,
    is_probing: bool,
    not_before: Instant,
}

#[derive(Default)]
struct Results {
    accepted: u64,
    failed: u64,
    refused: Vec<u64>,
    counts: BTreeMap<&'static str, u64>,
    reasons: BTreeMap<&'static str, BTreeSet<String>>,
}

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let (answered, answers) = channel::<Answer>();
    let threads = Threads::start()?;
    let report = Arc::new(move |answer| {
        let _ = answered.send(answer);
    });
    let target = Kafka::start(&threads, options.settings.clone(), Arc::new(System), report)?;
    let started = Instant::now();
    let mut results = Results::default();
    let mut lanes: Vec<Lane> = (0..options.lanes.min(options.keys)).map(Lane::new).collect();
    let mut said = 0;
    while lanes.iter().any(|lane| !lane.is_done(&options)) && started.elapsed() < options.give_up {
        let due = due(&options, started);
        for lane in &mut lanes {
            if let Some(batch) = lane.batch(&options, due) {
                target.send(batch).map_err(|_| anyhow!("the queue of the target is full"))?;
            }
        }
        match answers.recv_timeout(Duration::from_millis(1)) {
            Ok(answer) => {
                lanes[answer.id as usize].take(&answer, &mut results);
                while let Ok(answer) = answers.try_recv() {
                    lanes[answer.id as usize].take(&answer, &mut results);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(error) => bail!("{error}"),
        }
        if results.accepted / options.progress > said {
            said = results.accepted / options.progress;
            println!("{}", json!({ "accepted": results.accepted }));
        }
    }
    results.print(started);
    Ok(())
}

/// How many records may have been sent by now.
fn due(options: &Options, started: Instant) -> u64 {
    match options.rate {
        0 => u64::MAX,
        rate => (started.elapsed().as_secs_f64() * rate as f64) as u64,
    }
}

impl Lane {
    fn new(number: u64) -> Self {
        let (again, not_before) = (VecDeque::new(), Instant::now());
        Self { number, next: number, again, under_way: None, is_probing: false, not_before }
    }

    fn is_done(&self, options: &Options) -> bool {
        self.under_way.is_none() && self.again.is_empty() && self.next >= options.count
    }

    fn batch(&mut self, options: &Options, due: u64) -> Option<Batch> {
        if self.under_way.is_some() || Instant::now() < self.not_before {
            return None;
        }
        let max = if self.is_probing { 1 } else { options.batch };
        let mut numbers: Vec<u64> = Vec::with_capacity(max);
        while numbers.len() < max {
            if let Some(number) = self.again.pop_front() {
                numbers.push(number);
            } else if self.next < options.count.min(due) && !self.is_probing {
                numbers.push(self.next);
                self.next += 1;
                while self.next % options.keys % options.lanes != self.number {
                    self.next += 1;
                }
            } else {
                break;
            }
        }
        if numbers.is_empty() {
            return None;
        }
        let records = numbers.iter().map(|number| record(options, *number)).collect();
        self.under_way = Some(numbers);
        Some(Batch { id: self.number, records, is_alone: self.is_probing })
    }

    fn take(&mut self, answer: &Answer, results: &mut Results) {
        let numbers = self.under_way.take().unwrap_or_default();
        for (number, outcome) in numbers.into_iter().zip(&answer.outcomes).rev() {
            match outcome {
                Outcome::Accepted => results.accepted += 1,
                Outcome::Refused(_) => results.refused.push(number),
                _ => self.again.push_front(number),
            }
            let kind = results.count(outcome);
            match kind {
                "batch_refused" => self.is_probing = true,
                "accepted" | "refused" => {}
                _ => self.not_before = Instant::now() + Duration::from_millis(200),
            }
        }
        self.is_probing &= !self.again.is_empty();
    }
}

impl Results {
    fn count(&mut self, outcome: &Outcome) -> &'static str {
        let (kind, reason) = match outcome {
            Outcome::Accepted => ("accepted", None),
            Outcome::Refused(reason) => ("refused", Some(reason)),
            Outcome::BatchRefused(reason) => ("batch_refused", Some(reason)),
            Outcome::Unknown(reason) => ("unknown", Some(reason)),
            Outcome::BusyUntil(_, reason) => ("busy", Some(reason)),
            Outcome::Unavailable(reason) => ("unavailable", Some(reason)),
        };
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count == 1 {
            println!("{}", json!({ "first": kind }));
        }
        if matches!(kind, "unknown" | "unavailable") {
            self.failed += 1;
            if self.failed.is_power_of_two() {
                println!("{}", json!({ "failed": self.failed }));
            }
        }
        let reasons = self.reasons.entry(kind).or_default();
        if let Some(reason) = reason
            && reasons.len() < REASONS_MAX
        {
            reasons.insert(reason.to_string());
        }
        kind
    }

    fn print(&self, started: Instant) {
        let summary = json!({
            "accepted": self.accepted,
            "refused": self.refused,
            "counts": self.counts,
            "reasons": self.reasons,
            "cpu_ms": cpu_ms(),
            "wall_ms": started.elapsed().as_millis() as u64,
        });
        println!("{summary}");
    }
}

fn record(options: &Options, number: u64) -> Record {
    let size = match options.large {
        Some((large, size)) if large == number => size,
        _ => options.size,
    };
    let mut value = format!("{number:012}").into_bytes();
    value.resize(size.max(value.len()), b'x');
    Record {
        topic: Arc::clone(&options.topic),
        key: Some(format!("key-{}", number % options.keys).into()),
        value: value.into(),
        headers: vec![
            ("ce_id".to_owned(), number.to_string().into()),
            ("ce_type".to_owned(), "test".into()),
        ],
        time_ms: None,
    }
}

/// Of this process, all threads.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    10 * ticks
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            settings: Settings::new(Vec::new()),
            topic: "test".into(),
            count: 1000,
            size: 64,
            keys: 64,
            lanes: 32,
            batch: 500,
            large: None,
            progress: 10_000,
            give_up: Duration::from_secs(300),
            rate: 0,
        };
        let mut permitted = Vec::new();
        while let Some(name) = arguments.next() {
            let value = arguments.next().with_context(|| format!("{name}: needs a value"))?;
            let number = || value.parse::<u64>().with_context(|| format!("{name} {value}"));
            match name.as_str() {
                "--topic" => options.topic = value.as_str().into(),
                "--count" => options.count = number()?,
                "--size" => options.size = number()? as usize,
                "--keys" => options.keys = number()?,
                "--lanes" => options.lanes = number()?,
                "--batch" => options.batch = number()? as usize,
                "--progress" => options.progress = number()?,
                "--give-up-ms" => options.give_up = Duration::from_millis(number()?),
                "--rate" => options.rate = number()?,
                "--large" => {
                    let (number, size) = value.split_once(':').context("--large NUMBER:SIZE")?;
                    options.large = Some((number.parse()?, size.parse()?));
                }
                "--permit" => permitted.push(value.parse()?),
                _ => set(&mut options.settings, &name, &value)?,
            }
        }
        options.settings.networks = Networks::permitting(permitted);
        Ok(options)
    }
}

fn set(settings: &mut Settings, name: &str, value: &str) -> Result<()> {
    let tls = |settings: &mut Settings| settings.tls.take().unwrap_or_default();
    match name {
        "--servers" => settings.servers = value.split(',').map(str::to_owned).collect(),
        "--compression" => settings.compression = value.parse()?,
        "--record-bytes-max" => settings.record_bytes_max = value.parse()?,
        "--request-ms" => settings.request_time_max = Duration::from_millis(value.parse()?),
        "--delivery-ms" => settings.delivery_time_max = Duration::from_millis(value.parse()?),
        "--linger-ms" => settings.linger = Duration::from_millis(value.parse()?),
        "--ca" => {
            settings.tls = Some(TlsFiles { ca: Some(value.into()), ..tls(settings) });
        }
        "--certificate" => {
            settings.tls = Some(TlsFiles { certificate: Some(value.into()), ..tls(settings) });
        }
        "--key" => settings.tls = Some(TlsFiles { key: Some(value.into()), ..tls(settings) }),
        "--login" => settings.login = Some(login(value)?),
        "--token-url" => match &mut settings.login {
            Some(Login::OAuthBearerFrom(endpoint)) => endpoint.url = value.to_owned(),
            _ => bail!("--token-url needs --login oauthbearer-from:ID:FILE before it"),
        },
        _ => bail!("unknown option {name}"),
    }
    Ok(())
}

/// `plain:NAME:FILE`, `scram-sha-256:NAME:FILE`, `scram-sha-512:NAME:FILE`, `oauthbearer::FILE`, or
/// `oauthbearer-from:ID:FILE` with a `--token-url` behind it.
fn login(text: &str) -> Result<Login> {
    let mut parts = text.splitn(3, ':');
    let mut part = || parts.next().map(str::to_owned).context("--login MECHANISM:NAME:FILE");
    let (mechanism, username) = (part()?, part()?);
    let secret = Secret::File(part()?.into());
    Ok(match mechanism.as_str() {
        "plain" => Login::Plain { username, password: secret },
        "scram-sha-256" => Login::ScramSha256 { username, password: secret },
        "scram-sha-512" => Login::ScramSha512 { username, password: secret },
        "oauthbearer" => Login::OAuthBearer { token: secret },
        "oauthbearer-from" => Login::OAuthBearerFrom(TokenEndpoint {
            url: String::new(),
            client_id: username,
            client_secret: secret,
            scope: None,
            ca: None,
        }),
        _ => bail!("unknown mechanism {mechanism}"),
    })
}

const REASONS_MAX: usize = 5;
