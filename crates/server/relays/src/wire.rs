//! The wire form of relays. A frame in a packet whose `from_cell` is
//! [`FRONT`](broker::cells::wire::FRONT):
//!
//! ```text
//! kind u8   1 Open: arrival        2 Opened: number of bytes
//!           3 Refused: reason u8   4 Data: bytes, at least one
//!           5 Credit: bytes        6 Returned: bytes
//!           7 Close: reason u8
//! arrival   version u8, flags u8, address, proxied_by?, tls?, proxy_tls?,
//!           proxy_authority?, unix?, chain, listener, first bytes to the end
//! address   0 | 4, ip, port | 6, ip, port, flow, scope
//! tls       flags u8, version, cipher, server_name?, alpn?, certificate?
//! certificate  unissued u8, common_name, subject, names, fingerprint, not_after
//! proxy_tls flags u8, version?, common_name?, cipher?
//! unix      process, user, group
//! chain     count, certificates as DER
//! ```
//!
//! Numbers are varints, addresses are in network order. Texts and bytes follow their length. A
//! field with a `?` is present if a flag says so.
//!
//! The number of the packet is that of the relay, times two, and one more if the sender of this
//! packet has begun the relay. Cell and epoch of the route are those of the relay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use broker::cells::wire::primitives::{Reader, Unreadable, put_bytes, put_number};
use net::{CertificateInfo, PeerAddress, PeerInfo, ProxyTls, TlsInfo, UnixCredentials};
use thiserror::Error;

use crate::relays::Refused;

/// An arrival without the client's bytes: names, and a chain of certificates. Policy: a longer one
/// is not relayed, and closes the link on which it comes.
pub const ARRIVAL_BYTES_MAX: usize = 64 * 1024;

/// The credit of each direction at the beginning, and the least that it shrinks to.
pub const CREDIT_BYTES_MIN: u32 = 4 * 1024;

/// The largest credit of a direction. Policy: more than the credit closes the link.
pub const CREDIT_BYTES_MAX: u32 = 64 * 1024;

/// What a frame of data uses of a credit beyond its bytes. So small ones are few.
pub const FRAME_COST: u32 = 64;

/// What travels with the first bytes of a client: all that the home's acceptor needs to go on
/// where the front has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub peer: PeerInfo,
    /// The certificates that the client has shown, as DER, its own first. The home verifies them
    /// again.
    pub chain: Vec<Vec<u8>>,
    /// The name of the listener at which the client has arrived.
    pub listener: String,
    /// What the client has sent, from its CONNECT on. The home gets the first
    /// [`CREDIT_BYTES_MIN`] of it here and the rest through the stream.
    pub bytes: Vec<u8>,
}

/// What one side of a relay tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Open(Box<Arrival>),
    /// The client has arrived. So many of its first bytes count as read.
    Opened(u32),
    Refused(Refused),
    Data(Vec<u8>),
    /// So much more may be sent: bytes, and [`FRAME_COST`] for each frame.
    Credit(u32),
    /// The sender gives so much of its credit back.
    Returned(u32),
    Close(Ended),
}

/// Why a relay is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The stream has ended. What came before is delivered.
    Stream,
    /// The epoch of the cell has. Nothing more may reach the client.
    Epoch,
}

/// Why bytes are not a valid frame of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("invalid data of a relayed connection: {what} (byte {at})")]
pub struct RelayError {
    pub what: &'static str,
    /// How far the bytes were read.
    pub at: usize,
}

/// Appends a frame.
pub fn encode(frame: &Frame, bytes: &mut Vec<u8>) {
    match frame {
        Frame::Open(arrival) => put_open(bytes, arrival, &arrival.bytes),
        Frame::Opened(count) => put_count(bytes, kind::OPENED, *count),
        Frame::Refused(why) => {
            let reason = if *why == Refused::NotOwner { NOT_OWNER } else { NO_ROOM };
            bytes.extend_from_slice(&[kind::REFUSED, reason]);
        }
        Frame::Data(data) => put_data(bytes, data),
        Frame::Credit(count) => put_count(bytes, kind::CREDIT, *count),
        Frame::Returned(count) => put_count(bytes, kind::RETURNED, *count),
        Frame::Close(why) => {
            let reason = if *why == Ended::Stream { STREAM } else { EPOCH };
            bytes.extend_from_slice(&[kind::CLOSE, reason]);
        }
    }
}

pub(crate) fn put_data(bytes: &mut Vec<u8>, data: &[u8]) {
    bytes.push(kind::DATA);
    bytes.extend_from_slice(data);
}

