//! Why a connection never became a stream.

use std::io;

use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

use crate::foreign::Foreign;
use crate::proxy::ProxyError;
use crate::ws::upgrade::UpgradeError;

/// A handshake that failed. The peer has been notified where its protocol can express it; drop the
/// handshake, which closes the socket.
#[derive(Debug, Error)]
pub enum HandshakeError {
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection during the handshake")]
    Closed,
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("WebSocket upgrade: {0}")]
    Upgrade(#[from] UpgradeError),
    #[error(transparent)]
    Foreign(#[from] Foreign),
}

impl HandshakeError {
    /// What whoever runs the client can do about it; empty when the error says all there is.
    pub fn client_hint(&self) -> &'static str {
        let Self::Tls(error) = self else {
            return match self {
                Self::Closed => "; is this the right port for this protocol?",
                _ => "",
            };
        };
        match error {
            rustls::Error::InvalidMessage(_) => "; this port does not seem to speak TLS",
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                "; no trusted authority signed it: set the file of its CA"
            }
            // rustls has no name of its own for it.
            rustls::Error::InvalidCertificate(CertificateError::Other(other))
                if other.to_string().contains("CaUsedAsEndEntity") =>
            {
                "; it is a CA certificate: use one with CA:FALSE"
            }
            _ => "",
        }
    }

    /// What whoever runs the broker can do about it; empty when the error says all there is.
    pub fn broker_hint(&self) -> &'static str {
        match self {
            Self::Tls(rustls::Error::AlertReceived(AlertDescription::UnknownCA)) => {
                "; the client does not trust the certificate of this listener. Install its CA on the client, or set listeners.tls.chain if an issuer is missing"
            }
            _ => "",
        }
    }

    /// One word for a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Closed => "closed",
            Self::Proxy(_) => "proxy",
            Self::Tls(_) => "tls",
            Self::Upgrade(_) => "websocket",
            Self::Foreign(_) => "foreign",
        }
    }
}
