//! What a node shows to NATS servers, from the files that the configuration names.

use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use config::{ClusterConfig, EngineLogin, EngineTls, LinkConfig};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cluster.{key}: {}: {detail}", .path.display())]
pub struct FileError {
    key: &'static str,
    path: PathBuf,
    detail: String,
}

/// Reads all files of `[cluster]`.
///
/// # Errors
///
/// The first one that cannot be used, and why.
pub fn check_files(config: &ClusterConfig) -> Result<(), FileError> {
    options(&config.login)?;
    config.tls.as_ref().map_or(Ok(()), check_tls)?;
    config.links.as_ref().map_or(Ok(()), check_links)
}

/// Options of a connection with the login.
///
/// # Errors
///
/// Its file cannot be used.
pub(super) fn options(login: &EngineLogin) -> Result<ConnectOptions, FileError> {
    match login {
        EngineLogin::Nothing => Ok(ConnectOptions::new()),
        EngineLogin::Credentials(path) => {
            let of = |detail: &str| FileError::new("credentials_file", path, detail.into());
            let text = read("credentials_file", path)?;
            // What the library says of a wrong one quotes its lines.
            ConnectOptions::with_credentials(&text).map_err(|_| {
                of("must be a credentials file with a JWT and a seed (`nsc generate creds`)")
            })
        }
        EngineLogin::NkeySeed(path) => {
            let seed = read("nkey_seed_file", path)?.trim().to_owned();
            if !is_user_seed(&seed) {
                let detail = "must be a user seed: 58 characters that begin with SU";
                return Err(FileError::new("nkey_seed_file", path, detail.into()));
            }
            Ok(ConnectOptions::with_nkey(seed))
        }
        EngineLogin::Password { username, file } => {
            let text = read("password_file", file)?;
            let password = text.trim_end_matches(['\r', '\n']);
            if password.is_empty() || password.contains(['\r', '\n']) {
                let detail = "must have one line, the password";
                return Err(FileError::new("password_file", file, detail.into()));
            }
            Ok(ConnectOptions::with_user_and_password(username.clone(), password.into()))
        }
    }
}

fn check_tls(tls: &EngineTls) -> Result<(), FileError> {
    if let Some(path) = &tls.ca {
        check_certificates("ca_file", path)?;
    }
    if let Some((certificate, key)) = &tls.client {
        check_certificates("cert_file", certificate)?;
        check_key("key_file", key)?;
    }
    Ok(())
}

fn check_links(links: &LinkConfig) -> Result<(), FileError> {
    check_certificates("tls.ca", &links.ca)?;
    check_certificates("tls.certificate", &links.certificate)?;
    check_key("tls.key", &links.key)
}

fn check_key(key: &'static str, path: &Path) -> Result<(), FileError> {
    let wrong = |error: rustls::pki_types::pem::Error| {
        FileError::new(key, path, format!("has no private key: {error}"))
    };
    PrivateKeyDer::from_pem_file(path).map(drop).map_err(wrong)
}

fn check_certificates(key: &'static str, path: &Path) -> Result<(), FileError> {
    let wrong = |detail: String| FileError::new(key, path, detail);
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(error.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong("has no certificate (PEM)".into()));
    }
    Ok(())
}

fn read(key: &'static str, path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|error| FileError::new(key, path, error.to_string()))
}

fn is_user_seed(text: &str) -> bool {
    let is_base32 = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
    text.len() == SEED_BYTES && text.starts_with("SU") && text.bytes().all(is_base32)
}

impl FileError {
    fn new(key: &'static str, path: &Path, detail: String) -> Self {
        Self { key, path: path.into(), detail }
    }
}

/// Two bytes of kind, 32 of the seed and two of a checksum, in base 32.
const SEED_BYTES: usize = 58;

#[cfg(test)]
mod tests {
    use super::*;
    use config::EngineServer;

    fn config(login: EngineLogin, tls: Option<EngineTls>) -> ClusterConfig {
        let url = "tls://nats1:4222".into();
        ClusterConfig {
            name: "plant1".into(),
            node: "n1".into(),
            servers: vec![EngineServer { url, is_loopback: false }],
            login,
            tls,
            links: None,
            advertise: None,
            redirect: false,
            stream_bytes_max: None,
            append_interval_ms: 0,
        }
    }

    /// One key of the TLS of links names `file`, the others good files.
    fn with_links(directory: &Path, wrong: &str) -> ClusterConfig {
        let path = |name: &str| directory.join(name);
        let own = rcgen::generate_simple_self_signed(vec!["n1".into()]).unwrap();
        std::fs::write(path("certificate"), own.cert.pem()).unwrap();
        std::fs::write(path("ca"), own.cert.pem()).unwrap();
        std::fs::write(path("key"), own.signing_key.serialize_pem()).unwrap();
        let file = |key: &str| path(if key == wrong { "file" } else { key });
        let links = LinkConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            certificate: file("certificate"),
            key: file("key"),
            ca: file("ca"),
        };
        ClusterConfig { links: Some(links), ..config(EngineLogin::Nothing, None) }
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_their_key() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "two\nlines\n").unwrap();
        let tls = |tls| (EngineLogin::Nothing, Some(tls));
        for ((login, tls), expected) in [
            ((EngineLogin::Credentials(file.clone()), None), "credentials_file"),
            ((EngineLogin::NkeySeed(file.clone()), None), "nkey_seed_file"),
            (
                (EngineLogin::Password { username: "a".into(), file: file.clone() }, None),
                "password_file",
            ),
            (tls(EngineTls { ca: Some(file.clone()), client: None }), "ca_file"),
            (tls(EngineTls { ca: None, client: Some((file.clone(), file.clone())) }), "cert_file"),
        ] {
            let error = check_files(&config(login, tls)).unwrap_err().to_string();
            let expected = format!("cluster.{expected}: {}: ", file.display());
            assert!(error.starts_with(&expected), "{error}");
            assert!(!error.contains("two"), "{error}");
        }
        for key in ["ca", "certificate", "key"] {
            let error = check_files(&with_links(directory.path(), key)).unwrap_err().to_string();
            let expected = format!("cluster.tls.{key}: {}: ", file.display());
            assert!(error.starts_with(&expected), "{error}");
        }
        let missing = EngineLogin::Credentials(directory.path().join("none"));
        let error = check_files(&config(missing, None)).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn files_that_can_be_used_are_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let own = rcgen::generate_simple_self_signed(vec!["nats1".into()]).unwrap();
        std::fs::write(path("cert"), own.cert.pem()).unwrap();
        std::fs::write(path("key"), own.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("password"), "se cret\r\n").unwrap();
        std::fs::write(path("seed"), format!("{SEED}\n")).unwrap();
        let client = Some((path("cert"), path("key")));
        let tls = EngineTls { ca: Some(path("cert")), client };
        let password = EngineLogin::Password { username: "anna".into(), file: path("password") };
        check_files(&config(password, Some(tls))).unwrap();
        check_files(&config(EngineLogin::NkeySeed(path("seed")), None)).unwrap();
        check_files(&with_links(directory.path(), "none of them")).unwrap();
        // The library does not read the JWT.
        let credentials = format!(
            "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\
             -----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
        );
        std::fs::write(path("creds"), credentials).unwrap();
        check_files(&config(EngineLogin::Credentials(path("creds")), None)).unwrap();
    }

    /// Published with the library: it opens nothing.
    const SEED: &str = "SUACH75SWCM5D2JMJM6EKLR2WDARVGZT4QC6LX3AGHSWOMVAKERABBBRWM";
}
