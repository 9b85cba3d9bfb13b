//! Text with placeholders, `${username}`, that what is known of a client is put into.

use super::AuthRequest;

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
                return Err(format!("'${{{behind}' lacks its '}}'"));
            };
            let is_claim = name.strip_prefix(CLAIMS).is_some_and(|path| !path.is_empty());
            if !(NAMES.contains(&name) || has_claims && is_claim) {
                return Err(format!("nothing stands for '${{{name}}}'"));
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

    pub fn names(&self, wanted: &str) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Name(name) if name == wanted))
    }
}

/// What stands for a name of [`NAMES`].
pub(super) fn value_of(request: &AuthRequest, name: &str) -> Option<String> {
    let certificate = request.certificate.as_deref();
    let alternative = |kind: &str| {
        let mut names = certificate?.alternative_names.iter();
        names.find_map(|name| name.strip_prefix(kind)).map(Into::into)
    };
    match name {
        "username" => request.username.clone(),
        "clientid" => Some(request.client_id.clone()),
        "password" => request.password.clone().and_then(|bytes| String::from_utf8(bytes).ok()),
        "peerhost" => Some(request.peer_host.clone()),
        "cert_common_name" => certificate.map(|own| own.common_name.clone()),
        "cert_subject" => certificate.map(|own| own.subject.clone()),
        "cert_dns" => alternative("DNS:"),
        "cert_email" => alternative("email:"),
        "cert_uri" => alternative("URI:"),
        "cert_ip" => alternative("IP:"),
        "cert_fingerprint" => certificate.map(|own| own.fingerprint_sha256.clone()),
        _ => None,
    }
    .filter(|value: &String| !value.is_empty())
}

/// A user name may be what the field of a CONNECT may be, and some text: names that were no text
/// in their certificate, or that break lines, are none.
pub(crate) fn is_name(name: &str) -> bool {
    let is_text = !name.contains(char::REPLACEMENT_CHARACTER);
    !name.trim().is_empty() && is_text && codec::check_name(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in() {
        let request = AuthRequest {
            username: Some("anna".into()),
            client_id: "c1".into(),
            certificate: Some(Box::new(net::CertificateInfo {
                alternative_names: vec!["DNS:a.example".into(), "email:a@b".into()],
                ..net::CertificateInfo::default()
            })),
            ..AuthRequest::default()
        };
        let fill = |text: &str| {
            let template = Template::parse(text, true).unwrap();
            template.fill(|name| value_of(&request, name))
        };
        assert_eq!(fill("${username}/$x/${clientid}"), Some("anna/$x/c1".into()));
        assert_eq!(fill("${cert_dns}:${cert_email}"), Some("a.example:a@b".into()));
        assert_eq!(fill("${cert_common_name}"), None, "an empty name is none");
        assert_eq!(fill("${claims.sub}"), None);
        let only = Template::parse("${claims.a.b}", true).unwrap();
        assert_eq!(only.only_claim(), Some("a.b"));
        for (text, what) in
            [("${user}", "'${user}'"), ("a${username", "lacks"), ("${claims.}", "'${claims.}'")]
        {
            let error = Template::parse(text, true).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
        assert!(Template::parse("${claims.sub}", false).is_err());
    }

    #[test]
    fn names_that_would_break_a_line_are_none() {
        assert!(is_name("anna b"));
        for name in ["", " ", "a\nb", "\u{fffd}", &"x".repeat(65_536)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
