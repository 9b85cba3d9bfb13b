//! How they come, send, read and go; and what is seen of it.

use broker::admission::{Admission, admit};
use broker::{ConnectRequest, Figure, Memory, Name, ShardId};
use codec::{
    Ack, Connect, Packet, Properties, Property, PropertyBuf, Reason, Sender, Version, Will,
};
use codec::{QoS, decode};
use driver::testing::{Flaws, Pipe};
use driver::{Handover, Item};
use policy::Access;
use session::MemoryKind;

use super::kinds::{FILTERS_PER_PACKET, HostileKind, LARGE_BYTES, METHOD};
use super::pressure::Pressure;
use super::{Hostile, Wire};
use crate::client::ModelClient;
use crate::dice::pick;
use crate::node::Node;
use crate::oracle::Payload;
use crate::sabotage::Sabotage;
use crate::world::World;

/// A worker reads no more of a connection at a time.
pub(crate) const BYTES_PER_READ_MAX: usize = 16 * 1024;

/// What one of them writes ahead.
const PENDING_BYTES_MAX: usize = 100_000;

/// Above its limit an outbox may have the answers to what one read brought, and the largest packet;
/// and what is sent again to who comes back.
const OUTBOX_BYTES_BEYOND: usize = 128 * 1024;

/// Sessions of a world that one message may be for.
const FAN_OUT_MAX: u64 = 64;

/// What a filter takes at least (`crates/core/broker/src/parts/work.rs`).
const FILTER_UNITS: u64 = 20;

impl World {
    /// One of them does something.
    pub(crate) fn step_hostile(&mut self) -> Result<(), String> {
        if self.mob.has_left || !self.mob.random.chance(STEPS_PERCENT) {
            return Ok(());
        }
        self.plant();
        let who = self.mob.random.below(self.mob.members.len());
        self.judge_outbox(who)?;
        match self.mob.random.below(100) {
            0..=34 => self.act(who)?,
            35..=74 => self.carry_from_hostile(who)?,
            75..=94 => self.read_hostile(who)?,
            _ => self.feel_pressure()?,
        }
        Ok(())
    }

    /// Bugs of the broker's own.
    fn plant(&mut self) {
        if !self.mob.random.chance(2) {
            return;
        }
        match self.node.sabotage {
            Some(Sabotage::KeepCharge) => {
                if let Some(name) = self.mob.accounts().first() {
                    self.node.shared.ledger.account(name).add(MemoryKind::Queued, 100);
                }
            }
            Some(Sabotage::OpenAccess) => {
                let shard = self.mob.random.below(usize::from(self.node.shard_count()));
                self.node.shard(shard as ShardId).set_access(Access::open());
            }
            _ => {}
        }
    }

    fn act(&mut self, who: usize) -> Result<(), String> {
        let mob = &mut self.mob;
        let member = &mut mob.members[who];
        let Some(wire) = &member.wire else { return self.connect_hostile(who) };
        if mob.random.chance(member.kind.breaks_percent()) {
            if member.kind == HostileKind::Taker && mob.random.chance(70) {
                // Over the connection that it has.
                mob.left_behind.extend(member.wire.take().map(|wire| wire.pipe));
                return self.connect_hostile(who);
            }
            self.break_hostile(who);
            return Ok(());
        }
        if wire.to_broker.len() < PENDING_BYTES_MAX && member.tail_bytes == 0 {
            let version = member.version();
            let bytes = member.write(version, &mut mob.random);
            if let Some(wire) = &mut member.wire {
                wire.to_broker.extend(bytes);
            }
        }
        Ok(())
    }

    /// The network connection breaks; the broker learns of it later.
    fn break_hostile(&mut self, who: usize) {
        if let Some(wire) = self.mob.members[who].wire.take()
            && self.options.sabotage != Some(Sabotage::ForgetBroken)
        {
            self.node.broken.push(wire.pipe);
        }
    }

