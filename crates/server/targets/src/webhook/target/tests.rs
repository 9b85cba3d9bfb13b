use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::batch::Answer;
use crate::dial::System;
use crate::networks::Networks;
use crate::secret::Secret;

/// What a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request as it arrived.
#[derive(Clone, Debug)]
struct Got {
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// Status, headers and body, or nothing: it closes the connection.
type Reply = Option<(u16, Vec<(&'static str, String)>, String)>;

/// An endpoint that answers as a test wants.
fn endpoint(answer: impl Fn(&Got) -> Reply + Send + Clone + 'static) -> (String, Receiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/in?key=1", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, sender, answer) = (stream.unwrap(), sender.clone(), answer.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut writer = stream;
                while let Some(got) = read_request(&mut reader) {
                    let reply = answer(&got);
                    let _ = sender.send(got);
                    let Some((status, headers, body)) = reply else { return };
                    let mut text = format!("HTTP/1.1 {status} Fine\r\n");
                    for (name, value) in headers {
                        text += &format!("{name}: {value}\r\n");
                    }
                    text += &format!("content-length: {}\r\n\r\n{body}", body.len());
                    if writer.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, requests)
}

fn read_request(reader: &mut impl BufRead) -> Option<Got> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        headers.push((name.to_owned(), value.to_owned()));
    }
    let mut got = Got { line: line.trim_end().to_owned(), headers, body: String::new() };
    let bytes = got.header("content-length").map_or(0, |it| it.parse().unwrap());
    let mut body = vec![0; bytes];
    reader.read_exact(&mut body).ok()?;
    got.body = String::from_utf8(body).unwrap();
    Some(got)
}

fn ok(_: &Got) -> Reply {
    status(204)
}

fn status(code: u16) -> Reply {
    Some((code, Vec::new(), String::new()))
}

struct Lab {
    _threads: Threads,
    target: Webhook,
    answers: Receiver<Answer>,
}

impl Lab {
    fn new(url: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::new(url);
        settings.networks = Networks::permitting(vec!["127.0.0.0/8".parse().unwrap()]);
        change(&mut settings);
        let threads = Threads::start().unwrap();
        let (sender, answers) = channel();
        let hear = Arc::new(move |answer| drop(sender.send(answer)));
        let target = Webhook::start(&threads, settings, Arc::new(System), hear).unwrap();
        Self { _threads: threads, target, answers }
    }

    fn send(&self, values: &[&str]) -> Vec<Outcome> {
        let records = values.iter().map(|value| record(value)).collect();
        self.send_records(records)
    }

