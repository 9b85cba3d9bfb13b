//! `[[authentication]]`: providers that say who a client is, and which of them a listener asks.

use std::path::PathBuf;

use super::demands::{Demands, TokenField};
use super::keys::{ClientAuth, NameSource, ProviderKind, RawProvider};
use super::mask;
use super::schema::{Section, words};
use super::source::{Settings, default_of, unknown};
use super::template::{Placeholders, Template};
use super::url::Url;
use super::{Listener, NamespaceSource, Problem, values};

words! {
    /// The HTTP method of the requests to a service.
    HttpMethod {
        /// The fields are in the body.
        Post = "post",
        /// The fields are in the query.
        Get = "get",
    }
}

words! {
    /// The format of the body of a request.
    BodyForm {
        /// A JSON object of strings.
        Json = "json",
        /// The format of web forms.
        Form = "form",
    }
}

/// What the password file is called in the lists of listeners.
pub const FILE: &str = "file";

/// One provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// What listeners and logs call it.
    pub name: String,
    pub method: Method,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    Jwt(JwtConfig),
    Http(HttpConfig),
    Certificate { username: Template, attributes: Vec<(String, Template)> },
    Registry(RegistryConfig),
}

/// Where registered clients are, and how one is found that states no user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    pub file: PathBuf,
    pub names: Vec<NameSource>,
}

/// Where the keys of tokens are, and what else a token needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JwtConfig {
    pub secret_file: Option<PathBuf>,
    pub secret_base64_encoded: bool,
    pub key_file: Option<PathBuf>,
    pub jwks_file: Option<PathBuf>,
    pub jwks_url: Option<Url>,
    pub jwks_refresh_secs: u32,
    pub ca: Option<PathBuf>,
    pub demands: Demands,
}

/// What a service is asked, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    /// Its path is that of `path` and `query`, as written.
    pub url: Url,
    pub path: Template,
    /// Behind the `?`. Empty: there is none.
    pub query: Template,
    pub is_get: bool,
    pub headers: Vec<(String, Template)>,
    pub body: Vec<(String, Template)>,
    pub form: BodyForm,
    pub ca: Option<PathBuf>,
    pub timeout_secs: u32,
    pub requests_max: u32,
    /// For answers that do not say how long they hold. 0: not at all.
    pub cache_secs: u32,
    /// Access rules in an answer do not matter.
    pub acl_ignored: bool,
}

impl HttpConfig {
    /// Does the service get to know this of a client?
    pub fn sends(&self, name: &str) -> bool {
        let fields = self.headers.iter().chain(&self.body).map(|(_, text)| text);
        [&self.path, &self.query].into_iter().chain(fields).any(|text| text.names(name))
    }
}

impl Method {
    pub fn asks_over_network(&self) -> bool {
        match self {
            Self::Jwt(own) => own.jwks_url.is_some(),
            Self::Http(_) => true,
            Self::Certificate { .. } | Self::Registry(_) => false,
        }
    }
}

/// Lowers all providers. A contradiction becomes a problem with the place of the key to change.
pub(super) fn lower(settings: &Settings, problems: &mut Vec<Problem>) -> Option<Vec<Provider>> {
    let mut lowering = Lowering { settings, problems, own: String::new() };
    let mut providers: Vec<Provider> = Vec::new();
    for index in 0..settings.count_of(SECTION.name) {
        lowering.own = format!("{}.{index}", SECTION.name);
        let raw = RawProvider::lower(values(settings, SECTION, &lowering.own))?;
        if let Some(provider) = lowering.build(raw) {
            if providers.iter().any(|other| other.name == provider.name) {
                lowering.problem("name", "another provider has this name".into());
            }
            providers.push(provider);
        }
    }
    Some(providers)
}

