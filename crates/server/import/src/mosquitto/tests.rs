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
fn a_text_that_is_no_configuration_is_one_error() {
    let text = "some text\nthat is\nof another\nprogram and\nhas lines\n";
    let errors: Vec<_> = import_with(text, &[]).obstacles(true).cloned().collect();
    assert!(errors.len() == 1 && errors[0].detail.contains("--from"), "{errors:?}");
    let known = format!("{text}listener 1883\n");
    assert_eq!(import_with(&known, &[]).obstacles(true).count(), 5);
}

#[test]
fn who_comes_in_without_a_name_is_as_in_mosquitto() {
    let allowed = |text: &str| table_of(&import_with(text, &[]))["auth"]["allow_anonymous"].clone();
    assert_eq!(allowed("").as_bool(), Some(true), "this machine only");
    assert_eq!(allowed("listener 1883\n").as_bool(), Some(false));
    // mosquitto makes a listener of it, and it admits everybody.
    let made = import_with("max_connections 10\n", &[]);
    assert_eq!(allowed("max_connections 10\n").as_bool(), Some(true));
    assert_eq!(table_of(&made)["listeners"][0]["url"].as_str(), Some("tcp://*:1883"));
    assert_eq!(fates(&made, "max_connections"), [Fate::Differs, Fate::Carried]);
    for unmade in ["max_connections -1\n", "password_file /p\n", "require_certificate false\n"] {
        assert!(table_of(&import_with(unmade, &[])).get("listeners").is_none(), "{unmade}");
    }
    let ignored = import_with("allow_anonymous false\n", &[]);
    assert_eq!(fates(&ignored, "allow_anonymous"), [Fate::Differs, Fate::Carried]);
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
    let alone = import_with("allow_anonymous true\nlistener 8884\npsk_hint hint\n", &[]);
    assert_eq!(fates(&alone, "listener"), [Fate::Error], "else the broker would serve loopback");
}

