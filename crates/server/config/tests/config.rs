//! The configuration from the outside: what people write, and the errors they get.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::path::{Path, PathBuf};

use broker::Quota;
use config::keys::SECTIONS;
use config::schema::{Key, Section, Value, ValueKind};
use config::{
    Address, Config, ConfigError, DurabilityLevel, Flag, LogTarget, Machine, NEVER,
    NamespaceSource, NamespaceState, QueueOverflow, SourceFile, Sources, Transport, WhenFull, load,
    notes, print,
};

const MACHINE: Machine =
    Machine { cores: 8, memory_bytes: 10_000, has_ipv6: true, ..Machine::UNKNOWN };

fn file(text: &str) -> Sources {
    let file = SourceFile { path: "/etc/quelea/quelea.toml".into(), text: text.into() };
    Sources { file: Some(file), ..Sources::default() }
}

fn config(text: &str) -> Config {
    load(&file(text), &MACHINE).unwrap().config
}

fn error(text: &str) -> String {
    load(&file(text), &MACHINE).unwrap_err().to_string()
}

fn urls(config: &Config) -> Vec<&str> {
    config.listeners.iter().map(|listener| listener.name.as_str()).collect()
}

#[test]
fn without_configuration_only_loopback_listens() {
    let config = Config::defaults(&MACHINE);
    assert_eq!(urls(&config), ["tcp://127.0.0.1:1883", "tcp://[::1]:1883"]);
    assert!(config.listeners.iter().all(|listener| listener.allow_anonymous));
    assert_eq!(
        (config.server.workers, config.server.shards, config.server.acceptor_threads),
        (8, 8, 2)
    );
    assert_eq!(config.limits.memory_bytes_max, 8_000);
    assert_eq!(config.limits.packet_bytes_max, 16 << 20);
    assert_eq!(config.limits.session_expiry_max_secs, 90 * 24 * 60 * 60);
    assert_eq!(config.limits.session_expiry_v3_secs, NEVER);
    assert_eq!(config.limits.connections_per_second_max, 0);
    assert_eq!(config.http, Some("127.0.0.1:9883".parse().unwrap()));
    assert_eq!(config.log.target, LogTarget::Stderr);

    let small = Machine { cores: 1, has_ipv6: false, ..MACHINE };
    let config = Config::defaults(&small);
    assert_eq!(urls(&config), ["tcp://127.0.0.1:1883"]);
    assert_eq!(
        (config.server.workers, config.server.shards, config.server.acceptor_threads),
        (1, 4, 1)
    );
}

#[test]
fn shards_beyond_the_workers_are_for_what_is_on_disk() {
    let small = Machine { cores: 1, ..MACHINE };
    for (level, shards) in [("memory", 1), ("disk", 4), ("fsync", 4)] {
        let text = format!("[durability]\nlevel = \"{level}\"");
        let config = load(&file(&text), &small).unwrap().config;
        assert_eq!(config.server.shards, shards, "{level}");
    }
}

