//! A broker of a few hundred lines that misbehaves on request, so that the lab can be caught
//! asleep.
//!
//! One thread, exact topics and `$share` groups only, no sessions, no limits of what is in flight.
//! Tests use it, and `flock self-test` does on the user's machine.

mod mischief;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use codec::{
    Ack, AckKind, Connack, Connect, Packet, Properties, Property, PropertyBuf, Publish, QoS,
    Reason, Sender, Suback, Subscribe, Unsuback, Unsubscribe, Version,
};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

pub use mischief::{Damage, Dup, Mischief, RetainedMischief, Unavailable, WillMischief};

pub struct StandIn {
    pub address: String,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// On a free port of this machine, until it is dropped.
    pub fn start(mischief: Mischief) -> io::Result<Self> {
        let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = listener.local_addr()?.to_string();
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let mut broker = Broker { mischief, ..Broker::default() };
        let thread = std::thread::spawn(move || broker.run(poll, listener, &seen));
        Ok(Self { address, stop, waker, thread: Some(thread) })
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Default)]
struct Broker {
    mischief: Mischief,
    peers: HashMap<usize, Peer>,
    next: usize,
    /// By topic: who wants it, at which QoS.
    plain: HashMap<String, Vec<Member>>,
    /// By topic: members of the one group, and whose turn it is.
    shared: HashMap<String, (Vec<Member>, usize)>,
    /// By topic: a PUBLISH of MQTT 5.
    retained: HashMap<String, Vec<u8>>,
    /// Client ids that were here.
    known: HashSet<String>,
    /// By client id: the last QoS 2 PUBLISH.
    last: HashMap<String, Vec<u8>>,
    deliveries: u64,
    messages: u64,
    connects: u64,
    released: u64,
    received: u64,
    acknowledged: u64,
    answered: u64,
    room: Option<Room>,
    /// Who subscribed first.
    first: Option<usize>,
    /// Packets that go out later: when, and to whom.
    later: VecDeque<(Instant, usize, Vec<u8>)>,
    /// PUBACKs that are held back: to whom, and for which packet.
    owed: Vec<(usize, u16)>,
}

/// Who wants a topic, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Member {
    at: usize,
    qos: QoS,
    identifier: Option<u32>,
}

struct Peer {
    stream: TcpStream,
    version: Version,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    held: Option<Vec<u8>>,
    packet_id: u16,
    client_id: String,
    /// A PUBLISH of MQTT 5.
    will: Option<Vec<u8>>,
    /// When it last subscribed.
    subscribed: Option<Instant>,
}

/// What may still be delivered, of a rate.
struct Room {
    left: f64,
    at: Instant,
}

impl Room {
    /// Whether there is any, and takes it.
    fn take(&mut self, per_sec: f64) -> bool {
        let now = Instant::now();
        let gained = (now - self.at).as_secs_f64() * per_sec;
        self.at = now;
        self.left = (self.left + gained).min(per_sec * BURST_SECS);
        let has_room = self.left >= 1.0;
        self.left -= f64::from(u8::from(has_room));
        has_room
    }
}