#[test]
fn a_rule_for_a_name_that_nobody_verifies_is_never_carried_over() {
    let files = [("/acl", "topic read a\nuser anna\ntopic b\npattern write x/%u\n")];
    let text = "listener 1883\nallow_anonymous true\nacl_file /acl\n";
    let imported = import_with(text, &files);
    let found: Vec<_> =
        imported.obstacles(false).map(|note| (note.place.line, note.fate)).collect();
    assert_eq!(found, [(3, Fate::Rights), (4, Fate::Rights)]);
    let policy: toml::Table = imported.files[1].text.parse().unwrap();
    assert_eq!(policy["rules"].as_array().unwrap().len(), 1, "{policy}");
    assert!(policy["rules"][0].get("group").is_none(), "clients without a username are all");
    let denied = [("/acl", "topic read a\nuser anna\ntopic deny a\n")];
    assert_eq!(import_with(text, &denied).obstacles(true).count(), 1);
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
                remote_username u\nremote_password p w\nbridge_max_packet_size 2000\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(true).count(), 1, "the direction of the last topic");
    let table = table_of(&imported);
    let bridge = &table["bridges"][0];
    let urls: Vec<_> =
        bridge["addresses"].as_array().unwrap().iter().map(|it| it.as_str()).collect();
    assert_eq!(urls, [Some("tls://a.example:8883"), Some("tls://b.example:8884")]);
    assert_eq!(bridge["client_id"].as_str(), Some("here.cloud"));
    assert_eq!(bridge["packet_bytes_max"].as_integer(), Some(2000));
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
fn each_file_begins_at_the_default_listener() {
    let text = "per_listener_settings true\nlistener 1884 127.0.0.1\nallow_anonymous false\n\
                include_dir /c\npassword_file /p\nmax_connections 7\n";
    let included = "max_qos 1\nallow_anonymous true\nlistener 1885\nmax_connections 3\n";
    let imported = import_with(text, &[("/c/a.conf", included), ("/c/b.conf", "max_qos 0\n")]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    let shown = |listener: &toml::Value| {
        let get = |key: &str| listener.get(key).map_or("-".into(), ToString::to_string);
        [get("url"), get("allow_anonymous"), get("connections_max"), get("qos_max")].join(" ")
    };
    let shown: Vec<String> = table["listeners"].as_array().unwrap().iter().map(shown).collect();
    let expected = [
        r#""tcp://*:1883" true - 0"#,
        r#""tcp://127.0.0.1:1884" false 7 -"#,
        r#""tcp://*:1885" false 3 -"#,
    ];
    assert_eq!(shown, expected);
    let bridge = [("/c/a.conf", "topic x out\n")];
    let imported = import_with("connection c\naddress h\ntopic a\ninclude_dir /c\n", &bridge);
    let errors: Vec<_> = imported.obstacles(true).map(|note| note.place.to_string()).collect();
    assert_eq!(errors, ["/c/a.conf:1"], "mosquitto refuses it as well");
}

#[test]
fn what_follows_a_value_is_ignored_as_in_mosquitto() {
    let text = "listener 1883 127.0.0.1 # x\nallow_anonymous true # x\nmax_connections 5 x\n\
                protocol mqtt # x\nsocket_domain ipv4 # x\nmax_keepalive 60 s\n\
                persistent_client_expiration 2d # x\nlog_type debug # x\nlog_dest stderr # x\n\
                connection c # x\naddress h:1 # x\ntopic a/# out 1 l/ r/ # x\n\
                topic b both # x\nkeepalive_interval 1 # x\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    let listener = &table["listeners"][0];
    assert_eq!(listener["url"].as_str(), Some("tcp://127.0.0.1:1883"));
    assert_eq!(listener["connections_max"].as_integer(), Some(5));
    assert_eq!(table["auth"]["allow_anonymous"].as_bool(), Some(true));
    assert_eq!(table["limits"]["keep_alive_max_secs"].as_integer(), Some(60));
    assert_eq!(table["limits"]["session_expiry_max_secs"].as_integer(), Some(2 * 86_400));
    let bridge = &table["bridges"][0];
    assert_eq!((&bridge["name"], &bridge["client_id"]), (&"c".into(), &"here.c".into()));
    assert_eq!(bridge["addresses"].to_string(), r#"["tcp://h:1"]"#);
    assert_eq!(bridge["keep_alive_secs"].as_integer(), Some(5), "mosquitto takes no less");
    assert_eq!(bridge["topics"][0]["remote_prefix"].as_str(), Some("r/"));
}

#[test]
fn other_names_of_options_are_known() {
    let text = "listener 1883\nmaximum_qos 1\nretained_persistence true\nretry_interval a few\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    assert_eq!(table["listeners"][0]["qos_max"].as_integer(), Some(1));
    assert!(table.get("durability").is_none(), "the default is fsync");
}

#[test]
fn what_mosquitto_does_not_start_with_is_an_error_with_its_line() {
    for (text, line) in [
        ("listener 1883\nallow_anonymous true\nper_listener_settings true\n", 3),
        ("listener 1883\nacl_file /acl\nlistener 1884\nacl_file /acl\n", 4),
        ("listener 1883\nplugin_opt_x y\n", 2),
        ("listener 1883\nconnection c\naddress h\n", 2),
        ("listener 1883\nconnection c\naddress h\naddress i\ntopic a\n", 4),
        ("listener 0\n", 1),
        ("listener 1883\nmax_keepalive 70000\n", 2),
    ] {
        let imported = import_with(text, &[("/acl", "topic a\n")]);
        let lines: Vec<_> = imported.obstacles(true).map(|note| note.place.line).collect();
        assert_eq!(lines, [line], "{text}");
    }
}

#[test]
fn a_listener_that_admits_nobody_is_left_out() {
    let text = "listener 8883\ncertfile /c\nkeyfile /k\ncafile /a\nuse_identity_as_username true\n\
                listener 1883\nallow_anonymous true\n";
    let imported = import_with(text, &[]);
    assert_eq!(fates(&imported, "use_identity_as_username"), [Fate::Differs]);
    assert!(!imported.config().contains("8883"), "{}", imported.config());
    let text = text.replace("true\nlistener", "true\nrequire_certificate true\nlistener");
    assert!(import_with(&text, &[]).config().contains("identity_from_certificate"));
}

#[test]
fn web_pages_are_named_as_browsers_name_them() {
    let import = |lines: &str| import_with(&format!("listener 9001\n{lines}"), &[]);
    let text = "protocol websockets\nwebsockets_origin https://a.example\n";
    let table = table_of(&import(text));
    let origins = &table["listeners"][0]["websocket"]["origins"];
    assert_eq!(origins.to_string(), r#"["https://a.example"]"#);
    let any = import("protocol websockets\nwebsockets_origin *\n");
    assert_eq!(fates(&any, "websockets_origin"), [Fate::Error], "it would open the listener");
    let tcp = import("websockets_origin https://a.example\n");
    assert_eq!(fates(&tcp, "websockets_origin"), [Fate::NotNeeded]);
}

#[test]
fn a_relative_socket_is_in_the_directory_of_the_file() {
    let imported = import_with("listener 0 run/m.sock\nallow_anonymous true\n", &[]);
    let table = table_of(&imported);
    assert_eq!(table["listeners"][0]["url"].as_str(), Some("unix:///etc/mosquitto/run/m.sock"));
    assert_eq!(fates(&imported, "listener")[0], Fate::Carried);
    assert!(fates(&imported, "listener").contains(&Fate::Differs));
}

/// Filter, direction and QoS of the topics of a bridge.
fn topics_of(lines: &str) -> Vec<String> {
    let imported = import_with(&format!("connection c\naddress h\n{lines}"), &[]);
    assert_eq!(imported.obstacles(true).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    let topics = table["bridges"][0]["topics"].as_array().unwrap().clone();
    let shown = |map: &toml::Value| {
        let text = |key: &str| map.get(key).and_then(|it| it.as_str()).unwrap_or_default();
        let prefixes = [text("local_prefix"), text("remote_prefix")].join(":");
        format!("{} {} {} {prefixes}", text("filter"), text("direction"), map["qos"])
    };
    topics.iter().map(shown).collect()
}

#[test]
fn overlapping_topics_have_the_higher_qos() {
    assert_eq!(topics_of("topic a/# out 0\ntopic a/b out 1\n"), ["a/b out 1 :", "a/# out 0 :"]);
    assert_eq!(topics_of("topic a/# OUT 2\ntopic b in 1\n"), ["a/# out 2 :", "b in 1 :"]);
    // The last line of one filter has its QoS.
    assert_eq!(topics_of("topic a out 1\ntopic a out 0\n"), ["a out 0 :"]);
    assert_eq!(topics_of("topic a both 1\ntopic a out 0\n"), ["a out 0 :", "a in 1 :"]);
    let prefixes = "topic b out 0 a/ x/\ntopic a/# out 1\n";
    assert_eq!(topics_of(prefixes), ["b out 0 a/:x/", "a/# out 1 :"], "the first has the prefixes");
    let text = format!("connection c\naddress h\n{prefixes}");
    assert!(fates(&import_with(&text, &[]), "topic").contains(&Fate::Differs));
}

#[test]
fn quotation_marks_are_a_part_of_a_topic() {
    assert_eq!(topics_of("topic \"a\" out 0\n"), ["\"a\" out 0 :"]);
    assert_eq!(topics_of("topic \"a/#\" out 0\ntopic b out 0 \"\" \"\"\n"), ["b out 0 :"]);
    let text = "connection c\naddress h\ntopic \"a/#\" out 0\n";
    let imported = import_with(text, &[]);
    assert!(table_of(&imported).get("bridges").is_none(), "it relays nothing");
    assert_eq!(fates(&imported, "topic"), [Fate::Differs]);
}

#[test]
fn a_bridge_without_tls_has_no_name_to_verify() {
    let text = "connection c\naddress h\ntopic a\nbridge_insecure true\n";
    assert_eq!(fates(&import_with(text, &[]), "bridge_insecure"), [Fate::NotNeeded]);
    let text = format!("{text}bridge_cafile /ca\n");
    assert_eq!(fates(&import_with(&text, &[]), "bridge_insecure"), [Fate::Rights]);
}

#[test]
fn rules_without_users_are_for_all_clients_of_their_listener() {
    let text = "per_listener_settings true\nlistener 1883\nallow_anonymous true\nacl_file /acl\n\
                listener 1884\nallow_anonymous true\n";
    let imported = import_with(text, &[("/acl", "topic read a\n")]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let policy: toml::Table = imported.files[1].text.parse().unwrap();
    assert!(policy.get("groups").is_none(), "the broker refuses rules for unverified names");
}

#[test]
fn the_dynamic_security_plugin_becomes_users_and_rules() {
    let text = "listener 1883\nallow_anonymous true\n\
                plugin /usr/lib/mosquitto_dynamic_security.so\n\
                plugin_opt_config_file /d.json\n";
    let json = "{\"clients\": [{\"username\": \"anna\", \"password\": \"eA==\", \"salt\": \
                \"eA==\", \"iterations\": 1}], \"roles\": [], \"defaultACLAccess\": \
                {\"publishClientSend\": true}}";
    let imported = import_with(text, &[("/d.json", json)]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    assert_eq!(table["auth"]["password_file"].as_str(), Some("dynamic-security.passwd"));
    assert_eq!(table["auth"]["allow_anonymous"].as_bool(), Some(true));
    assert_eq!(table["access"]["policy_file"].as_str(), Some("policy.toml"));
    let names: Vec<_> = imported.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["quelea.toml", "policy.toml", "dynamic-security.passwd"]);
    assert_eq!(import_with(text, &[]).obstacles(true).count(), 1, "the file cannot be read");
    let both = format!("{text}password_file /p\nacl_file /a\n");
    let imported = import_with(&both, &[("/d.json", json)]);
    assert_eq!(imported.obstacles(false).count(), 2, "{:?}", imported.notes);
}

#[test]
fn a_directory_cannot_include_another_and_must_be_there() {
    let nested = [("/c/a.conf", "include_dir /d\n")];
    let imported = import_with("include_dir /c\n", &nested);
    assert_eq!(fates(&imported, "include_dir"), [Fate::Error, Fate::Carried]);
}
