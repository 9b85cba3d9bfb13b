//! Clients that are registered with their attributes and the certificate that each must show, as
//! in Event Grid's registry.
//!
//! A client is found by the user name that it states, in any case, or by its certificate where it
//! states none. Certificates have been verified by TLS; what decides here is whether it is the one
//! of that client. A client without a certificate in the registry is a user of the password file:
//! it has its attributes from here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use net::CertificateInfo;

use super::{AuthRequest, Opinion, Proof};
use crate::event_grid::{Client, Resources, Scheme, folded, read};
use config::{NameSource, RegistryConfig};

/// Registered clients, which may change.
pub(super) struct Registry {
    config: RegistryConfig,
    clients: RwLock<Arc<Clients>>,
}

/// By their folded names.
type Clients = HashMap<String, Client>;

/// What the registry says of a user of the password file.
pub(super) enum User {
    Unknown,
    Known(Client),
    Disabled,
}

impl Registry {
    /// # Errors
    ///
    /// A file that cannot be used.
    pub(super) fn load(config: &RegistryConfig) -> Result<Self, String> {
        let clients = RwLock::new(Arc::new(clients_of(&config.file)?));
        Ok(Self { config: config.clone(), clients })
    }

    /// Reads the file again. One that cannot be used changes nothing.
    pub(super) fn reload(&self) -> Result<(), String> {
        let clients = Arc::new(clients_of(&self.config.file)?);
        *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
        Ok(())
    }

    pub(super) fn ask(&self, request: &AuthRequest) -> Opinion {
        let Some(certificate) = request.certificate.as_deref() else { return Opinion::NotMine };
        let clients = self.clients();
        let client = match request.username.as_deref().filter(|name| !name.is_empty()) {
            Some(username) => clients.get(&folded(username)),
            None => self.find_by(certificate, &clients),
        };
        let Some(client) = client else { return Opinion::NotMine };
        let Some(scheme) = &client.scheme else { return Opinion::NotMine };
        if !client.is_enabled {
            return Opinion::No(DISABLED.into());
        }
        if !fits(scheme, &client.authentication_name, certificate) {
            let word = scheme.word();
            return Opinion::No(format!("the certificate does not match the client ({word})"));
        }
        Opinion::Yes(Proof {
            username: Some(client.authentication_name.clone()),
            attributes: client.attributes.clone(),
            ..Proof::default()
        })
    }

    /// What it says of a user whose password was right.
    pub(super) fn user(&self, username: &str) -> User {
        match self.clients().get(&folded(username)) {
            Some(client) if !client.is_enabled => User::Disabled,
            // A password proves the name as the password file has it.
            Some(client) if client.scheme.is_none() && client.authentication_name == username => {
                User::Known(client.clone())
            }
            _ => User::Unknown,
        }
    }

    fn clients(&self) -> Arc<Clients> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first source that the certificate has decides, and nothing behind it.
    fn find_by<'a>(
        &self,
        certificate: &CertificateInfo,
        clients: &'a Clients,
    ) -> Option<&'a Client> {
        let names = self.config.names.iter().map(|source| names_of(*source, certificate));
        let names = names.into_iter().find(|names| !names.is_empty())?;
        names.iter().find_map(|name| clients.get(&folded(name)))
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
    Ok(clients.into_iter().map(|client| (folded(&client.authentication_name), client)).collect())
}

fn in_file(path: &Path, detail: &str) -> String {
    format!("{}: {detail}", path.display())
}

fn names_of(source: NameSource, certificate: &CertificateInfo) -> Vec<&str> {
    match source {
        NameSource::Subject => {
            let names = [&certificate.common_name, &certificate.subject];
            names.into_iter().map(String::as_str).filter(|name| !name.is_empty()).collect()
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
        Scheme::Subject => names_of(NameSource::Subject, certificate).contains(&name),
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
        assert!(matches!(registry.user("anna"), User::Known(_)));
        assert!(matches!(registry.user("Anna"), User::Unknown), "another user");
        assert!(matches!(registry.user("cert"), User::Unknown), "known by its certificate only");
        assert!(matches!(registry.user("nobody"), User::Unknown));
        for name in ["bruno", "Bruno", "pump"] {
            assert!(matches!(registry.user(name), User::Disabled), "{name}");
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
}
