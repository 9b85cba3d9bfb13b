//! What of a configuration is open: reported by `quelea serve --check-config --security`.
//!
//! Nothing of it is an error: each may be what somebody wants. Who asks wants to know all of it.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use policy::{Permission, Rule, Who};

use config::{Address, Config, EngineServer, Listener, Machine, Method, NamespaceSource, Origins};
use identity::auth::passwords::PasswordFile;
use identity::auth::{acl_file, policy_file};

/// What is open, one line each, the gravest first.
pub fn findings(config: &Config, machine: &Machine) -> Vec<String> {
    let mut found = Vec::new();
    config.listeners.iter().for_each(|listener| look_at_listener(listener, config, &mut found));
    look_at_names(config, &mut found);
    look_at_rules(config, &mut found);
    look_at_files(config, &mut found);
    look_at_limits(config, machine, &mut found);
    found
}

fn look_at_listener(listener: &Listener, config: &Config, found: &mut Vec<String>) {
    let name = &listener.name;
    let is_remote = !listener.address.is_local();
    if listener.allow_anonymous && is_remote {
        found.push(format!(
            "listener '{name}' admits anonymous clients from other machines; set allow_anonymous = false"
        ));
    }
    if listener.placing.from.contains(&NamespaceSource::Username) && !config.proves_names() {
        found.push(format!(
            "listener '{name}' takes namespaces from usernames that are not verified, so any client may choose one; set auth.password_file"
        ));
    }
    let takes_secrets = config.auth.password_file.is_some() || !config.authentication.is_empty();
    if is_remote && listener.tls.is_none() && takes_secrets {
        found.push(format!(
            "listener '{name}' accepts passwords from other machines in clear text; use tls://"
        ));
    }
    let websocket = listener.websocket.as_ref();
    if listener.allow_anonymous && websocket.is_some_and(|own| own.origins == Origins::Any) {
        found.push(format!(
            "listener '{name}' lets the scripts of any web page connect; list websocket.origins"
        ));
    }
    if let (Address::Ip(_), Some(networks)) = (&listener.address, &listener.trusted_proxies)
        && networks.iter().any(|network| network.to_string().ends_with("/0"))
    {
        found.push(format!(
            "listener '{name}' accepts the PROXY header from any address; list the networks of your proxies in trusted_proxies"
        ));
    }
}

fn look_at_names(config: &Config, found: &mut Vec<String>) {
    if !config.proves_names() {
        found.push(
            "usernames are not verified, so any client that knows a client ID can take its session; set \
             auth.password_file"
                .into(),
        );
    } else if config.auth.session_owner == config::SessionOwner::Anybody {
        found.push(
            "auth.session_owner = \"anybody\": any client that knows a client ID can take its session"
                .into(),
        );
    }
    for provider in &config.authentication {
        let (url, what) = match &provider.method {
            Method::Http(own) => (Some(&own.url), "sends passwords"),
            Method::Jwt(own) => (own.jwks_url.as_ref(), "fetches its keys"),
            Method::Certificate { .. } | Method::Registry(_) => (None, ""),
        };
        if url.is_some_and(|url| !url.is_private()) {
            let name = &provider.name;
            found.push(format!("authentication '{name}' {what} in clear text; use https://"));
        }
    }
    let requires = |tls: &config::TlsConfig| tls.client_auth == config::ClientAuth::Require;
    let is_open = !config.http_tls.as_ref().is_some_and(requires);
    if is_open && config.http.is_some_and(|address| !address.ip().is_loopback()) {
        found.push("http.listen can be reached from other machines, without authentication".into());
    }
    let in_clear = |server: &&EngineServer| !server.is_tls() && !server.is_loopback;
    let servers = config.cluster.iter().flat_map(|own| &own.servers);
    for server in servers.filter(in_clear) {
        found.push(format!(
            "cluster: stored data is sent to {} in clear text; use tls://",
            server.url
        ));
    }
}

