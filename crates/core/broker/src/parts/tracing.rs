//! What is traced, and packets that were written in part.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use codec::{Packet, Properties, Property, Version};
use session::Link;

use crate::parts::sampling::Spans;
use crate::words::connect_request::address_of;
use crate::words::settings::SpanSettings;
use crate::words::traced::{TraceFilter, Traced};
use crate::{Name, Scope};

/// What a shard traces now.
#[derive(Debug, Default)]
pub(crate) struct Tracing {
    pub(crate) filters: Arc<[TraceFilter]>,
    /// Packets to clients that are not written whole yet.
    pub(crate) partial: BTreeMap<u64, Partial>,
    /// Connections that had something to write when tracing began: where their next packet begins
    /// is not known before all of that is written.
    pub(crate) unknown: BTreeSet<u64>,
    pub(crate) lost: u64,
    /// None: messages get no spans.
    pub(crate) spans: Option<Box<Spans>>,
}

/// The beginning of a packet.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    pub(crate) head: Vec<u8>,
    /// Bytes of the whole packet; 0: not known yet.
    len: usize,
    taken: usize,
}

/// What is traced of a connection while its packets are dealt with.
#[derive(Debug)]
pub(crate) struct TracedConnection {
    pub(crate) traces: u8,
    scope: Scope,
    client_id: Box<str>,
    address: Box<str>,
    pub(crate) version: Version,
    /// Bytes of the input that were noted.
    pub(crate) noted: usize,
    /// Topic aliases that were set on the way.
    aliases: BTreeMap<u16, Box<str>>,
}

impl Tracing {
    /// None: messages get no spans, and nothing is traced at first.
    pub(crate) fn new(spans: Option<SpanSettings>, seed: u64) -> Option<Box<Self>> {
        let spans = Box::new(Spans::new(spans?, seed));
        Some(Box::new(Self::of_spans(spans)))
    }

    pub(crate) fn of_spans(spans: Box<Spans>) -> Self {
        let (partial, unknown) = (BTreeMap::new(), BTreeSet::new());
        Self { filters: Arc::default(), partial, unknown, lost: 0, spans: Some(spans) }
    }

    pub(crate) fn traces(&self, scope: Scope, client_id: &str, peer: &str) -> u8 {
        let about = self.filters.iter().filter(|own| own.is_about(scope, client_id, peer));
        about.fold(0, |bits, filter| bits | filter.bit())
    }

    /// Those that are about messages only.
    pub(crate) fn of_topics(&self) -> u8 {
        let of_topics = self.filters.iter().filter(|own| own.topic.is_some());
        of_topics.fold(0, |bits, filter| bits | filter.bit())
    }

    pub(crate) fn connection(&self, client: Name<'_>, link: &Link) -> Option<TracedConnection> {
        let traces = self.traces(client.scope(), client.text(), &link.peer);
        (traces != 0).then(|| TracedConnection {
            traces,
            scope: client.scope(),
            client_id: client.text().into(),
            address: link.peer.clone(),
            version: link.version(),
            noted: 0,
            aliases: BTreeMap::new(),
        })
    }
}

impl TracedConnection {
    pub(crate) fn blank(&self, at_ms: u64) -> Traced {
        Traced {
            traces: self.traces,
            at_ms,
            scope: self.scope,
            client_id: self.client_id.clone(),
            address: self.address.clone(),
            ..Traced::default()
        }
    }

    /// The topic of a PUBLISH of the client, with its alias resolved.
    pub(crate) fn topic_of(
        &mut self,
        packet: &Packet<'_>,
        known: impl FnOnce(u16) -> Option<Box<str>>,
    ) -> Option<Box<str>> {
        let Packet::Publish(publish) = packet else { return None };
        match (publish.topic, alias_of(publish.properties)) {
            ("", Some(alias)) => self.aliases.get(&alias).cloned().or_else(|| known(alias)),
            (topic, Some(alias)) => {
                self.aliases.insert(alias, topic.into());
                Some(topic.into())
            }
            (topic, None) => Some(topic.into()),
        }
    }

    pub(crate) fn topic_of_sent<'a>(
        &self,
        packet: &Packet<'_>,
        known: impl FnOnce(u16) -> Option<&'a [u8]>,
    ) -> Option<Box<str>> {
        let Packet::Publish(publish) = packet else { return None };
        match alias_of(publish.properties).filter(|_| publish.topic.is_empty()) {
            Some(alias) => known(alias).map(|topic| String::from_utf8_lossy(topic).into()),
            None => Some(publish.topic.into()),
        }
    }
}

impl Partial {
    pub(crate) const fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// Takes what was written next, and reports each packet that is whole by now, with its
    /// beginning and its length.
    pub(crate) fn take(&mut self, mut bytes: &[u8], report: &mut dyn FnMut(&[u8], usize)) {
        while let Some(first) = bytes.first() {
            if self.len == 0
                && self.head.is_empty()
                && let Ok(Some(len)) = codec::packet_len(bytes)
                && let Some((packet, rest)) = bytes.split_at_checked(len)
            {
                report(&packet[..len.min(HEAD_BYTES_MAX)], len);
                bytes = rest;
                continue;
            }
            if self.len == 0 {
                self.head.push(*first);
                bytes = &bytes[1..];
                // What the broker writes has a length.
                self.len = codec::packet_len(&self.head).ok().flatten().unwrap_or_default();
                self.taken = self.head.len();
            } else {
                let count = bytes.len().min(self.len - self.taken);
                let room = HEAD_BYTES_MAX.saturating_sub(self.head.len()).min(count);
                self.head.extend_from_slice(&bytes[..room]);
                self.taken += count;
                bytes = &bytes[count..];
            }
            if self.len > 0 && self.taken >= self.len {
                report(&self.head, self.len);
                self.head.clear();
                (self.len, self.taken) = (0, 0);
            }
        }
    }
}

impl TraceFilter {
    pub(crate) const fn bit(&self) -> u8 {
        1 << self.number
    }

    fn is_about(&self, scope: Scope, client_id: &str, peer: &str) -> bool {
        let is_from = |wanted: &RangeInclusive<IpAddr>| {
            address_of(peer).is_some_and(|address| wanted.contains(&address))
        };
        self.scope.is_none_or(|wanted| wanted == scope)
            && self.client_id.as_deref().is_none_or(|wanted| wanted == client_id)
            && self.addresses.as_ref().is_none_or(is_from)
    }
}

pub(crate) fn alias_of(properties: Properties<'_>) -> Option<u16> {
    properties.iter().find_map(|property| match property {
        Property::TopicAlias(alias) => Some(alias),
        _ => None,
    })
}

/// Bytes of a packet that are looked at.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1_024;
