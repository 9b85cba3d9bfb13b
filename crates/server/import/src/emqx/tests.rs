//! Sections, one by one and together.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::*;

struct Memory(BTreeMap<PathBuf, String>);

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

fn import_with(text: &str, files: &[(&str, &str)]) -> Imported {
    let files = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
    let source = Source { path: Path::new("/etc/emqx/emqx.conf"), text, host: "here" };
    import(&source, &Memory(files.collect()))
}

fn table_of(imported: &Imported) -> toml::Table {
    imported.config().parse().unwrap()
}

fn fates(imported: &Imported, option: &str) -> Vec<Fate> {
    imported.notes.iter().filter(|it| it.option == option).map(|it| it.fate).collect()
}

const JWT: &str = "authentication = [{mechanism = jwt, algorithm = \"hmac-based\", \
                   secret = \"0123456789abcdef0123456789abcdef\"}]\n";

#[test]
fn the_file_that_emqx_is_installed_with_opens_its_listeners() {
    let text = "## NOTE:\nnode {\n  name = \"emqx@127.0.0.1\"\n  cookie = \"emqxsecretcookie\"\n  \
                data_dir = \"/var/lib/emqx\"\n}\n\ncluster {\n  name = emqxcl\n  \
                discovery_strategy = manual\n}\n\ndashboard {\n    listeners {\n        \
                http.bind = 18083\n    }\n}\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    let urls: Vec<_> = table["listeners"].as_array().unwrap().iter().map(|it| &it["url"]).collect();
    assert_eq!(urls[0].as_str(), Some("tcp://*:1883"));
    assert_eq!(urls[1].as_str(), Some("ws://*:8083/mqtt"));
    assert_eq!(table["server"]["data_dir"].as_str(), Some("/var/lib/emqx/quelea"));
    assert_eq!(fates(&imported, "cluster"), [Fate::Differs]);
}

#[test]
fn an_unknown_option_is_an_error_with_its_line() {
    let text =
        "mqtt {\n  max_packet_sise = 1MB\n}\nlisteners.tcp.default {\n  bnd = 1\n}\nfoo = 1\n";
    let errors: Vec<String> =
        import_with(text, &[]).obstacles(true).map(ToString::to_string).collect();
    let expected = [
        "/etc/emqx/emqx.conf:2: mqtt.max_packet_sise: error: unknown option",
        "/etc/emqx/emqx.conf:5: listeners.tcp.default.bnd: error: unknown option",
        "/etc/emqx/emqx.conf:7: foo: error: unknown option",
    ];
    assert_eq!(errors, expected);
    let broken = import_with("a = \"", &[]);
    assert_eq!(broken.obstacles(true).count(), 1);
}

#[test]
fn limits_of_mqtt_have_their_keys() {
    let text = "mqtt {\n max_packet_size = 2MB\n session_expiry_interval = 1h\n \
                max_mqueue_len = infinity\n max_inflight = 32\n mqueue_store_qos0 = false\n \
                retain_available = true\n shared_subscription_strategy = hash_clientid\n \
                message_expiry_interval = infinity\n}\nretainer.max_retained_messages = 5000\n\
                listeners.tcp.default { bind = \"127.0.0.1:1884\", max_connections = 100, \
                max_conn_rate = \"50/s\", bytes_rate = \"1MB/s\" }\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    let limits = &table["limits"];
    let number = |key: &str| limits[key].as_integer();
    assert_eq!(number("packet_bytes_max"), Some(2 << 20));
    assert_eq!(number("session_expiry_v3_secs"), Some(3_600));
    assert_eq!(number("queued_messages_max"), Some(i64::from(u32::MAX)));
    assert_eq!(number("in_flight_max"), Some(32));
    assert_eq!(number("retained_messages_max"), Some(5_000));
    assert_eq!(limits["queue_qos0_offline"].as_bool(), Some(false));
    assert_eq!(limits["message_expiry_max_secs"].as_str(), Some("never"));
    assert_eq!(table["shared"]["strategy"].as_str(), Some("hash_client"));
    let listener = &table["listeners"][0];
    assert_eq!(listener["url"].as_str(), Some("tcp://127.0.0.1:1884"));
    assert_eq!(listener["connections_per_second_max"].as_integer(), Some(50));
    assert_eq!(listener["bytes_per_second_max"].as_integer(), Some(1 << 20));
}

