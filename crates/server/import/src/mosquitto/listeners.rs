//! Listeners, with their TLS.

use crate::absolute;
use crate::document::Table;
use crate::report::Fate;

use super::Import;
use super::lines::{Lines, Options, Setting};

/// What is spoken on a listener.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Mqtt,
    WebSocket,
}

impl Import<'_> {
    pub(super) fn listener(&mut self, options: &Options, lines: &Lines) {
        let mut table = Table::new("[[listeners]]");
        let mut tls = Table::new("[listeners.tls]");
        if self.admits_nobody(options) {
            return;
        }
        let protocol = self.protocol(options);
        let has_tls = self.tls(options, &mut table, &mut tls);
        let is_psk = self.is_psk(options);
        let Some(protocol) = protocol.filter(|_| !is_psk) else { return };
        let url = self.url(options, protocol, has_tls);
        let at = options.list.first().map(|setting| setting.at.clone()).unwrap_or_default();
        let Some(url) = url else { return };
        table.set("url", url.as_str(), &at);
        self.own_rules(options, &url, &mut table);
        self.apply(options, &mut table);
        self.connections(options, &mut table);
        self.proxy(options);
        self.own_security(options, lines, &mut table);
        if has_tls {
            table.push(tls);
        }
        self.origins(options, protocol, &mut table);
        self.document.push(table);
        self.has_listener = true;
    }

    /// Without any listener the broker would serve this machine at port 1883.
    pub(super) fn at_least_one_listener(&mut self, lines: &Lines) {
        let is_refused = self.notes.iter().any(|note| note.fate == Fate::Error);
        if self.has_listener || is_refused {
            return;
        }
        let Some(first) = lines.listeners.first() else { return };
        let first = first.list.first();
        let detail = "no listener can be carried over: the broker would serve clients of this \
                      machine at port 1883";
        first.into_iter().for_each(|setting| self.note(setting, Fate::Error, detail));
    }

    fn origins(&mut self, options: &Options, protocol: Protocol, table: &mut Table) {
        let mut origins: Vec<toml::Value> = Vec::new();
        let mut at = None;
        for setting in options.all("websockets_origin") {
            if protocol != Protocol::WebSocket {
                self.note(setting, Fate::NotNeeded, "has no effect without WebSocket");
            } else if setting.value == "*" {
                let detail = "mosquitto compares it with what browsers send: name the web pages, \
                              such as https://example.org";
                self.note(setting, Fate::Error, detail);
            } else {
                origins.push(setting.value.as_str().into());
                at = Some(&setting.at);
                self.carried(setting, "listeners.websocket.origins");
            }
        }
        if let Some(at) = at {
            let mut websocket = Table::new("[listeners.websocket]");
            websocket.set("origins", origins, at);
            table.push(websocket);
        }
    }

    /// mosquitto asks for no certificate, and refuses clients without one.
    fn admits_nobody(&mut self, options: &Options) -> bool {
        let has_tls = options.has("certfile") && options.has("keyfile");
        if !has_tls || options.is_true("require_certificate") {
            return false;
        }
        let names = ["use_identity_as_username", "use_subject_as_username"];
        let Some(setting) = names.iter().find(|name| options.is_true(name)) else { return false };
        let detail = "this listener is left out: mosquitto refuses all of its clients, because it \
                      requests no certificates. Set require_certificate to true";
        let setting = options.get(setting);
        setting.into_iter().for_each(|setting| self.note(setting, Fate::Differs, detail));
        true
    }

    fn protocol(&mut self, options: &Options) -> Option<Protocol> {
        let Some(setting) = options.get("protocol") else { return Some(Protocol::Mqtt) };
        match setting.value.as_str() {
            "mqtt" => self.carried(setting, "the scheme of url"),
            "websockets" => {
                self.carried(setting, "the scheme of url");
                return Some(Protocol::WebSocket);
            }
            "http_api" => {
                let detail = "use the management API: set api.listen";
                self.note(setting, Fate::Unsupported, detail);
                return None;
            }
            other => {
                let detail = format!("must be mqtt or websockets, got '{other}'");
                self.note(setting, Fate::Error, detail);
            }
        }
        Some(Protocol::Mqtt)
    }

    /// A listener with keys that clients know would be open to all without them.
    fn is_psk(&mut self, options: &Options) -> bool {
        let Some(setting) = options.get("psk_hint") else { return false };
        let detail = "this listener is left out: there is no TLS with pre-shared keys. Give the \
                      clients certificates or passwords";
        self.note(setting, Fate::Rights, detail);
        true
    }

    fn url(&mut self, options: &Options, protocol: Protocol, has_tls: bool) -> Option<String> {
        let scheme = match (protocol, has_tls) {
            (Protocol::Mqtt, false) => "tcp",
            (Protocol::Mqtt, true) => "tls",
            (Protocol::WebSocket, false) => "ws",
            (Protocol::WebSocket, true) => "wss",
        };
        let (stated, bind) = match options.get("listener") {
            Some(setting) => {
                // What follows the address is ignored by mosquitto, and so is a comment.
                let mut words = setting.value.split_whitespace();
                let port = words.next().unwrap_or_default();
                let bind = words.next().filter(|word| !word.starts_with('#'));
                (Some((setting, port)), bind.unwrap_or_default())
            }
            None => (options.get("port").map(|setting| (setting, &*setting.value)), ""),
        };
        let bind = match (bind, options.get("bind_address")) {
            ("", Some(setting)) => {
                self.carried(setting, "the address of url");
                &*setting.value
            }
            (bind, other) => {
                if let Some(setting) = other {
                    self.note(setting, Fate::Error, "the listener has an address already");
                }
                bind
            }
        };
        let number = stated.map_or(Ok(1883), |(_, port)| port.parse::<u16>());
        if let Some((setting, _)) = stated {
            match &number {
                Ok(_) => self.carried(setting, "listeners.url"),
                Err(_) => self.note(setting, Fate::Error, "must be a port from 0 to 65535"),
            }
        }
        match (number.ok()?, bind, stated) {
            (0, "", Some((setting, _))) => {
                self.note(setting, Fate::Error, "port 0 needs the path of a socket");
                None
            }
            (0, path, Some((setting, _))) => {
                self.unix(options, protocol, has_tls);
                let whole = absolute(self.source, path);
                let whole = whole.to_string_lossy();
                if whole != path {
                    let detail = format!(
                        "the socket is {whole}: mosquitto takes the path as \
                                          relative to the directory it was started in"
                    );
                    self.note(setting, Fate::Differs, detail);
                }
                Some(format!("unix://{whole}"))
            }
            (port, bind, _) => {
                let host = self.host(options, bind)?;
                Some(format!("{scheme}://{host}:{port}"))
            }
        }
    }

    /// A socket file has neither WebSocket nor TLS here.
    fn unix(&mut self, options: &Options, protocol: Protocol, has_tls: bool) {
        if let Some(setting) = options.get("protocol").filter(|_| protocol == Protocol::WebSocket) {
            self.note(setting, Fate::Error, "a Unix socket takes MQTT without WebSocket only");
        }
        if let Some(setting) = options.get("certfile").filter(|_| has_tls) {
            self.note(setting, Fate::Error, "a Unix socket takes MQTT without TLS only");
        }
    }

    fn host(&mut self, options: &Options, bind: &str) -> Option<String> {
        let domain = options.get("socket_domain");
        if let Some(setting) = domain {
            match setting.value.as_str() {
                "ipv4" | "ipv6" => self.carried(setting, "the address of url"),
                other => {
                    let detail = format!("must be ipv4 or ipv6, got '{other}'");
                    self.note(setting, Fate::Error, detail);
                }
            }
        }
        let bare = bind.trim_start_matches('[').trim_end_matches(']');
        let setting = options.any(&["listener", "bind_address"]);
        match (bare, domain.map(|setting| setting.value.as_str())) {
            ("", Some("ipv4")) => Some("0.0.0.0".into()),
            ("", Some("ipv6")) => Some("[::]".into()),
            ("", _) => Some("*".into()),
            ("localhost", Some("ipv6")) => Some("[::1]".into()),
            ("localhost", _) => Some("localhost".into()),
            (address, _) => match (address.parse::<std::net::IpAddr>(), setting) {
                (Ok(std::net::IpAddr::V4(_)), _) => Some(address.into()),
                (Ok(std::net::IpAddr::V6(_)), _) => Some(format!("[{address}]")),
                (Err(_), Some(setting)) => {
                    let detail = format!("'{address}' must be an address of this machine");
                    self.note(setting, Fate::Error, detail);
                    None
                }
                (Err(_), None) => None,
            },
        }
    }

    fn connections(&mut self, options: &Options, table: &mut Table) {
        let Some(setting) = options.get("max_connections") else { return };
        match setting.value.parse::<i64>() {
            Ok(count) if count > 0 => {
                table.set("connections_max", count, &setting.at);
                self.carried(setting, "listeners.connections_max");
            }
            _ => self.note(setting, Fate::NotNeeded, "without a limit by default"),
        }
    }

    fn proxy(&mut self, options: &Options) {
        let Some(setting) = options.get("enable_proxy_protocol") else { return };
        match setting.value.as_str() {
            "0" => self.note(setting, Fate::NotNeeded, "off by default"),
            _ => {
                let detail = "set proxy_protocol = true and trusted_proxies, the addresses of the \
                              proxies, on this listener";
                self.note(setting, Fate::Rights, detail);
            }
        }
    }

    /// False: the listener has no TLS.
    fn tls(&mut self, options: &Options, table: &mut Table, tls: &mut Table) -> bool {
        let (certificate, key) = (options.get("certfile"), options.get("keyfile"));
        let (Some(certificate), Some(key)) = (certificate, key) else {
            for setting in [certificate, key].into_iter().flatten() {
                self.note(setting, Fate::Error, "certfile and keyfile need each other");
            }
            self.without_tls(options);
            return false;
        };
        self.file(certificate, tls, "certificate");
        self.file(key, tls, "key");
        let is_required = options.is_true("require_certificate");
        self.authorities(options, tls, is_required);
        if let Some(setting) = options.get("require_certificate") {
            self.carried(setting, "listeners.tls.client_auth");
            if is_required {
                tls.set("client_auth", "require", &setting.at);
            }
        }
        self.identity(options, table, is_required);
        match options.get("crlfile") {
            Some(setting) if is_required => self.file(setting, tls, "crl"),
            Some(setting) => {
                self.note(setting, Fate::NotNeeded, "no client certificate is requested");
            }
            None => {}
        }
        if let Some(setting) = options.get("tls_version") {
            match setting.value.as_str() {
                "tlsv1.3" => {
                    tls.set("min_version", "1.3", &setting.at);
                    self.carried(setting, "listeners.tls.min_version");
                }
                "tlsv1.2" => self.carried(setting, "listeners.tls.min_version"),
                "tlsv1.1" | "tlsv1" => {
                    self.note(setting, Fate::Differs, "TLS 1.2 is the oldest version");
                }
                other => self.note(setting, Fate::Error, format!("unknown version '{other}'")),
            }
        }
        true
    }

    /// Options that have an effect with a certificate only.
    fn without_tls(&mut self, options: &Options) {
        const TLS: [&str; 5] =
            ["cafile", "capath", "crlfile", "tls_version", "require_certificate"];
        let identity = ["use_identity_as_username", "use_subject_as_username"];
        for name in TLS.iter().chain(&identity) {
            if let Some(setting) = options.get(name) {
                let detail = "has no effect without certfile and keyfile";
                self.note(setting, Fate::NotNeeded, detail);
            }
        }
    }

    fn authorities(&mut self, options: &Options, tls: &mut Table, is_required: bool) {
        match options.get("cafile") {
            Some(setting) if is_required => self.file(setting, tls, "client_ca"),
            Some(setting) => self.file(setting, tls, "chain"),
            None => {}
        }
        let Some(setting) = options.get("capath") else { return };
        let needs = is_required && !options.has("cafile");
        let detail = "directories of authorities are not read: put their certificates into one \
                      file, and name it as cafile";
        let fate = if needs { Fate::Error } else { Fate::Unsupported };
        self.note(setting, fate, detail);
    }

    fn identity(&mut self, options: &Options, table: &mut Table, is_required: bool) {
        let names = [("use_identity_as_username", "cn"), ("use_subject_as_username", "dn")];
        for (name, field) in names {
            let Some(setting) = options.get(name) else { continue };
            match setting.is_true() && is_required {
                true => {
                    table.set("identity_from_certificate", field, &setting.at);
                    self.carried(setting, "listeners.identity_from_certificate");
                }
                false => self.note(setting, Fate::NotNeeded, "has no effect in mosquitto"),
            }
        }
    }

    fn file(&mut self, setting: &Setting, table: &mut Table, key: &str) {
        let path = absolute(self.source, &setting.value).to_string_lossy().into_owned();
        table.set(key, path, &setting.at);
        self.carried(setting, &format!("listeners.tls.{key}"));
    }
}
