//! What a log-in with a token would get, for a person who tests rules: no broker runs, and nobody
//! is asked.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use policy::Principal;
use serde_json::{Map, Value};

use super::jwks;
use super::jwt::{Outcome, check, examine, is_of_issuer, principal, take_apart};
use super::{AuthRequest, Proof, acl_claim};
use crate::json;
use config::template::{Placeholders, Template};
use config::{Demands, JwtConfig, Method, Provider};

/// A client by what a token says of it.
#[derive(Debug, PartialEq)]
pub struct TokenHolder {
    pub username: Option<String>,
    pub principal: Principal,
    pub check: TokenCheck,
}

/// How far the token itself was checked.
#[derive(Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// A key of this provider has signed it.
    Verified { provider: String },
    /// Its claims are taken as they are, for this reason.
    Unverified { why: String },
}

/// Who logs in with the token, besides it.
#[derive(Clone, Copy, Debug)]
pub struct TokenLogin<'a> {
    pub client_id: &'a str,
    /// As CONNECT states it.
    pub username: Option<&'a str>,
    pub now_secs: u64,
}

/// Reads a token, or a JSON object with the claims of one. Without providers (None) it is read as
/// one that has the username in `sub` and rules in `acl`, and nothing verifies it.
///
/// # Errors
///
/// Why the broker refuses the log-in.
pub fn read_token(
    text: &str,
    login: TokenLogin<'_>,
    providers: Option<&[Provider]>,
) -> Result<TokenHolder, String> {
    let text = text.trim();
    let claims = claims_of(text)?;
    let request = AuthRequest {
        client_id: login.client_id.to_owned(),
        username: login.username.map(str::to_owned),
        password: Some(text.as_bytes().to_vec()),
        // It is where the provider looks for it, wherever that is.
        has_token_method: true,
        ..AuthRequest::default()
    };
    let unverified = |demands: &Demands, why: String| {
        let proof = examine(demands, &request, &claims, login.now_secs)?;
        Ok(holder(&proof, TokenCheck::Unverified { why }))
    };
    let Some(providers) = providers else {
        return unverified(&usual_demands(&claims)?, "no configuration names its keys".into());
    };
    let of_tokens = providers.iter().filter_map(|provider| match &provider.method {
        Method::Jwt(own) => Some((&*provider.name, own)),
        _ => None,
    });
    let of_tokens: Vec<(&str, &JwtConfig)> = of_tokens.collect();
    if of_tokens.is_empty() {
        return Err("the configuration has no provider of kind 'jwt' that could take it".into());
    }
    if text.starts_with('{') {
        let meant = of_tokens.iter().find(|(_, own)| is_of_issuer(&own.demands, &claims));
        let (name, own) = meant.ok_or("no provider of kind 'jwt' takes its issuer")?;
        let why =
            format!("the file has claims without a signature, read as provider '{name}' does");
        return unverified(&own.demands, why);
    }
    let mut unasked = None;
    for (name, own) in of_tokens {
        let keys = jwks::load(own).map_err(|why| format!("provider '{name}': {why}"))?;
        match check(&request, &[&keys], &own.demands, login.now_secs) {
            Outcome::Good(proof) => {
                return Ok(holder(&proof, TokenCheck::Verified { provider: name.into() }));
            }
            Outcome::Bad(why) => return Err(format!("provider '{name}': {why}")),
            // The key may be among those that the broker fetches.
            Outcome::NoKey if own.jwks_url.is_some() => unasked = unasked.or(Some((name, own))),
            Outcome::NoKey | Outcome::NotMine => {}
        }
    }
    let (name, own) =
        unasked.ok_or("no provider has a key that signed it, and takes its issuer")?;
    unverified(&own.demands, format!("provider '{name}' fetches keys from its jwks_url"))
}

/// Access rules as a token or an answer states them in its member `acl`, for a client.
///
/// # Errors
///
/// What is not understood: it would refuse the log-in.
pub fn written_rules(
    rules: &Value,
    client_id: &str,
    username: Option<&str>,
) -> Result<policy::OwnRules, String> {
    let object = Map::from_iter([(acl_claim::ACL.to_owned(), rules.clone())]);
    let subject = acl_claim::Subject { client_id, username, common_name: None };
    Ok(acl_claim::rules_of(&object, acl_claim::ACL, subject)?.rules)
}

fn holder(proof: &Proof, check: TokenCheck) -> TokenHolder {
    let principal = principal(proof, None).map_or_else(Principal::default, |own| *own);
    TokenHolder { username: proof.username.clone(), principal, check }
}

fn claims_of(text: &str) -> Result<Map<String, Value>, String> {
    let bytes = match text.starts_with('{') {
        true => text.as_bytes().to_vec(),
        false => {
            let token = take_apart(text.as_bytes());
            let token = token.ok_or("must be a JSON Web Token, or a JSON object with claims")?;
            URL_SAFE_NO_PAD.decode(token.claims).unwrap_or_default()
        }
    };
    json::read(&bytes).map_err(|error| format!("its claims are not JSON: {error}"))
}

