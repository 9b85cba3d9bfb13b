//! A shard: the unit of state. Events in, effects out.

mod gather;

pub use gather::Rest;
pub(crate) use gather::{Input, OwnMemory};

use std::collections::VecDeque;
use std::sync::Arc;

use codec::{AckKind, Packet, Reason, Sender, Violation};
use session::{Acked, Dropped, Link, Message, NEVER, Outbox, Template};
use topic::Retained;

use crate::access::{Access, Action, Identity};
use crate::client::{Client, Pace};
use crate::clients::Clients;
use crate::dirty::Dirty;
use crate::durable::Store;
use crate::groups::Groups;
use crate::heard::Heard;
use crate::holds::Holds;
use crate::lanes::Lanes;
use crate::load::LoadWalk;
use crate::news::ShardNews;
use crate::pace::Taken;
use crate::remains::Remains;
use crate::retain::Pages;
use crate::router::Router;
use crate::wheel::Wheel;
use crate::work::{OUTBOX_BYTES_LEAST, REQUEST_BYTES_MAX, Work};
use crate::{Ended, Event, Mail, Metrics, RetainedQuery, SessionKey, ShardId, Shared};

/// Events kept per turn; more are only counted (`quelea_events_lost_total`).
const EVENTS_MAX: usize = 10_000;

/// Empty outbox buffers kept for reuse, as many as a wide fan-out fills in one turn.
const SPARE_BUFFERS_MAX: usize = 1024;

/// Emptied batches of mail kept for reuse, and the items that one may have room for.
const SPARE_BATCHES_MAX: usize = 4;
const BATCH_ITEMS_MAX: usize = 4096;

/// How often expired retained messages are looked for, and groups that nobody speaks of.
const SWEEP_EVERY_MS: u64 = 1000;

/// Larger buffers are given back to the allocator, once there are [`LARGE_BUFFERS`] to reuse.
const SPARE_BUFFER_BYTES_MAX: usize = 4 * 1024;

/// So many of the spare buffers may be larger, up to [`LARGE_BUFFER_BYTES_MAX`].
const LARGE_BUFFERS: usize = 64;
const LARGE_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// A connection that the driver has to close, after writing `farewell`.
#[derive(Debug)]
pub struct Close {
    pub slot: u32,
    pub connection: u64,
    pub farewell: Outbox,
}

/// A client wants to authenticate anew (MQTT-4.12.1): ask the back-end, then answer with
/// [`Shard::on_reauthenticated`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reauthenticate {
    pub slot: u32,
    pub connection: u64,
    /// False: the client goes on with an exchange under way.
    pub is_start: bool,
    pub client_id: Box<str>,
    pub method: Box<str>,
    pub data: Box<[u8]>,
}

/// The answer to [`Reauthenticate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reauthenticated {
    Continue(Vec<u8>),
    Success(Vec<u8>),
    Failure(Reason),
}

/// What the driver has to carry out, besides writing outboxes ([`Shard::take_dirty`]). It drains
/// these after each turn.
#[derive(Debug, Default)]
pub struct Effects {
    pub closes: Vec<Close>,
    /// Mail per shard, also for the sender itself, in order.
    pub mail: Vec<Vec<Mail>>,
    /// Read nothing from the connection before the time; [`NEVER`]: before another word about it.
    /// A pause with an end stands against later words until it is over.
    pub pauses: Vec<(u64, u64)>,
    pub events: Vec<Event>,
    pub reauthentications: Vec<Reauthenticate>,
}

