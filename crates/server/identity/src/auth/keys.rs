//! The keys that tokens are signed with: from PEM files, JSON Web Key Sets (RFC 7517), secrets.
//!
//! A key says which algorithms it can be used with, and a token's header only chooses among those:
//! a token cannot have a public key taken for a secret (RFC 8725, section 3.1).

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
    RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use crate::json;

/// Keys of one set; more are refused.
const KEYS_MAX: usize = 1_000;

/// Keys that the signature of one token is tried with; those of its id come first. A token without
/// an id means every key of its algorithm, and anybody can send one.
pub(super) const KEYS_TRIED_MAX: usize = 16;

/// RFC 7518, section 3.2: a secret has as many bytes as what the shortest of the algorithms makes.
pub(super) const SECRET_BYTES_MIN: usize = 32;

/// What signs a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

/// Keys by which tokens are checked.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, where that is said.
    only: Option<Algorithm>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// DER, as a PEM file has it.
    RsaDer(Vec<u8>),
    /// A point or DER.
    P256(Vec<u8>),
    P384(Vec<u8>),
    P521(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// What came of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    Right,
    /// None of the keys that it means has made it.
    Wrong,
    /// There is no key of such an id for such an algorithm.
    NoKey,
}

impl Algorithm {
    /// `none` is none of them.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "HS256" => Self::Hs256,
            "HS384" => Self::Hs384,
            "HS512" => Self::Hs512,
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "ES512" => Self::Es512,
            "EdDSA" | "Ed25519" => Self::EdDsa,
            _ => return None,
        })
    }

    fn of_hmac(self) -> Option<hmac::Algorithm> {
        Some(match self {
            Self::Hs256 => hmac::HMAC_SHA256,
            Self::Hs384 => hmac::HMAC_SHA384,
            Self::Hs512 => hmac::HMAC_SHA512,
            _ => return None,
        })
    }

    fn of_rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &RSA_PSS_2048_8192_SHA512,
            _ => return None,
        })
    }
}

impl KeySet {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.keys.append(&mut other.keys);
    }

    /// A secret that whoever signs has, too.
    ///
    /// # Errors
    ///
    /// It is too short.
    pub(super) fn of_secret(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(format!(
                "the secret must have at least {SECRET_BYTES_MIN} bytes (RFC 7518), got {}; create one with \
                `openssl rand -base64 48`",
                bytes.len()
            ));
        }
        let material = Material::Secret(bytes.to_vec());
        Ok(Self { keys: vec![Key { id: None, only: None, material }] })
    }

    /// Public keys of a PEM file.
    ///
    /// # Errors
    ///
    /// There is none, or one of another kind.
    pub(super) fn of_pem(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let mut rest = text;
        while let Some((_, behind)) = rest.split_once("-----BEGIN ") {
            let (label, behind) = behind.split_once("-----").ok_or("a PEM label has no end")?;
            let (body, behind) = behind.split_once("-----END ").ok_or("a PEM block has no end")?;
            rest = behind;
            let body: String = body.split_whitespace().collect();
            let der = STANDARD.decode(body).map_err(|_| "a PEM block is damaged")?;
            let material = match label {
                "PUBLIC KEY" => material_of_der(der)?,
                "RSA PUBLIC KEY" => Material::RsaDer(der),
                "CERTIFICATE" => {
                    return Err("expected a public key, got a certificate; extract the key with \
                    `openssl x509 -pubkey -noout`"
                        .into());
                }
                _ => return Err(format!("expected a public key, got '{label}'")),
            };
            keys.push(Key { id: None, only: None, material });
        }
        if keys.is_empty() {
            return Err("the file has no PEM public key".into());
        }
        Ok(Self { keys })
    }

    /// The keys of a JSON Web Key Set that can check signatures. Others are passed over, as RFC
    /// 7517 (section 5) asks.
    ///
    /// # Errors
    ///
    /// The text is no such set.
    pub(super) fn of_jwks(text: &[u8]) -> Result<Self, String> {
        Self::of_jwks_with(text, |_| true)
    }

    /// The same of a set that anybody can fetch: a secret in it is none.
    pub(super) fn of_public_jwks(text: &[u8]) -> Result<Self, String> {
        Self::of_jwks_with(text, |key| !matches!(key.material, Material::Secret(_)))
    }

    fn of_jwks_with(text: &[u8], takes: impl Fn(&Key) -> bool) -> Result<Self, String> {
        let parsed: Value = json::read(text).map_err(|error| {
            format!(
                "the key set must be JSON: \
            {error}"
            )
        })?;
        let listed = parsed.get("keys").and_then(Value::as_array);
        let listed = listed.ok_or("a JSON Web Key Set must have a list `keys`")?;
        if listed.len() > KEYS_MAX {
            return Err(format!("at most {KEYS_MAX} keys are supported"));
        }
        let keys = listed.iter().filter_map(|key| key_of_jwk(key.as_object()?));
        Ok(Self { keys: keys.filter(takes).collect() })
    }

    /// Checks a signature with the keys that the header means: those of its id, if it has one and
    /// they have, and of its algorithm. At most [`KEYS_TRIED_MAX`] are tried.
    pub(super) fn check(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
        signed: &[u8],
        signature: &[u8],
    ) -> Checked {
        let is_named = |key: &&Key| id.is_none() || key.id.as_deref() == id;
        let is_nameless = |key: &&Key| id.is_some() && key.id.is_none();
        let is_for_it = |key: &&Key| key.only.is_none_or(|only| only == algorithm);
        let named = self.keys.iter().filter(is_named);
        let meant = named.chain(self.keys.iter().filter(is_nameless)).filter(is_for_it);
        let mut outcome = Checked::NoKey;
        let tried = meant.filter(|key| key.material.is_for(algorithm)).take(KEYS_TRIED_MAX);
        for key in tried {
            if key.material.verify(algorithm, signed, signature) == Some(true) {
                return Checked::Right;
            }
            // A key without an id says nothing of those that have the id of the token.
            if is_named(&key) {
                outcome = Checked::Wrong;
            }
        }
        outcome
    }
}

