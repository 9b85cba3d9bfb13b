//! Who gets in: the authenticator as an acceptor uses it.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base::Clock;
use codec::Reason;
use config::{Auth, Config, Machine};
use driver::Origin;
use identity::auth::passwords::user_lines;
use identity::auth::scram::ScramError;
use identity::auth::{Answer, AuthError, AuthRequest, Authenticator, Verdict};

/// A password file that goes away with the test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("quelea-test-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn auth(file: Option<&TempFile>) -> Auth {
    let machine = Machine::UNKNOWN;
    Auth {
        password_file: file.map(|file| file.0.clone()),
        threads: 1,
        ..Config::defaults(&machine).auth
    }
}

fn start(config: &Auth, secret: Option<[u8; 32]>) -> Result<Authenticator, AuthError> {
    Authenticator::start(config, &[], secret, Clock::start())
}

fn request(username: Option<&str>, password: Option<&str>) -> AuthRequest {
    AuthRequest {
        username: username.map(Into::into),
        password: password.map(Into::into),
        ..AuthRequest::default()
    }
}

fn answer() -> (Answer, Receiver<Verdict>) {
    let (sender, receiver) = channel();
    (Box::new(move |verdict| sender.send(verdict).unwrap()), receiver)
}

fn verdict(authenticator: &Authenticator, request: AuthRequest) -> Verdict {
    let (answer, later) = answer();
    let wait = || later.recv_timeout(Duration::from_secs(60)).unwrap();
    authenticator.check(request, answer).unwrap_or_else(wait)
}

/// The reason code of a refusal, whoever it comes from.
fn refused(authenticator: &Authenticator, request: AuthRequest) -> Reason {
    match verdict(authenticator, request) {
        Verdict::Refused(reason) => reason,
        Verdict::Denied(_) => Reason::NOT_AUTHORIZED,
        welcome => panic!("expected a refusal, got {welcome:?}"),
    }
}

fn admitted(name: &str) -> Verdict {
    Verdict::Admitted { username: Some(name.into()), principal: None }
}

/// A service that says these bytes to whoever asks, once.
fn service(answer: String) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        assert!(stream.read(&mut asked).unwrap() > 0);
        stream.write_all(answer.as_bytes()).unwrap();
    });
    url
}

