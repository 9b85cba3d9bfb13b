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

impl Template {
    /// Takes a text apart.
    ///
    /// # Errors
    ///
    /// A placeholder that is not closed, or that nothing stands for.
    pub fn parse(text: &str, has_claims: bool) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let Some((name, behind)) = behind.split_once('}') else {
                return Err(format!("'${{{behind}' has no closing '}}'"));
            };
            let is_claim = name.strip_prefix(CLAIMS).is_some_and(|path| !path.is_empty());
            if !(NAMES.contains(&name) || has_claims && is_claim) {
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
