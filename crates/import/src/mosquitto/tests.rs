//! Options, one by one and together.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::*;

/// Files in memory.
#[derive(Default)]
struct Memory(BTreeMap<PathBuf, String>);

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let all = self.0.keys().filter(|path| path.parent() == Some(directory));
        Ok(all.cloned().collect())
    }
}

fn import_with(text: &str, files: &[(&str, &str)]) -> Imported {
    let files = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
    let source = Source { path: Path::new("/etc/mosquitto/mosquitto.conf"), text, host: "here" };
    import(&source, &Memory(files.collect()))
}

fn table_of(imported: &Imported) -> toml::Table {
    imported.config().parse().unwrap()
}

/// What became of an option.
fn fates(imported: &Imported, option: &str) -> Vec<Fate> {
    imported.notes.iter().filter(|it| it.option == option).map(|it| it.fate).collect()
}

#[test]
fn no_option_is_dropped_silently() {
    for name in table::names() {
        let known = table::find(name).unwrap();
        let values: &[&str] = match (name, known.kind) {
            ("listener", _) => &["1884"],
            ("protocol", _) => &["mqtt", "websockets", "http_api"],
            ("tls_version", _) => &["tlsv1.1", "tlsv1.2", "tlsv1.3"],
            ("socket_domain", _) => &["ipv4", "ipv6"],
            ("persistent_client_expiration", _) => &["2m"],
            ("log_type", _) => &["all", "none"],
            ("log_dest", _) => &["stderr", "syslog", "topic", "dlt", "none", "file /x"],
            ("bridge_protocol_version", _) => &["mqttv50", "mqttv311", "mqttv31"],
            (_, table::Kind::Flag) => &["true", "false", "1"],
            (_, table::Kind::Number) => &["1000", "0"],
            _ => &["/dir/file"],
        };
        for value in values {
            let head = match known.scope {
                table::Scope::Bridge if name != "connection" => "connection c\naddress h\n",
                _ => "listener 1883\n",
            };
            let files = [("/dir/file", "topic read a\n"), ("/dir/file/a.conf", "")];
            let imported = import_with(&format!("{head}{name} {value}\n"), &files);
            let mut found = imported.notes.iter().filter(|note| note.option == name);
            assert!(found.any(|note| note.detail != UNHEEDED), "{name} {value}");
            imported.config().parse::<toml::Table>().unwrap();
        }
    }
}

#[test]
fn the_configuration_of_debian_is_carried_over() {
    let text = "pid_file /run/mosquitto/mosquitto.pid\n\npersistence true\n\
                persistence_location /var/lib/mosquitto/\n\
                log_dest file /var/log/mosquitto/mosquitto.log\n\
                include_dir /etc/mosquitto/conf.d\n";
    let own = "listener 1883\nallow_anonymous false\npassword_file /etc/mosquitto/passwd\n";
    let files = [("/etc/mosquitto/conf.d/b.conf", own), ("/etc/mosquitto/conf.d/README", "x y")];
    let imported = import_with(text, &files);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    assert_eq!(table["server"]["data_dir"].as_str(), Some("/var/lib/mosquitto/quelea"));
    assert_eq!(table["listeners"][0]["url"].as_str(), Some("tcp://*:1883"));
    assert_eq!(table["auth"]["password_file"].as_str(), Some("/etc/mosquitto/passwd"));
    assert_eq!(table["auth"]["allow_anonymous"].as_bool(), Some(false));
    let comment = "password_file = \"/etc/mosquitto/passwd\" # /etc/mosquitto/conf.d/b.conf:3";
    assert!(imported.config().contains(comment), "{}", imported.config());
}

#[test]
fn an_unknown_option_is_an_error_with_its_line() {
    let imported = import_with("listener 1883\n\nallow_anonymos true\nfoo 1\nport x\n", &[]);
    let errors: Vec<String> = imported.obstacles(true).map(ToString::to_string).collect();
    let expected = [
        "/etc/mosquitto/mosquitto.conf:3: allow_anonymos: error: unknown option; did you mean \
         allow_anonymous?",
        "/etc/mosquitto/mosquitto.conf:4: foo: error: unknown option",
        "/etc/mosquitto/mosquitto.conf:5: port: error: must be a number, got 'x'",
    ];
    assert_eq!(errors, expected);
}

