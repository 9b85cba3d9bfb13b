//! Signatures of requests, as Standard Webhooks has them: an endpoint that knows the secret can
//! tell who has sent an event, and when.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// What a signature covers beside the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) id: String,
    pub(super) timestamp: u64,
    pub(super) signature: String,
}

/// `secret`: as it is, or base64 behind `whsec_`. `at_secs`: since 1970. The same body has the same
/// id, so that an endpoint can tell a copy.
pub(super) fn sign(secret: &str, id: Option<&str>, at_secs: u64, body: &[u8]) -> Signed {
    let id = id.map_or_else(|| digest(body), str::to_owned);
    let key = secret.strip_prefix("whsec_").and_then(|text| BASE64_STANDARD.decode(text).ok());
    let key = key.unwrap_or_else(|| secret.as_bytes().to_vec());
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) else { unreachable!() };
    mac.update(format!("{id}.{at_secs}.").as_bytes());
    mac.update(body);
    let signature = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    Signed { id, timestamp: at_secs, signature }
}

fn digest(body: &[u8]) -> String {
    let hash = Sha256::digest(body);
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's libraries.
    #[test]
    fn it_is_the_signature_of_the_reference() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let body = br#"{"test": 2432232314}"#;
        let id = Some("msg_p5jXN8AQM9LWM0D4loKWxJek");
        let signed = sign(secret, id, 1_614_265_330, body);
        assert_eq!(signed.signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn the_same_body_has_the_same_id() {
        let id = |body: &[u8]| sign("s", None, 0, body).id;
        assert_eq!(id(b"a"), id(b"a"));
        assert_ne!(id(b"a"), id(b"b"));
    }
}
