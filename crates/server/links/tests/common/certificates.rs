//! Certificates of nodes, in a directory that goes away with them.

use std::fs;
use std::path::PathBuf;

use links::Files;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::TempDir;

pub(crate) struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new CA.
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().expect("directory");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        // Each has another name.
        let name = format!("CA in {}", directory.path().display());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("CA");
        let authority = Self { directory, issuer };
        authority.write("ca.pem", &authority.issuer.pem());
        authority
    }

    /// A certificate of this node.
    pub(crate) fn issue(&self, node: &str) -> Files {
        self.issue_with(node, |_| ())
    }

    pub(crate) fn issue_expired(&self, node: &str) -> Files {
        self.issue_with(node, |params| {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        })
    }

    fn issue_with(&self, node: &str, change: impl FnOnce(&mut CertificateParams)) -> Files {
        let mut params = CertificateParams::new(vec![node.to_owned()]).expect("params");
        change(&mut params);
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate");
        Files {
            certificate: self.write(&format!("{node}.pem"), &certificate.pem()),
            key: self.write(&format!("{node}.key"), &key.serialize_pem()),
            ca: self.directory.path().join("ca.pem"),
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).expect("write");
        path
    }
}
