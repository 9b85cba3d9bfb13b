//! `quelea import --from event-grid`: clients become a registry; groups, topic spaces and bindings
//! become a policy file.

use identity::auth::policy_file;
use identity::event_grid::{Client, Resources, Scheme, read};
use import::{CONFIG_FILE, Fate, Imported, NewFile, Note, Place, Source};

/// Translates the JSON of a namespace. What is not understood is an error.
pub(super) fn import(source: &Source<'_>) -> Imported {
    let file = source.path.display().to_string();
    let note = |option: &str, fate, detail: String| {
        let place = Place { file: file.clone(), line: 0 };
        Note { place, option: option.to_owned(), fate, detail }
    };
    let failed = |detail| {
        let notes = vec![note("resources", Fate::Error, detail)];
        Imported { notes, ..Imported::default() }
    };
    let found = match read(source.text) {
        Ok(found) => found,
        Err(error) => return failed(error),
    };
    let policy = found.policy();
    if let Err((line, error)) = policy_file::parse(&policy) {
        return failed(format!("they would be line {line} of a policy file: {error}"));
    }
    let mut notes = Vec::new();
    for (option, count, becomes) in [
        ("clients", found.clients.len(), REGISTRY_FILE),
        ("clientGroups", found.groups.len(), POLICY_FILE),
        ("topicSpaces", found.spaces.len(), POLICY_FILE),
        ("permissionBindings", found.bindings.len(), POLICY_FILE),
    ] {
        if count > 0 {
            notes.push(note(option, Fate::Carried, format!("{count} in {becomes}")));
        }
    }
    if !found.clients.is_empty() {
        let detail = if needs_authority(&found) { AUTHORITY_NOTE } else { LISTENER_NOTE };
        notes.push(note("clients", Fate::Differs, detail.into()));
    }
    if found.bindings.iter().any(|binding| !binding.publishes) {
        notes.push(note("permissionBindings", Fate::Differs, SUBSCRIBE_NOTE.into()));
    }
    for other in &found.others {
        let detail = match other.starts_with("caCertificates") {
            true => "append its certificate to listeners.tls.client_ca",
            false => "its settings are not carried over",
        };
        notes.push(note(other, Fate::Unsupported, detail.into()));
    }
    Imported { files: files(&found, policy), notes }
}

fn files(found: &Resources, policy: String) -> Vec<NewFile> {
    let mut config = HEAD.to_owned();
    let mut files = Vec::new();
    let mut add = |name: &str, text| {
        files.push(NewFile::open(name, text));
    };
    let has_policy = !policy.is_empty();
    if !found.clients.is_empty() {
        config += REGISTRY;
        config += if has_thumbprints(found) { REGISTERED } else { "" };
        config += TLS;
        config += if needs_authority(found) { AUTHORITY } else { "" };
    }
    if has_policy {
        config += ACCESS;
    }
    add(CONFIG_FILE, config);
    if !found.clients.is_empty() {
        add(REGISTRY_FILE, found.registry());
    }
    if has_policy {
        add(POLICY_FILE, policy);
    }
    files
}

/// May any client show a certificate that nobody has issued?
fn has_thumbprints(found: &Resources) -> bool {
    found.clients.iter().any(|client| matches!(client.scheme, Some(Scheme::Thumbprints(_))))
}

/// Is there a client that goes by the names in its certificate, or an authority?
fn needs_authority(found: &Resources) -> bool {
    let goes_by_name = |client: &Client| !matches!(client.scheme, Some(Scheme::Thumbprints(_)));
    found.clients.iter().any(goes_by_name)
        || found.others.iter().any(|other| other.starts_with("caCertificates"))
}

const REGISTRY_FILE: &str = "clients.json";
const POLICY_FILE: &str = "policy.toml";

const HEAD: &str = "# From an Azure Event Grid namespace.\n";

const REGISTRY: &str = r#"
[[authentication]]
name = "clients"
kind = "registry"
registry_file = "clients.json"

