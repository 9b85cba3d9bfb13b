//! Bridges.

use crate::document::Table;
use crate::report::Fate;
use crate::{NewFile, absolute};

use super::Import;
use super::lines::{Options, Setting};

impl Import<'_> {
    pub(super) fn bridge(&mut self, options: &Options) {
        let Some(connection) = options.get("connection") else { return };
        let mut table = Table::new("[[bridges]]");
        self.name(connection, &mut table);
        let is_psk = self.bridge_psk(options);
        let tls = self.bridge_tls(options);
        let has_addresses = self.addresses(options, &mut table, tls.is_some());
        if !has_addresses {
            self.note(connection, Fate::Error, "needs an address");
        }
        self.client_id(connection, options, &mut table);
        self.login(connection, options, &mut table);
        self.version(options, &mut table);
        self.apply(options, &mut table);
        self.topics(options, &mut table);
        if let Some(tls) = tls {
            table.push(tls);
        }
        if !is_psk {
            self.document.push(table);
        }
    }

    /// A name of ours has letters, digits and three signs.
    fn name(&mut self, connection: &Setting, table: &mut Table) {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let name = connection.value.chars().map(|it| if plain(it) { it } else { '-' });
        let name: String = name.take(NAME_BYTES_MAX).collect();
        match name == connection.value {
            true => self.carried(connection, "bridges.name"),
            false => self.note(connection, Fate::Differs, format!("the name is {name}")),
        }
        table.set("name", name, &connection.at);
    }

    /// The keys are not to be replaced by no TLS at all.
    fn bridge_psk(&mut self, options: &Options) -> bool {
        let settings = [options.get("bridge_psk"), options.get("bridge_identity")];
        for setting in settings.into_iter().flatten() {
            let detail = "this bridge is left out: there is no TLS with pre-shared keys";
            self.note(setting, Fate::Rights, detail);
        }
        settings.iter().any(Option::is_some)
    }

    fn bridge_tls(&mut self, options: &Options) -> Option<Table> {
        let mut tls = Table::new("[bridges.tls]");
        let mut is_on = false;
        let files = [
            ("bridge_cafile", "ca"),
            ("bridge_certfile", "certificate"),
            ("bridge_keyfile", "key"),
        ];
        for (name, key) in files {
            let Some(setting) = options.get(name) else { continue };
            let path = absolute(self.source, &setting.value).to_string_lossy().into_owned();
            tls.set(key, path, &setting.at);
            self.carried(setting, &format!("bridges.tls.{key}"));
            is_on |= key == "ca";
        }
        if let Some(setting) = options.get("bridge_capath") {
            is_on = true;
            let is_of_system = setting.value.trim_end_matches('/') == "/etc/ssl/certs";
            match is_of_system || options.has("bridge_cafile") {
                true => self.carried(setting, "the authorities of the system"),
                false => {
                    let detail = "directories of authorities are not read: put their certificates \
                                  into one file, and name it as bridge_cafile";
                    self.note(setting, Fate::Error, detail);
                }
            }
        }
        if let Some(setting) = options.get("bridge_tls_use_os_certs") {
            is_on |= setting.is_true();
            self.carried(setting, "the authorities of the system");
        }
        is_on.then_some(tls)
    }

    /// False: there are none.
    fn addresses(&mut self, options: &Options, table: &mut Table, has_tls: bool) -> bool {
        let (scheme, default) = if has_tls { ("tls", 8883) } else { ("tcp", 1883) };
        let mut urls: Vec<toml::Value> = Vec::new();
        let Some(first) = options.any(&["address", "addresses"]) else { return false };
        let settings = options.all("address").chain(options.all("addresses"));
        for setting in settings {
            for address in setting.value.split_whitespace() {
                let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
                    port.parse::<u16>().is_ok() && (!host.contains(':') || host.starts_with('['))
                });
                let url = match (has_port, address.contains(':') && !address.starts_with('[')) {
                    (true, _) => format!("{scheme}://{address}"),
                    (false, true) => {
                        let detail = format!("'{address}' must be a host or host:port");
                        self.note(setting, Fate::Error, detail);
                        continue;
                    }
                    (false, false) => format!("{scheme}://{address}:{default}"),
                };
                urls.push(url.into());
            }
            self.carried(setting, "bridges.addresses");
        }
        table.set("addresses", urls, &first.at);
        true
    }

    fn client_id(&mut self, connection: &Setting, options: &Options, table: &mut Table) {
        let setting = options.any(&["remote_clientid", "clientid"]);
        let default = format!("{}.{}", connection.value, self.source.host);
        let (value, at) = match setting {
            Some(setting) => (setting.value.clone(), &setting.at),
            None => (default, &connection.at),
        };
        table.set("client_id", value, at);
        if let Some(setting) = setting {
            self.carried(setting, "bridges.client_id");
        }
    }

    fn login(&mut self, connection: &Setting, options: &Options, table: &mut Table) {
        let user = options.any(&["remote_username", "username"]);
        if let Some(setting) = user {
            table.set("username", setting.value.as_str(), &setting.at);
            self.carried(setting, "bridges.username");
        }
        if let Some(setting) = options.get("username").filter(|_| options.has("remote_username")) {
            self.note(setting, Fate::NotNeeded, "remote_username replaces it");
        }
        if let Some(setting) = options.get("password").filter(|_| options.has("remote_password")) {
            self.note(setting, Fate::NotNeeded, "remote_password replaces it");
        }
        let Some(setting) = options.any(&["remote_password", "password"]) else { return };
        if user.is_none() {
            return self.note(setting, Fate::NotNeeded, "has no effect without a username");
        }
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        let name: String =
            connection.value.chars().map(|it| if plain(it) { it } else { '_' }).collect();
        let number = self.new.len();
        let name = format!("bridge-{number}-{name}.password");
        table.set("password_file", name.as_str(), &setting.at);
        self.carried(setting, "bridges.password_file");
        self.new.push(NewFile { name, text: format!("{}\n", setting.value), is_secret: true });
    }

    fn version(&mut self, options: &Options, table: &mut Table) {
        let setting = options.get("bridge_protocol_version");
        let word = match setting.map_or("mqttv311", |setting| &setting.value) {
            "mqttv50" | "mqttv5" => "5",
            "mqttv311" | "mqttv31" => "3.1.1",
            other => {
                let detail = format!("must be mqttv50, mqttv311 or mqttv31, got '{other}'");
                setting.into_iter().for_each(|it| self.note(it, Fate::Error, detail.clone()));
                return;
            }
        };
        let at = setting.map(|setting| setting.at.clone()).unwrap_or_default();
        table.set("protocol", word, &at);
        if let Some(setting) = setting {
            match &*setting.value {
                "mqttv31" => self.note(setting, Fate::Differs, "the bridge speaks MQTT 3.1.1"),
                _ => self.carried(setting, "bridges.protocol"),
            }
        }
    }

    fn topics(&mut self, options: &Options, table: &mut Table) {
        for setting in options.all("topic") {
            let fields: Vec<&str> = setting.value.split_whitespace().collect();
            match topic(&fields) {
                Ok(topic) => {
                    let mut map = Table::new("[[bridges.topics]]");
                    map.set("filter", topic.filter, &setting.at);
                    map.set("direction", topic.direction, &setting.at);
                    map.set("qos", topic.qos, &setting.at);
                    for (key, prefix) in
                        [("local_prefix", topic.local), ("remote_prefix", topic.remote)]
                    {
                        if !prefix.is_empty() {
                            map.set(key, prefix, &setting.at);
                        }
                    }
                    table.push(map);
                    self.carried(setting, "bridges.topics");
                }
                Err(detail) => self.note(setting, Fate::Error, detail),
            }
        }
    }
}