/// What the access rules leave open, and which of them do nothing.
fn look_at_rules(config: &Config, found: &mut Vec<String>) {
    look_at_policy(config, found);
    let Some(path) = &config.access.acl_file else {
        if config.access.policy_file.is_none() {
            let all = "all clients may read and write all topics";
            found.push(format!("{all}; set access.acl_file or access.policy_file"));
        }
        return;
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let rules = acl_file::parse(&text).unwrap_or_default();
    let users = config.auth.password_file.as_ref().map(|path| PasswordFile::load(path));
    let by_certificate = config.listeners.iter().any(Listener::names_by_certificate);
    let knows = |name: &str| match &users {
        Some(Ok(users)) if !by_certificate && config.authentication.is_empty() => users.knows(name),
        _ => true,
    };
    for (line, rule) in &rules {
        let mut add = |why: String| found.push(format!("{}:{line}: {why}", path.display()));
        match &rule.who {
            Who::User(name) if !knows(name) => {
                add(format!("never matches: the password file has no user '{name}'"));
            }
            Who::Anonymous if !config.admits_nameless() => {
                add("never matches: all clients have a username".into());
            }
            _ if is_denied(rule, &rules) => {
                add("never matches: a deny covers all of it".into());
            }
            Who::Anonymous | Who::Everyone if gives_all(rule) => {
                add(format!("'{}' applies to all clients", rule.filter));
            }
            _ => {}
        }
    }
}

/// What a policy gives to everybody.
fn look_at_policy(config: &Config, found: &mut Vec<String>) {
    let Some(path) = &config.access.policy_file else { return };
    let Ok(policy) = policy_file::load(path, None) else { return };
    for (origin, rule) in policy.rules().filter(|(_, rule)| rule.who == Who::Everyone) {
        if gives_all(&rule) {
            let (path, line) = (path.display(), origin.line);
            found.push(format!("{path}:{line}: '{}' applies to all clients", rule.filter));
        }
    }
}

fn gives_all(rule: &Rule) -> bool {
    rule.permission != Permission::Deny && rule.filter == "#"
}

/// Is a grant void, since whom it is for is denied as much or more?
fn is_denied(rule: &Rule, rules: &[(usize, Rule)]) -> bool {
    let covers = |deny: &Rule| {
        deny.permission == Permission::Deny
            && (deny.who == rule.who || deny.who == Who::Everyone)
            && (deny.filter == rule.filter
                || deny.filter == "#" && !rule.filter.starts_with('$')
                || !rule.filter.contains(['+', '#', '%'])
                    && topic::matches(&deny.filter, &rule.filter))
    };
    rule.permission != Permission::Deny && rules.iter().any(|(_, other)| covers(other))
}

/// Files with secrets that others on the machine can read.
fn look_at_files(config: &Config, found: &mut Vec<String>) {
    let keys = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let keys = keys.chain(config.http_tls_by_key().into_iter().map(|(_, tls)| tls));
    let shared = config.authentication.iter().filter_map(|provider| match &provider.method {
        Method::Jwt(own) => own.secret_file.as_deref(),
        Method::Http(_) | Method::Certificate { .. } | Method::Registry(_) => None,
    });
    let passwords = config.auth.password_file.as_deref();
    let secrets = keys.map(|tls| tls.key.as_path()).chain(passwords).chain(shared);
    for path in secrets {
        if std::fs::metadata(path).is_ok_and(|file| others_may(&file, 0o044)) {
            found.push(format!("{}: other users can read it; chmod 600", path.display()));
        }
    }
    let data = &config.server.data_dir;
    if config.durability.has_journal()
        && std::fs::metadata(data).is_ok_and(|directory| others_may(&directory, 0o077))
    {
        found.push(format!("{}: other users can list it; chmod 700", data.display()));
    }
    let registries = config.authentication.iter().map(|provider| match &provider.method {
        Method::Registry(own) => Some(own.file.as_path()),
        Method::Jwt(_) | Method::Http(_) | Method::Certificate { .. } => None,
    });
    let changeable = [config.access.acl_file.as_deref(), config.auth.password_file.as_deref()];
    for path in changeable.into_iter().chain(registries).flatten() {
        if std::fs::metadata(path).is_ok_and(|file| others_may(&file, 0o022)) {
            found.push(format!("{}: other users can change it", path.display()));
        }
    }
}

/// Root's group may read what is root's, as Debian has it for keys.
fn others_may(file: &Metadata, bits: u32) -> bool {
    let group_is_own = file.gid() == 0 && file.uid() == 0;
    let bits = if group_is_own { bits & 0o007 } else { bits };
    file.permissions().mode() & bits != 0
}

/// Limits that the machine does not bear out.
fn look_at_limits(config: &Config, machine: &Machine, found: &mut Vec<String>) {
    let limits = &config.limits;
    if limits.memory_bytes_max > machine.memory_bytes {
        found.push(format!(
            "limits.memory_bytes_max is above the {} bytes of the machine or cgroup",
            machine.memory_bytes
        ));
    }
    let parts = [
        limits.arrivals_bytes_max,
        limits.incoming_bytes_max,
        limits.retained_bytes_max,
        limits.queues_bytes_max,
        limits.sessions_bytes_max,
    ];
    if parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part)) > limits.memory_bytes_max {
        found.push(
            "arrivals_bytes_max, incoming_bytes_max, retained_bytes_max, queues_bytes_max and \
             sessions_bytes_max together are above memory_bytes_max: one of them can use up all \
             memory"
                .into(),
        );
    }
    let descriptors = open_files_max();
    if u64::from(limits.connections_max) > descriptors || limits.connections_max == 0 {
        found.push(format!(
            "limits.connections_max is above the limit of {descriptors} open files: further clients wait instead of being refused; raise LimitNOFILE or ulimit -n"
        ));
    }
}

