//! The door: accepting, handshakes, the first packet, authentication.
//!
//! All of it happens here and none of it on a worker, so a storm of connections or a slow
//! authentication back-end does not hold up a message. A door has its own poll and its own
//! scratch buffer; what it holds of a connection is bounded, and every connection has a deadline.

mod leaving;
mod placing;
mod reading;
mod stage;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use broker::admission::{self, Admission, AuthStep, Credentials};
use broker::{ConnectRequest, Shared};
use codec::Reason;
use mio::{Events, Interest, Poll, Token};
use net::{Foreign, Handshake, Listener, PeerInfo, Progress, Stream};
use session::{Bucket, Rate};
use slab::Slab;

use super::accepting::{Complaint, Eager};
use super::gate::{Entrance, TurnedAway};
use super::identity;
use super::mailbox::{Handover, Item, Mailbox};
use super::standby::ClusterDoor;
use super::worker::Line;
use crate::life_cycle::LifeCycle;
use crate::life_cycle::line_pace::{About, LinePace};
use ::identity::auth::bans::Visitor;
use ::identity::auth::scram::{self, Exchange};
use ::identity::auth::{AuthRequest, Authenticator, Step, TOKEN_METHOD, Verdict};
use ::identity::namespaces::{NameMaker, Namespaces};
use base::Clock;
use base::memory;
use base::shown;
use driver::Origin;
use driver::{Allowance, Purpose, Short};
use reading::{Outcome, read_packet};
use stage::{Arrival, Stage, ip, origin_of, refusal};

/// Connections that are not admitted yet, per door. At the limit the door accepts no more until
/// some are through; the kernel's backlog holds the others.
const ARRIVALS_MAX: usize = 20_000;

/// Accepts in one go before those inside get their turn.
const ACCEPTS_PER_TURN: usize = 256;

/// How long accepting pauses when the process has no descriptor left.
const EXHAUSTED_MS: u64 = 100;

/// How long accepting pauses when there is no room for more at the door.
const CROWDED_MS: u64 = 20;

/// What a connection takes by being there: itself, its socket, and with TLS what a handshake has
/// under way.
const ARRIVAL_BYTES: u64 = 4 * 1024;
const LAYERED_ARRIVAL_BYTES: u64 = 40 * 1024;

const NAMELESS_CERTIFICATE: &str =
    "the client's certificate lacks the name that identity_from_certificate takes";

const BANNED: &str = "banned";

const NO_ROOM: &str = "the client takes no packet as large as the question of its exchange";

/// Enough for the largest part of a handshake.
const SCRATCH_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 1024;
/// Of a ticket: there are 64 doors at most.
const DOOR_BITS: u32 = 6;
const WAKER: Token = Token(usize::MAX);
/// Listeners have the tokens from here on, connections those below.
const FIRST_LISTENER: usize = 1 << 32;

/// What other threads bring to a door.
enum Knock {
    /// A connection that another door accepted.
    Accepted(Handshake, Arc<Entrance>),
    Verdict {
        key: usize,
        generation: u64,
        verdict: Verdict,
    },
    /// The namespace that a client has asked for is there, or cannot be.
    Named {
        key: usize,
        generation: u64,
        is_made: bool,
    },
}

/// A door's mailbox.
pub(super) struct Bell {
    knocks: Mutex<Vec<Knock>>,
    waker: mio::Waker,
}

impl Bell {
    fn ring(&self, knock: Knock) {
        self.knocks.lock().unwrap_or_else(PoisonError::into_inner).push(knock);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake a listener thread");
        }
    }
}

/// A listener with its pace.
pub(super) struct Portal {
    pub(super) listener: Listener,
    pub(super) entrance: Arc<Entrance>,
    /// 0: no limit.
    pub(super) connections_per_second_max: u32,
}

/// What all doors share.
pub(super) struct DoorContext {
    pub(super) shared: Arc<Shared>,
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) namespaces: Arc<Namespaces>,
    pub(super) life_cycle: Arc<LifeCycle>,
    pub(super) name_maker: NameMaker,
    pub(super) clock: Clock,
    pub(super) connect_timeout_ms: u64,
    pub(super) connections_per_second_max: u32,
    pub(super) line_pace: Arc<LinePace>,
    pub(super) allowance: Arc<Allowance<Origin>>,
    pub(super) is_stopping: Arc<AtomicBool>,
    /// In a cluster: who serves.
    pub(super) cluster: Option<ClusterDoor>,
}

