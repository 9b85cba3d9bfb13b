//! The TLS of a node: the same certificate for both sides, and the CA that issues those of nodes.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use net::{CertificateInfo, TlsVersion};
use net::{ClientAuth, TlsClientContext, TlsClientOptions, TlsContext, TlsError, TlsOptions};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

/// PEM files of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate of this node, issued for its name, and those that lead to the CA. It has to
    /// serve as a certificate of both servers and clients.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The CAs that issue certificates of nodes.
    pub ca: PathBuf,
}

/// What the files contain now.
pub(crate) struct Tls {
    server: TlsContext,
    client: RwLock<TlsClientContext>,
    client_options: TlsClientOptions,
}

impl Tls {
    /// TLS 1.3 only: what it exports is bound to the whole handshake.
    pub(crate) fn load(files: &Files) -> Result<Self, TlsError> {
        let server = TlsContext::load(TlsOptions {
            client_ca: Some(files.ca.clone()),
            client_auth: ClientAuth::Require,
            version_min: TlsVersion::V13,
            alpn: vec![ALPN.to_owned()],
            sessions_max: 0,
            ..TlsOptions::new(&files.certificate, &files.key)
        })?;
        let client_options = TlsClientOptions {
            ca: Some(files.ca.clone()),
            certificate: Some(files.certificate.clone()),
            key: Some(files.key.clone()),
            alpn: vec![ALPN.to_owned()],
            version_min: TlsVersion::V13,
            // Each connection verifies the certificate.
            sessions_max: 0,
            ..TlsClientOptions::default()
        };
        let client = RwLock::new(TlsClientContext::load(&client_options)?);
        Ok(Self { server, client, client_options })
    }

    /// Both or none.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let client = TlsClientContext::load(&self.client_options)?;
        self.server.reload()?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        Ok(())
    }

    pub(crate) fn accept(&self) -> Result<ServerConnection, TlsError> {
        Ok(ServerConnection::new(self.server.config())?)
    }

    /// The certificate of the peer has to be issued for this node.
    pub(crate) fn connect(&self, node: &str) -> Result<ClientConnection, TlsError> {
        let name = ServerName::try_from(node.to_owned());
        let name = name.map_err(|_| TlsError::ServerName(node.to_owned()))?;
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
        Ok(ClientConnection::new(Arc::clone(client.config()), name)?)
    }
}

/// Is the certificate issued for the node? Without alternative names its common name counts.
pub(crate) fn is_issued_for(certificate: &CertificateInfo, node: &str) -> bool {
    let names = &certificate.alternative_names;
    match names.is_empty() {
        true => certificate.common_name == node,
        false => names.iter().any(|name| {
            matches!(
                name.split_once(':'),
                Some(("DNS" | "IP", name)) if name == node
            )
        }),
    }
}

/// A client of MQTT that comes to the wrong port is refused by TLS.
const ALPN: &str = "quelea-link";