/// Do the lists of listeners name what there is, and can they give what the listener needs?
pub(super) fn check_chains(
    listeners: &[Listener],
    providers: &[Provider],
    has_file: bool,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    for (index, listener) in listeners.iter().enumerate() {
        let mut problem = |key: &str, detail: String| {
            let key = format!("listeners.{index}.{key}");
            problems.push(Problem { place: settings.place(&key), key, detail });
        };
        for name in &listener.authentication {
            let known = providers.iter().find(|provider| provider.name == *name);
            match known {
                None if name == FILE && has_file => {}
                None if name == FILE => {
                    let detail = "'file' is the password file: set auth.password_file";
                    problem("authentication", detail.into());
                }
                None => {
                    let names = providers.iter().map(|provider| &*provider.name);
                    let detail = unknown("authentication", name, names);
                    problem("authentication", detail);
                }
                Some(provider) if !provider.can_be_asked(listener) => {
                    let detail = format!(
                        "'{name}' authenticates by certificate, and this listener requests none; \
                        set tls.client_auth"
                    );
                    problem("authentication", detail);
                }
                Some(_) => {}
            }
        }
        let chain = &listener.authentication;
        let mut asked =
            providers.iter().filter(|own| chain.is_empty() || chain.contains(&own.name));
        let takes_registered = listener.tls.as_ref().is_some_and(|tls| tls.own.takes_registered);
        if takes_registered && !asked.clone().any(|own| matches!(own.method, Method::Registry(_))) {
            let detail = "no provider of this listener is a registry, which has the thumbprints. \
                          Add an [[authentication]] with kind = \"registry\"";
            problem("registered_certificates", detail.into());
        }
        if listener.placing.from.contains(&NamespaceSource::Attribute)
            && !asked.any(|own| own.gives_namespace() && own.can_be_asked(listener))
        {
            let detail = "no provider of this listener sets the attribute 'namespace'. Use a provider of kind jwt or http, or of kind certificate with \
                          attributes = [\"namespace=${cert_dns}\"]";
            problem("namespace_from", detail.into());
        }
    }
}

impl Provider {
    /// Tokens and services say what they like.
    fn gives_namespace(&self) -> bool {
        match &self.method {
            Method::Jwt(_) | Method::Http(_) | Method::Registry(_) => true,
            Method::Certificate { attributes, .. } => {
                attributes.iter().any(|(name, _)| name == policy::NAMESPACE)
            }
        }
    }

    pub(super) fn can_be_asked(&self, listener: &Listener) -> bool {
        let shows_certificate =
            listener.tls.as_ref().is_some_and(|tls| tls.client_auth != ClientAuth::None);
        let asks_for_it = matches!(self.method, Method::Certificate { .. } | Method::Registry(_));
        shows_certificate || !asks_for_it
    }
}

pub(super) struct Lowering<'a> {
    pub(super) settings: &'a Settings,
    pub(super) problems: &'a mut Vec<Problem>,
    /// The provider with its number.
    pub(super) own: String,
}

