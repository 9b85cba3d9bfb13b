//! The acceptor: accepting, handshakes, the first packet, authentication.
//!
//! None of it happens on a worker, so a storm of connections or a slow authentication back-end does
//! not delay a message. An acceptor has its own poll and its own scratch buffer; the memory of a
//! connection is bounded, and every connection has a deadline.

mod accept;
mod arrival;
mod authenticate;
mod connect;
mod entering;
mod first_packet;
mod hand_over;
mod mailbox;
mod namespace;
mod ready;
mod refusing;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use broker::Shared;
use mio::{Events, Interest, Poll, Token};
use session::{Bucket, Rate};
use slab::Slab;

use super::cells::Entrance;
use super::limiter::{Listener, TurnedAway};
use super::mailbox::Mailbox;
use super::self_check::SelfChecks;
use super::standby::ClusterReferral;
use crate::life_cycle::LifeCycle;
use crate::life_cycle::line_pace::LinePace;
use ::identity::auth::Authenticator;
use ::identity::namespaces::{NameMaker, Namespaces};
use arrival::{Arrival, Stage};
use base::Clock;
use base::memory;
use driver::{Allowance, Origin};
use entering::ENTER_INTERVAL;
pub(super) use mailbox::{AcceptorItem, AcceptorMailbox, Entered, poll_and_mailbox};
use ready::{ReadyListeners, RepeatedWarning};

const BANNED: &str = "banned";

/// Memory of a client that has entered a cell, beside the bytes that it has sent.
const ENTERED_BYTES: u64 = 4 * 1024;

/// Enough for the largest part of a handshake.
const SCRATCH_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 1024;
/// Of a ticket: an acceptor begins fewer arrivals.
const GENERATION_BITS: u32 = 40;

/// Acceptors of this process up to now. All cells have one authenticator, and each life of a cell
/// has new acceptors.
static ACCEPTORS: AtomicU64 = AtomicU64::new(0);
const WAKER: Token = Token(usize::MAX);
/// Listeners have the tokens from here on, connections those below.
const FIRST_LISTENER: usize = 1 << 32;

/// A listener, its socket and its rate limit.
pub(super) struct BoundListener {
    pub(super) socket: net::Listener,
    pub(super) listener: Arc<Listener>,
    /// 0: no limit.
    pub(super) connections_per_second_max: u32,
}

/// What all acceptors share.
pub(super) struct AcceptorContext {
    pub(super) shared: Arc<Shared>,
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) namespaces: Arc<Namespaces>,
    pub(super) life_cycle: Arc<LifeCycle>,
    pub(super) self_checks: Arc<SelfChecks>,
    pub(super) name_maker: NameMaker,
    pub(super) clock: Clock,
    pub(super) connect_timeout_ms: u64,
    pub(super) connections_per_second_max: u32,
    pub(super) line_pace: Arc<LinePace>,
    pub(super) allowance: Arc<Allowance<Origin>>,
    pub(super) is_stopping: Arc<AtomicBool>,
    /// In a cluster: who serves.
    pub(super) cluster: Option<ClusterReferral>,
    /// Clients go on in their cells.
    pub(super) entrance: Option<Arc<Entrance>>,
}

/// When to give up on which arrival: time, key, generation.
type Deadlines = VecDeque<(u64, usize, u64)>;

pub(super) struct Acceptor {
    poll: Poll,
    mailbox: Arc<AcceptorMailbox>,
    /// The mailboxes of all acceptors: the one that listens distributes the connections.
    acceptors: Vec<Arc<AcceptorMailbox>>,
    next_acceptor: usize,
    /// No other acceptor of this process has had it.
    number: u64,
    listeners: Vec<(BoundListener, Option<Bucket>)>,
    ready: ReadyListeners,
    exhaustion: RepeatedWarning,
    /// No accepting before this time.
    accepts_at_ms: u64,
    bucket: Option<Bucket>,
    arrivals: Slab<Arrival>,
    /// Deadlines in the order of arrival, which is their order, as all have the same timeout.
    deadlines: Deadlines,
    /// The same for refused clients that may still read the reason.
    refusals: Deadlines,
    /// Those whose cell no node has: they try again.
    homeless: HashSet<(usize, u64)>,
    /// When they did last, and what was known of the owners then.
    entered_again: (u64, u64),
    /// When slow connections are looked for next, if memory is short.
    slow_checked_at_ms: u64,
    generation: u64,
    scratch: Box<[u8]>,
    now_ms: u64,
    context: Arc<AcceptorContext>,
}

