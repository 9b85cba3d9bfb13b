//! What placeholders stand for, of a client that logs in.

use super::AuthRequest;

/// What stands for a name of [`config::template::NAMES`].
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
pub fn is_name(name: &str) -> bool {
    let is_text = !name.contains(char::REPLACEMENT_CHARACTER);
    !name.trim().is_empty() && is_text && codec::check_name(name).is_ok()
}

#[cfg(test)]
mod tests {
    use config::template::{Placeholders, Template};

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
            let template = Template::parse(text, Placeholders::Token).unwrap();
            template.fill(|name| value_of(&request, name))
        };
        assert_eq!(fill("${username}/$x/${clientid}"), Some("anna/$x/c1".into()));
        assert_eq!(fill("${cert_dns}:${cert_email}"), Some("a.example:a@b".into()));
        assert_eq!(fill("${cert_common_name}"), None, "an empty name is none");
        assert_eq!(fill("${claims.sub}"), None);
        let only = Template::parse("${claims.a.b}", Placeholders::Token).unwrap();
        assert_eq!(only.only_claim(), Some("a.b"));
        for (text, what) in [
            ("${user}", "'${user}'"),
            ("a${username", "no closing"),
            ("${claims.}", "'${claims.}'"),
        ] {
            let error = Template::parse(text, Placeholders::Token).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
        assert!(Template::parse("${claims.sub}", Placeholders::Login).is_err());
    }

    #[test]
    fn names_that_would_break_a_line_are_none() {
        assert!(is_name("anna b"));
        for name in ["", " ", "a\nb", "\u{fffd}", &"x".repeat(65_536)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
