//! What a file is, by its name and by what is in it.

use std::path::Path;

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mosquitto,
    Emqx,
    /// The file of mosquitto's dynamic security plugin.
    DynamicSecurity,
    EventGrid,
    /// It cannot be imported: what it is, and what to do.
    Other(&'static str, &'static str),
}

/// What a file is. One that nothing is known of is taken for a mosquitto.conf.
pub fn recognize(path: &Path, text: &str) -> Kind {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.starts_with('<') {
        return of_xml(start);
    }
    let mut after = start.chars().filter(|letter| !letter.is_whitespace());
    let is_json = match (after.next(), after.next()) {
        (Some('{'), second) => matches!(second, Some('"' | '}')),
        (Some('['), second) => matches!(second, Some('"' | '{' | ']')),
        _ => false,
    };
    if let Some(kind) = of_json(&name, start).filter(|_| is_json) {
        return kind;
    }
    let lines: Vec<&str> = significant(text).take(LINES_MAX).collect();
    of_lines(&name, &lines)
}

fn of_xml(text: &str) -> Kind {
    match text.contains("<hivemq") {
        true => Kind::Other("a configuration of HiveMQ", BY_HAND),
        false => Kind::Other("an XML file", "no broker that can be imported has XML files"),
    }
}

/// None: it may be HOCON.
fn of_json(name: &str, text: &str) -> Option<Kind> {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(&format!("\"{word}\"")));
    if has(&["defaultACLAccess", "acltype", "rolename"]) {
        return Some(Kind::DynamicSecurity);
    }
    if text.contains("Microsoft.EventGrid")
        || has(&["authenticationName", "topicTemplates", "clientGroupName"])
    {
        return Some(Kind::EventGrid);
    }
    let is_emqx = name.starts_with("emqx") || name.ends_with(".hocon");
    (!is_emqx && !has(&["listeners", "authentication"])).then_some(Kind::Other(
        "a JSON file of no known kind",
        "name the broker with --from, or import its main configuration",
    ))
}

fn of_lines(name: &str, lines: &[&str]) -> Kind {
    let has = |test: &dyn Fn(&str) -> bool| lines.iter().any(|line| test(line));
    let starts = |words: &[&str]| has(&|line| words.iter().any(|word| line.starts_with(word)));
    if name.starts_with("vernemq") || starts(&VERNEMQ) {
        return Kind::Other("a configuration of VerneMQ", BY_HAND);
    }
    let is_nanomq = has(&|line| line.contains("nmq-") || line.contains("nanomq"));
    if name.starts_with("nanomq") || is_nanomq || starts(&NANOMQ) {
        return Kind::Other("a configuration of NanoMQ", BY_HAND);
    }
    if name.starts_with("hivemq") {
        return Kind::Other("a configuration of HiveMQ", BY_HAND);
    }
    if name.starts_with("rabbitmq") || starts(&RABBITMQ) {
        return Kind::Other("a configuration of RabbitMQ", BY_HAND);
    }
    if starts(&EMQX_4) {
        return Kind::Other("a configuration of EMQX 4", "EMQX 5 is imported: upgrade it first");
    }
    if has(&|line| OURS.contains(&line.split('#').next().unwrap_or_default().trim())) {
        return Kind::Other(
            "a configuration of quelea",
            "`quelea serve --config` takes it as it is",
        );
    }
    if name.starts_with("emqx") || name.ends_with(".hocon") || is_emqx(lines) {
        return Kind::Emqx;
    }
    if !lines.is_empty() && lines.iter().all(|line| is_password(line)) {
        return Kind::Other("a password file", "set auth.password_file to it: it is read as it is");
    }
    if is_access_file(lines) {
        return Kind::Other("an access file", "set access.acl_file to it: it is read as it is");
    }
    Kind::Mosquitto
}

fn is_password(line: &str) -> bool {
    line.split_once(':').is_some_and(|(name, secret)| {
        !name.contains(char::is_whitespace) && secret.starts_with('$')
    })
}

/// mosquitto.conf has such lines for bridges, and others.
fn is_access_file(lines: &[&str]) -> bool {
    let word = |line: &&str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let words: Vec<String> = lines.iter().map(word).collect();
    words.iter().all(|word| matches!(word.as_str(), "user" | "topic" | "pattern"))
        && words.iter().any(|word| word != "user")
}

