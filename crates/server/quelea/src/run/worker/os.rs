//! What a driver stands on in this process: the sockets and clocks of the system, the threads of
//! the logs, the authenticator, the log of lines.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use broker::streams::{StreamNews, StreamOrder};
use broker::{
    AccessQuestion, Answer, Close, ConnectRequest, Event, Mail, Name, Place, Reauthenticate,
    Reauthenticated, Scope, ServiceAnswer, Shard, ShardId, Span, TraceFilter, Traced,
};
use codec::Reason;
use driver::{Charge, Host, Item, Origin, Read, Shards, Socket, Waker};
use mio::{Interest, Poll, Registry, Token};
use net::Stream;
use storage::Journal;
use tokio::sync::oneshot;

use crate::cluster::Acting;
use crate::life_cycle::LifeCycle;
use crate::life_cycle::line_pace::LinePace;
use crate::run::cells::Post;
use crate::run::journals::Journals;
use crate::run::limiter::{ConnectionLimiter, ConnectionPermit};
use crate::run::mailbox::Mailbox;
use crate::run::reauthentication::Reauthentication;
use crate::run::routing::Inbox;
use crate::run::self_check::SCOPE;
use crate::run::timing::Timing;
use base::Clock;
use base::memory;
use identity::auth::Authenticator;
use identity::auth::authorizer::{Asked, Authorizer};
use identity::auth::bans::{Lists, Visitor};

/// What a worker's host needs to start.
pub(in crate::run) struct OsParts {
    pub(in crate::run) poll: Poll,
    /// Of the worker.
    pub(in crate::run) index: usize,
    pub(in crate::run) clock: Clock,
    pub(in crate::run) authenticator: Arc<Authenticator>,
    /// None: rules decide everything.
    pub(in crate::run) authorizer: Option<Arc<Authorizer>>,
    /// Of the worker, for answers.
    pub(in crate::run) mailbox: Arc<Mailbox>,
    pub(in crate::run) limiter: Arc<ConnectionLimiter>,
    /// None: nothing is kept.
    pub(in crate::run) journals: Option<Journals>,
    /// Of all workers: how long their turns take.
    pub(in crate::run) turns: Arc<[Timing]>,
    pub(in crate::run) line_pace: Arc<LinePace>,
    pub(in crate::run) life_cycle: Arc<LifeCycle>,
    /// In a cluster: nothing leaves without the lease.
    pub(in crate::run) acting: Option<Acting>,
    /// None: there are no streams.
    pub(in crate::run) streams: Option<Inbox>,
    /// None: there is no other cell.
    pub(in crate::run) post: Option<Post>,
}

pub(in crate::run) struct Os {
    reauthentication: Reauthentication,
    parts: OsParts,
    /// As they were read again last.
    bans: Arc<Lists>,
    /// What the authorization service is being asked, one for a connection at most.
    asked: HashMap<(ShardId, (u32, u64)), Asked>,
}

/// What only this host understands.
pub(in crate::run) enum Order {
    /// Keeps out who comes from an acceptor that has not seen these bans. `ends`: the connections
    /// of those whom they mean end, too.
    Bans {
        listed: Arc<Lists>,
        ends: bool,
    },
    /// Ends the connections of those whose credential was revoked.
    Revoked,
    /// Keep the files of all journals as they are until `Unpin`, and say which they are.
    Pin(Sender<Pinned>),
    Unpin,
    /// All small files have the stamp of this start: the journals are to say so.
    FinishStamps,
    /// From now on these are traced.
    Traces(Arc<[TraceFilter]>),
    /// The authorization service has answered a question of this connection.
    Verdict {
        shard: ShardId,
        connection: (u32, u64),
        number: u32,
        answer: ServiceAnswer,
    },
    /// The owner of streams has orders for a shard.
    Streams(ShardId, Vec<StreamOrder>),
    /// Give back what is free in the heap of the thread that drives it.
    Purge,
}

/// The journal of a shard as it is pinned for a backup: segments, and bytes of each that belong to
/// it; and the manifest.
pub(in crate::run) struct Pinned {
    pub(in crate::run) shard: ShardId,
    pub(in crate::run) segments: Vec<(u32, u64)>,
    pub(in crate::run) manifest: Option<Vec<u8>>,
}

/// Wakes the thread that drives a worker.
pub(in crate::run) struct EventWaker(pub(in crate::run) mio::Waker);

/// A stream as a driver knows it.
pub(in crate::run) struct Line(pub(in crate::run) Stream);

impl Os {
    pub(in crate::run) fn new(parts: OsParts) -> Self {
        let reauthentication = Reauthentication::new(parts.authenticator.clone());
        Self { reauthentication, parts, bans: Arc::default(), asked: HashMap::new() }
    }

