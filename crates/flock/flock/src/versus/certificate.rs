//! The certificate of a broker that is compared over TLS.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd};

/// Writes `certificate.pem` and `key.pem` into `dir`: ECDSA on P-256, as short a chain as there can
/// be, vouched for by itself. Returns the path of the certificate.
pub(super) fn write(dir: &Path) -> Result<PathBuf, String> {
    let (certificate, key) =
        make().map_err(|error| format!("cannot create a certificate: {error}"))?;
    let path = dir.join("certificate.pem");
    fs::write(&path, certificate)
        .and_then(|()| fs::write(dir.join("key.pem"), key))
        .map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(path)
}

/// Certificate and key as PEM.
fn make() -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let mut params = CertificateParams::new(names)?;
    (params.not_before, params.not_after) =
        (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 12, 31));
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_pem_and_every_certificate_is_another() {
        let dir = std::env::temp_dir().join(format!("flock-certificate-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let texts: Vec<String> = (0..2)
            .map(|_| {
                let path = write(&dir).unwrap();
                assert!(fs::read_to_string(dir.join("key.pem")).unwrap().contains("PRIVATE KEY"));
                fs::read_to_string(path).unwrap()
            })
            .collect();
        fs::remove_dir_all(&dir).unwrap();
        assert!(texts.iter().all(|text| text.starts_with("-----BEGIN CERTIFICATE-----")));
        assert_ne!(texts[0], texts[1]);
    }
}