/// By the first key: those of mosquitto have neither dots nor braces.
fn is_emqx(lines: &[&str]) -> bool {
    let Some(first) = lines.first() else { return false };
    let first = first.trim_start_matches(['{', '"', ' ']);
    let end = first.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let (key, rest) = first.split_at(end.unwrap_or(first.len()));
    EMQX.contains(&key) && rest.trim_start_matches(['"', ' ']).starts_with(['.', '{', '=', ':'])
}

fn significant(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("%%"))
}

const BY_HAND: &str = "it cannot be imported: write its listeners, users and rights by hand \
                       (docs/use/configuration.md). mosquitto.conf and emqx.conf can be imported";

const VERNEMQ: [&str; 6] =
    ["plugins.vmq_", "vmq_", "listener.vmq.", "metadata_plugin", "leveldb.", "distributed_cookie"];

const NANOMQ: [&str; 5] =
    ["property_size", "msq_len", "listeners.tcp {", "http_server {", "listeners.tcp.enable"];

const RABBITMQ: [&str; 4] = ["mqtt.listeners", "loopback_users", "default_vhost", "management.tcp"];

const EMQX_4: [&str; 5] = [
    "listener.tcp.external",
    "listener.tcp.internal",
    "zone.external",
    "zone.internal",
    "node.ets",
];

const OURS: [&str; 4] = ["[[listeners]]", "[durability]", "[limits]", "[auth]"];

/// The sections that files of EMQX 5 begin with.
const EMQX: [&str; 12] = [
    "actions",
    "api_key",
    "authentication",
    "authorization",
    "cluster",
    "connectors",
    "dashboard",
    "listeners",
    "log",
    "mqtt",
    "node",
    "retainer",
];

/// What a file is shows in its first lines.
const LINES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str, text: &str) -> Kind {
        recognize(&Path::new("/etc").join(name), text)
    }

    #[test]
    fn files_are_recognized_by_what_is_in_them() {
        for (name, text, expected) in [
            ("mosquitto.conf", "# c\nlistener 1883\n", Kind::Mosquitto),
            ("x", "", Kind::Mosquitto),
            ("x", "user mosquitto\nlistener 1883\n", Kind::Mosquitto),
            ("x", "connection c\naddress h\ntopic a out\n", Kind::Mosquitto),
            ("emqx.conf", "## c\nnode {\n name = x\n}\n", Kind::Emqx),
            ("my.conf", "listeners.tcp.default.bind = 1883\n", Kind::Emqx),
            ("my.conf", "mqtt { max_packet_size = 1MB }\n", Kind::Emqx),
            ("x.json", "{\"listeners\": {}}", Kind::Emqx),
            (
                "x",
                "{ \"clients\": [], \"roles\": [{ \"rolename\": \"a\" }]}",
                Kind::DynamicSecurity,
            ),
            ("x", "[{\"authenticationName\": \"c\"}]", Kind::EventGrid),
        ] {
            assert_eq!(kind(name, text), expected, "{name}: {text}");
        }
    }

    #[test]
    fn files_of_others_are_named() {
        for (name, text, what) in [
            ("vernemq.conf", "allow_anonymous = off\n", "VerneMQ"),
            ("v.conf", "listener.tcp.default = 127.0.0.1:1883\nplugins.vmq_acl = on\n", "VerneMQ"),
            ("nanomq.conf", "mqtt {\n    property_size = 32\n}\n", "NanoMQ"),
            ("n.conf", "mqtt {\n    property_size = 32\n}\nlisteners.tcp {\n", "NanoMQ"),
            ("n.conf", "url=nmq-tcp://0.0.0.0:1883\n", "NanoMQ"),
            ("config.xml", "<?xml version=\"1.0\"?>\n<hivemq>\n</hivemq>\n", "HiveMQ"),
            ("r.conf", "mqtt.listeners.tcp.default = 1883\n", "RabbitMQ"),
            ("emqx.conf", "listener.tcp.external = 0.0.0.0:1883\n", "EMQX 4"),
            ("passwd", "anna:$7$101$x$y\nbob:$6$x$y\n", "password file"),
            ("acl", "topic read a\nuser anna\ntopic b\n", "access file"),
            ("q.toml", "[server]\n[[listeners]]\nurl = \"tcp://*\"\n", "quelea"),
            ("a.json", "{\"a\": 1}", "JSON"),
        ] {
            let Kind::Other(found, remedy) = kind(name, text) else { panic!("{name}: {text}") };
            assert!(found.contains(what) && !remedy.is_empty(), "{name}: {found}");
        }
    }
}
