//! What operators ask of a shard, and what it answers: the core of the management API.
//!
//! A question takes a bounded part of a turn: it is answered by a page, and the place where the
//! next one begins. Only a publish is answered later, once the message is as firmly kept, by all
//! that have to store it, as an acknowledgement promises its publisher.
//!
//! A place is stable for what stays: who comes and goes between two pages may be missing, and
//! nobody gets two answers.

use std::ops::RangeInclusive;

use codec::{Reason, Version};
use core::net::IpAddr;
use policy::{Action, Attributes, Explanation, Manner, Principal};
use session::{Dropped, Message, Tally};
use topic::{Child, Cursor};

use crate::{Scope, SessionKey};

/// Rows of a page at most, whatever is asked for; at least one row is.
pub const PAGE_ROWS: u32 = 100;

/// Sessions or groups that are looked at for a page, some 0.1 us each.
pub const PAGE_LOOKS: u32 = 1_000;

/// One request.
#[derive(Clone, Debug)]
pub enum Command {
    /// Those of the sessions, from a place on, that are wanted.
    Sessions { from: u32, max: u32, wanted: Wanted },
    /// One session.
    Session(Box<str>),
    /// What one session is subscribed to.
    Subscriptions { client_id: Box<str>, from: u32, max: u32 },
    /// Subscriptions of all sessions that are wanted.
    AllSubscriptions { from: SubscriptionPlace, max: u32, wanted: WantedSubscriptions },
    /// The levels below a topic in the tree of the retained messages here; none: those of the root.
    /// Behind the level `after`.
    Levels { parent: Option<Box<str>>, after: Option<Box<[u8]>>, max: u32 },
    /// May a client do something, and what decides it?
    Explain(Box<Question>),
    /// Who in this shard gets a message on the topic; shared groups are listed apart.
    Receivers { topic: Box<str>, from: u32, max: u32 },
    /// The shared groups whose home this shard is; without a scope those of all.
    Groups { within: Option<Scope>, from: u32, max: u32 },
    /// The members of one, as any shard knows them.
    Members { share: Box<str>, filter: Box<str>, from: u32, max: u32 },
    /// The clients here that lose messages; without a scope those of all.
    Droppers { within: Option<Scope> },
    /// The client ids of sessions of this shard.
    Names(Vec<SessionKey>),
    /// Retained messages that have their home here.
    Retained { filter: Box<str>, after: Option<Cursor>, max: u32 },
    /// In which of these scopes, all of whose clients of this id have their home here, there is
    /// such a client. Of more than [`PAGE_LOOKS`] the others are not looked at.
    Homes { client_id: Box<str>, scopes: Vec<Scope> },
    /// Ends the connection of a client: 0x98, administrative action.
    Kick(Box<str>),
    /// Ends a session and its connection, with all that waits for it.
    Purge(Box<str>),
    /// Ends the connections of those who are banned, in one scope or in all, from a place on.
    EndBanned { from: u32, within: Option<Scope>, whom: Whom },
    /// Ends the connections of those of the sessions that are wanted, from a place on.
    Disconnect { from: u32, wanted: Wanted },
    /// Makes those of the sessions that are wanted forget the answers of the authorization service.
    ForgetVerdicts { from: u32, wanted: Wanted },
    /// Publishes a message, which may be retained.
    Publish(Publication),
    /// Ends connections of the namespace.
    CutOff { from: u32 },
    /// Deletes sessions and retained messages of the namespace.
    Empty { from: u32 },
}

/// Which sessions are wanted: those that meet all that is set.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// None: of all scopes.
    pub scope: Option<Scope>,
    /// Part of the client id.
    pub id_part: Option<Box<str>>,
    /// The whole user name; empty: those without one.
    pub username: Option<Box<str>>,
    /// How the address begins.
    pub address: Option<Box<str>>,
    pub connected: Option<bool>,
    /// The least that waits for it, in messages.
    pub queued_min: u64,
}

