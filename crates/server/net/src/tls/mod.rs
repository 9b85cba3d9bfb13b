//! TLS 1.2 and 1.3 by rustls, through its unbuffered interface: an idle connection owns no buffer
//! for records, since ciphertext passes through one buffer per thread.

mod certificate;
mod client;
mod distinguished_name;
mod files;
mod named;
mod registered;
mod server;
mod session;

use rustls::NamedGroup;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub use certificate::parse as certificate_info;
pub(crate) use client::parse_server_name;
pub use client::{TlsClientContext, TlsClientOptions, authorities};
pub use distinguished_name::{DistinguishedName, is_distinguished_name};
pub use files::TlsError;
pub use registered::Thumbprints;
pub use server::{ClientAuth, TlsContext, TlsOptions, TlsVersion};
pub(crate) use session::{INPUT_BYTES_MAX, Plaintext, Session};

/// The cryptography of all TLS here. The key exchanges have the order that rustls gives them by
/// default: the client library for Kafka turns on a feature (`prefer-post-quantum`) that puts
/// X25519MLKEM768 first for the whole program, and a handshake would have 1 KB more.
pub(crate) fn cryptography() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups.sort_by_key(|group| group.name() == NamedGroup::X25519MLKEM768);
    provider
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_key_exchanges_come_first_and_none_is_lost() {
        let groups = cryptography().kx_groups;
        let names: Vec<NamedGroup> = groups.iter().map(|group| group.name()).collect();
        let small = [NamedGroup::X25519, NamedGroup::secp256r1, NamedGroup::secp384r1];
        assert_eq!(names, [&small[..], &[NamedGroup::X25519MLKEM768]].concat());
    }
}
