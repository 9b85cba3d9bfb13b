//! `[authorization]`: a service that decides what no access rule decides.

use std::path::PathBuf;

use super::identity::{BodyForm, HttpConfig, HttpMethod, Lowering};
use super::keys::{AccessFile, RawProvider};
use super::schema::{ValueKind, count, secs, settings, words};
use super::source::{Settings, default_of};
use super::template::Placeholders;
use super::{Config, Problem, values};

/// What a service is asked for each publish and subscription, and how its answers are taken.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthorizationConfig {
    pub service: HttpConfig,
    /// Of one connection. 0: none.
    pub cache_entries_max: u16,
    /// 0: answers are not cached.
    pub cache_secs: u32,
    /// What holds where the service does not know.
    pub no_match_allows: bool,
}

/// None inside: no service is asked.
pub(super) fn lower(
    access: &AccessFile,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Option<Option<AuthorizationConfig>> {
    let raw = RawAuthorization::lower(values(settings, RawAuthorization::SECTION, SECTION))?;
    let mut lowering = Lowering { settings, problems, own: SECTION.into() };
    let Some(url) = &raw.url else {
        for key in RawAuthorization::SECTION.keys {
            if settings.setting(SECTION, key).value != default_of(key) {
                let detail = "has no effect without the `url` of the service";
                lowering.problem(key.name, detail.into());
            }
        }
        return Some(None);
    };
    if access.accept_all_subscriptions {
        let detail = "would let every client subscribe without asking the service; remove \
            accept_all_subscriptions = true from [access]";
        lowering.problem("url", detail.into());
    }
    // A provider of kind `http` has keys of the same names.
    let asked = RawProvider::lower(values(settings, RawProvider::SECTION, SECTION))?;
    let service = lowering.service(url, &asked, (Placeholders::Action, &FIELDS))?;
    // Its key is another one of that name.
    let service = HttpConfig { cache_secs: 0, ..service };
    if service.path.names("topic") {
        let detail = "a topic is several segments of a path: send it in the query or the body, as \
            in body = [\"topic=${topic}\"]";
        lowering.problem("url", detail.into());
    }
    for name in ["topic", "action"] {
        if !service.sends(name) {
            let detail = format!(
                "would allow an action whatever its {name} is: send it to the service, as in body \
                = [\"{name}=${{{name}}}\"]"
            );
            lowering.problem("body", detail);
        }
    }
    Some(Some(AuthorizationConfig {
        service,
        cache_entries_max: raw.cache_entries_max,
        cache_secs: raw.cache_secs,
        no_match_allows: raw.no_match == NoMatch::Allow,
    }))
}

/// Clients of two namespaces may have the same names.
pub(super) fn check_namespaces(config: &Config, settings: &Settings, problems: &mut Vec<Problem>) {
    let lacks = |own: &AuthorizationConfig| !own.service.sends("namespace");
    if !config.namespaces.is_empty() && config.authorization.as_ref().is_some_and(lacks) {
        let detail = "the service cannot tell namespaces apart: send the namespace, as in body = \
            [\"namespace=${namespace}\", \"action=${action}\", \"topic=${topic}\"]";
        let key = format!("{SECTION}.body");
        problems.push(Problem { place: settings.place(&key), key, detail: detail.into() });
    }
}

/// A service would decide by names that nobody has proved.
pub(super) fn check_names(config: &Config, settings: &Settings, problems: &mut Vec<Problem>) {
    let sends_name = config.authorization.as_ref().is_some_and(|own| own.service.sends("username"));
    if sends_name && let Some(why) = config.why_names_are_unproved() {
        let detail = format!(
            "sends usernames to the service, but {why}; or send other fields, as in body = \
            [\"clientid=${{clientid}}\", \"action=${{action}}\", \"topic=${{topic}}\"]"
        );
        let key = format!("{SECTION}.body");
        problems.push(Problem { place: settings.place(&key), key, detail });
    }
}

words! {
    /// The decision if the authorization service does not know.
    NoMatch {
        /// The action is allowed.
        Allow = "allow",
        /// The action is denied.
        Deny = "deny",
    }
}

settings! {
    /// A service that decides what no rule decides, asked over HTTP as EMQX does it. See
    /// `docs/use/authorization.md`. A text with placeholders takes `${username}`, `${clientid}`,
    /// `${peerhost}`, `${action}`, `${topic}`, `${qos}`, `${retain}`, `${proto_name}`,
    /// `${namespace}` and `${client_attrs.NAME}`.
    "authorization" => RawAuthorization {
        /// The service. It answers 204 (allowed), or 200 and a JSON object with `result` (`allow`,
        /// `deny` or `ignore`). Not set: no service is asked. Path and query may have placeholders.
        url: Option<String> = ValueKind::Text("a URL such as https://id.example/acl"), "";
        /// How it is asked: with the fields as the body, or as the query.
        method: HttpMethod = ValueKind::OneOf(HttpMethod::WORDS), "post";
        /// Headers of each request, with placeholders.
        headers: Vec<String> = ValueKind::List("headers such as Authorization: Bearer x"), "";
        /// The fields of each request, with placeholders. Empty: `clientid`, `username`,
        /// `peerhost`, `action`, `topic`, `qos`, `retain` and `namespace`.
        body: Vec<String> = ValueKind::List("fields such as topic=${topic}"), "";
        /// The format of the body: JSON, or that of a web form. Only with `method = "post"`.
        body_form: BodyForm = ValueKind::OneOf(BodyForm::WORDS), "json";
        /// The longest time of an answer. After 8 failures in a row, from at least 3 client
        /// addresses, the broker stops for 5 s. Then it probes the service each second. After a
        /// failure the action is not carried out.
        timeout_secs: u32 = secs(1, 60), "5";
        /// Requests at a time; one address (IPv6: /64) may have a quarter of them. Further ones
        /// wait, one of each connection at most, and namespaces take turns.
        requests_max: u32 = count(1, 10_000), "64";
        /// Authorities that sign the certificate of an `https://` service, PEM. Not set: those of
        /// the system.
        ca: Option<PathBuf> = ValueKind::Path, "";
        /// The most answers that are cached for one connection. Beyond them the oldest is dropped.
        /// 0: no cache. A reload clears the cache.
        cache_entries_max: u16 = count(0, 1000), "32";
        /// How long an answer is cached. 0: not.
        cache_secs: u32 = secs(0, 86_400), "1m";
        /// The decision if the service answers `ignore`.
        no_match: NoMatch = ValueKind::OneOf(NoMatch::WORDS), "deny";
    }
}

const SECTION: &str = "authorization";

/// As EMQX names them.
const FIELDS: [&str; 8] = [
    "clientid=${clientid}",
    "username=${username}",
    "peerhost=${peerhost}",
    "action=${action}",
    "topic=${topic}",
    "qos=${qos}",
    "retain=${retain}",
    "namespace=${namespace}",
];
