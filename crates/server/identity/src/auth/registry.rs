//! Clients that are registered with their attributes and the certificate that each must show, as
//! in Event Grid's registry.
//!
//! A client is found by the user name that it states, in any case, or by its certificate where it
//! states none. Certificates have been verified by TLS; what decides here is whether it is the one
//! of that client. A client without a certificate in the registry is a user of the password file:
//! it has its attributes from here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use net::{CertificateInfo, DistinguishedName, Thumbprints, is_distinguished_name};
use policy::{Attributes, Revocation};

use super::{AuthRequest, Opinion, Proof, lock};
use crate::event_grid::{Client, Resources, Scheme, folded, read};
use config::{NameSource, RegistryConfig};

/// Registered clients, which may change.
pub(super) struct Registry {
    config: RegistryConfig,
    state: Mutex<State>,
    /// Of all clients, for TLS.
    thumbprints: Thumbprints,
}

/// Log-ins and changes take turns here: each log-in relies on what is in force, and each change
/// finds all log-ins that have relied on what it replaces.
struct State {
    clients: Clients,
    /// By the folded name of the client: as many as there are connections and sessions at most.
    relied: HashMap<String, Vec<Relied>>,
    /// At so many names those that nobody relies on any more are dropped.
    names_max: usize,
}

/// By their folded names.
type Clients = HashMap<String, Arc<Client>>;

/// What log-ins have relied on, and what ends their connections.
struct Relied {
    basis: Basis,
    revocation: Revocation,
}

/// What the registry has said to a log-in.
#[derive(PartialEq)]
enum Basis {
    /// The certificate is that of the client. With its thumbprint where that decides.
    Certificate(Arc<Client>, Option<String>),
    /// A user of the password file has these attributes. None: it is not in the registry.
    Password(String, Option<Attributes>),
}

/// What the registry says of a user of the password file.
pub(super) enum User {
    Unknown,
    Known(Arc<Client>),
    Disabled,
}

/// Names at which those that nobody relies on are dropped for the first time.
const NAMES_MIN: usize = 1_024;

impl Registry {
    /// # Errors
    ///
    /// A file that cannot be used.
    pub(super) fn load(config: &RegistryConfig) -> Result<Self, String> {
        let clients = clients_of(&config.file)?;
        let thumbprints = Thumbprints::default();
        thumbprints.replace(thumbprints_of(&clients));
        let state = State { clients, relied: HashMap::new(), names_max: NAMES_MIN };
        Ok(Self { config: config.clone(), state: Mutex::new(state), thumbprints })
    }

    pub(super) fn thumbprints(&self) -> Thumbprints {
        self.thumbprints.clone()
    }

    /// Reads the file again. One that cannot be used changes nothing. Log-ins that have relied on
    /// what is not so any more are revoked: returns how many.
    pub(super) fn reload(&self) -> Result<usize, String> {
        let clients = clients_of(&self.config.file)?;
        self.thumbprints.replace(thumbprints_of(&clients));
        let mut state = lock(&self.state);
        let State { clients: in_force, relied, .. } = &mut *state;
        let replaced = std::mem::replace(in_force, clients);
        let mut revoked = 0;
        relied.retain(|name, all| {
            all.retain(|one| {
                let holds = one.basis.holds(in_force.get(name));
                if !holds {
                    one.revocation.revoke();
                    revoked += 1;
                }
                holds && one.revocation.is_shared()
            });
            !all.is_empty()
        });
        drop(state);
        drop(replaced);
        Ok(revoked)
    }

