//! The broker's core: shards that take events and give effects.
//!
//! A [`Shard`] owns the sessions of the clients that hash to it, their subscriptions, and the
//! retained messages of the topics that hash to it. Shards tell each other by [`Mail`]; the little
//! they share is wait-free, but for the names of groups ([`Shared`]). Connections reach a shard
//! after the door has admitted them ([`admission`]).
//!
//! It does **not** know: async, sockets, clocks, threads, files. Time is an argument in
//! milliseconds since the Unix epoch that never goes back. Two drivers exist: the server's workers
//! and the simulator.
//!
//! Start reading at [`Shard::on_bytes`]; a message's way is `publish.rs`, then `deliver.rs`, on
//! another shard after `Mail::Publish`.
//!
//! Invariants: a subscriber is only ever touched by its own shard; mail between two shards keeps
//! its order; an acknowledgement is written only when every place that has to answer has.

#![forbid(unsafe_code)]

pub mod admission;
mod broadcast;
mod buffers;
mod calendar;
mod client;
mod clients;
pub mod command;
mod connect;
mod deliver;
mod denied;
mod dirty;
mod durable;
mod effects;
mod ending;
mod event;
mod greed;
mod group;
mod group_names;
mod groups;
mod heard;
mod holds;
mod inbox;
pub mod journal;
mod lanes;
mod ledger;
mod load;
mod mail;
mod members;
mod metrics;
mod name;
pub mod names;
mod news;
mod numbers;
mod pace;
mod publish;
mod remains;
mod retain;
mod room;
mod router;
mod rules;
mod settings;
mod shard;
mod shared;
mod space;
mod subscribe;
mod subscriptions;
mod sure;
pub mod sys;
mod waits;
mod wheel;
mod work;

pub use calendar::{Calendar, CalendarNote};
pub use client::{CLIENT_BYTES, Gauge};
pub use command::{Answer, Command};
pub use connect::{ConnectRequest, Who};
pub use dirty::BROADCAST_MIN;
pub use durable::{Replay, Restored, Unreadable, settle};
pub use effects::{Close, Effects, Reauthenticate, Reauthenticated};
pub use event::{Ended, Event, Told};
pub use group_names::GroupName;
pub use ledger::{Holder, Ledger};
pub use mail::{Confirm, GroupWay, Mail, RetainedQuery, SessionKey, ShardId};
pub use members::Member;
pub use metrics::{Counter, Description, Kind, Metrics};
pub use name::{GroupText, Name, Scope};
pub use numbers::{CONNECTIONS_MAX, NO_CONNECTION, Numbers, key_of};
pub use rules::Rules;
pub use settings::{
    Durability, Limits, MAIL_BYTES_MAX, SessionOwner, Settings, ShareStrategy, TURN_UNITS, WhenFull,
};
pub use shard::{Rest, Shard};
pub use shared::{Memory, Shared};
pub use space::{Quota, Space, Spaces};
pub use waits::Waits;
