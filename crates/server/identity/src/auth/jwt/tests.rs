use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA384,
    RsaKeyPair, RsaSignatureEncoding,
};
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::json;

use super::super::keys::KEYS_TRIED_MAX;
use config::template::{Placeholders, Template};

use super::*;

const NOW: u64 = 1_800_000_000;
const SECRET: &[u8] = b"a secret of thirty-two bytes or more";

fn demands() -> Demands {
    let template = |text: &str| Template::parse(text, Placeholders::Token).unwrap();
    Demands {
        username: template("${claims.sub}"),
        leeway_secs: 30,
        expiry_required: true,
        ..Demands::default()
    }
}

fn claims() -> Value {
    json!({ "sub": "anna", "exp": NOW + 600 })
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

fn signed(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let text = unsigned(header, claims);
    let signature = URL_SAFE_NO_PAD.encode(sign(text.as_bytes()));
    format!("{text}.{signature}")
}

fn by_secret(secret: &[u8]) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    move |text| hmac::sign(&key, text).as_ref().to_vec()
}

fn by_rsa(pair: &RsaKeyPair, how: &'static RsaSignatureEncoding) -> impl Fn(&[u8]) -> Vec<u8> {
    move |text| {
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign(how, &SystemRandom::new(), text, &mut signature).unwrap();
        signature
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

fn shown(token: &str) -> AuthRequest {
    AuthRequest {
        client_id: "c1".into(),
        username: Some("stated".into()),
        password: Some(token.into()),
        ..AuthRequest::default()
    }
}

fn outcome(token: &str, keys: &KeySet, demands: &Demands) -> Outcome {
    check(&shown(token), &[keys], demands, NOW)
}

fn hs256(claims: &Value, demands: &Demands) -> Outcome {
    let keys = KeySet::of_secret(SECRET).unwrap();
    let token = signed(&json!({ "alg": "HS256" }), claims, by_secret(SECRET));
    outcome(&token, &keys, demands)
}

fn is_good(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Good(_))
}

fn is_bad(outcome: &Outcome, why: &str) -> bool {
    matches!(outcome, Outcome::Bad(detail) if detail.contains(why))
}

#[test]
fn a_good_token_says_who_its_client_is_and_until_when() {
    let Outcome::Good(proof) = hs256(&claims(), &demands()) else { panic!("refused") };
    assert_eq!(proof.username.as_deref(), Some("anna"));
    assert_eq!(proof.expires_at_secs, Some(NOW + 630), "with what clocks may differ");
    assert!(proof.attributes.is_empty() && !proof.is_superuser);
}

#[test]
fn every_kind_of_key_checks_its_signatures() {
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let rsa_key = KeySet::of_pem(&pem("PUBLIC KEY", rsa.public_key().as_der().unwrap().as_ref()));
    let rsa_key = rsa_key.unwrap();
    for (name, how) in [("RS256", &RSA_PKCS1_SHA256), ("PS384", &RSA_PSS_SHA384)] {
        let token = signed(&json!({ "alg": name }), &claims(), by_rsa(&rsa, how));
        assert!(is_good(&outcome(&token, &rsa_key, &demands())), "{name}");
        let other = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let token = signed(&json!({ "alg": name }), &claims(), by_rsa(&other, how));
        assert_eq!(outcome(&token, &rsa_key, &demands()), Outcome::NotMine, "{name}");
    }
    let curves: [(&str, &str, &'static EcdsaSigningAlgorithm); 2] = [
        ("ES256", "P-256", &ECDSA_P256_SHA256_FIXED_SIGNING),
        ("ES384", "P-384", &ECDSA_P384_SHA384_FIXED_SIGNING),
    ];
    for (name, curve, algorithm) in curves {
        let pair = EcdsaKeyPair::generate(algorithm).unwrap();
        let sign = |text: &[u8]| pair.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec();
        let token = signed(&json!({ "alg": name, "kid": "k" }), &claims(), sign);
        let der = pair.public_key().as_der().unwrap();
        let of_pem = KeySet::of_pem(&pem("PUBLIC KEY", der.as_ref())).unwrap();
        assert!(is_good(&outcome(&token, &of_pem, &demands())), "{name} by PEM");
        let point = &pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let jwk = json!({ "kty": "EC", "crv": curve, "kid": "k", "x": x, "y": y });
        let set = json!({ "keys": [{ "kty": "new", "kid": "k" }, jwk] }).to_string();
        let of_jwks = KeySet::of_jwks(set.as_bytes()).unwrap();
        assert!(is_good(&outcome(&token, &of_jwks, &demands())), "{name} by JWK");
        let other = signed(&json!({ "alg": name, "kid": "other" }), &claims(), sign);
        assert_eq!(outcome(&other, &of_jwks, &demands()), Outcome::NoKey);
    }
    let pair = Ed25519KeyPair::generate().unwrap();
    let token =
        signed(&json!({ "alg": "EdDSA" }), &claims(), |text| pair.sign(text).as_ref().to_vec());
    let der = pair.public_key().as_der().unwrap();
    let of_pem = KeySet::of_pem(&pem("PUBLIC KEY", der.as_ref())).unwrap();
    assert!(is_good(&outcome(&token, &of_pem, &demands())), "Ed25519 by PEM");
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let set = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x }] }).to_string();
    let of_jwks = KeySet::of_jwks(set.as_bytes()).unwrap();
    assert!(is_good(&outcome(&token, &of_jwks, &demands())), "Ed25519 by JWK");
}