    pub(super) fn ask(&self, request: &AuthRequest) -> Opinion {
        let Some(certificate) = request.certificate.as_deref() else { return Opinion::NotMine };
        let mut state = lock(&self.state);
        let clients = &state.clients;
        let client = match request.username.as_deref().filter(|name| !name.is_empty()) {
            Some(username) => clients.get(&folded(username)),
            None => self.find_by(certificate, clients),
        };
        let Some(client) = client.cloned() else { return Opinion::NotMine };
        let Some(scheme) = &client.scheme else { return Opinion::NotMine };
        if !client.is_enabled {
            return Opinion::No(DISABLED.into());
        }
        if !fits(scheme, &client.authentication_name, certificate) {
            let word = scheme.word();
            return Opinion::No(format!("the certificate does not match the client ({word})"));
        }
        let is_by_thumbprint = matches!(scheme, Scheme::Thumbprints(_));
        let thumbprint = is_by_thumbprint.then(|| certificate.fingerprint_sha256.clone());
        let revocation = state.relies(
            folded(&client.authentication_name),
            Basis::Certificate(client.clone(), thumbprint),
        );
        Opinion::Yes(Proof {
            username: Some(client.authentication_name.clone()),
            attributes: client.attributes.clone(),
            revocations: vec![revocation],
            ..Proof::default()
        })
    }

    /// What it says of a user whose password was right, and what revokes that.
    pub(super) fn user(&self, username: &str) -> (User, Revocation) {
        let mut state = lock(&self.state);
        let name = folded(username);
        let user = user_of(username, state.clients.get(&name));
        let attributes = match &user {
            User::Known(client) => Some(client.attributes.clone()),
            User::Unknown => None,
            User::Disabled => return (user, Revocation::default()),
        };
        let revocation = state.relies(name, Basis::Password(username.to_owned(), attributes));
        (user, revocation)
    }

    /// The first source that the certificate has decides, and nothing behind it.
    fn find_by<'a>(
        &self,
        certificate: &CertificateInfo,
        clients: &'a Clients,
    ) -> Option<&'a Arc<Client>> {
        let names = self.config.names.iter().map(|source| names_of(*source, certificate));
        let names = names.into_iter().find(|names| !names.is_empty())?;
        names.iter().find_map(|name| clients.get(&folded(name)))
    }
}

impl State {
    /// A log-in relies on this: what revokes it, which all that rely on the same share.
    fn relies(&mut self, name: String, basis: Basis) -> Revocation {
        if self.relied.len() >= self.names_max {
            self.relied.retain(|_, all| all.iter().any(|one| one.revocation.is_shared()));
            self.names_max = NAMES_MIN.max(2 * self.relied.len());
        }
        let all = self.relied.entry(name).or_default();
        if let Some(one) = all.iter().find(|one| one.basis == basis) {
            return one.revocation.clone();
        }
        let revocation = Revocation::default();
        all.push(Relied { basis, revocation: revocation.clone() });
        revocation
    }
}

impl Basis {
    /// Does it hold for the client as it is registered now?
    fn holds(&self, now: Option<&Arc<Client>>) -> bool {
        match self {
            Self::Certificate(then, thumbprint) => now.is_some_and(|now| {
                let is_same = now.is_enabled
                    && now.authentication_name == then.authentication_name
                    && now.attributes == then.attributes;
                let fits = match (thumbprint, &now.scheme) {
                    (Some(own), Some(Scheme::Thumbprints(allowed))) => allowed.contains(own),
                    (_, scheme) => *scheme == then.scheme,
                };
                is_same && fits
            }),
            Self::Password(username, attributes) => match user_of(username, now) {
                User::Disabled => false,
                User::Unknown => attributes.is_none(),
                User::Known(now) => attributes.as_ref() == Some(&now.attributes),
            },
        }
    }
}

/// What a registered client of a name says of a user of the password file.
fn user_of(username: &str, client: Option<&Arc<Client>>) -> User {
    match client {
        Some(client) if !client.is_enabled => User::Disabled,
        // A password proves the name as the password file has it.
        Some(client) if client.scheme.is_none() && client.authentication_name == username => {
            User::Known(client.clone())
        }
        _ => User::Unknown,
    }
}

/// A file of clients.
fn clients_of(path: &Path) -> Result<Clients, String> {
    let text = std::fs::read_to_string(path).map_err(|error| in_file(path, &error.to_string()))?;
    let found = read(&text).map_err(|error| in_file(path, &error))?;
    let Resources { clients, groups, spaces, bindings, others } = found;
    if groups.len() + spaces.len() + bindings.len() + others.len() > 0 {
        let detail = "a registry has clients only; groups, topic spaces and bindings belong in a \
                      policy file";
        return Err(in_file(path, detail));
    }
    let named = |client: Client| (folded(&client.authentication_name), Arc::new(client));
    Ok(clients.into_iter().map(named).collect())
}