    fn connect_hostile(&mut self, who: usize) -> Result<(), String> {
        let Some(request) = self.request_of_hostile(who) else {
            return Err("a sound CONNECT is not admitted".into());
        };
        let account = self.mob.account_of(request.username.as_deref().unwrap_or_default());
        let shard = self.node.shared.place_of_client(request.name());
        let room = pick(&[40, 400, 4_000], &mut self.mob.random);
        let (socket, pipe) = Pipe::new(room, 0, Flaws::default());
        let client_id = request.client_id.to_string();
        let (to_broker, unread, is_answered) = (Vec::new(), Vec::new(), false);
        let wire = Wire { pipe, client_id, account, is_answered, to_broker, unread };
        let member = &mut self.mob.members[who];
        (member.wire, member.tail_bytes) = (Some(wire), 0);
        let name = member.name();
        self.note(|| format!("{name} connects"));
        let (rest, permit, charge) = (Vec::new(), (), ());
        let handover = Handover { socket, shard, request, rest, permit, charge };
        self.node.put(shard, Item::Connection(Box::new(handover)));
        Ok(())
    }

    fn request_of_hostile(&mut self, who: usize) -> Option<ConnectRequest> {
        let mob = &mut self.mob;
        let (random, member) = (&mut mob.random, &mob.members[who]);
        let version = member.version();
        let expiry_secs = member.kind.expiry_secs(random);
        let id = random.below(member.ids());
        let (id, user) = (format!("h{}-{id}", member.number), member.user_of(id));
        let mut properties = PropertyBuf::new();
        if version == Version::V5 {
            properties.push(Property::SessionExpirySecs(expiry_secs));
            if member.kind == HostileKind::Authenticator {
                properties.push(Property::AuthMethod(METHOD));
            }
        }
        // What is no message has a limit of its own, which is more than a small journal has.
        let will_bytes_max = if mob.has_small_journals { 200 } else { 5_000 };
        let payload = vec![b'w'; random.below(will_bytes_max)];
        let topic = format!("x/{}/will", member.user);
        let will = random.chance(40).then_some(Will {
            topic: &topic,
            payload: &payload,
            qos: QoS::AtLeastOnce,
            retain: random.chance(50),
            properties: Properties::EMPTY,
        });
        let connect = Connect {
            version,
            clean_start: version != Version::V5 || random.chance(10),
            keep_alive_secs: 0,
            client_id: &id,
            properties: properties.as_properties(),
            will,
            username: Some(&user),
            password: None,
            bridge: false,
        };
        let mut bytes = Vec::new();
        Packet::Connect(connect).encode(version, &mut bytes);
        match admit(&bytes, &mob.limits, "10.6.6.6:6", || "assigned".into()) {
            Admission::Connect(credentials, _) => {
                Some(ConnectRequest { scope: mob.scope, ..credentials.request })
            }
            _ => None,
        }
    }

    /// What one of them has written reaches the broker, in a turn that is told of nobody else.
    fn carry_from_hostile(&mut self, who: usize) -> Result<(), String> {
        let mob = &mut self.mob;
        let member = &mut mob.members[who];
        if mob.has_floods && member.kind == HostileKind::Flooder && member.wants_more() {
            let bytes = member.write(member.version(), &mut mob.random);
            member.wire.iter_mut().for_each(|wire| wire.to_broker.extend(&bytes));
        }
        let Some(wire) = &mut member.wire else { return Ok(()) };
        if wire.to_broker.is_empty() || wire.pipe.under_way().0 > 0 {
            // It has to wait.
            return Ok(());
        }
        let len = wire.to_broker.len().min(BYTES_PER_READ_MAX);
        let count = if mob.random.chance(60) { len } else { 1 + mob.random.below(len) };
        let bytes: Vec<u8> = wire.to_broker.drain(..count).collect();
        wire.pipe.send(&bytes);
        let pipe = wire.pipe.clone();
        let shard = self.node.shared.place_of_client(Name::new(mob.scope, &wire.client_id));
        let index = self.node.driver_of(shard);
        self.carry_mail_to(index);
        self.turn_for_mail(index)?;
        let before = Seen::of(&mut self.node, shard);
        self.take_turn(index, Some(&pipe))?;
        let after = Seen::of(&mut self.node, shard);
        self.judge_work(who, &before, &after)
    }

