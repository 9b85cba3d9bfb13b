//! Client certificates that no known authority has issued, but whose thumbprint is registered.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use sha2::{Digest as _, Sha256};

use super::{certificate, named};

/// SHA-256 thumbprints of certificates that are accepted whoever has issued them. They may change
/// while listeners use them.
#[derive(Clone, Debug, Default)]
pub struct Thumbprints(Arc<RwLock<HashSet<[u8; 32]>>>);

/// Accepts what a verifier accepts, and registered certificates.
#[derive(Debug)]
pub(crate) struct RegisteredVerifier {
    /// None: no authority is known.
    issued: Option<Arc<dyn ClientCertVerifier>>,
    registered: Vec<Thumbprints>,
    is_mandatory: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Thumbprints {
    /// These, in hex of either case, and no others. What is no SHA-256 in hex matches nothing.
    pub fn replace<'a>(&self, all: impl IntoIterator<Item = &'a str>) {
        let all = all.into_iter().filter_map(bytes_of_hex).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all;
    }

    fn have(&self, thumbprint: &[u8; 32]) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(thumbprint)
    }
}

impl PartialEq for Thumbprints {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Thumbprints {}

impl RegisteredVerifier {
    pub(super) fn new(
        issued: Option<Arc<dyn ClientCertVerifier>>,
        registered: Vec<Thumbprints>,
        is_mandatory: bool,
    ) -> Self {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        Self { issued, registered, is_mandatory, algorithms }
    }

    /// Has an authority issued the certificate, and does it vouch for it now?
    pub(super) fn is_issued(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((end_entity, intermediates)) = chain.split_first() else { return false };
        self.check_issued(end_entity, intermediates, UnixTime::now()).is_ok()
    }

    fn check_issued(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match &self.issued {
            Some(verifier) => verifier.verify_client_cert(end_entity, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    /// May the thumbprint count although the authorities have answered with this error? Not where
    /// one of them has issued the certificate, and has revoked it or forbids its use.
    fn is_registered(&self, der: &CertificateDer<'_>, error: &Error, now: UnixTime) -> bool {
        let is_foreign = match error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
            // Found before any issuer is looked for: openssl makes self-signed certificates that
            // are authorities by default.
            Error::InvalidCertificate(CertificateError::Other(_)) => {
                certificate::is_self_issued(der)
            }
            _ => false,
        };
        let thumbprint: [u8; 32] = Sha256::digest(der).into();
        is_foreign
            && certificate::is_valid_at(der, now.as_secs())
            && self.registered.iter().any(|all| all.have(&thumbprint))
    }
}

impl ClientCertVerifier for RegisteredVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    /// None: with the names of authorities, clients would not send a certificate of another one.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_issued(end_entity, intermediates, now).or_else(|error| {
            match self.is_registered(end_entity, &error, now) {
                true => Ok(ClientCertVerified::assertion()),
                false => Err(error),
            }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        named::verify_tls12(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        named::verify_tls13(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn bytes_of_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
        DnType, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
        date_time_ymd,
    };
    use rustls::client::ResolvesClientCert;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::server::WebPkiClientVerifier;
    use rustls::sign::CertifiedKey;
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
        SupportedProtocolVersion,
    };

    use super::*;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(7));
        params
    }

    fn authority(name: &str) -> Issuer {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn self_signed(params: &CertificateParams, key: &KeyPair) -> CertificateDer<'static> {
        params.self_signed(key).unwrap().der().clone()
    }

    /// Shows this certificate whatever it is asked for, and signs with this key.
    #[derive(Debug)]
    struct Shows(Arc<CertifiedKey>);

    impl ResolvesClientCert for Shows {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    fn signing(key: &KeyPair) -> Arc<dyn rustls::sign::SigningKey> {
        let der = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        aws_lc_rs::sign::any_supported_type(&der).unwrap()
    }