fn open_files_max() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use config::{SourceFile, Sources, load};

    const MACHINE: Machine = Machine { cores: 2, ..Machine::UNKNOWN };

    fn found(directory: &Path, text: &str) -> Vec<String> {
        let text = text.replace("{dir}", &directory.display().to_string());
        let file = SourceFile { path: directory.join("quelea.toml"), text };
        let sources = Sources { file: Some(file), ..Sources::default() };
        findings(&load(&sources, &MACHINE).unwrap().config, &MACHINE)
    }

    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        };
        let line = identity::auth::passwords::user_lines("anna", b"secret", false).join("\n");
        write("passwords", &format!("{line}\n"));
        write(
            "acl",
            "topic read public/#\nuser anna\ntopic readwrite a/b\ntopic deny a/+\nuser nobody\n\
             topic read x\npattern write #\n",
        );
        directory
    }

    fn has(found: &[String], text: &str) -> bool {
        found.iter().any(|line| line.contains(text))
    }

    #[test]
    fn what_is_open_is_reported() {
        let directory = directory();
        let found = found(
            directory.path(),
            "[[listeners]]\nurl = \"tcp://*:1\"\nallow_anonymous = true\n\
             namespace_from = [\"username\"]\n[http]\nlisten = \
             \"0.0.0.0:1\"\n[limits]\nmemory_bytes_max = \"8GiB\"\nretained_bytes_max = \"9GiB\"\n\
             connections_max = \"unlimited\"\n",
        );
        for text in [
            "admits anonymous clients from other machines",
            "any client may choose one",
            "usernames are not verified",
            "read and write all topics",
            "http.listen",
            "memory_bytes_max is above",
            "use up all memory",
            "connections_max is above",
        ] {
            assert!(has(&found, text), "{text} not in {found:?}");
        }
    }

    #[test]
    fn rules_that_never_match_and_files_that_others_can_read_are_reported() {
        let directory = directory();
        let text = "[auth]\npassword_file = \"{dir}/passwords\"\n[access]\nacl_file = \
                    \"{dir}/acl\"\n[limits]\nconnections_max = 10\n[durability]\nlevel = \
                    \"memory\"\n";
        let path = directory.path().join("passwords");
        let lines = found(directory.path(), text);
        for text in [
            "acl:1: never matches: all clients have a username",
            "acl:3: never matches: a deny covers",
            "acl:6: never matches: the password file has no user 'nobody'",
            "acl:7: '#' applies to all clients",
        ] {
            assert!(has(&lines, text), "{text} not in {lines:?}");
        }
        assert!(!has(&lines, "other users can"), "{lines:?}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o646)).unwrap();
        let lines = found(directory.path(), text);
        assert!(has(&lines, "passwords: other users can read it"), "{lines:?}");
        assert!(has(&lines, "passwords: other users can change it"), "{lines:?}");
    }

    #[test]
    fn services_in_clear_text_are_reported_and_users_of_tokens_may_have_rules() {
        let directory = directory();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, [b'x'; 40]).unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
        let text = "[[authentication]]\nname = \"s\"\nkind = \"http\"\nurl = \
                    \"http://192.0.2.1/\"\n[[authentication]]\nname = \"near\"\nkind = \
                    \"http\"\nurl = \"http://127.0.0.1/\"\n[[authentication]]\nname = \"t\"\n\
                    kind = \"jwt\"\nsecret_file = \"{dir}/secret\"\njwks_url = \
                    \"http://id.example/\"\n[auth]\npassword_file = \"{dir}/passwords\"\n\
                    [access]\nacl_file = \"{dir}/acl\"\n";
        let lines = found(directory.path(), text);
        for text in
            ["'s' sends passwords", "'t' fetches its keys", "secret: other users can read it"]
        {
            assert!(has(&lines, text), "{text} not in {lines:?}");
        }
        for text in ["'near'", "no user 'nobody'", "not verified"] {
            assert!(!has(&lines, text), "{text} in {lines:?}");
        }
    }

    #[test]
    fn what_is_closed_is_not_reported() {
        let directory = directory();
        std::fs::write(directory.path().join("acl"), "user anna\ntopic readwrite home/#\n")
            .unwrap();
        let text = "[auth]\npassword_file = \"{dir}/passwords\"\n[access]\nacl_file = \
                    \"{dir}/acl\"\n[limits]\nconnections_max = 10\n[durability]\nlevel = \
                    \"memory\"\n";
        let acl = directory.path().join("acl");
        std::fs::set_permissions(acl, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(found(directory.path(), text), Vec::<String>::new());
    }
}
