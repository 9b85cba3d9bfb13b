//! Text with placeholders, `${username}`, that what is known of a client is put into.

/// A template, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(String),
}

/// What a client, or its certificate, can fill in; those of EMQX, and more of certificates.
pub const NAMES: [&str; 11] = [
    "username",
    "clientid",
    "password",
    "peerhost",
    "cert_common_name",
    "cert_subject",
    "cert_dns",
    "cert_email",
    "cert_uri",
    "cert_ip",
    "cert_fingerprint",
];

/// The claims of a token are placeholders, too: `${claims.sub}`.
pub const CLAIMS: &str = "claims.";

/// What a client wants to do, and who it is; those of EMQX, and the namespace.
pub const ACTION_NAMES: [&str; 9] = [
    "username",
    "clientid",
    "peerhost",
    "proto_name",
    "action",
    "topic",
    "qos",
    "retain",
    "namespace",
];

/// Attributes of a client that acts are placeholders, too: `${client_attrs.site}`.
pub const ATTRIBUTES: &str = "client_attrs.";

/// What placeholders may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholders {
    /// A client that logs in ([`NAMES`]).
    Login,
    /// One that does so with a token, whose claims are known.
    Token,
    /// One that publishes or subscribes ([`ACTION_NAMES`]).
    Action,
}

impl Placeholders {
    fn knows(self, name: &str) -> bool {
        let is_of = |prefix| name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
        match self {
            Self::Login => NAMES.contains(&name),
            Self::Token => NAMES.contains(&name) || is_of(CLAIMS),
            Self::Action => ACTION_NAMES.contains(&name) || is_of(ATTRIBUTES),
        }
    }
}

impl Template {
    /// Takes a text apart.
    ///
    /// # Errors
    ///
    /// A placeholder that is not closed, or that nothing stands for.
    pub fn parse(text: &str, known: Placeholders) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let Some((name, behind)) = behind.split_once('}') else {
                return Err(format!("'${{{behind}' has no closing '}}'"));
            };
            if !known.knows(name) {
                return Err(format!("unknown placeholder '${{{name}}}'"));
            }
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            parts.push(Part::Name(name.into()));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self(parts))
    }

    /// The text; None: something that it takes is not there.
    pub fn fill(&self, value: impl Fn(&str) -> Option<String>) -> Option<String> {
        let part = |part: &Part| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Name(name) => value(name),
        };
        self.0.iter().map(part).collect()
    }

    /// The text, with nothing in place of what is not there.
    pub fn fill_or_empty(&self, value: impl Fn(&str) -> Option<String>) -> String {
        self.fill(|name| Some(value(name).unwrap_or_default())).unwrap_or_default()
    }

    /// The claim, if the template is nothing but one.
    pub fn only_claim(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Name(name)] => name.strip_prefix(CLAIMS),
            _ => None,
        }
    }

    /// The text, if it has no placeholder.
    pub fn plain(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub fn names(&self, wanted: &str) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Name(name) if name == wanted))
    }
}
