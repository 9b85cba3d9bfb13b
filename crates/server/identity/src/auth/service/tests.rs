use hyper::body::Bytes;
use hyper::header::HeaderValue;
use policy::Attribute;
use serde_json::json;

use super::*;
use config::BodyForm;
use config::template::{Placeholders, Template};
use config::url::Url;

const NOW: u64 = 1_800_000_000;

fn config() -> HttpConfig {
    let field = |name: &str, text: &str| {
        (name.to_owned(), Template::parse(text, Placeholders::Login).unwrap())
    };
    HttpConfig {
        url: Url::parse("http://127.0.0.1:1/auth").unwrap(),
        path: Template::parse("/auth", Placeholders::Login).unwrap(),
        query: Template::default(),
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
    judge(&config(), &reply, &request(), NOW).map(|judged| judged.opinion)
}

fn template(text: &str) -> Template {
    Template::parse(text, Placeholders::Login).unwrap()
}

/// What a service would be asked about a client.
fn question(config: &HttpConfig, request: &AuthRequest) -> Result<fetch::Question, Opinion> {
    let net = fetch::Net::start().unwrap();
    let auth = config::Config::defaults(&config::Machine::UNKNOWN).auth;
    let pace = Arc::new(Mutex::new(Pace::new(0)));
    let named = ("http", Step::Provider(0));
    let service = Service::new(named, config, &auth, &pace, net.handle(), Clock::start()).unwrap();
    service.shared.question(request)
}

fn yes(answer: Value) -> Proof {
    match judged(200, &answer.to_string()) {
        Ok(Opinion::Yes(proof)) => proof,
        other => panic!("{answer}: {other:?}"),
    }
}

#[test]
fn an_answer_with_a_member_twice_is_none() {
    for body in [
        r#"{"result":"deny","result":"allow"}"#,
        r#"{"result":"allow","client_attrs":{"role":"a","role":"b"}}"#,
        r#"{"result":"allow","acl":[{"topic":"a","topic":"b"}]}"#,
    ] {
        assert!(judged(200, body).unwrap_err().contains("twice"), "{body}");
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
    let asked = |config: HttpConfig| question(&config, &request()).unwrap();
    let told = asked(config());
    let body: Value = serde_json::from_str(&told.body).unwrap();
    let expected = json!({
        "clientid": "c\"1", "username": "an na", "password": "x&y", "from": "ip 192.0.2.1",
    });
    assert_eq!((body, told.target.as_str()), (expected, "/auth"));
    let text = "clientid=c%221&username=an%20na&password=x%26y&from=ip%20192.0.2.1";
    let told = asked(HttpConfig { form: BodyForm::Form, ..config() });
    assert_eq!((told.body.as_str(), told.target.as_str()), (text, "/auth"));
    let told = asked(HttpConfig { is_get: true, ..config() });
    assert_eq!((told.body.as_str(), told.target), ("", format!("/auth?{text}")));
    let told = asked(HttpConfig {
        path: template("/users/${username}/x.${clientid}"),
        query: template("p=${password}&cn=${cert_common_name}"),
        headers: vec![
            ("X-Plain".into(), template("as is")),
            ("X-User".into(), template("<${username}>")),
        ],
        ..config()
    });
    assert_eq!(told.target, "/users/an%20na/x.c%221?p=x%26y&cn=");
    let headers: Vec<_> = told.headers.iter().map(|(name, value)| (name.as_str(), value)).collect();
    assert_eq!(headers, [("x-user", &HeaderValue::from_static("<an na>"))]);
    let told = asked(HttpConfig { is_get: true, query: template("a=1"), ..config() });
    assert_eq!(told.target, format!("/auth?a=1&{text}"));
}

#[test]
fn what_would_ask_for_something_else_is_not_sent() {
    let named = |name: &str| AuthRequest { username: Some(name.into()), ..request() };
    let in_path = HttpConfig { path: template("/u/${username}/a"), ..config() };
    for name in ["..", ".", "a/b", "../x", "a\\b"] {
        let refused = question(&in_path, &named(name)).map(|asked| asked.target).unwrap_err();
        assert!(
            matches!(&refused, Opinion::No(why) if why.contains("path")),
            "{name}: {refused:?}"
        );
    }
    for (name, target) in
        [("a..b", "/u/a..b/a"), ("%2e%2e", "/u/%252e%252e/a"), ("?x", "/u/%3Fx/a")]
    {
        assert_eq!(question(&in_path, &named(name)).map(|asked| asked.target), Ok(target.into()));
    }
    let twice = HttpConfig { path: template("/${username}${clientid}/a"), ..config() };
    let dots = AuthRequest { client_id: ".".into(), ..named(".") };
    assert!(question(&twice, &dots).is_err(), "together they are a step up");
    let nobody = AuthRequest { username: None, ..request() };
    let missing = question(&in_path, &nobody).map(|asked| asked.target);
    assert_eq!(missing, Err(Opinion::NotMine), "it could be the path of somebody else");

    let header = || vec![("X-User".to_owned(), template("${username}"))];
    let in_header = HttpConfig { headers: header(), ..config() };
    for name in ["a\r\nX-Admin: 1", " anna", "anna ", "\tanna", "a\u{0}"] {
        let refused = question(&in_header, &named(name)).map(|asked| asked.target).unwrap_err();
        assert!(matches!(&refused, Opinion::No(why) if why.contains("x-user")), "{name:?}");
    }
    assert!(
        question(&in_header, &named("\u{e4}nna")).is_ok() && question(&in_header, &nobody).is_ok()
    );
}

#[test]
fn other_headers_are_another_question() {
    let config = HttpConfig {
        headers: vec![("A".into(), template("${username}")), ("B".into(), template("${clientid}"))],
        body: Vec::new(),
        ..config()
    };
    let told = |username: &str, client_id: &str| {
        let (username, client_id) = (Some(username.into()), client_id.into());
        said_in(&question(&config, &AuthRequest { username, client_id, ..request() }).unwrap())
    };
    assert_eq!(told("a", "b"), told("a", "b"));
    for (username, client_id) in [("b", "a"), ("ab", ""), ("", "ab"), ("\\xc3", "b"), ("a", "c")] {
        assert_ne!(told("a", "b"), told(username, client_id), "{username:?} {client_id:?}");
    }
    assert_ne!(told("\u{e4}", "b"), told("\\xc3\\xa4", "b"));
}

#[test]
fn an_answer_with_rules_for_one_client_is_not_remembered_for_others() {
    let judged = |config: &HttpConfig, rule: Value| {
        let mut acl = json!({ "permission": "allow", "action": "all", "topic": "t" });
        for (name, value) in rule.as_object().unwrap() {
            acl[name] = value.clone();
        }
        let body = json!({ "result": "allow", "acl": [acl] }).to_string();
        let status = StatusCode::OK;
        let reply = Reply { status, body: body.into(), max_age_secs: None, content: Content::Json };
        let names = net::CertificateInfo { common_name: "cn".into(), ..Default::default() };
        let request = AuthRequest { certificate: Some(Box::new(names)), ..request() };
        judge(config, &reply, &request, NOW).unwrap().holds_for_same_fields
    };
    let without_id = HttpConfig {
        body: vec![("username".into(), template("${username}"))],
        query: template("cn=${cert_common_name}"),
        ..config()
    };
    for (rule, with_id, with_cn) in [
        (json!({}), true, true),
        (json!({ "username": "an na" }), true, true),
        (json!({ "topic": "${clientid}" }), true, true),
        (json!({ "clientid": "c" }), true, false),
        (json!({ "clientid_re": "c" }), true, false),
        (json!({ "topic": "${cert_common_name}" }), false, true),
    ] {
        assert_eq!(judged(&config(), rule.clone()), with_id, "{rule}");
        assert_eq!(judged(&without_id, rule.clone()), with_cn, "{rule}");
    }
}
