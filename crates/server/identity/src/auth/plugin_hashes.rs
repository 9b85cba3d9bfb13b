//! Password hashes that plugins of mosquitto write: PBKDF2 of mosquitto-go-auth, and bcrypt.

use base64::Engine;
use base64::alphabet::BCRYPT;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, STANDARD};
use sha2::{Sha256, Sha512};

/// A hash of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginHash {
    /// `PBKDF2$sha512$iterations$salt$hash`
    Pbkdf2 {
        digest: Digest,
        iterations: u32,
        /// As it is written. The plugin decodes it, or takes its text: it does not say which.
        salt: String,
        hash: Vec<u8>,
    },
    /// `$2b$cost$salt and hash`
    Bcrypt {
        /// `a`, `b` or `y`: they are the same for passwords of up to 72 bytes.
        version: char,
        cost: u32,
        salt: [u8; 16],
        hash: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    Sha256,
    Sha512,
}

impl PluginHash {
    /// Reads the fields of a secret, split at `$`. None: it is none of these kinds.
    ///
    /// # Errors
    ///
    /// What is wrong with one of these kinds.
    pub(super) fn parse(fields: &[&str]) -> Option<Result<Self, &'static str>> {
        match fields {
            ["PBKDF2", digest, iterations, salt, hash] => {
                Some(parse_pbkdf2(digest, iterations, salt, hash))
            }
            ["", version @ ("2a" | "2b" | "2y"), cost, rest] => {
                Some(parse_bcrypt(version, cost, rest))
            }
            _ => None,
        }
    }

    /// The hashes that a password has: one of them must be [`Self::hash`].
    pub(super) fn compute(&self, password: &[u8]) -> Vec<Vec<u8>> {
        match self {
            // Both forms of the salt are tried always, so that time does not say which it is.
            Self::Pbkdf2 { digest, iterations, salt, hash } => {
                let decoded = STANDARD.decode(salt).unwrap_or_default();
                let salts = [decoded.as_slice(), salt.as_bytes()];
                let of_salt = |salt: &[u8]| {
                    let mut computed = vec![0; hash.len()];
                    match digest {
                        Digest::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(
                            password,
                            salt,
                            *iterations,
                            &mut computed,
                        ),
                        Digest::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(
                            password,
                            salt,
                            *iterations,
                            &mut computed,
                        ),
                    }
                    computed
                };
                salts.into_iter().filter(|salt| !salt.is_empty()).map(of_salt).collect()
            }
            Self::Bcrypt { cost, salt, .. } => {
                // The algorithm takes a final zero byte, and 72 bytes at most.
                let mut text = password.to_vec();
                text.push(0);
                text.truncate(BCRYPT_PASSWORD_BYTES);
                let computed = bcrypt::bcrypt(*cost, *salt, &text);
                vec![computed[..BCRYPT_HASH_BYTES].to_vec()]
            }
        }
    }

    pub(super) fn hash(&self) -> &[u8] {
        match self {
            Self::Pbkdf2 { hash, .. } | Self::Bcrypt { hash, .. } => hash,
        }
    }

    /// One that costs as much to check, and for which no password is right.
    pub(super) fn decoy(&self) -> Self {
        let mut decoy = self.clone();
        match &mut decoy {
            Self::Pbkdf2 { salt, hash, .. } => {
                // As long, so that both forms are tried if they are with the real one.
                let is_base64 = STANDARD.decode(&*salt).is_ok();
                *salt = if is_base64 { "AAAA".into() } else { "-".into() };
                hash.fill(0);
            }
            Self::Bcrypt { salt, hash, version, .. } => {
                salt.fill(0);
                hash.fill(0);
                *version = 'b';
            }
        }
        decoy
    }
}

impl std::fmt::Display for PluginHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pbkdf2 { digest, iterations, salt, hash } => {
                let digest = match digest {
                    Digest::Sha256 => "sha256",
                    Digest::Sha512 => "sha512",
                };
                write!(f, "PBKDF2${digest}${iterations}${salt}${}", STANDARD.encode(hash))
            }
            Self::Bcrypt { version, cost, salt, hash } => {
                let (salt, hash) = (BASE64.encode(salt), BASE64.encode(hash));
                write!(f, "$2{version}${cost:02}${salt}{hash}")
            }
        }
    }
}

fn parse_pbkdf2(
    digest: &str,
    iterations: &str,
    salt: &str,
    hash: &str,
) -> Result<PluginHash, &'static str> {
    let digest = match digest {
        "sha256" => Digest::Sha256,
        "sha512" => Digest::Sha512,
        _ => return Err("the digest of PBKDF2 must be sha256 or sha512"),
    };
    let iterations = iterations.parse().ok().filter(|count| (1..=ITERATIONS_MAX).contains(count));
    let iterations = iterations.ok_or("the iterations must be from 1 to 2000000")?;
    let hash = STANDARD.decode(hash).ok();
    let hash = hash.filter(|hash| (HASH_BYTES_MIN..=HASH_BYTES_MAX).contains(&hash.len()));
    let hash = hash.ok_or("the hash must be base64 of 16 to 64 bytes")?;
    if salt.is_empty() {
        return Err("the salt is empty");
    }
    Ok(PluginHash::Pbkdf2 { digest, iterations, salt: salt.into(), hash })
}

