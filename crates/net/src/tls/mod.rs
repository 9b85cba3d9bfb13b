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

pub use certificate::parse as certificate_info;
pub(crate) use client::parse_server_name;
pub use client::{TlsClientContext, TlsClientOptions, authorities};
pub use distinguished_name::{DistinguishedName, is_distinguished_name};
pub use files::TlsError;
pub use registered::Thumbprints;
pub use server::{ClientAuth, TlsContext, TlsOptions, TlsVersion};
pub(crate) use session::{INPUT_BYTES_MAX, Plaintext, Session};