/// When to give up on which arrival: time, key, generation.
type Deadlines = VecDeque<(u64, usize, u64)>;

pub(super) struct Door {
    poll: Poll,
    bell: Arc<Bell>,
    /// All doors; the one that listens shares the connections out.
    bells: Vec<Arc<Bell>>,
    next_bell: usize,
    /// Its place among the doors.
    number: u64,
    portals: Vec<(Portal, Option<Bucket>)>,
    eager: Eager,
    exhaustion: Complaint,
    /// No accepting before this time.
    accepts_at_ms: u64,
    bucket: Option<Bucket>,
    arrivals: Slab<Arrival>,
    /// Deadlines in the order of arrival, which is their order, as all have the same timeout.
    deadlines: Deadlines,
    /// The same for those who may still read why they were refused.
    refusals: Deadlines,
    /// When those who dawdle are looked at next, if there is little room.
    hurries_at_ms: u64,
    generation: u64,
    scratch: Box<[u8]>,
    now_ms: u64,
    context: Arc<DoorContext>,
}

/// A poll and the bell that wakes it.
pub(super) fn poll_and_bell() -> io::Result<(Poll, Arc<Bell>)> {
    let poll = Poll::new()?;
    let waker = mio::Waker::new(poll.registry(), WAKER)?;
    Ok((poll, Arc::new(Bell { knocks: Mutex::default(), waker })))
}

impl Door {
    /// `portals` is empty for all doors but the first.
    pub(super) fn new(
        (poll, bell): (Poll, Arc<Bell>),
        bells: Vec<Arc<Bell>>,
        portals: Vec<Portal>,
        context: Arc<DoorContext>,
    ) -> Self {
        let now_ms = context.clock.now_ms();
        let bucket = |per_second| Bucket::new(Rate { per_second, burst: per_second }, now_ms);
        let portals: Vec<_> = portals
            .into_iter()
            .map(|portal| {
                let bucket = bucket(portal.connections_per_second_max);
                (portal, bucket)
            })
            .collect();
        Self {
            poll,
            number: bells.iter().position(|other| Arc::ptr_eq(other, &bell)).unwrap_or(0) as u64,
            bell,
            bells,
            next_bell: 0,
            eager: Eager::default(),
            exhaustion: Complaint::default(),
            portals,
            accepts_at_ms: 0,
            bucket: bucket(context.connections_per_second_max),
            arrivals: Slab::new(),
            deadlines: Deadlines::new(),
            refusals: Deadlines::new(),
            hurries_at_ms: 0,
            generation: 0,
            scratch: vec![0; SCRATCH_BYTES].into(),
            now_ms,
            context,
        }
    }