/// Sessions, subscriptions and retained messages of a part of all clients and topics.
///
/// One thread drives it. Between two calls the driver drains [`Shard::effects`].
#[derive(Debug)]
pub struct Shard {
    pub(crate) id: ShardId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) access: Access,
    pub(crate) clients: Clients,
    pub(crate) router: Router,
    pub(crate) groups: Groups,
    pub(crate) retained: Retained<crate::retain::Kept>,
    /// The log, if there is one.
    pub(crate) store: Option<Box<Store>>,
    /// Mail with a serial for which the log had no room; it is tried again in its order. Bounded by
    /// the receive maxima of the publishers, whose acknowledgements wait for it.
    pub(crate) late_mail: Vec<Mail>,
    /// Mail for which the turn in which it came was not enough.
    pub(crate) unread_mail: VecDeque<Mail>,
    pub(crate) pages: Pages,
    /// Where the walk that removes expired retained messages goes on.
    pub(crate) retained_sweep: Option<topic::Cursor>,
    pub(crate) wheel: Wheel,
    pub(crate) remains: Remains,
    /// When retained messages and groups are looked through next.
    sweeps_at_ms: u64,
    pub(crate) random: u64,
    pub effects: Effects,
    pub(crate) dirty: Dirty,
    /// Connections to be ended when the present event is done.
    pub(crate) doomed: Vec<(u32, Ended)>,
    pub(crate) news: ShardNews,
    pub(crate) load_walk: LoadWalk,
    /// For the subscribers of a message; its buffer is used again.
    pub(crate) template: Template,
    pub(crate) properties: codec::PropertyBuf,
    spare_buffers: Vec<Vec<u8>>,
    /// Emptied batches of mail, for what is sent next.
    spare_batches: Vec<Vec<Mail>>,
    pub(crate) work: Work,
    /// The publisher that was told last in this turn.
    pub(crate) slowed_last: SessionKey,
    /// What lies before the other shards.
    pub(crate) lanes: Lanes,
    pub(crate) holds: Holds,
    pub(crate) heard: Heard,
    /// The latest marks in the mail of this turn, and whose they are.
    pub(crate) marks: Vec<(ShardId, u64)>,
}

impl Shard {
    pub fn new(id: ShardId, shared: Arc<Shared>, access: Access) -> Self {
        let seed = shared.seed ^ u64::from(id);
        let mail = (0..shared.shard_count).map(|_| Vec::new()).collect();
        Self {
            id,
            access,
            clients: Clients::new(id, seed),
            router: Router::new(id, &shared, seed),
            groups: Groups::new(shared.seed),
            retained: Retained::new(),
            store: None,
            late_mail: Vec::new(),
            unread_mail: VecDeque::new(),
            pages: Pages::default(),
            retained_sweep: None,
            wheel: Wheel::default(),
            remains: Remains::default(),
            sweeps_at_ms: 0,
            random: seed | 1,
            effects: Effects { mail, ..Effects::default() },
            dirty: Dirty::default(),
            doomed: Vec::new(),
            news: ShardNews::default(),
            load_walk: LoadWalk::default(),
            template: Template::default(),
            properties: codec::PropertyBuf::new(),
            spare_buffers: Vec::new(),
            spare_batches: Vec::new(),
            work: Work::new(shared.settings.turn_units),
            slowed_last: SessionKey::NOBODY,
            lanes: Lanes::new(&shared),
            holds: Holds::default(),
            heard: Heard::new(shared.shard_count),
            marks: Vec::new(),
            shared,
        }
    }

    pub const fn id(&self) -> ShardId {
        self.id
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics[usize::from(self.id)]
    }

    /// Bytes came from a connection. They may hold any part of any number of packets. After a
    /// pause call it even without bytes: some may have been put aside.
    pub fn on_bytes(&mut self, slot: u32, connection: u64, bytes: &[u8], now_ms: u64) -> Rest {
        let has_no_more = self.work.has_no_more();
        let Some(link) = self.link(slot, connection) else { return Rest::Nothing };
        let has_to_wait = has_no_more && !link.is_lost;
        // A client whose packets wait here, put aside, is not silent: we do not listen.
        if !bytes.is_empty() || !link.inbox.is_empty() {
            link.last_packet_ms = now_ms;
        }
        let owed = link.outbox.len();
        if has_to_wait && (link.asks_for_much || bytes.len() > REQUEST_BYTES_MAX) {
            self.wait_for_turn(slot);
            return self.put_aside(slot, connection, bytes);
        }
        let rest = if link.inbox.is_empty() {
            let taken = self.on_packets(slot, connection, Input::of(bytes), now_ms);
            self.put_aside(slot, connection, &bytes[taken.bytes..])
        } else {
            self.on_more_bytes(slot, connection, bytes, now_ms)
        };
        if owed >= OUTBOX_BYTES_LEAST {
            self.look_whether_it_reads(slot, connection, owed);
        }
        self.finish(now_ms);
        rest
    }

