//! Bridges.

use std::collections::BTreeMap;

use crate::document::Table;
use crate::report::Fate;
use crate::{NewFile, absolute, filter};

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
        self.bridge_keep_alive(options, &mut table);
        let is_idle = options.has("topic") && !self.topics(options, &mut table);
        if is_idle {
            self.note(connection, Fate::Differs, "this bridge is left out: it relays nothing");
        }
        if !options.has("topic") {
            self.note(connection, Fate::Error, "needs a topic");
        }
        self.insecure(options, tls.is_some());
        if let Some(tls) = tls {
            table.push(tls);
        }
        if !is_psk && !is_idle {
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
            let words = setting.value.split_whitespace();
            for address in words.take_while(|word| !word.starts_with('#')) {
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
        let default = format!("{}.{}", self.source.host, connection.value);
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
        self.new.push(NewFile::secret(name, format!("{}\n", setting.value)));
    }

    fn bridge_keep_alive(&mut self, options: &Options, table: &mut Table) {
        let Some(setting) = options.get("keepalive_interval") else { return };
        match setting.value.parse::<i64>() {
            Ok(seconds) if seconds <= i64::from(u16::MAX) => {
                table.set("keep_alive_secs", seconds.max(KEEP_ALIVE_SECS_MIN), &setting.at);
                self.carried(setting, "bridges.keep_alive_secs");
            }
            _ => self.note(setting, Fate::Error, "must be a number of seconds up to 65535"),
        }
    }

    fn insecure(&mut self, options: &Options, has_tls: bool) {
        let Some(setting) = options.get("bridge_insecure") else { return };
        match (setting.is_true(), has_tls) {
            (false, _) => self.note(setting, Fate::NotNeeded, "this is how it always is"),
            (true, false) => self.note(setting, Fate::NotNeeded, "has no effect without TLS"),
            (true, true) => {
                let detail = "the name in the remote's certificate is always verified: use its \
                              name in addresses";
                self.note(setting, Fate::Rights, detail);
            }
        }
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

    /// False: nothing is relayed.
    fn topics(&mut self, options: &Options, table: &mut Table) -> bool {
        let mut maps = Vec::new();
        for setting in options.all("topic") {
            let words: Vec<&str> = setting.value.split_whitespace().collect();
            match Map::of(&words) {
                Ok(map) if map.is_matchless() => {
                    let detail = "left out: mosquitto takes the quotation marks as a part of the \
                                  filter, which is then not valid. Remove them";
                    self.note(setting, Fate::Differs, detail);
                }
                Ok(map) => {
                    match map.filter.contains('"') {
                        true => {
                            let detail = "the quotation marks are a part of the topic, as in \
                                          mosquitto";
                            self.note(setting, Fate::Differs, detail);
                        }
                        false => self.carried(setting, "bridges.topics"),
                    }
                    maps.push((map, setting));
                }
                Err(detail) => self.note(setting, Fate::Error, detail),
            }
        }
        if maps.len() > TOPICS_MAX {
            let detail = format!("at most {TOPICS_MAX} topics of a bridge can be imported");
            maps.first().into_iter().for_each(|(_, first)| {
                self.note(first, Fate::Error, detail.clone());
            });
            return true;
        }
        self.join(&mut maps);
        self.sort_by_qos(&mut maps);
        for (map, setting) in &maps {
            for (direction, qos) in map.directions() {
                table.push(map.table(direction, qos, setting));
            }
        }
        !maps.is_empty()
    }

    /// mosquitto has one subscription for one filter in one direction: its prefixes are those of
    /// the first line, its QoS is that of the last.
    fn join(&mut self, maps: &mut Vec<(Map<'_>, &Setting)>) {
        let mut known: BTreeMap<(bool, String), usize> = BTreeMap::new();
        for at in 0..maps.len() {
            for is_out in [true, false] {
                let Some(qos) = maps[at].0.qos_of(is_out) else { continue };
                let key = (is_out, maps[at].0.subscribed(is_out));
                match known.get(&key) {
                    None => drop(known.insert(key, at)),
                    Some(first) => {
                        *maps[*first].0.qos_mut(is_out) = Some(qos);
                        *maps[at].0.qos_mut(is_out) = None;
                    }
                }
            }
        }
        maps.retain(|(map, _)| map.out.is_some() || map.into.is_some());
    }

    /// A message that matches two lines has the higher QoS in mosquitto, and that of the first map
    /// here.
    fn sort_by_qos(&mut self, maps: &mut [(Map<'_>, &Setting)]) {
        let mut has_lower = false;
        for (at, (later, setting)) in maps.iter().enumerate() {
            let mut lower = maps[..at].iter().filter(|(earlier, _)| earlier.is_below(later));
            has_lower |= lower.clone().next().is_some();
            if lower.any(|(earlier, _)| earlier.prefixes() != later.prefixes()) {
                // The first map has the prefixes in mosquitto as well.
                let detail = "a message that also matches an earlier topic of the bridge is \
                              relayed with the QoS of that one";
                return self.note(setting, Fate::Differs, detail);
            }
        }
        if has_lower {
            maps.sort_by_key(|(map, _)| std::cmp::Reverse(map.out.max(map.into)));
        }
    }
}

/// `topic PATTERN [[[out|in|both] QOS] LOCAL REMOTE]`, with the QoS of each direction.
#[derive(Clone, Debug)]
struct Map<'a> {
    filter: &'a str,
    out: Option<i64>,
    into: Option<i64>,
    local: &'a str,
    remote: &'a str,
}

impl<'a> Map<'a> {
    /// A word that begins with `#` begins a comment, but for the pattern.
    fn of(words: &[&'a str]) -> Result<Self, String> {
        let comment = words.iter().skip(1).position(|word| word.starts_with('#'));
        let words = &words[..comment.map_or(words.len(), |at| at + 1)];
        let at = |index: usize| match words.get(index) {
            Some(&"\"\"") | None => "",
            Some(word) => *word,
        };
        let direction = words.get(1).copied().unwrap_or("out").to_lowercase();
        let qos = words.get(2).map_or(Ok(0), |text| text.parse::<i64>());
        let qos = qos.ok().filter(|qos| (0..=2).contains(qos));
        let qos = qos.ok_or("the QoS must be 0, 1 or 2")?;
        let (out, into) = match direction.as_str() {
            "out" => (Some(qos), None),
            "in" => (None, Some(qos)),
            "both" => (Some(qos), Some(qos)),
            _ => return Err(format!("the direction must be in, out or both, got '{direction}'")),
        };
        match (at(0), at(3), at(4)) {
            ("", "", _) | ("", _, "") => {
                Err("an empty pattern needs both prefixes, which are then topics".into())
            }
            (filter, local, remote) => Ok(Self { filter, out, into, local, remote }),
        }
    }

    fn qos_of(&self, is_out: bool) -> Option<i64> {
        if is_out { self.out } else { self.into }
    }

    fn qos_mut(&mut self, is_out: bool) -> &mut Option<i64> {
        if is_out { &mut self.out } else { &mut self.into }
    }

    fn prefixes(&self) -> (&str, &str) {
        (self.local, self.remote)
    }

    /// What is subscribed to: here for messages that go out, else at the remote.
    fn subscribed(&self, is_out: bool) -> String {
        format!("{}{}", if is_out { self.local } else { self.remote }, self.filter)
    }

    /// A quotation mark makes a text of a wildcard, and mosquitto does not notice.
    fn is_matchless(&self) -> bool {
        let mut levels = self.filter.split('/').rev();
        let is_last_wrong = levels.next().is_some_and(|last| last.len() > 1 && has_wildcard(last));
        let is_wrong = |level: &str| level.contains('#') || level.len() > 1 && has_wildcard(level);
        self.filter.contains('"') && (is_last_wrong || levels.any(is_wrong))
    }

    /// Is there a message for both, in one direction, for which this one has the lower QoS?
    fn is_below(&self, other: &Self) -> bool {
        [true, false].into_iter().any(|is_out| {
            let lower = match (self.qos_of(is_out), other.qos_of(is_out)) {
                (Some(own), Some(theirs)) => own < theirs,
                _ => false,
            };
            let filters = || (self.subscribed(is_out), other.subscribed(is_out));
            lower && {
                let (own, theirs) = filters();
                filter::intersection(&own, &theirs).is_some()
            }
        })
    }

    fn directions(&self) -> Vec<(&'static str, i64)> {
        match (self.out, self.into) {
            (Some(out), Some(into)) if out == into => vec![("both", out)],
            (out, into) => {
                let out = out.map(|qos| ("out", qos));
                out.into_iter().chain(into.map(|qos| ("in", qos))).collect()
            }
        }
    }

    fn table(&self, direction: &str, qos: i64, setting: &Setting) -> Table {
        let mut table = Table::new("[[bridges.topics]]");
        table.set("filter", self.filter, &setting.at);
        table.set("direction", direction, &setting.at);
        table.set("qos", qos, &setting.at);
        for (key, prefix) in [("local_prefix", self.local), ("remote_prefix", self.remote)] {
            if !prefix.is_empty() {
                table.set(key, prefix, &setting.at);
            }
        }
        table
    }
}

fn has_wildcard(level: &str) -> bool {
    level.contains(['+', '#'])
}

/// As many as a bridge takes.
const TOPICS_MAX: usize = 500;

/// mosquitto takes shorter times as this one.
const KEEP_ALIVE_SECS_MIN: i64 = 5;

/// As many as a name may have.
const NAME_BYTES_MAX: usize = 64;
