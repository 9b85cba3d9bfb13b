//! MQTT bytes to borrowed packets and back: versions 3.1, 3.1.1 and 5 in one path.
//!
//! [`decode`] takes a packet off the front of a buffer without allocating; a breach of the
//! standard comes back as a [`Violation`] that names its clause. Every packet has an `encode` that
//! appends it to a buffer.
//!
//! **Does not know:** sockets, async, sessions, what was sent before, the syntax of topic filters,
//! which client identifiers a server accepts.
//!
//! **Start reading** at [`decode`] in `packet.rs`, then `publish.rs`, the packet that matters;
//! `rules.rs` lists every rule that is enforced, `header.rs` what is refused before a body has
//! arrived.
//!
//! **Invariants**
//! - Decoding a prefix of a packet gives `None`, or the violation that the whole packet gives.
//! - What was decoded is valid: text is UTF-8, lists are not empty, properties may stand where
//!   they stand. Lazy readers of raw bytes ([`Properties`], [`Filters`], [`Topics`]) rely on it.
//! - A decoded packet encodes to a packet that decodes to the same value.
//! - No allocation in decoding, no unsafe code, no panic on any input.

#![forbid(unsafe_code)]

mod ack;
mod connect;
mod disconnect;
mod header;
mod outside;
mod packet;
mod properties;
mod publish;
mod reader;
mod reason;
mod rules;
mod subscribe;
mod text;
pub mod varint;
mod version;
mod violation;
mod writer;

pub use ack::{Ack, AckKind};
pub use connect::{Connack, Connect, Will};
pub use disconnect::{Auth, Disconnect};
pub use outside::{check_name, check_publish_properties};
pub use packet::{Packet, decode, decode_behind, packet_len};
pub use properties::{Properties, Property, PropertyBuf, PropertyIter};
pub use publish::Publish;
pub use reason::Reason;
pub use subscribe::{
    FilterBuf, Filters, RetainHandling, Suback, Subscribe, SubscribeOptions, TopicBuf, Topics,
    Unsuback, Unsubscribe,
};
pub use version::{NotAQoS, QoS, Sender, Version};
pub use violation::Violation;