    /// Handles the whole packets at the front of the bytes.
    fn on_packets(&mut self, slot: u32, connection: u64, input: Input<'_>, now_ms: u64) -> Taken {
        let Input { bytes, memory } = input;
        self.work.begin();
        let mut taken = Taken::default();
        let mut is_over = false;
        while taken.bytes < bytes.len() && !is_over && !self.work.is_spent() {
            let Some(client) = self.clients.get(slot).filter(|c| c.connection == connection) else {
                break;
            };
            let Some(link) = client.session.link() else { break };
            if link.is_refusing() {
                // It is sent again with the next connection, like all behind what was refused.
                taken.bytes = bytes.len();
                break;
            }
            // The last packets of a connection that is gone cannot come later.
            let may_wait = !link.is_lost;
            let packet_bytes_max = client.limits.packet_bytes_max;
            let rest = &bytes[taken.bytes..];
            let decoded = codec::decode(rest, link.version(), Sender::Client, packet_bytes_max);
            // By reference: a packet is large to move.
            let (packet, packet_len) = match &decoded {
                Ok(Some((packet, packet_len))) => (packet, *packet_len),
                Ok(None) => {
                    self.end_if_too_long(slot, rest, now_ms);
                    break;
                }
                Err(violation) => {
                    self.end(slot, Ended::Violation(*violation), now_ms);
                    break;
                }
            };
            if let Packet::Publish(publish) = packet {
                if may_wait && self.has_to_come_later(slot, publish, now_ms) {
                    break;
                }
            } else if may_wait
                && matches!(packet, Packet::Subscribe(_) | Packet::Unsubscribe(_))
                && self.goes_on_later(slot, (packet, packet_len), now_ms)
            {
                break;
            }
            taken.count(packet, packet_len);
            let pace = match self.on_packet(slot, packet, memory, now_ms) {
                Ok(pace) => pace,
                Err(ended) => {
                    self.end(slot, ended, now_ms);
                    is_over = true;
                    Pace::default()
                }
            };
            if !self.doomed.is_empty() {
                self.finish(now_ms);
            }
            // The rest waits until the subscriber has caught up.
            if pace.pause_ms > 0 && may_wait {
                let is_burst = taken.is_burst(bytes);
                if self.hold_up(slot, pace.as_next_door(), is_burst, now_ms) {
                    taken.is_paused = true;
                    break;
                }
            }
        }
        let is_burst = taken.is_burst(bytes);
        taken.is_paused |= self.note_taken(slot, connection, &taken, is_burst, now_ms);
        taken
    }

    /// Returns how the slowest subscriber keeps pace, if it is a PUBLISH.
    fn on_packet(
        &mut self,
        slot: u32,
        packet: &Packet<'_>,
        memory: OwnMemory<'_>,
        now_ms: u64,
    ) -> Result<Pace, Ended> {
        match packet {
            Packet::Publish(publish) => return self.on_publish(slot, publish, memory, now_ms),
            Packet::Ack(ack) if ack.kind == AckKind::Pubrel => self.on_pubrel(slot, ack.packet_id),
            Packet::Ack(ack) => self.on_ack(slot, ack, now_ms)?,
            Packet::Subscribe(subscribe) => self.on_subscribe(slot, subscribe, now_ms)?,
            Packet::Unsubscribe(unsubscribe) => self.on_unsubscribe(slot, unsubscribe)?,
            Packet::Pingreq => {
                if let Some(client) = self.clients.get_mut(slot)
                    && let Some(link) = client.session.link_mut()
                {
                    link.write(&Packet::Pingresp);
                }
                self.mark_dirty(slot);
            }
            Packet::Disconnect(disconnect) => self.on_disconnect(slot, disconnect)?,
            Packet::Auth(auth) => self.on_auth(slot, auth)?,
            Packet::Connect(_) => {
                return Err(Ended::Violation(Violation {
                    reason: Reason::PROTOCOL_ERROR,
                    clause: "MQTT-3.1.0-2",
                    detail: "a second CONNECT on the same connection",
                }));
            }
            Packet::Connack(_) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Pingresp => {
                return Err(Ended::Violation(Violation {
                    reason: Reason::PROTOCOL_ERROR,
                    clause: "MQTT-4.13.1-1",
                    detail: "a packet that only servers send",
                }));
            }
        }
        Ok(Pace::default())
    }