    fn send_records(&self, records: Vec<Record>) -> Vec<Outcome> {
        self.target.send(Batch { id: 7, records, is_alone: false }).unwrap();
        self.answers.recv_timeout(PATIENCE).unwrap().outcomes
    }
}

fn record(value: &str) -> Record {
    Record {
        topic: "".into(),
        key: None,
        value: Bytes::copy_from_slice(value.as_bytes()),
        headers: vec![
            ("content-type".to_owned(), Bytes::from_static(b"application/json")),
            ("ce-id".to_owned(), Bytes::from_static(b"id-1")),
        ],
        time_ms: None,
    }
}

fn one(requests: &Receiver<Got>) -> Got {
    requests.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn an_event_arrives_with_its_headers_and_those_of_the_settings() {
    let (url, requests) = endpoint(ok);
    let lab = Lab::new(&url, |settings| {
        settings.headers.push(("Authorization".to_owned(), Secret::Text("Bearer t".to_owned())));
        settings.signature = Some(Secret::Text("whsec_c2VjcmV0".to_owned()));
    });
    assert_eq!(lab.send(&["{\"a\":1}", "{\"a\":2}"]), [Outcome::Accepted, Outcome::Accepted]);
    let got = one(&requests);
    assert_eq!(got.line, "POST /in?key=1 HTTP/1.1");
    assert_eq!(got.body, "{\"a\":1}");
    for (name, value) in [
        ("content-type", "application/json"),
        ("ce-id", "id-1"),
        ("authorization", "Bearer t"),
        ("webhook-id", "id-1"),
        ("host", &url["http://".len()..url.rfind('/').unwrap()]),
    ] {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
    let at = got.header("webhook-timestamp").unwrap().parse().unwrap();
    let expected = sign("whsec_c2VjcmV0", Some("id-1"), at, got.body.as_bytes());
    assert_eq!(got.header("webhook-signature"), Some(&*expected.signature));
    assert_eq!(one(&requests).body, "{\"a\":2}", "over the same connection, or another");
}

#[test]
fn a_batch_is_one_array() {
    let (url, requests) = endpoint(ok);
    let lab = Lab::new(&url, |settings| settings.is_batched = true);
    assert_eq!(lab.send(&["{}", "[1]"]), [Outcome::Accepted, Outcome::Accepted]);
    let got = one(&requests);
    assert_eq!(got.body, "[{},[1]]");
    let batch = "application/cloudevents-batch+json; charset=utf-8";
    assert_eq!(got.header("content-type"), Some(batch));
}

#[test]
fn a_refused_event_is_named_and_a_refused_batch_is_not() {
    let refuses = |got: &Got| status(if got.body.contains("bad") { 400 } else { 200 });
    let (url, _requests) = endpoint(refuses);
    let lab = Lab::new(&url, |_| {});
    let outcomes = lab.send(&["good", "bad", "good"]);
    assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Accepted, &Outcome::Accepted));
    assert!(matches!(&outcomes[1], Outcome::Refused(why) if why.contains("400")));
    let lab = Lab::new(&url, |settings| settings.is_batched = true);
    let outcomes = lab.send(&["good", "bad"]);
    assert!(outcomes.iter().all(|it| matches!(it, Outcome::BatchRefused(_))), "{outcomes:?}");
    assert!(matches!(lab.send(&["bad"])[..], [Outcome::Refused(_)]));
}

#[test]
fn nothing_is_sent_behind_an_event_without_a_decision() {
    let fails = |got: &Got| status(if got.body == "2" { 500 } else { 200 });
    let (url, requests) = endpoint(fails);
    let lab = Lab::new(&url, |_| {});
    let outcomes = lab.send(&["1", "2", "3"]);
    assert_eq!(outcomes[0], Outcome::Accepted);
    assert!(matches!(&outcomes[1], Outcome::Unknown(why) if why.contains("500")));
    assert!(matches!(&outcomes[2], Outcome::Unknown(why) if why.contains("not sent")));
    assert_eq!((one(&requests).body, one(&requests).body), ("1".to_owned(), "2".to_owned()));
    assert!(requests.try_recv().is_err());
}

#[test]
fn an_endpoint_that_hangs_closes_or_is_away_costs_its_own_time_only() {
    let (url, requests) = endpoint(|got| match &*got.body {
        "hang" => {
            std::thread::sleep(Duration::from_millis(1500));
            None
        }
        _ => None,
    });
    let lab = Lab::new(&url, |settings| settings.request_time_max = Duration::from_secs(1));
    assert!(matches!(&lab.send(&["close"])[..], [Outcome::Unknown(_)]));
    let [Outcome::Unknown(why)] = &lab.send(&["hang"])[..] else { panic!() };
    assert!(why.contains("no answer within 1 s"), "{why}");
    drop(requests);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let lab = Lab::new(&format!("http://{free}/"), |_| {});
    assert!(matches!(&lab.send(&["x"])[..], [Outcome::Unavailable(_)]));
}

#[test]
fn an_endpoint_in_an_own_network_needs_permission() {
    let (url, requests) = endpoint(ok);
    let lab = Lab::new(&url, |settings| settings.networks = Networks::default());
    let [Outcome::Unavailable(why)] = &lab.send(&["x"])[..] else { panic!() };
    assert!(why.contains("in a network of this machine"), "{why}");
    assert!(requests.try_recv().is_err());
}

#[test]
fn no_event_is_sent_before_the_endpoint_consents() {
    let consents = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let known = consents.clone();
    let (url, requests) = endpoint(move |got| {
        let consents = known.load(std::sync::atomic::Ordering::Relaxed);
        match got.line.starts_with("OPTIONS") {
            true if consents => {
                Some((200, vec![("WebHook-Allowed-Origin", "*".to_owned())], String::new()))
            }
            _ => status(200),
        }
    });
    let cloud_events = |settings: &mut Settings| {
        settings.validation = Validation::CloudEvents { origin: "broker.example".to_owned() };
    };
    let lab = Lab::new(&url, cloud_events);
    let [Outcome::Unavailable(why)] = &lab.send(&["x"])[..] else { panic!() };
    assert!(why.contains("does not consent"), "{why}");
    let asked = one(&requests);
    assert_eq!(asked.line, "OPTIONS /in?key=1 HTTP/1.1");
    assert_eq!(asked.header("webhook-request-origin"), Some("broker.example"));
    assert!(matches!(&lab.send(&["x"])[..], [Outcome::Unavailable(_)]));
    assert!(requests.try_recv().is_err(), "it is not asked again at once");
    consents.store(true, std::sync::atomic::Ordering::Relaxed);
    let lab = Lab::new(&url, cloud_events);
    assert_eq!(lab.send(&["x", "y"]), [Outcome::Accepted, Outcome::Accepted]);
    let lines: Vec<String> = (0..3).map(|_| one(&requests).line).collect();
    let is_options: Vec<bool> = lines.iter().map(|line| line.starts_with("OPTIONS")).collect();
    assert_eq!(is_options, [true, false, false], "once");
}

#[test]
fn the_validation_event_of_event_grid_is_answered_with_its_code() {
    let returns = |got: &Got| {
        if got.header("aeg-event-type") != Some("SubscriptionValidation") {
            return status(200);
        }
        let event: serde_json::Value = serde_json::from_str(&got.body).unwrap();
        let code = event[0]["data"]["validationCode"].as_str().unwrap().to_owned();
        Some((200, Vec::new(), format!("{{\"validationResponse\":\"{code}\"}}")))
    };
    let (url, _requests) = endpoint(returns);
    let lab = Lab::new(&url, |settings| settings.validation = Validation::EventGrid);
    assert_eq!(lab.send(&["x"]), [Outcome::Accepted]);
    let (url, _requests) = endpoint(ok);
    let lab = Lab::new(&url, |settings| settings.validation = Validation::EventGrid);
    let [Outcome::Unavailable(why)] = &lab.send(&["x"])[..] else { panic!() };
    assert!(why.contains("validationResponse"), "{why}");
}

#[test]
fn an_endpoint_that_is_gone_is_not_asked_again() {
    let (url, requests) = endpoint(|_| status(410));
    let lab = Lab::new(&url, |_| {});
    for _ in 0..2 {
        let [Outcome::Unavailable(why)] = &lab.send(&["x"])[..] else { panic!() };
        assert!(why.contains("410"), "{why}");
    }
    one(&requests);
    assert!(requests.try_recv().is_err());
}

#[test]
fn redirects_are_not_followed() {
    let (other, elsewhere) = endpoint(ok);
    let (url, _requests) =
        endpoint(move |_| Some((307, vec![("Location", other.clone())], String::new())));
    let lab = Lab::new(&url, |_| {});
    let [Outcome::Unavailable(why)] = &lab.send(&["x"])[..] else { panic!() };
    assert!(why.contains("redirects are not followed"), "{why}");
    assert!(elsewhere.try_recv().is_err());
}

#[test]
fn a_header_that_http_does_not_permit_refuses_its_event_only() {
    let (url, requests) = endpoint(ok);
    let lab = Lab::new(&url, |_| {});
    let mut records = vec![record("a"), record("b"), record("c")];
    records[0].headers.push(("x".to_owned(), Bytes::from_static(b"two\r\nlines")));
    records[1].headers.push(("host".to_owned(), Bytes::from_static(b"other.example")));
    let outcomes = lab.send_records(records);
    assert!(matches!(&outcomes[0], Outcome::Refused(why) if why.contains("header `x`")));
    assert!(matches!(&outcomes[1], Outcome::Refused(why) if why.contains("header `host`")));
    assert_eq!(outcomes[2], Outcome::Accepted);
    assert_eq!(one(&requests).body, "c");
}
