//! Certificates made afresh, in a directory of their own that goes away with them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    SigningKey, date_time_ymd,
};
use x509_cert::der::asn1::{Any, BitString};
use x509_cert::der::{Decode as _, Encode as _};

pub(crate) struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new CA, whose certificate is in the file `ca.pem`.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("quelea-net-{}-{count}", process::id());
        let directory = env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("directory");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name.push(DnType::CommonName, format!("Test CA {count}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key"));
        let issuer = issuer.expect("CA");
        let authority = Self { directory, issuer };
        authority.write("ca.pem", &authority.issuer.pem());
        authority
    }

    /// Writes `NAME.pem` and `NAME.key` for a subject that is also the only host name.
    pub(crate) fn issue(&self, name: &str, subject: &str, serial: u64) {
        let mut params = CertificateParams::new(vec![subject.to_owned()]).expect("params");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Weavers");
        params.distinguished_name.push(DnType::CommonName, subject);
        params.serial_number = Some(SerialNumber::from(serial));
        params.not_after = date_time_ymd(2100 + serial as i32, 1, 1);
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// With a common name, and no alternative names.
    pub(crate) fn issue_nameless(&self, name: &str, common_name: &str) {
        self.issue_with(name, common_name, Vec::new());
    }

    /// With a common name, and another host name.
    pub(crate) fn issue_named(&self, name: &str, common_name: &str, host: &str) {
        self.issue_with(name, common_name, vec![host.to_owned()]);
    }

    fn issue_with(&self, name: &str, common_name: &str, hosts: Vec<String>) {
        let mut params = CertificateParams::new(hosts).expect("params");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Signed by the key of another certificate, which follows it in the file.
    pub(crate) fn issue_by(&self, issuer: &str, name: &str, subject: &str) {
        let read = |file: String| fs::read_to_string(self.path(&file)).expect("read");
        let issuer_key = KeyPair::from_pem(&read(format!("{issuer}.key"))).expect("key");
        let mut issuer_params = CertificateParams::new(Vec::new()).expect("params");
        issuer_params.distinguished_name = rcgen::DistinguishedName::new();
        issuer_params.distinguished_name.push(DnType::OrganizationName, "Weavers");
        issuer_params.distinguished_name.push(DnType::CommonName, "Between");
        let by = Issuer::new(issuer_params, issuer_key);
        let params = CertificateParams::new(vec![subject.to_owned()]).expect("params");
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &by).expect("certificate");
        let both = certificate.pem() + &read(format!("{issuer}.pem"));
        self.write(&format!("{name}.pem"), &both);
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// The same, but signed by an authority between, whose certificate goes to `between.pem`.
    pub(crate) fn issue_below(&self, name: &str, subject: &str) {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name.push(DnType::CommonName, "Between");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let between_key = KeyPair::generate().expect("key");
        let between = CertifiedIssuer::signed_by(params, between_key, &self.issuer);
        let between = between.expect("certificate");
        self.write("between.pem", &between.pem());
        let params = CertificateParams::new(vec![subject.to_owned()]).expect("params");
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &between).expect("certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// As [`Self::issue`], with X.509 version 1: no alternative names, no extensions.
    pub(crate) fn issue_version_1(&self, name: &str, subject: &str, serial: u64) {
        self.issue(name, subject, serial);
        let der = version_1(&self.der(name), self.issuer.key());
        self.write(&format!("{name}.pem"), &pem(&der));
    }

    /// Writes `NAME.pem` and `NAME.key`, signed by itself, with the common name and these changes.
    pub(crate) fn sign_itself(
        &self,
        name: &str,
        subject: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        change(&mut params);
        let key = KeyPair::generate().expect("key");
        let certificate = params.self_signed(&key).expect("certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Of what is in `NAME.pem`.
    pub(crate) fn der(&self, name: &str) -> Vec<u8> {
        let text = fs::read_to_string(self.path(&format!("{name}.pem"))).expect("read");
        let base64: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
        STANDARD.decode(base64).expect("base64")
    }

    /// Writes `crl.pem`, which revokes these serial numbers.
    pub(crate) fn revoke(&self, serials: &[u64]) {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).expect("list");
        self.write("crl.pem", &list.pem().expect("pem"));
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("write");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// The same certificate without version and extensions, signed anew.
fn version_1(der: &[u8], key: &impl SigningKey) -> Vec<u8> {
    let fields = Vec::<Any>::from_der(der).expect("a certificate");
    let body = Vec::<Any>::from_der(&fields[0].to_der().expect("der")).expect("a body");
    // Version and extensions are the first and the last.
    let body = body[1..body.len() - 1].to_vec().to_der().expect("der");
    let signature = key.sign(&body).expect("signature");
    let signature = BitString::from_bytes(&signature).expect("bits").to_der().expect("der");
    let whole = [&body, &fields[1].to_der().expect("der"), &signature];
    let whole = whole.map(|field| Any::from_der(field).expect("der"));
    whole.to_vec().to_der().expect("der")
}

fn pem(der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n")
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
