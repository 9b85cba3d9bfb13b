//! What a trace tells, and of whom.

use core::net::IpAddr;
use std::ops::RangeInclusive;

use crate::Scope;

/// What one trace is about: packets that meet all that is set.
#[derive(Clone, Debug, Default)]
pub struct TraceFilter {
    /// Below [`crate::TRACES_MAX`]; no two have the same.
    pub number: u8,
    pub scope: Option<Scope>,
    pub client_id: Option<Box<str>>,
    pub addresses: Option<RangeInclusive<IpAddr>>,
    /// PUBLISH packets whose topic this filter matches, and no others.
    pub topic: Option<Box<str>>,
    pub payload_bytes: u16,
}

/// A packet, or the end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    /// A bit for each trace that it belongs to.
    pub traces: u8,
    /// In broker time.
    pub at_ms: u64,
    pub scope: Scope,
    pub client_id: Box<str>,
    pub address: Box<str>,
    pub is_from_client: bool,
    /// The type of the packet; `closed`: the connection has ended.
    pub packet: &'static str,
    pub bytes: u64,
    pub details: TracedDetails,
    /// So many were not noted since the one before.
    pub lost_before: u64,
}

/// What there is to say of some types only.
#[derive(Clone, Debug, Default)]
pub struct TracedDetails {
    pub topic: Option<Box<str>>,
    /// Filters of SUBSCRIBE and UNSUBSCRIBE, the first of them.
    pub filters: Vec<Box<str>>,
    pub packet_id: Option<u16>,
    pub qos: Option<u8>,
    pub retain: bool,
    pub dup: bool,
    /// Reason codes, the first of them.
    pub reasons: Vec<u8>,
    pub payload_bytes: Option<u64>,
    /// As much as a trace has asked for.
    pub payload: Box<[u8]>,
    /// Of CONNECT and `closed`.
    pub text: Box<str>,
}
