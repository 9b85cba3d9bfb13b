//! The broker's core: shards that take events and give effects.
//!
//! A [`Shard`] owns the sessions of the clients that hash to it, their subscriptions, and the
//! retained messages of the topics that hash to it. Shards communicate by [`Mail`]; the little
//! they share is wait-free, but for the names of groups ([`Shared`]). Connections reach a shard
//! after an acceptor has admitted them ([`admission`]).
//!
//! It does **not** know: async, sockets, clocks, threads, files. Time is an argument in
//! milliseconds since the Unix epoch that never goes back. The crate `driver` drives shards; the
//! server and the simulator are its hosts.
//!
//! Start reading at [`Shard::on_bytes`]; a message's way is `routing/publish.rs`, then
//! `routing/deliver.rs`, on another shard after `Mail::Publish`.
//!
//! Invariants: a subscriber is only ever touched by its own shard; mail between two shards keeps
//! its order; an acknowledgement is written only when every place that has to answer has.

#![forbid(unsafe_code)]

mod clients;
pub mod command;
mod durable;
mod expected;
mod flow;
mod groups;
pub mod journal;
mod limits;
pub mod names;
mod retained;
mod routing;
mod shard;
mod stats;
pub mod streams;

pub use clients::admission;
pub use clients::client::{CLIENT_BYTES, MemberLoad};
pub use clients::connect::{ConnectRequest, Who};
pub use clients::verdicts::{AccessQuestion, ServiceAnswer, ServiceSettings};
pub use command::{Answer, Command};
pub use durable::{Replay, Restored, Unreadable, settle};
pub use flow::BROADCAST_MIN;
pub use flow::work::Work;
pub use groups::group_names::GroupName;
pub use groups::members::Member;
pub use limits::ledger::{Consumer, Ledger};
pub use limits::namespace::{Quota, Space, Spaces};
pub use limits::rules::Rules;
pub use limits::settings::{
    Durability, Limits, MAIL_BYTES_MAX, SessionOwner, Settings, ShareStrategy, TURN_UNITS, WhenFull,
};
pub use names::name::{GroupText, Name, Scope};
pub use shard::calendar::{Calendar, CalendarNote};
pub use shard::connection_numbers::{CONNECTIONS_MAX, NO_CONNECTION, Numbers, key_of};
pub use shard::effects::{Close, Effects, Reauthenticate, Reauthenticated};
pub use shard::event::{Ended, Event, ReportedFilters};
pub use shard::mail::{Confirm, GroupWay, Mail, RetainedQuery, SessionKey, ShardId};
pub use shard::shared::{Memory, Shared};
pub use shard::spans::{
    RECEIVED_PER_CLIENT_MAX, RECEIVED_PER_SECOND_MAX, SENT_PER_SECOND_MAX, SPANS_MAX,
    SPANS_PER_MESSAGE_MAX, Span, SpanKind, SpanSettings, TraceContext,
};
pub use shard::trace::{TRACED_PAYLOAD_BYTES_MAX, TRACES_MAX, TraceFilter, Traced, TracedDetails};
pub use shard::waits::Waits;
pub use shard::{Rest, Shard};
pub use stats::metrics::{Counter, Counters, Description, Figure, MetricType, Metrics};
pub use stats::sys;