    /// What came of one read is bounded by the budget of work.
    fn judge_work(&self, who: usize, before: &Seen, after: &Seen) -> Result<(), String> {
        let member = &self.mob.members[who];
        let units = u64::from(self.mob.turn_units);
        let (most, what, seen) = match member.kind {
            HostileKind::Flooder => {
                let packets = after.packets - before.packets;
                // What was queued earlier, and is sent now, is no work of this read.
                let unqueued = (after.unqueued - before.unqueued).max(0) as u64;
                let deliveries = after.deliveries - before.deliveries;
                let deliveries = deliveries.saturating_sub(unqueued);
                // Clients have so much in a turn, and mail has; a message may take it beyond.
                (2 * (units + FAN_OUT_MAX) + packets, "deliveries", deliveries)
            }
            // Small packets are taken whole, whoever has sent them, and the rest of another one.
            HostileKind::Subscriber if FILTERS_PER_PACKET as u64 * FILTER_UNITS > units => {
                let filters = after.subscriptions.saturating_sub(before.subscriptions);
                let packets = after.packets - before.packets;
                (units / FILTER_UNITS + packets * self.filters_max() + 1, "filters", filters)
            }
            _ => return Ok(()),
        };
        match seen > most {
            true => Err(format!("{}: {seen} {what} in one go of {units} units", member.name())),
            false => Ok(()),
        }
    }

    /// The most filters that one who keeps to the rules asks for at once, or one.
    fn filters_max(&self) -> u64 {
        let counts = self.clients.iter().map(ModelClient::filter_count);
        counts.fold(1, usize::max) as u64
    }

    /// What waits for one that does not read has a limit, and so has what it may ask for then.
    fn judge_outbox(&mut self, who: usize) -> Result<(), String> {
        let Some(wire) = &self.mob.members[who].wire else { return Ok(()) };
        let place = self.node.place_of(Name::new(self.mob.scope, &wire.client_id));
        let again = usize::from(self.mob.limits.in_flight_max) * LARGE_BYTES;
        let max = self.mob.outbox_bytes_max as usize + OUTBOX_BYTES_BEYOND + again;
        let unsent = self.node.unsent(place);
        match unsent > max {
            true => Err(format!(
                "{}: {unsent} bytes wait to be read, of {max}",
                self.mob.members[who].name()
            )),
            false => Ok(()),
        }
    }

    /// Nobody else authenticates anew.
    pub(crate) fn judge_asks(&self, asks: &[(Box<str>, Box<str>)]) -> Result<(), String> {
        let is_wrong = |(client_id, method): &&(Box<str>, Box<str>)| {
            **method != *METHOD || !client_id.starts_with('h')
        };
        match asks.iter().find(is_wrong) {
            Some((client_id, _)) => Err(format!("{client_id} authenticates for a hostile one")),
            None => Ok(()),
        }
    }

    fn read_hostile(&mut self, who: usize) -> Result<(), String> {
        let mob = &mut self.mob;
        let member = &mut mob.members[who];
        let Some(wire) = &member.wire else { return Ok(()) };
        if wire.pipe.is_over() && (wire.pipe.under_way().1 == 0 || !member.kind.reads()) {
            wire.pipe.finish();
            member.wire = None;
            return Ok(());
        }
        if member.kind.reads() {
            let bytes = wire.pipe.take(1 + mob.random.below(2000));
            mob.refused += member.read(&bytes)?;
        }
        Ok(())
    }