impl Lowering<'_> {
    fn build(&mut self, raw: RawProvider) -> Option<Provider> {
        let before = self.problems.len();
        let name = raw.name.clone().unwrap_or_default();
        if name.is_empty() || name == FILE {
            self.problem(
                "name",
                "a provider needs a name other than 'file', which is the \
            password file"
                    .into(),
            );
        }
        if let Some(kind) = raw.kind {
            self.check_keys(kind);
        }
        let method = match raw.kind {
            Some(ProviderKind::Jwt) => Some(Method::Jwt(self.jwt(&raw))),
            Some(ProviderKind::Http) => self.http(&raw).map(Method::Http),
            Some(ProviderKind::Certificate) => Some(self.certificate(&raw)),
            Some(ProviderKind::Registry) => self.registry(&raw).map(Method::Registry),
            None => {
                self.problem("kind", "is missing; write kind = \"jwt\", for example".into());
                None
            }
        };
        method.filter(|_| self.problems.len() == before).map(|method| Provider { name, method })
    }

    /// What a key says is done or refused: one of another kind of provider would be neither.
    fn check_keys(&mut self, kind: ProviderKind) {
        for key in SECTION.keys {
            let kinds = kinds_of(key.name).unwrap_or(&[]);
            if !kinds.is_empty() && !kinds.contains(&kind) && self.is_set(key.name) {
                let kinds: Vec<_> = kinds.iter().map(|kind| kind.as_str()).collect();
                let detail = format!(
                    "is not used by kind = \"{}\", only by {}",
                    kind.as_str(),
                    kinds.join(" and ")
                );
                self.problem(key.name, detail);
            }
        }
    }

    fn is_set(&self, name: &str) -> bool {
        let key = SECTION.keys.iter().find(|key| key.name == name);
        key.is_some_and(|key| self.settings.setting(&self.own, key).value != default_of(key))
    }

    /// Refuses a key that does nothing because of what the others say.
    fn check_has_effect(&mut self, name: &str, has_effect: bool, why: &str) {
        if !has_effect && self.is_set(name) {
            self.problem(name, format!("has no effect {why}"));
        }
    }

    /// Authorities are for certificates.
    fn check_ca(&mut self, key: &str, url: Option<&Url>) {
        let why = format!("with a {key} of http://; use https://");
        self.check_has_effect("ca", url.is_none_or(|url| url.is_tls), &why);
    }

    fn jwt(&mut self, raw: &RawProvider) -> JwtConfig {
        let files = [&raw.secret_file, &raw.key_file, &raw.jwks_file];
        if files.iter().all(|file| file.is_none()) && raw.jwks_url.is_none() {
            let detail = "needs a key: secret_file, key_file, jwks_file or jwks_url";
            self.problem("kind", detail.into());
        }
        let username = self.template(
            "username",
            raw.username.as_deref().unwrap_or(JWT_USERNAME),
            Placeholders::Token,
        );
        let claims = self.pairs("claims", &raw.claims, Placeholders::Token);
        let attributes = self.pairs("attributes", &raw.attributes, Placeholders::Token);
        let texts = || claims.iter().chain(&attributes).map(|(_, text)| text).chain([&username]);
        if raw.from == TokenField::Username && texts().any(|text| text.names("username")) {
            let detail = "has the token in the username: remove '${username}' from username, \
            claims and attributes";
            self.problem("from", detail.into());
        }
        if username.names("username") && !claims.iter().any(|(_, text)| text.names("username")) {
            let detail = "would trust the username that a client sends: bind it to the token, \
            as in claims = [\"sub=${username}\"]";
            self.problem("username", detail.into());
        }
        if raw.acl_ignored && raw.acl_claim_name.is_some() {
            let detail = "has no effect: acl_ignored is true";
            self.problem("acl_claim_name", detail.into());
        }
        let jwks_url = raw.jwks_url.as_deref().and_then(|text| self.url("jwks_url", text));
        let why = "without secret_file";
        self.check_has_effect("secret_base64_encoded", raw.secret_file.is_some(), why);
        for key in ["jwks_refresh_secs", "ca"] {
            self.check_has_effect(key, raw.jwks_url.is_some(), "without jwks_url");
        }
        self.check_ca("jwks_url", jwks_url.as_ref());
        JwtConfig {
            secret_file: raw.secret_file.clone(),
            secret_base64_encoded: raw.secret_base64_encoded,
            key_file: raw.key_file.clone(),
            jwks_file: raw.jwks_file.clone(),
            jwks_url,
            jwks_refresh_secs: raw.jwks_refresh_secs,
            ca: raw.ca.clone(),
            demands: Demands {
                from: Some(raw.from),
                issuer: raw.issuer.clone(),
                audience: raw.audience.clone(),
                claims,
                username,
                attributes,
                leeway_secs: raw.leeway_secs.into(),
                expiry_required: raw.expiry_required,
                acl_ignored: raw.acl_ignored,
                acl_claim_name: raw.acl_claim_name.clone(),
            },
        }
    }

    fn http(&mut self, raw: &RawProvider) -> Option<HttpConfig> {
        let Some(url) = &raw.url else {
            self.problem("kind", "needs the `url` of the service".into());
            return None;
        };
        let config = self.service(url, raw, (Placeholders::Login, &HTTP_BODY))?;
        if !config.sends("username") {
            let detail = "would trust the username that a client sends: send it to the service, \
            as in body = [\"username=${username}\"]";
            self.problem("body", detail.into());
        }
        Some(config)
    }

    /// What a service is asked, and how; the fields that it gets by default.
    pub(super) fn service(
        &mut self,
        url: &str,
        raw: &RawProvider,
        (known, fields): (Placeholders, &[&str]),
    ) -> Option<HttpConfig> {
        let defaults = || fields.iter().map(|field| (*field).to_owned()).collect();
        let body = if raw.body.is_empty() { defaults() } else { raw.body.clone() };
        let headers = self.headers(&raw.headers, raw.body_form, known);
        let body = self.pairs("body", &body, known);
        let is_get = raw.method == HttpMethod::Get;
        let why = "with method = \"get\", which sends the fields as the query";
        self.check_has_effect("body_form", !is_get, why);
        let url = self.url("url", url);
        self.check_ca("url", url.as_ref());
        let url = url?;
        if url.host.contains('$') {
            let detail = "placeholders are not substituted in the host, only behind it";
            self.problem("url", detail.into());
        }
        let (path, query) = url.path.split_once('?').unwrap_or((&url.path, ""));
        let (path, query) = (self.template("url", path, known), self.template("url", query, known));
        Some(HttpConfig {
            url,
            path,
            query,
            is_get,
            headers,
            body,
            form: raw.body_form,
            ca: raw.ca.clone(),
            timeout_secs: raw.timeout_secs,
            requests_max: raw.requests_max,
            cache_secs: raw.cache_secs,
            acl_ignored: raw.acl_ignored,
        })
    }

    fn headers(
        &mut self,
        texts: &[String],
        form: BodyForm,
        known: Placeholders,
    ) -> Vec<(String, Template)> {
        let mut headers: Vec<(String, Template)> = Vec::new();
        for text in texts {
            let Some((name, value)) = text.split_once(':') else {
                let shown = mask::header(text);
                self.problem("headers", format!("must be of the form NAME: VALUE, got '{shown}'"));
                continue;
            };
            let (name, value) = (name.trim(), value.trim());
            if headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                let detail = format!("'{name}' is set twice; header names are case-insensitive");
                self.problem("headers", detail);
            }
            let value = self.template("headers", value, known);
            let is_framing = FRAMING.iter().any(|known| known.eq_ignore_ascii_case(name));
            if is_framing && value.plain().is_none() {
                let detail = format!("'{name}' says how the request is read: no placeholders");
                self.problem("headers", detail);
            }
            // As EMQX chooses the form of the body.
            let says_form = value.plain().is_some_and(|text| text.contains("form-urlencoded"));
            let is_type = name.eq_ignore_ascii_case("content-type");
            if is_type && says_form != (form == BodyForm::Form) {
                let detail = "Content-Type is not that of the body; set body_form instead";
                self.problem("headers", detail.into());
            }
            headers.push((name.into(), value));
        }
        headers
    }

    fn url(&mut self, key: &str, text: &str) -> Option<Url> {
        Url::parse(text).map_err(|detail| self.problem(key, detail)).ok()
    }

    fn certificate(&mut self, raw: &RawProvider) -> Method {
        let text = raw.username.as_deref().unwrap_or(CERTIFICATE_USERNAME);
        let username = self.template("username", text, Placeholders::Login);
        if username.names("username") || username.names("clientid") || username.names("password") {
            let detail = "must make the name from the certificate, not from what the client sends";
            self.problem("username", detail.into());
        }
        Method::Certificate {
            username,
            attributes: self.pairs("attributes", &raw.attributes, Placeholders::Login),
        }
    }

    fn registry(&mut self, raw: &RawProvider) -> Option<RegistryConfig> {
        let mut names = Vec::new();
        for word in &raw.name_sources {
            use NameSource::{Dns, Email, Ip, Subject, Uri};
            let known = [Subject, Dns, Uri, Ip, Email].into_iter();
            match known.into_iter().find(|source| source.as_str() == word) {
                Some(source) if !names.contains(&source) => names.push(source),
                Some(_) => self.problem("name_sources", format!("'{word}' is there twice")),
                None => {
                    let words = NameSource::WORDS.join("', '");
                    let detail = format!("must be one of '{words}', got '{word}'");
                    self.problem("name_sources", detail);
                }
            }
        }
        let Some(file) = raw.registry_file.clone() else {
            self.problem("kind", "needs the `registry_file` with the clients".into());
            return None;
        };
        Some(RegistryConfig { file, names })
    }

    fn template(&mut self, key: &str, text: &str, known: Placeholders) -> Template {
        Template::parse(text, known).unwrap_or_else(|detail| {
            self.problem(key, detail);
            Template::default()
        })
    }

    /// `NAME=TEMPLATE`.
    fn pairs(
        &mut self,
        key: &str,
        texts: &[String],
        known: Placeholders,
    ) -> Vec<(String, Template)> {
        let mut pairs: Vec<(String, Template)> = Vec::new();
        for text in texts {
            match text.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() => {
                    let (name, value) = (name.trim(), value.trim());
                    // Of a claim, several texts can be demanded.
                    if key != "claims" && pairs.iter().any(|(known, _)| known == name) {
                        self.problem(key, format!("'{name}' is set twice"));
                    }
                    pairs.push((name.to_owned(), self.template(key, value, known)));
                }
                _ => {
                    let shown = if key == "body" { mask::field(text) } else { text.clone() };
                    self.problem(key, format!("must be of the form NAME=TEXT, got '{shown}'"));
                }
            }
        }
        pairs
    }

    pub(super) fn problem(&mut self, key: &str, detail: String) {
        let key = format!("{}.{key}", self.own);
        let place = self.settings.place(&key);
        self.problems.push(Problem { place, key, detail });
    }
}