#[test]
fn who_comes_in_without_a_name_is_as_in_mosquitto() {
    let allowed = |text: &str| table_of(&import_with(text, &[]))["auth"]["allow_anonymous"].clone();
    assert_eq!(allowed("").as_bool(), Some(true), "this machine only");
    assert_eq!(allowed("listener 1883\n").as_bool(), Some(false));
    assert_eq!(allowed("max_connections 10\n").as_bool(), Some(false));
    assert_eq!(allowed("listener 1883\nallow_anonymous true\n").as_bool(), Some(true));
    let plugin = "listener 1883\nallow_anonymous true\nauth_plugin /usr/lib/x.so\n";
    assert_eq!(allowed(plugin).as_bool(), Some(false), "nothing replaces the plugin");
    assert_eq!(import_with(plugin, &[]).obstacles(false).count(), 1);
    assert_eq!(import_with(plugin, &[]).obstacles(true).count(), 0);
}

#[test]
fn a_listener_with_pre_shared_keys_is_never_one_without_encryption() {
    let imported = import_with("listener 8884\npsk_hint hint\npsk_file /p\nport 1883\n", &[]);
    assert!(!imported.config().contains("8884"), "{}", imported.config());
    assert_eq!(fates(&imported, "psk_hint"), [Fate::Rights]);
}

#[test]
fn a_rule_for_a_name_that_nobody_verifies_is_an_error() {
    let files = [("/acl", "topic read a\nuser anna\ntopic b\n")];
    let text = "listener 1883\nallow_anonymous true\nacl_file /acl\n";
    let errors: Vec<_> = import_with(text, &files).obstacles(true).cloned().collect();
    assert!(errors.len() == 1 && errors[0].place.line == 3, "{errors:?}");
    let text = format!("{text}password_file /p\n");
    assert_eq!(import_with(&text, &files).obstacles(false).count(), 0);
}