fn parse_bcrypt(version: &str, cost: &str, rest: &str) -> Result<PluginHash, &'static str> {
    let cost: u32 = cost.parse().map_err(|_| "the cost of bcrypt must be a number")?;
    if !(BCRYPT_COST_MIN..=BCRYPT_COST_MAX).contains(&cost) {
        return Err("the cost of bcrypt must be from 4 to 14: one check would take seconds");
    }
    const DAMAGED: &str = "the secret is damaged";
    let (salt, hash) = rest.split_at_checked(BCRYPT_SALT_CHARS).ok_or(DAMAGED)?;
    let salt = BASE64.decode(salt).map_err(|_| DAMAGED)?.try_into().map_err(|_| DAMAGED)?;
    let hash = BASE64.decode(hash).map_err(|_| DAMAGED)?;
    if hash.len() != BCRYPT_HASH_BYTES {
        return Err(DAMAGED);
    }
    let version = version.chars().last().unwrap_or('b');
    Ok(PluginHash::Bcrypt { version, cost, salt, hash })
}

/// bcrypt's own alphabet. Bits that are left over may be set.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&BCRYPT, NO_PAD.with_decode_allow_trailing_bits(true));

/// A check takes up to a second, so that a file cannot stall the auth threads.
pub(super) const ITERATIONS_MAX: u32 = 2_000_000;
const BCRYPT_COST_MIN: u32 = 4;
const BCRYPT_COST_MAX: u32 = 14;

const BCRYPT_SALT_CHARS: usize = 22;
const BCRYPT_HASH_BYTES: usize = 23;
const BCRYPT_PASSWORD_BYTES: usize = 72;

/// A short hash would be equal to another one by chance.
const HASH_BYTES_MIN: usize = 16;
const HASH_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PluginHash, &'static str> {
        let fields: Vec<&str> = text.split('$').collect();
        PluginHash::parse(&fields).expect("a known kind")
    }

    fn accepts(text: &str, password: &str) -> bool {
        let hash = parse(text).unwrap();
        assert_eq!(hash.to_string(), text, "it is written as it was read");
        hash.compute(password.as_bytes()).iter().any(|computed| computed == hash.hash())
    }

    #[test]
    fn bcrypt_is_that_of_the_c_library() {
        // Written by crypt(3).
        let hash = "$2b$06$abcdefghijklmnopqrstuuNOnw6EGKc3988bZtxlqHMps74iVdpdC";
        assert!(accepts(hash, "s3cret") && !accepts(hash, "s3creu") && !accepts(hash, ""));
        assert!(accepts(&hash.replace("$2b", "$2y"), "s3cret"));
        assert!(accepts(&hash.replace("$2b", "$2a"), "s3cret"));
        let empty = "$2b$04$abcdefghijklmnopqrstuubyCG3zY1GIXMyxfivm.ClDiInHzxjiq";
        assert!(accepts(empty, "") && !accepts(empty, "\0x"));
    }

    #[test]
    fn both_forms_of_a_salt_are_understood() {
        // Computed by Python's hashlib: the salt as text, and decoded.
        for hash in [
            "TnMw+/KSI/zicaVZxI3ZpmNP9aiAAbV2C8xDUlebSbbj6asgjKCQ04sz6C3XOPonmEx+5cGpObApBIQ+q1OJIA==",
            "GP1uUMT9cy31VKKjgFPyaxc3vyL7O4gxMC7tY7G6kL5potEnzmWVC8Yzs5fwaIHo7ibj4NrjfbwJLe5WMsCmIg==",
        ] {
            let text = format!("PBKDF2$sha512$1000$c2FsdHNhbHRzYWx0${hash}");
            assert!(accepts(&text, "s3cret") && !accepts(&text, "s3creu"));
        }
        let text = "PBKDF2$sha256$1$salt$VawEblbjCJ/sFpHCJUS2BflBhSFt3gRl5oudV8INrLw=";
        assert!(accepts(text, "passwd") && !accepts(text, "passwe"));
    }

    #[test]
    fn a_hash_that_would_stall_a_thread_is_refused() {
        let hash = "A".repeat(43) + "=";
        for (text, what) in [
            (format!("PBKDF2$sha512$2000001$salt${hash}"), "2000000"),
            (format!("PBKDF2$md5$10$salt${hash}"), "sha256 or sha512"),
            ("PBKDF2$sha512$10$salt$QUJD".into(), "16 to 64"),
            (format!("PBKDF2$sha512$10$${hash}"), "salt"),
            (format!("$2b$15${}", "a".repeat(53)), "4 to 14"),
            (format!("$2b$10${}", "a".repeat(52)), "damaged"),
            ("$2b$10$é".into(), "damaged"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn no_password_is_right_for_a_decoy() {
        let hash = "A".repeat(42) + "E=";
        for text in [
            format!("PBKDF2$sha512$10$c2FsdA==${hash}"),
            format!("PBKDF2$sha512$10$a-b${hash}"),
            format!("$2y$04${}", "a".repeat(53)),
        ] {
            let (real, decoy) = (parse(&text).unwrap(), parse(&text).unwrap().decoy());
            assert_eq!(real.compute(b"x").len(), decoy.compute(b"x").len());
            assert!(!decoy.compute(b"").iter().any(|it| it == decoy.hash()));
        }
    }
}
