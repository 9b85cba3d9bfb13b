//! The door: accepting, handshakes, the first packet, authentication.
//!
//! All of it happens here and none of it on a worker, so a storm of connections or a slow
//! authentication back-end does not hold up a message. A door has its own poll and its own
//! scratch buffer; what it holds of a connection is bounded, and every connection has a deadline.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use broker::Shared;
use broker::admission::{self, Admission, AuthStep, Credentials, Refusal};
use codec::{Reason, Version};
use mio::event::Source;
use mio::{Events, Interest, Poll, Token};
use net::{Foreign, Handshake, Listener, PeerAddress, PeerInfo, Progress, Read, Stream};
use session::{Bucket, Rate};
use slab::Slab;

use super::accepting::{Complaint, Eager};
use super::clock::Clock;
use super::gate::{Entrance, Seat, TurnedAway};
use super::identity;
use super::line_pace::{About, LinePace, Visitor};
use super::mailbox::{Handover, Item, Mailbox};
use crate::auth::scram::{self, Exchange};
use crate::auth::{AuthRequest, Authenticator, Verdict};
use crate::logging::shown;

/// Connections that are not admitted yet, per door. At the limit the door accepts no more until
/// some are through; the kernel's backlog holds the others.
const ARRIVALS_MAX: usize = 20_000;

/// Accepts in one go before those inside get their turn.
const ACCEPTS_PER_TURN: usize = 256;

/// How long accepting pauses when the process has no descriptor left.
const EXHAUSTED_MS: u64 = 100;

/// How long a refused client may take to read why.
const REFUSAL_MS: u64 = 1000;

const NAMELESS_CERTIFICATE: &str =
    "the client's certificate lacks the name that identity_from_certificate takes";

const SCRATCH_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 1024;
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
            tracing::error!(%error, "cannot wake a door");
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
    pub(super) clock: Clock,
    pub(super) connect_timeout_ms: u64,
    pub(super) connections_per_second_max: u32,
    pub(super) line_pace: Arc<LinePace>,
    pub(super) is_stopping: Arc<AtomicBool>,
}

/// A connection between accept and admission.
struct Arrival {
    stage: Stage,
    entrance: Arc<Entrance>,
    seat: Option<Seat>,
    generation: u64,
    /// Registered with the poll; one that never had to wait is not.
    is_watched: bool,
}

enum Stage {
    Handshake(Box<Handshake>),
    /// Waiting for the whole CONNECT.
    Connect {
        stream: Stream,
        peer: Box<PeerInfo>,
        bytes: Vec<u8>,
    },
    /// Waiting for the authentication back-end.
    Checking {
        stream: Stream,
        credentials: Box<Credentials>,
        rest: Vec<u8>,
    },
    /// An enhanced authentication is under way.
    Exchange {
        stream: Stream,
        credentials: Box<Credentials>,
        exchange: Box<Exchange>,
        bytes: Vec<u8>,
    },
    /// Refused; the client may read why until the deadline.
    Refused(Stream),
    /// Between two stages.
    Moving,
}

/// When to give up on which arrival: time, key, generation.
type Deadlines = VecDeque<(u64, usize, u64)>;