/// `first`: of the bytes of the arrival.
pub(crate) fn put_open(bytes: &mut Vec<u8>, arrival: &Arrival, first: &[u8]) {
    bytes.push(kind::OPEN);
    put_head(bytes, arrival);
    bytes.extend_from_slice(first);
}

/// Reads a frame.
///
/// # Errors
///
/// The bytes are not a valid frame.
pub fn decode(bytes: &[u8]) -> Result<Frame, RelayError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(RelayError { what: "a frame is longer than 68 KiB", at: 0 });
    }
    let mut reader = Reader(bytes);
    let frame = read(&mut reader).and_then(|frame| reader.end(frame));
    frame.map_err(|Unreadable(what)| RelayError { what, at: bytes.len() - reader.left() })
}

fn read(reader: &mut Reader<'_>) -> Result<Frame, Unreadable> {
    Ok(match reader.byte()? {
        kind::OPEN => Frame::Open(Box::new(arrival(reader)?)),
        kind::OPENED => Frame::Opened(count(reader)?),
        kind::REFUSED => Frame::Refused(match reader.byte()? {
            NOT_OWNER => Refused::NotOwner,
            NO_ROOM => Refused::NoRoom,
            _ => return Err(Unreadable("an unknown reason to refuse")),
        }),
        kind::DATA if reader.is_empty() => return Err(Unreadable("data without a byte")),
        kind::DATA => Frame::Data(reader.rest().to_vec()),
        kind::CREDIT => Frame::Credit(count(reader)?),
        kind::RETURNED => Frame::Returned(count(reader)?),
        kind::CLOSE => Frame::Close(match reader.byte()? {
            STREAM => Ended::Stream,
            EPOCH => Ended::Epoch,
            _ => return Err(Unreadable("an unknown reason to close")),
        }),
        _ => return Err(Unreadable("an unknown kind of frame")),
    })
}

fn put_count(bytes: &mut Vec<u8>, kind: u8, count: u32) {
    bytes.push(kind);
    put_number(bytes, count.into());
}

fn count(reader: &mut Reader<'_>) -> Result<u32, Unreadable> {
    match reader.number_u32()? {
        count @ 0..=CREDIT_BYTES_MAX => Ok(count),
        _ => Err(Unreadable("more than a credit can be")),
    }
}

fn put_head(bytes: &mut Vec<u8>, arrival: &Arrival) {
    let Arrival { peer, chain, listener, bytes: _ } = arrival;
    let PeerInfo { address, proxied_by, tls, proxy_tls, proxy_authority, is_websocket, unix } =
        peer;
    let parts = [
        (*is_websocket, flag::WEBSOCKET),
        (proxied_by.is_some(), flag::PROXIED),
        (tls.is_some(), flag::TLS),
        (proxy_tls.is_some(), flag::PROXY_TLS),
        (proxy_authority.is_some(), flag::AUTHORITY),
        (unix.is_some(), flag::UNIX),
    ];
    bytes.extend_from_slice(&[ARRIVAL_VERSION, flags(parts)]);
    put_address(bytes, address);
    if let Some(address) = proxied_by {
        put_address(bytes, address);
    }
    if let Some(tls) = tls {
        put_tls(bytes, tls);
    }
    if let Some(ProxyTls { is_verified, version, common_name, cipher }) = proxy_tls.as_deref() {
        let fields = [version, common_name, cipher].map(Option::as_deref);
        put_optional(bytes, u8::from(*is_verified), fields);
    }
    if let Some(authority) = proxy_authority {
        put_bytes(bytes, authority.as_bytes());
    }
    if let Some(UnixCredentials { process_id, user_id, group_id }) = unix {
        for id in [process_id.cast_unsigned(), *user_id, *group_id] {
            put_number(bytes, id.into());
        }
    }
    put_number(bytes, chain.len() as u64);
    chain.iter().for_each(|certificate| put_bytes(bytes, certificate));
    put_bytes(bytes, listener.as_bytes());
}

