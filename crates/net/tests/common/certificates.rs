//! Certificates made afresh, in a directory of their own that goes away with them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

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

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