impl Broker {
    fn run(&mut self, mut poll: Poll, listener: TcpListener, stop: &AtomicBool) {
        let mut events = Events::with_capacity(1024);
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let wait = self.later.front().map(|next| next.0.saturating_duration_since(now));
            match poll.poll(&mut events, wait) {
                // The process was stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Its clients see it dead.
                Err(_) => return,
                Ok(()) => {}
            }
            let mut ready = Vec::new();
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(&listener, &poll),
                    WAKER => {}
                    Token(at) => ready.push(at),
                }
            }
            for at in ready {
                self.read(at);
            }
            self.send_later();
            self.flush();
            if self.mischief.die_after > 0 && self.messages >= self.mischief.die_after {
                return;
            }
        }
    }

    fn send_later(&mut self) {
        while let Some((_, to, bytes)) = self.later.pop_front_if(|next| next.0 <= Instant::now()) {
            if let Some(peer) = self.peers.get_mut(&to) {
                peer.outbox.extend_from_slice(&bytes);
            }
        }
    }

    fn accept(&mut self, listener: &TcpListener, poll: &Poll) {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.set_nodelay(true);
            self.next += 1;
            let both = Interest::READABLE | Interest::WRITABLE;
            if poll.registry().register(&mut stream, Token(self.next), both).is_err() {
                continue;
            }
            let peer = Peer {
                stream,
                version: Version::V5,
                inbox: Vec::new(),
                outbox: Vec::new(),
                held: None,
                packet_id: 0,
                client_id: String::new(),
                will: None,
                subscribed: None,
            };
            self.peers.insert(self.next, peer);
        }
    }

    fn read(&mut self, at: usize) {
        let mut scratch = vec![0; 256 * 1024];
        loop {
            let Some(peer) = self.peers.get_mut(&at) else { return };
            match peer.stream.read(&mut scratch) {
                Ok(0) => {
                    self.part(at);
                    return;
                }
                Ok(n) => {
                    peer.inbox.extend_from_slice(&scratch[..n]);
                    let inbox = std::mem::take(&mut peer.inbox);
                    let taken = self.take(at, &inbox);
                    if let Some(peer) = self.peers.get_mut(&at) {
                        peer.inbox = inbox[taken..].to_vec();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.part(at);
                    return;
                }
            }
        }
    }

    /// A connection is over, and what is left of its will is sent.
    fn part(&mut self, at: usize) {
        let Some(peer) = self.peers.remove(&at) else { return };
        let shared = self.shared.values_mut().map(|(members, _)| members);
        for members in self.plain.values_mut().chain(shared) {
            members.retain(|member| member.at != at);
        }
        let Some(will) = peer.will else { return };
        let times = match self.mischief.will {
            WillMischief::Forgotten | WillMischief::Early => 0,
            WillMischief::Twice => 2,
            WillMischief::None | WillMischief::Always | WillMischief::Misrouted => 1,
        };
        self.deliver_will(&will, times);
    }

    fn deliver_will(&mut self, will: &[u8], times: usize) {
        let decoded = codec::decode(will, Version::V5, Sender::Client, 1 << 28);
        let Ok(Some((Packet::Publish(publish), _))) = decoded else { return };
        if self.mischief.will == WillMischief::Misrouted {
            self.deliver_aside(&publish);
        }
        let targets = self.plain.get(publish.topic).cloned().unwrap_or_default();
        for to in targets.iter().flat_map(|to| std::iter::repeat_n(*to, times)) {
            self.deliver(to, &publish, false);
        }
    }

    fn take(&mut self, at: usize, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(peer) = self.peers.get_mut(&at) {
            let decoded = codec::decode(&bytes[taken..], peer.version, Sender::Client, 1 << 28);
            let Ok(Some((packet, len))) = decoded else { break };
            taken += len;
            if !self.on_packet(at, &packet) {
                self.part(at);
            }
        }
        taken
    }

    /// `false`: the connection ends.
    fn on_packet(&mut self, at: usize, packet: &Packet<'_>) -> bool {
        let mischief = self.mischief;
        let Some(peer) = self.peers.get_mut(&at) else { return false };
        match packet {
            Packet::Connect(connect) => {
                self.on_connect(at, connect);
                true
            }
            Packet::Subscribe(_) if mischief.ignore_subscribes => true,
            Packet::Unsubscribe(unsubscribe) => {
                self.on_unsubscribe(at, unsubscribe);
                true
            }
            Packet::Subscribe(subscribe) => {
                self.on_subscribe(at, subscribe);
                true
            }
            Packet::Publish(publish) => {
                self.on_publish(at, publish);
                self.messages != mischief.hang_up_after
            }
            Packet::Ack(ack) => {
                if ack.kind == AckKind::Pubrel {
                    self.released += 1;
                    let every = mischief.uncompleted_every;
                    if every > 0 && self.released.is_multiple_of(every) {
                        return true;
                    }
                }
                if ack.kind == AckKind::Pubrec {
                    self.received += 1;
                    let every = mischief.unreleased_every;
                    if every > 0 && self.received.is_multiple_of(every) {
                        return true;
                    }
                }
                let answer = match ack.kind {
                    AckKind::Pubrec => AckKind::Pubrel,
                    AckKind::Pubrel => AckKind::Pubcomp,
                    AckKind::Puback | AckKind::Pubcomp => return true,
                };
                self.answer(at, answer, ack.packet_id);
                true
            }
            Packet::Pingreq if mischief.ignore_pings => true,
            Packet::Pingreq => {
                peer.outbox.extend_from_slice(&[0xD0, 0]);
                true
            }
            Packet::Disconnect(disconnect) => {
                peer.will.take_if(|_| mischief.forgets_will(disconnect.reason));
                false
            }
            _ => true,
        }
    }

    fn on_connect(&mut self, at: usize, connect: &Connect<'_>) {
        let (mischief, is_full) = (self.mischief, self.is_full());
        let Some(peer) = self.peers.get_mut(&at) else { return };
        peer.version = connect.version;
        if mischief.connects_per_sec > 0 {
            // As one that works for so long on each, and does nothing else.
            let work = 1.0 / mischief.connects_per_sec as f64;
            std::thread::sleep(Duration::from_secs_f64(work));
        }
        if mischief.answer_garbage {
            peer.outbox.extend_from_slice(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            return;
        }
        self.connects += 1;
        if self.connects <= mischief.ignore_connects {
            return;
        }
        let reason = match (mischief.refuse, is_full) {
            (true, _) => Reason::NOT_AUTHORIZED,
            (false, true) => Reason::QUOTA_EXCEEDED,
            (false, false) => Reason::SUCCESS,
        };
        let session_present = mischief.claims_session(self.known.contains(connect.client_id));
        Connack { session_present, reason, properties: mischief.claims().as_properties() }
            .encode(peer.version, &mut peer.outbox);
        if !is_full {
            self.welcome(at, connect);
        }
    }

    /// Whether it has all the clients that it holds.
    fn is_full(&self) -> bool {
        let most = self.mischief.connections_max;
        most > 0 && self.peers.values().filter(|peer| !peer.client_id.is_empty()).count() >= most
    }

    /// Keeps the will, and goes on with what the session has.
    fn welcome(&mut self, at: usize, connect: &Connect<'_>) {
        let mischief = self.mischief;
        let Some(peer) = self.peers.get_mut(&at) else { return };
        peer.client_id = connect.client_id.to_owned();
        self.known.insert(connect.client_id.to_owned());
        peer.will = connect.will.as_ref().map(|will| {
            // No packet id is 0, and this one is on no wire.
            let packet_id = u16::from(will.qos != QoS::AtMostOnce);
            let (topic, payload) = (will.topic, will.payload);
            let (qos, retain, dup) = (will.qos, will.retain, false);
            let (mut kept, mut properties) = (Vec::new(), PropertyBuf::new());
            // When it is sent is not said of the message.
            let said = will.properties.iter();
            for property in said.filter(|one| !matches!(one, Property::WillDelaySecs(_))) {
                properties.push(property);
            }
            let properties = properties.as_properties();
            Publish { qos, dup, packet_id, retain, topic, payload, properties }
                .encode(Version::V5, &mut kept);
            kept
        });
        if mischief.will == WillMischief::Early
            && let Some(will) = peer.will.clone()
        {
            self.deliver_will(&will, 1);
        }
        let Some(dup) = mischief.sends_again else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if let Some(last) = self.last.get(connect.client_id) {
            let start = peer.outbox.len();
            peer.outbox.extend_from_slice(last);
            peer.outbox[start] |= if dup == Dup::Marked { DUP_BIT } else { 0 };
        }
    }

    fn on_subscribe(&mut self, at: usize, subscribe: &Subscribe<'_>) {
        let mischief = self.mischief;
        self.first.get_or_insert(at);
        let (mut reasons, mut stored) = (Vec::new(), Vec::new());
        let identifier = subscribe.properties.subscription_ids().next();
        for (filter, options) in subscribe.filters.iter() {
            if mischief.refuse_subscriptions {
                reasons.push(Reason::NOT_AUTHORIZED.0);
                continue;
            }
            let qos = options.qos.min(mischief.grants_at_most.unwrap_or(options.qos));
            reasons.push(if mischief.grants_more { 2 } else { qos as u8 });
            let member = Member { at, qos, identifier };
            let shared = filter.strip_prefix("$share/").and_then(|f| f.split_once('/'));
            match shared {
                Some((_, topic)) => {
                    let group = self.shared.entry(topic.to_owned()).or_default();
                    if !(mischief.forgets_newcomers && self.messages > 0) {
                        group.0.push(member);
                    }
                }
                None => {
                    if !(mischief.forgets_newcomers && self.messages > 0) {
                        self.plain.entry(filter.to_owned()).or_default().push(member);
                    }
                    let is_aside = mischief.retained == RetainedMischief::Misrouted;
                    let due =
                        self.retained.iter().filter(|(topic, _)| *topic == filter || is_aside);
                    stored.extend(due.map(|(_, kept)| (member, kept.clone())));
                }
            }
        }
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let (packet_id, properties) = (subscribe.packet_id, Properties::EMPTY);
        Suback { packet_id, properties, reasons: &reasons }.encode(peer.version, &mut peer.outbox);
        peer.subscribed = Some(Instant::now());
        for (member, kept) in stored {
            self.deliver_stored(member, &kept);
        }
    }

    fn deliver_stored(&mut self, to: Member, kept: &[u8]) {
        let decoded = codec::decode(kept, Version::V5, Sender::Client, 1 << 28);
        let Ok(Some((Packet::Publish(publish), _))) = decoded else { return };
        let is_marked = self.mischief.retained != RetainedMischief::Unmarked;
        self.deliver(to, &publish, is_marked);
        if self.mischief.retained == RetainedMischief::Twice {
            self.deliver(to, &publish, is_marked);
        }
    }

    fn keep(&mut self, publish: &Publish<'_>) {
        let is_first = !self.retained.contains_key(publish.topic);
        let keeps = match self.mischief.retained {
            RetainedMischief::Forgotten => false,
            RetainedMischief::Stale => is_first,
            _ => true,
        };
        if keeps {
            let mut kept = Vec::new();
            publish.encode(Version::V5, &mut kept);
            self.retained.insert(publish.topic.to_owned(), kept);
        }
    }

    fn on_unsubscribe(&mut self, at: usize, unsubscribe: &Unsubscribe<'_>) {
        let mut reasons = Vec::new();
        for filter in unsubscribe.filters.iter() {
            reasons.push(Reason::SUCCESS.0);
            if let Some(heard) = self.plain.get_mut(filter)
                && !self.mischief.keeps_subscriptions
            {
                heard.retain(|member| member.at != at);
            }
        }
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let (packet_id, properties) = (unsubscribe.packet_id, Properties::EMPTY);
        Unsuback { packet_id, properties, reasons: &reasons }
            .encode(peer.version, &mut peer.outbox);
    }

    /// Acknowledges, twice where that is the mischief.
    fn answer(&mut self, to: usize, kind: AckKind, packet_id: u16) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        self.answered += u64::from(kind == AckKind::Puback);
        let every = self.mischief.deny_every;
        if kind == AckKind::Puback && every > 0 && self.answered.is_multiple_of(every) {
            let (reason, properties) = (Reason::NO_MATCHING_SUBSCRIBERS, Properties::EMPTY);
            Ack { kind, packet_id, reason, properties }.encode(peer.version, &mut peer.outbox);
            return;
        }
        acknowledge(peer, kind, packet_id);
        if self.mischief.acknowledge_twice == Some(kind) {
            self.acknowledged += 1;
            if self.acknowledged.is_multiple_of(self.mischief.acknowledge_twice_every.max(1)) {
                acknowledge(peer, kind, packet_id);
            }
        }
    }

    fn on_publish(&mut self, at: usize, publish: &Publish<'_>) {
        if !self.mischief.work_per_message.is_zero() {
            // What is done goes out: a publisher that never pauses holds up nothing else.
            self.flush();
            std::thread::sleep(self.mischief.work_per_message);
        }
        self.messages += 1;
        let refuse_every = self.mischief.refuse_every;
        if refuse_every > 0 && self.messages.is_multiple_of(refuse_every) {
            let Some(peer) = self.peers.get_mut(&at) else { return };
            let (kind, packet_id) = (AckKind::Puback, publish.packet_id);
            let (reason, properties) = (Reason::QUOTA_EXCEEDED, Properties::EMPTY);
            Ack { kind, packet_id, reason, properties }.encode(peer.version, &mut peer.outbox);
            return;
        }
        if publish.qos == QoS::AtLeastOnce {
            self.owed.push((at, publish.packet_id));
        }
        if self.messages >= self.mischief.acknowledge_after {
            for (to, packet_id) in std::mem::take(&mut self.owed) {
                self.answer(to, AckKind::Puback, packet_id);
            }
        }
        if publish.qos == QoS::ExactlyOnce {
            self.answer(at, AckKind::Pubrec, publish.packet_id);
        }
        if publish.retain {
            self.keep(publish);
        }
        self.force(at, publish);
        let mut targets = self.plain.get(publish.topic).cloned().unwrap_or_default();
        if let Some((members, turn)) = self.shared.get_mut(publish.topic)
            && !members.is_empty()
        {
            *turn += 1;
            targets.push(members[*turn % members.len()]);
            let every = self.mischief.share_twice_every;
            if every > 0 && turn.is_multiple_of(every as usize) {
                targets.push(members[(*turn + 1) % members.len()]);
            }
        }
        let is_aside = self.mischief.misroute || self.mischief.misdirect;
        if is_aside && self.deliver_aside(publish) && self.mischief.misdirect {
            return;
        }
        for to in targets {
            self.deliver(to, publish, false);
        }
    }

    /// Sends it to a client that has subscribed to something else, if there is one.
    fn deliver_aside(&mut self, publish: &Publish<'_>) -> bool {
        let targets = self.plain.get(publish.topic).map_or(&[][..], Vec::as_slice);
        let mut others = self.plain.values().flatten();
        let Some(&other) = others.find(|other| !targets.contains(other)) else { return false };
        // First, and on its way before the others: no run ends before it was there to be seen.
        self.deliver(other, publish, false);
        self.flush();
        true
    }

    /// Sends it to whoever has subscribed to nothing and is not its publisher.
    fn force(&mut self, publisher: usize, publish: &Publish<'_>) {
        if !self.mischief.forces {
            return;
        }
        let asked: Vec<usize> = self.plain.values().flatten().map(|member| member.at).collect();
        let others = self.peers.keys().filter(|at| **at != publisher && !asked.contains(at));
        for at in others.copied().collect::<Vec<_>>() {
            let forced = Member { at, qos: QoS::AtMostOnce, identifier: None };
            self.deliver(forced, publish, false);
        }
    }

    /// A broker that hangs: the one place where waiting is the point.
    fn hang(&self) {
        let Some((after, pause)) = self.mischief.stall else { return };
        let until = Instant::now() + pause;
        while self.deliveries == after && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn deliver(&mut self, to: Member, publish: &Publish<'_>, retain: bool) {
        let pending =
            |peers: &HashMap<usize, Peer>| peers.get(&to.at).map_or(0, |peer| peer.outbox.len());
        let start = pending(&self.peers);
        self.deliver_now(to, publish, retain);
        let wait = self.mischief.delays_first.filter(|_| self.first == Some(to.at));
        if let (Some(wait), Some(peer)) = (wait, self.peers.get_mut(&to.at)) {
            let bytes = peer.outbox.split_off(start);
            self.later.push_back((Instant::now() + wait, to.at, bytes));
        }
    }

    /// Whether what goes to a client now is swallowed.
    fn is_deaf(&self, to: Member) -> bool {
        let since = self.peers.get(&to.at).and_then(|peer| peer.subscribed);
        let wait = self.mischief.deaf_after_suback.zip(since);
        wait.is_some_and(|(wait, since)| since.elapsed() < wait)
    }

    fn deliver_now(&mut self, to: Member, publish: &Publish<'_>, retain: bool) {
        let qos = to.qos.min(publish.qos);
        self.deliveries += 1;
        if self.is_deaf(to) {
            return;
        }
        self.hang();
        let hits = |every: u64| every > 0 && self.deliveries.is_multiple_of(every);
        if self.mischief.deliver_per_sec > 0 {
            let per_sec = self.mischief.deliver_per_sec as f64;
            let full = || Room { left: per_sec * BURST_SECS, at: Instant::now() };
            if !self.room.get_or_insert_with(full).take(per_sec) {
                return;
            }
        }
        let is_beyond = self.mischief.lose_after > 0 && self.deliveries > self.mischief.lose_after;
        if hits(self.mischief.lose_every) || is_beyond {
            return;
        }
        let copies = 1 + usize::from(hits(self.mischief.duplicate_every));
        let times = 1 + usize::from(hits(self.mischief.repeat_every));
        let hold = hits(self.mischief.swap_every);
        let damage = self.mischief.damage.filter(|_| hits(self.mischief.damage_every));
        let Some(peer) = self.peers.get_mut(&to.at) else { return };
        let (mut topic, mut payload) = (Cow::from(publish.topic), Cow::from(publish.payload));
        if let Some(damage) = damage {
            damage.hurt(topic.to_mut(), payload.to_mut());
        }
        let qos = match damage {
            Some(Damage::LowerQos) if qos == QoS::ExactlyOnce => QoS::AtLeastOnce,
            Some(Damage::LowerQos) => QoS::AtMostOnce,
            Some(Damage::HigherQos) => QoS::ExactlyOnce,
            _ => qos,
        };
        let properties = forwarded(publish.properties, to.identifier, damage);
        let properties = properties.as_properties();
        let retain = retain || damage == Some(Damage::RetainFlag);
        let dup = qos != QoS::AtMostOnce && hits(self.mischief.mark_dup_every);
        for number in 0..copies {
            peer.packet_id = peer.packet_id.checked_add(1).unwrap_or(1);
            let packet_id = if qos == QoS::AtMostOnce { 0 } else { peer.packet_id };
            let (topic, payload) = (&*topic, &*payload);
            let copy = Publish { qos, dup, packet_id, retain, topic, payload, properties };
            if let Some(wait) = self.mischief.duplicate_later.filter(|_| number > 0) {
                let mut bytes = Vec::new();
                copy.encode(peer.version, &mut bytes);
                self.later.push_back((Instant::now() + wait, to.at, bytes));
            } else if hold {
                let mut held = Vec::new();
                copy.encode(peer.version, &mut held);
                peer.held = Some(held);
            } else {
                let start = peer.outbox.len();
                for _ in 0..times {
                    copy.encode(peer.version, &mut peer.outbox);
                }
                if qos == QoS::ExactlyOnce && self.mischief.sends_again.is_some() {
                    let sent = peer.outbox[start..].to_vec();
                    self.last.insert(peer.client_id.clone(), sent);
                }
                if let Some(held) = peer.held.take() {
                    peer.outbox.extend_from_slice(&held);
                }
            }
        }
    }

    fn flush(&mut self) {
        self.peers.retain(|_, peer| {
            while !peer.outbox.is_empty() {
                match peer.stream.write(&peer.outbox) {
                    Ok(n) => {
                        peer.outbox.drain(..n);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => return false,
                }
            }
            true
        });
    }
}

/// The properties of a message as they go to a subscriber, with its identifier, and with what is
/// done to them.
fn forwarded(sent: Properties<'_>, identifier: Option<u32>, damage: Option<Damage>) -> PropertyBuf {
    let mut all = PropertyBuf::new();
    for property in sent.iter() {
        match (property, damage) {
            (Property::TopicAlias(_), _) | (Property::User(..), Some(Damage::UserProperties)) => {}
            (Property::MessageExpirySecs(secs), Some(Damage::Expiry)) => {
                all.push(Property::MessageExpirySecs(secs + 3_600));
            }
            (Property::MessageExpirySecs(secs), Some(Damage::LongerExpiry)) => {
                all.push(Property::MessageExpirySecs(secs + 1));
            }
            (Property::CorrelationData(data), Some(Damage::Correlation)) => {
                let other: Vec<u8> = data.iter().map(|byte| byte ^ 1).collect();
                all.push(Property::CorrelationData(&other));
            }
            (kept, _) => {
                all.push(kept);
            }
        }
    }
    match damage {
        Some(Damage::ContentType) => all.push(Property::ContentType("made/up")),
        Some(Damage::Alias) => all.push(Property::TopicAlias(1)),
        _ => &mut all,
    };
    let identifier = match damage {
        Some(Damage::Identifier) => Some(identifier.map_or(99, |own| own + 1)),
        _ => identifier,
    };
    if let Some(identifier) = identifier {
        all.push(Property::SubscriptionId(identifier));
        if damage == Some(Damage::IdentifierTwice) {
            all.push(Property::SubscriptionId(identifier));
        }
    }
    all
}

fn acknowledge(peer: &mut Peer, kind: AckKind, packet_id: u16) {
    let ack = Ack { kind, packet_id, reason: Reason::SUCCESS, properties: Properties::EMPTY };
    ack.encode(peer.version, &mut peer.outbox);
}

/// Of its rate, what may come at once.
const BURST_SECS: f64 = 0.2;
/// Of the first byte of a PUBLISH.
const DUP_BIT: u8 = 0x08;
const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
