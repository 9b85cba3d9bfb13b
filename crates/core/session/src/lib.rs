//! One client's protocol state: what it may send, and what it must be sent.
//!
//! A [`Session`] joins three parts with three lifetimes:
//!
//! - [`Outgoing`]: deliveries in flight and waiting; outlives the connection,
//! - [`Incoming`]: packet ids of unfinished QoS 2 publishes; outlives the connection,
//! - [`Link`]: everything that ends with the network connection: version, receive maxima, topic
//!   aliases, acknowledgements to send, the outbox. A resumed session gets a fresh link, so
//!   no flow-control state can survive a reconnect by accident.
//!
//! It does **not** know: sockets, other clients, subscriptions, storage, clocks. Time is an
//! argument in milliseconds; bytes leave through the [`Outbox`], which the driver drains.
//!
//! Start reading at [`Session::on_publish`] and [`Session::offer`].
//!
//! Invariants: packets of QoS 1 and 2 enter the outbox in the order in which they were offered;
//! acknowledgements leave in the order of the publishes they answer (MQTT-4.6.0-2); at most
//! `min(receive maximum, in_flight_max)` publishes are unacknowledged at any time (MQTT-3.3.4-9).

#![forbid(unsafe_code)]

mod account;
mod alias;
mod awaited;
mod bucket;
mod incoming;
mod layout;
mod link;
mod message;
mod outbox;
mod outgoing;
mod read_pauses;
mod session;
mod waiting;
mod will;

pub use account::{
    Account, Group, GroupJournals, GroupPart, JOURNALS_MAX, Lack, MemoryKind, Pot, Pots,
};
pub use alias::{InboundAliases, OutboundAliases};
pub use awaited::{Awaited, Respondent};
pub use bucket::{Bucket, Rate};
pub use incoming::Incoming;
pub use layout::Template;
pub use link::{
    Answer, Dirt, Link, LinkSettings, PendingAck, Publishing, Rates, Tally, Turn, large_packet_len,
};
pub use message::{LARGE_BYTES_MIN, Message, MessageParts, NEVER, Traits};
pub use outbox::{Control, Controls, Outbox, SPLICE_BYTES_MIN};
pub use outgoing::{Acked, Delivery, Identifiers, Origin, Outgoing, Sent, Terms, UNLOGGED};
pub use read_pauses::{PauseReason, ReadPauses};
pub use session::{Dropped, Inbound, Offered, Overflow, QueueLimit, QueueLimits, Session};
pub use waiting::{Amount, Expires, ExpiringQueue, Lifetimes};
pub use will::Will;