    pub(in crate::run) const fn queue(&mut self) -> &mut Poll {
        &mut self.parts.poll
    }

    pub(in crate::run) fn registry(&self) -> &Registry {
        self.parts.poll.registry()
    }

    fn is_banned(
        &self,
        client: Name<'_>,
        username: Option<&str>,
        peer: &str,
        wall_secs: u64,
    ) -> bool {
        let visitor = Visitor {
            namespace: Some(&self.parts.life_cycle.namespace_of(client.scope())),
            client_id: Some(client.text()),
            username,
            address: ip(peer),
        };
        self.bans.means(visitor, wall_secs).is_some()
    }

    /// Lists may come in another order than they were made in.
    fn on_bans(&mut self, listed: Arc<Lists>, ends: bool, shards: &mut Shards, now_ms: u64) {
        if listed.serial > self.bans.serial {
            self.bans = listed;
        }
        if !ends || self.bans.are_empty() {
            return;
        }
        let wall_secs = self.parts.clock.wall_secs();
        let is_banned = |client: Name<'_>, username: Option<&str>, peer: &str| {
            self.is_banned(client, username, peer, wall_secs)
        };
        for shard in shards.all_mut() {
            shard.on_bans(is_banned, now_ms);
        }
    }
}

impl Host for Os {
    type Socket = Line;
    type Permit = ConnectionPermit;
    type Charge = Charge<Origin>;
    type Waker = EventWaker;
    type Asker = oneshot::Sender<Answer>;
    type Order = Order;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn ms_at(&self, time: Instant) -> u64 {
        self.parts.clock.ms_at(time)
    }

    fn note_turn(&mut self, took: Duration) {
        self.parts.turns[self.parts.index].note(took);
    }

    fn watch(&mut self, socket: &mut Line, key: usize) -> io::Result<()> {
        let interests = Interest::READABLE | Interest::WRITABLE;
        self.registry().register(&mut socket.0, Token(key), interests)
    }

    fn refuses(&self, request: &ConnectRequest) -> Option<Reason> {
        if request.principal.as_ref().is_some_and(|principal| principal.is_revoked()) {
            return Some(Reason::NOT_AUTHORIZED);
        }
        let wall_secs = self.parts.clock.wall_secs();
        let is_banned = !self.bans.are_empty()
            && self.is_banned(request.name(), request.proved_username(), &request.peer, wall_secs);
        is_banned.then_some(Reason::BANNED)
    }

    fn on_let_in(&mut self, client: Name<'_>, username: Option<&str>) {
        self.parts.limiter.bans.note_admitted(client, username, Instant::now());
    }

    fn on_untaken(&mut self, client_id: &str, error: &io::Error) {
        tracing::warn!(client_id, %error, "connection closed: a worker cannot accept it");
    }

    fn on_event(&mut self, shard: &mut Shard, scope: Scope, event: &Event, now_ms: u64) {
        // The checks report their results themselves.
        if scope == SCOPE {
            return;
        }
        let namespace = &*self.parts.life_cycle.namespace_of(scope);
        if let Event::Stranger { peer, .. } = event {
            // Its credentials were right, and what it wants is not its own.
            let origin = ip(peer).map_or(Origin::Local, Origin::of);
            self.parts.authenticator.note_refused(origin);
        }
        let lines = &self.parts.line_pace;
        self.parts.life_cycle.on_event(event, namespace, lines, now_ms, |message| {
            shard.on_publish_command(&message, now_ms);
        });
    }

    fn reauthenticate(&mut self, shard: ShardId, ask: &Reauthenticate) -> Reauthenticated {
        self.reauthentication.answer(shard, ask)
    }

    fn authorize(&mut self, shard: ShardId, question: AccessQuestion) {
        let (connection, number) = ((question.slot, question.connection), question.number);
        let mailbox = self.parts.mailbox.clone();
        let put = move |answer| {
            mailbox.put(Item::Order(Order::Verdict { shard, connection, number, answer }));
        };
        match &self.parts.authorizer {
            Some(authorizer) => {
                let namespace = self.parts.life_cycle.namespace_of(question.scope);
                let asked = authorizer.ask(question, namespace.to_string(), Box::new(put));
                self.asked.insert((shard, connection), asked);
            }
            None => put(ServiceAnswer::Failed),
        }
    }

    fn on_traced(&mut self, traced: Vec<Traced>) {
        self.parts.life_cycle.traces.put(traced);
    }

    fn on_spans(&mut self, spans: Vec<Span>, lost: u64) {
        self.parts.life_cycle.on_spans(spans, lost);
    }

    fn on_streams(&mut self, shard: ShardId, news: Vec<StreamNews>) {
        if let Some(streams) = &self.parts.streams {
            streams.put_news(shard, news);
        }
    }

