//! JSON Web Tokens (RFC 7519) in the password of a CONNECT.
//!
//! A check takes 20 to 100 us and happens on an acceptor thread. Only where a token names a key
//! that is not known yet it waits for the key set to be fetched, off all threads that serve
//! clients.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use policy::OwnRules;
use policy::{Attribute, Attributes, Number, Principal};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::acl_claim::{ACL, kind_of};
use super::keys::{Algorithm, Checked, KeySet};
use super::template::{is_name, value_of};
use super::{AuthRequest, LATEST_SECS, Opinion, Proof, acl_claim};
use crate::json;
use config::template::CLAIMS;
use config::{Demands, TokenField};

/// Attributes of one client, and bytes of them.
const ATTRIBUTES_MAX: usize = 64;
const ATTRIBUTES_BYTES_MAX: usize = 16 * 1024;

/// The claim, and the member of an answer, that EMQX makes attributes of.
pub(super) const CLIENT_ATTRS: &str = "client_attrs";

/// A token, taken apart and not checked yet.
pub(super) struct Token<'a> {
    algorithm: String,
    key_id: Option<String>,
    has_critical: bool,
    /// Why it must not be used, whoever has signed it.
    header_fault: Option<String>,
    signed: &'a [u8],
    pub(super) claims: &'a str,
    signature: Vec<u8>,
}

/// What a check came to.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// The password is no token, or one of another issuer: none of the keys has signed it.
    NotMine,
    Good(Proof),
    /// A key has signed it. For the log.
    Bad(String),
    /// The same as [`Self::NotMine`], but a key that is not known may have signed it.
    NoKey,
}

/// Checks the token of a request at a time, in seconds since 1970. Only the signature makes a token
/// one that a provider says no to: others may belong to the next provider. The last of the key sets
/// is the one that may lack a key.
pub(super) fn check(
    request: &AuthRequest,
    sets: &[&KeySet],
    demands: &Demands,
    now_secs: u64,
) -> Outcome {
    let Some(token) = shown_token(request, demands).and_then(take_apart) else {
        return Outcome::NotMine;
    };
    // RFC 8725, section 3.2: a token that nobody signed is nobody's.
    if token.algorithm.is_empty() || token.algorithm.eq_ignore_ascii_case("none") {
        return Outcome::Bad("the token is not signed".into());
    }
    let Some(algorithm) = Algorithm::named(&token.algorithm) else { return Outcome::NotMine };
    let claims = URL_SAFE_NO_PAD.decode(token.claims).unwrap_or_default();
    let claims = json::read::<Map<String, Value>>(&claims);
    if claims.as_ref().is_ok_and(|claims| !is_of_issuer(demands, claims)) {
        return Outcome::NotMine;
    }
    let mut checked = Checked::NoKey;
    for keys in sets {
        checked = keys.check(algorithm, token.key_id.as_deref(), token.signed, &token.signature);
        if checked == Checked::Right {
            break;
        }
    }
    match checked {
        Checked::NoKey => return Outcome::NoKey,
        Checked::Wrong => return Outcome::NotMine,
        Checked::Right => {}
    }
    // RFC 7515, section 4.1.11: what is not understood and critical makes a token invalid.
    if token.has_critical {
        return Outcome::Bad(
            "the token has critical header parameters, which are not supported".into(),
        );
    }
    if let Some(why) = token.header_fault {
        return Outcome::Bad(format!("the header of the token: {why}"));
    }
    let claims = match claims {
        Ok(claims) => claims,
        Err(error) => {
            return Outcome::Bad(format!("the claims of the token are not a JSON object: {error}"));
        }
    };
    match examine(demands, request, &claims, now_secs) {
        Ok(proof) => Outcome::Good(proof),
        Err(why) => Outcome::Bad(why),
    }
}

/// Where the token is, if there is one. What comes by its own method is in place of the password.
fn shown_token<'a>(request: &'a AuthRequest, demands: &Demands) -> Option<&'a [u8]> {
    match demands.from {
        Some(TokenField::Username) if !request.has_token_method => {
            request.username.as_deref().map(str::as_bytes)
        }
        _ => request.password.as_deref(),
    }
}