#[test]
fn each_key_has_a_doc_and_a_valid_default() {
    for (name, _, key) in all_keys() {
        assert!(!key.doc.trim().is_empty(), "{name} has no doc");
        if !key.default.is_empty() {
            key.kind.parse_text(key.default).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
    }
}

#[test]
fn a_number_is_taken_in_its_range_only_and_never_means_a_word() {
    for (name, section, key) in all_keys() {
        let ValueKind::Number { min, max, .. } = key.kind else { continue };
        let words = words_of(key.kind);
        for number in [min, max] {
            let value = reads_back(&name, section, key, &number.to_string());
            assert!(
                !value.contains(char::is_alphabetic) || value.ends_with("iB\""),
                "{name} {value}"
            );
        }
        for (word, _) in &words {
            let value = reads_back(&name, section, key, &format!("\"{word}\""));
            assert_eq!(value, format!("\"{word}\""), "{name}");
        }
        let stand_for = words.iter().map(|(_, number)| *number);
        let outside = stand_for.chain([0, min.wrapping_sub(1), max.wrapping_add(1)]);
        for number in outside.filter(|number| !(min..=max).contains(number)) {
            let path = name.rsplit_once('.').unwrap().1;
            let expected = format!("{path}: must be {}; got {number}", key.kind.allowed());
            for sources in
                [in_file(section, key, &number.to_string()), in_env(section, key, number)]
            {
                let why = match load(&sources, &MACHINE) {
                    Ok(_) => panic!("{name} = {number} is taken"),
                    Err(why) => why.to_string(),
                };
                assert!(why.contains(&expected), "{expected} not in {why}");
                assert!(
                    words.iter().all(|(word, _)| why.contains(&format!("\"{word}\""))),
                    "{why}"
                );
            }
        }
    }
}

/// With the names of their sections.
fn all_keys() -> impl Iterator<Item = (String, &'static str, &'static Key)> {
    let keys = |section: &'static Section| section.keys.iter().map(move |key| (section.name, key));
    SECTIONS.iter().flat_map(keys).map(|(name, key)| (format!("{name}.{}", key.name), name, key))
}

fn words_of(kind: ValueKind) -> Vec<(&'static str, u64)> {
    let ValueKind::Number { words, .. } = kind else { return Vec::new() };
    words.into_iter().flatten().collect()
}

/// What is loaded with this value is printed with it, and that is loaded as the same. Returns the
/// printed value.
fn reads_back(name: &str, section: &str, key: &Key, value: &str) -> String {
    let load = |sources| load(&sources, &MACHINE).unwrap_or_else(|why| panic!("{name}: {why}"));
    let loaded = load(in_file(section, key, value));
    let text = print::effective(&loaded);
    let is_set = |line: &&str| line.starts_with(&format!("{} = ", key.name)) && line.contains(":2");
    let line = text.lines().find(is_set).unwrap_or_else(|| panic!("{name} not in {text}"));
    let printed = line.split(['=', '#']).nth(1).unwrap().trim().to_owned();
    let file = SourceFile { path: "quelea.toml".into(), text };
    let again = load(Sources { file: Some(file), ..Sources::default() });
    assert_eq!(again.config, loaded.config, "{name} = {value}");
    printed
}

/// A file with this value in its second line, and what else its section needs.
fn in_file(section: &str, key: &Key, value: &str) -> Sources {
    let rest = match section {
        "listeners" => "url = \"tcp://127.0.0.1\"",
        "namespaces" => "name = \"x\"",
        "bridges" => {
            "name = \"b\"\naddresses = [\"tcp://b.example\"]\n[[bridges.topics]]\n\
            filter = \"a\"\ndirection = \"out\""
        }
        "authentication" if key.doc.trim().starts_with("`http`") => {
            "name = \"x\"\nkind = \"http\"\nurl = \"https://id.example\""
        }
        "authentication" => "name = \"x\"\nkind = \"jwt\"\njwks_url = \"https://id.example\"",
        "telemetry" => "endpoint = \"http://127.0.0.1:4318\"",
        "routing" => "file = \"rules.toml\"",
        "authorization" => "url = \"https://id.example\"\nbody = [\"t=${topic}\", \"a=${action}\"]",
        "cluster" => "name = \"c\"\nnode = \"n\"\nservers = [\"nats://127.0.0.1:4222\"]",
        // Sizes of logs that are not written go with any packets.
        "durability" => "level = \"memory\"",
        _ => "",
    };
    if section == "bridges.topics" {
        let text = format!(
            "bridges = [{{ name = \"b\", addresses = [\"tcp://b.example\"], topics = [\n\
            {{ filter = \"a\", direction = \"out\", {} = {value} }}] }}]\n",
            key.name
        );
        let file = SourceFile { path: "quelea.toml".into(), text };
        return Sources { file: Some(file), ..Sources::default() };
    }
    let is_list = LISTS.contains(&section);
    let heading = if is_list { format!("[[{section}]]") } else { format!("[{section}]") };
    let text = format!("{heading}\n{} = {value}\n{rest}\n", key.name);
    let file = SourceFile { path: "quelea.toml".into(), text };
    Sources { file: Some(file), ..Sources::default() }
}

fn in_env(section: &str, key: &Key, number: u64) -> Sources {
    let index = if LISTS.contains(&section) { "__0" } else { "" };
    let section = section.replace("bridges.topics", "bridges__0__topics__0");
    let name = format!("QUELEA_{section}{index}__{}", key.name);
    Sources { env: vec![(name, number.to_string())], ..Sources::default() }
}

const LISTS: [&str; 4] = ["listeners", "authentication", "namespaces", "bridges"];

#[test]
fn providers_are_listed_and_named_by_listeners() {
    let jwt = "[[authentication]]\nname = \"jwt\"\nkind = \"jwt\"\nkey_file = \"k.pem\"\n";
    let listener = "[[listeners]]\nurl = \"tcp://*:1883\"\n";
    let read = config(&format!("{jwt}{listener}authentication = [\"jwt\"]\n"));
    assert_eq!(read.authentication.len(), 1);
    assert_eq!(read.listeners[0].authentication, ["jwt"]);
    assert!(!read.listeners[0].allow_anonymous && read.proves_names());
    assert_eq!(read.why_names_are_unproved(), None);
    let loaded = load(&file(&format!("{jwt}{listener}")), &MACHINE).unwrap();
    let printed = SourceFile { path: "/etc/quelea/x".into(), text: print::effective(&loaded) };
    let again = Sources { file: Some(printed), ..Sources::default() };
    let again = load(&again, &MACHINE).unwrap().config;
    assert_eq!(again.authentication, loaded.config.authentication, "what is printed reads back");
    let more = |text: &str| format!("{jwt}{text}");
    let http = |text: &str| {
        format!(
            "[[authentication]]\nname = \"a\"\nkind = \"http\"\nurl = \"https://id.example\"\n{text}"
        )
    };
    for (text, expected) in [
        (format!("{listener}authentication = [\"x\"]"), "no [[authentication]] has the name"),
        (format!("{listener}authentication = [\"file\"]"), "set auth.password_file"),
        (more(jwt), "has this name"),
        ("[[authentication]]\nname = \"a\"\n".into(), "kind = \"jwt\""),
        ("[[authentication]]\nname = \"a\"\nkind = \"jwt\"\n".into(), "needs a key"),
        ("[[authentication]]\nname = \"file\"\nkind = \"certificate\"\n".into(), "needs a name"),
        ("[[authentication]]\nname = \"a\"\nkind = \"http\"\n".into(), "needs the `url`"),
        (
            "[[authentication]]\nname = \"a\"\nkind = \"http\"\nurl = \"id\"\n".into(),
            "'id' has no scheme",
        ),
        (more("username = \"${username}\"\n"), "bind it to the token"),
        (more("username = \"${claims.sub\"\n"), "no closing '}'"),
        (more("claims = [\"sub\"]\n"), "NAME=TEXT"),
        (more("issuer = \"${username}\"\n"), "not substituted"),
        (more("url = \"https://id.example\"\n"), "only by http"),
        (more("acl_claim_nam = \"a\"\n"), "acl_claim_name"),
        (more("acl_ignored = true\nacl_claim_name = \"a\"\n"), "acl_ignored is true"),
        (http("username = \"${username}\"\n"), "only by jwt and certificate"),
        (http("headers = [\"X-Id: a\", \"x-id: b\"]\n"), "'x-id' is set twice"),
        (http("body = [\"u=${username}\", \"u=x\"]\n"), "'u' is set twice"),
        (more("attributes = [\"a=x\", \"a=y\"]\n"), "'a' is set twice"),
        (http("body = [\"clientid=${clientid}\", \"p=${password}\"]\n"), "send it to the service"),
        (
            "[[authentication]]\nname = \"a\"\nkind = \"http\"\nurl = \
             \"https://${clientid}.example/\"\n"
                .into(),
            "not substituted in the host",
        ),
        ("[server]\ndata_dir = \"/data/${HOST}\"\n".into(), "not substituted"),
        (more("attributes = [\"a=${user}\"]\n"), "unknown placeholder '${user}'"),
        (
            "[[authentication]]\nname = \"a\"\nkind = \"certificate\"\nusername = \
             \"${clientid}\"\n"
                .into(),
            "what the client sends",
        ),
        ("[authentication]\nname = \"a\"\n".into(), "write [[authentication]]"),
    ] {
        let why = error(&text);
        assert!(why.contains(expected), "{expected} not in {why}");
    }
}

#[test]
fn placeholders_and_registries_are_checked() {
    let provider = |rest: &str| format!("[[authentication]]\nname = \"a\"\nkind = {rest}");
    let jwt = |text: &str| provider(&format!("\"jwt\"\nkey_file = \"k.pem\"\n{text}"));
    let http = |text: &str| provider(&format!("\"http\"\nurl = \"https://id.example\"\n{text}"));
    let registry = |text: &str| provider(&format!("\"registry\"\n{text}"));
    for (text, expected) in [
        (http("headers = [\"X-Id: ${nobody}\"]\n"), "unknown placeholder '${nobody}'"),
        (http("headers = [\"Host: ${clientid}\"]\n"), "how the request is read"),
        (
            http("headers = [\"content-type: application/x-www-form-urlencoded\"]\n"),
            "set body_form",
        ),
        (http("body = [\"p=${password}\"]\nheaders = [\"X-Id: ${clientid}\"]\n"), "to the service"),
        (registry(""), "needs the `registry_file`"),
        (registry("registry_file = \"a\"\nname_sources = [\"cn\"]\n"), "must be one of 'subject'"),
        (registry("registry_file = \"a\"\nname_sources = [\"ip\", \"ip\"]\n"), "there twice"),
        (jwt("registry_file = \"a\"\n"), "only by registry"),
        (jwt("from = \"username\"\nclaims = [\"sub=${username}\"]\n"), "remove '${username}'"),
        (jwt("jwks_url = \"https://id.example/${clientid}\"\n"), "not substituted"),
    ] {
        let why = error(&text);
        assert!(why.contains(expected), "{expected} not in {why}");
    }
}

#[test]
fn keys_of_providers_that_have_no_effect_are_refused() {
    let provider = |rest: &str| format!("[[authentication]]\nname = \"a\"\nkind = {rest}");
    let jwt = |text: &str| provider(&format!("\"jwt\"\nkey_file = \"k.pem\"\n{text}"));
    let http = |text: &str| provider(&format!("\"http\"\nurl = \"https://id.example\"\n{text}"));
    for (text, expected) in [
        (
            provider("\"certificate\"\nca = \"ca\"\n"),
            "ca: is not used by kind = \"certificate\", only by jwt and http",
        ),
        (jwt("ca = \"ca\"\n"), "ca: has no effect without jwks_url"),
        (jwt("jwks_refresh_secs = 60\n"), "jwks_refresh_secs: has no effect without jwks_url"),
        (
            jwt("jwks_url = \"http://id.example\"\nca = \"ca\"\n"),
            "ca: has no effect with a jwks_url of http://; use https://",
        ),
        (
            http("ca = \"ca\"\n").replace("https", "http"),
            "ca: has no effect with a url of http://; use https://",
        ),
        (
            http("method = \"get\"\nbody_form = \"form\"\n"),
            "body_form: has no effect with method = \"get\"",
        ),
    ] {
        let why = error(&text);
        assert!(why.contains(expected), "{expected} not in {why}");
    }
}

#[test]
fn later_sources_win() {
    let mut sources = file("[limits]\nin_flight_max = 1\nreceive_max = 1\ntopic_alias_max = 1\n");
    sources.env = vec![
        ("QUELEA_limits__receive_max".into(), "2".into()),
        ("QUELEA_LIMITS__TOPIC_ALIAS_MAX".into(), "2".into()),
        ("QUELEA_SERVICE_PORT".into(), "not ours".into()),
        ("PATH".into(), "/bin".into()),
    ];
    sources.flags = vec![Flag { name: "--x", key: "limits.topic_alias_max", value: "3".into() }];
    let loaded = load(&sources, &MACHINE).unwrap();
    let limits = &loaded.config.limits;
    assert_eq!((limits.in_flight_max, limits.receive_max, limits.topic_alias_max), (1, 2, 3));
    let printed = print::effective(&loaded);
    for line in [
        "in_flight_max = 1 # /etc/quelea/quelea.toml:2",
        "receive_max = 2 # QUELEA_limits__receive_max",
        "topic_alias_max = 3 # --x",
        "qos_max = 2 # default",
    ] {
        assert!(printed.contains(line), "{line} not in {printed}");
    }
}

#[test]
fn what_is_printed_reads_back() {
    let text = "[[listeners]]\nurl = \"wss://*:1\"\nallow_anonymous = true\n[listeners.tls]\n\
                certificate = \"/c\"\nkey = \"/k\"\n[limits]\nqueue_overflow = \"reject\"\n";
    let loaded = load(&file(text), &MACHINE).unwrap();
    let printed = SourceFile { path: "quelea.toml".into(), text: print::effective(&loaded) };
    let again = Sources { file: Some(printed), ..Sources::default() };
    assert_eq!(load(&again, &MACHINE).unwrap().config, loaded.config);
    assert_eq!(loaded.config.limits.queue_overflow, QueueOverflow::Reject);
}

#[test]
fn unknown_keys_are_errors_with_place_and_suggestion() {
    let message = error("[limits]\npacket_byte_max = 3\n\n[limit]\nx = 1\n");
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(
        lines,
        [
            "/etc/quelea/quelea.toml:2:1: limits.packet_byte_max: unknown key; did you mean \
             'packet_bytes_max'?",
            "/etc/quelea/quelea.toml:4:2: limit: unknown key; did you mean 'limits'?",
        ]
    );
    assert!(error("packet_bytes_max = 3").contains("did you mean 'limits.packet_bytes_max'?"));
    assert!(error("[[listeners]]\nurll = \"x\"").contains(":2:1: listeners.0.urll"));
    assert!(error("[listeners]\nurl = \"x\"").contains("[[listeners]]"));
    assert!(error("limits = 3").contains("[limits]"));
    assert!(error("[log]\nfiles_kept = 3").contains("set up logrotate"));
    let env = vec![("QUELEA_limits__qos_mx".to_owned(), "1".to_owned())];
    let message = load(&Sources { env, ..Sources::default() }, &MACHINE).unwrap_err().to_string();
    assert_eq!(
        message,
        "QUELEA_limits__qos_mx: limits.qos_mx: unknown key; did you mean 'qos_max'?"
    );
}

#[test]
fn wrong_values_say_what_is_allowed() {
    let message = error("[limits]\nqos_max = 3");
    assert!(message.starts_with(
        "/etc/quelea/quelea.toml:2:11: limits.qos_max: must be a number between 0 and 2; got 3"
    ));
    let message = error("[limits]\nconnections_max = 0");
    let expected = "must be a number between 1 and 4294967295, or \"unlimited\"; got 0";
    assert!(message.ends_with(expected), "{message}");
    assert!(error("[limits]\nqos_max = \"x\"").contains("got 'x'"));
    assert!(error("[limits]\nqos_max = -1").contains("got -1"));
    assert!(error("[limits]\nretain_available = 1").contains("true or false"));
    assert!(error("[limits]\nqueue_overflow = \"drop\"").contains("\"drop_oldest\""));
    assert!(error("[http]\nlisten = \"9883\"").contains("127.0.0.1:9883"));
    assert!(error("[limits\n").starts_with("/etc/quelea/quelea.toml:1:"));
}

#[test]
fn the_mode_of_a_unix_socket_is_octal() {
    let unix = |mode| format!("[[listeners]]\nurl = \"unix:///q\"\nunix_mode = \"{mode}\"");
    assert_eq!(config(&unix("0660")).listeners[0].unix_mode, Some(0o660));
    assert_eq!(config(&unix("777")).listeners[0].unix_mode, Some(0o777));
    for wrong in ["rw", "0o660", "888", "1777", "-1", "+7"] {
        let message = error(&unix(wrong));
        assert!(message.contains("unix_mode") && message.contains("0777"), "{message}");
    }
    let message = error("[[listeners]]\nurl = \"tcp://127.0.0.1\"\nunix_mode = \"0660\"");
    assert!(message.contains("only unix://"), "{message}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let ConfigError { problems } =
        load(&file("[limits]\na = 1\nqos_max = 9\n[auth]\nb = 1"), &MACHINE).unwrap_err();
    assert_eq!(problems.len(), 3);
}

#[test]
fn an_open_listener_without_authentication_is_refused() {
    let open = "[[listeners]]\nurl = \"tcp://*:1883\"\n";
    let message = error(open);
    for advice in ["quelea.toml:2", "password_file", "allow_anonymous = true", "--allow-anonymous"]
    {
        assert!(message.contains(advice), "{advice}: {message}");
    }
    assert!(config(&format!("{open}allow_anonymous = true")).listeners[0].allow_anonymous);
    assert!(!config(&format!("{open}[auth]\npassword_file = \"p\"")).listeners[0].allow_anonymous);
    assert!(config(&format!("{open}[auth]\nallow_anonymous = true")).listeners[0].allow_anonymous);
    assert!(!config(&format!("{open}allow_anonymous = false")).listeners[0].allow_anonymous);
    assert!(config("[[listeners]]\nurl = \"unix:///q\"").listeners[0].allow_anonymous);
    let both = "[[listeners]]\nurl = \"tcp://127.0.0.1\"\n[auth]\npassword_file = \"p\"";
    assert!(!config(both).listeners[0].allow_anonymous);
}

#[test]
fn required_certificates_count_as_authentication() {
    let tls =
        "[[listeners]]\nurl = \"tls://*\"\n[listeners.tls]\ncertificate = \"c\"\nkey = \"/k\"\n";
    assert!(error(tls).contains("--allow-anonymous"));
    let config = config(&format!("{tls}client_ca = \"ca\"\nclient_auth = \"require\""));
    let tls_config = config.listeners[0].tls.as_ref().unwrap();
    assert_eq!(tls_config.certificate, Path::new("/etc/quelea/c"));
    assert_eq!(tls_config.key, Path::new("/k"));
    assert!(error(&format!("{tls}client_auth = \"require\"")).contains("needs client_ca"));
    assert!(error(&format!("{tls}client_ca = \"ca\"")).contains("no effect without client_auth"));
}

#[test]
fn contradictions_of_a_listener_are_reported() {
    let listener = |rest: &str| error(&format!("[[listeners]]\n{rest}"));
    assert!(listener("name = \"x\"").contains("needs a url"));
    assert!(error("[[listeners]]\n").contains("needs a url"));
    assert!(listener("url = \"tls://127.0.0.1\"").contains("needs both certificate and key"));
    assert!(listener("url = \"tcp://127.0.0.1\"\ntls.key = \"k\"").contains("does not speak TLS"));
    assert!(listener("url = \"tcp://127.0.0.1\"\nwebsocket.path = \"/\"").contains("WebSocket"));
    assert!(listener("url = \"ws://127.0.0.1\"\nwebsocket.path = \"x\"").contains("slash"));
    assert!(
        listener("url = \"tcp://127.0.0.1\"\nproxy_protocol = true").contains("trusted_proxies")
    );
    let proxies = "url = \"tcp://127.0.0.1\"\nproxy_protocol = true\ntrusted_proxies = [\"x\"]";
    assert!(listener(proxies).contains("must be a network"));
    let identity = "url = \"tcp://127.0.0.1\"\nidentity_from_certificate = \"cn\"";
    assert!(listener(identity).contains("client_auth"));
    let tls = "url = \"tls://127.0.0.1\"\nregistered_certificates = true\n";
    let files = "[listeners.tls]\ncertificate = \"c\"\nkey = \"k\"\n";
    let asks = "client_auth = \"require\"\n";
    let registry = "[[authentication]]\nname = \"r\"\nkind = \"registry\"\nregistry_file = \"f\"\n";
    assert!(listener(&format!("{tls}{files}{registry}")).contains("tls.client_auth"));
    assert!(listener(&format!("{tls}{files}{asks}")).contains("is a registry"));
    let elsewhere = format!("{tls}authentication = [\"file\"]\n{files}{asks}{registry}");
    assert!(listener(&elsewhere).contains("is a registry"));
    let named = format!("{tls}identity_from_certificate = \"cn\"\n{files}{asks}{registry}");
    assert!(listener(&named).contains("contradicts identity_from_certificate"));
    config(&format!("[[listeners]]\n{tls}{files}{asks}{registry}"));
    let twice = "url = \"tcp://127.0.0.1\"\n[[listeners]]\nurl = \"tcp://127.0.0.1:1883\"";
    assert!(listener(twice).contains("already has this address"));
}

#[test]
fn a_listener_replaces_limits_for_itself() {
    let config = config(
        "[[listeners]]\nurl = \"tcp://127.0.0.1:1\"\nqos_max = 1\nmessages_per_second_max = 5\n\
         [[listeners]]\nurl = \"ws://127.0.0.1:2/mqtt\"\n[limits]\nin_flight_max = 7",
    );
    let [first, second] = config.listeners.as_slice() else { panic!("two listeners") };
    assert_eq!((first.limits.qos_max, first.limits.in_flight_max), (1, 7));
    assert_eq!((first.limits.messages_per_second_max, first.limits.messages_burst), (5, 5));
    assert_eq!((second.limits.qos_max, second.limits.messages_burst), (2, 0));
    assert_eq!(second.websocket.as_ref().unwrap().path.as_deref(), Some("/mqtt"));
}

#[test]
fn port_and_listen_go_over_the_file() {
    let mut sources =
        file("[[listeners]]\nurl = \"unix:///q\"\n[[listeners]]\nurl = \"tcp://127.0.0.1\"");
    sources.port = Some(2000);
    let loaded = load(&sources, &MACHINE).unwrap();
    assert_eq!(loaded.config.listeners[1].address, Address::Ip("127.0.0.1:2000".parse().unwrap()));
    sources.listen = vec!["ws://127.0.0.1:3000".into()];
    let message = load(&sources, &MACHINE).unwrap_err().to_string();
    assert!(message.starts_with("--port: no listener has tcp://"), "{message}");
    sources.port = None;
    let loaded = load(&sources, &MACHINE).unwrap();
    assert_eq!(loaded.config.listeners.len(), 1);
    assert_eq!(loaded.config.listeners[0].transport, Transport::Ws);
    let port_only = Sources { port: Some(0), ..Sources::default() };
    assert_eq!(urls(&load(&port_only, &MACHINE).unwrap().config), ["tcp://127.0.0.1:0"]);
}

#[test]
fn environment_listeners_are_numbered_without_gaps() {
    let with = |name: &str| Sources {
        env: vec![(name.to_owned(), "tcp://127.0.0.1:7".to_owned())],
        ..Sources::default()
    };
    let loaded = load(&with("QUELEA_listeners__0__url"), &MACHINE).unwrap();
    assert_eq!(urls(&loaded.config), ["tcp://127.0.0.1:7"]);
    for name in ["QUELEA_listeners__1__url", "QUELEA_listeners__99999__url"] {
        assert!(load(&with(name), &MACHINE).unwrap_err().to_string().contains("without gaps"));
    }
}

#[test]
fn an_environment_variable_is_applied_or_reported() {
    let expected = |env: &[(&str, &str)]| {
        let env = env.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        load(&Sources { env, ..Sources::default() }, &MACHINE).unwrap_err().to_string()
    };
    assert_eq!(
        expected(&[("QUELEA_limits__qos_max", "1"), ("QUELEA_LIMITS__QOS_MAX", "2")]),
        "QUELEA_LIMITS__QOS_MAX: limits.qos_max: is set by QUELEA_limits__qos_max as well; case \
         does not matter"
    );
    assert!(expected(&[("QUELEA_auth__password_file", "/a\u{fffd}")]).contains("is not UTF-8"));
}

#[test]
fn docs_are_as_generated() {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs/use");
    for (name, text) in
        [("configuration.md", print::markdown()), ("quelea.reference.toml", print::reference())]
    {
        let path = docs.join(name);
        if std::env::var_os("QUELEA_BLESS").is_some() {
            std::fs::create_dir_all(&docs).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let on_disk = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(on_disk == text, "docs/use/{name} is stale: cargo xtask docs");
    }
}

#[test]
fn docs_reference_with_all_keys_uncommented_is_the_default_configuration() {
    let is_key = |line: &&str| line.starts_with('[') || line.contains(" = ");
    let mut text = String::new();
    let mut is_in_list = true;
    for line in print::reference().lines() {
        // Tables of lists are commented out, and so are their keys.
        is_in_list = line.starts_with("# [") || is_in_list && !line.starts_with('[');
        if is_in_list {
            continue;
        }
        let bare = line.strip_prefix("# ").unwrap_or(line);
        let known = SECTIONS.iter().flat_map(|section| section.keys);
        let is_setting = known.clone().any(|key| bare.starts_with(&format!("{} = ", key.name)));
        let is_unset = bare.ends_with("= \"\"") || bare.ends_with("= []");
        if (line.starts_with('[') || is_setting) && !is_unset && is_key(&bare) {
            text.push_str(&format!("{bare}\n"));
        }
    }
    // What stands before depends on the machine.
    let text = text.split_once("[limits]").map(|(_, rest)| format!("[limits]{rest}")).unwrap();
    let mut defaults = Config::defaults(&MACHINE);
    defaults.server.data_dir = PathBuf::from("quelea-data");
    assert_eq!(config(&text), defaults);
}

#[test]
fn the_example_of_the_docs_is_valid() {
    let markdown = print::markdown();
    let example =
        markdown.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(config(example).listeners.len(), 2);
}

#[test]
fn values_show_without_quotes() {
    assert_eq!(Value::List(vec!["a".into(), "b".into()]).to_string(), "a,b");
}

#[test]
fn a_key_that_needs_a_value_and_was_set_to_nothing_is_named() {
    let expected = error("[http]\nlisten = \"\"");
    assert!(
        expected.contains("http.listen") && expected.contains("must not be empty"),
        "{expected}"
    );
}

#[test]
fn durability_has_levels_for_broker_listener_and_topic() {
    let config = Config::defaults(&MACHINE);
    assert_eq!(config.durability.level, DurabilityLevel::Fsync);
    assert!(config.durability.has_journal() && config.durability.topics.is_empty());

    let own = "[durability]\nlevel = \"memory\"\ntopics = [\"a/+=disk\", \"x=y=fsync\"]\n\
               when_full = \"wait\"\n[[listeners]]\nurl = \"tcp://127.0.0.1:1\"\n\
               [[listeners]]\nurl = \"tcp://127.0.0.1:2\"\ndurability = \"disk\"";
    let config = self::config(own);
    let levels: Vec<_> = config.listeners.iter().map(|own| own.limits.durability).collect();
    assert_eq!(levels, [DurabilityLevel::Memory, DurabilityLevel::Disk]);
    let rules =
        [("a/+".to_owned(), DurabilityLevel::Disk), ("x=y".to_owned(), DurabilityLevel::Fsync)];
    assert_eq!(config.durability.topics, rules);
    assert_eq!(config.durability.level_max, DurabilityLevel::Fsync);
    assert_eq!(config.durability.when_full, WhenFull::Wait);

    assert!(!self::config("[durability]\nlevel = \"memory\"").durability.has_journal());
    let kept = "[durability]\nlevel = \"memory\"\ntopics = [\"a=disk\"]";
    assert!(self::config(kept).durability.has_journal(), "a rule asks for more");
}

#[test]
fn a_file_of_streams_needs_a_log_and_no_cluster() {
    assert_eq!(Config::defaults(&MACHINE).routing, None);
    let memory = "[durability]\nlevel = \"memory\"\n[routing]\nfile = \"rules.toml\"\n";
    let config = config(memory);
    assert!(config.durability.has_journal(), "streams are stored");
    assert_eq!(config.durability.level_max, DurabilityLevel::Memory);
    let routing = config.routing.expect("it is on");
    assert!(routing.file.ends_with("quelea/rules.toml"), "{routing:?}");
    assert_eq!(routing.memory_bytes_max, config.limits.memory_bytes_max / 8);
    assert_eq!((routing.free_disk_bytes_min, routing.target_networks.len()), (1 << 30, 0));
    let own = "memory_bytes_max = \"32MiB\"\ntarget_networks = [\"10.0.0.0/8\"]\n";
    let routing = self::config(&format!("{memory}{own}")).routing.expect("it is on");
    assert_eq!((routing.memory_bytes_max, routing.target_networks.len()), (32 << 20, 1));
    let wrong = error(&format!("{memory}target_networks = [\"10.0.0.0/33\"]"));
    assert!(wrong.contains(":5: routing.target_networks: "), "{wrong}");
    let alone = error("[routing]\nfree_disk_bytes_min = 0");
    assert!(alone.contains("routing.free_disk_bytes_min: has no effect without `file`"));
    let alone = error(&format!("{memory}remove_undefined = true"));
    assert!(alone.contains("routing.remove_undefined: has no effect without [cluster]"), "{alone}");
    let clustered = "[cluster]\nname = \"c\"\nnode = \"n\"\nservers = [\"nats://127.0.0.1:4222\"]";
    let both = self::config(&format!("[routing]\nfile = \"r.toml\"\n{clustered}"));
    assert!(!both.routing.expect("it is on").remove_undefined);
}

#[test]
fn rules_of_topics_are_checked() {
    let error =
        error("[durability]\ntopics = [\"a/#=dsk\", \"#a=disk\", \"b\", \"c=disk\", \"c=fsync\"]");
    let lines: Vec<&str> = error.lines().collect();
    let place = "/etc/quelea/quelea.toml:2: durability.topics: ";
    assert!(lines.iter().all(|line| line.starts_with(place)));
    assert!(lines[0].contains("did you mean 'disk'?"), "{error}");
    assert!(lines[1].contains("'#' must be the last level"), "{error}");
    assert!(lines[2].contains("write FILTER=LEVEL"), "{error}");
    assert!(lines[3].contains("'c' has two rules"), "{error}");
    assert_eq!(lines.len(), 4);
    let shared = self::error("[durability]\ntopics = [\"$share/g/a=disk\"]");
    assert!(shared.contains("omit $share/NAME/"), "{shared}");
    let unknown = self::error("[durability]\nlevel = \"fsinc\"");
    assert!(unknown.contains("did you mean 'fsync'?"), "{unknown}");
}

#[test]
fn every_packet_fits_into_a_segment() {
    for packet_bytes_max in [20, 70_000, 1 << 20, 16 << 20, 268_435_460_u32] {
        let config = config(&format!("[limits]\npacket_bytes_max = {packet_bytes_max}"));
        let settings = config.durability.journal_settings(4).unwrap();
        assert!(settings.record_bytes_max >= packet_bytes_max + 65_535 + 100, "{settings:?}");
        assert!(settings.segment_bytes >= 16 << 20);
    }
    let settings = Config::defaults(&MACHINE).durability.journal_settings(4).unwrap();
    assert_eq!(settings.segment_bytes, 33 << 20);

    let small = "[limits]\npacket_bytes_max = \"1MiB\"\n[durability]\nsegment_bytes = \"2MiB\"";
    let error = error(small);
    assert!(error.starts_with("/etc/quelea/quelea.toml:4: durability.segment_bytes: "), "{error}");
    assert!(error.contains("Write 2112KiB or more"), "{error}");
    let config = config(&small.replace("\"2MiB\"", "\"2112KiB\""));
    assert_eq!(config.durability.journal_settings(1).unwrap().segment_bytes, 2112 << 10);
    // Where nothing is kept, sizes do not matter.
    self::config(&format!("{small}\nlevel = \"memory\""));
    // The listener with the largest packets decides.
    let own = "[[listeners]]\nurl = \"tcp://127.0.0.1:1\"\npacket_bytes_max = \"20MiB\"";
    assert_eq!(self::config(own).durability.segment_bytes, 41 << 20);
}

#[test]
fn the_space_of_all_logs_is_shared_by_the_shards() {
    let config = config("[durability]\nlog_bytes_max = \"2GiB\"\nsegment_bytes = \"40MiB\"");
    assert_eq!(config.durability.journal_settings(8).unwrap().log_bytes_max, 256 << 20);
    assert!(config.durability.journal_settings(64).is_err(), "less than four segments each");
    let error = error("[server]\nshards = 4\n[durability]\nlog_bytes_max = \"500MiB\"");
    assert!(error.starts_with("/etc/quelea/quelea.toml:4: durability.log_bytes_max: "), "{error}");
    assert!(
        error.contains("4 shards with 4 segments of 33MiB each need at least 528MiB"),
        "{error}"
    );
}

#[test]
fn connections_are_no_more_than_open_files_leave() {
    for (files, text, expected) in [
        (None, "", 1_000_000),
        (Some(20_000), "", 18_976),
        (Some(1024), "", 896),
        (Some(256), "", 192),
        (Some(20_000), "connections_max = 100", 100),
        (Some(20_000), "connections_max = 20000", 18_976),
        (Some(20_000), "connections_max = \"unlimited\"", 18_976),
        (None, "connections_max = \"unlimited\"", 0),
    ] {
        let machine = Machine { open_files_max: files, ..MACHINE };
        let loaded = load(&file(&format!("[limits]\n{text}\n")), &machine).unwrap();
        assert_eq!(loaded.config.limits.connections_max, expected, "{files:?} {text}");
    }
    let machine = Machine { open_files_max: Some(20_000), ..MACHINE };
    let printed = print::effective(&load(&Sources::default(), &machine).unwrap());
    let line =
        "connections_max = 1000000 # default: 18976, what a limit of 20000 open files allows";
    assert!(printed.contains(line), "{printed}");
}

#[test]
fn limits_follow_from_the_memory_there_is_and_say_why() {
    const MIB: u64 = 1 << 20;
    for (memory_bytes, retained, queued, incoming) in [
        (256 * MIB, 51, 12, 25),
        (1024 * MIB, 204, 51, 102),
        (256 * 1024 * MIB, 52_428, 256, 26_214),
    ] {
        let machine = Machine { memory_bytes, ..MACHINE };
        let loaded = load(&Sources::default(), &machine).unwrap();
        let limits = &loaded.config.limits;
        assert_eq!(limits.retained_bytes_max / MIB, retained);
        assert_eq!(limits.queued_bytes_max / MIB, queued);
        assert_eq!(limits.incoming_bytes_max / MIB, incoming);
        let parts =
            [limits.arrivals_bytes_max, limits.incoming_bytes_max, limits.retained_bytes_max];
        assert!(parts.iter().sum::<u64>() < limits.memory_bytes_max);
    }
    let machine = Machine { memory_bytes: 1024 * MIB, ..MACHINE };
    let loaded = load(&file("[limits]\nretained_bytes_max = 0\n"), &machine).unwrap();
    assert_eq!(loaded.config.limits.retained_bytes_max, 0, "none is a number, too");
    let printed = print::effective(&loaded);
    for line in [
        "memory_bytes_max = \"auto\" # default: 819MiB, 80 % of the 1GiB memory of the machine or cgroup",
        "queued_bytes_max = \"auto\" # default: 51MiB, a sixteenth of memory_bytes_max",
        "retained_bytes_max = 0 # /etc/quelea/quelea.toml:2",
        "workers = \"auto\" # default: 8, one for each of 8 cores",
    ] {
        assert!(printed.contains(line), "{line} not in {printed}");
    }
}

#[test]
fn users_of_the_api_belong_to_one_namespace() {
    let all = "[api]\nlisten = \"http\"\npassword_file = \"u\"\noperators = [\"otto\"]\n";
    let api = format!("{all}viewers = [\"vera\"]\n");
    let namespace = |name: &str, keys: &str| format!("[[namespaces]]\nname = \"{name}\"\n{keys}\n");
    let users = |name: &str, user: &str| namespace(name, &format!("api_users = [\"{user}\"]"));
    let keys = "api_users = [\"alice\"]\ntarget_hosts = [\"*.Acme.example\", \"*\"]\n\
                target_networks = [\"10.0.0.0/8\"]\nrules_max = 0";
    let read = config(&format!("{api}{}{}", namespace("acme", keys), namespace("b", "")));
    let [acme, other] = &read.namespaces[..] else { panic!("{:?}", read.namespaces) };
    assert_eq!(acme.api.users, ["alice"]);
    assert_eq!(acme.api.target_hosts, ["*.acme.example", "*"]);
    assert_eq!((acme.api.target_networks.len(), acme.api.rules_max), (1, 0));
    let own = &other.api;
    assert_eq!((own.streams_max, own.targets_max, own.rules_max), (10, 10, 10));
    assert_eq!(own.stream_bytes_max, 1 << 30);
    assert!(own.users.is_empty() && own.target_hosts.is_empty() && own.target_networks.is_empty());
    let without = "[api]\nlisten = \"http\"\n";
    for (text, detail) in [
        (users("a", "alice"), "has no effect while the API is off"),
        (format!("{without}{}", users("a", "alice")), "'alice' has no password"),
        (format!("{api}{}", users("a", "otto")), "'otto' is in `viewers`, `operators` or"),
        (format!("{api}{}", users("a", "vera")), "'vera' is in `viewers`, `operators` or"),
        (format!("{all}{}", users("a", "x")), "needs api.viewers with the names"),
        (format!("{all}viewers = [\"otto\"]"), "'otto' is in `operators` as well"),
        (format!("{api}{}{}", users("a", "x"), users("b", "x")), "'x' is a user of another"),
        (format!("{api}{}{}", users("a", "x"), users("a.b", "y")), "names that begin with 'a.b.'"),
        (format!("{api}{}{}", users("a.b", "x"), users("a", "y")), "names that begin with 'a.'"),
        (format!("{api}{}", users(&"n".repeat(49), "x")), "must have at most 48 bytes"),
        (namespace("a", "target_hosts = [\"a*.b\"]"), "must be host names"),
        (namespace("a", "target_hosts = [\"http://a\"]"), "must be host names"),
        (namespace("a", "target_networks = [\"10.0.0.0/40\"]"), "target_networks"),
    ] {
        let found = error(&text);
        assert!(found.contains(detail), "{detail}: {found}");
    }
    // A namespace without users takes no names from one that has some.
    config(&format!("{api}{}{}", users("a", "x"), namespace("a.b", "")));
}

#[test]
fn namespaces_are_named_once_and_units_set_what_is_not_set() {
    let read = config(
        "[[namespaces]]\nname = \"a\"\nthroughput_units = 2\nsessions_max = 7\n\
         connections_max = \"unlimited\"\nhosts = [\"A.example\"]\n\
         [[namespaces]]\nname = \"b\"\nstate = \"suspended\"\n\
         [[listeners]]\nurl = \"tcp://127.0.0.1\"\nnamespace = \"a\"\n\
         namespace_from = [\"username\"]\nnamespace_unknown = \"create\"\n",
    );
    let [a, b] = &read.namespaces[..] else { panic!("{:?}", read.namespaces) };
    let max = |quota| a.limits.iter().find(|(own, _)| *own == quota).map(|(_, max)| *max);
    assert_eq!(max(Quota::MessagesIn), Some(2_000));
    assert_eq!(max(Quota::BytesOut), Some(2_000_000));
    assert_eq!(max(Quota::Connects), Some(400));
    assert_eq!(max(Quota::RetainedBytes), Some(1_280_000_000));
    assert_eq!(max(Quota::Subscriptions), Some(1_000_000));
    assert_eq!((max(Quota::Sessions), max(Quota::Connections)), (Some(7), None));
    assert_eq!((&a.hosts[..], b.state), (&["a.example".into()][..], NamespaceState::Suspended));
    assert!(b.limits.is_empty());
    let none = config("[[namespaces]]\nname = \"a\"\nthroughput_units = 2\nsessions_max = 0\n");
    assert!(none.namespaces[0].limits.contains(&(Quota::Sessions, 0)), "none is a limit, too");
    let placing = &read.listeners[0].placing;
    assert_eq!((placing.own.as_deref(), placing.creates), (Some("a"), true));
    assert_eq!(placing.from, [NamespaceSource::Username]);
    let named = |name: &str| format!("[[namespaces]]\nname = \"{name}\"\n");
    let listener = |text: &str| format!("[[listeners]]\nurl = \"tcp://127.0.0.1\"\n{text}\n");
    for (text, expected) in [
        (named("a b"), "letters, digits"),
        (named(""), "letters, digits"),
        (named("default"), "is built in"),
        (named("a") + &named("a"), "has this name"),
        (named("a") + "hosts = [\"x\"]\n" + &named("b") + "hosts = [\"X\"]\n", "another namespace"),
        (named("a") + "state = \"shut\"\n", "got 'shut'"),
        (listener("namespace = \"a/b\""), "letters, digits"),
        (listener("namespace_from = [\"user\"]"), "must be one of"),
        (listener("namespace_from = [\"host\"]"), "host names need TLS"),
    ] {
        let why = error(&text);
        assert!(why.contains(expected), "{expected} not in {why}");
    }
}

#[test]
fn what_a_listener_names_is_there() {
    let red = "[[namespaces]]\nname = \"red\"\n";
    let tcp = |text: &str| format!("[[listeners]]\nurl = \"tcp://127.0.0.1\"\n{text}\n");
    let tls = |text: &str| {
        format!(
            "[[listeners]]\nurl = \"tls://127.0.0.1\"\n{text}\n[listeners.tls]\ncertificate = \
             \"c\"\nkey = \"k\"\n"
        )
    };
    let asked = "client_auth = \"optional\"\nclient_ca = \"ca\"\n";
    let provider = |kind: &str| format!("[[authentication]]\nname = \"p\"\nkind = \"{kind}\"\n");
    let jwt = provider("jwt") + "key_file = \"k\"\n";
    let http = provider("http") + "url = \"https://id.example\"\n";
    let certificate = provider("certificate");
    let with_attribute = provider("certificate") + "attributes = [\"namespace=${cert_dns}\"]\n";
    let file = "[auth]\npassword_file = \"users\"\n";
    let by_attribute = "namespace_from = [\"attribute\"]";
    let gives_none = "no provider of this listener sets the attribute 'namespace'";
    for (text, expected) in [
        (tcp("namespace = \"red\""), "no [[namespaces]] has the name 'red'"),
        (tcp("namespace = \"Red\"") + red, "did you mean 'red'?"),
        (tcp(by_attribute), gives_none),
        (tcp(by_attribute) + file, gives_none),
        (tcp(&format!("{by_attribute}\nauthentication = [\"file\"]")) + &jwt + file, gives_none),
        (tls(by_attribute) + asked + &certificate, gives_none),
        (tls(by_attribute) + &with_attribute, gives_none),
        (tcp(by_attribute) + &with_attribute, gives_none),
        (tcp("authentication = [\"p\"]") + &certificate, "this listener requests none"),
        (tls("authentication = [\"p\"]") + &certificate, "this listener requests none"),
        (
            tcp("name = \"a\"") + "[[listeners]]\nurl = \"tcp://127.0.0.1:2\"\nname = \"a\"\n",
            "another listener has this name",
        ),
    ] {
        let why = error(&text);
        assert!(why.contains(expected), "{expected} not in {why} of {text}");
        assert!(why.starts_with("/etc/quelea/quelea.toml:"), "{why}");
    }
    for text in [
        tcp("namespace = \"red\"") + red,
        tcp("namespace = \"default\""),
        tcp("namespace = \"red\"\nnamespace_unknown = \"create\""),
        tcp(by_attribute) + &jwt,
        tcp(by_attribute) + &http + file,
        tls(by_attribute) + asked + &with_attribute,
    ] {
        config(&text);
    }
}

#[test]
fn names_that_could_never_be_asked_for_are_reported() {
    let ws = |origin: &str| {
        format!(
            "[[listeners]]\nurl = \"ws://127.0.0.1\"\n[listeners.websocket]\norigins = \
             [\"{origin}\"]\n"
        )
    };
    let http = |name: &str| format!("[http]\nhosts = [\"{name}\"]\n");
    let namespace = |name: &str| format!("[[namespaces]]\nname = \"a\"\nhosts = [\"{name}\"]\n");
    for origin in ["example.org", "https://example.org/", "https://*.example.org", "https://", ""] {
        assert!(error(&ws(origin)).contains("as browsers send them"), "{origin}");
    }
    for name in
        ["broker.example:9883", "https://broker.example", "*.example", "a b", "a.", "\u{e4}"]
    {
        assert!(error(&http(name)).contains("must be a host name"), "{name}");
        assert!(error(&namespace(name)).contains("must be a host name"), "{name}");
    }
    for origin in ["*", "null", "https://example.org", "http://[::1]:8080", "http://127.0.0.1"] {
        config(&ws(origin));
    }
    for text in [http("broker.example"), namespace("a_b-1.example")] {
        config(&text);
    }
}

#[test]
fn what_does_nothing_is_noted() {
    let hosts = "[[namespaces]]\nname = \"red\"\nhosts = [\"red.example\"]\n";
    let tls = "[listeners.tls]\ncertificate = \"c\"\nkey = \"k\"\n";
    let listener = "[[listeners]]\nurl = \"tls://127.0.0.1\"\n";
    let by_host = format!("{listener}namespace_from = [\"host\"]\n{tls}");
    let shut = "[[listeners]]\nurl = \"tcp://127.0.0.1\"\nallow_anonymous = false\n";
    let certificate = "[[authentication]]\nname = \"p\"\nkind = \"certificate\"\n";
    let file = "[auth]\npassword_file = \"p\"\n";
    for (text, expected) in [
        (hosts.to_owned(), "hosts of namespace 'red' have no effect"),
        (by_host.clone(), "no namespace has hosts"),
        (shut.to_owned(), "no client can log in"),
        (shut.to_owned() + certificate, "no client can log in"),
    ] {
        let notes = notes(&config(&text));
        assert!(matches!(&notes[..], [note] if note.contains(expected)), "{notes:?}");
    }
    for text in [String::new(), by_host + hosts, shut.to_owned() + file] {
        assert_eq!(notes(&config(&text)), [""; 0]);
    }
}

#[test]
fn secrets_of_requests_and_urls_are_never_shown() {
    let text = r#"
[auth]
password_file = "p"
[authorization]
url = "https://z.example/acl?key=hush"
headers = ["X-Key: hush"]
body = ["topic=${topic}", "action=${action}", "key=hush"]
[[authentication]]
name = "one"
kind = "http"
url = "https://id.example/a?token=hush"
headers = ["Authorization: Bearer hush"]
body = ["user=${username}", "secret=hush"]
[[authentication]]
name = "two"
kind = "jwt"
jwks_url = "https://id.example/keys?api_key=hush"
[telemetry]
endpoint = "http://127.0.0.1:4318"
"#;
    let loaded = load(&file(text), &MACHINE).unwrap();
    let printed = print::effective(&loaded);
    assert!(!printed.contains("hush"), "{printed}");
    for shown in [
        r#"headers = ["Authorization: (hidden)"]"#,
        r#"body = ["user=${username}", "secret=(hidden)"]"#,
        r#"url = "https://id.example/a?(hidden)""#,
        r#"jwks_url = "https://id.example/keys?(hidden)""#,
        r#"url = "https://z.example/acl?(hidden)""#,
        r#"headers = ["X-Key: (hidden)"]"#,
    ] {
        assert!(printed.contains(shown), "{shown}: {printed}");
    }
    let rows = print::rows(&loaded.settings, &loaded.derived);
    assert!(rows.iter().all(|row| !row.value.contains("hush")));
    let value = |key: &str| rows.iter().find(|row| row.key == key).map(|row| row.value.as_str());
    assert_eq!(value("authentication.0.kind"), Some("\"http\""));
    assert_eq!(value("authentication.0.headers"), Some(r#"["Authorization: (hidden)"]"#));
    assert_eq!(value("authentication.1.name"), Some("\"two\""));
    assert_eq!(value("authentication.1.jwks_url"), Some(r#""https://id.example/keys?(hidden)""#));
    assert_eq!(value("authentication.1.url"), None, "it is not set");
    assert!(rows.iter().all(|row| !row.key.starts_with("authentication.2")));
    assert!(rows.iter().all(|row| row.key != "authentication.name"), "no default of a list");

    for broken in [
        "url = \"https://u:hush@id.example/\"",
        "url = \"httpx://id.example/?token=hush hush\"",
        "url = \"https://id.example/\"\nheaders = [\"Bearer hush\"]",
        "url = \"https://id.example/\"\nbody = [\"hush\"]",
        "url = \"https://id.example/\"\nbody = [\"key=hush${nothing}\"]",
        "url = \"https://id.example/\"\nheaders = [\"X-Key: hush${nothing}\"]",
        "url = \"https://id.example/?k=hush${nothing}\"",
    ] {
        let text = format!("[[authentication]]\nname = \"a\"\nkind = \"http\"\n{broken}\n");
        let error = load(&file(&text), &MACHINE).unwrap_err().to_string();
        assert!(!error.contains("hush"), "{broken}: {error}");
    }
}