impl Acceptor {
    /// `listeners` is empty for all acceptors but the first.
    pub(super) fn new(
        (poll, mailbox): (Poll, Arc<AcceptorMailbox>),
        acceptors: Vec<Arc<AcceptorMailbox>>,
        listeners: Vec<BoundListener>,
        context: Arc<AcceptorContext>,
    ) -> Self {
        let now_ms = context.clock.now_ms();
        let bucket = |per_second| Bucket::new(Rate { per_second, burst: per_second }, now_ms);
        let listeners: Vec<_> = listeners
            .into_iter()
            .map(|bound| {
                let bucket = bucket(bound.connections_per_second_max);
                (bound, bucket)
            })
            .collect();
        Self {
            poll,
            number: ACCEPTORS.fetch_add(1, Ordering::Relaxed),
            mailbox,
            acceptors,
            next_acceptor: 0,
            ready: ReadyListeners::default(),
            exhaustion: RepeatedWarning::default(),
            listeners,
            accepts_at_ms: 0,
            bucket: bucket(context.connections_per_second_max),
            arrivals: Slab::new(),
            deadlines: Deadlines::new(),
            refusals: Deadlines::new(),
            homeless: HashSet::new(),
            entered_again: (0, 0),
            slow_checked_at_ms: 0,
            generation: 0,
            scratch: vec![0; SCRATCH_BYTES].into(),
            now_ms,
            context,
        }
    }

    /// Runs until the broker stops.
    pub(super) fn run(mut self) -> io::Result<()> {
        for (number, (bound, _)) in self.listeners.iter_mut().enumerate() {
            let token = Token(FIRST_LISTENER + number);
            self.poll.registry().register(&mut bound.socket, token, Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !self.context.is_stopping.load(Ordering::Acquire) {
            self.sleep(&mut events)?;
            self.now_ms = self.context.clock.now_ms();
            memory::purge_if_asked();
            self.take_items();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(token) if token >= FIRST_LISTENER => {
                        self.ready.insert(token - FIRST_LISTENER);
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
            self.enter_again();
            self.give_up_late();
        }
        Ok(())
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let now_ms = self.context.clock.now_ms();
        let queues = [&self.deadlines, &self.refusals];
        let next_deadline = queues.into_iter().filter_map(|queue| Some(queue.front()?.0)).min();
        let next_accept = (!self.ready.0.is_empty()).then_some(self.accepts_at_ms);
        let next_ms = next_deadline.into_iter().chain(next_accept).min();
        let timeout = next_ms.map(|at| Duration::from_millis(at.saturating_sub(now_ms).min(1000)));
        let timeout = match self.homeless.is_empty() {
            true => timeout,
            false => Some(timeout.unwrap_or(ENTER_INTERVAL).min(ENTER_INTERVAL)),
        };
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn take_items(&mut self) {
        for item in self.mailbox.take() {
            match item {
                AcceptorItem::Accepted(handshake, listener) => self.welcome(handshake, listener),
                AcceptorItem::Entered(entered) => self.welcome_entered(*entered),
                AcceptorItem::Verdict { key, generation, verdict } => {
                    self.on_verdict(key, generation, verdict);
                }
                AcceptorItem::Named { key, generation, is_made } => {
                    self.on_named(key, generation, is_made);
                }
            }
        }
    }

    /// Takes a connection as far as it goes without waiting.
    fn advance(&mut self, key: usize) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let stage = std::mem::replace(&mut arrival.stage, Stage::Moving);
        match stage {
            Stage::Handshake(handshake) => self.on_handshake(key, handshake),
            // It is complete, and tries again at its time.
            Stage::Connect { .. } if self.homeless.contains(&(key, arrival.generation)) => {
                arrival.stage = stage;
            }
            Stage::Connect { stream, peer, bytes } => {
                self.on_connect_bytes(key, stream, peer, bytes)
            }
            Stage::Exchange { stream, credentials, exchange, bytes } => {
                self.on_exchange_bytes(key, stream, credentials, exchange, bytes);
            }
            // It reads again on the worker; the bytes wait in the socket.
            Stage::Checking { .. } => arrival.stage = stage,
            Stage::Refused(stream) => self.drain(key, stream),
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
        self.number << GENERATION_BITS | generation
    }

    fn set(&mut self, key: usize, stage: Stage) {
        if let Some(arrival) = self.arrivals.get_mut(key) {
            arrival.stage = stage;
        }
    }
}