    fn on_ack(&mut self, slot: u32, ack: &codec::Ack<'_>, now_ms: u64) -> Result<(), Ended> {
        if ack.kind == AckKind::Pubrec && !ack.reason.is_error() && self.keep_pubrec(slot, ack) {
            return Ok(());
        }
        let Some(client) = self.clients.get_mut(slot) else { return Ok(()) };
        let acked = client.session.on_ack(ack).map_err(Ended::Violation)?;
        match acked {
            Acked::Complete(origin) => {
                if origin.serial != 0 && origin.group == 0 {
                    self.finish_delivery(slot, origin.serial);
                } else {
                    self.tell_home(origin.group, origin.serial, true);
                }
                self.pump(slot, now_ms);
            }
            Acked::Release | Acked::Unknown | Acked::Mismatch => self.mark_dirty(slot),
        }
        Ok(())
    }

    /// PUBREL: PUBCOMP, once it is written down if the packet id is.
    pub(crate) fn on_pubrel(&mut self, slot: u32, packet_id: u16) {
        if self.keep_pubrel(slot, packet_id) {
            return;
        }
        if let Some(client) = self.clients.get_mut(slot) {
            client.session.on_pubrel(packet_id);
        }
        self.mark_dirty(slot);
    }

    /// Moves on what waits for a session: resends, its queue, pages of retained messages, the
    /// queues of its shared groups.
    #[inline]
    pub(crate) fn pump(&mut self, slot: u32, now_ms: u64) {
        if self.clients.get(slot).is_some_and(Client::may_have_waiting) {
            self.pump_waiting(slot, now_ms);
        }
    }

    fn pump_waiting(&mut self, slot: u32, now_ms: u64) {
        self.pump_session(slot, now_ms);
        while self.supply_in_flight(slot, now_ms) || self.hand_out_unlogged(slot, now_ms) {
            self.pump_session(slot, now_ms);
        }
        self.pump_backlog(slot, now_ms);
        if self.clients.get(slot).is_some_and(|client| client.extras.is_some()) {
            self.ask_next_page(slot);
        }
        self.pull_for(slot, now_ms);
    }

    /// Moves on what the session itself has: resends and its queue.
    fn pump_session(&mut self, slot: u32, now_ms: u64) {
        let metrics = &self.shared.metrics[usize::from(self.id)];
        let Some(client) = self.clients.get_mut(slot) else { return };
        let mut given_up: Vec<(Dropped, session::Origin)> = Vec::new();
        let before = client.session.link().map_or(0, |link| link.outbox.len());
        let Client { session, grants, id, username, rechecks, .. } = client;
        let identity = Identity { client_id: id, username: username.as_deref() };
        let may_have = |message: &Message| {
            !*rechecks || grants.allows(identity, Action::Receive, message.topic())
        };
        session.pump(now_ms, may_have, |outcome| match outcome {
            Ok(payload_bytes) => {
                metrics.publishes_sent.add(1);
                metrics.publish_bytes_sent.add(payload_bytes as u64);
            }
            Err(reason) => given_up.push(reason),
        });
        let outgoing = &client.session.outgoing;
        client.rechecks &= outgoing.queued() > 0 || outgoing.has_unsent();
        let after = client.session.link().map_or(0, |link| link.outbox.len());
        client.publish_gauge();
        if !self.holds.is_empty() {
            self.look_at_hold(slot);
        }
        if after > before {
            self.mark_dirty(slot);
        }
        self.note_given_up(slot, given_up, now_ms);
    }