    /// Runs until the broker stops.
    pub(super) fn run(mut self) -> io::Result<()> {
        for (number, (portal, _)) in self.portals.iter_mut().enumerate() {
            let token = Token(FIRST_LISTENER + number);
            self.poll.registry().register(&mut portal.listener, token, Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !self.context.is_stopping.load(Ordering::Acquire) {
            self.sleep(&mut events)?;
            self.now_ms = self.context.clock.now_ms();
            memory::purge_if_asked();
            self.answer_bell();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(token) if token >= FIRST_LISTENER => {
                        self.eager.insert(token - FIRST_LISTENER);
                    }
                    Token(key) => {
                        self.advance(key);
                        if event.is_read_closed() || event.is_error() {
                            self.on_gone(key);
                        }
                    }
                }
            }
            self.accept();
            self.give_up_late();
        }
        Ok(())
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let now_ms = self.context.clock.now_ms();
        let queues = [&self.deadlines, &self.refusals];
        let next_deadline = queues.into_iter().filter_map(|queue| Some(queue.front()?.0)).min();
        let next_accept = (!self.eager.0.is_empty()).then_some(self.accepts_at_ms);
        let next_ms = next_deadline.into_iter().chain(next_accept).min();
        let timeout = next_ms.map(|at| Duration::from_millis(at.saturating_sub(now_ms).min(1000)));
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn answer_bell(&mut self) {
        let knocks =
            std::mem::take(&mut *self.bell.knocks.lock().unwrap_or_else(PoisonError::into_inner));
        for knock in knocks {
            match knock {
                Knock::Accepted(handshake, entrance) => self.welcome(handshake, entrance),
                Knock::Verdict { key, generation, verdict } => {
                    self.on_verdict(key, generation, verdict);
                }
                Knock::Named { key, generation, is_made } => {
                    self.on_named(key, generation, is_made);
                }
            }
        }
    }

    /// Accepts what waits, as far as pace and room allow.
    fn accept(&mut self) {
        if self.now_ms < self.accepts_at_ms {
            return;
        }
        for number in std::mem::take(&mut self.eager.0) {
            for turn in 0.. {
                if self.arrivals.len() >= ARRIVALS_MAX || self.context.allowance.is_full() {
                    self.accepts_at_ms = self.now_ms + CROWDED_MS;
                    self.eager.insert(number);
                    break;
                }
                if turn == ACCEPTS_PER_TURN {
                    self.eager.insert(number);
                    break;
                }
                if !self.accept_one(number) {
                    break;
                }
            }
        }
    }

    /// False: no more from this listener for now.
    fn accept_one(&mut self, number: usize) -> bool {
        let Some((portal, bucket)) = self.portals.get_mut(number) else { return false };
        let handshake = match portal.listener.accept() {
            Ok(Some(handshake)) => handshake,
            Ok(None) => return false,
            Err(error) => {
                if self.exhaustion.is_due(self.now_ms) {
                    tracing::warn!(
                        listener = portal.entrance.name,
                        %error,
                        "cannot accept connections; raise the limit of open files (ulimit -n)"
                    );
                }
                self.accepts_at_ms = self.now_ms + EXHAUSTED_MS;
                self.eager.insert(number);
                return false;
            }
        };
        let entrance = portal.entrance.clone();
        entrance.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let now_ms = self.now_ms;
        let own = bucket.as_mut().and_then(|bucket| bucket.take(1, now_ms));
        let all = self.bucket.as_mut().and_then(|bucket| bucket.take(1, now_ms));
        self.next_bell = (self.next_bell + 1) % self.bells.len();
        let bell = &self.bells[self.next_bell];
        if Arc::ptr_eq(bell, &self.bell) {
            self.welcome(handshake, entrance);
        } else {
            bell.ring(Knock::Accepted(handshake, entrance));
        }
        if let Some(until_ms) = own.max(all) {
            self.accepts_at_ms = until_ms;
            self.eager.insert(number);
            return false;
        }
        true
    }

    fn welcome(&mut self, handshake: Handshake, entrance: Arc<Entrance>) {
        if entrance.counts.is_paused.load(Ordering::Relaxed) {
            return entrance.counts.turn_away(TurnedAway::Paused);
        }
        let address = ip(&handshake.peer().address);
        let visitor = Visitor { address, ..Visitor::default() };
        if entrance.gate.bans.keeps_out(visitor, self.context.clock.wall_secs()) {
            entrance.counts.turn_away(TurnedAway::Banned);
            if self.may_tell(About::Refused, address, "-", BANNED) {
                let peer = handshake.peer().address;
                tracing::info!(address = %peer, listener = entrance.name, "connection refused: the address \
                is banned");
            }
            return;
        }
        let entry = self.arrivals.vacant_entry();
        let key = entry.key();
        self.generation += 1;
        let deadline_ms = self.now_ms + self.context.connect_timeout_ms;
        self.deadlines.push_back((deadline_ms, key, self.generation));
        let seat = entrance.sit();
        let bytes = if entrance.has_layers { LAYERED_ARRIVAL_BYTES } else { ARRIVAL_BYTES };
        let charge = self.context.allowance.begin(origin_of(&handshake.peer().address), bytes);
        entry.insert(Arrival {
            stage: Stage::Handshake(Box::new(handshake)),
            entrance,
            seat,
            generation: self.generation,
            is_watched: false,
            charge,
            host: None,
        });
        self.advance(key);
        self.watch(key);
    }

    /// Watches a connection that has to wait. What came since it was last read makes an event.
    fn watch(&mut self, key: usize) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let Some(source) = arrival.stage.source() else { return };
        let interests = Interest::READABLE | Interest::WRITABLE;
        match self.poll.registry().register(source, Token(key), interests) {
            Ok(()) => arrival.is_watched = true,
            Err(error) => {
                tracing::warn!(%error, "connection closed: cannot register its socket");
                self.turn_away(key, TurnedAway::Resources);
            }
        }
    }

