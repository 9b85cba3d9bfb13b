//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side, and the client's for our own tools. No
//! sockets and no clocks.
//!
//! MQTT 5 carries the exchange in AUTH packets with the method `SCRAM-SHA-256`: the client's first
//! message comes with CONNECT, the server's last one goes out with CONNACK. Channel binding is
//! refused (`p=`). Names and passwords are taken as the UTF-8 they are, without SASLprep; for ASCII
//! this is the same.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;
use sha2::{Digest, Sha256};

use super::cache::keyed;
use base::{equal_in_constant_time, random};

/// The method name in MQTT 5's Authentication Method property.
pub const METHOD: &str = "SCRAM-SHA-256";

/// What a server keeps of a password. It does not suffice to log in elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub iterations: u32,
    pub salt: Vec<u8>,
    pub stored_key: [u8; 32],
    pub server_key: [u8; 32],
}

/// An exchange between the client's first and its final message.
#[derive(Clone, Debug)]
pub struct Exchange {
    username: String,
    credentials: Credentials,
    /// Client-first-bare, server-first and a comma between: what both sides sign.
    signed: String,
    /// The `c=` value that the final message must repeat.
    channel: String,
    nonce: String,
}

/// The client has proved that it knows the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success {
    pub username: String,
    /// For the Authentication Data of the CONNACK: proves to the client that the server knows,
    /// too.
    pub server_final: Vec<u8>,
}

/// Why an exchange ends without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    #[error("invalid SCRAM message")]
    Malformed,
    #[error("channel binding is not supported")]
    ChannelBinding,
    #[error("unknown SCRAM extension")]
    Extension,
    #[error("an authorization identity is not supported")]
    OtherIdentity,
    #[error("wrong nonce or channel binding")]
    Mismatch,
    #[error("wrong username or password")]
    Refused,
}

impl Exchange {
    /// Takes the client's first message and answers it. `nonce` is the server's part: fresh random
    /// printable text without commas. `find` gives the credentials of a user name; for one that
    /// does not exist it gives [`Credentials::decoy`], so that the client learns nothing from the
    /// answer.
    ///
    /// # Errors
    ///
    /// A message that is malformed, or asks for what is not offered.
    pub fn start(
        client_first: &[u8],
        nonce: &str,
        find: impl FnOnce(&str) -> Credentials,
    ) -> Result<(Self, Vec<u8>), ScramError> {
        let text = text_of(client_first)?;
        let (flag, rest) = text.split_once(',').ok_or(ScramError::Malformed)?;
        let (authorize_as, bare) = rest.split_once(',').ok_or(ScramError::Malformed)?;
        match flag {
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Malformed),
        }
        if bare.starts_with("m=") {
            return Err(ScramError::Extension);
        }
        let mut fields = bare.split(',');
        let username = decode_name(field(fields.next(), "n=")?)?;
        let client_nonce = field(fields.next(), "r=")?;
        if client_nonce.is_empty() || !client_nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ScramError::Malformed);
        }
        let is_other = match authorize_as {
            "" => false,
            _ => decode_name(field(Some(authorize_as), "a=")?)? != username,
        };
        if is_other {
            return Err(ScramError::OtherIdentity);
        }
        let credentials = find(&username);
        let nonce = format!("{client_nonce}{nonce}");
        let salt = STANDARD.encode(&credentials.salt);
        let server_first = format!("r={nonce},s={salt},i={}", credentials.iterations);
        let signed = format!("{bare},{server_first}");
        let channel = STANDARD.encode(format!("{flag},{authorize_as},"));
        Ok((Self { username, credentials, signed, channel, nonce }, server_first.into_bytes()))
    }

    /// Takes the client's final message.
    ///
    /// # Errors
    ///
    /// A message that is malformed or does not belong to this exchange, or a wrong proof.
    pub fn finish(self, client_final: &[u8]) -> Result<Success, ScramError> {
        let text = text_of(client_final)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramError::Malformed)?;
        let proof: [u8; 32] = STANDARD
            .decode(proof)
            .ok()
            .and_then(|proof| proof.try_into().ok())
            .ok_or(ScramError::Malformed)?;
        let mut fields = without_proof.split(',');
        let channel = field(fields.next(), "c=")?;
        let nonce = field(fields.next(), "r=")?;
        if channel != self.channel || nonce != self.nonce {
            return Err(ScramError::Mismatch);
        }
        let signed = format!("{},{without_proof}", self.signed);
        let signature = mac(&self.credentials.stored_key, signed.as_bytes());
        let client_key = xor(proof, signature);
        if !equal_in_constant_time(&sha256(&client_key), &self.credentials.stored_key) {
            return Err(ScramError::Refused);
        }
        let proof_of_server = mac(&self.credentials.server_key, signed.as_bytes());
        let server_final = format!("v={}", STANDARD.encode(proof_of_server)).into_bytes();
        Ok(Success { username: self.username, server_final })
    }

    pub fn username(&self) -> &str {
        &self.username
    }
}