/// Is this a token by its form, whoever has signed it?
pub(super) fn is_token(text: &str) -> bool {
    take_apart(text.as_bytes()).is_some()
}

/// None: this is no token.
pub(super) fn take_apart(bytes: &[u8]) -> Option<Token<'_>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (signed, signature) = text.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    if claims.contains('.') {
        return None;
    }
    let header = URL_SAFE_NO_PAD.decode(header).ok()?;
    // A header that is ambiguous is still one of a token, which is a secret.
    let header_fault = json::read::<IgnoredAny>(&header).err().map(|error| error.to_string());
    let header: Map<String, Value> = serde_json::from_slice(&header).ok()?;
    let text = |name: &str| header.get(name).and_then(Value::as_str).map(Into::into);
    Some(Token {
        algorithm: text("alg")?,
        key_id: text("kid"),
        has_critical: header.contains_key("crit"),
        header_fault,
        signed: signed.as_bytes(),
        claims,
        signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
    })
}

pub(super) fn examine(
    demands: &Demands,
    request: &AuthRequest,
    claims: &Map<String, Value>,
    now_secs: u64,
) -> Result<Proof, String> {
    let expires_at_secs = check_times(demands, claims, now_secs)?;
    let audience = claims.get("aud");
    let is_meant = |wanted: &String| audience.is_some_and(|value| says(value, wanted));
    if !demands.audience.is_empty() && !demands.audience.iter().any(is_meant) {
        return Err("the token is for another audience".into());
    }
    let value = |name: &str| match name.strip_prefix(CLAIMS) {
        Some(path) => texts_of(claim(claims, path)?)?.into_iter().next(),
        None => value_of(request, name),
    };
    for (path, wanted) in &demands.claims {
        let wanted = wanted.fill(value);
        let found = claim(claims, path);
        if !wanted.zip(found).is_some_and(|(wanted, found)| says(found, &wanted)) {
            return Err(format!("the claim '{path}' does not have the required value"));
        }
    }
    let username = demands.username.fill(value).filter(|name| is_name(name));
    let username = username.ok_or("the token has no username")?;
    let rules = match demands.acl_ignored {
        true => OwnRules::default(),
        false => {
            let name = demands.acl_claim_name.as_deref().unwrap_or(ACL);
            acl_claim::rules_of(claims, name, request.subject(Some(&username)))?.rules
        }
    };
    let own = demands.attributes.iter().filter_map(|(name, template)| {
        let value = match template.only_claim() {
            Some(path) => attribute_of(claim(claims, path)?)?,
            None => Attribute::Text(template.fill(value)?.into()),
        };
        Some((name.as_str().into(), value))
    });
    let attributes = attributes_of(claims.get(CLIENT_ATTRS), own)?;
    let username = Some(username);
    let revocations = Vec::new();
    Ok(Proof { username, attributes, expires_at_secs, is_superuser: false, rules, revocations })
}

pub(super) fn is_of_issuer(demands: &Demands, claims: &Map<String, Value>) -> bool {
    let stated = claims.get("iss").and_then(Value::as_str);
    demands.issuer.is_none() || demands.issuer.as_deref() == stated
}

/// When the token ends.
fn check_times(
    demands: &Demands,
    claims: &Map<String, Value>,
    now_secs: u64,
) -> Result<Option<u64>, String> {
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            // A later time than any that counts is as good as the latest.
            Some(secs) if secs >= 0.0 => Ok(Some(secs.min(LATEST_SECS as f64) as u64)),
            _ => Err(format!("the claim '{name}' must be a time")),
        },
    };
    let latest = now_secs.saturating_add(demands.leeway_secs);
    if time("nbf")?.is_some_and(|secs| secs > latest) {
        return Err("the token is not valid yet".into());
    }
    if time("iat")?.is_some_and(|secs| secs > latest) {
        return Err("the token was issued in the future".into());
    }
    match time("exp")? {
        Some(secs) if secs.saturating_add(demands.leeway_secs) <= now_secs => {
            Err("the token has expired".into())
        }
        Some(secs) => Ok(Some(secs.saturating_add(demands.leeway_secs))),
        None if demands.expiry_required => Err("the token does not expire: the claim 'exp' is \
        missing"
            .into()),
        None => Ok(None),
    }
}

