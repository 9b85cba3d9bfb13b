//! A shard: the unit of state. Events in, effects out.

pub(crate) mod barrier;
pub(crate) mod buffers;
pub(crate) mod calendar;
pub(crate) mod connection_numbers;
pub(crate) mod effects;
pub(crate) mod event;
mod gather;
pub(crate) mod inbox;
pub(crate) mod mail;
pub(crate) mod shared;
pub(crate) mod timers;
pub(crate) mod waits;

pub use gather::Rest;
pub(crate) use gather::{Input, OwnMemory};

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use codec::{AckKind, Packet, Reason, Sender, Violation};
use session::{Acked, Dropped, Link, Message, NEVER, Outbox, Respondent, Wait};

use crate::clients::cleanup::Remains;
use crate::clients::client::{Client, Pace};
use crate::clients::load::LoadWalk;
use crate::clients::notices::ShardNews;
use crate::clients::table::Clients;
use crate::command::Publications;
use crate::durable::Store;
use crate::flow::holds::Holds;
use crate::flow::pause::Taken;
use crate::flow::shortage::GreedWalk;
use crate::flow::work::{OUTBOX_BYTES_LEAST, REQUEST_BYTES_MAX, Work};
use crate::flow::write_order::Dirty;
use crate::groups::table::Groups;
use crate::limits::rules::Rules;
use crate::retained::Home;
use crate::routing::broadcast::Broadcasts;
use crate::routing::router::Router;
use crate::shard::barrier::Heard;
use crate::shard::buffers::Buffers;
use crate::shard::effects::Effects;
use crate::shard::inbox::Inbox;
use crate::shard::timers::Wheel;
use crate::sure::Sure;
use crate::{
    Confirm, Ended, Event, Mail, Metrics, Quota, Scope, SessionKey, ShardId, Shared, Space,
};
use policy::{Action, Identity};

/// How often expired retained messages are looked for, and groups that nobody speaks of.
const SWEEP_EVERY_MS: u64 = 1000;

/// Sessions, subscriptions and retained messages of a part of all clients and topics.
///
/// One thread drives it. Between two calls the driver drains [`Shard::effects`].
#[derive(Debug)]
pub struct Shard {
    pub(crate) id: ShardId,
    pub(crate) shared: Arc<Shared>,
    /// Those of this shard among the shared ones.
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rules: Rules,
    pub(crate) clients: Clients,
    pub(crate) router: Router,
    pub(crate) groups: Groups,
    pub(crate) retained: Home,
    /// The log, if there is one.
    pub(crate) store: Option<Box<Store>>,
    pub(crate) inbox: Inbox,
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
    pub(crate) greed_walk: GreedWalk,
    pub(crate) buffers: Buffers,
    pub(crate) work: Work,
    pub(crate) broadcasts: Broadcasts,
    pub(crate) holds: Holds,
    pub(crate) heard: Heard,
    pub(crate) publications: Publications,
    /// Of the latest connection.
    pub(crate) sequence: u64,
    /// Those that a client of this shard has been of.
    pub(crate) spaces: BTreeMap<Scope, Arc<Space>>,
}

