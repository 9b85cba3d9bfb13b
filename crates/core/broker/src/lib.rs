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
//! Start reading at [`Shard::on_bytes`]; a message's way is `publish/check.rs`, then
//! `deliver/copies.rs`, on another shard after `Mail::Publish`.
//!
//! Invariants: a subscriber is only ever touched by its own shard; mail between two shards keeps
//! its order; an acknowledgement is written only when every place that has to answer has.

#![forbid(unsafe_code)]

pub mod cells;
mod deliver;
mod life;
mod log;
mod observe;
mod pace;
mod parts;
mod publish;
mod retain;
mod shard;
mod share;
mod state;
mod words;

pub use life::connect::Who;
pub use log::facts as journal;
pub use log::handovers::HandoverFlaw;
pub use log::replay::{Replay, Restored, Unreadable};
pub use observe::trace::{TRACED_PAYLOAD_BYTES_MAX, TRACES_MAX};
pub use parts::barrier::RetainedFlaw;
pub use parts::client::CLIENT_BYTES;
pub use parts::effects::{Close, Effects, Reauthenticate, Reauthenticated};
pub use parts::flow::BROADCAST_MIN;
pub use parts::sampling::{
    RECEIVED_PER_CLIENT_MAX, RECEIVED_PER_SECOND_MAX, SENT_PER_SECOND_MAX, SPANS_PER_MESSAGE_MAX,
};
pub use parts::work::Work;
pub use shard::restore::settle;
pub use state::Shard;
pub use words::access_question::{AccessQuestion, ServiceAnswer};
pub use words::calendar::{Calendar, CalendarNote};
pub use words::command::{Answer, Command};
pub use words::connect_request::ConnectRequest;
pub use words::connection_numbers::{CONNECTIONS_MAX, NO_CONNECTION, Numbers, key_of};
pub use words::event::{Ended, Event, ReportedFilters};
pub use words::group_names::GroupName;
pub use words::homes::{Home, Homes, PLACES_MAX, Place};
pub use words::input::Rest;
pub use words::ledger::{Consumer, Ledger};
pub use words::mail::{BarrierKind, Confirm, GroupWay, Mail, RetainedQuery, SessionKey, ShardId};
pub use words::member::{Member, MemberLoad};
pub use words::metrics::{Counter, Counters, Description, Figure, MetricType, Metrics};
pub use words::name::{GroupText, Name, Scope};
pub use words::namespace::{Quota, Space, Spaces};
pub use words::rules::Rules;
pub use words::settings::{
    Durability, Limits, MAIL_BYTES_MAX, ServiceSettings, SessionOwner, Settings, ShareStrategy,
    SpanSettings, TURN_UNITS, WhenFull,
};
pub use words::shared::{Memory, Shared};
pub use words::span::{SPANS_MAX, Span, SpanKind, TraceContext};
pub use words::traced::{TraceFilter, Traced, TracedDetails};
pub use words::waits::Waits;
pub use words::{admission, command, stream_set as streams, sys, topics as names};