#[test]
fn listeners_with_rules_of_their_own_become_a_policy() {
    let text = "per_listener_settings true\nlistener 1883\npassword_file /p\nacl_file /acl\n\
                listener 1884 127.0.0.1\nallow_anonymous true\n";
    let acl = "topic read news/#\nuser anna\ntopic a b\n";
    let imported = import_with(text, &[("/acl", acl)]);
    assert_eq!(fates(&imported, "acl_file"), [Fate::Error, Fate::Carried], "a word too many");
    let acl = "topic read news/#\nuser anna\ntopic home/#\ntopic deny home/x\npattern write %c\n";
    let imported = import_with(text, &[("/acl", acl)]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let policy: toml::Table = imported.files[1].text.parse().unwrap();
    let rules = policy["rules"].as_array().unwrap();
    let shown = |rule: &toml::Value| {
        let text = |key: &str| rule.get(key).map_or(String::new(), ToString::to_string);
        [text("effect"), text("action"), text("topics"), text("listeners")].join(" ")
    };
    let shown: Vec<String> = rules.iter().map(shown).collect();
    let expected = [
        r##""deny" "all" ["home/x"] ["tcp://*:1883"]"##,
        r##""allow" "subscribe" ["news/#"] ["tcp://*:1883"]"##,
        r##""allow" "all" ["home/#"] ["tcp://*:1883"]"##,
        r##""allow" "publish" ["${client.id}"] ["tcp://*:1883"]"##,
        r##""allow" "all" ["#", "$SYS/#"] ["tcp://127.0.0.1:1884"]"##,
    ];
    assert_eq!(shown, expected);
}

#[test]
fn two_password_files_are_a_difference_in_rights() {
    let text = "per_listener_settings true\nlistener 1883\npassword_file /a\n\
                listener 1884\npassword_file /b\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(false).count(), 1);
    assert_eq!(imported.obstacles(true).count(), 0);
    assert_eq!(table_of(&imported)["auth"]["password_file"].as_str(), Some("/a"));
}

#[test]
fn the_smaller_limit_of_packets_counts() {
    let bytes =
        |text: &str| table_of(&import_with(text, &[]))["limits"]["packet_bytes_max"].clone();
    assert_eq!(bytes("max_packet_size 5000\nmessage_size_limit 100000\n").as_integer(), Some(5000));
    let both = "max_packet_size 0\nmessage_size_limit 1000\n";
    assert_eq!(bytes(both).as_integer(), Some(1000 + HEAD_BYTES));
    assert_eq!(bytes("max_packet_size 0\n").as_integer(), Some(PACKET_BYTES_MAX));
    assert_eq!(fates(&import_with("max_packet_size 5\n", &[]), "max_packet_size"), [Fate::Error]);
}

#[test]
fn tls_and_certificates_have_their_keys() {
    let text = "listener 8883\ncafile ca.crt\ncertfile /c/server.crt\nkeyfile /c/server.key\n\
                require_certificate true\nuse_identity_as_username true\ncrlfile /c/crl\n\
                tls_version tlsv1.3\nlistener 9001\nprotocol websockets\n";
    let table = table_of(&import_with(text, &[]));
    let (first, second) = (&table["listeners"][0], &table["listeners"][1]);
    assert_eq!(first["url"].as_str(), Some("tls://*:8883"));
    assert_eq!(first["identity_from_certificate"].as_str(), Some("cn"));
    assert_eq!(first["tls"]["client_ca"].as_str(), Some("/etc/mosquitto/ca.crt"));
    assert_eq!(first["tls"]["client_auth"].as_str(), Some("require"));
    assert_eq!(first["tls"]["min_version"].as_str(), Some("1.3"));
    assert_eq!(second["url"].as_str(), Some("ws://*:9001"));
    assert!(second.get("tls").is_none());
    let alone = import_with("listener 8883\ncertfile /c\n", &[]);
    assert_eq!(fates(&alone, "certfile"), [Fate::Error], "mosquitto would listen without TLS");
}

#[test]
fn a_bridge_has_addresses_topics_and_a_secret_file() {
    let text = "connection cloud one\naddress a.example b.example:8884\nbridge_capath /etc/ssl/certs/\n\
                topic sensors/# out 1 house/ site/\ntopic \"\" in 2 a b\ntopic c both\ntopic x up\n\
                remote_username u\nremote_password p w\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(true).count(), 1, "the direction of the last topic");
    let table = table_of(&imported);
    let bridge = &table["bridges"][0];
    let urls: Vec<_> =
        bridge["addresses"].as_array().unwrap().iter().map(|it| it.as_str()).collect();
    assert_eq!(urls, [Some("tls://a.example:8883"), Some("tls://b.example:8884")]);
    assert_eq!(bridge["client_id"].as_str(), Some("cloud one.here"));
    assert_eq!(bridge["protocol"].as_str(), Some("3.1.1"));
    assert_eq!(bridge["topics"][0]["local_prefix"].as_str(), Some("house/"));
    assert_eq!(bridge["topics"][0]["qos"].as_integer(), Some(1));
    assert_eq!(bridge["topics"][2]["direction"].as_str(), Some("both"));
    let secret = &imported.files[1];
    assert_eq!((&*secret.text, secret.is_secret), ("p w\n", true));
    assert_eq!(bridge["password_file"].as_str(), Some(&*secret.name));
    assert!(!imported.config().contains("p w"));
}

#[test]
fn files_of_go_auth_are_used_and_other_backends_named() {
    let text = "listener 1883\nauth_plugin /mosquitto/go-auth.so\nauth_opt_backends files\n\
                auth_opt_files_password_path /p\nauth_opt_files_acl_path /acl\n\
                auth_opt_log_level debug\n";
    let files = [("/acl", "user anna\ntopic a\n")];
    let imported = import_with(text, &files);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    assert_eq!(table_of(&imported)["access"]["acl_file"].as_str(), Some("/acl"));
    let other = text.replace("backends files", "backends files, postgres");
    let imported = import_with(&other, &files);
    let obstacles: Vec<_> = imported.obstacles(false).map(|it| it.detail.clone()).collect();
    assert!(obstacles.iter().any(|it| it.starts_with("backend postgres")), "{obstacles:?}");
}

#[test]
fn a_directory_cannot_include_another_and_must_be_there() {
    let nested = [("/c/a.conf", "include_dir /d\n")];
    let imported = import_with("include_dir /c\n", &nested);
    assert_eq!(fates(&imported, "include_dir"), [Fate::Error, Fate::Carried]);
}
