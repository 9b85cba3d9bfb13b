//! What a shard keeps for one client id.

use std::collections::BTreeSet;
use std::sync::Arc;

use codec::Publish;
use policy::{ClientLocation, Grants, Identity, Principal};
use session::{NEVER, Session, Will};

use crate::parts::flow::{
    DRAIN_BYTES_PER_MS, LARGE_PART, LONG_QUEUE_BYTES, MESSAGE_BYTES_MIN, PAUSE_MS, URGENT_PAUSE_MS,
};
use crate::parts::notices::ClientNotices;
use crate::parts::subscriptions::Done;
use crate::parts::subscriptions::Subscriptions;
use crate::parts::verdicts::Verdicts;
use crate::words::connect_request::address_of;
use crate::words::ledger::Charged;
use crate::words::member::MemberLoad;
use crate::words::publisher::{KnownPublisher, Publisher};
use crate::words::rules::Rules;
use crate::{Limits, NO_CONNECTION, Name, RetainedQuery, Scope, SessionKey};

/// Bytes of what a shard keeps for each client, without what it points to: for capacity planning.
pub const CLIENT_BYTES: usize = size_of::<Client>();

/// What a session counts for that outlives its connection, beside what its client chooses the size
/// of: with its entries in tables about what it takes.
/// (`crates/proof/rig/tests/allocations.rs` compares it with the allocator's word.)
pub(crate) const SESSION_BYTES: usize = 576;

/// What the log has in memory for a kept session, beside what only few need.
pub(crate) const KEPT_SESSION_BYTES: usize = 104;

/// What it takes to know who a client is, beside its client id.
pub(crate) fn identity_bytes(username: Option<&str>, principal: Option<&Principal>) -> usize {
    username.map_or(0, str::len) + principal.map_or(0, Principal::bytes)
}

pub(crate) fn will_bytes(will: Option<&Will>) -> usize {
    will.map_or(0, |will| {
        size_of::<Will>() + will.topic.len() + will.properties.len() + will.payload.len()
    })
}

/// What only few sessions need.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    /// Filters whose retained messages are to be sent, once there is room and those before them
    /// are. One that is asked for again while it waits is sent once for both.
    pub(crate) retained_wanted: BTreeSet<Box<str>>,
    /// Retained messages still to be fetched: the next page is asked for when there is room.
    pub(crate) retained_next: Vec<RetainedQuery>,
    /// The pages that are under way: some 100, or one for each shard.
    pub(crate) retained_asked: Vec<AskedPage>,
    /// Topics on which a newer retained message came while a page was under way: the page may be
    /// older than it.
    pub(crate) retained_fresh: Vec<(Box<str>, u32)>,
    /// Subscriptions that have asked. Beside a fresh topic stands how many had by then: a page for
    /// a later one is not older.
    pub(crate) retained_asks: u32,
    /// What is wanted is asked for when this question of the barrier is answered. 0: at once.
    pub(crate) retained_barrier: u64,
    pub(crate) notices: ClientNotices,
    /// How far the SUBSCRIBE or UNSUBSCRIBE has got that is being handled.
    pub(crate) request: Option<Box<Done>>,
    /// Of its connection, where a service is asked.
    pub(crate) verdicts: Option<Box<Verdicts>>,
}

/// A page of retained messages that another shard was asked for.
#[derive(Debug)]
pub(crate) struct AskedPage {
    pub(crate) number: u64,
    /// None: the subscription that asked was given up or replaced. Its filter may have been
    /// subscribed again, which entitles that subscription to nothing of this page.
    pub(crate) filter: Option<Arc<str>>,
}

impl Extras {
    /// Nothing is sent that a subscription to this filter has asked for so far. Pages that are
    /// under way still count as such.
    pub(crate) fn give_up_retained(&mut self, filter: &str) {
        self.retained_wanted.remove(filter);
        self.retained_next.retain(|query| *query.filter != *filter);
        for page in &mut self.retained_asked {
            page.filter.take_if(|known| **known == *filter);
        }
    }