/// Of disabled clients as well: the reason why they are refused is then logged.
fn thumbprints_of(clients: &Clients) -> impl Iterator<Item = &str> {
    let all = clients.values().filter_map(|client| match &client.scheme {
        Some(Scheme::Thumbprints(allowed)) => Some(allowed),
        _ => None,
    });
    all.flatten().map(String::as_str)
}

fn in_file(path: &Path, detail: &str) -> String {
    format!("{}: {detail}", path.display())
}

fn names_of(source: NameSource, certificate: &CertificateInfo) -> Vec<&str> {
    match source {
        NameSource::Subject => {
            let CertificateInfo { common_name, subject, .. } = certificate;
            let common_name = Some(common_name).filter(|name| !is_distinguished_name(name));
            let names = common_name.into_iter().chain([subject]).map(String::as_str);
            names.filter(|name| !name.is_empty()).collect()
        }
        NameSource::Dns => alternatives(certificate, "DNS:").collect(),
        NameSource::Uri => alternatives(certificate, "URI:").collect(),
        NameSource::Ip => alternatives(certificate, "IP:").collect(),
        NameSource::Email => alternatives(certificate, "email:").collect(),
    }
}

fn alternatives<'a>(
    certificate: &'a CertificateInfo,
    kind: &'a str,
) -> impl Iterator<Item = &'a str> {
    certificate.alternative_names.iter().filter_map(move |name| name.strip_prefix(kind))
}

/// Is it the certificate of the client? Only names of hosts are the same in any case: others may
/// have been issued to two clients.
fn fits(scheme: &Scheme, name: &str, certificate: &CertificateInfo) -> bool {
    match scheme {
        Scheme::Thumbprints(allowed) => allowed.contains(&certificate.fingerprint_sha256),
        // Its owner may have made up the names.
        _ if certificate.is_unissued => false,
        Scheme::Subject => is_subject(name, certificate),
        Scheme::Dns => alternatives(certificate, "DNS:").any(|own| own.eq_ignore_ascii_case(name)),
        Scheme::Uri => alternatives(certificate, "URI:").any(|own| own == name),
        Scheme::Email => alternatives(certificate, "email:").any(|own| own == name),
        Scheme::Ip => {
            let wanted = name.parse::<std::net::IpAddr>().ok();
            wanted.is_some()
                && alternatives(certificate, "IP:").any(|own| own.parse().ok() == wanted)
        }
    }
}

/// Whoever asks for a certificate chooses the text of its common name, so that this is never the
/// subject that is registered.
fn is_subject(name: &str, certificate: &CertificateInfo) -> bool {
    if !is_distinguished_name(name) {
        return certificate.common_name == name;
    }
    let wanted = DistinguishedName::parse(name);
    wanted.is_ok_and(|wanted| DistinguishedName::parse(&certificate.subject) == Ok(wanted))
}

