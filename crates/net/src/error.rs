//! Why a connection never became a stream.

use std::io;

use thiserror::Error;

use crate::proxy::ProxyError;

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
}

impl HandshakeError {
    /// One word for a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Closed => "closed",
            Self::Proxy(_) => "proxy",
        }
    }
}