pub(super) struct Door {
    poll: Poll,
    bell: Arc<Bell>,
    /// All doors; the one that listens shares the connections out.
    bells: Vec<Arc<Bell>>,
    next_bell: usize,
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
            self.answer_bell();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(token) if token >= FIRST_LISTENER => {
                        self.eager.insert(token - FIRST_LISTENER);
                    }
                    Token(key) => self.advance(key),
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
                if turn == ACCEPTS_PER_TURN || self.arrivals.len() >= ARRIVALS_MAX {
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
        let entry = self.arrivals.vacant_entry();
        let key = entry.key();
        self.generation += 1;
        let deadline_ms = self.now_ms + self.context.connect_timeout_ms;
        self.deadlines.push_back((deadline_ms, key, self.generation));
        let seat = entrance.sit();
        entry.insert(Arrival {
            stage: Stage::Handshake(Box::new(handshake)),
            entrance,
            seat,
            generation: self.generation,
            is_watched: false,
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
                tracing::warn!(%error, "cannot watch a connection; it is closed");
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
                self.on_exchange_bytes(key, stream, credentials, *exchange, bytes);
            }
            // It reads again on the worker; the bytes wait in the socket.
            Stage::Checking { .. } => arrival.stage = stage,
            Stage::Refused(stream) => self.read_away(key, stream),
            Stage::Moving => {}
        }
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
                    tracing::info!(%peer, listener, %error, "handshake failed");
                }
                self.turn_away(key, TurnedAway::Handshake);
            }
        }
    }

    /// Reads what is there, behind `bytes`. None: the connection is over.
    fn read(&mut self, stream: &mut Stream, bytes: &mut Vec<u8>, bytes_max: usize) -> Option<()> {
        while bytes.len() < bytes_max {
            match stream.read(&mut self.scratch) {
                Ok(Read::Bytes(count)) => {
                    bytes.extend_from_slice(&self.scratch[..count]);
                    if stream.is_drained(count, self.scratch.len()) {
                        break;
                    }
                }
                Ok(Read::WouldBlock) => break,
                Ok(Read::Closed) | Err(_) => return None,
            }
        }
        if stream.wants_write() {
            stream.flush().ok()?;
        }
        Some(())
    }

    fn on_connect_bytes(
        &mut self,
        key: usize,
        mut stream: Stream,
        peer: Box<PeerInfo>,
        mut bytes: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.get(key) else { return };
        let entrance = arrival.entrance.clone();
        let bytes_max = entrance.limits.packet_bytes_max as usize + SCRATCH_BYTES;
        let is_open = self.read(&mut stream, &mut bytes, bytes_max).is_some();
        let peer_name = peer.address.to_string();
        let limits = &entrance.limits;
        match admission::admit(&bytes, limits, &peer_name, identity::assigned_client_id) {
            Admission::NeedMore if is_open => self.set(key, Stage::Connect { stream, peer, bytes }),
            Admission::NeedMore => self.turn_away(key, TurnedAway::Closed),
            Admission::Refuse(mut refusal) => {
                let foreign = Foreign::of(&bytes).filter(|foreign| *foreign != Foreign::Mqtt);
                refusal.detail = foreign.map_or(refusal.detail, Foreign::hint);
                self.refuse(key, stream, ("-", None, &peer_name), &refusal);
            }
            Admission::Connect(credentials, packet_len) => {
                bytes.drain(..packet_len);
                self.on_connect(key, stream, &peer, credentials, bytes);
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
        let Some(arrival) = self.arrivals.get(key) else { return };
        if arrival.seat.is_none() {
            let refusal =
                refusal(&credentials, Reason::SERVER_BUSY, "", "connection limit reached");
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        if self.context.shared.memory_is_short() {
            let refusal = refusal(&credentials, Reason::SERVER_BUSY, "", "memory limit reached");
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let Ok(certificate_identity) = identity::of_certificate(peer, arrival.entrance.identity)
        else {
            let refusal = refusal(&credentials, Reason::NOT_AUTHORIZED, "", NAMELESS_CERTIFICATE);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        };
        if credentials.request.auth_method.is_some() {
            return self.start_exchange(key, stream, credentials, rest);
        }
        let request = AuthRequest {
            client_id: credentials.request.client_id.to_string(),
            username: credentials.request.username.as_deref().map(str::to_owned),
            password: credentials.password.as_deref().map(<[u8]>::to_vec),
            certificate_identity,
            allow_anonymous: arrival.entrance.allow_anonymous,
        };
        let generation = arrival.generation;
        let bell = self.bell.clone();
        let answer = Box::new(move |verdict| {
            bell.ring(Knock::Verdict { key, generation, verdict });
        });
        self.set(key, Stage::Checking { stream, credentials, rest });
        if let Some(verdict) = self.context.authenticator.clone().check(request, answer) {
            self.on_verdict(key, generation, verdict);
        }
    }

    fn on_verdict(&mut self, key: usize, generation: u64, verdict: Verdict) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        if arrival.generation != generation {
            return;
        }
        let stage = std::mem::replace(&mut arrival.stage, Stage::Moving);
        let Stage::Checking { stream, mut credentials, rest } = stage else {
            arrival.stage = stage;
            return;
        };
        match verdict {
            Verdict::Admitted { username } => {
                credentials.request.username = username.map(Into::into);
                self.hand_over(key, stream, *credentials, rest);
            }
            Verdict::Unproved { username } => {
                credentials.request.username = Some(username.into());
                credentials.request.is_proved = false;
                self.hand_over(key, stream, *credentials, rest);
            }
            Verdict::Refused(reason) => {
                let refusal = refusal(&credentials, reason, "", "authentication failed");
                self.refuse_connect(key, stream, &credentials, &refusal);
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
        let refused = if method != scram::METHOD || !authenticator.offers_scram() {
            let reason = Reason::BAD_AUTHENTICATION_METHOD;
            Err(refusal(&credentials, reason, "MQTT-4.12.0-1", "authentication method not offered"))
        } else {
            let data = credentials.auth_data.as_deref().unwrap_or_default();
            authenticator.start_scram(data).map_err(|error| {
                let client = shown(&credentials.request.client_id);
                tracing::debug!(client = &*client, %error, "SCRAM refused");
                refusal(&credentials, Reason::NOT_AUTHORIZED, "", "authentication failed")
            })
        };
        match refused {
            Err(refusal) => self.refuse_connect(key, stream, &credentials, &refusal),
            Ok((exchange, challenge)) => {
                let packet = admission::auth_continue(method, &challenge);
                if stream.write(&[IoSlice::new(&packet)]).is_err() {
                    return self.turn_away(key, TurnedAway::Closed);
                }
                self.on_exchange_bytes(key, stream, credentials, exchange, bytes);
            }
        }
    }

    fn on_exchange_bytes(
        &mut self,
        key: usize,
        mut stream: Stream,
        mut credentials: Box<Credentials>,
        exchange: Exchange,
        mut bytes: Vec<u8>,
    ) {
        let bytes_max = credentials.request.limits.packet_bytes_max;
        let is_open =
            self.read(&mut stream, &mut bytes, bytes_max as usize + SCRATCH_BYTES).is_some();
        let method = credentials.request.auth_method.clone().unwrap_or_default();
        match admission::auth_step(&bytes, &method, bytes_max) {
            AuthStep::NeedMore if is_open => {
                let exchange = Box::new(exchange);
                self.set(key, Stage::Exchange { stream, credentials, exchange, bytes });
            }
            AuthStep::NeedMore => self.turn_away(key, TurnedAway::Closed),
            AuthStep::Refuse(refusal) => {
                self.refuse_connect(key, stream, &credentials, &refusal);
            }
            AuthStep::Data(data, packet_len) => match exchange.finish(&data) {
                Ok(success) => {
                    bytes.drain(..packet_len);
                    credentials.request.username = Some(success.username.into());
                    credentials.request.auth_data = Some(success.server_final.into());
                    self.hand_over(key, stream, *credentials, bytes);
                }
                Err(error) => {
                    let client = shown(&credentials.request.client_id);
                    tracing::debug!(client = &*client, %error, "SCRAM failed");
                    let refusal =
                        refusal(&credentials, Reason::NOT_AUTHORIZED, "", "authentication failed");
                    self.refuse_connect(key, stream, &credentials, &refusal);
                }
            },
        }
    }

    /// Admitted: from here on the connection belongs to the worker of its session's shard.
    fn hand_over(
        &mut self,
        key: usize,
        mut stream: Stream,
        credentials: Credentials,
        rest: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.try_remove(key) else { return };
        let Some(seat) = arrival.seat else { return };
        arrival.entrance.counts.admitted.fetch_add(1, Ordering::Relaxed);
        if arrival.is_watched && self.poll.registry().deregister(&mut stream).is_err() {
            return;
        }
        let request = credentials.request;
        let shard = self.context.shared.shard_of_client(&request.client_id);
        let worker = usize::from(shard) % self.context.mailboxes.len();
        let handover = Handover { stream, shard, request, rest, seat };
        self.context.mailboxes[worker].put(Item::Connection(Box::new(handover)));
    }

    fn refuse_connect(
        &mut self,
        key: usize,
        stream: Stream,
        credentials: &Credentials,
        refusal: &Refusal,
    ) {
        let request = &credentials.request;
        let who = (&*request.client_id, request.username.as_deref(), &*request.peer);
        self.refuse(key, stream, who, refusal);
    }

    fn refuse(
        &mut self,
        key: usize,
        mut stream: Stream,
        who: (&str, Option<&str>, &str),
        refusal: &Refusal,
    ) {
        self.tell_refusal(key, who, refusal);
        if let Some(arrival) = self.arrivals.get(key) {
            arrival.entrance.counts.refuse(refusal.reason);
        }
        let is_told = !refusal.answer.is_empty()
            && stream.write(&[IoSlice::new(&refusal.answer)]).is_ok()
            && stream.shutdown().is_ok();
        if !is_told {
            return self.turn_away(key, TurnedAway::Refused);
        }
        // Closing now would take the answer away from a client that has more bytes on the way.
        self.generation += 1;
        let deadline_ms = self.now_ms + REFUSAL_MS;
        self.refusals.push_back((deadline_ms, key, self.generation));
        if let Some(arrival) = self.arrivals.get_mut(key) {
            arrival.generation = self.generation;
            arrival.entrance.counts.turn_away(TurnedAway::Refused);
        }
        self.read_away(key, stream);
    }

    /// May there be a line about somebody at the door?
    fn may_tell(
        &self,
        about: About,
        peer: Option<IpAddr>,
        client: &str,
        what: &'static str,
    ) -> bool {
        let visitor = Visitor { about, peer, client: client.into(), what };
        self.context.line_pace.allows_visitor(visitor, self.now_ms)
    }

    fn tell_refusal(
        &self,
        key: usize,
        (client_id, username, peer): (&str, Option<&str>, &str),
        refusal: &Refusal,
    ) {
        let ip = peer.parse().ok().map(|address: SocketAddr| address.ip());
        let client = shown(client_id);
        let what = if refusal.clause.is_empty() { refusal.detail } else { refusal.clause };
        if !self.may_tell(About::Refused, ip, &client, what) {
            return;
        }
        tracing::info!(
            client = &*client,
            user = username.map_or("-".into(), shown).as_ref(),
            peer,
            listener = self.arrivals.get(key).map(|arrival| &*arrival.entrance.name),
            clause = refusal.clause,
            reason = %refusal.reason,
            detail = refusal.detail,
            "connection refused"
        );
    }

    fn read_away(&mut self, key: usize, mut stream: Stream) {
        loop {
            match stream.read(&mut self.scratch) {
                Ok(Read::Bytes(_)) => {}
                Ok(Read::WouldBlock) => return self.set(key, Stage::Refused(stream)),
                Ok(Read::Closed) | Err(_) => {
                    self.arrivals.try_remove(key);
                    return;
                }
            }
        }
    }

    fn set(&mut self, key: usize, stage: Stage) {
        if let Some(arrival) = self.arrivals.get_mut(key) {
            arrival.stage = stage;
        }
    }

    /// Closes without an answer.
    fn turn_away(&mut self, key: usize, why: TurnedAway) {
        if let Some(arrival) = self.arrivals.try_remove(key) {
            arrival.entrance.counts.turn_away(why);
        }
    }

    /// Closes connections that took too long.
    fn give_up_late(&mut self) {
        let mut deadlines = std::mem::take(&mut self.deadlines);
        self.give_up_on(&mut deadlines);
        self.deadlines = deadlines;
        let mut refusals = std::mem::take(&mut self.refusals);
        self.give_up_on(&mut refusals);
        self.refusals = refusals;
    }

    fn give_up_on(&mut self, deadlines: &mut Deadlines) {
        while let Some((deadline_ms, key, generation)) = deadlines.front().copied() {
            let arrival = self.arrivals.get(key).filter(|arrival| arrival.generation == generation);
            if let Some(arrival) = arrival {
                if deadline_ms > self.now_ms {
                    return;
                }
                if !matches!(arrival.stage, Stage::Refused(_)) {
                    let peer = arrival.stage.peer();
                    let ip = peer.parse().ok().map(|address: SocketAddr| address.ip());
                    if self.may_tell(About::Handshake, ip, "-", "timeout") {
                        tracing::info!(
                            listener = arrival.entrance.name,
                            peer,
                            "no complete CONNECT in time; connection closed"
                        );
                    }
                    self.turn_away(key, TurnedAway::Timeout);
                }
                // A refused one is counted already.
                self.arrivals.try_remove(key);
            }
            deadlines.pop_front();
        }
    }
}

impl Stage {
    fn source(&mut self) -> Option<&mut dyn Source> {
        match self {
            Self::Handshake(handshake) => Some(handshake.as_mut()),
            Self::Connect { stream, .. }
            | Self::Checking { stream, .. }
            | Self::Exchange { stream, .. }
            | Self::Refused(stream) => Some(stream),
            Self::Moving => None,
        }
    }

    fn peer(&self) -> String {
        match self {
            Self::Handshake(handshake) => handshake.peer().address.to_string(),
            Self::Connect { peer, .. } => peer.address.to_string(),
            Self::Checking { credentials, .. } | Self::Exchange { credentials, .. } => {
                credentials.request.peer.to_string()
            }
            Self::Refused(_) | Self::Moving => "-".into(),
        }
    }
}

fn ip(peer: &PeerAddress) -> Option<IpAddr> {
    match peer {
        PeerAddress::Inet(address) => Some(address.ip()),
        PeerAddress::Unix => None,
    }
}

fn refusal(
    credentials: &Credentials,
    reason: Reason,
    clause: &'static str,
    detail: &'static str,
) -> Refusal {
    let version: Version = credentials.request.version;
    Refusal { reason, answer: admission::connack(version, reason), clause, detail }
}
