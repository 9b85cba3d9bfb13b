use hyper::body::Bytes;
use policy::Attribute;
use serde_json::json;

use super::*;
use config::template::Template;
use config::url::Url;

const NOW: u64 = 1_800_000_000;

fn config() -> HttpConfig {
    let field = |name: &str, text: &str| (name.to_owned(), Template::parse(text, false).unwrap());
    HttpConfig {
        url: Url::parse("http://127.0.0.1:1/auth").unwrap(),
        is_get: false,
        headers: Vec::new(),
        body: vec![
            field("clientid", "${clientid}"),
            field("username", "${username}"),
            field("password", "${password}"),
            field("from", "ip ${peerhost}"),
        ],
        form: BodyForm::Json,
        ca: None,
        timeout_secs: 1,
        requests_max: 2,
        cache_secs: 0,
        acl_ignored: false,
    }
}

fn request() -> AuthRequest {
    AuthRequest {
        client_id: "c\"1".into(),
        username: Some("an na".into()),
        password: Some(b"x&y".to_vec()),
        peer_host: "192.0.2.1".into(),
        ..AuthRequest::default()
    }
}

fn judged(status: u16, body: &str) -> Result<Opinion, String> {
    judged_as(Content::Json, status, body)
}

fn judged_as(content: Content, status: u16, body: &str) -> Result<Opinion, String> {
    let reply = Reply {
        status: StatusCode::from_u16(status).unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        max_age_secs: None,
        content,
    };
    judge(&config(), &reply, &request(), NOW)
}

fn yes(answer: Value) -> Proof {
    match judged(200, &answer.to_string()) {
        Ok(Opinion::Yes(proof)) => proof,
        other => panic!("{answer}: {other:?}"),
    }
}