/// Of a provider with the default keys. The username of CONNECT stands in for a missing claim.
fn usual_demands(claims: &Map<String, Value>) -> Result<Demands, String> {
    let username = if claims.contains_key("sub") { "${claims.sub}" } else { "${username}" };
    let username = Template::parse(username, Placeholders::Token)?;
    Ok(Demands { username, ..Demands::default() })
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;
    use config::Method;
    use policy::{Access, Action, ClientLocation, Identity};
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;
    const SECRET: &[u8] = b"a secret of thirty-two bytes or more";
    const LOGIN: TokenLogin<'static> =
        TokenLogin { client_id: "c1", username: None, now_secs: NOW };

    fn signed(claims: &Value, secret: &[u8]) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&json!({ "alg": "HS256" })), part(claims));
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let signature = hmac::sign(&key, text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn claims() -> Value {
        json!({ "sub": "anna", "exp": NOW + 9, "client_attrs": { "vin": "v7" },
                "acl": [{ "permission": "allow", "action": "pub", "topic": "${client_attrs.vin}" }] })
    }

    fn providers(directory: &tempfile::TempDir) -> Vec<Provider> {
        let secret = directory.path().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let username = Template::parse("${claims.sub}", Placeholders::Token).unwrap();
        let demands = Demands { username, expiry_required: true, ..Demands::default() };
        let of_http = config::url::Url::parse("http://127.0.0.1:9/keys").unwrap();
        let own = JwtConfig { secret_file: Some(secret), demands, ..JwtConfig::default() };
        let fetched = JwtConfig {
            secret_file: None,
            jwks_url: Some(of_http),
            demands: Demands { issuer: Some("far".into()), ..own.demands.clone() },
            ..own.clone()
        };
        let named = |name: &str, own| Provider { name: name.into(), method: Method::Jwt(own) };
        vec![named("far", fetched), named("near", own)]
    }

    #[test]
    fn a_token_is_verified_by_the_keys_of_the_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let providers = providers(&directory);
        let read = |text: &str| read_token(text, LOGIN, Some(&providers));
        let holder = read(&format!("{}\n", signed(&claims(), SECRET))).unwrap();
        assert_eq!(holder.check, TokenCheck::Verified { provider: "near".into() });
        assert_eq!(holder.username.as_deref(), Some("anna"));
        let who = Identity { principal: Some(&holder.principal), ..Identity::new("c1", None) };
        let grants = Access::compile(&[]).unwrap().grants_of(who, ClientLocation::default());
        assert!(grants.allows(who, Action::Publish, "v7"));
        assert!(!grants.allows(who, Action::Publish, "v8"));
        // Whatever refuses a log-in is no verdict about its rules.
        let other = signed(&claims(), b"another secret of thirty-two bytes!!");
        assert!(read(&other).unwrap_err().contains("no provider has a key"));
        let mut late = claims();
        late["exp"] = json!(NOW - 1);
        let late = signed(&late, SECRET);
        assert_eq!(read(&late).unwrap_err(), "provider 'near': the token has expired");
        let mut odd = claims();
        odd["acl"][0]["zone"] = json!("x");
        assert!(read(&signed(&odd, SECRET)).unwrap_err().contains("zone"));
        assert!(read_token(&other, LOGIN, Some(&[])).unwrap_err().contains("kind 'jwt'"));
        assert!(read("secret").unwrap_err().contains("must be a JSON Web Token"));
    }

    #[test]
    fn what_nothing_verifies_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let providers = providers(&directory);
        let why = |holder: TokenHolder| match holder.check {
            TokenCheck::Unverified { why } => why,
            verified @ TokenCheck::Verified { .. } => panic!("{verified:?}"),
        };
        let token = signed(&claims(), b"whatever has signed it, nobody knows");
        assert!(why(read_token(&token, LOGIN, None).unwrap()).contains("no configuration"));
        let text = claims().to_string();
        assert!(why(read_token(&text, LOGIN, Some(&providers[1..])).unwrap()).contains("'near'"));
        // The key of an issuer may be among those that were not fetched.
        let mut far = claims();
        far["iss"] = json!("far");
        let far = signed(&far, b"whatever has signed it, nobody knows");
        let holder = read_token(&far, LOGIN, Some(&providers[..1])).unwrap();
        assert!(why(holder).contains("jwks_url"));
        assert!(read_token(&token, LOGIN, Some(&providers[..1])).is_err(), "of another issuer");
        let named = TokenLogin { username: Some("eve"), ..LOGIN };
        let holder = read_token("{\"acl\": {}}", named, None).unwrap();
        assert_eq!(holder.username.as_deref(), Some("eve"));
        assert!(read_token("{\"acl\": {}}", LOGIN, None).is_err(), "it has no username");
    }
}