impl Material {
    fn is_for(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Secret(_) => algorithm.of_hmac().is_some(),
            Self::Rsa { .. } | Self::RsaDer(_) => algorithm.of_rsa().is_some(),
            Self::P256(_) => algorithm == Algorithm::Es256,
            Self::P384(_) => algorithm == Algorithm::Es384,
            Self::P521(_) => algorithm == Algorithm::Es512,
            Self::Ed25519(_) => algorithm == Algorithm::EdDsa,
        }
    }

    /// None: the key is not for such an algorithm.
    fn verify(&self, algorithm: Algorithm, signed: &[u8], signature: &[u8]) -> Option<bool> {
        let ec = |verifier: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(verifier, key).verify(signed, signature).is_ok()
        };
        match (self, algorithm) {
            (Self::Secret(secret), _) => {
                let key = hmac::Key::new(algorithm.of_hmac()?, secret);
                Some(hmac::verify(&key, signed, signature).is_ok())
            }
            (Self::Rsa { n, e }, _) => {
                let key = RsaPublicKeyComponents { n, e };
                Some(key.verify(algorithm.of_rsa()?, signed, signature).is_ok())
            }
            (Self::RsaDer(der), _) => Some(ec(algorithm.of_rsa()?, der)),
            (Self::P256(key), Algorithm::Es256) => Some(ec(&ECDSA_P256_SHA256_FIXED, key)),
            (Self::P384(key), Algorithm::Es384) => Some(ec(&ECDSA_P384_SHA384_FIXED, key)),
            (Self::P521(key), Algorithm::Es512) => Some(ec(&ECDSA_P521_SHA512_FIXED, key)),
            (Self::Ed25519(key), Algorithm::EdDsa) => Some(ec(&ED25519, key)),
            _ => None,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// None: a key for something else, or of a kind that nobody here knows.
fn key_of_jwk(jwk: &Map<String, Value>) -> Option<Key> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
    if text("use").is_some_and(|what| what != "sig") {
        return None;
    }
    let may_verify = |ops: &Vec<Value>| ops.iter().any(|op| op == "verify");
    if !jwk.get("key_ops").and_then(Value::as_array).is_none_or(may_verify) {
        return None;
    }
    let only = match text("alg") {
        Some(name) => Some(Algorithm::named(name)?),
        None => None,
    };
    let point = |len: usize| {
        let (x, y) = (bytes("x")?, bytes("y")?);
        let is_whole = x.len() == len && y.len() == len;
        // SEC 1, section 2.3.3: an uncompressed point.
        is_whole.then(|| [&[4][..], &x, &y].concat())
    };
    let material = match (text("kty")?, text("crv")) {
        ("RSA", _) => Material::Rsa { n: bytes("n")?, e: bytes("e")? },
        ("EC", Some("P-256")) => Material::P256(point(32)?),
        ("EC", Some("P-384")) => Material::P384(point(48)?),
        ("EC", Some("P-521")) => Material::P521(point(66)?),
        ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x").filter(|x| x.len() == 32)?),
        ("oct", _) => Material::Secret(bytes("k").filter(|k| k.len() >= SECRET_BYTES_MIN)?),
        _ => return None,
    };
    Some(Key { id: text("kid").map(Into::into), only, material })
}

/// By the object identifier that stands at its front (RFC 5280, section 4.1.2.7).
fn material_of_der(der: Vec<u8>) -> Result<Material, String> {
    let front = &der[..der.len().min(FRONT_BYTES)];
    let has = |oid: &[u8]| front.windows(oid.len()).any(|part| part == oid);
    if has(&OID_RSA) {
        Ok(Material::RsaDer(der))
    } else if has(&OID_P256) {
        Ok(Material::P256(der))
    } else if has(&OID_P384) {
        Ok(Material::P384(der))
    } else if has(&OID_P521) {
        Ok(Material::P521(der))
    } else if has(&OID_ED25519) {
        Ok(Material::Ed25519(der))
    } else {
        Err("the public key is neither RSA, P-256, P-384, P-521 nor Ed25519".into())
    }
}

/// Lengths and identifiers end before.
const FRONT_BYTES: usize = 28;
const OID_RSA: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const OID_P256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const OID_P384: [u8; 5] = [0x2b, 0x81, 0x04, 0x00, 0x22];
const OID_P521: [u8; 5] = [0x2b, 0x81, 0x04, 0x00, 0x23];
const OID_ED25519: [u8; 3] = [0x2b, 0x65, 0x70];