#[test]
fn answers_mean_what_they_mean_to_emqx() {
    let proof = yes(json!({ "result": "allow" }));
    assert_eq!(proof, Proof { username: Some("an na".into()), ..Proof::default() });
    let proof = yes(json!({
        "result": "allow", "is_superuser": true, "client_attrs": { "role": "admin", "sn": 7 },
        "expire_at": NOW + 60,
    }));
    assert!(proof.is_superuser);
    assert_eq!(proof.expires_at_secs, Some(NOW + 60));
    assert_eq!(proof.attributes.get("role"), Some(&Attribute::Text("admin".into())));
    assert_eq!(proof.attributes.get("sn"), Some(&Attribute::Number(7.into())));
    assert!(matches!(judged(204, ""), Ok(Opinion::Yes(_))));
    for body in [r#"{"result":"ignore"}"#, "{}"] {
        assert_eq!(judged(200, body), Ok(Opinion::NotMine), "{body}");
    }
    assert!(matches!(judged(200, r#"{"result":"deny"}"#), Ok(Opinion::No(_))));
    for status in [400, 401, 403, 404, 429] {
        assert_eq!(judged(status, r#"{"result":"allow"}"#), Ok(Opinion::NotMine), "{status}");
    }
}

#[test]
fn what_is_no_answer_lets_nobody_in() {
    for (status, body) in [
        (200, ""),
        (200, "allow"),
        (200, "[]"),
        (200, r#""allow""#),
        (200, r#"{"result":"allow""#),
        (200, r#"{"result":"Allow"}"#),
        (200, r#"{"result":false}"#),
        (200, r#"{"result":null}"#),
        (200, r#"{"result":["allow"]}"#),
        (200, r#"{"result":"allow","expire_at":"soon"}"#),
        (200, r#"{"result":"allow","expire_at":-1}"#),
        (201, r#"{"result":"allow"}"#),
        (302, r#"{"result":"allow"}"#),
        (500, r#"{"result":"allow"}"#),
        (503, ""),
    ] {
        assert!(judged(status, body).is_err(), "{status} {body}");
    }
    for body in [
        json!({ "result": "allow", "expire_at": NOW }),
        json!({ "result": "allow", "acl": [{ "permission": "allow", "action": "all" }] }),
        json!({ "result": "allow", "client_attrs": "role=admin" }),
        json!({ "result": "allow", "client_attrs": ["admin"] }),
        json!({ "result": "allow", "client_attrs": null }),
        json!({ "result": "allow", "client_attrs": { "role": "x".repeat(20_000) } }),
    ] {
        let judged = judged(200, &body.to_string());
        assert!(matches!(judged, Ok(Opinion::No(_))), "{body}: {judged:?}");
    }
}

#[test]
fn forms_and_other_words_for_superuser_are_understood() {
    for (text, expected) in [("true", true), ("1", true), ("false", false), ("0", false)] {
        let answers =
            [json!(text), serde_json::from_str(text).unwrap()].map(|value| json!({ "v": value }));
        for answer in answers {
            let proof = yes(json!({ "result": "allow", "is_superuser": answer["v"] }));
            assert_eq!(proof.is_superuser, expected, "{answer}");
        }
        let body = format!("result=allow&is_superuser={text}&expire_at={}", NOW + 9);
        let Ok(Opinion::Yes(proof)) = judged_as(Content::Form, 200, &body) else {
            panic!("{body}")
        };
        assert_eq!((proof.is_superuser, proof.expires_at_secs), (expected, Some(NOW + 9)));
    }
    for odd in [json!("yes"), json!(2), json!(1.5), json!([true])] {
        let answer = json!({ "result": "allow", "is_superuser": odd }).to_string();
        assert!(matches!(judged(200, &answer), Ok(Opinion::No(_))), "{answer}");
    }
    assert!(matches!(judged_as(Content::Form, 200, "result=deny"), Ok(Opinion::No(_))));
    assert_eq!(judged_as(Content::Form, 200, ""), Ok(Opinion::NotMine));
    for (content, body) in [
        (Content::Form, "result=allow&expire_at=soon"),
        (Content::Form, r#"result=allow&result=deny"#),
        (Content::Other, r#"{"result":"allow"}"#),
    ] {
        assert!(judged_as(content, 200, body).is_err(), "{body}");
    }
    let rules = judged_as(Content::Form, 200, "result=allow&acl=x");
    assert!(matches!(rules, Ok(Opinion::No(_))), "{rules:?}");
}

#[test]
fn a_password_that_is_no_text_is_not_sent() {
    let with = |password: &[u8]| AuthRequest { password: Some(password.into()), ..request() };
    assert!(cannot_send(&config(), &with(b"\xff")) && cannot_send(&config(), &with(b"a\xfe")));
    assert!(!cannot_send(&config(), &with("\u{fffd}".as_bytes())));
    assert_eq!(value_of(&with(b"\xff"), "password"), None);
    let without = HttpConfig { body: Vec::new(), ..config() };
    assert!(!cannot_send(&without, &with(b"\xff")));
}

#[test]
fn access_rules_of_an_answer_are_its_clients() {
    let rule = json!({ "permission": "allow", "action": "all", "topic": "${clientid}/#" });
    let proof = yes(json!({ "result": "allow", "acl": [rule] }));
    assert_eq!(proof.rules.len(), 1);
}

#[test]
fn placeholders_cannot_break_out_of_the_request() {
    let net = fetch::Net::start().unwrap();
    let auth = config::Config::defaults(&config::Machine::UNKNOWN).auth;
    let pace = Arc::new(Mutex::new(Pace::new(0)));
    let question = |config: HttpConfig| {
        let named = ("http", Step::Provider(0));
        let service = Service::new(named, &config, &auth, &pace, net.handle(), Clock::start());
        let service = service.unwrap();
        service.shared.question(&request())
    };
    let asked = question(config());
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let expected = json!({
        "clientid": "c\"1", "username": "an na", "password": "x&y", "from": "ip 192.0.2.1",
    });
    assert_eq!((body, asked.query.as_str()), (expected, ""));
    let text = "clientid=c%221&username=an%20na&password=x%26y&from=ip%20192.0.2.1";
    let asked = question(HttpConfig { form: BodyForm::Form, ..config() });
    assert_eq!((asked.body.as_str(), asked.query.as_str()), (text, ""));
    let asked = question(HttpConfig { is_get: true, ..config() });
    assert_eq!((asked.body.as_str(), asked.query.as_str()), ("", text));
}