fn arrival(reader: &mut Reader<'_>) -> Result<Arrival, Unreadable> {
    let begin = reader.left();
    if reader.byte()? != ARRIVAL_VERSION {
        return Err(Unreadable("unsupported version of an arrival: upgrade the older node"));
    }
    let flags = reader.byte()?;
    let has = |flag| flags & flag != 0;
    if flags & !flag::ALL != 0 {
        return Err(Unreadable("an unknown flag of an arrival"));
    }
    let address = address(reader)?;
    let proxied_by = has(flag::PROXIED).then(|| self::address(reader)).transpose()?;
    let tls = has(flag::TLS).then(|| tls(reader)).transpose()?.map(Box::new);
    let proxy_tls = has(flag::PROXY_TLS).then(|| proxy_tls(reader)).transpose()?.map(Box::new);
    let proxy_authority = has(flag::AUTHORITY).then(|| reader.text()).transpose()?;
    let unix = has(flag::UNIX).then(|| unix(reader)).transpose()?;
    let mut chain = Vec::new();
    for _ in 0..reader.number()? {
        chain.push(reader.bytes()?.to_vec());
    }
    let listener = reader.text()?.to_owned();
    if begin - reader.left() > ARRIVAL_BYTES_MAX {
        return Err(Unreadable("an arrival is longer than 64 KiB"));
    }
    if reader.left() > CREDIT_BYTES_MIN as usize {
        return Err(Unreadable("an arrival has more of the client's bytes than the first credit"));
    }
    let is_websocket = has(flag::WEBSOCKET);
    let proxy_authority = proxy_authority.map(Into::into);
    let peer =
        PeerInfo { address, proxied_by, tls, proxy_tls, proxy_authority, is_websocket, unix };
    Ok(Arrival { peer, chain, listener, bytes: reader.rest().to_vec() })
}

fn put_address(bytes: &mut Vec<u8>, address: &PeerAddress) {
    match address {
        PeerAddress::Unix => bytes.push(0),
        PeerAddress::Inet(SocketAddr::V4(address)) => {
            bytes.push(4);
            bytes.extend_from_slice(&address.ip().octets());
            put_number(bytes, address.port().into());
        }
        PeerAddress::Inet(SocketAddr::V6(address)) => {
            bytes.push(6);
            bytes.extend_from_slice(&address.ip().octets());
            put_number(bytes, address.port().into());
            put_number(bytes, address.flowinfo().into());
            put_number(bytes, address.scope_id().into());
        }
    }
}

fn address(reader: &mut Reader<'_>) -> Result<PeerAddress, Unreadable> {
    Ok(PeerAddress::Inet(match reader.byte()? {
        0 => return Ok(PeerAddress::Unix),
        4 => {
            let ip = IpAddr::V4(Ipv4Addr::from(array(reader)?));
            SocketAddr::new(ip, reader.number_u16()?)
        }
        6 => {
            let (ip, port) = (Ipv6Addr::from(array(reader)?), reader.number_u16()?);
            let (flow, scope) = (reader.number_u32()?, reader.number_u32()?);
            SocketAddrV6::new(ip, port, flow, scope).into()
        }
        _ => return Err(Unreadable("an unknown kind of address")),
    }))
}

fn array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N], Unreadable> {
    let mut octets = [0; N];
    for octet in &mut octets {
        *octet = reader.byte()?;
    }
    Ok(octets)
}

fn put_tls(bytes: &mut Vec<u8>, tls: &TlsInfo) {
    let TlsInfo { version, cipher, server_name, alpn, is_resumed, certificate } = tls;
    let parts = [
        (*is_resumed, tls_flag::RESUMED),
        (server_name.is_some(), tls_flag::SERVER_NAME),
        (alpn.is_some(), tls_flag::ALPN),
        (certificate.is_some(), tls_flag::CERTIFICATE),
    ];
    bytes.push(flags(parts));
    let texts = [Some(*version), Some(*cipher), server_name.as_deref(), alpn.as_deref()];
    texts.into_iter().flatten().for_each(|text| put_bytes(bytes, text.as_bytes()));
    let Some(certificate) = certificate else { return };
    let CertificateInfo {
        common_name,
        subject,
        alternative_names,
        fingerprint_sha256,
        not_after_secs,
        is_unissued,
    } = &**certificate;
    bytes.push(u8::from(*is_unissued));
    put_bytes(bytes, common_name.as_bytes());
    put_bytes(bytes, subject.as_bytes());
    put_number(bytes, alternative_names.len() as u64);
    alternative_names.iter().for_each(|name| put_bytes(bytes, name.as_bytes()));
    put_bytes(bytes, fingerprint_sha256.as_bytes());
    put_number(bytes, *not_after_secs);
}

