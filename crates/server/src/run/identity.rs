//! Names of clients: from certificates, and made up by the server.

use std::fmt::Write as _;

use net::PeerInfo;

use crate::config::CertificateIdentity;

/// A client id that no other client has (MQTT-3.1.3-6), in the form that mosquitto gives them.
pub(super) fn assigned_client_id() -> String {
    let mut random = [0; 16];
    // Without randomness the id would be guessable, not wrong; the system has it always.
    let _ = getrandom::fill(&mut random);
    let mut id = String::from("auto");
    for (place, byte) in random.iter().enumerate() {
        if matches!(place, 0 | 4 | 6 | 8 | 10) {
            id.push('-');
        }
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// The user name that a checked client certificate stands for.
pub(super) fn of_certificate(peer: &PeerInfo, identity: CertificateIdentity) -> Option<String> {
    let certificate = peer.tls.as_ref()?.certificate.as_ref()?;
    match identity {
        CertificateIdentity::None => None,
        CertificateIdentity::CommonName => {
            Some(certificate.common_name.clone()).filter(|name| !name.is_empty())
        }
        CertificateIdentity::DistinguishedName => Some(certificate.subject.clone()),
    }
}