/// What a client may want to do.
#[derive(Clone, Debug)]
pub struct Question {
    pub who: Asker,
    pub action: Action,
    /// A topic, or a filter where the action is to subscribe.
    pub topic: Box<str>,
    pub manner: Manner,
}

/// Of whom it is asked.
#[derive(Clone, Debug)]
pub enum Asker {
    /// The client of a session, with all that is known of it.
    Session(Box<str>),
    /// One that would be like this.
    Described {
        client_id: Box<str>,
        username: Option<Box<str>>,
        principal: Option<Box<Principal>>,
        address: Option<IpAddr>,
        /// Empty: not known.
        listener: Box<str>,
    },
}

/// What was asked, and of whom.
#[derive(Clone, Debug)]
pub struct Explained {
    pub explanation: Explanation,
    pub username: Option<Box<str>>,
    pub attributes: Attributes,
    pub is_connected: bool,
}

/// Which subscriptions are wanted: those that meet all that is set.
#[derive(Clone, Debug, Default)]
pub struct WantedSubscriptions {
    /// None: of all scopes.
    pub scope: Option<Scope>,
    /// Part of the client id.
    pub id_part: Option<Box<str>>,
    /// The whole filter, without a share name.
    pub filter: Option<Box<str>>,
    /// A topic that the filter matches.
    pub topic: Option<Box<str>>,
    pub is_shared: Option<bool>,
}

/// Where a list of subscriptions goes on: the session, and how many of it were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionPlace {
    pub slot: u32,
    pub count: u32,
}

/// Whom a ban means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    Client(Box<str>),
    User(Box<str>),
    /// From one of them.
    Addresses(RangeInclusive<IpAddr>),
}

/// A message of an operator's.
#[derive(Clone, Debug)]
pub struct Publication {
    /// One that clients may publish to; else only an empty retained message is accepted, which
    /// clears what is retained there and goes to nobody.
    pub topic: Box<str>,
    /// As on the wire, without an expiry.
    pub properties: Box<[u8]>,
    pub payload: Box<[u8]>,
    pub qos: codec::QoS,
    pub retain: bool,
    pub expiry_secs: Option<u32>,
    pub durability: crate::Durability,
}

/// The answer to a [`Command`], of the same name where the question has one.
#[derive(Clone, Debug)]
pub enum Answer {
    Sessions(Page<SessionView>),
    Session(Option<Box<SessionView>>),
    Subscriptions(Option<Page<SubscriptionView>>),
    AllSubscriptions(Page<OwnedSubscription, SubscriptionPlace>),
    Levels {
        rows: Vec<Child>,
        has_more: bool,
    },
    /// None: there is no such session.
    Explained(Option<Box<Explained>>),
    Receivers(Page<ReceiverView>),
    Groups(Page<GroupView>),
    /// None: there is no such group.
    Members(Option<Page<MemberView>>),
    Droppers(Vec<DropsView>),
    /// In the order of the question; none for a session that has ended.
    Names(Vec<Option<Box<str>>>),
    /// Each with whether the client is connected.
    Homes(Vec<(Scope, bool)>),
    Retained {
        messages: Vec<Message>,
        after: Option<Cursor>,
    },
    /// Was there something to change?
    Done(bool),
    /// Where to go on; none: that was all.
    Ended(Option<u32>),
    /// What an acknowledgement would say.
    Published(Reason),
    Swept(Swept),
}

/// What a part of a sweep came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Connections, sessions and retained messages that there were.
    pub found: u32,
    /// Where the next part begins. None: this was the last.
    pub next: Option<u32>,
}

/// Some rows, and where the next are.
#[derive(Clone, Debug)]
pub struct Page<T, P = u32> {
    pub rows: Vec<T>,
    /// None: these were the last.
    pub next: Option<P>,
}