/// The claim of a path, such as `vehicle.vin`. One whose own name has dots in it comes first.
fn claim<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    claim(claims.get(first)?.as_object()?, rest)
}

/// Is the value this text, or a list with it?
fn says(value: &Value, wanted: &str) -> bool {
    texts_of(value).is_some_and(|texts| texts.iter().any(|text| text == wanted))
}

fn texts_of(value: &Value) -> Option<Vec<String>> {
    Some(attribute_of(value)?.texts())
}

/// None: an object, nothing, or a number that cannot be kept as it was written.
fn attribute_of(value: &Value) -> Option<Attribute> {
    Some(match value {
        Value::String(text) => Attribute::Text(text.as_str().into()),
        Value::Number(number) => Attribute::Number(Number::parse(number.as_str())?),
        Value::Bool(flag) => Attribute::Text(flag.to_string().into()),
        Value::Array(items) => Attribute::List(
            // A list within a list has no name of its own.
            items.iter().filter(|item| !item.is_array()).filter_map(attribute_of).collect(),
        ),
        Value::Null | Value::Object(_) => return None,
    })
}

/// Attributes as somebody writes them, within the limits of those of a token.
///
/// # Errors
///
/// It is no object, or has too many or too long attributes.
pub fn written_attributes(value: &Value) -> Result<Attributes, String> {
    let Value::Object(stated) = value else {
        return Err(format!("must be an object, got {}", kind_of(value)));
    };
    let wrong = stated.iter().find(|(_, value)| attribute_of(value).is_none());
    if let Some((name, value)) = wrong {
        let kind = kind_of(value);
        return Err(format!("'{name}' must be a text, a number, a flag or a list, got {kind}"));
    }
    attributes_of(Some(value), std::iter::empty())
}

/// What a token or an answer says in one member, and what the configuration makes of it.
pub(super) fn attributes_of(
    stated: Option<&Value>,
    own: impl Iterator<Item = (Box<str>, Attribute)>,
) -> Result<Attributes, String> {
    let stated = stated.map(|value| match value {
        Value::Object(stated) => Ok(stated),
        other => Err(format!("the claim {CLIENT_ATTRS} must be an object, got {}", kind_of(other))),
    });
    let stated = stated.transpose()?.into_iter().flatten();
    let stated =
        stated.filter_map(|(name, value)| Some((name.as_str().into(), attribute_of(value)?)));
    let all: Vec<(Box<str>, Attribute)> = stated.chain(own).collect();
    let bytes_of = |(name, value): &(Box<str>, Attribute)| {
        name.len()
            + value.texts().iter().map(|text| text.len() + size_of::<Attribute>()).sum::<usize>()
    };
    if all.len() > ATTRIBUTES_MAX || all.iter().map(bytes_of).sum::<usize>() > ATTRIBUTES_BYTES_MAX
    {
        return Err(format!(
            "at most {ATTRIBUTES_MAX} attributes with {ATTRIBUTES_BYTES_MAX} bytes in all"
        ));
    }
    Ok(Attributes::new(all))
}

/// A proof as the broker's core takes it.
pub(super) fn principal(proof: &Proof, expires_at_ms: Option<u64>) -> Option<Box<Principal>> {
    let says_more = !proof.attributes.is_empty()
        || expires_at_ms.is_some()
        || proof.is_superuser
        || !proof.rules.is_empty()
        || !proof.revocations.is_empty();
    says_more.then(|| {
        Box::new(Principal {
            attributes: proof.attributes.clone(),
            expires_at_ms,
            is_superuser: proof.is_superuser,
            rules: proof.rules.clone(),
            revocations: proof.revocations.clone(),
            ..Principal::default()
        })
    })
}

impl From<Outcome> for Opinion {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::NotMine | Outcome::NoKey => Self::NotMine,
            Outcome::Good(proof) => Self::Yes(proof),
            Outcome::Bad(why) => Self::No(why),
        }
    }
}

#[cfg(test)]
mod tests;