const SECTION: Section = RawProvider::SECTION;

/// Keys that not every kind of provider uses.
const KINDS_OF: [(&str, &[ProviderKind]); 27] = {
    use ProviderKind::{Certificate, Http, Jwt, Registry};
    [
        ("username", &[Jwt, Certificate]),
        ("attributes", &[Jwt, Certificate]),
        ("secret_file", &[Jwt]),
        ("secret_base64_encoded", &[Jwt]),
        ("from", &[Jwt]),
        ("registry_file", &[Registry]),
        ("name_sources", &[Registry]),
        ("key_file", &[Jwt]),
        ("jwks_file", &[Jwt]),
        ("jwks_url", &[Jwt]),
        ("jwks_refresh_secs", &[Jwt]),
        ("issuer", &[Jwt]),
        ("audience", &[Jwt]),
        ("claims", &[Jwt]),
        ("leeway_secs", &[Jwt]),
        ("expiry_required", &[Jwt]),
        ("acl_claim_name", &[Jwt]),
        ("url", &[Http]),
        ("method", &[Http]),
        ("headers", &[Http]),
        ("body", &[Http]),
        ("body_form", &[Http]),
        ("timeout_secs", &[Http]),
        ("requests_max", &[Http]),
        ("cache_secs", &[Http]),
        ("ca", &[Jwt, Http]),
        ("acl_ignored", &[Jwt, Http]),
    ]
};