/// The client's side of an exchange, for the tools that connect.
#[derive(Clone, Debug)]
pub struct ClientExchange {
    bare: String,
    nonce: String,
}

impl ClientExchange {
    /// The client's first message, and what is needed to go on.
    pub fn start(username: &str) -> (Vec<u8>, Self) {
        Self::with_nonce(username, STANDARD.encode(random::<18>()))
    }

    /// Answers the server's first message: the client's final message, and the server's final one
    /// as it has to be.
    ///
    /// # Errors
    ///
    /// A message that is malformed, or of a server that asks for absurdly much work.
    pub fn answer(
        &self,
        server_first: &[u8],
        password: &[u8],
    ) -> Result<(Vec<u8>, Vec<u8>), ScramError> {
        let server_first = text_of(server_first)?;
        let mut fields = server_first.split(',');
        let nonce = field(fields.next(), "r=")?;
        let salt =
            STANDARD.decode(field(fields.next(), "s=")?).map_err(|_| ScramError::Malformed)?;
        let iterations = field(fields.next(), "i=")?.parse().map_err(|_| ScramError::Malformed)?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Mismatch);
        }
        if !(1..=ITERATIONS_MAX).contains(&iterations) {
            return Err(ScramError::Malformed);
        }
        let (client_key, server_key) = derive(password, &salt, iterations);
        // biws is "n,,": no channel binding, and nobody else's identity.
        let without_proof = format!("c=biws,r={nonce}");
        let signed = format!("{},{server_first},{without_proof}", self.bare);
        let proof = xor(client_key, mac(&sha256(&client_key), signed.as_bytes()));
        let client_final = format!("{without_proof},p={}", STANDARD.encode(proof));
        let server_final = format!("v={}", STANDARD.encode(mac(&server_key, signed.as_bytes())));
        Ok((client_final.into_bytes(), server_final.into_bytes()))
    }

    fn with_nonce(username: &str, nonce: String) -> (Vec<u8>, Self) {
        let username = username.replace('=', "=3D").replace(',', "=2C");
        let bare = format!("n={username},r={nonce}");
        (format!("n,,{bare}").into_bytes(), Self { bare, nonce })
    }
}

impl Credentials {
    /// Derives what is kept of a password. Takes milliseconds.
    pub fn new(password: &[u8], salt: [u8; 16], iterations: u32) -> Self {
        let (client_key, server_key) = derive(password, &salt, iterations);
        Self { iterations, salt: salt.to_vec(), stored_key: sha256(&client_key), server_key }
    }

    /// Credentials for a user that does not exist: the same for the same name and secret, so that
    /// asking twice tells nothing, and with no password.
    pub fn decoy(secret: &[u8; 32], username: &str) -> Self {
        let seed = mac(secret, username.as_bytes());
        let salt = seed[..16].to_vec();
        // Nothing hashes to its own seed, as far as anybody knows how to find.
        Self { iterations: ITERATIONS, salt, stored_key: mac(&seed, b"stored"), server_key: seed }
    }