#[test]
fn a_public_key_is_never_taken_for_a_secret() {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der = pair.public_key().as_der().unwrap();
    let text = pem("PUBLIC KEY", der.as_ref());
    let keys = KeySet::of_pem(&text).unwrap();
    for secret in [text.as_bytes(), text.trim().as_bytes(), der.as_ref()] {
        let token = signed(&json!({ "alg": "HS256" }), &claims(), by_secret(secret));
        assert_eq!(outcome(&token, &keys, &demands()), Outcome::NoKey);
    }
    let token = signed(&json!({ "alg": "RS256" }), &claims(), by_secret(SECRET));
    let secret = KeySet::of_secret(SECRET).unwrap();
    assert_eq!(outcome(&token, &secret, &demands()), Outcome::NoKey);
    let set =
        json!({ "keys": [{ "kty": "oct", "alg": "HS512", "k": URL_SAFE_NO_PAD.encode(SECRET) }] });
    let keys = KeySet::of_jwks(set.to_string().as_bytes()).unwrap();
    let token = signed(&json!({ "alg": "HS256" }), &claims(), by_secret(SECRET));
    assert_eq!(outcome(&token, &keys, &demands()), Outcome::NoKey, "the key says its algorithm");
}

#[test]
fn tokens_with_a_member_twice_are_refused() {
    let keys = KeySet::of_secret(SECRET).unwrap();
    let of = |header: &str, claims: &str| {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(by_secret(SECRET)(text.as_bytes()));
        outcome(&format!("{text}.{signature}"), &keys, &demands())
    };
    let (header, claims) = (r#"{"alg":"HS256"}"#, claims().to_string());
    assert!(is_good(&of(header, &claims)));
    let twice = claims.replacen('{', r#"{"sub":"other","#, 1);
    assert!(is_bad(&of(header, &twice), "'sub' is there twice"));
    let within = claims.replacen('{', r#"{"more":{"a":1,"a":2},"#, 1);
    assert!(is_bad(&of(header, &within), "'a' is there twice"));
    let header = r#"{"alg":"HS256","kid":"a","kid":"b"}"#;
    assert!(is_bad(&of(header, &claims), "'kid' is there twice"));
}

#[test]
fn tokens_without_a_signature_are_refused() {
    let keys = KeySet::of_secret(SECRET).unwrap();
    let shown_as = |name: &str, signature: &str| {
        let token = format!("{}.{signature}", unsigned(&json!({ "alg": name }), &claims()));
        outcome(&token, &keys, &demands())
    };
    for signature in ["", "AAAA"] {
        for name in ["none", "None", "NONE", "nOnE", ""] {
            let outcome = shown_as(name, signature);
            assert!(is_bad(&outcome, "not signed"), "{name}: {outcome:?}");
        }
        for name in ["HS256", "HS1", "RS256 "] {
            assert_eq!(shown_as(name, signature), Outcome::NotMine, "{name}");
        }
    }
    let header = json!({ "alg": "HS256", "crit": ["b64"], "b64": false });
    let critical = signed(&header, &claims(), by_secret(SECRET));
    assert!(is_bad(&outcome(&critical, &keys, &demands()), "critical"));
}

#[test]
fn a_changed_token_is_refused() {
    let keys = KeySet::of_secret(SECRET).unwrap();
    let token = signed(&json!({ "alg": "HS256" }), &claims(), by_secret(SECRET));
    let (_, signature) = token.rsplit_once('.').unwrap();
    let other = json!({ "sub": "root", "exp": NOW + 600 });
    let forged = format!("{}.{signature}", unsigned(&json!({ "alg": "HS256" }), &other));
    assert_eq!(outcome(&forged, &keys, &demands()), Outcome::NotMine);
}

#[test]
fn times_are_looked_at_with_leeway() {
    let at = |name: &str, secs: Value| {
        let mut claims = claims();
        claims[name] = secs;
        hs256(&claims, &demands())
    };
    for (name, secs, why) in [
        ("exp", json!(NOW - 30), "expired"),
        ("exp", json!(0), "expired"),
        ("exp", json!(-1), "must be a time"),
        ("exp", json!("2030"), "must be a time"),
        ("exp", json!(null), "must be a time"),
        ("nbf", json!(NOW + 31), "not valid yet"),
        ("iat", json!(NOW + 31), "in the future"),
        ("nbf", json!([]), "must be a time"),
    ] {
        let outcome = at(name, secs.clone());
        assert!(is_bad(&outcome, why), "{name} {secs}: {outcome:?}");
    }
    for (name, secs) in [
        ("exp", json!(NOW - 29)),
        ("exp", json!(NOW as f64 + 0.5)),
        ("exp", json!(1e300)),
        ("nbf", json!(NOW + 30)),
        ("iat", json!(NOW)),
    ] {
        assert!(is_good(&at(name, secs.clone())), "{name} {secs}");
    }
    let endless = json!({ "sub": "anna" });
    assert!(is_bad(&hs256(&endless, &demands()), "does not expire"));
    let lenient = Demands { expiry_required: false, ..demands() };
    let Outcome::Good(proof) = hs256(&endless, &lenient) else { panic!("refused") };
    assert_eq!(proof.expires_at_secs, None);
}

#[test]
fn claims_have_to_be_what_is_asked_for() {
    let template = |text: &str| Template::parse(text, Placeholders::Token).unwrap();
    let strict = Demands {
        issuer: Some("https://id.example".into()),
        audience: vec!["mqtt".into(), "iot".into()],
        claims: vec![
            ("device".into(), template("${clientid}")),
            ("org.unit".into(), template("fleet")),
        ],
        ..demands()
    };
    let good = json!({
        "sub": "anna", "exp": NOW + 600, "iss": "https://id.example", "aud": ["web", "iot"],
        "device": "c1", "org": { "unit": ["fleet", "x"] },
    });
    assert!(is_good(&hs256(&good, &strict)));
    for (name, value, why) in [
        ("aud", json!("web"), "audience"),
        ("aud", json!([]), "audience"),
        ("device", json!("c2"), "'device'"),
        ("org", json!("fleet"), "'org.unit'"),
        ("sub", json!(""), "username"),
        ("sub", json!({}), "username"),
        ("sub", json!("an\nna"), "username"),
    ] {
        let mut claims = good.clone();
        claims[name] = value.clone();
        let outcome = hs256(&claims, &strict);
        assert!(is_bad(&outcome, why), "{name} {value}: {outcome:?}");
    }
}

#[test]
fn only_a_signature_makes_a_token_one_to_say_no_to() {
    let other = b"another secret of thirty-two bytes or more";
    let set = json!({ "keys": [
        { "kty": "oct", "kid": "old", "k": URL_SAFE_NO_PAD.encode(other) },
        { "kty": "oct", "kid": "new", "k": URL_SAFE_NO_PAD.encode(SECRET) },
    ] });
    let listed = KeySet::of_jwks(set.to_string().as_bytes()).unwrap();
    let file = KeySet::of_secret(other).unwrap();
    let strict = Demands { issuer: Some("https://id.example".into()), ..demands() };
    let expired = json!({ "sub": "anna", "exp": 1, "iss": "https://id.example" });
    let ask = |header: Value, claims: &Value, demands: &Demands, sets: &[&KeySet]| {
        check(&shown(&signed(&header, claims, by_secret(SECRET))), sets, demands, NOW)
    };
    let named = |id: &str| json!({ "alg": "HS256", "kid": id });
    assert!(is_good(&ask(named("new"), &claims(), &demands(), &[&file, &listed])));
    assert!(is_good(&ask(json!({ "alg": "HS256" }), &claims(), &demands(), &[&file, &listed])));
    assert!(is_good(&ask(named("new"), &claims(), &demands(), &[&listed, &file])));
    assert!(is_bad(&ask(named("new"), &expired, &strict, &[&file, &listed]), "expired"));
    for (id, expected) in [("gone", Outcome::NoKey), ("old", Outcome::NotMine)] {
        assert_eq!(ask(named(id), &expired, &demands(), &[&file, &listed]), expected, "{id}");
    }
    for issuer in [json!("https://evil.example"), json!(["https://id.example"]), json!(null)] {
        let foreign = json!({ "sub": "anna", "exp": 1, "iss": issuer });
        assert_eq!(ask(named("new"), &foreign, &strict, &[&listed]), Outcome::NotMine);
    }
}

#[test]
fn a_secret_in_a_fetched_set_is_none() {
    let set = json!({ "keys": [{ "kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET) }] });
    assert!(!KeySet::of_jwks(set.to_string().as_bytes()).unwrap().is_empty());
    assert!(KeySet::of_public_jwks(set.to_string().as_bytes()).unwrap().is_empty());
}

#[test]
fn a_token_is_tried_with_so_many_keys() {
    let secret = |number: usize| format!("secret number {number:040}");
    let key = |number: usize| {
        let k = URL_SAFE_NO_PAD.encode(secret(number));
        json!({ "kty": "oct", "kid": number.to_string(), "k": k })
    };
    let set = json!({ "keys": (0..=KEYS_TRIED_MAX).map(key).collect::<Vec<_>>() });
    let keys = KeySet::of_jwks(set.to_string().as_bytes()).unwrap();
    let by = |header: Value, number: usize| {
        let token = signed(&header, &claims(), by_secret(secret(number).as_bytes()));
        outcome(&token, &keys, &demands())
    };
    assert!(is_good(&by(json!({ "alg": "HS256" }), KEYS_TRIED_MAX - 1)));
    assert_eq!(by(json!({ "alg": "HS256" }), KEYS_TRIED_MAX), Outcome::NotMine);
    let named = json!({ "alg": "HS256", "kid": KEYS_TRIED_MAX.to_string() });
    assert!(is_good(&by(named, KEYS_TRIED_MAX)), "whoever names its key has it tried");
}

#[test]
fn claims_become_attributes() {
    let template = |text: &str| Template::parse(text, Placeholders::Token).unwrap();
    let demands = Demands {
        attributes: vec![
            ("floors".into(), template("${claims.floors}")),
            ("where".into(), template("${claims.site}/${clientid}")),
            ("role".into(), template("${claims.role}")),
        ],
        ..demands()
    };
    let claims = json!({
        "sub": "anna", "exp": NOW + 600, "floors": [1, 2], "site": "berlin",
        "client_attrs": { "role": "user", "vin": "1", "deep": {} },
    });
    let Outcome::Good(proof) = hs256(&claims, &demands) else { panic!("refused") };
    let text = |text: &str| Some(Attribute::Text(text.into()));
    let get = |name: &str| proof.attributes.get(name).cloned();
    let floors = [Attribute::Number(1.into()), Attribute::Number(2.into())];
    assert_eq!(get("floors"), Some(Attribute::List(floors.into())));
    assert_eq!(get("where"), text("berlin/c1"));
    assert_eq!((get("role"), get("vin"), get("deep")), (text("user"), text("1"), None));
    let mut large = claims.clone();
    large["client_attrs"]["vin"] = json!("x".repeat(20_000));
    assert!(is_bad(&hs256(&large, &demands), "attributes"));
    for other in [json!("role=user"), json!(["role"]), json!(7), json!(true), json!(null)] {
        let mut claims = claims.clone();
        claims["client_attrs"] = other;
        assert!(is_bad(&hs256(&claims, &demands), "client_attrs must be an object"), "{claims}");
    }
}

#[test]
fn numbers_are_taken_as_written_or_not_at_all() {
    let template = |text: &str| Template::parse(text, Placeholders::Token).unwrap();
    let demands = Demands {
        username: template("u${claims.id}"),
        claims: vec![("id".into(), template("${clientid}"))],
        attributes: vec![("own".into(), template("${claims.id}"))],
        ..demands()
    };
    let with = |number: &str, client_id: &str| {
        let claims =
            format!(r#"{{"exp":{},"id":{number},"client_attrs":{{"vin":[{number}]}}}}"#, NOW + 600);
        let token = signed(
            &json!({ "alg": "HS256" }),
            &serde_json::from_str(&claims).unwrap(),
            by_secret(SECRET),
        );
        let request = AuthRequest { client_id: client_id.into(), ..shown(&token) };
        check(&request, &[&KeySet::of_secret(SECRET).unwrap()], &demands, NOW)
    };
    for (number, text) in [
        ("9007199254740993", "9007199254740993"),
        ("18446744073709551617", "18446744073709551617"),
        ("9007199254740993.0", "9007199254740993"),
        ("-0", "0"),
        ("1.5e3", "1500"),
    ] {
        let Outcome::Good(proof) = with(number, text) else { panic!("{number} is refused") };
        assert_eq!(proof.username, Some(format!("u{text}")));
        for name in ["own", "vin"] {
            assert_eq!(proof.attributes.get(name).unwrap().texts(), [text], "{name} {number}");
        }
    }
    assert!(is_bad(&with("9007199254740993", "9007199254740992"), "'id'"));
    for number in ["1e400", "1e-60", "123456789012345678901234567890123456789"] {
        assert!(is_bad(&with(number, number), "'id'"), "{number}");
    }
}

#[test]
fn access_rules_of_a_token_are_its_clients() {
    let with = |acl: Value| json!({ "sub": "anna", "exp": NOW + 600, "acl": acl });
    let rules_of = |acl: Value, demands: &Demands| match hs256(&with(acl), demands) {
        Outcome::Good(proof) => Ok(proof.rules.len()),
        Outcome::Bad(why) => Err(why),
        other => panic!("{other:?}"),
    };
    let denies_all = json!([{ "permission": "deny", "action": "all", "topic": "#" }]);
    assert_eq!(rules_of(denies_all.clone(), &demands()), Ok(1));
    assert_eq!(rules_of(json!({ "pub": ["t"], "sub": ["t"] }), &demands()), Ok(3));
    assert!(rules_of(json!("a word"), &demands()).unwrap_err().contains("got a text"));
    let elsewhere = Demands { acl_claim_name: Some("rights".into()), ..demands() };
    assert_eq!(rules_of(json!("a word of somebody else's"), &elsewhere), Ok(0));
    assert!(rules_of(denies_all.clone(), &elsewhere).unwrap_err().contains("'rights'"));
    let odd = json!([{ "permission": "deny", "action": "all", "topic": "#", "zone": "x" }]);
    assert!(rules_of(odd.clone(), &demands()).unwrap_err().contains("zone"));
    let lenient = Demands { acl_ignored: true, ..demands() };
    assert_eq!(rules_of(denies_all, &lenient), Ok(0));
    assert_eq!(rules_of(odd, &lenient), Ok(0));
}

#[test]
fn rules_go_by_the_proved_name() {
    let rule = |name: &str| {
        json!([{
            "permission": "deny", "action": "all", "topic": "#", "username": name,
        }])
    };
    for (name, count) in [("anna", 1), ("stated", 0)] {
        let claims = json!({ "sub": "anna", "exp": NOW + 600, "acl": rule(name) });
        let Outcome::Good(proof) = hs256(&claims, &demands()) else { panic!("{claims}") };
        assert_eq!(proof.rules.len(), count, "{name}");
    }
}

#[test]
fn a_token_is_read_where_the_configuration_says() {
    let keys = KeySet::of_secret(SECRET).unwrap();
    let token = signed(&json!({ "alg": "HS256" }), &claims(), by_secret(SECRET));
    let by_name = AuthRequest {
        username: Some(token.clone()),
        password: Some(b"x".to_vec()),
        ..shown(&token)
    };
    let by_password = shown(&token);
    let by_method = AuthRequest { has_token_method: true, ..shown(&token) };
    let from_name = Demands { from: Some(TokenField::Username), ..demands() };
    let from_password = Demands { from: Some(TokenField::Password), ..demands() };
    for (request, demands, is_read) in [
        (&by_name, &from_name, true),
        (&by_name, &from_password, false),
        (&by_password, &from_name, false),
        (&by_password, &from_password, true),
        (&by_method, &from_name, true),
        (&by_method, &from_password, true),
    ] {
        let outcome = check(request, &[&keys], demands, NOW);
        let name = match &outcome {
            Outcome::Good(proof) => proof.username.as_deref(),
            other => {
                assert_eq!(other, &Outcome::NotMine);
                None
            }
        };
        assert_eq!(name, is_read.then_some("anna"), "{demands:?}");
    }
    assert!(is_token(&token) && !is_token("anna") && !is_token("a.b.c"));
}

#[test]
fn what_is_no_token_is_left_to_others() {
    let keys = KeySet::of_secret(SECRET).unwrap();
    for text in ["", "secret", "a.b.c", "....", "e30.e30.", "e30.e30", "W10.e30.AA", "x.y.z.w"] {
        assert_eq!(outcome(text, &keys, &demands()), Outcome::NotMine, "{text}");
    }
    let none = AuthRequest { password: None, ..shown("") };
    assert_eq!(check(&none, &[&keys], &demands(), NOW), Outcome::NotMine);
    let binary = AuthRequest { password: Some(vec![0xff; 9]), ..shown("") };
    assert_eq!(check(&binary, &[&keys], &demands(), NOW), Outcome::NotMine);
}

#[test]
fn keys_that_cannot_be_used_are_reported() {
    let why = |result: Result<KeySet, String>| result.err().unwrap_or_default();
    assert!(why(KeySet::of_secret(b"short")).contains("at least 32 bytes"));
    assert!(why(KeySet::of_pem("")).contains("no PEM"));
    assert!(why(KeySet::of_pem(&pem("CERTIFICATE", b"x"))).contains("openssl x509"));
    assert!(why(KeySet::of_pem(&pem("PUBLIC KEY", b"x"))).contains("neither RSA"));
    assert!(why(KeySet::of_pem("-----BEGIN PUBLIC KEY-----\nAA")).contains("no end"));
    assert!(why(KeySet::of_jwks(b"nonsense")).contains("must be JSON"));
    assert!(why(KeySet::of_jwks(b"{}")).contains("must have a list"));
    let encryption = json!({ "keys": [{ "kty": "oct", "use": "enc", "k": "x" }] }).to_string();
    assert!(KeySet::of_jwks(encryption.as_bytes()).unwrap().is_empty());
    let short = json!({ "keys": [{ "kty": "oct", "k": "AAAA" }] }).to_string();
    assert!(KeySet::of_jwks(short.as_bytes()).unwrap().is_empty());
}

proptest! {
    #[test]
    fn no_password_panics_and_none_is_good_without_the_key(bytes: Vec<u8>) {
        let keys = KeySet::of_secret(SECRET).unwrap();
        let request = AuthRequest { password: Some(bytes), ..shown("") };
        prop_assert!(!is_good(&check(&request, &[&keys], &demands(), NOW)));
    }

    #[test]
    fn no_token_that_was_changed_anywhere_is_good(place: prop::sample::Index, byte: u8) {
        let keys = KeySet::of_secret(SECRET).unwrap();
        let mut token = signed(&json!({ "alg": "HS256" }), &claims(), by_secret(SECRET)).into_bytes();
        let place = place.index(token.len());
        prop_assume!(token[place] != byte);
        token[place] = byte;
        let request = AuthRequest { password: Some(token), ..shown("") };
        prop_assert!(!is_good(&check(&request, &[&keys], &demands(), NOW)));
    }

    #[test]
    fn signed_nonsense_is_answered(claims in ".{0,200}") {
        let keys = KeySet::of_secret(SECRET).unwrap();
        let head = URL_SAFE_NO_PAD.encode(json!({ "alg": "HS256" }).to_string());
        let text = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(by_secret(SECRET)(text.as_bytes()));
        let token = format!("{text}.{signature}");
        prop_assert!(!is_good(&outcome(&token, &keys, &demands())));
    }

    #[test]
    fn no_key_set_panics(text: Vec<u8>, kty in "RSA|EC|OKP|oct|x", crv in "P-256|P-384|Ed25519|x", x in ".{0,80}") {
        let _ = KeySet::of_jwks(&text);
        let jwk = json!({ "kty": kty, "crv": crv, "x": x, "y": x, "n": x, "e": x, "k": x });
        let keys = KeySet::of_jwks(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap();
        for name in ["HS256", "RS256", "ES256", "ES384", "EdDSA"] {
            let token = signed(&json!({ "alg": name }), &claims(), |_| vec![0; 64]);
            prop_assert!(!is_good(&outcome(&token, &keys, &demands())));
        }
    }
}