    /// Deliveries are over that the client could not be sent.
    pub(crate) fn note_given_up(
        &mut self,
        slot: u32,
        given_up: Vec<(Dropped, session::Origin)>,
        now_ms: u64,
    ) {
        for (reason, origin) in given_up {
            if origin.serial != 0 && origin.group == 0 {
                self.finish_delivery(slot, origin.serial);
            } else {
                self.tell_home(origin.group, origin.serial, true);
            }
            self.note_dropped(slot, reason, now_ms);
        }
    }

    /// What a connection is owed; None if the session has another connection by now.
    pub fn outbox(&mut self, slot: u32, connection: u64) -> Option<&mut Outbox> {
        self.link(slot, connection).map(|link| &mut link.outbox)
    }

    /// The driver has written `count` bytes of the outbox.
    pub fn on_written(&mut self, slot: u32, connection: u64, count: usize, now_ms: u64) {
        self.metrics().bytes_sent.add(count as u64);
        let Some(client) = self.clients.get_mut(slot).filter(|c| c.connection == connection) else {
            return;
        };
        let has_queue = client.session.outgoing.queued() > 0 || client.has_backlog();
        let waits = has_queue
            || client.session.outgoing.has_unsent()
            || client.extras.is_some()
            || client.gauge.as_ref().is_some_and(|gauge| !gauge.is_available());
        let Some(link) = client.session.link_mut() else { return };
        let spare = link.outbox.advance(count);
        link.note_taken(count);
        let waits_to_be_read = link.waits_to_be_read;
        let is_empty = link.outbox.is_empty();
        if is_empty && !has_queue {
            link.has_caught_up();
        }
        if let Some(buffer) = spare {
            self.keep_buffer(buffer);
        }
        if waits_to_be_read {
            self.read_on_if_it_reads(slot, connection, now_ms);
        }
        if waits && is_empty {
            self.pump(slot, now_ms);
        }
        self.finish(now_ms);
    }

    fn keep_buffer(&mut self, buffer: Vec<u8>) {
        let is_scarce = self.spare_buffers.len() < LARGE_BUFFERS;
        let bytes_max = if is_scarce { LARGE_BUFFER_BYTES_MAX } else { SPARE_BUFFER_BYTES_MAX };
        if self.spare_buffers.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= bytes_max {
            self.spare_buffers.push(buffer);
        }
    }

    pub(crate) fn link(&mut self, slot: u32, connection: u64) -> Option<&mut Link> {
        let client = self.clients.get_mut(slot).filter(|c| c.connection == connection)?;
        client.session.link_mut()
    }

    /// Lends the client's outbox a buffer if it has none.
    pub(crate) fn lend_buffer(client: &mut Client, spare_buffers: &mut Vec<Vec<u8>>) {
        if let Some(link) = client.session.link_mut()
            && link.outbox.is_bare()
            && let Some(buffer) = spare_buffers.pop()
        {
            link.outbox.lend(buffer);
        }
    }

    pub(crate) const fn clients_and_buffers(&mut self) -> (&mut Clients, &mut Vec<Vec<u8>>) {
        (&mut self.clients, &mut self.spare_buffers)
    }

    /// Takes the mail for a shard, to be handed to its [`Shard::on_batch`].
    pub fn take_batch(&mut self, shard: ShardId) -> Vec<Mail> {
        let mails = &mut self.effects.mail[usize::from(shard)];
        if mails.is_empty() {
            return Vec::new();
        }
        // What comes in a turn is many messages: a batch that grew anew each time would be moved
        // and given back over and over.
        std::mem::replace(mails, self.spare_batches.pop().unwrap_or_default())
    }

    pub(crate) fn keep_batch(&mut self, mails: Vec<Mail>) {
        if self.spare_batches.len() < SPARE_BATCHES_MAX && mails.capacity() <= BATCH_ITEMS_MAX {
            self.spare_batches.push(mails);
        }
    }

