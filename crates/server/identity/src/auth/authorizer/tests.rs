use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;

use codec::Version;
use hyper::body::Bytes;
use policy::{Attribute, Attributes};

use super::*;
use broker::Scope;

fn question(topic: &str) -> AccessQuestion {
    AccessQuestion {
        slot: 1,
        connection: 2,
        number: 3,
        publishes: true,
        topic: topic.into(),
        qos: 1,
        retain: true,
        scope: Scope::FIRST,
        client_id: "c 1".into(),
        username: Some("an&na".into()),
        peer: "[::ffff:192.0.2.7]:4711".into(),
        version: Version::V5,
        attributes: Attributes::new([
            ("site".into(), Attribute::Text("berlin".into())),
            (
                "roles".into(),
                Attribute::List(["a", "b"].map(|it| Attribute::Text(it.into())).into()),
            ),
        ]),
    }
}

fn config(text: &str) -> AuthorizationConfig {
    let text = format!("[authorization]\n{text}\n[auth]\npassword_file = \"p\"\n");
    let file = config::SourceFile { path: "c.toml".into(), text };
    let sources = config::Sources { file: Some(file), ..config::Sources::default() };
    config::load(&sources, &config::Machine::UNKNOWN).unwrap().config.authorization.unwrap()
}

fn asked(text: &str, question: &AccessQuestion) -> Result<fetch::Question, Unfit> {
    let requests = Requests::new(&config(text).service).unwrap();
    requests.question(|name| value_of(question, "red", "192.0.2.7", name))
}

fn reply(status: u16, content: Content, body: &str) -> Reply {
    Reply {
        status: StatusCode::from_u16(status).unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        max_age_secs: None,
        content,
    }
}

#[test]
fn what_an_action_is_stands_where_the_configuration_says() {
    let text =
        "url = \"http://x/a/${clientid}?t=${topic}\"\nheaders = [\"X: ${client_attrs.site}\"]";
    let asked_about = asked(text, &question("a/b c")).unwrap();
    assert_eq!(asked_about.target, "/a/c%201?t=a%2Fb%20c");
    assert_eq!(asked_about.headers["x"], "berlin");
    let body: Value = serde_json::from_str(&asked_about.body).unwrap();
    assert_eq!(body["topic"], "a/b c");
    assert_eq!((&body["qos"], &body["retain"]), (&"1".into(), &"true".into()));
    assert_eq!((&body["peerhost"], &body["action"]), (&"192.0.2.7".into(), &"publish".into()));
    let subscribes = AccessQuestion { publishes: false, ..question("a/#") };
    let text = "url = \"http://x/\"\nbody_form = \"form\"\nbody = [\"a=${action}\", \
                \"t=${topic}\", \"r=${retain}\", \"n=${namespace}\", \"l=${client_attrs.roles}\"]";
    let body = asked(text, &subscribes).unwrap().body;
    assert_eq!(body, "a=subscribe&t=a%2F%23&r=&n=red&l=", "a list is no value");
}

#[test]
fn what_cannot_be_sent_is_not_asked() {
    let text = "url = \"http://x/${client_attrs.none}\"";
    assert!(matches!(asked(text, &question("a")), Err(Unfit::Missing)));
    let text = "url = \"http://x/\"\nheaders = [\"X: ${topic}\"]";
    assert!(matches!(asked(text, &question(" a")), Err(Unfit::Value(_))));
    assert!(matches!(asked(text, &question("a\u{1}b")), Err(Unfit::Value(_))));
    let text = "url = \"http://x/${clientid}\"";
    let climbs = AccessQuestion { client_id: "..".into(), ..question("a") };
    assert!(matches!(asked(text, &climbs), Err(Unfit::Value(_))));
}

#[test]
fn only_a_clear_answer_counts() {
    use ServiceAnswer::{Allow, Deny, Ignore};
    let json = |body: &str| judge(&reply(200, Content::Json, body));
    assert_eq!(json(r#"{"result":"allow"}"#), Ok(Allow));
    assert_eq!(json(r#"{"result":"deny"}"#), Ok(Deny));
    assert_eq!(json(r#"{"result":"ignore","more":1}"#), Ok(Ignore));
    assert_eq!(judge(&reply(200, Content::Form, "result=allow&x=1")), Ok(Allow));
    assert_eq!(judge(&reply(204, Content::Other, "")), Ok(Allow));
    let faults = ["", "[]", "{}", "allow", r#"{"result":true}"#, r#"{"result":"Allow"}"#];
    for body in faults {
        assert!(json(body).is_err(), "{body}");
    }
    assert!(json(r#"{"result":"deny","result":"allow"}"#).unwrap_err().contains("twice"));
    for status in [201, 301, 400, 403, 404, 500] {
        assert!(judge(&reply(status, Content::Json, r#"{"result":"allow"}"#)).is_err(), "{status}");
    }
    assert!(judge(&reply(200, Content::Other, r#"{"result":"allow"}"#)).is_err());
}

/// Answers so many requests.
fn service(answers: usize) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        for _ in 0..answers {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut len = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
                    len = text.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            reader.read_exact(&mut vec![0; len]).unwrap();
            let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
            reader.into_inner().write_all(answer).unwrap();
        }
    };
    (format!("http://{address}/"), std::thread::spawn(serve))
}

#[test]
fn each_question_is_answered_once_whatever_happens() {
    let (url, thread) = service(1);
    let text = format!("url = \"{url}\"");
    let authorizer = Authorizer::start(&config(&text)).unwrap();
    let (sender, answers) = channel();
    let ask = |topic: &str| {
        let sender = sender.clone();
        let taker = Box::new(move |answer| sender.send(answer).unwrap());
        authorizer.ask(question(topic), "red".into(), taker);
    };
    ask("a");
    assert_eq!(answers.recv(), Ok(ServiceAnswer::Allow));
    thread.join().unwrap();
    ask("b");
    assert_eq!(answers.recv(), Ok(ServiceAnswer::Failed), "it is gone");
    drop(authorizer.shared.queue.close());
    ask("c");
    assert_eq!(answers.recv(), Ok(ServiceAnswer::Failed), "nothing is asked any more");
    drop(authorizer);
    drop(sender);
    assert!(answers.recv().is_err(), "and none is answered twice");
}

#[test]
fn who_is_gone_is_not_asked_about() {
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!("url = \"http://{}/\"\nrequests_max = 1", silent.local_addr().unwrap());
    let authorizer = Authorizer::start(&config(&text)).unwrap();
    let (sender, answers) = channel();
    let ask = |number: u32| {
        let sender = sender.clone();
        let taker = Box::new(move |answer| sender.send((number, answer)).unwrap());
        authorizer.ask(question("a"), "red".into(), taker)
    };
    let asked: Vec<_> = (0..4).map(ask).collect();
    authorizer.forget(asked[2]);
    assert_eq!(answers.recv(), Ok((2, ServiceAnswer::Failed)));
    authorizer.forget(asked[2]);
    drop(authorizer);
    drop(sender);
    let mut rest: Vec<_> = answers.iter().collect();
    rest.sort_by_key(|(number, _)| *number);
    assert_eq!(rest, [0, 1, 3].map(|number| (number, ServiceAnswer::Failed)));
}