    /// What a server with this verifier says of a client with this certificate and key.
    fn handshake(
        verifier: &Arc<RegisteredVerifier>,
        shown: &CertificateDer<'static>,
        key: &KeyPair,
        version: &'static SupportedProtocolVersion,
    ) -> Result<(), Error> {
        let own = authority("localhost");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let leaf_key = KeyPair::generate().unwrap();
        let leaf = params("localhost").signed_by(&leaf_key, &own).unwrap().der().clone();
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(vec![leaf], PrivateKeyDer::Pkcs8(leaf_key.serialize_der().into()))
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(own.der().clone()).unwrap();
        let shows = Shows(Arc::new(CertifiedKey::new(vec![shown.clone()], signing(key))));
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(shows));
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        while server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets().expect("the client accepts the server");
        }
        Ok(())
    }

    fn hex(der: &[u8]) -> String {
        Sha256::digest(der).iter().map(|byte| format!("{byte:02X}")).collect()
    }

    fn verifier(issued: Option<Arc<dyn ClientCertVerifier>>, all: &[&[u8]]) -> RegisteredVerifier {
        let thumbprints = Thumbprints::default();
        let all: Vec<String> = all.iter().map(|der| hex(der)).collect();
        thumbprints.replace(all.iter().map(String::as_str));
        RegisteredVerifier::new(issued, vec![Thumbprints::default(), thumbprints], true)
    }

    #[test]
    fn a_registered_certificate_is_accepted_from_who_has_its_key() {
        let (key, other_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let leaf = self_signed(&params("pump"), &key);
        let mut as_authority = params("pump");
        as_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let as_authority = self_signed(&as_authority, &key);
        let foreign = params("pump").signed_by(&key, &authority("elsewhere")).unwrap();
        for shown in [&leaf, &as_authority, foreign.der()] {
            let known = Arc::new(verifier(None, &[shown]));
            let unknown = Arc::new(verifier(None, &[b"other"]));
            for version in rustls::ALL_VERSIONS {
                handshake(&known, shown, &key, version).unwrap();
                assert!(!known.is_issued(std::slice::from_ref(shown)));
                assert!(handshake(&unknown, shown, &key, version).is_err(), "not registered");
                let error = handshake(&known, shown, &other_key, version).unwrap_err();
                let is_unproved = error == CertificateError::BadSignature.into();
                assert!(is_unproved, "without its key: {error}");
            }
            // What is registered may change.
            known.registered[1].replace(["not hex", &"ab".repeat(32)]);
            assert!(handshake(&known, shown, &key, &rustls::version::TLS13).is_err());
        }
    }

    #[test]
    fn a_registered_certificate_outside_its_dates_is_refused() {
        let key = KeyPair::generate().unwrap();
        for (from, to, is_good) in [(2000, 2100, true), (2000, 2001, false), (2099, 2100, false)] {
            for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
                let mut params = params("pump");
                params.is_ca = is_ca;
                params.not_before = date_time_ymd(from, 1, 1);
                params.not_after = date_time_ymd(to, 1, 1);
                let der = self_signed(&params, &key);
                let known = Arc::new(verifier(None, &[&der]));
                let accepted = handshake(&known, &der, &key, &rustls::version::TLS13);
                assert_eq!(accepted.is_ok(), is_good, "{from} to {to}");
            }
        }
    }

    #[test]
    fn what_an_authority_has_revoked_no_thumbprint_lets_in() {
        let issuer = authority("own");
        let key = KeyPair::generate().unwrap();
        let der = params("pump").signed_by(&key, &issuer).unwrap().der().clone();
        for (serial, is_good) in [(8, true), (7, false)] {
            let revoked = RevokedCertParams {
                serial_number: SerialNumber::from(serial),
                revocation_time: date_time_ymd(2020, 1, 1),
                reason_code: None,
                invalidity_date: None,
            };
            let list = CertificateRevocationListParams {
                this_update: date_time_ymd(2020, 1, 1),
                next_update: date_time_ymd(2100, 1, 1),
                crl_number: SerialNumber::from(1),
                issuing_distribution_point: None,
                revoked_certs: vec![revoked],
                key_identifier_method: KeyIdMethod::Sha256,
            };
            let list = list.signed_by(&issuer).unwrap().der().clone();
            let mut roots = RootCertStore::empty();
            roots.add(issuer.der().clone()).unwrap();
            let provider = Arc::new(aws_lc_rs::default_provider());
            let issued = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls([list])
                .build()
                .unwrap();
            let verifier = Arc::new(verifier(Some(issued), &[&der]));
            let accepted = handshake(&verifier, &der, &key, &rustls::version::TLS13);
            assert_eq!(accepted.is_ok(), is_good, "{accepted:?}");
            assert_eq!(verifier.is_issued(std::slice::from_ref(&der)), is_good);
        }
    }
}