impl Shard {
    pub fn new(id: ShardId, shared: Arc<Shared>, rules: impl Into<Rules>) -> Self {
        let seed = shared.seed ^ u64::from(id);
        Self {
            id,
            rules: rules.into(),
            clients: Clients::new(id, seed),
            router: Router::new(id, &shared, seed),
            groups: Groups::new(shared.seed),
            retained: Home::new(),
            store: None,
            inbox: Inbox::default(),
            wheel: Wheel::default(),
            remains: Remains::default(),
            sweeps_at_ms: 0,
            random: seed | 1,
            effects: Effects::new(id, &shared),
            dirty: Dirty::default(),
            doomed: Vec::new(),
            news: ShardNews::default(),
            load_walk: LoadWalk::default(),
            greed_walk: GreedWalk::default(),
            buffers: Buffers::default(),
            work: Work::new(shared.settings.turn_units),
            broadcasts: Broadcasts::default(),
            holds: Holds::default(),
            heard: Heard::new(shared.shard_count),
            publications: Publications::default(),
            sequence: 0,
            spaces: BTreeMap::new(),
            metrics: Arc::clone(&shared.metrics[usize::from(id)]),
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
        &self.metrics
    }

    /// Bytes came from a connection. They may hold any part of any number of packets. After a
    /// pause call it even without bytes: some may have been put aside.
    pub fn on_bytes(&mut self, slot: u32, connection: u64, bytes: &[u8], now_ms: u64) -> Rest {
        let has_no_more = self.work.has_no_more();
        // The driver has not heard yet that the connection has ended.
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
                let is_alone = packet_len == bytes.len();
                if may_wait && self.has_to_come_later(slot, (publish, is_alone), now_ms)
                    || self.waits_for_space(slot, (packet_len, may_wait), now_ms)
                {
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
    #[inline(always)]
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
            Packet::Unsubscribe(unsubscribe) => self.on_unsubscribe(slot, unsubscribe, now_ms)?,
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
        let Some(client) = self.clients.get_mut(slot).sure() else { return Ok(()) };
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
        let metrics = &self.metrics;
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        let mut given_up: Vec<(Dropped, session::Origin)> = Vec::new();
        let before = client.session.link().map_or(0, |link| link.outbox.len());
        let Client { session, grants, id, username, principal, rechecks, .. } = client;
        let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
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
        let waits = outgoing.queued() > 0 || outgoing.has_unsent() || outgoing.is_held();
        client.rechecks &= waits;
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
            if reason == Dropped::Denied && self.release_denied(slot, origin) {
                // It is in flight until the client has answered.
            } else if origin.serial != 0 && origin.group == 0 {
                self.finish_delivery(slot, origin.serial);
            } else {
                // What rules keep from one member may be for another.
                let is_done = reason != Dropped::Denied;
                self.tell_home(origin.group, origin.serial, is_done);
            }
            self.note_dropped(slot, reason, now_ms);
        }
    }

    /// What a connection is owed; None if the session has another connection by now, or may not be
    /// told anything yet.
    pub fn outbox(&mut self, slot: u32, connection: u64) -> Option<&mut Outbox> {
        let link = self.link(slot, connection).filter(|link| !link.is_told_nothing);
        link.map(|link| &mut link.outbox)
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
        let outbox_bytes_max = client.limits.outbox_bytes_max;
        let Some(link) = client.session.link_mut().sure() else { return };
        let spare = link.outbox.advance(count);
        let controls = link.outbox.take_controls();
        link.note_taken(count);
        let waits_to_be_read = link.gate.is_shut(Wait::ToBeRead);
        let is_empty = link.outbox.is_empty();
        if is_empty && !has_queue {
            link.has_caught_up();
            // It may have been less while memory was short (`flow/shortage.rs`).
            link.set_outbox_bytes_max(outbox_bytes_max);
        }
        if let Some(buffer) = spare {
            self.buffers.keep(buffer);
        }
        if controls > 0 {
            self.metrics().controls_sent.add(u64::from(controls));
        }
        if waits_to_be_read {
            self.read_on_if_it_reads(slot, connection, now_ms);
        }
        if waits && is_empty {
            self.pump(slot, now_ms);
        }
        self.finish(now_ms);
    }

    pub(crate) fn link(&mut self, slot: u32, connection: u64) -> Option<&mut Link> {
        let client = self.clients.get_mut(slot).filter(|c| c.connection == connection)?;
        client.session.link_mut()
    }

    /// Takes the mail for a shard, to be handed to its [`Shard::on_batch`].
    pub fn take_batch(&mut self, shard: ShardId) -> Vec<Mail> {
        self.effects.take_batch(shard)
    }

    /// Mail from a shard, in the order in which it was sent.
    pub fn on_mail(&mut self, mail: Mail, now_ms: u64) {
        match mail {
            Mail::Publish { message, confirm, payer } => {
                self.on_publish_mail(message, confirm, payer, now_ms);
            }
            Mail::Confirmed { confirm, reason, refused } => {
                self.on_confirmed(confirm, reason, refused.as_ref(), now_ms);
            }
            Mail::Congested { publisher, pause_ms, is_urgent } => {
                let pace = Pace { pause_ms, is_urgent, is_filling: false };
                self.slow_publisher(publisher, pace, now_ms);
            }
            Mail::Retain { message, confirm, payer } => {
                self.on_retain_mail(message, confirm, payer);
            }
            Mail::QueryRetained(query) => self.retained.on_query(query, &mut self.effects),
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
            Mail::GroupDenied { group, serial, message } => {
                self.on_group_denied(&group, serial, message);
            }
            Mail::Waiting { group, any } => self.on_waiting(group, any, now_ms),
            Mail::Pull { group } => self.drain_group(group, now_ms),
            Mail::Mark { from, bytes } => self.effects.lanes().note_mark(from, bytes),
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

    pub(crate) fn answer(&mut self, confirm: Option<Confirm>, reason: Reason, message: Message) {
        if let Some(confirm) = confirm {
            let refused = reason.is_error().then_some(message);
            self.send(confirm.publisher.shard(), Mail::Confirmed { confirm, reason, refused });
        }
    }

    pub(crate) fn on_confirmed(
        &mut self,
        confirm: Confirm,
        reason: Reason,
        refused: Option<&Message>,
        now_ms: u64,
    ) {
        if confirm.serial != 0 {
            // A log out of service holds nothing, so the publisher hears nothing.
            if reason != Reason::IMPLEMENTATION_SPECIFIC_ERROR {
                self.on_handed_over(confirm.serial, confirm.respondent, now_ms);
            }
            return;
        }
        // The session has ended since it published, or the publisher has none.
        let Some(slot) = self.clients.slot_of(confirm.publisher) else {
            return self.on_confirmed_to_operator(&confirm, reason);
        };
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
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        self.buffers.lend(client);
        let Confirm { connection, ack_number, respondent, .. } = confirm;
        if is_current {
            client.session.settle(ack_number, respondent, reason);
        } else {
            let awaited_as = (connection, ack_number);
            let incoming = &mut client.session.incoming;
            let heir = incoming.settle_orphan(awaited_as, respondent, reason.is_error());
            let Some(number) = heir else { return };
            client.session.settle(number, Respondent::FIRST, reason);
        }
        if client.session.link().is_some_and(Link::has_refused) {
            self.doomed.push((slot, Ended::Refused));
        }
        self.mark_dirty(slot);
    }

    /// Time has passed, or a turn was not enough for what has ended. Once a second at least.
    pub fn on_tick(&mut self, now_ms: u64) {
        self.fire_timers(now_ms);
        self.on_tick_unheard(now_ms);
    }

    /// The same while there is more that clients have said than was looked at: the timers of
    /// clients wait.
    pub fn on_tick_unheard(&mut self, now_ms: u64) {
        self.clear_remains();
        self.read_mail_on(now_ms);
        self.read_line_on(now_ms);
        self.tick_log(now_ms);
        self.look_at_holds(now_ms);
        if self.sweeps_at_ms <= now_ms {
            self.sweeps_at_ms = now_ms + SWEEP_EVERY_MS;
            self.sweep_retained(now_ms);
            self.offer_denied_again(now_ms);
            self.drain_groups(now_ms);
            self.tell_shard_news();
            self.look_at_load();
        }
        self.finish(now_ms);
    }

    /// When [`Shard::on_tick`] has something to do, in milliseconds, or [`NEVER`].
    pub fn next_deadline_ms(&self) -> u64 {
        let has_portions = !self.remains.is_empty() || !self.broadcasts.is_empty();
        if has_portions || !self.inbox.is_empty() || self.work.has_line() {
            return 0;
        }
        let log = self.store.as_ref().and_then(|store| store.log.next_deadline());
        let wheel = self.wheel.next_ms().unwrap_or(NEVER);
        let news = if self.news.is_empty() { NEVER } else { self.sweeps_at_ms };
        wheel.min(log.unwrap_or(NEVER)).min(self.holds.look_ms()).min(news)
    }

    /// New rules; they hold for what comes from now on, also on sessions that are open.
    pub fn set_access(&mut self, rules: impl Into<Rules>) {
        self.rules = rules.into();
        for slot in self.clients.slots() {
            if let Some(client) = self.clients.get_mut(slot) {
                client.grants = client.grants_by(&self.rules);
                client.rechecks = !client.grants.is_open();
                client.recharge();
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
        self.effects.send(shard, mail);
    }

    pub(crate) fn send_to_others(&mut self, mail: &Mail) {
        self.effects.send_to_others(mail);
    }

    pub(crate) fn tell(&mut self, scope: Scope, event: Event) {
        self.effects.tell(scope, event);
    }

    /// Makes sure the wheel wakes us for the client.
    pub(crate) fn arm_timer(&mut self, slot: u32) {
        let key = self.clients.key(slot);
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
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

    /// Where what a session names means what it means.
    #[inline]
    pub(crate) fn scope_of(&self, slot: u32) -> Scope {
        self.clients.get(slot).map_or(Scope::FIRST, |client| client.scope)
    }

    /// What there is to know of a scope. None: of the first, or of one that is gone.
    pub(crate) fn space(&mut self, scope: Scope) -> Option<&Space> {
        if scope.is_first() {
            return None;
        }
        if let Entry::Vacant(vacant) = self.spaces.entry(scope) {
            vacant.insert(self.shared.spaces.get(scope)?);
        }
        self.spaces.get(&scope).map(|space| &**space)
    }

    pub(crate) fn count_in_space(&mut self, scope: Scope, quota: Quota, more: i64) {
        if let Some(space) = self.space(scope) {
            space.add(quota, more);
        }
    }
}
