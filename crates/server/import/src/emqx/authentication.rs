//! The chain of authenticators.

use crate::NewFile;
use crate::document::Table;
use crate::report::Fate;

use super::Import;
use super::table::{self, Form};
use crate::hocon::Node;

impl Import<'_> {
    pub(super) fn chain(&mut self, chain: &Node) {
        for (index, node) in chain.items().iter().enumerate() {
            let option = format!("authentication.{}", index + 1);
            if !self.is_enabled(&option, node) {
                continue;
            }
            let text = |key: &str| node.get(key).and_then(Node::text).unwrap_or_default();
            match (text("mechanism"), text("backend")) {
                ("password_based", "http") => self.http(&option, node),
                ("jwt", _) => self.jwt(&option, node),
                (mechanism, backend) => {
                    self.is_closed = true;
                    let detail = no_provider(mechanism, backend);
                    self.note(node.line, &option, Fate::Rights, detail);
                }
            }
        }
    }

    /// A name that no other provider has.
    fn provider(&mut self, kind: &str, node: &Node) -> Table {
        let count = self.providers.iter().filter(|name| name.starts_with(kind)).count();
        let name = if count == 0 { kind.to_owned() } else { format!("{kind}-{}", count + 1) };
        let mut table = Table::new("[[authentication]]");
        let at = self.place(node.line);
        table.set("name", name.as_str(), &at);
        table.set("kind", kind, &at);
        self.providers.push(name);
        table
    }

    fn http(&mut self, option: &str, node: &Node) {
        let mut table = self.provider("http", node);
        self.note(node.line, option, Fate::Carried, "[[authentication]] with kind = \"http\"");
        self.request(option, node, &mut table);
        self.document.push(table);
    }

    /// How a service is asked.
    pub(super) fn request(&mut self, option: &str, node: &Node, table: &mut Table) {
        self.apply(option, node, table::HTTP, table);
        match node.get("url").and_then(|it| Some((it, it.text()?))) {
            Some((at, url)) => table.set("url", url, &self.place(at.line)),
            None => self.note(node.line, option, Fate::Error, "needs a url"),
        }
        let method = node.get("method").and_then(Node::text).unwrap_or("post");
        if !matches!(method, "post" | "get") {
            self.note(node.line, option, Fate::Error, "the method must be post or get");
        }
        table.set("method", method, &self.place(node.line));
        let mut headers = Vec::new();
        for (name, value) in node.get("headers").map(Node::entries).unwrap_or_default() {
            let value = value.text().unwrap_or_default();
            let is_form = value.starts_with("application/x-www-form-urlencoded");
            match name.to_lowercase().as_str() {
                "content-type" if is_form => {
                    table.set("body_form", "form", &self.place(node.line));
                }
                // The broker sends these itself.
                "content-type" | "accept" | "cache-control" | "connection" | "keep-alive" => {}
                _ => headers.push(format!("{name}: {value}")),
            }
        }
        if !headers.is_empty() {
            table.set("headers", headers, &self.place(node.line));
        }
        let fields = node.get("body").map(Node::entries).unwrap_or_default();
        let field = |(name, value): &(String, Node)| Some(format!("{name}={}", value.text()?));
        let body: Vec<String> = fields.iter().filter_map(field).collect();
        if body.len() < fields.len() {
            self.note(node.line, option, Fate::Error, "the fields of the body must be texts");
        }
        if !body.is_empty() {
            table.set("body", body, &self.place(node.line));
        }
        self.service_tls(option, node, table);
    }

    fn service_tls(&mut self, option: &str, node: &Node, table: &mut Table) {
        let is_https = ["url", "endpoint"].iter().any(|key| {
            node.get(key).and_then(Node::text).is_some_and(|url| url.starts_with("https"))
        });
        if let Some(file) = node.get("ssl.cacertfile").filter(|_| is_https) {
            let path = self.path(file.text().unwrap_or_default()).to_string_lossy().into_owned();
            table.set("ca", path, &self.place(file.line));
        }
        if let Some(verify) = node.get("ssl.verify").filter(|_| is_https) {
            let option = format!("{option}.ssl.verify");
            match verify.text() {
                Some("verify_peer") => {
                    self.note(verify.line, &option, Fate::NotNeeded, "always so");
                }
                _ => {
                    let detail = "the certificate of the service is always verified: name its \
                                  authority with ca";
                    self.note(verify.line, &option, Fate::Rights, detail);
                }
            }
        }
    }

    fn jwt(&mut self, option: &str, node: &Node) {
        let text = |key: &str| node.get(key).and_then(Node::text);
        let mut table = self.provider("jwt", node);
        self.apply(option, node, table::JWT, &mut table);
        self.note(node.line, option, Fate::Carried, "[[authentication]] with kind = \"jwt\"");
        let at = self.place(node.line);
        // EMQX takes tokens without an end.
        table.set("expiry_required", false, &at);
        if text("use_jwks") == Some("true") {
            self.jwks(option, node, &mut table);
        } else if text("algorithm") == Some("public-key") {
            self.public_key(option, node, &mut table);
        } else {
            self.secret(option, node, &mut table);
        }
        let has_name = self.claims(option, node, &mut table);
        self.name_of_token(option, node, has_name, &mut table);
        if let Some(name) = text("acl_claim_name").filter(|name| *name != "acl") {
            table.set("acl_claim_name", name, &at);
        }
        self.service_tls(option, node, &mut table);
        self.document.push(table);
    }

    /// EMQX leaves the username as the client states it.
    fn name_of_token(&mut self, option: &str, node: &Node, has_name: bool, table: &mut Table) {
        let at = self.place(node.line);
        let from = node.get("from");
        let in_username = match from.and_then(Node::text).unwrap_or("password") {
            "password" => false,
            "username" => true,
            other => {
                let line = from.map_or(node.line, |from| from.line);
                let detail = format!("must be password or username, got '{other}'");
                return self.note(line, &format!("{option}.from"), Fate::Error, detail);
            }
        };
        if in_username {
            table.set("from", "username", &at);
            let bytes = TOKEN_BYTES_MAX;
            self.document.set("limits", "username_bytes_max", bytes, &at);
        }
        match has_name && !in_username {
            true => table.set("username", "${username}", &at),
            false => {
                let detail = "the username is the claim `sub` of the token, because no claim \
                              verifies the one that a client states; EMQX takes that one";
                self.note(node.line, option, Fate::Differs, detail);
            }
        }
    }

    fn jwks(&mut self, option: &str, node: &Node, table: &mut Table) {
        let Some(endpoint) = node.get("endpoint").and_then(Node::text) else {
            return self.note(node.line, option, Fate::Error, "needs an endpoint");
        };
        table.set("jwks_url", endpoint, &self.place(node.line));
        if let Some(interval) = node.get("refresh_interval") {
            let option = format!("{option}.refresh_interval");
            // A number alone is in seconds here.
            let seconds = interval.text().and_then(|text| text.parse::<i64>().ok());
            let value = match seconds {
                Some(seconds) => Some(seconds.into()),
                None => self.value(&option, interval, Form::Seconds, "604800"),
            };
            if let Some(value) = value {
                table.set("jwks_refresh_secs", value, &self.place(interval.line));
            }
        }
    }

    fn public_key(&mut self, option: &str, node: &Node, table: &mut Table) {
        let Some(key) = node.get("public_key").and_then(Node::text) else {
            return self.note(node.line, option, Fate::Error, "needs a public_key");
        };
        let at = self.place(node.line);
        if !key.contains("-----BEGIN") {
            let path = self.path(key).to_string_lossy().into_owned();
            return table.set("key_file", path, &at);
        }
        let name = format!("jwt-{}.pem", self.new.len());
        table.set("key_file", name.as_str(), &at);
        self.new.push(NewFile::open(name, key));
    }

    fn secret(&mut self, option: &str, node: &Node, table: &mut Table) {
        let Some(secret) = node.get("secret").and_then(Node::text) else {
            return self.note(node.line, option, Fate::Error, "needs a secret");
        };
        let is_base64 = node.get("secret_base64_encoded").and_then(Node::text) == Some("true");
        if is_base64 {
            table.set("secret_base64_encoded", true, &self.place(node.line));
        }
        if let Some(path) = secret.strip_prefix("file://") {
            let path = self.path(path).to_string_lossy().into_owned();
            return table.set("secret_file", path, &self.place(node.line));
        }
        let option = format!("{option}.secret");
        let bare = secret.trim_end_matches('=');
        let is_plain = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'+' | b'/');
        let is_whole = secret.len().is_multiple_of(4) && secret.len() - bare.len() < 3;
        if is_base64 && !(is_whole && bare.bytes().all(is_plain)) {
            let detail = "must be base64 with padding, because secret_base64_encoded is true";
            return self.note(node.line, &option, Fate::Error, detail);
        }
        // Four characters of base64 are three bytes.
        let bytes = if is_base64 { bare.len() * 3 / 4 } else { secret.len() };
        if bytes < SECRET_BYTES_MIN {
            let detail = format!("a secret must have at least {SECRET_BYTES_MIN} bytes");
            return self.note(node.line, &option, Fate::Error, detail);
        }
        let name = format!("jwt-{}.secret", self.new.len());
        table.set("secret_file", name.as_str(), &self.place(node.line));
        self.new.push(NewFile::secret(name, secret));
    }

    /// True: one of them is the username that the client states.
    fn claims(&mut self, option: &str, node: &Node, table: &mut Table) -> bool {
        let Some(claims) = node.get("verify_claims") else { return false };
        let mut texts = Vec::new();
        for (name, value) in claims.entries() {
            match value.text() {
                Some(value) => texts.push(format!("{name}={value}")),
                None => {
                    let detail = "a claim must be a text";
                    self.note(claims.line, option, Fate::Error, detail);
                }
            }
        }
        // The other form is a list of objects.
        for item in claims.items().iter().filter(|item| *item != claims) {
            let text = |key: &str| item.get(key).and_then(Node::text);
            match (text("name"), text("value")) {
                (Some(name), Some(value)) => texts.push(format!("{name}={value}")),
                _ => self.note(item.line, option, Fate::Error, "a claim needs name and value"),
            }
        }
        let has_name = texts.iter().any(|text| text.contains("${username}"));
        if !texts.is_empty() {
            table.set("claims", texts, &self.place(claims.line));
        }
        has_name
    }
}

/// What to do instead.
fn no_provider(mechanism: &str, backend: &str) -> String {
    match (mechanism, backend) {
        ("password_based", "built_in_database") => {
            "users of EMQX's database are not read: export them (`emqx ctl data export`), and \
             write auth.password_file. It takes bcrypt hashes as they are"
                .into()
        }
        ("scram", _) => {
            "users of EMQX's database are not read: make them with `quelea passwd --scram`".into()
        }
        ("password_based", _) => format!(
            "{backend} is not asked: answer [[authentication]] with kind = \"http\" from it, or \
             export the users into auth.password_file"
        ),
        _ => format!("{mechanism} is not supported: see docs/use/authentication.md"),
    }
}

/// As many as a password may have, in which tokens are otherwise.
const TOKEN_BYTES_MAX: i64 = 16 << 10;

/// As many as `secret_file` needs.
const SECRET_BYTES_MIN: usize = 32;