    fn on_mail_for_cell(&mut self, from: ShardId, to: Place, mails: Vec<Mail>) {
        if let Some(post) = &self.parts.post {
            post.put(from, to, mails);
        }
    }

    fn on_close(&mut self, shard: ShardId, close: &Close) {
        self.reauthentication.forget(shard, close.slot, close.connection);
        if let Some(asked) = self.asked.remove(&(shard, (close.slot, close.connection)))
            && let Some(authorizer) = &self.parts.authorizer
        {
            authorizer.forget(asked);
        }
    }

    #[inline]
    fn await_lease(&self) -> bool {
        self.parts.acting.as_ref().is_none_or(Acting::wait)
    }

    fn has_gone(&self, asker: &oneshot::Sender<Answer>) -> bool {
        asker.is_closed()
    }

    fn answer(&mut self, asker: oneshot::Sender<Answer>, answer: Answer) {
        // It may have gone away.
        let _ = asker.send(answer);
    }

    fn on_order(&mut self, order: Order, shards: &mut Shards, now_ms: u64) {
        match order {
            Order::Bans { listed, ends } => self.on_bans(listed, ends, shards, now_ms),
            Order::Revoked => {
                shards.all_mut().iter_mut().for_each(|shard| shard.on_revoked(now_ms))
            }
            Order::Pin(answer) => pin_journals(shards.all_mut(), &answer),
            Order::FinishStamps => journals(shards).for_each(Journal::finish_stamp),
            Order::Unpin => journals(shards).for_each(Journal::unpin),
            Order::Traces(filters) => {
                shards.all_mut().iter_mut().for_each(|shard| shard.set_traces(&filters))
            }
            Order::Verdict { shard, connection, number, answer } => {
                self.asked.remove(&(shard, connection));
                if let Some(shard) = shards.find_mut(shard) {
                    shard.on_verdict(connection, number, answer, now_ms);
                }
            }
            Order::Streams(shard, orders) => {
                if let Some(shard) = shards.find_mut(shard) {
                    orders.into_iter().for_each(|order| shard.on_stream_order(order, now_ms));
                }
            }
            Order::Purge => memory::purge_if_asked(),
        }
    }

    fn drive_journals(&mut self, shards: &mut Shards, now_ms: u64) -> bool {
        let journals = self.parts.journals.as_mut();
        journals.is_some_and(|journals| journals.carry_out(shards, now_ms))
    }

    fn journals_deadline_ms(&self) -> Option<u64> {
        self.parts.journals.as_ref().and_then(Journals::next_deadline_ms)
    }

    fn have_journals_ended(&mut self) -> bool {
        self.parts.journals.as_mut().is_none_or(|journals| {
            journals.report_quiet();
            journals.have_ended()
        })
    }
}

fn journals(shards: &mut Shards) -> impl Iterator<Item = &mut Journal> {
    shards.all_mut().iter_mut().filter_map(Shard::journal_mut)
}

fn pin_journals(shards: &mut [Shard], answer: &Sender<Pinned>) {
    for shard in shards {
        // Who asked may be gone; it takes its pin back all the same.
        let id = shard.id();
        let (mut segments, mut manifest) = (Vec::new(), None);
        if let Some(journal) = shard.journal_mut() {
            journal.pin();
            (segments, manifest) = (journal.written_files(), journal.manifest());
        }
        let _ = answer.send(Pinned { shard: id, segments, manifest });
    }
}

fn ip(peer: &str) -> Option<IpAddr> {
    peer.parse().ok().map(|address: SocketAddr| address.ip())
}

impl Waker for EventWaker {
    fn wake(&self) {
        if let Err(error) = self.0.wake() {
            tracing::error!(%error, "cannot wake a worker");
        }
    }
}

impl Socket for Line {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        self.0.read(buffer).map(found)
    }

    #[inline]
    fn read_onto(&mut self, bytes: &mut Vec<u8>) -> io::Result<Read> {
        self.0.read_onto(bytes).map(found)
    }

    #[inline]
    fn is_drained(&self, count: usize, room: usize) -> bool {
        self.0.is_drained(count, room)
    }

    #[inline]
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(slices)
    }

    #[inline]
    fn wants_write(&self) -> bool {
        self.0.wants_write()
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.0.flush()
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.0.shutdown()
    }

    #[inline]
    fn has_layers(&self) -> bool {
        self.0.has_layers()
    }

    fn tls(&self) -> Option<(&'static str, &'static str)> {
        self.0.tls()
    }
}

#[inline]
const fn found(read: net::Read) -> Read {
    match read {
        net::Read::Bytes(count) => Read::Bytes(count),
        net::Read::WouldBlock => Read::WouldBlock,
        net::Read::Closed => Read::Closed,
    }
}
