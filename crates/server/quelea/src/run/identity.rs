//! Names of clients: from certificates, and made up by the server.

use std::fmt::Write as _;

use broker::{Name, Shared};
use net::{CertificateInfo, PeerInfo};

use config::CertificateIdentity;

/// A client id that no other client has (MQTT-3.1.3-6), in the form that mosquitto gives them.
/// Its session is in this cell.
pub(super) fn assigned_client_id(shared: &Shared) -> String {
    loop {
        let id = random_client_id();
        if shared.homes.is_own(shared.place_of_client(Name::first(&id))) {
            return id;
        }
    }
}

fn random_client_id() -> String {
    let random: [u8; 16] = base::random();
    let mut id = String::from("auto");
    for (place, byte) in random.iter().enumerate() {
        if matches!(place, 0 | 4 | 6 | 8 | 10) {
            id.push('-');
        }
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// A checked certificate that does not have the name that its listener takes from certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nameless;

/// The user name that a client's certificate stands for. None: its listener does not take names
/// from certificates, or it has shown none.
pub(super) fn of_certificate(
    peer: &PeerInfo,
    identity: CertificateIdentity,
) -> Result<Option<String>, Nameless> {
    match peer.tls.as_ref().and_then(|tls| tls.certificate.as_ref()) {
        Some(certificate) => name_of(certificate, identity),
        None => Ok(None),
    }
}

/// Names that a CONNECT may not state are none, and so are those that were no text.
fn name_of(
    certificate: &CertificateInfo,
    identity: CertificateIdentity,
) -> Result<Option<String>, Nameless> {
    let name = match identity {
        CertificateIdentity::None => return Ok(None),
        CertificateIdentity::CommonName => &certificate.common_name,
        CertificateIdentity::DistinguishedName => &certificate.subject,
    };
    if identity::auth::is_name(name) { Ok(Some(name.clone())) } else { Err(Nameless) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_without_the_name_that_counts_is_no_identity() {
        use CertificateIdentity::{CommonName, DistinguishedName, None as Nothing};
        let named = |common_name: &str, subject: &str| CertificateInfo {
            common_name: common_name.into(),
            subject: subject.into(),
            ..CertificateInfo::default()
        };
        let anna = named("anna", "CN=anna,O=home");
        assert_eq!(name_of(&anna, CommonName), Ok(Some("anna".into())));
        assert_eq!(name_of(&anna, DistinguishedName), Ok(Some("CN=anna,O=home".into())));
        for name in ["", " ", "an\na", "\u{fffd}"] {
            assert_eq!(name_of(&named(name, "O=home"), CommonName), Err(Nameless), "{name:?}");
            assert_eq!(name_of(&named("a", name), DistinguishedName), Err(Nameless), "{name:?}");
            assert_eq!(name_of(&named(name, name), Nothing), Ok(None));
        }
    }
}