fn tls(reader: &mut Reader<'_>) -> Result<TlsInfo, Unreadable> {
    let flags = reader.byte()?;
    let has = |flag| flags & flag != 0;
    if flags & !tls_flag::ALL != 0 {
        return Err(Unreadable("an unknown flag of TLS"));
    }
    let version = TlsInfo::version_named(reader.text()?);
    let cipher = TlsInfo::cipher_named(reader.text()?);
    let server_name = has(tls_flag::SERVER_NAME).then(|| reader.text()).transpose()?;
    let alpn = has(tls_flag::ALPN).then(|| reader.text()).transpose()?;
    let certificate = has(tls_flag::CERTIFICATE).then(|| certificate(reader)).transpose()?;
    Ok(TlsInfo {
        version,
        cipher,
        server_name: server_name.map(Into::into),
        alpn: alpn.map(Into::into),
        is_resumed: has(tls_flag::RESUMED),
        certificate: certificate.map(Box::new),
    })
}

fn certificate(reader: &mut Reader<'_>) -> Result<CertificateInfo, Unreadable> {
    let is_unissued = match reader.byte()? {
        0 => false,
        1 => true,
        _ => return Err(Unreadable("neither 0 nor 1")),
    };
    let (common_name, subject) = (reader.text()?.to_owned(), reader.text()?.to_owned());
    let mut alternative_names = Vec::new();
    for _ in 0..reader.number()? {
        alternative_names.push(reader.text()?.to_owned());
    }
    Ok(CertificateInfo {
        common_name,
        subject,
        alternative_names,
        fingerprint_sha256: reader.text()?.to_owned(),
        not_after_secs: reader.number()?,
        is_unissued,
    })
}

fn proxy_tls(reader: &mut Reader<'_>) -> Result<ProxyTls, Unreadable> {
    let flags = reader.byte()?;
    if flags & !0b1111 != 0 {
        return Err(Unreadable("an unknown flag of the TLS of a proxy"));
    }
    let mut field = |bit: u8| {
        let text = (flags & 1 << bit != 0).then(|| reader.text()).transpose()?;
        Ok(text.map(str::to_owned))
    };
    let (version, common_name, cipher) = (field(1)?, field(2)?, field(3)?);
    Ok(ProxyTls { is_verified: flags & 1 != 0, version, common_name, cipher })
}

/// Flags, of which `first` is the lowest, then the fields that are present.
fn put_optional(bytes: &mut Vec<u8>, first: u8, fields: [Option<&str>; 3]) {
    let flag_of = |(bit, field): (u8, &Option<&str>)| u8::from(field.is_some()) << bit;
    bytes.push((1..).zip(&fields).map(flag_of).sum::<u8>() | first);
    fields.into_iter().flatten().for_each(|field| put_bytes(bytes, field.as_bytes()));
}

fn unix(reader: &mut Reader<'_>) -> Result<UnixCredentials, Unreadable> {
    let process_id = reader.number_u32()?.cast_signed();
    Ok(UnixCredentials {
        process_id,
        user_id: reader.number_u32()?,
        group_id: reader.number_u32()?,
    })
}

fn flags<const N: usize>(parts: [(bool, u8); N]) -> u8 {
    parts.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
}

/// The longest frame.
pub(crate) const FRAME_BYTES_MAX: usize = 1 + ARRIVAL_BYTES_MAX + CREDIT_BYTES_MIN as usize;

/// Of an arrival. A node that cannot read it closes the link.
const ARRIVAL_VERSION: u8 = 1;

const NOT_OWNER: u8 = 1;
const NO_ROOM: u8 = 2;
const STREAM: u8 = 1;
const EPOCH: u8 = 2;

mod kind {
    pub(super) const OPEN: u8 = 1;
    pub(super) const OPENED: u8 = 2;
    pub(super) const REFUSED: u8 = 3;
    pub(super) const DATA: u8 = 4;
    pub(super) const CREDIT: u8 = 5;
    pub(super) const RETURNED: u8 = 6;
    pub(super) const CLOSE: u8 = 7;
}

mod flag {
    pub(super) const WEBSOCKET: u8 = 1;
    pub(super) const PROXIED: u8 = 2;
    pub(super) const TLS: u8 = 4;
    pub(super) const PROXY_TLS: u8 = 8;
    pub(super) const AUTHORITY: u8 = 16;
    pub(super) const UNIX: u8 = 32;
    pub(super) const ALL: u8 = 63;
}

mod tls_flag {
    pub(super) const RESUMED: u8 = 1;
    pub(super) const SERVER_NAME: u8 = 2;
    pub(super) const ALPN: u8 = 4;
    pub(super) const CERTIFICATE: u8 = 8;
    pub(super) const ALL: u8 = 15;
}
