//! Servers that are away, hang or answer garbage: each batch gets its answer, and nothing blocks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use targets::kafka::{Kafka, Login, Settings};
use targets::{Answer, Batch, Full, Networks, Outcome, Record, Secret, System, Target, Threads};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(server: SocketAddr) -> Settings {
    Settings {
        networks: Networks::permitting(vec!["127.0.0.0/8".parse().expect("a network")]),
        request_time_max: Duration::from_millis(300),
        delivery_time_max: Duration::from_millis(600),
        ..Settings::new(vec![server.to_string()])
    }
}

fn start(threads: &Threads, settings: Settings) -> (Kafka, Receiver<Answer>) {
    let (answered, answers) = channel();
    let report = Arc::new(move |answer| {
        let _ = answered.send(answer);
    });
    let target = Kafka::start(threads, settings, Arc::new(System), report);
    (target.expect("valid settings"), answers)
}

fn batch(id: u64) -> Batch {
    let record = Record {
        topic: "t".into(),
        key: Some("k".into()),
        value: "v".into(),
        headers: Vec::new(),
        time_ms: None,
    };
    Batch { id, records: vec![record.clone(), record], is_alone: false }
}

/// A server that treats each connection so.
fn server(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads until the other side closes.
fn hang(mut stream: TcpStream) {
    while matches!(stream.read(&mut [0; 1024]), Ok(1..)) {}
}

fn garble(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 1024]);
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
}

fn reasons(answer: &Answer) -> Vec<String> {
    let reasons = answer.outcomes.iter().map(|outcome| match outcome {
        Outcome::Unavailable(reason) | Outcome::Unknown(reason) => reason.to_string(),
        outcome => panic!("{outcome:?}"),
    });
    reasons.collect()
}

#[test]
fn a_server_that_is_away_is_named() {
    let threads = Threads::start().unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (target, answers) = start(&threads, settings(nobody));
    target.send(batch(7)).unwrap();
    let answer = answers.recv_timeout(PATIENCE).unwrap();
    assert_eq!((answer.id, answer.outcomes.len()), (7, 2));
    assert!(matches!(answer.outcomes[0], Outcome::Unavailable(_)));
    assert!(reasons(&answer)[0].contains(&format!("cannot connect to {nobody}")));
}

#[test]
fn a_server_that_hangs_blocks_neither_the_caller_nor_another_target() {
    let threads = Threads::start().unwrap();
    let (hanging, answers) = start(&threads, settings(server(hang)));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (other, others) = start(&threads, settings(nobody));
    let mut accepted = 0;
    let full = loop {
        match hanging.send(batch(accepted)) {
            Ok(()) => accepted += 1,
            Err(Full(batch)) => break batch,
        }
        assert!(accepted < 10_000, "the queue has a limit");
    };
    assert_eq!(full.id, accepted);
    other.send(batch(1)).unwrap();
    assert!(others.recv_timeout(PATIENCE).is_ok());
    let mut ids: Vec<u64> = (0..accepted)
        .map(|_| {
            let answer = answers.recv_timeout(PATIENCE).unwrap();
            assert!(matches!(answer.outcomes[..], [Outcome::Unavailable(_), _]), "{answer:?}");
            answer.id
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..accepted).collect::<Vec<_>>());
}

#[test]
fn a_server_that_answers_garbage_is_unavailable() {
    let threads = Threads::start().unwrap();
    let (target, answers) = start(&threads, settings(server(garble)));
    target.send(batch(1)).unwrap();
    let answer = answers.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(answer.outcomes[0], Outcome::Unavailable(_)), "{answer:?}");
}

#[test]
fn batches_have_answers_when_all_is_stopped() {
    let threads = Threads::start().unwrap();
    let slow = Settings {
        request_time_max: Duration::from_secs(60),
        delivery_time_max: Duration::from_secs(100),
        ..settings(server(hang))
    };
    let (target, answers) = start(&threads, slow);
    for id in 0..3 {
        target.send(batch(id)).unwrap();
    }
    let stopping = Instant::now();
    drop(threads);
    assert!(stopping.elapsed() < PATIENCE / 2);
    for _ in 0..3 {
        let answer = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!(reasons(&answer), ["the target was stopped", "the target was stopped"]);
    }
    assert!(target.send(batch(9)).is_err(), "a stopped target takes nothing");
}

#[test]
fn a_password_file_that_is_missing_is_named() {
    let threads = Threads::start().unwrap();
    let password = Secret::File("/nowhere/password".into());
    let login = Some(Login::Plain { username: "ann".into(), password });
    let (target, answers) = start(&threads, Settings { login, ..settings(server(hang)) });
    target.send(batch(1)).unwrap();
    let answer = answers.recv_timeout(PATIENCE).unwrap();
    assert!(reasons(&answer)[0].contains("cannot read /nowhere/password"), "{answer:?}");
}