    /// Mail from a shard, in the order in which it was sent.
    pub fn on_mail(&mut self, mail: Mail, now_ms: u64) {
        match mail {
            Mail::Publish { message, confirm } => self.on_publish_mail(message, confirm, now_ms),
            Mail::Confirmed { confirm, reason, refused } => {
                self.on_confirmed(confirm, reason, refused.as_ref(), now_ms);
            }
            Mail::Congested { publisher, pause_ms, is_urgent } => {
                let pace = Pace { pause_ms, is_urgent, is_filling: false };
                self.slow_publisher(publisher, pace, now_ms);
            }
            Mail::Retain { message, confirm } => self.on_retain_mail(message, confirm),
            Mail::QueryRetained(query) => self.on_retained_query(query),
            Mail::Retained { query, messages, is_last } => {
                self.on_retained_page(*query, &messages, is_last, now_ms);
            }
            Mail::Join { group, member } => {
                self.on_join(&group, member);
            }
            Mail::Leave { group, member } => self.on_leave(group, member, now_ms),
            Mail::Offer { group, member, message, way } => {
                self.on_offer(&group, member, message, way, now_ms);
            }
            Mail::Park { group, message, confirm } => {
                self.on_park(&group, message, confirm, now_ms);
            }
            Mail::Seen { serial } => {
                if let Some(store) = &mut self.store {
                    store.skip_serials(serial);
                }
            }
            Mail::GroupDone { group, serial } => self.on_group_done(group, serial),
            Mail::GroupReturned { group, serial } => {
                self.on_group_returned(group, serial, now_ms);
            }
            Mail::Waiting { group, any } => self.on_waiting(group, any, now_ms),
            Mail::Pull { group } => self.drain_group(group, now_ms),
            Mail::Mark { from, bytes } => self.on_mark(from, bytes),
            Mail::Taken { by, bytes } => self.on_mail_taken(by, bytes, now_ms),
            Mail::Ask { from, number } => self.send(from, Mail::Heard { by: self.id, number }),
            Mail::Heard { by, number } => self.on_heard(by, number),
            Mail::Hold { subscriber, filter, bytes_min } => {
                self.on_hold(subscriber, filter, bytes_min);
            }
            Mail::LetGo { subscriber } => self.on_let_go(subscriber, now_ms),
        }
        self.finish(now_ms);
    }

    pub(crate) fn answer(
        &mut self,
        confirm: Option<crate::Confirm>,
        reason: Reason,
        message: Message,
    ) {
        if let Some(confirm) = confirm {
            let refused = reason.is_error().then_some(message);
            self.send(confirm.publisher.shard(), Mail::Confirmed { confirm, reason, refused });
        }
    }

    pub(crate) fn on_confirmed(
        &mut self,
        confirm: crate::Confirm,
        reason: Reason,
        refused: Option<&Message>,
        now_ms: u64,
    ) {
        if confirm.serial != 0 {
            // A log out of service holds nothing, so the publisher hears nothing.
            if reason != Reason::IMPLEMENTATION_SPECIFIC_ERROR {
                self.on_handed_over(confirm.serial, now_ms);
            }
            return;
        }
        let Some(slot) = self.clients.slot_of(confirm.publisher) else { return };
        let mut reason = reason;
        if let Some(message) = refused {
            self.note_refused(slot, message, now_ms);
        }
        if confirm.is_again {
            if reason == Reason::IMPLEMENTATION_SPECIFIC_ERROR {
                return;
            }
            // The publish itself was accepted: a limit on what is retained is not its matter.
            reason = Reason::SUCCESS;
        }
        let is_current = self.link(slot, confirm.connection).is_some();
        let Some(client) = self.clients.get_mut(slot) else { return };
        let awaited_as = (confirm.connection, confirm.ack_number);
        let number = match is_current {
            true => Some(confirm.ack_number),
            false => client.session.incoming.settle_orphan(awaited_as, reason.is_error()),
        };
        let Some(number) = number else { return };
        client.session.settle(number, reason);
        if client.session.link().is_some_and(Link::has_refused) {
            self.doomed.push((slot, Ended::Refused));
        }
        self.mark_dirty(slot);
    }