/// A client that loses messages.
#[derive(Clone, Debug)]
pub struct DropsView {
    pub scope: Scope,
    pub client_id: Box<str>,
    /// Of each reason.
    pub messages: Vec<(Dropped, u64)>,
    /// When they were reported, in broker time.
    pub first_ms: u64,
    pub last_ms: u64,
}

/// A session as operators see it.
#[derive(Clone, Debug)]
pub struct SessionView {
    pub scope: Scope,
    pub client_id: Box<str>,
    pub username: Option<Box<str>>,
    pub connection: Option<ConnectionView>,
    /// Seconds that it outlives its connection; `u32::MAX`: for ever.
    pub expiry_secs: u32,
    /// In broker time, or [`session::NEVER`].
    pub expires_at_ms: u64,
    pub is_durable: bool,
    pub has_will: bool,
    pub subscriptions: u64,
    pub shared_subscriptions: u64,
    /// Messages that wait for room in its window, in memory and in the journal.
    pub queued: u64,
    /// Of those in memory.
    pub queued_bytes: u64,
    pub in_flight: u64,
    /// QoS 2 publishes of the client that it has not released yet.
    pub incoming: u64,
    /// Not in a list.
    pub details: Option<Box<SessionDetails>>,
}

/// What is known of one session beyond what a list says.
#[derive(Clone, Debug, Default)]
pub struct SessionDetails {
    pub principal: Option<Box<Principal>>,
    pub will: Option<WillView>,
    /// Messages it has lost lately, by reason; all 0 unless its shard remembers it.
    pub dropped: Vec<(Dropped, u64)>,
}

/// A will, without its payload.
#[derive(Clone, Debug)]
pub struct WillView {
    pub topic: Box<str>,
    pub payload_bytes: u64,
    pub qos: u8,
    pub retain: bool,
    pub delay_secs: u32,
}

/// A connection as operators see it.
#[derive(Clone, Debug)]
pub struct ConnectionView {
    pub connection: u64,
    /// In broker time.
    pub connected_ms: u64,
    pub listener: Box<str>,
    pub tally: Tally,
    /// Version and cipher suite, which only the driver knows.
    pub tls: Option<(&'static str, &'static str)>,
    pub address: Box<str>,
    pub version: Version,
    pub keep_alive_secs: u16,
    /// When its last packet came, in broker time.
    pub last_packet_ms: u64,
    pub send_max: u16,
    pub unsent_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct SubscriptionView {
    pub filter: Box<str>,
    pub share: Option<Box<str>>,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// 0: none.
    pub identifier: u32,
}

/// A subscription, and whose it is.
#[derive(Clone, Debug)]
pub struct OwnedSubscription {
    pub scope: Scope,
    pub client_id: Box<str>,
    pub subscription: SubscriptionView,
}

/// Who gets a message on a topic.
#[derive(Clone, Debug, Default)]
pub struct ReceiverView {
    /// Empty for a shared group.
    pub client_id: Box<str>,
    pub share: Option<Box<str>>,
    pub filter: Box<str>,
    pub qos: u8,
    pub connected: bool,
    /// The access rules let it have messages on this topic.
    pub allowed: bool,
}

/// A shared group, as its home sees it.
#[derive(Clone, Debug)]
pub struct GroupView {
    pub scope: Scope,
    pub share: Box<str>,
    pub filter: Box<str>,
    pub members: u64,
    pub online: u64,
    /// Messages that no member could take yet.
    pub waiting: u64,
}

#[derive(Clone, Debug)]
pub struct MemberView {
    pub key: SessionKey,
    pub qos: u8,
    pub connected: bool,
    pub in_flight: u64,
}

/// So many rows are given to who asks for as many.
pub(crate) fn rows_of(max: u32) -> u32 {
    max.clamp(1, PAGE_ROWS)
}

impl<T, P: Copy> Page<T, P> {
    pub(crate) const fn of(rows: Vec<T>, next: Option<P>) -> Self {
        Self { rows, next }
    }
}