    /// They go, all of them, and do not come back.
    pub(crate) fn dismiss_hostile(&mut self) {
        self.mob.has_left = true;
        self.mob.pressure = Pressure::default();
        self.node.shared.set_memory(Memory::Enough);
        (0..self.mob.members.len()).for_each(|who| self.break_hostile(who));
        self.node.broken.append(&mut self.mob.left_behind);
    }
}

impl Hostile {
    /// It has sent all that it had written.
    fn wants_more(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.to_broker.is_empty())
    }

    pub(super) fn name(&self) -> String {
        format!("hostile {} ({:?})", self.number, self.kind)
    }

    /// How many of its publishes are refused for want of room. Err: it got what is none of its
    /// business.
    fn read(&mut self, bytes: &[u8]) -> Result<u64, String> {
        let (version, name, own) = (self.version(), self.name(), format!("x/{}", self.user));
        let mut refused = 0;
        let Some(wire) = &mut self.wire else { return Ok(refused) };
        wire.unread.extend_from_slice(bytes);
        let unread = std::mem::take(&mut wire.unread);
        let mut rest = unread.as_slice();
        loop {
            match decode(rest, version, Sender::Server, u32::MAX) {
                Ok(Some((packet, len))) => {
                    if let Packet::Publish(publish) = &packet
                        && self.is_guarded
                        && !topic::matches(&format!("{own}/#"), publish.topic)
                    {
                        return Err(format!("{name} got a message on {}", publish.topic));
                    }
                    if let Packet::Publish(publish) = &packet
                        && self.is_tenant
                        && Payload::from_bytes(publish.payload).is_some()
                    {
                        return Err(format!("{name} got a message of another namespace"));
                    }
                    let is_refusal = |ack: &Ack<'_>| ack.reason == Reason::QUOTA_EXCEEDED;
                    refused += u64::from(matches!(&packet, Packet::Ack(ack) if is_refusal(ack)));
                    if let Some(wire) = &mut self.wire
                        && !std::mem::replace(&mut wire.is_answered, true)
                    {
                        judge_first(&packet).map_err(|rule| format!("{name}: {rule}"))?;
                    }
                    rest = &rest[len..];
                }
                Ok(None) => break,
                Err(violation) => return Err(format!("{name} got {violation}")),
            }
        }
        if let Some(wire) = &mut self.wire {
            wire.unread = rest.to_vec();
        }
        Ok(refused)
    }
}

/// The first packet is a CONNACK, and who is refused has no session.
fn judge_first(packet: &Packet<'_>) -> Result<(), String> {
    match packet {
        Packet::Connack(connack) if !connack.reason.is_error() || !connack.session_present => {
            Ok(())
        }
        other => Err(format!("answered with {other:?}")),
    }
}

/// What a shard has done so far.
struct Seen {
    packets: u64,
    deliveries: u64,
    /// Grows by the deliveries that leave queues to be sent, or by less.
    unqueued: i64,
    subscriptions: u64,
}

impl Seen {
    fn of(node: &mut Node, shard: ShardId) -> Self {
        let queued = node.shard(shard).queued();
        let metrics = &node.shared.metrics[usize::from(shard)];
        let was_queued = metrics.publishes_queued.total();
        let dropped = metrics.dropped_queue_full.total() + metrics.dropped_expired.total();
        let deliveries: [&dyn Figure; 3] =
            [&metrics.publishes_sent, &metrics.publishes_queued, &metrics.dropped_slow];
        Self {
            packets: metrics.packets_received.total(),
            deliveries: deliveries.iter().map(|figure| figure.total()).sum(),
            unqueued: was_queued as i64 - (queued + dropped) as i64,
            subscriptions: metrics.subscriptions.value(),
        }
    }
}

/// Of a hundred steps of the world, those in which one of them does something.
const STEPS_PERCENT: usize = 25;