    /// Checks a plain password.
    pub fn verify(&self, password: &[u8]) -> bool {
        let (client_key, _) = derive(password, &self.salt, self.iterations);
        equal_in_constant_time(&sha256(&client_key), &self.stored_key)
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(',').collect();
        let [iterations, salt, stored_key, server_key] = fields.as_slice() else { return None };
        let key = |text| -> Option<[u8; 32]> { STANDARD.decode(text).ok()?.try_into().ok() };
        Some(Self {
            iterations: iterations
                .parse()
                .ok()
                .filter(|count| (1..=ITERATIONS_MAX).contains(count))?,
            salt: STANDARD.decode(salt).ok().filter(|salt| !salt.is_empty())?,
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
        })
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            [&self.salt[..], &self.stored_key, &self.server_key].map(|part| STANDARD.encode(part));
        write!(f, "{},{}", self.iterations, parts.join(","))
    }
}

/// The client key and the server key of a password.
fn derive(password: &[u8], salt: &[u8], iterations: u32) -> ([u8; 32], [u8; 32]) {
    let mut salted = [0; 32];
    pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted);
    (mac(&salted, b"Client Key"), mac(&salted, b"Server Key"))
}

fn mac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut mac = keyed(key);
    mac.update(data);
    mac.finalize().into_bytes().into()
}

fn sha256(data: &[u8]) -> [u8; 32] {
    Sha256::digest(data).into()
}

fn xor(mut a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
    for (x, y) in a.iter_mut().zip(b) {
        *x ^= y;
    }
    a
}

fn text_of(message: &[u8]) -> Result<&str, ScramError> {
    let is_short = message.len() <= MESSAGE_BYTES_MAX;
    is_short.then(|| std::str::from_utf8(message).ok()).flatten().ok_or(ScramError::Malformed)
}

fn field<'a>(text: Option<&'a str>, prefix: &str) -> Result<&'a str, ScramError> {
    text.and_then(|text| text.strip_prefix(prefix)).ok_or(ScramError::Malformed)
}

/// `=2C` is a comma, `=3D` an equals sign, and no other `=` may stand in a name.
fn decode_name(text: &str) -> Result<String, ScramError> {
    let mut parts = text.split('=');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (sign, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return Err(ScramError::Malformed),
        };
        name.push(sign);
        name.push_str(rest);
    }
    if name.is_empty() { Err(ScramError::Malformed) } else { Ok(name) }
}