[[listeners]]
url = "tls://*:8883"
"#;

const REGISTERED: &str = "registered_certificates = true\n";

const TLS: &str = r#"[listeners.tls]
certificate = "server.crt"
key = "server.key"
client_auth = "require"
"#;

const AUTHORITY: &str = "client_ca = \"client-ca.crt\"\n";

const ACCESS: &str = "\n[access]\npolicy_file = \"policy.toml\"\n";

const LISTENER_NOTE: &str = "the listener needs server.crt and server.key";

const AUTHORITY_NOTE: &str = "the listener needs server.crt, server.key, and in client-ca.crt the \
                              authorities that have issued certificates of clients";

const SUBSCRIBE_NOTE: &str = "a subscription that is granted in part is accepted, and receives \
                              only what is granted";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn imported(text: &str) -> Imported {
        import(&Source { path: Path::new("/ns.json"), text, host: "h" })
    }

    #[test]
    fn a_namespace_becomes_a_registry_and_a_policy() {
        let text = r#"[
            { "authenticationName": "c1", "attributes": { "type": "pump" },
              "clientCertificateAuthentication": { "validationScheme": "DnsMatchesAuthenticationName" } },
            { "name": "pumps", "query": "attributes.type = 'pump'" },
            { "name": "own", "topicTemplates": ["${client.authenticationName}/#"] },
            { "name": "b", "clientGroupName": "pumps", "topicSpaceName": "own", "permission": "Subscriber" },
            { "name": "ca", "encodedCertificate": "x" }]"#;
        let imported = imported(text);
        let names: Vec<_> = imported.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["quelea.toml", "clients.json", "policy.toml"]);
        let fates: Vec<_> = imported.notes.iter().map(|note| note.fate).collect();
        assert_eq!(fates.iter().filter(|fate| **fate == Fate::Carried).count(), 4);
        assert_eq!(fates.iter().filter(|fate| **fate == Fate::Differs).count(), 2);
        assert_eq!(fates.last(), Some(&Fate::Unsupported));
        assert!(imported.obstacles(false).next().is_none());
    }

    #[test]
    fn thumbprints_need_no_authority() {
        let client = |scheme: &str, more: &str| {
            format!(
                r#"{{ "authenticationName": "{scheme}", "clientCertificateAuthentication":
                  {{ "validationScheme": "{scheme}" {more} }} }}"#
            )
        };
        let thumbprint = format!(r#", "allowedThumbprints": ["{}"]"#, "ab".repeat(32));
        let pinned = client("ThumbprintMatch", &thumbprint);
        let named = client("SubjectMatchesAuthenticationName", "");
        let authority = r#"{ "name": "ca", "encodedCertificate": "x" }"#;
        for (text, takes_registered, has_authority) in [
            (format!("[{pinned}]"), true, false),
            (format!("[{named}]"), false, true),
            (format!("[{pinned}, {named}]"), true, true),
            (format!("[{pinned}, {authority}]"), true, true),
        ] {
            let config = &imported(&text).files[0].text;
            assert_eq!(config.contains("registered_certificates = true"), takes_registered);
            assert_eq!(config.contains("client_ca"), has_authority, "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_writes_nothing() {
        for (text, why) in [
            ("[", "JSON"),
            (r#"{ "name": "g", "query": "attributes.a LIKE 'x'" }"#, "policy file"),
            (r#"{ "name": "s", "topicTemplates": ["${client.secret}"] }"#, "unknown variable"),
            (
                r#"{ "name": "b", "clientGroupName": "g", "topicSpaceName": "s", "permission": "Publisher" }"#,
                "unknown group",
            ),
        ] {
            let imported = imported(text);
            assert!(imported.files.is_empty(), "{text}");
            assert_eq!(imported.notes[0].fate, Fate::Error);
            assert!(imported.notes[0].detail.contains(why), "{}", imported.notes[0]);
        }
    }
}
