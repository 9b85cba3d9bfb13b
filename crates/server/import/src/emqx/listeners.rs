//! Listeners of EMQX.

use crate::document::Table;
use crate::report::{Fate, Place};

use super::Import;
use super::table;
use super::values;
use crate::hocon::{Node, Value};

impl Import<'_> {
    pub(super) fn listeners(&mut self, root: &Node) {
        let all = root.get("listeners");
        for (kind, group) in all.map(Node::entries).unwrap_or_default() {
            if !matches!(group.value, Value::Object(_)) {
                let detail = "must be an object with the names of listeners";
                self.note(group.line, &format!("listeners.{kind}"), Fate::Error, detail);
            }
            for (name, node) in group.entries() {
                let option = format!("listeners.{kind}.{name}");
                if let Some(text) = node.text() {
                    // What EMQX writes when its dashboard deletes a listener that a file defines.
                    match text {
                        "marked_for_deletion" => {
                            self.note(node.line, &option, Fate::NotNeeded, "it is deleted");
                        }
                        _ => {
                            let detail = format!("must be an object, got '{text}'");
                            self.note(node.line, &option, Fate::Error, detail);
                        }
                    }
                    continue;
                }
                match kind.as_str() {
                    "tcp" | "ssl" | "ws" | "wss" => self.emqx_listener(&option, kind, node),
                    "quic" => self.note(
                        node.line,
                        &option,
                        Fate::Unsupported,
                        "left out: there is no MQTT over QUIC",
                    ),
                    other => {
                        let detail = format!("unknown kind '{other}'");
                        self.note(node.line, &option, Fate::Error, detail);
                    }
                }
            }
        }
        // EMQX starts these unless they are disabled.
        for (kind, scheme, port) in [("tcp", "tcp", 1883), ("ws", "ws", 8083)] {
            if all.and_then(|all| all.get(&format!("{kind}.default"))).is_none() {
                let mut table = Table::new("[[listeners]]");
                let path = if kind == "ws" { "/mqtt" } else { "" };
                table.set("url", format!("{scheme}://*:{port}{path}"), &Place::default());
                self.who(&mut table, &Place::default());
                self.document.push(table);
                self.has_listener = true;
            }
        }
        for (kind, port) in [("ssl", 8883), ("wss", 8084)] {
            if all.and_then(|all| all.get(&format!("{kind}.default"))).is_none() {
                let detail = format!(
                    "left out: EMQX listens at {port} with a certificate for tests unless it is \
                     disabled"
                );
                let option = format!("listeners.{kind}.default");
                self.note(0, &option, Fate::Differs, detail);
            }
        }
        if !self.has_listener {
            let detail = "no listener can be carried over: the broker would serve clients of this \
                          machine at port 1883";
            self.note(all.map_or(0, |all| all.line), "listeners", Fate::Error, detail);
        }
    }

    fn emqx_listener(&mut self, option: &str, kind: &str, node: &Node) {
        for key in ["enable", "enabled"] {
            let Some(flag) = node.get(key) else { continue };
            match values::flag(flag.text().unwrap_or_default()) {
                Ok(true) => {}
                Ok(false) => {
                    return self.note(node.line, option, Fate::NotNeeded, "it is disabled");
                }
                Err(detail) => {
                    let option = format!("{option}.{key}");
                    return self.note(flag.line, &option, Fate::Error, detail);
                }
            }
        }
        let mut table = Table::new("[[listeners]]");
        let Some(url) = self.bind(option, kind, node) else { return };
        let at = self.place(node.line);
        table.set("url", url, &at);
        table.set("name", option.trim_start_matches("listeners."), &at);
        self.note(node.line, option, Fate::Carried, "listeners.url");
        self.apply(option, node, table::LISTENER, &mut table);
        self.who(&mut table, &at);
        if !self.listener_access(option, node) {
            return;
        }
        if kind.starts_with("ws") {
            self.origins(option, node, &mut table);
        }
        if matches!(kind, "ssl" | "wss") && !self.ssl(option, node, &mut table) {
            return;
        }
        self.document.push(table);
        self.has_listener = true;
    }

    fn bind(&mut self, option: &str, kind: &str, node: &Node) -> Option<String> {
        let (scheme, port) = match kind {
            "ssl" => ("tls", 8883),
            "ws" => ("ws", 8083),
            "wss" => ("wss", 8084),
            _ => ("tcp", 1883),
        };
        let default = format!("0.0.0.0:{port}");
        let bind = node.get("bind").map_or(Some(&*default), Node::text).unwrap_or_default();
        let (host, port) = bind.rsplit_once(':').unwrap_or(("", bind));
        let Ok(port) = port.parse::<u16>() else {
            let detail = format!("must be address:port or a port, got '{bind}'");
            self.note(node.line, &format!("{option}.bind"), Fate::Error, detail);
            return None;
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let host = match bare {
            "" => "*".to_owned(),
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let path = match kind.starts_with("ws") {
            true => node.get("websocket.mqtt_path").map_or(Some("/mqtt"), Node::text),
            false => None,
        };
        Some(format!("{scheme}://{host}:{port}{}", path.unwrap_or_default()))
    }

    /// Who comes in: without providers everybody, as in EMQX.
    fn who(&mut self, table: &mut Table, at: &Place) {
        let is_open = self.providers.is_empty() && !self.is_closed;
        table.set("allow_anonymous", is_open, &Place::default());
        if is_open {
            let detail = "true, as in EMQX: nothing checks clients. Usernames are not verified, \
                          and are ignored";
            self.note(at.line, "authentication", Fate::Differs, detail);
        }
    }

    /// False: the listener cannot be as closed as it was, and is left out.
    fn listener_access(&mut self, option: &str, node: &Node) -> bool {
        let mut is_whole = true;
        if let Some(rules) = node.get("access_rules") {
            let option = format!("{option}.access_rules");
            let is_open = rules.items().iter().all(|rule| rule.text() == Some("allow all"));
            if is_open {
                self.note(rules.line, &option, Fate::NotNeeded, "always so");
            } else {
                is_whole = false;
                let detail = "the listener is left out: use a firewall, bans by network, or \
                              ordered rules with addresses";
                self.note(rules.line, &option, Fate::Rights, detail);
            }
        }
        if let Some(chain) = node.get("authentication") {
            is_whole = false;
            let detail = "the listener is left out: write its providers as [[authentication]], and \
                          name them in `authentication` of the listener";
            self.note(chain.line, &format!("{option}.authentication"), Fate::Rights, detail);
        }
        if let Some(node) = node.get("enable_authn") {
            let option = format!("{option}.enable_authn");
            match node.text().unwrap_or_default() {
                "true" | "quick_deny_anonymous" => {
                    self.note(node.line, &option, Fate::Carried, "listeners.authentication");
                }
                _ => {
                    is_whole = false;
                    let detail = "the listener is left out: all listeners check clients";
                    self.note(node.line, &option, Fate::Rights, detail);
                }
            }
        }
        is_whole
    }

    fn origins(&mut self, option: &str, node: &Node, table: &mut Table) {
        for key in ["mqtt_path", "check_origin_enable", "check_origins"] {
            let path = format!("websocket.{key}");
            if let Some(node) = node.get(&path) {
                let option = format!("{option}.{path}");
                self.note(node.line, &option, Fate::Carried, "listeners.websocket.origins, url");
            }
        }
        let is_checked = node.get("websocket.check_origin_enable").and_then(Node::text);
        let Some(list) = node.get("websocket.check_origins").filter(|_| is_checked == Some("true"))
        else {
            return;
        };
        let texts = list.items().iter().filter_map(Node::text).flat_map(|it| it.split(','));
        let origins: Vec<toml::Value> = texts.map(|it| it.trim().into()).collect();
        let mut websocket = Table::new("[listeners.websocket]");
        websocket.set("origins", origins, &self.place(list.line));
        table.push(websocket);
    }

    /// False: it cannot be served.
    fn ssl(&mut self, option: &str, node: &Node, table: &mut Table) -> bool {
        let mut tls = Table::new("[listeners.tls]");
        let get = |key: &str| node.get(&format!("ssl_options.{key}"));
        let (Some(certificate), Some(key)) = (get("certfile"), get("keyfile")) else {
            let detail = "left out: without certfile and keyfile EMQX uses a certificate for tests";
            self.note(node.line, option, Fate::Differs, detail);
            return false;
        };
        for (file, key) in [(certificate, "certificate"), (key, "key")] {
            self.tls_file(option, file, key, &mut tls);
        }
        let verifies = get("verify").and_then(Node::text) == Some("verify_peer");
        let requires = get("fail_if_no_peer_cert").and_then(Node::text) == Some("true");
        if let Some(file) = get("cacertfile") {
            self.tls_file(option, file, if verifies { "client_ca" } else { "chain" }, &mut tls);
        }
        for key in ["verify", "fail_if_no_peer_cert"] {
            let Some(node) = get(key) else { continue };
            let option = format!("{option}.ssl_options.{key}");
            self.note(node.line, &option, Fate::Carried, "listeners.tls.client_auth");
        }
        if verifies {
            let word = if requires { "require" } else { "optional" };
            tls.set("client_auth", word, &self.place(get("verify").map_or(0, |it| it.line)));
            if let Some((field, at)) = &self.certificate_field {
                table.set("identity_from_certificate", *field, at);
            }
        }
        self.tls_versions(option, get("versions"), &mut tls);
        table.push(tls);
        true
    }

    fn tls_versions(&mut self, option: &str, versions: Option<&Node>, tls: &mut Table) {
        let Some(versions) = versions else { return };
        let has = |version: &str| versions.items().iter().any(|it| it.text() == Some(version));
        let option = format!("{option}.ssl_options.versions");
        if has("tlsv1.3") && !has("tlsv1.2") {
            tls.set("min_version", "1.3", &self.place(versions.line));
        }
        self.note(versions.line, &option, Fate::Carried, "listeners.tls.min_version");
    }

    fn tls_file(&mut self, option: &str, node: &Node, key: &str, tls: &mut Table) {
        let text = node.text().unwrap_or_default();
        let name = match key {
            "certificate" => "certfile",
            "key" => "keyfile",
            _ => "cacertfile",
        };
        let option = format!("{option}.ssl_options.{name}");
        if text.contains("-----BEGIN") {
            let detail = "a certificate in the text cannot be imported: write it into a file";
            return self.note(node.line, &option, Fate::Error, detail);
        }
        let path = self.path(text).to_string_lossy().into_owned();
        tls.set(key, path, &self.place(node.line));
        self.note(node.line, &option, Fate::Carried, format!("listeners.tls.{key}"));
    }

    /// An option that is on unless it says `false`.
    pub(super) fn is_enabled(&mut self, option: &str, node: &Node) -> bool {
        let Some(flag) = node.get("enable") else { return true };
        let option = format!("{option}.enable");
        match values::flag(flag.text().unwrap_or_default()) {
            Ok(true) => true,
            Ok(false) => {
                self.note(flag.line, &option, Fate::NotNeeded, "it is disabled");
                false
            }
            Err(detail) => {
                self.note(flag.line, &option, Fate::Error, detail);
                false
            }
        }
    }
}