/// `topic PATTERN [[[out|in|both] QOS] LOCAL REMOTE]`
struct Topic<'a> {
    filter: &'a str,
    direction: &'a str,
    qos: i64,
    local: &'a str,
    remote: &'a str,
}

fn topic<'a>(fields: &[&'a str]) -> Result<Topic<'a>, String> {
    let at = |index: usize| match fields.get(index) {
        Some(&"\"\"") | None => "",
        Some(field) => *field,
    };
    if fields.len() > 5 {
        return Err("has at most five fields: PATTERN DIRECTION QOS LOCAL REMOTE".into());
    }
    let direction = fields.get(1).copied().unwrap_or("out");
    if !matches!(direction, "out" | "in" | "both") {
        return Err(format!("the direction must be in, out or both, got '{direction}'"));
    }
    let qos = fields.get(2).map_or(Ok(0), |text| text.parse::<i64>());
    let qos = qos.ok().filter(|qos| (0..=2).contains(qos));
    let qos = qos.ok_or("the QoS must be 0, 1 or 2")?;
    let (filter, local, remote) = match (at(0), at(3), at(4)) {
        ("", "", _) | ("", _, "") => {
            return Err("an empty pattern needs both prefixes, which are then topics".into());
        }
        whole => whole,
    };
    Ok(Topic { filter, direction, qos, local, remote })
}

/// As many as a name may have.
const NAME_BYTES_MAX: usize = 64;
