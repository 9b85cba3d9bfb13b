//! Why a connection never became a stream.

use std::io;

use thiserror::Error;

use crate::proxy::ProxyError;
use crate::ws::upgrade::UpgradeError;

/// A handshake that failed. The peer has been told where its protocol has words for it; drop the
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
}

impl HandshakeError {
    /// One word for a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Closed => "closed",
            Self::Proxy(_) => "proxy",
            Self::Tls(_) => "tls",
            Self::Upgrade(_) => "websocket",
        }
    }
}
