//! The HTTP exchange that opens a WebSocket, both sides.

use net::ws::upgrade::{
    HEADER_BYTES_MAX, KEY_BYTES, Offer, Origins, Rules, UpgradeError, parse_request,
};

/// The first byte chooses between request and answer.
pub fn ws_upgrade(input: &[u8]) {
    match input.split_first() {
        Some((0, bytes)) => request(bytes),
        Some((_, bytes)) => answer(bytes),
        None => {}
    }
}

fn request(bytes: &[u8]) {
    let origins = Origins::Listed(vec!["https://app.example".to_owned()]);
    let rules = Rules { path: PATH, origins: &origins };
    match parse_request(bytes, rules) {
        Ok(Some((request, len))) => {
            assert!(len <= bytes.len() && bytes[..len].ends_with(b"\n"));
            assert_eq!(parse_request(&bytes[..len], rules), Ok(Some((request.clone(), len))));
            assert_eq!(parse_request(&bytes[..len - 1], rules), Ok(None));
            assert!(request.answer().ends_with("\r\n\r\n"));
            let nobody = request.client(|_| true);
            let all: Option<Vec<_>> = request.forwarded_for.iter().copied().collect();
            assert_eq!(nobody, all.and_then(|all| all.first().copied()), "all are addresses");
        }
        Ok(None) => assert!(bytes.len() < HEADER_BYTES_MAX, "a request ends somewhere"),
        Err(error) => check_refusal(&error),
    }
}

/// What a refused client reads is HTTP, and its length is as stated.
fn check_refusal(error: &UpgradeError) {
    let answer = error.answer();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a header and a body");
    assert!(head.starts_with("HTTP/1.1 4"));
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
}

fn answer(bytes: &[u8]) {
    let offer = Offer::new("localhost", PATH, NONCE);
    match offer.parse_answer(bytes) {
        Ok(Some(len)) => {
            assert_eq!(offer.parse_answer(&bytes[..len]), Ok(Some(len)));
            assert_eq!(offer.parse_answer(&bytes[..len - 1]), Ok(None));
            let other = Offer::new("localhost", PATH, [8; KEY_BYTES]);
            assert!(other.parse_answer(bytes).is_err(), "no answer fits two offers");
        }
        Ok(None) => assert!(bytes.len() < HEADER_BYTES_MAX, "an answer ends somewhere"),
        Err(_) => {}
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let offer = Offer::new("localhost:8083", PATH, NONCE);
    let request = offer.request();
    let parsed = parse_request(request.as_bytes(), Rules { path: PATH, origins: &Origins::Any });
    let (accepted, _) = parsed.expect("a good request").expect("a whole one");
    let headers = "Origin: https://app.example\r\nX-Forwarded-For: 192.0.2.7, [::1]:80\r\nUpgrade";
    let proxied = request.replacen("Upgrade", headers, 1);
    let requests = [request.to_owned(), proxied, request.replace(PATH, "/mqtt?a=b#c")];
    let answers = [accepted.answer(), UpgradeError::NotUpgrade.answer()];
    let requests = requests.iter().map(|text| [&[0], text.as_bytes()].concat());
    let answers = answers.iter().map(|text| [&[1], text.as_bytes()].concat());
    requests.chain(answers).collect()
}

const PATH: &str = "/mqtt";
const NONCE: [u8; KEY_BYTES] = [7; KEY_BYTES];