    /// A page has come. None: it was not asked for, or has come before. Else, is it still wanted?
    pub(crate) fn take_asked(&mut self, number: u64) -> Option<bool> {
        let index = self.retained_asked.iter().position(|page| page.number == number)?;
        Some(self.retained_asked.swap_remove(index).filter.is_some())
    }

    /// Pages that are under way or to be asked for.
    pub(crate) const fn retained_under_way(&self) -> usize {
        self.retained_asked.len() + self.retained_next.len()
    }

    pub(crate) fn are_unused(&self) -> bool {
        self.retained_under_way() == 0
            && self.retained_wanted.is_empty()
            && self.request.is_none()
            && self.verdicts.is_none()
            && self.notices.is_unused()
    }
}

/// How a client keeps pace with what it is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// It is behind: its publishers should wait so many milliseconds. Else 0.
    pub(crate) pause_ms: u32,
    /// All of them, because the next message may find no room.
    pub(crate) is_urgent: bool,
    /// Its queue is half full.
    pub(crate) is_filling: bool,
}

impl Pace {
    /// Goes on as slow as the slower of both.
    #[inline(always)]
    pub(crate) const fn slow_to(&mut self, other: Self) {
        if other.pause_ms == 0 {
            return;
        }
        if other.pause_ms > self.pause_ms {
            self.pause_ms = other.pause_ms;
        }
        self.is_urgent |= other.is_urgent;
    }

    /// For a publisher on the same shard: it is stopped after each message, so it need not wait
    /// longer for what it sent before its pause.
    pub(crate) const fn as_same_shard(mut self) -> Self {
        if !self.is_urgent && self.pause_ms > *PAUSE_MS.start() {
            self.pause_ms = *PAUSE_MS.start();
        }
        self
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    /// Its place among the sessions of its shard.
    pub(crate) key: SessionKey,
    /// Where its id, its topics and its groups mean what they mean.
    pub(crate) scope: Scope,
    pub(crate) id: Box<str>,
    pub(crate) username: Option<Box<str>>,
    /// Of its latest connection, as long as the process runs.
    pub(crate) principal: Option<Box<Principal>>,
    pub(crate) grants: Grants,
    pub(crate) limits: Arc<Limits>,
    /// The number of the connection, or [`NO_CONNECTION`].
    pub(crate) connection: u64,
    pub(crate) session: Session,
    pub(crate) subscriptions: Subscriptions,
    /// What they count for.
    pub(crate) subscription_bytes: u32,
    /// Its bytes, and the account that is charged for them.
    pub(crate) charged: Charged,
    pub(crate) will: Option<Box<Will>>,
    /// What waits for it was meant for it by other access rules than those of now.
    pub(crate) rechecks: bool,
    pub(crate) load: Option<Arc<MemberLoad>>,
    pub(crate) extras: Option<Box<Extras>>,
    /// Present if the session is in the journal.
    pub(crate) is_kept: bool,
    /// It ended with a connection of an earlier life of the broker, and left a will.
    pub(crate) is_only_will: bool,
    /// Seconds the session outlives its connection; `u32::MAX`: for ever (MQTT-3.1.2-23).
    pub(crate) session_expiry_secs: u32,
    pub(crate) expires_at_ms: u64,
    /// The tick for which the timers have an entry of this client, or `u64::MAX`.
    pub(crate) timer_at: u64,
}

impl Client {
    pub(crate) fn new(name: Name<'_>, limits: Arc<Limits>) -> Self {
        Self {
            key: SessionKey::NOBODY,
            scope: name.scope(),
            id: name.text().into(),
            username: None,
            principal: None,
            grants: Grants::default(),
            limits,
            connection: NO_CONNECTION,
            session: Session::default(),
            subscriptions: Subscriptions::default(),
            subscription_bytes: 0,
            charged: Charged::default(),
            will: None,
            rechecks: false,
            load: None,
            extras: None,
            is_kept: false,
            is_only_will: false,
            session_expiry_secs: 0,
            expires_at_ms: NEVER,
            timer_at: u64::MAX,
        }
    }

    /// What the session is found by.
    pub(crate) fn name(&self) -> Name<'_> {
        Name::new(self.scope, &self.id)
    }