    /// Takes a connection as far as it goes without waiting.
    fn advance(&mut self, key: usize) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let stage = std::mem::replace(&mut arrival.stage, Stage::Moving);
        match stage {
            Stage::Handshake(handshake) => self.on_handshake(key, handshake),
            Stage::Connect { stream, peer, bytes } => {
                self.on_connect_bytes(key, stream, peer, bytes)
            }
            Stage::Exchange { stream, credentials, exchange, bytes } => {
                self.on_exchange_bytes(key, stream, credentials, exchange, bytes);
            }
            // It reads again on the worker; the bytes wait in the socket.
            Stage::Checking { .. } => arrival.stage = stage,
            Stage::Refused(stream) => self.read_away(key, stream),
            Stage::Moving => {}
        }
    }

    /// The client has closed its end, and all that it sent has been read: nothing will complete its
    /// packet, and nobody waits for the check of its password.
    fn on_gone(&mut self, key: usize) {
        let Some(arrival) = self.arrivals.get(key) else { return };
        let waits = |stage: &Stage| {
            matches!(stage, Stage::Connect { .. } | Stage::Checking { .. } | Stage::Exchange { .. })
        };
        if waits(&arrival.stage) {
            self.turn_away(key, TurnedAway::Closed);
        }
    }

    /// A number that no other question to the authenticator has.
    fn ticket(&self, generation: u64) -> u64 {
        generation << DOOR_BITS | self.number
    }

    fn on_handshake(&mut self, key: usize, mut handshake: Box<Handshake>) {
        match handshake.advance(&mut self.scratch) {
            Ok(Progress::Pending) => self.set(key, Stage::Handshake(handshake)),
            Ok(Progress::Done(stream, peer)) => {
                self.on_connect_bytes(key, stream, peer, Vec::new());
            }
            Err(error) => {
                let peer = handshake.peer().address;
                let listener = &self.arrivals[key].entrance.name;
                if self.may_tell(About::Handshake, ip(&peer), "-", "handshake") {
                    let hint = error.broker_hint();
                    let error = error.to_string();
                    let error = format_args!("{}{hint}", shown(&error));
                    tracing::info!(address = %peer, listener, %error, "handshake failed");
                }
                self.turn_away(key, TurnedAway::Handshake);
            }
        }
    }

    fn on_connect_bytes(
        &mut self,
        key: usize,
        mut stream: Stream,
        peer: Box<PeerInfo>,
        mut bytes: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let entrance = arrival.entrance.clone();
        let limits = &entrance.limits;
        let bytes_max = limits.connect_bytes_max.min(limits.packet_bytes_max);
        arrival.charge.move_to(origin_of(&peer.address));
        let charge = &mut arrival.charge;
        let outcome = read_packet(&mut stream, &mut bytes, &mut self.scratch, charge, bytes_max);
        let peer_name = peer.address.to_string();
        if let Outcome::Short(short) = outcome {
            let (reason, detail) = shortage(short);
            let refusal = admission::refuse_first(&bytes, reason, detail);
            return self.refuse(key, stream, &peer_name, None, &refusal, None);
        }
        match admission::admit(&bytes, limits, &peer_name, identity::assigned_client_id) {
            Admission::NeedMore if outcome == Outcome::Open => {
                self.set(key, Stage::Connect { stream, peer, bytes });
            }
            Admission::NeedMore => self.turn_away(key, TurnedAway::Closed),
            Admission::Refuse(mut refusal) => {
                let foreign = Foreign::of(&bytes).filter(|foreign| *foreign != Foreign::Mqtt);
                refusal.detail = foreign.map_or(refusal.detail, Foreign::hint);
                self.refuse(key, stream, &peer_name, None, &refusal, None);
            }
            Admission::Connect(credentials, packet_len) => {
                let rest = bytes[packet_len..].to_vec();
                drop(bytes);
                self.on_connect(key, stream, &peer, credentials, rest);
            }
        }
    }

    fn on_connect(
        &mut self,
        key: usize,
        stream: Stream,
        peer: &PeerInfo,
        credentials: Box<Credentials>,
        rest: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        arrival.host = host_of(peer).map(Into::into);
        let cluster = self.context.cluster.as_ref();
        if let Some(refusal) = cluster.and_then(|door| door.refusal(&credentials.request)) {
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let Some(arrival) = self.arrivals.get(key) else { return };
        if let Some((reason, detail)) = self.bars(arrival, peer, &credentials) {
            let refusal = refusal(&credentials, reason, "", detail);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let Ok(certificate_identity) = identity::of_certificate(peer, arrival.entrance.identity)
        else {
            let refusal = refusal(&credentials, Reason::NOT_AUTHORIZED, "", NAMELESS_CERTIFICATE);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        };
        let mut chain = arrival.entrance.chain.clone();
        let mut credentials = credentials;
        match credentials.request.auth_method.as_deref() {
            None => {}
            Some(TOKEN_METHOD) => {
                chain = self.context.authenticator.chain_of_tokens(&chain);
                if chain.is_empty() {
                    return self.start_exchange(key, stream, credentials, rest);
                }
                // A token is the credential, whatever else is there.
                credentials.password = credentials.auth_data.take();
            }
            Some(_) => return self.start_exchange(key, stream, credentials, rest),
        }
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let bytes = held_bytes(&credentials) + rest.len() as u64;
        if let Err(short) = arrival.charge.raise(bytes, Purpose::Whole) {
            let (reason, detail) = shortage(short);
            let refusal = refusal(&credentials, reason, "", detail);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let origin = *arrival.charge.sharer();
        let generation = arrival.generation;
        let entrance = arrival.entrance.clone();
        let certificate = peer.tls.as_ref().and_then(|tls| tls.certificate.clone());
        let request = AuthRequest {
            origin,
            ticket: self.ticket(generation),
            chain: Some(chain),
            client_id: credentials.request.client_id.as_ref().to_owned(),
            username: credentials.request.username.as_deref().map(str::to_owned),
            password: credentials.password.as_deref().map(<[u8]>::to_vec),
            certificate_identity,
            certificate,
            peer_host: ip(&peer.address).map(|ip| ip.to_string()).unwrap_or_default(),
            allow_anonymous: entrance.allow_anonymous && credentials.request.auth_method.is_none(),
        };
        let bell = self.bell.clone();
        let answer = Box::new(move |verdict| {
            bell.ring(Knock::Verdict { key, generation, verdict });
        });
        self.set(key, Stage::Checking { stream, credentials, rest });
        if let Some(verdict) = self.context.authenticator.clone().check(request, answer) {
            self.on_verdict(key, generation, verdict);
        }
    }

    /// What keeps a client out before anybody is asked who it is.
    fn bars(
        &self,
        arrival: &Arrival,
        peer: &PeerInfo,
        credentials: &Credentials,
    ) -> Option<(Reason, &'static str)> {
        if arrival.seat.is_none() {
            return Some((Reason::SERVER_BUSY, "connection limit reached"));
        }
        if self.context.shared.memory_is_out() {
            return Some((Reason::SERVER_BUSY, "memory limit reached"));
        }
        let visitor = Visitor {
            namespace: arrival.entrance.belonging.only(),
            client_id: Some(&credentials.request.client_id),
            address: ip(&peer.address),
            username: None,
        };
        let is_banned =
            arrival.entrance.gate.bans.keeps_out(visitor, self.context.clock.wall_secs());
        is_banned.then_some((Reason::BANNED, BANNED))
    }

    fn on_verdict(&mut self, key: usize, generation: u64, verdict: Verdict) {
        let Some((stream, mut credentials, rest)) = self.unpark(key, generation) else { return };
        match verdict {
            Verdict::Admitted { username, principal } => {
                credentials.request.username = username.map(Into::into);
                credentials.request.principal = principal;
                self.hand_over(key, stream, credentials, rest);
            }
            Verdict::Unproved { username } => {
                credentials.request.username = Some(username.into());
                credentials.request.is_proved = false;
                self.hand_over(key, stream, credentials, rest);
            }
            Verdict::Refused(reason) => {
                let refusal = refusal(&credentials, reason, "", "authentication failed");
                self.refuse_connect(key, stream, &credentials, &refusal);
            }
            Verdict::Denied(denial) => {
                let reason = Reason::NOT_AUTHORIZED;
                let refusal = refusal(&credentials, reason, "", "authentication failed");
                let address = &credentials.request.peer;
                self.refuse(key, stream, address, Some(&credentials), &refusal, Some(&denial));
            }
        }
    }

    /// Enhanced authentication (section 4.12): the CONNECT carries the client's first message.
    fn start_exchange(
        &mut self,
        key: usize,
        mut stream: Stream,
        credentials: Box<Credentials>,
        bytes: Vec<u8>,
    ) {
        let authenticator = self.context.authenticator.clone();
        let method = credentials.request.auth_method.as_deref().unwrap_or_default();
        let arrival = self.arrivals.get(key);
        let knows_passwords =
            arrival.is_some_and(|arrival| arrival.entrance.chain.contains(&Step::File));
        let is_offered = knows_passwords && authenticator.offers_scram();
        let refused = if method != scram::METHOD || !is_offered {
            let reason = Reason::BAD_AUTHENTICATION_METHOD;
            Err(refusal(&credentials, reason, "MQTT-4.12.0-1", "authentication method not offered"))
        } else {
            let data = credentials.auth_data.as_deref().unwrap_or_default();
            authenticator.start_scram(data).map_err(|error| {
                let client = shown(&credentials.request.client_id);
                tracing::debug!(client_id = &*client, %error, "SCRAM refused");
                refusal(&credentials, Reason::NOT_AUTHORIZED, "", "authentication failed")
            })
        };
        match refused {
            Err(refusal) => self.refuse_connect(key, stream, &credentials, &refusal),
            Ok((exchange, challenge)) => {
                let Some(packet) = admission::auth_continue(&credentials.request, &challenge)
                else {
                    let refusal =
                        refusal(&credentials, Reason::PACKET_TOO_LARGE, "MQTT-3.1.2-24", NO_ROOM);
                    return self.refuse_connect(key, stream, &credentials, &refusal);
                };
                if stream.write(&[IoSlice::new(&packet)]).is_err() {
                    return self.turn_away(key, TurnedAway::Closed);
                }
                let exchange = Box::new(exchange);
                self.on_exchange_bytes(key, stream, credentials, exchange, bytes);
            }
        }
    }

    fn on_exchange_bytes(
        &mut self,
        key: usize,
        mut stream: Stream,
        mut credentials: Box<Credentials>,
        exchange: Box<Exchange>,
        mut bytes: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let limits = &credentials.request.limits;
        let bytes_max = limits.connect_bytes_max.min(limits.packet_bytes_max);
        let charge = &mut arrival.charge;
        let origin = *charge.sharer();
        let outcome = read_packet(&mut stream, &mut bytes, &mut self.scratch, charge, bytes_max);
        if let Outcome::Short(short) = outcome {
            let (reason, detail) = shortage(short);
            let refusal = refusal(&credentials, reason, "", detail);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        match admission::auth_step(&bytes, &credentials.request, bytes_max) {
            AuthStep::NeedMore if outcome == Outcome::Open => {
                self.set(key, Stage::Exchange { stream, credentials, exchange, bytes });
            }
            AuthStep::NeedMore => self.turn_away(key, TurnedAway::Closed),
            AuthStep::Refuse(refusal) => {
                self.refuse_connect(key, stream, &credentials, &refusal);
            }
            AuthStep::Data(data, packet_len) => {
                match self.context.authenticator.finish_scram(origin, *exchange, &data) {
                    Ok(success) => {
                        bytes.drain(..packet_len);
                        credentials.request.username = Some(success.username.into());
                        credentials.request.auth_data = Some(success.server_final.into());
                        self.hand_over(key, stream, credentials, bytes);
                    }
                    Err(reason) => {
                        let refusal = refusal(&credentials, reason, "", "authentication failed");
                        self.refuse_connect(key, stream, &credentials, &refusal);
                    }
                }
            }
        }
    }

    /// Now that it is known who it is.
    fn is_kept_out(&self, key: usize, request: &ConnectRequest) -> bool {
        let Some(arrival) = self.arrivals.get(key) else { return false };
        let bans = &arrival.entrance.gate.bans;
        let namespace = self.context.namespaces.name_of(request.scope);
        let visitor = Visitor {
            namespace: Some(&namespace),
            client_id: Some(&request.client_id),
            username: request.proved_username(),
            address: None,
        };
        bans.keeps_out(visitor, self.context.clock.wall_secs())
            || bans.keeps_off(request.name(), request.proved_username(), Instant::now())
    }

    /// Admitted: from here on the connection belongs to the worker of its session's shard.
    fn hand_over(
        &mut self,
        key: usize,
        stream: Stream,
        credentials: Box<Credentials>,
        rest: Vec<u8>,
    ) {
        if has_long_name(&credentials.request) {
            let refusal = refusal(&credentials, Reason::BAD_USER_NAME_OR_PASSWORD, "", LONG_NAME);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let Some((mut stream, credentials, rest)) = self.place(key, stream, credentials, rest)
        else {
            return;
        };
        if self.is_kept_out(key, &credentials.request) {
            let refusal = refusal(&credentials, Reason::BANNED, "", BANNED);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let Some(arrival) = self.arrivals.try_remove(key) else { return };
        let Some(seat) = arrival.seat else { return };
        arrival.entrance.counts.admitted.fetch_add(1, Ordering::Relaxed);
        if arrival.is_watched && self.poll.registry().deregister(&mut stream).is_err() {
            return;
        }
        let mut request = credentials.request;
        request.origin = arrival.charge.sharer().to_string().into();
        let shard = self.context.shared.shard_of_client(request.name());
        let worker = usize::from(shard) % self.context.mailboxes.len();
        let (socket, permit, charge) = (Line(stream), seat, arrival.charge);
        let handover = Handover { socket, shard, request, rest, permit, charge };
        self.context.mailboxes[worker].put(Item::Connection(Box::new(handover)));
    }

    fn set(&mut self, key: usize, stage: Stage) {
        if let Some(arrival) = self.arrivals.get_mut(key) {
            arrival.stage = stage;
        }
    }
}

const LONG_NAME: &str = "the user name of its credential is longer than username_bytes_max";

/// What a credential says may be longer than a CONNECT may say it.
fn has_long_name(request: &ConnectRequest) -> bool {
    let len = request.username.as_ref().map_or(0, |name| name.len());
    len > usize::from(request.limits.username_bytes_max)
}

/// The host name that a client has asked for: of the TLS that ends here, or at a proxy that we
/// trust.
fn host_of(peer: &PeerInfo) -> Option<&str> {
    let own = peer.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
    own.or(peer.proxy_authority.as_deref())
}

/// What a client is told when there is no room for it at the door.
fn shortage(short: Short) -> (Reason, &'static str) {
    match short {
        Short::Share => (
            Reason::QUOTA_EXCEEDED,
            "too many bytes of connections from its address that are not admitted yet",
        ),
        Short::All => {
            (Reason::SERVER_BUSY, "too many bytes of connections that are not admitted yet")
        }
    }
}

/// What a CONNECT takes while it is checked. The authenticator has name and password once more.
fn held_bytes(credentials: &Credentials) -> u64 {
    let request = &credentials.request;
    let text = |text: Option<&str>| text.map_or(0, str::len);
    let will = request.will.as_ref().map_or(0, |will| {
        will.topic.len() + will.payload.len() + will.properties.len() + size_of_val(&**will)
    });
    let secret = credentials.password.as_ref().map_or(0, |password| password.len());
    let twice = text(request.username.as_deref()) + secret;
    let bytes = size_of::<Credentials>() + request.client_id.len() + will + 2 * twice;
    bytes as u64
}