/// For new credentials. RFC 7677 asks for at least 4096; the work is the client's, once per
/// connection.
pub const ITERATIONS: u32 = 10_000;
/// More would let a damaged file stop a client for minutes.
const ITERATIONS_MAX: u32 = 10_000_000;
const MESSAGE_BYTES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    fn pencil() -> Credentials {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Credentials::new(b"pencil", salt.try_into().unwrap(), 4096)
    }

    #[test]
    fn the_exchange_of_rfc_7677_section_3_holds() {
        let (exchange, server_first) = Exchange::start(
            b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            |name| {
                assert_eq!(name, "user");
                pencil()
            },
        )
        .unwrap();
        assert_eq!(
            server_first,
            b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
              s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let success = exchange
            .finish(
                b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                  p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            )
            .unwrap();
        assert_eq!(success.username, "user");
        assert_eq!(success.server_final, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn a_right_password_gets_in_and_a_wrong_one_does_not() {
        for (password, is_right) in [(b"pencil", true), (b"pencik", false)] {
            let (first, client) = ClientExchange::start("us,er=");
            let (exchange, challenge) = Exchange::start(&first, "xyz", |_| pencil()).unwrap();
            assert_eq!(exchange.username(), "us,er=");
            let (last, expected) = client.answer(&challenge, password).unwrap();
            match exchange.finish(&last) {
                Ok(success) => assert!(is_right && success.server_final == expected),
                Err(error) => assert!(!is_right && error == ScramError::Refused),
            }
        }
    }

    #[test]
    fn the_client_of_rfc_7677_section_3_says_the_same() {
        let (first, client) = ClientExchange::with_nonce("user", "rOprNGfwEbeRWgbNEkqO".into());
        assert_eq!(first, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                          s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let (last, expected) = client.answer(challenge, b"pencil").unwrap();
        assert!(last.ends_with(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="));
        assert_eq!(expected, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        assert_eq!(client.answer(b"r=other,s=QUJD,i=1", b"x"), Err(ScramError::Mismatch));
        assert_eq!(client.answer(b"e=other-error", b"x"), Err(ScramError::Malformed));
        let absurd = b"r=rOprNGfwEbeRWgbNEkqOx,s=QUJD,i=4000000000";
        assert_eq!(client.answer(absurd, b"x"), Err(ScramError::Malformed));
    }

    #[test]
    fn an_unknown_user_is_answered_alike_and_refused() {
        let secret = [7; 32];
        let (first, client) = ClientExchange::start("eve");
        let start =
            || Exchange::start(&first, "xyz", |name| Credentials::decoy(&secret, name)).unwrap();
        let (exchange, challenge) = start();
        assert_eq!(challenge, start().1, "asking twice tells nothing");
        assert!(challenge.ends_with(format!(",i={ITERATIONS}").as_bytes()));
        let (last, _) = client.answer(&challenge, b"any").unwrap();
        assert_eq!(exchange.finish(&last), Err(ScramError::Refused));
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        let start = |text: &str| Exchange::start(text.as_bytes(), "x", |_| pencil()).map(drop);
        assert_eq!(start("p=tls-unique,,n=user,r=a"), Err(ScramError::ChannelBinding));
        assert_eq!(start("n,a=root,n=user,r=a"), Err(ScramError::OtherIdentity));
        assert_eq!(start("n,a=user,n=user,r=a"), Ok(()));
        assert_eq!(start("y,,n=user,r=a"), Ok(()));
        assert_eq!(start("n,,m=x,n=user,r=a"), Err(ScramError::Extension));
        let long = format!("n,,n=user,r={}", "a".repeat(5_000));
        for text in [
            "",
            "n",
            "n,,",
            "n,,n=user",
            "n,,n=,r=a",
            "n,,n=us=er,r=a",
            "n,,n=u,r=",
            "x,,n=u,r=a",
            &long,
        ] {
            assert_eq!(start(text), Err(ScramError::Malformed), "{text}");
        }
    }

    #[test]
    fn a_final_message_of_another_exchange_is_refused() {
        let finish = |text: &str| {
            let (exchange, _) = Exchange::start(b"n,,n=user,r=abc", "xyz", |_| pencil()).unwrap();
            exchange.finish(text.as_bytes()).unwrap_err()
        };
        let proof = STANDARD.encode([0; 32]);
        assert_eq!(finish(&format!("c=biws,r=abcother,p={proof}")), ScramError::Mismatch);
        assert_eq!(finish(&format!("c=eSws,r=abcxyz,p={proof}")), ScramError::Mismatch);
        assert_eq!(finish(&format!("c=biws,r=abcxyz,p={proof}")), ScramError::Refused);
        for text in ["", "c=biws,r=abcxyz", "c=biws,r=abcxyz,p=QUJD", "r=abcxyz,p="] {
            assert_eq!(finish(text), ScramError::Malformed, "{text}");
        }
    }

    #[test]
    fn credentials_read_back() {
        let credentials = pencil();
        assert_eq!(Credentials::parse(&credentials.to_string()), Some(credentials));
        assert_eq!(Credentials::parse("0,QUJD,QUJD,QUJD"), None);
    }
}