fn kinds_of(key: &str) -> Option<&'static [ProviderKind]> {
    KINDS_OF.iter().find(|(name, _)| *name == key).map(|(_, kinds)| *kinds)
}

const JWT_USERNAME: &str = "${claims.sub}";
/// As EMQX has it by default.
const HTTP_BODY: [&str; 3] =
    ["clientid=${clientid}", "username=${username}", "password=${password}"];

const CERTIFICATE_USERNAME: &str = "${cert_common_name}";

/// Headers that say where a request ends, or for whom it is.
const FRAMING: [&str; 5] =
    ["Host", "Content-Length", "Transfer-Encoding", "Connection", "Content-Type"];

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that every kind of provider uses.
    const COMMON: [&str; 2] = ["name", "kind"];

    #[test]
    fn of_each_key_it_is_known_which_kinds_use_it() {
        for key in SECTION.keys {
            let is_common = COMMON.contains(&key.name);
            assert_ne!(kinds_of(key.name).is_some(), is_common, "{}", key.name);
        }
        for (name, kinds) in KINDS_OF {
            assert!(SECTION.keys.iter().any(|key| key.name == name), "there is no key {name}");
            assert!(!kinds.is_empty() && kinds.len() < ProviderKind::WORDS.len(), "{name}");
        }
    }
}