    /// Time has passed, or a turn was not enough for what has ended. Once a second at least.
    pub fn on_tick(&mut self, now_ms: u64) {
        self.fire_timers(now_ms);
        self.clear_remains();
        self.read_mail_on(now_ms);
        self.read_line_on(now_ms);
        self.tick_log(now_ms);
        self.look_at_holds(now_ms);
        if self.sweeps_at_ms <= now_ms {
            self.sweeps_at_ms = now_ms + SWEEP_EVERY_MS;
            self.sweep_retained(now_ms);
            self.drain_groups(now_ms);
            self.tell_shard_news();
            self.look_at_load();
        }
        self.finish(now_ms);
    }

    /// When [`Shard::on_tick`] has something to do, in milliseconds, or [`NEVER`].
    pub fn next_deadline_ms(&self) -> u64 {
        if !self.remains.is_empty() || !self.unread_mail.is_empty() || self.work.has_line() {
            return 0;
        }
        let log = self.store.as_ref().and_then(|store| store.log.next_deadline());
        let wheel = self.wheel.next_ms().unwrap_or(NEVER);
        let news = if self.news.is_empty() { NEVER } else { self.sweeps_at_ms };
        wheel.min(log.unwrap_or(NEVER)).min(self.holds.look_ms()).min(news)
    }

    /// New rules; they hold for what comes from now on, also on sessions that are open.
    pub fn set_access(&mut self, access: Access) {
        self.access = access;
        for slot in self.clients.slots() {
            if let Some(client) = self.clients.get_mut(slot) {
                client.grants = self.access.grants(client.username.as_deref());
                client.rechecks = !client.grants.is_open();
            }
            self.recheck_receiving(slot);
        }
    }

    /// Publishes a message of the broker's own, such as `$SYS` ones.
    pub fn on_publish_command(&mut self, message: &Message, now_ms: u64) {
        self.route(message, None, now_ms);
        self.finish(now_ms);
    }

    /// Closes all connections, with a reason for those that can be told. Wills with a delay wait,
    /// others are published.
    pub fn on_shutdown(&mut self, now_ms: u64) {
        self.put_off_no_mail(now_ms);
        for slot in self.clients.slots() {
            if self.clients.get(slot).is_some_and(|client| client.session.is_online()) {
                self.end(slot, Ended::Shutdown, now_ms);
            }
        }
        self.finish(now_ms);
    }

    /// Ends the connections that were found to be at their end while something else went on.
    pub(crate) fn finish(&mut self, now_ms: u64) {
        while let Some((slot, ended)) = self.doomed.pop() {
            self.end(slot, ended, now_ms);
        }
    }

    pub(crate) fn send(&mut self, shard: ShardId, mail: Mail) {
        let bytes = mail.message_bytes();
        self.metrics().mail_sent.add(1);
        self.effects.mail[usize::from(shard)].push(mail);
        if bytes > 0 && shard != self.id {
            self.count_mailed(shard, bytes);
        }
    }

    pub(crate) fn send_to_others(&mut self, mail: &Mail) {
        for shard in 0..self.shared.shard_count {
            if shard != self.id {
                self.send(shard, mail.clone());
            }
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        if self.effects.events.len() < EVENTS_MAX {
            self.effects.events.push(event);
        } else {
            self.metrics().events_lost.add(1);
        }
    }

    /// Makes sure the wheel wakes us for the client.
    pub(crate) fn arm_timer(&mut self, slot: u32) {
        let key = self.clients.key(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let due_ms = client.next_due_ms();
        if due_ms == NEVER {
            return;
        }
        let tick = Wheel::tick_of(due_ms);
        if tick < client.timer_at {
            client.timer_at = tick;
            self.wheel.arm(tick, key.as_u64());
        }
    }

    /// A random number; xorshift, for choices that need to be spread, not secret.
    pub(crate) const fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Sessions, with or without a connection; none that has ended.
    pub fn session_count(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn key(&self, slot: u32) -> SessionKey {
        self.clients.key(slot)
    }

    pub(crate) fn query(&mut self, query: RetainedQuery) {
        self.send(query.home, Mail::QueryRetained(Box::new(query)));
    }
}