#[test]
fn an_end_that_no_clock_reaches_is_an_end_all_the_same() {
    let body = format!("{{\"result\":\"allow\",\"expire_at\":{}}}", u64::MAX);
    let length = body.len();
    let url = service(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    let text = format!("[[authentication]]\nname = \"s\"\nkind = \"http\"\nurl = \"{url}\"\n");
    let file = config::SourceFile { path: "quelea.toml".into(), text };
    let sources = config::Sources { file: Some(file), ..Default::default() };
    let config = config::load(&sources, &Machine::UNKNOWN).unwrap().config;
    let authenticator =
        Authenticator::start(&config.auth, &config.authentication, None, Clock::start()).unwrap();
    match verdict(&authenticator, request(Some("anna"), None)) {
        Verdict::Admitted { username, principal: Some(principal) } => {
            assert_eq!(username.as_deref(), Some("anna"));
            assert!(principal.expires_at_ms.is_some_and(|end| end < u64::MAX / 2));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn right_passwords_get_in_and_are_remembered() {
    let file = TempFile::new("right", &user_lines("anna", b"s3cret", false).join("\n"));
    let authenticator = start(&auth(Some(&file)), None).unwrap();
    let right = request(Some("anna"), Some("s3cret"));
    let (first, later) = answer();
    assert_eq!(authenticator.check(right.clone(), first), None, "the acceptor does not wait");
    assert_eq!(later.recv_timeout(Duration::from_secs(60)).unwrap(), admitted("anna"));
    let (second, _) = answer();
    assert_eq!(authenticator.check(right, second), Some(admitted("anna")), "the second is quick");
    let bad = Reason::NOT_AUTHORIZED;
    for (user, password) in [("anna", Some("wrong")), ("anna", None), ("eve", Some("s3cret"))] {
        assert_eq!(refused(&authenticator, request(Some(user), password)), bad, "{user}");
    }
}

#[test]
fn anonymous_clients_need_leave() {
    let file = TempFile::new("anonymous", &user_lines("anna", b"s3cret", false).join("\n"));
    for authenticator in
        [start(&auth(Some(&file)), None).unwrap(), start(&auth(None), None).unwrap()]
    {
        let unknown = request(None, None);
        assert_eq!(refused(&authenticator, unknown), Reason::NOT_AUTHORIZED);
        let open = AuthRequest { allow_anonymous: true, ..request(None, None) };
        assert_eq!(
            verdict(&authenticator, open),
            Verdict::Admitted { username: None, principal: None }
        );
    }
}

#[test]
fn a_wrong_password_does_not_get_in_as_anonymous() {
    let file = TempFile::new("fallback", &user_lines("anna", b"s3cret", false).join("\n"));
    let authenticator = start(&auth(Some(&file)), None).unwrap();
    let wrong = AuthRequest { allow_anonymous: true, ..request(Some("anna"), Some("x")) };
    assert_eq!(refused(&authenticator, wrong), Reason::NOT_AUTHORIZED);
    // Without a name it is no credential that anybody takes, and no reason to let it in.
    let nameless = AuthRequest { allow_anonymous: true, ..request(None, Some("x")) };
    assert_eq!(refused(&authenticator, nameless), Reason::NOT_AUTHORIZED);
}

#[test]
fn an_empty_name_is_none_where_clients_without_one_are_admitted() {
    let file = TempFile::new("empty", &user_lines("anna", b"s3cret", false).join("\n"));
    for auth in [auth(Some(&file)), auth(None)] {
        let authenticator = start(&auth, None).unwrap();
        for password in [None, Some(""), Some("x")] {
            let open = AuthRequest { allow_anonymous: true, ..request(Some(""), password) };
            let nameless = Verdict::Admitted { username: None, principal: None };
            assert_eq!(verdict(&authenticator, open), nameless);
            let closed = request(Some(""), password);
            assert_eq!(refused(&authenticator, closed), Reason::NOT_AUTHORIZED);
        }
    }
}

#[test]
fn without_a_password_file_a_name_proves_nothing() {
    let authenticator = start(&auth(None), None).unwrap();
    let open = AuthRequest { allow_anonymous: true, ..request(Some("anna"), Some("any")) };
    assert_eq!(verdict(&authenticator, open), Verdict::Unproved { username: "anna".into() });
    let closed = request(Some("anna"), Some("any"));
    assert_eq!(refused(&authenticator, closed), Reason::NOT_AUTHORIZED);
}

#[test]
fn a_certificate_speaks_for_its_owner() {
    let authenticator = start(&auth(None), None).unwrap();
    let mut shown = request(Some("eve"), Some("x"));
    shown.certificate_identity = Some("anna".into());
    assert_eq!(verdict(&authenticator, shown), admitted("anna"));
}

#[test]
fn a_full_queue_answers_busy() {
    let file = TempFile::new("busy", &user_lines("anna", b"s3cret", false).join("\n"));
    let config = Auth { queue_max: 1, ..auth(Some(&file)) };
    let authenticator = start(&config, None).unwrap();
    // The one thread is held inside the first answer, so what follows can only queue.
    let (release, held) = channel::<()>();
    let (entered, inside) = channel();
    let hold: Answer = Box::new(move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
    });
    assert_eq!(authenticator.check(request(Some("anna"), Some("a")), hold), None);
    inside.recv_timeout(Duration::from_secs(60)).unwrap();
    let (waiting, later) = answer();
    assert_eq!(authenticator.check(request(Some("anna"), Some("b")), waiting), None);
    let (refused, crowded_out) = answer();
    assert_eq!(authenticator.check(request(Some("anna"), Some("c")), refused), None);
    let busy = Verdict::Refused(Reason::SERVER_BUSY);
    assert_eq!(crowded_out.recv_timeout(Duration::from_secs(60)).unwrap(), busy);
    release.send(()).unwrap();
    drop(authenticator);
    later.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn who_is_gone_is_not_checked_and_addresses_take_turns() {
    let file = TempFile::new("turns", &user_lines("anna", b"s3cret", false).join("\n"));
    let authenticator = start(&auth(Some(&file)), None).unwrap();
    let (release, held) = channel::<()>();
    let (entered, inside) = channel();
    let hold: Answer = Box::new(move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
    });
    assert_eq!(authenticator.check(request(Some("anna"), Some("a")), hold), None);
    inside.recv_timeout(Duration::from_secs(60)).unwrap();
    let (sender, answers) = channel();
    let attacker = Origin::V4([192, 0, 2, 66]);
    let ask = |origin, ticket: u64, password| {
        let sender = sender.clone();
        let answer: Answer = Box::new(move |_| sender.send(ticket).unwrap());
        let request = AuthRequest { origin, ticket, ..request(Some("anna"), Some(password)) };
        assert_eq!(authenticator.check(request, answer), None);
    };
    for ticket in 0..4 {
        ask(attacker, ticket, "wrong");
    }
    ask(Origin::V4([192, 0, 2, 1]), 100, "s3cret");
    authenticator.forget(attacker, 0);
    authenticator.forget(attacker, 2);
    release.send(()).unwrap();
    drop(sender);
    let order: Vec<u64> = (0..3).map(|_| answers.recv().unwrap()).collect();
    assert_eq!(order, [1, 100, 3], "one of each in turn, and none of those who are gone");
    assert!(answers.try_recv().is_err());
}

#[test]
fn wrong_passwords_of_an_address_are_paced() {
    let file = TempFile::new("paced", &user_lines("anna", b"s3cret", true).join("\n"));
    let config = Auth { failures_per_second_max: 1, threads: 2, ..auth(Some(&file)) };
    let authenticator = start(&config, None).unwrap();
    let origin = Origin::V4([192, 0, 2, 66]);
    // Wrong proofs cost microseconds, so that the burst is over before there is one more.
    let guess = || {
        let (exchange, _) = authenticator.start_scram(b"n,,n=anna,r=nonce").unwrap();
        authenticator.finish_scram(origin, exchange, b"c=biws,r=x,p=AAAA").unwrap_err()
    };
    let heard = (0..10_000).take_while(|_| guess() == Reason::NOT_AUTHORIZED).count();
    assert!((64..1000).contains(&heard), "{heard} guesses were heard");
    let (exchange, _) = authenticator.start_scram(b"n,,n=anna,r=nonce").unwrap();
    let other = authenticator.finish_scram(Origin::Local, exchange, b"c=biws,r=x,p=AAAA");
    assert_eq!(other.unwrap_err(), Reason::NOT_AUTHORIZED, "another is heard");
}

#[test]
fn a_reload_changes_passwords_at_once_and_a_bad_file_changes_nothing() {
    let file = TempFile::new("reload", &user_lines("anna", b"old", false).join("\n"));
    let config = auth(Some(&file));
    let authenticator = start(&config, None).unwrap();
    let old = || request(Some("anna"), Some("old"));
    assert_eq!(verdict(&authenticator, old()), admitted("anna"));
    fs::write(&file.0, "anna:plain\n").unwrap();
    let error = authenticator.reload(&config).unwrap_err().to_string();
    assert!(error.contains(":1: the password is not hashed"), "{error}");
    assert_eq!(verdict(&authenticator, old()), admitted("anna"));
    fs::write(&file.0, user_lines("anna", b"new", false).join("\n")).unwrap();
    authenticator.reload(&config).unwrap();
    assert_eq!(refused(&authenticator, old()), Reason::NOT_AUTHORIZED);
    assert_eq!(verdict(&authenticator, request(Some("anna"), Some("new"))), admitted("anna"));
}

#[test]
fn scram_is_offered_to_those_who_have_it() {
    let file = TempFile::new("scram", &user_lines("anna", b"s3cret", true).join("\n"));
    let authenticator = start(&auth(Some(&file)), None).unwrap();
    assert!(authenticator.offers_scram());
    assert!(!start(&auth(None), None).unwrap().offers_scram());
    let (exchange, first) = authenticator.start_scram(b"n,,n=anna,r=abc").unwrap();
    assert_eq!(exchange.username(), "anna");
    let first = String::from_utf8(first).unwrap();
    assert!(first.starts_with("r=abc") && first.contains(",s=") && first.ends_with(",i=10000"));
    let (_, again) = authenticator.start_scram(b"n,,n=anna,r=abc").unwrap();
    assert_ne!(first.as_bytes(), again, "the nonce is fresh");
    assert_eq!(authenticator.start_scram(b"p=x,,n=a,r=b").unwrap_err(), ScramError::ChannelBinding);
}

#[test]
fn what_is_seen_of_a_user_that_does_not_exist_outlives_a_restart() {
    let lines = user_lines("anna", b"s3cret", true);
    let file = TempFile::new("decoys", &lines.join("\n"));
    let salt_of_eve = |secret| {
        let authenticator = start(&auth(Some(&file)), secret).unwrap();
        let (_, first) = authenticator.start_scram(b"n,,n=eve,r=abc").unwrap();
        let first = String::from_utf8(first).unwrap();
        first.split_once(",s=").unwrap().1.to_owned()
    };
    assert_eq!(salt_of_eve(None), salt_of_eve(None));
    let kept = salt_of_eve(Some([1; 32]));
    assert_ne!(kept, salt_of_eve(Some([2; 32])));
    // Others come and go.
    fs::write(&file.0, [lines, user_lines("bob", b"x", true)].concat().join("\n")).unwrap();
    assert_eq!(salt_of_eve(Some([1; 32])), kept);
}
