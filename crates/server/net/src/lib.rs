//! Byte streams for MQTT over whatever wire: TCP, TLS, WebSocket, unix sockets and the PROXY
//! protocol, on mio's readiness events, without async.
//!
//! A [`Listener`] accepts a [`Handshake`], a [`Connector`] begins one; driven by readiness it
//! becomes a [`Stream`] and a [`PeerInfo`]. A stream takes and gives application bytes, whatever
//! lies below.
//!
//! **Does not know** MQTT beyond where a packet ends, threads, deadlines or configuration files:
//! who calls decides when to give up.
//!
//! **Start reading** at `stream.rs`, then `handshake.rs`, `layered.rs`. The parsers ([`proxy`],
//! [`ws::frame`], [`ws::upgrade`]) work over bytes and know no socket.
//!
//! **Invariants.** Nothing blocks, except for name resolution where its doc says so. An idle stream
//! owns no buffer: bytes are read straight into the caller's. Each buffer and each header has a
//! limit.

mod address;
mod cidr;
mod connector;
mod error;
mod foreign;
mod handshake;
mod layered;
mod listener;
mod peer;
mod port;
pub mod proxy;
mod socket;
mod stream;
mod sys;
mod tls;
mod url;
pub mod ws;

pub use address::{Address, AddressError, ListenAddress, Scheme};
pub use cidr::{Cidr, CidrError};
pub use connector::{Connect, ConnectOptions, Connector};
pub use error::HandshakeError;
pub use foreign::Foreign;
pub use handshake::{Handshake, Progress};
pub use listener::{
    ListenOptions, Listener, ProxyOptions, TcpOptions, WebSocketOptions, set_keepalive,
};
pub use peer::{CertificateInfo, PeerAddress, PeerInfo, TlsInfo};
pub use port::free_port;
pub use proxy::ProxyTls;
pub use stream::{Read, Stream};
pub use sys::UnixCredentials;
pub use tls::{
    ClientAuth, DistinguishedName, Thumbprints, TlsClientContext, TlsClientOptions, TlsContext,
    TlsError, TlsOptions, TlsVersion, authorities, certificate_info, is_distinguished_name,
};
pub use url::{Url, UrlError, host_and_port};
pub use ws::upgrade::Origins;

#[cfg(test)]
mod tests {
    use super::*;

    /// Acceptors hand streams to workers, and all acceptors share what listeners and connectors
    /// need.
    #[test]
    fn streams_move_between_threads_and_contexts_are_shared() {
        fn moves<T: Send>() {}
        fn is_shared<T: Send + Sync>() {}
        moves::<Listener>();
        moves::<Handshake>();
        moves::<Stream>();
        is_shared::<TlsContext>();
        is_shared::<Connector>();
        is_shared::<ListenOptions>();
    }
}