#[test]
fn authenticators_become_providers_and_close_the_listeners() {
    let text = "authentication = [\n {\n  mechanism = password_based\n  backend = http\n  \
                method = post\n  url = \"http://127.0.0.1:8000/auth\"\n  \
                headers { \"X-Key\" = \"k\", content-type = \"application/x-www-form-urlencoded\" }\n  \
                body { username = \"${username}\", password = \"${password}\" }\n  pool_size = 8\n  \
                request_timeout = \"5s\"\n }\n {mechanism = jwt, use_jwks = true, \
                endpoint = \"https://id.example/keys\", refresh_interval = 300, from = password, \
                verify_claims { username = \"${username}\" }}\n]\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    let (http, jwt) = (&table["authentication"][0], &table["authentication"][1]);
    assert_eq!(http["url"].as_str(), Some("http://127.0.0.1:8000/auth"));
    assert_eq!(http["body_form"].as_str(), Some("form"));
    assert_eq!(http["headers"].to_string(), r#"["X-Key: k"]"#);
    assert_eq!(http["requests_max"].as_integer(), Some(8));
    assert_eq!(jwt["jwks_url"].as_str(), Some("https://id.example/keys"));
    assert_eq!(jwt["jwks_refresh_secs"].as_integer(), Some(300));
    assert_eq!(jwt["claims"].to_string(), r#"["username=${username}"]"#);
    assert_eq!(table["listeners"][0]["allow_anonymous"].as_bool(), Some(false));
}

#[test]
fn a_provider_without_equivalent_closes_the_broker() {
    let text = "authentication = [{mechanism = password_based, backend = built_in_database}]\n";
    let imported = import_with(text, &[]);
    assert_eq!(fates(&imported, "authentication.1"), [Fate::Rights]);
    let table = table_of(&imported);
    assert!(
        table["listeners"]
            .as_array()
            .unwrap()
            .iter()
            .all(|listener| { listener["allow_anonymous"].as_bool() == Some(false) })
    );
    let off = text.replace("{mech", "{enable = false, mech");
    assert_eq!(import_with(&off, &[]).obstacles(false).count(), 0);
}

#[test]
fn secrets_go_into_files_of_their_own() {
    let imported = import_with(JWT, &[]);
    let secret = imported.files.iter().find(|file| file.is_secret).unwrap();
    assert_eq!(secret.text, "0123456789abcdef0123456789abcdef");
    assert!(!imported.config().contains("0123456789abcdef"));
    let short = JWT.replace("0123456789abcdef0123456789abcdef", "short");
    assert_eq!(fates(&import_with(&short, &[]), "authentication.1.secret"), [Fate::Error]);
}

#[test]
fn rules_become_a_policy_in_their_order() {
    let acl = "{allow, {username, \"anna\"}, publish, [\"up/${clientid}\"]}.\n{deny, all}.\n";
    let text = format!(
        "{JWT}authorization {{\n no_match = deny\n deny_action = disconnect\n cache.enable = true\n \
         sources = [{{type = file, path = \"${{EMQX_ETC_DIR}}/acl.conf\"}}]\n}}\n"
    );
    let imported = import_with(&text, &[("/etc/emqx/acl.conf", acl)]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let policy = imported.files.iter().find(|file| file.name == "policy.toml").unwrap();
    let policy: toml::Table = policy.text.parse().unwrap();
    let rules = policy["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 2);
    assert_eq!(rules[0]["topics"].to_string(), r#"["up/${client.id}"]"#);
    assert_eq!(policy["groups"][0]["query"].as_str(), Some("user = 'anna'"));
    assert_eq!(table_of(&imported)["access"]["policy_file"].as_str(), Some("policy.toml"));
    let open = import_with(
        &text.replace("no_match = deny", "no_match = allow"),
        &[("/etc/emqx/acl.conf", acl)],
    );
    let policy = open.files.iter().find(|file| file.name == "policy.toml").unwrap();
    let last: toml::Table = policy.text.parse().unwrap();
    assert_eq!(last["rules"].as_array().unwrap().len(), 3, "what no rule is about is allowed");
}

#[test]
fn a_source_that_is_not_asked_never_opens_what_it_closed() {
    let text =
        "authorization { no_match = allow, sources = [{type = redis, url = \"http://x\"}] }\n";
    let imported = import_with(text, &[]);
    assert_eq!(imported.obstacles(false).count(), 1);
    let policy = imported.files.iter().find(|file| file.name == "policy.toml").unwrap();
    assert!(!policy.text.contains("[[rules]]"), "{}", policy.text);
}

#[test]
fn rules_for_names_that_nothing_verifies_are_named() {
    let file = |effect: &str| {
        let rule = format!("\n{{{effect}, {{username, \"a\"}}, all, [\"#\"]}}.\n");
        let text =
            format!("authorization.sources = [{{type = file, rules = \"\"\"{rule}\"\"\"}}]\n");
        import_with(&text, &[])
    };
    assert_eq!(file("allow").obstacles(false).count(), 0);
    let denied = file("deny");
    let errors: Vec<_> = denied.obstacles(true).map(|note| note.place.line).collect();
    assert_eq!(errors, [2]);
}

#[test]
fn tls_listeners_need_their_own_certificates() {
    let text = "mqtt.peer_cert_as_username = cn\nlisteners.ssl.default {\n bind = \"0.0.0.0:8883\"\n \
                ssl_options {\n  certfile = \"${EMQX_ETC_DIR}/certs/cert.pem\"\n  \
                keyfile = \"etc/certs/key.pem\"\n  cacertfile = \"/ca.pem\"\n  \
                verify = verify_peer\n  fail_if_no_peer_cert = true\n  versions = [\"tlsv1.3\"]\n \
                }\n}\nlisteners.wss.default.enable = true\nlisteners.quic.default.bind = 14567\n";
    let imported = import_with(text, &[]);
    let table = table_of(&imported);
    let listeners = table["listeners"].as_array().unwrap();
    assert_eq!(listeners.len(), 3, "the one with a certificate, TCP and WebSocket");
    let (listener, tls) = (&listeners[0], &listeners[0]["tls"]);
    assert_eq!(listener["url"].as_str(), Some("tls://0.0.0.0:8883"));
    assert_eq!(listener["identity_from_certificate"].as_str(), Some("cn"));
    assert_eq!(tls["certificate"].as_str(), Some("/etc/emqx/certs/cert.pem"));
    assert_eq!(tls["key"].as_str(), Some("/etc/emqx/certs/key.pem"));
    assert_eq!(tls["client_auth"].as_str(), Some("require"));
    assert_eq!(tls["min_version"].as_str(), Some("1.3"));
    assert_eq!(fates(&imported, "listeners.quic.default"), [Fate::Unsupported]);
}

#[test]
fn a_restricted_listener_is_left_out_rather_than_opened() {
    for extra in [
        "access_rules = [\"deny 10.0.0.0/8\", \"allow all\"]",
        "enable_authn = false",
        "authentication = [{mechanism = jwt}]",
    ] {
        let text = format!("{JWT}listeners.tcp.default {{ bind = 1883, {extra} }}\n");
        let imported = import_with(&text, &[]);
        assert_eq!(imported.obstacles(false).count(), 1, "{extra}: {:?}", imported.notes);
        assert!(!imported.config().contains(":1883"), "{extra}");
    }
}

#[test]
fn a_service_that_is_asked_for_each_action_is_asked_here_too() {
    let service = "{type = http, url = \"http://x/acl\", method = get, pool_size = 4, \
                   body { who = \"${username}\", topic = \"${topic}\", a = \"${action}\" }}";
    let text =
        format!("{JWT}authorization {{ deny_action = disconnect, sources = [{service}] }}\n");
    let imported = import_with(&text, &[]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let written: toml::Table = imported.files[0].text.parse().unwrap();
    let table = written["authorization"].as_table().unwrap();
    assert_eq!(table["url"].as_str(), Some("http://x/acl"));
    assert_eq!(
        (table["no_match"].as_str(), table["method"].as_str()),
        (Some("allow"), Some("get"))
    );
    assert_eq!(table["requests_max"].as_integer(), Some(4));
    assert_eq!(written["access"]["deny_action"].as_str(), Some("disconnect"));
    assert!(!imported.files.iter().any(|file| file.name == "policy.toml"));
    // What it is asked cannot be kept, so what it may have denied stays denied.
    let text = text.replace("${username}", "${mountpoint}");
    let imported = import_with(&text, &[]);
    assert!(imported.obstacles(false).count() > 0);
    let policy = imported.files.iter().find(|file| file.name == "policy.toml").unwrap();
    assert!(!policy.text.contains("[[rules]]"), "{}", policy.text);
    // A source that is not asked may have denied what the service ignores.
    let text = text.replace("${mountpoint}", "${username}");
    let text = text.replace("sources = [", "sources = [{type = built_in_database}, ");
    let imported = import_with(&text, &[]);
    let written: toml::Table = imported.files[0].text.parse().unwrap();
    assert_eq!(written["authorization"]["no_match"].as_str(), Some("deny"));
    let text = text.replace("http://x/acl", "http://x/${topic}");
    let imported = import_with(&text, &[]);
    assert!(!imported.files[0].text.contains("[authorization]"));
}

#[test]
fn a_deleted_listener_stays_deleted() {
    let urls = |text: &str| {
        let table = table_of(&import_with(text, &[]));
        let all = table.get("listeners").and_then(|it| it.as_array()).cloned().unwrap_or_default();
        all.iter().map(|it| it["url"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let text = "listeners.ws.default = marked_for_deletion\n";
    assert_eq!(urls(text), ["tcp://*:1883"]);
    assert_eq!(fates(&import_with(text, &[]), "listeners.ws.default"), [Fate::NotNeeded]);
    assert_eq!(urls("listeners { tcp { default = marked_for_deletion } }\n"), ["ws://*:8083/mqtt"]);
    assert_eq!(urls("listeners.tcp.default.enable = off\n"), ["ws://*:8083/mqtt"]);
    let both = format!("{text}listeners.tcp.default = marked_for_deletion\n");
    assert_eq!(urls(&both), [""; 0]);
    assert_eq!(
        import_with(&both, &[]).obstacles(true).count(),
        1,
        "the broker would open loopback"
    );
}

#[test]
fn what_is_no_object_is_not_one_with_defaults() {
    for (text, option) in [
        ("listeners.ws.default = deleted\n", "listeners.ws.default"),
        ("listeners.ws = off\n", "listeners.ws"),
        ("listeners = []\n", "listeners"),
        ("mqtt = 1\n", "mqtt"),
        ("authorization = deny\n", "authorization"),
        ("retainer = false\n", "retainer"),
        ("listeners.tcp.default.enable = maybe\n", "listeners.tcp.default.enable"),
    ] {
        let found = fates(&import_with(text, &[]), option);
        assert!(found.contains(&Fate::Error), "{text}: {found:?}");
    }
}

#[test]
fn a_rate_without_a_time_is_that_of_a_second() {
    let text = "listeners.tcp.default { bind = 1883, max_conn_rate = 50, messages_rate = \"100\", \
                bytes_rate = 1MB }\n";
    let table = table_of(&import_with(text, &[]));
    let listener = &table["listeners"][0];
    assert_eq!(listener["connections_per_second_max"].as_integer(), Some(50));
    assert_eq!(listener["messages_per_second_max"].as_integer(), Some(100));
    assert_eq!(listener["bytes_per_second_max"].as_integer(), Some(1 << 20));
}

#[test]
fn tokens_may_be_in_the_username_and_their_secret_in_base64() {
    let secret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let text = format!(
        "authentication = [{{mechanism = jwt, from = username, algorithm = \"hmac-based\", \
         secret = \"{secret}\", secret_base64_encoded = true}}]\n"
    );
    let imported = import_with(&text, &[]);
    assert_eq!(imported.obstacles(false).count(), 0, "{:?}", imported.notes);
    let table = table_of(&imported);
    let jwt = &table["authentication"][0];
    assert_eq!(jwt["from"].as_str(), Some("username"));
    assert_eq!(jwt["secret_base64_encoded"].as_bool(), Some(true));
    assert!(jwt.get("username").is_none(), "nothing verifies the one that a client states");
    assert_eq!(fates(&imported, "authentication.1"), [Fate::Carried, Fate::Differs]);
    assert_eq!(table["limits"]["username_bytes_max"].as_integer(), Some(16_384));
    let short = text.replace(secret, "MDEyMzQ1Njc4OWFiY2RlZg==");
    assert_eq!(fates(&import_with(&short, &[]), "authentication.1.secret"), [Fate::Error]);
    let wrong = text.replace(secret, &"-_".repeat(30));
    assert_eq!(fates(&import_with(&wrong, &[]), "authentication.1.secret"), [Fate::Error]);
    let wrong = text.replace("from = username", "from = header");
    assert_eq!(fates(&import_with(&wrong, &[]), "authentication.1.from"), [Fate::Error]);
}

#[test]
fn a_username_that_no_claim_verifies_is_not_taken() {
    let table = table_of(&import_with(JWT, &[]));
    assert!(table["authentication"][0].get("username").is_none());
    let claims = JWT.replace("}]", ", verify_claims { sub = \"${username}\" }}]");
    let table = table_of(&import_with(&claims, &[]));
    assert_eq!(table["authentication"][0]["username"].as_str(), Some("${username}"));
}

#[test]
fn a_file_of_many_keys_is_read_in_linear_time() {
    // Each key was compared with all before it: this would take minutes.
    let keys: String = (0..45_000).map(|number| format!("k{number} = 1\n")).collect();
    let imported = import_with(&format!("mqtt {{\n{keys}}}\n{keys}"), &[]);
    assert_eq!(imported.obstacles(true).count(), 90_000);
}