    pub(crate) fn identity(&self) -> Identity<'_> {
        let (client_id, username) = (&*self.id, self.username.as_deref());
        Identity { client_id, username, principal: self.principal.as_deref() }
    }

    /// As a record of streams names it.
    pub(crate) fn as_publisher(&self) -> Publisher<'_> {
        Publisher {
            client_id: &self.id,
            username: self.username.as_deref(),
            attributes: self.principal.as_ref().map(|principal| &principal.attributes),
        }
    }

    /// The same, for when its session may be over.
    pub(crate) fn known_publisher(&self) -> KnownPublisher {
        KnownPublisher {
            client_id: self.id.clone(),
            username: self.username.clone(),
            attributes: self.principal.as_ref().map(|principal| principal.attributes.clone()),
            owner: self.charged.account().cloned(),
        }
    }

    /// What it has logged in as.
    pub(crate) fn login(&self) -> Option<&str> {
        let whole = self.principal.as_ref().and_then(|principal| principal.login.as_deref());
        whole.or(self.username.as_deref())
    }

    pub(crate) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Without a connection its address is not known any more.
    fn place(&self) -> ClientLocation<'_> {
        let address = self.session.link().and_then(|link| address_of(&link.peer));
        ClientLocation { address, listener: &self.limits.listener }
    }

    pub(crate) fn grants_by(&self, rules: &Rules) -> Grants {
        rules.of(self.scope).grants_of(self.identity(), self.place())
    }

    /// When the credential of its connection ends, or [`NEVER`].
    pub(crate) fn credential_due_ms(&self) -> u64 {
        match &self.principal {
            Some(principal) if self.is_connected() => principal.expires_at_ms.unwrap_or(NEVER),
            _ => NEVER,
        }
    }

    /// Does the session outlive its connection?
    pub(crate) const fn is_persistent(&self) -> bool {
        self.session_expiry_secs > 0
    }

    /// Charges its account for its size now.
    pub(crate) fn recharge(&mut self) {
        let logged_bytes = if self.is_kept { KEPT_SESSION_BYTES } else { 0 };
        let kept_bytes = if self.is_persistent() { SESSION_BYTES + logged_bytes } else { 0 };
        let who_bytes = identity_bytes(self.username.as_deref(), self.principal.as_deref());
        let rules_bytes = self.grants.own_bytes();
        let will_bytes = will_bytes(self.will.as_deref());
        let verdicts = self.extras.as_ref().and_then(|extras| extras.verdicts.as_ref());
        let verdicts_bytes = verdicts.map_or(0, |verdicts| verdicts.bytes());
        let own_bytes =
            kept_bytes + self.id.len() + who_bytes + rules_bytes + will_bytes + verdicts_bytes;
        self.charged.set(self.subscription_bytes.saturating_add(own_bytes as u32));
    }

    /// When the will is to be published, or [`NEVER`].
    pub(crate) fn will_due_ms(&self) -> u64 {
        self.will.as_ref().map_or(NEVER, |will| will.due_ms)
    }

    /// The next time at which something is due, or [`NEVER`].
    pub(crate) fn next_due_ms(&self) -> u64 {
        let keep_alive = self.session.link().and_then(session::Link::keep_alive_deadline_ms);
        let notices_ms = self.extras.as_ref().map_or(NEVER, |extras| extras.notices.due_ms());
        let asks_ms = self.asks_again_ms();
        let queue_ms = self.session.outgoing.next_expiry_ms();
        let session = self.expires_at_ms.min(self.will_due_ms()).min(notices_ms).min(asks_ms);
        let session = session.min(queue_ms);
        keep_alive.unwrap_or(NEVER).min(session).min(self.credential_due_ms())
    }

    /// Can there be anything that waits for the session: to be sent again, in a queue, on a page?
    #[inline]
    pub(crate) fn may_have_waiting(&self, has_backlog: bool) -> bool {
        self.session.outgoing.queued() > 0
            || self.session.outgoing.has_unsent()
            || self.load.is_some()
            || self.extras.is_some()
            || has_backlog
    }

    /// How the client keeps pace with what it has been sent. `backlog`: so many deliveries wait for
    /// it in the journal.
    #[inline(always)]
    pub(crate) fn pace(&mut self, backlog: usize, now_ms: u64) -> Pace {
        let Some(behind_ms) = self.session.behind_ms(backlog, self.long_queue_bytes(), now_ms)
        else {
            return Pace::default();
        };
        let overrun_ms = self.overrun_ms(backlog);
        let is_urgent = overrun_ms > 0;
        let (least_ms, most_ms) = match is_urgent {
            true => (overrun_ms, *URGENT_PAUSE_MS.end()),
            false => PAUSE_MS.into_inner(),
        };
        // As long again as it has been behind: twice as long each time that this does not help.
        let pause_ms = (behind_ms as u32).clamp(least_ms, most_ms);
        Pace { pause_ms, is_urgent, is_filling: is_urgent && self.is_half_full(backlog) }
    }

    /// Do publishers of large messages have to be paused? The others are when it is half full.
    pub(crate) fn has_long_queue(&self) -> bool {
        self.session.outgoing.queued_bytes() > self.long_queue_bytes()
    }

    /// May paused publishers be resumed? Early enough that the queue is not empty before they have
    /// sent more.
    pub(crate) fn has_short_queue(&self, backlog: usize) -> bool {
        let messages = self.session.outgoing.queued() + backlog;
        let is_short = messages <= self.calm_queue_messages()
            && self.session.outgoing.queued_bytes() <= self.calm_queue_bytes();
        is_short || !self.session.is_online()
    }

    /// Is it worth it to wait until it is? Not for a client that does not read.
    pub(crate) fn shortens_queue(&mut self, backlog: usize, now_ms: u64) -> bool {
        let calm_bytes = self.calm_queue_bytes();
        self.session.behind_ms(backlog, calm_bytes, now_ms).is_some()
    }

    fn calm_queue_messages(&self) -> usize {
        (self.limits.queue.messages_max / LARGE_PART) as usize
    }

    fn calm_queue_bytes(&self) -> u64 {
        self.long_queue_bytes() / 4
    }

    fn long_queue_bytes(&self) -> u64 {
        (self.limits.queue.bytes_max / u64::from(LARGE_PART)).min(LONG_QUEUE_BYTES)
    }

    /// How long the queue takes at a rate that few clients reach, if it is on the way to its limit,
    /// in messages or bytes; else 0.
    fn overrun_ms(&self, backlog: usize) -> u32 {
        let messages = self.session.outgoing.queued() + backlog;
        let bytes = self.session.outgoing.queued_bytes();
        let is_calm = messages <= self.calm_queue_messages() && bytes <= self.long_queue_bytes();
        if is_calm {
            return 0;
        }
        let drain_ms = ((messages * MESSAGE_BYTES_MIN) as u64 + bytes) / DRAIN_BYTES_PER_MS;
        let (least_ms, most_ms) = URGENT_PAUSE_MS.into_inner();
        drain_ms.clamp(least_ms.into(), most_ms.into()) as u32
    }

    /// Is its queue, in messages or bytes?
    fn is_half_full(&self, backlog: usize) -> bool {
        let queue = &self.limits.queue;
        self.session.outgoing.queued() + backlog > (queue.messages_max / 2) as usize
            || self.session.outgoing.queued_bytes() > queue.bytes_max / 2
    }

    pub(crate) fn publish_load(&self) {
        if let Some(load) = &self.load {
            let (in_flight, room) = self.session.load();
            load.set(self.session.is_online(), in_flight, room);
        }
    }
}

/// The topic of a PUBLISH, which may be that of an alias.
pub(crate) fn topic_of<'a>(client: &'a Client, publish: &Publish<'a>) -> &'a str {
    if !publish.topic.is_empty() {
        return publish.topic;
    }
    let alias = publish.properties.topic_alias();
    let topic = client.session.link().zip(alias).and_then(|(link, alias)| link.topic_of(alias));
    topic.unwrap_or_default()
}

impl Client {
    pub(crate) const fn is_connected(&self) -> bool {
        self.connection != NO_CONNECTION
    }

    /// Is the connection gone, and what it has sent before that being handled?
    pub(crate) fn is_lost(&self) -> bool {
        self.session.link().is_some_and(|link| link.is_lost)
    }
}