/// Why a disabled client is refused.
pub(super) const DISABLED: &str = "the client is disabled in the registry";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn registry(clients: Value, names: &[NameSource]) -> Registry {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("clients.json");
        std::fs::write(&file, clients.to_string()).unwrap();
        Registry::load(&RegistryConfig { file, names: names.to_vec() }).unwrap()
    }

    fn client(name: &str, scheme: &str) -> Value {
        let mut own = json!({ "validationScheme": scheme });
        if scheme == "ThumbprintMatch" {
            own["allowedThumbprints"] = json!(["ab".repeat(32)]);
        }
        json!({ "name": name, "clientCertificateAuthentication": own, "attributes": { "at": name } })
    }

    fn certificate() -> CertificateInfo {
        CertificateInfo {
            common_name: "Pump".into(),
            subject: "CN=Pump,O=Works".into(),
            alternative_names: ["DNS:a.example", "IP:10.0.0.1", "URI:urn:x:A", "email:p@a.example"]
                .map(Into::into)
                .to_vec(),
            fingerprint_sha256: "ab".repeat(32),
            ..CertificateInfo::default()
        }
    }

    fn shown(username: Option<&str>, certificate: Option<CertificateInfo>) -> AuthRequest {
        AuthRequest {
            username: username.map(Into::into),
            certificate: certificate.map(Box::new),
            ..AuthRequest::default()
        }
    }

    #[test]
    fn each_scheme_admits_its_certificate_and_no_other() {
        for (scheme, name, stated) in [
            ("SubjectMatchesAuthenticationName", "Pump", "pump"),
            ("SubjectMatchesAuthenticationName", "CN=Pump,O=Works", "CN=Pump,O=Works"),
            ("DnsMatchesAuthenticationName", "A.example", "a.EXAMPLE"),
            ("IpMatchesAuthenticationName", "10.0.0.1", "10.0.0.1"),
            ("UriMatchesAuthenticationName", "urn:x:A", "urn:x:a"),
            ("EmailMatchesAuthenticationName", "p@a.example", "p@a.example"),
            ("ThumbprintMatch", "whatever", "Whatever"),
        ] {
            let registry = registry(client(name, scheme), &[]);
            let Opinion::Yes(proof) = registry.ask(&shown(Some(stated), Some(certificate())))
            else {
                panic!("{scheme}")
            };
            assert_eq!(proof.username.as_deref(), Some(name), "as it was registered");
            assert!(proof.attributes.get("at").is_some());
            let other = CertificateInfo {
                common_name: "pump".into(),
                subject: "CN=pump".into(),
                alternative_names: [
                    "DNS:b.example",
                    "IP:10.0.0.2",
                    "URI:urn:x:a",
                    "email:P@a.example",
                ]
                .map(Into::into)
                .to_vec(),
                fingerprint_sha256: "cd".repeat(32),
                ..CertificateInfo::default()
            };
            for other in [other, CertificateInfo::default()] {
                let opinion = registry.ask(&shown(Some(stated), Some(other)));
                assert!(matches!(&opinion, Opinion::No(why) if why.contains(scheme)), "{scheme}");
            }
            assert_eq!(registry.ask(&shown(Some(stated), None)), Opinion::NotMine);
            let stranger = registry.ask(&shown(Some("stranger"), Some(certificate())));
            assert_eq!(stranger, Opinion::NotMine);
        }
    }

    #[test]
    fn a_registered_subject_is_no_text_of_a_common_name() {
        let subject = "SubjectMatchesAuthenticationName";
        let of = |common_name: &str, subject: &str| CertificateInfo {
            common_name: common_name.into(),
            subject: subject.into(),
            ..CertificateInfo::default()
        };
        let boss = of("boss", "CN=boss,O=corp");
        for name in
            ["CN=boss,O=corp", "cn=boss, o=corp", "CN=\"boss\",O=corp", "2.5.4.3=boss,O=corp"]
        {
            let registry = registry(json!([client(name, subject)]), &[NameSource::Subject]);
            for username in [Some(name), Some("CN=boss,O=corp"), None] {
                let opinion = registry.ask(&shown(username, Some(boss.clone())));
                assert!(matches!(opinion, Opinion::Yes(_)), "{name} as {username:?}: {opinion:?}");
                for other in [
                    of(name, "CN=CN\\=boss\\,O\\=corp"),
                    of("CN=boss,O=corp", "CN=CN\\=boss\\,O\\=corp"),
                    of("CN=boss,O=corp", "CN=CN=boss\\,O=corp,O=other"),
                    of("boss", "CN=boss+O=corp"),
                    of("boss", "O=corp,CN=boss"),
                    of("boss", "CN=boss"),
                    of("boss", "CN=boss,O=corp,C=DE"),
                ] {
                    let opinion = registry.ask(&shown(username, Some(other.clone())));
                    assert!(!matches!(opinion, Opinion::Yes(_)), "{name}: {other:?}");
                }
            }
        }
        // A part with several attributes has no order.
        let registry = registry(json!([client("CN=a+OU=b,O=c", subject)]), &[]);
        let opinion = registry.ask(&shown(Some("CN=a+OU=b,O=c"), Some(of("a", "OU=b+CN=a,O=c"))));
        assert!(matches!(opinion, Opinion::Yes(_)));
        // A common name with an equal sign is one.
        let odd = self::registry(json!([client("line=7", subject)]), &[]);
        let opinion = odd.ask(&shown(Some("line=7"), Some(of("line=7", "CN=line=7"))));
        assert!(matches!(opinion, Opinion::Yes(_)));
        for broken in ["CN=a,", "CN=a,b", "O=#04"] {
            assert!(read(&json!([client(broken, subject)]).to_string()).is_err(), "{broken}");
        }
        let twice = json!([client("CN=a,O=b", subject), client("cn = A, o = b", subject)]);
        assert!(read(&twice.to_string()).unwrap_err().contains("two clients"));
    }

    #[test]
    fn without_a_username_the_first_source_of_the_certificate_decides() {
        use NameSource::{Dns, Email, Subject};
        let clients = json!([
            client("a.example", "DnsMatchesAuthenticationName"),
            client("x", "ThumbprintMatch")
        ]);
        let nameless = CertificateInfo { common_name: String::new(), ..certificate() };
        let nameless = CertificateInfo { subject: String::new(), ..nameless };
        for (names, certificate, is_known) in [
            (&[Dns][..], certificate(), true),
            (&[Dns, Subject], certificate(), true),
            (&[Subject, Dns], certificate(), false),
            (&[Subject, Dns], nameless, true),
            (&[Email, Dns], certificate(), false),
            (&[], certificate(), false),
        ] {
            let opinion = registry(clients.clone(), names).ask(&shown(None, Some(certificate)));
            assert_eq!(matches!(opinion, Opinion::Yes(_)), is_known, "{names:?}");
            assert!(is_known || opinion == Opinion::NotMine, "{names:?}");
        }
    }

    #[test]
    fn a_disabled_client_is_refused_and_a_user_has_attributes() {
        let mut disabled = client("Pump", "SubjectMatchesAuthenticationName");
        disabled["state"] = json!("Disabled");
        let clients = json!([
            disabled,
            client("cert", "ThumbprintMatch"),
            { "name": "anna", "attributes": { "site": "a" } },
            { "name": "bruno", "attributes": {}, "state": "Disabled" },
        ]);
        let registry = registry(clients, &[]);
        let opinion = registry.ask(&shown(Some("Pump"), Some(certificate())));
        assert_eq!(opinion, Opinion::No(DISABLED.into()));
        let opinion = registry.ask(&shown(Some("anna"), Some(certificate())));
        assert_eq!(opinion, Opinion::NotMine, "a certificate proves no user of the password file");
        assert!(matches!(registry.user("anna").0, User::Known(_)));
        assert!(matches!(registry.user("Anna").0, User::Unknown), "another user");
        assert!(matches!(registry.user("cert").0, User::Unknown), "known by its certificate only");
        assert!(matches!(registry.user("nobody").0, User::Unknown));
        for name in ["bruno", "Bruno", "pump"] {
            assert!(matches!(registry.user(name).0, User::Disabled), "{name}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("clients.json");
        let config = RegistryConfig { file: file.clone(), names: Vec::new() };
        let failure = |config| Registry::load(config).map(drop).unwrap_err();
        assert!(failure(&config).contains("clients.json"), "there is none");
        std::fs::write(&file, json!([client("a", "ThumbprintMatch")]).to_string()).unwrap();
        let registry = Registry::load(&config).unwrap();
        let group = json!([{ "name": "g", "query": "attributes.a = 1" }]);
        for wrong in ["", "[", "{}", &group.to_string()] {
            std::fs::write(&file, wrong).unwrap();
            assert!(registry.reload().unwrap_err().contains("clients.json"), "{wrong}");
            assert!(matches!(
                registry.ask(&shown(Some("a"), Some(certificate()))),
                Opinion::Yes(_)
            ));
        }
        std::fs::write(&file, "[]").unwrap();
        registry.reload().unwrap();
        assert_eq!(registry.ask(&shown(Some("a"), Some(certificate()))), Opinion::NotMine);
    }

    fn revocation_of(opinion: Opinion) -> Revocation {
        match opinion {
            Opinion::Yes(mut proof) => proof.revocations.remove(0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_change_revokes_log_ins_that_relied_on_what_it_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("clients.json");
        let config = RegistryConfig { file: file.clone(), names: Vec::new() };
        let thumbprints = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|two| two.repeat(32)).collect();
            json!({ "validationScheme": "ThumbprintMatch", "allowedThumbprints": all })
        };
        let put = |state: &str, certificate: Value, at: &str| {
            let one = json!({
                "name": "Pump",
                "state": state,
                "clientCertificateAuthentication": certificate,
                "attributes": { "at": at },
            });
            std::fs::write(&file, json!([one, { "name": "otto", "attributes": {} }]).to_string())
                .unwrap();
        };
        let subject = json!({ "validationScheme": "SubjectMatchesAuthenticationName" });
        let showing = certificate();
        let (own, rotated) = (thumbprints(&["ab"]), thumbprints(&["cd", "ab"]));
        for (state, certificate, at, holds) in [
            ("Enabled", own.clone(), "a", true),
            ("Enabled", rotated, "a", true),
            ("Enabled", thumbprints(&["cd"]), "a", false),
            ("Enabled", own.clone(), "b", false),
            ("Disabled", own.clone(), "a", false),
            ("Enabled", subject, "a", false),
            ("Enabled", json!(null), "a", false),
        ] {
            put("Enabled", own.clone(), "a");
            let registry = Registry::load(&config).unwrap();
            let ask = || revocation_of(registry.ask(&shown(Some("pump"), Some(showing.clone()))));
            let (first, second) = (ask(), ask());
            let otto = registry.user("otto").1;
            assert_eq!(first, second, "connections that rely on the same share it");
            put(state, certificate.clone(), at);
            assert_eq!(registry.reload().unwrap(), usize::from(!holds), "{certificate} {at}");
            assert_eq!((first.is_revoked(), second.is_revoked()), (!holds, !holds));
            assert!(!otto.is_revoked(), "another client");
            assert_eq!(registry.reload().unwrap(), 0, "once");
            std::fs::write(&file, "[]").unwrap();
            assert_eq!(registry.reload().unwrap(), 1 + usize::from(holds), "both are deleted");
            assert!(first.is_revoked() && otto.is_revoked());
        }
    }

    #[test]
    fn a_user_of_the_password_file_is_revoked_when_the_registry_knows_it_otherwise() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("clients.json");
        let config = RegistryConfig { file: file.clone(), names: Vec::new() };
        let put = |clients: Value| std::fs::write(&file, clients.to_string()).unwrap();
        let known = json!([{ "name": "anna", "attributes": { "at": "a" } }]);
        for (now, holds) in [
            (json!([]), true),
            (json!([{ "name": "Anna", "attributes": {} }]), true),
            (known.clone(), false),
            (json!([{ "name": "ANNA", "attributes": {}, "state": "Disabled" }]), false),
        ] {
            put(json!([]));
            let registry = Registry::load(&config).unwrap();
            let (user, revocation) = registry.user("anna");
            assert!(matches!(user, User::Unknown));
            put(now.clone());
            registry.reload().unwrap();
            assert_eq!(revocation.is_revoked(), !holds, "{now}");
        }
        put(known);
        let registry = Registry::load(&config).unwrap();
        let revocation = registry.user("anna").1;
        put(json!([]));
        registry.reload().unwrap();
        assert!(revocation.is_revoked(), "its attributes are gone");
    }

    #[test]
    fn what_nobody_relies_on_is_dropped_and_what_somebody_relies_on_stays() {
        let registry = registry(json!([]), &[]);
        let kept: Vec<_> = (0..10).map(|at| registry.user(&format!("kept-{at}")).1).collect();
        (0..10 * NAMES_MIN).for_each(|at| drop(registry.user(&format!("gone-{at}"))));
        assert!(lock(&registry.state).relied.len() <= 2 * NAMES_MIN);
        let state = lock(&registry.state);
        assert!(kept.iter().all(Revocation::is_shared));
        assert!((0..10).all(|at| state.relied.contains_key(&format!("kept-{at}"))));
    }
}
