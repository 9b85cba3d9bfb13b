//! A node of a cluster: its lease, and the reading or the writing of the stream of all shards.
//!
//! ```text
//! Standby     follows the stream; polls the lease
//!   | the lease is free, and this node has all messages: compare-and-set
//! Claiming    appends a claim to the stream, behind the last message it has read; goes on reading
//!   | the claim has come back by the stream
//! Active      the journals write, with the lease renewed
//!   | released            | lease lost, the stream has another writer, a local copy fails
//! Released              Ended
//! ```
//!
//! A claim counts when it is *read* in the stream, not when it is acknowledged: so everything in
//! front of it has been read too, and no earlier writer's message behind it counts for anybody.

use storage::Command;

use crate::effect::{
    Answer, Body, Effect, LeaseAnswer, Request, RequestId, Role, Sequence, ShardId,
};
use crate::lease::{Identity, Lease, LeaseValue, Standing, Timing};
use crate::log::ShardLog;
use crate::sequencer::{Cursor, Sequencer, Unreadable, Verdict};
use crate::wire::{self, CELL, ClusterId, Header, Origin};
use crate::writer::{RETRY_MS, Wish, Writer, WriterLimits};

/// How often the stream's end is asked for while the node is not known to have caught up.
const MEASURE_MS: u64 = 500;

/// The same, once it has.
const MEASURE_AGAIN_MS: u64 = 2000;

/// A node that is further behind has to catch up again before it may become active.
const LAG_MESSAGES_MAX: u64 = 256;

/// A stream that is said to end before what was read: so often, one after the other, until it is
/// believed. A leader that was deposed may say it too.
const SHORT_MAX: u8 = 4;

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster: ClusterId,
    pub identity: Identity,
    /// Random for each start.
    pub seed: u64,
    pub timing: Timing,
    /// Of a message: [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX), or less for a test.
    pub message_bytes_max: usize,
    /// So much of the stream a shard may keep that writes little, however little is live.
    pub span_bytes_min: u64,
    /// Limit of the stream.
    pub stream_bytes_max: u64,
    /// The least time between the beginnings of two messages that are less than half full, unless
    /// what they carry is alone: `cluster.append_interval_ms`. 0: they follow each other at once.
    pub append_interval_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    settings: Settings,
    lease: Lease,
    role: Role,
    stream: Stream,
    effects: Vec<Effect>,
    wishes: Vec<Wish>,
    now_ms: u64,
    wall_ms: u64,
    /// It lacks something else that it needs to be active: it does not take a free lease.
    is_waiting: bool,
}

/// The stream of all shards.
#[derive(Debug)]
struct Stream {
    sequencer: Sequencer,
    /// It has read what was the last message, and was never far behind since.
    has_caught_up: bool,
    /// The last message that the stream is known to have.
    end: Option<Sequence>,
    measuring: Measuring,
    claim: Claim,
    writer: Option<Writer>,
    /// Why it cannot be read.
    fault: Option<String>,
}

#[derive(Debug, Default)]
struct Measuring {
    asked: Option<RequestId>,
    at_ms: u64,
    /// The last message that any shard had when it was asked.
    read: Sequence,
    /// Answers one after the other that the stream ends before what was read by then.
    short: u8,
}

#[derive(Debug, Default)]
struct Claim {
    asked: Option<RequestId>,
    at_ms: u64,
    is_seen: bool,
}

/// Status of the stream for one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamStatus {
    /// Of the last message that this node has read or written for the shard.
    pub last: Sequence,
    /// The last message that the stream is known to have.
    pub end: Option<Sequence>,
    pub has_caught_up: bool,
    /// Wall clock of the writer of the last message that counts.
    pub last_sent_at_ms: u64,
    /// Bytes of the stream from the beginning of the shard's oldest segment on.
    pub span_bytes: u64,
    /// Why the engine takes nothing, if so.
    pub unavailable: Option<String>,
    /// Why it cannot be read.
    pub fault: Option<String>,
}

impl Node {
    /// A standby. `cursors`: of each shard where its local copy ends; a default one where there is
    /// none.
    pub fn new(settings: Settings, cursors: Vec<Cursor>, now_ms: u64) -> Self {
        let sequencer = Sequencer::resume(settings.cluster, cursors);
        Self {
            lease: Lease::new(settings.identity.clone(), settings.timing),
            role: Role::Standby,
            effects: vec![Effect::Follow(sequencer.last() + 1)],
            stream: Stream::new(sequencer),
            wishes: Vec::new(),
            now_ms,
            wall_ms: 0,
            is_waiting: false,
            settings,
        }
    }

    /// Whether this node lacks something that is not in the stream of all shards, and must not take
    /// the lease yet.
    pub const fn set_waiting(&mut self, is_waiting: bool) {
        self.is_waiting = is_waiting;
    }

    /// How much longer than needed this node leaves a free lease to others, because it is active
    /// elsewhere: see [`Claims`](crate::Claims). At first 0.
    pub const fn set_claim_delay(&mut self, delay_ms: u64) {
        self.lease.set_delay(delay_ms);
    }

    /// Whether [`Node::on_tick`] would begin to take the lease.
    pub fn would_claim(&self, now_ms: u64) -> bool {
        self.role == Role::Standby && self.is_fit() && self.lease.would_take(now_ms)
    }

    /// Whether it has begun to take the lease, and is not active yet.
    pub fn is_claiming(&self) -> bool {
        match self.role {
            Role::Standby => self.lease.is_taking(),
            Role::Claiming { .. } => true,
            Role::Active { .. } | Role::Released | Role::Ended(_) => false,
        }
    }

    /// The effects since the last call, to be carried out in their order.
    pub fn take_effects(&mut self, out: &mut Vec<Effect>) {
        out.append(&mut self.effects);
    }

    /// What it is for its cluster.
    pub const fn role(&self) -> &Role {
        &self.role
    }

    /// Until when bytes may leave to clients: they may if the clock, read after all that led to
    /// them was done, is below. 0: not at all.
    pub fn acting_until_ms(&self) -> u64 {
        match self.role {
            Role::Active { .. } => self.lease.acting_until_ms(),
            _ => 0,
        }
    }

    /// Who has the lease, as far as this node knows.
    pub fn holder(&self) -> Option<&LeaseValue> {
        self.lease.value()
    }

    /// The lease has been read, and [`Node::owner`] knows who has it.
    pub const fn knows_lease(&self) -> bool {
        self.lease.is_seen()
    }

    /// Who is active, as far as this node knows. None: nobody, or its lease was seen to expire.
    pub fn owner(&self, now_ms: u64) -> Option<&LeaseValue> {
        self.lease.owner(now_ms)
    }

    /// Why the key-value store does not answer, or holds a lease that cannot be read, if so.
    pub fn unreachable(&self) -> Option<&str> {
        self.lease.unreachable()
    }

    /// Where a shard's local copy ends, to be kept beside it. `None`: within a batch that this
    /// node writes, or in front of what the copy has.
    pub fn cursor(&self, shard: ShardId) -> Option<Cursor> {
        match &self.stream.writer {
            Some(writer) => writer.cursor(shard),
            None => self.stream.sequencer.cursor(shard),
        }
    }

    /// How the stream stands, for each shard.
    pub fn streams(&self) -> impl Iterator<Item = StreamStatus> {
        let shards = 0..self.stream.sequencer.logs().count() as ShardId;
        shards.map(|shard| self.stream.status(shard))
    }

    /// How much of the stream a shard may keep, if this node writes it and knows.
    pub fn span_bytes_max(&self) -> Option<u64> {
        self.stream.writer.as_ref()?.span_bytes_max()
    }

    /// The journal of the shard does not need the segments below any more. For standbys: it keeps
    /// what the node remembers of the stream small.
    pub fn forget_segments_below(&mut self, shard: ShardId, oldest: u32) {
        self.stream.sequencer.forget_segments_below(shard, oldest);
    }

    /// Does what is due. `now_ms`: of a clock that never goes back and goes on while the machine is
    /// suspended. `wall_ms`: Unix time, for display.
    pub fn on_tick(&mut self, now_ms: u64, wall_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.wall_ms = wall_ms;
        self.work();
    }

    /// Whether commits wait for others to share a message with, see
    /// [`Settings::append_interval_ms`].
    pub fn delays_commits(&self) -> bool {
        self.stream.writer.as_ref().is_some_and(Writer::delays_commits)
    }

    /// When [`Node::on_tick`] has something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.is_over() {
            return None;
        }
        let stream = self.stream.next_deadline(&self.role);
        stream.into_iter().chain(self.lease.next_deadline()).min()
    }

    /// Takes the answer of the key-value store.
    pub fn on_lease_answer(&mut self, id: RequestId, answer: LeaseAnswer, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.lease.on_answer(id, answer, self.now_ms);
        self.work();
    }

    /// Takes the answer of the stream.
    pub fn on_answer(&mut self, id: RequestId, answer: Answer, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let (now_ms, stream) = (self.now_ms, &mut self.stream);
        if let Some(writer) = &mut stream.writer {
            writer.on_answer(id, answer, now_ms, &mut self.wishes);
            self.grant_wishes();
        } else if stream.claim.asked.take_if(|asked| *asked == id).is_some() {
            // Whether it was stored is seen in the stream.
            stream.claim.at_ms = now_ms + RETRY_MS;
        } else if stream.measuring.asked.take_if(|asked| *asked == id).is_some()
            && let Answer::Ends { last, .. } = answer
        {
            stream.on_end(last);
        }
        self.work();
    }

    /// Takes the next message of the stream that is followed.
    pub fn on_message(&mut self, sequence: Sequence, body: &Body, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let stream = &mut self.stream;
        let is_over = matches!(self.role, Role::Ended(_) | Role::Released);
        if is_over || stream.writer.is_some() || stream.fault.is_some() {
            return;
        }
        match stream.sequencer.on_message(sequence, body) {
            Ok(Verdict::Counts(portions)) => {
                let applied = portions.into_iter().map(|it| Effect::Apply(sequence, it));
                self.effects.extend(applied);
            }
            Ok(Verdict::Claim(origin)) => {
                let readers = stream.sequencer.readers_of(sequence);
                self.effects.extend(readers.map(|shard| Effect::NewWriter(shard, sequence)));
                self.on_claim(origin);
            }
            Ok(Verdict::Void) => {}
            // It was delivered before.
            Err(Unreadable::Gap(found, last)) if found <= last => {}
            Err(Unreadable::Gap(found, _)) => {
                let lacking = stream.sequencer.lacking_before(found);
                lacking.into_iter().for_each(|shard| self.begin_copy_again(shard));
                self.read_again();
            }
            Err(fault) => stream.fault = Some(fault.to_string()),
        }
        self.work();
    }

    /// The local copy of a shard cannot be used: the stream is read again from its beginning. The
    /// other shards skip what they have.
    pub fn start_over(&mut self, shard: ShardId) {
        if self.stream.writer.is_none() {
            self.begin_copy_again(shard);
            self.read_again();
        }
    }

    fn begin_copy_again(&mut self, shard: ShardId) {
        self.stream.sequencer.start_over(shard);
        self.effects.push(Effect::StartOver(shard));
    }

    fn read_again(&mut self) {
        self.stream = Stream::new(self.stream.sequencer.clone());
        self.effects.push(Effect::Follow(1));
        // To read it all takes too long for a node that keeps the lease from others.
        if matches!(self.role, Role::Claiming { .. }) {
            self.end("a local copy must be rebuilt".to_owned());
        }
    }

    /// What the stream holds of a shard is no journal. The node will not be active.
    pub fn on_refused(&mut self, shard: ShardId, why: &str) {
        self.stream.fault = Some(format!("shard {shard}: {why}"));
        self.work();
    }

    /// The local copy cannot be written.
    pub fn on_local_fault(&mut self, why: &str) {
        self.end(format!("the local copy cannot be written: {why}"));
    }

    /// Takes a command of a shard's journal, of which so many bytes are live, for the next
    /// [tick](Self::on_tick). Only an active node's journals may give some.
    pub fn submit(&mut self, shard: ShardId, command: Command, live_bytes: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some(writer) = &mut self.stream.writer else { return };
        writer.submit(shard, command, (live_bytes, self.now_ms), &mut self.wishes);
        self.grant_wishes();
    }

    /// Gives the role back, to a successor or to whoever comes. The journals must be closed. A
    /// standby has nothing to give back, and will not take the lease any more.
    pub fn release(&mut self, successor: Option<String>) {
        if !self.lease.release(successor) && !self.is_over() {
            self.set_role(Role::Released);
        }
        self.work();
    }

    fn is_over(&self) -> bool {
        matches!(self.role, Role::Ended(_) | Role::Released)
    }

    fn on_claim(&mut self, origin: Origin) {
        let Role::Claiming { epoch } = self.role else { return };
        if origin == self.settings.origin(epoch) {
            self.stream.claim.is_seen = true;
        } else if origin.epoch > epoch {
            self.end(format!("the stream was claimed with epoch {}", origin.epoch));
        }
    }

    fn work(&mut self) {
        if self.is_over() {
            return;
        }
        self.work_stream();
        self.work_lease();
        self.follow_lease();
        if matches!(self.role, Role::Claiming { .. }) {
            self.finish_claim();
        }
    }

    fn is_fit(&self) -> bool {
        self.stream.has_caught_up && self.stream.fault.is_none() && !self.is_waiting
    }

    fn work_lease(&mut self) {
        let is_standby = self.role == Role::Standby;
        let current = self.stream.sequencer.current();
        let epoch_min = current.map_or(0, |header| header.origin.epoch);
        self.lease.want(is_standby && self.is_fit(), epoch_min);
        let mut asked = Vec::new();
        self.lease.work(self.now_ms, &mut asked);
        self.effects.extend(asked.into_iter().map(|(id, request)| Effect::AskLease(id, request)));
    }

    fn follow_lease(&mut self) {
        match (self.lease.standing(), &self.role) {
            (Standing::Lost, _) => {
                let why = self.lease.loss().unwrap_or("its key is missing").to_owned();
                self.end(format!("the lease is lost: {why}"));
            }
            (Standing::Released, _) => self.set_role(Role::Released),
            (Standing::Held { epoch }, Role::Standby) => self.set_role(Role::Claiming { epoch }),
            _ => {}
        }
    }

    fn finish_claim(&mut self) {
        let Role::Claiming { epoch } = self.role else { return };
        let is_held = self.lease.acting_until_ms() > self.now_ms;
        if !is_held || !self.stream.claim.is_seen {
            return;
        }
        let (origin, sequencer) = (self.settings.origin(epoch), &self.stream.sequencer);
        let (last, logs) = (sequencer.last(), sequencer.logs().cloned());
        let Settings {
            message_bytes_max,
            span_bytes_min,
            stream_bytes_max,
            append_interval_ms,
            ..
        } = self.settings;
        let limits = WriterLimits {
            message_bytes_max,
            span_bytes_min,
            stream_bytes_max,
            append_interval_ms,
        };
        self.stream.writer = Some(Writer::new(origin, last, logs, limits));
        self.effects.push(Effect::Unfollow);
        self.set_role(Role::Active { epoch });
    }

    fn work_stream(&mut self) {
        let stream = &mut self.stream;
        if let Some(writer) = &mut stream.writer {
            writer.work(self.now_ms, self.wall_ms, &mut self.wishes);
            self.grant_wishes();
        } else if let Role::Claiming { epoch } = self.role {
            let origin = self.settings.origin(epoch);
            let header = Header { origin, number: 0, sent_at_ms: self.wall_ms, cell: CELL };
            let body = || wire::claim(&header, &self.settings.identity.node).into();
            let asked = stream.claim(self.now_ms, body);
            self.effects.extend(asked.map(|(id, request)| Effect::Ask(id, request)));
        } else {
            let asked = stream.measure(self.now_ms);
            self.effects.extend(asked.map(|(id, request)| Effect::Ask(id, request)));
        }
        let fenced = self.stream.writer.as_ref().and_then(Writer::fenced);
        if let Some(fault) = fenced {
            self.end(fault.detail.clone());
        }
        // Others may be able to read what this node cannot.
        if let (Some(fault), Role::Claiming { .. }) = (&self.stream.fault, &self.role) {
            self.end(fault.clone());
        }
    }

    fn grant_wishes(&mut self) {
        let effects = self.wishes.drain(..).map(|wish| match wish {
            Wish::Ask(id, request) => Effect::Ask(id, request),
            Wish::Store(sequence, portion) => Effect::Store(sequence, portion),
            Wish::Background(shard, command) => Effect::Background(shard, command),
            Wish::Done(shard, completion) => Effect::Done(shard, completion),
            Wish::Renew(shard, segment) => Effect::Renew(shard, segment),
        });
        self.effects.extend(effects);
    }

    fn set_role(&mut self, role: Role) {
        self.role = role.clone();
        self.effects.push(Effect::Role(role));
    }

    fn end(&mut self, why: String) {
        if !self.is_over() {
            self.set_role(Role::Ended(why));
        }
    }
}

impl Settings {
    /// The writer of this start under this epoch.
    fn origin(&self, epoch: u64) -> Origin {
        Origin { cluster: self.cluster, epoch, writer: self.seed.wrapping_add(epoch) }
    }
}

impl Stream {
    fn new(sequencer: Sequencer) -> Self {
        Self {
            sequencer,
            has_caught_up: false,
            end: None,
            measuring: Measuring::default(),
            claim: Claim::default(),
            writer: None,
            fault: None,
        }
    }

    fn status(&self, shard: ShardId) -> StreamStatus {
        let last_sent_at_ms = self.sequencer.current().map_or(0, |header| header.sent_at_ms);
        StreamStatus {
            last: self.writer.as_ref().map_or(self.sequencer.last_of(shard), Writer::last),
            end: self.end,
            has_caught_up: self.has_caught_up,
            last_sent_at_ms,
            span_bytes: self.log(shard).map_or(0, ShardLog::span),
            unavailable: self.writer.as_ref().and_then(Writer::unavailable).map(str::to_owned),
            fault: self.fault.clone(),
        }
    }

    fn log(&self, shard: ShardId) -> Option<&ShardLog> {
        match &self.writer {
            Some(writer) => writer.log(shard),
            None => self.sequencer.logs().nth(shard.into()),
        }
    }

    fn next_deadline(&self, role: &Role) -> Option<u64> {
        match (&self.writer, role) {
            (Some(writer), _) => writer.next_deadline(),
            (None, Role::Claiming { .. }) => {
                let waits = self.claim.asked.is_none() && !self.claim.is_seen;
                waits.then_some(self.claim.at_ms)
            }
            _ => (self.measuring.asked.is_none() && self.fault.is_none())
                .then_some(self.measuring.at_ms),
        }
    }

    fn measure(&mut self, now_ms: u64) -> Option<(RequestId, Request)> {
        let is_short = self.measuring.short > 0;
        self.has_caught_up |= !is_short && self.end.is_some_and(|end| self.sequencer.last() >= end);
        let waits = self.measuring.asked.is_some() || self.measuring.at_ms > now_ms;
        if self.fault.is_some() || waits {
            return None;
        }
        self.measuring.at_ms =
            now_ms + if self.has_caught_up { MEASURE_AGAIN_MS } else { MEASURE_MS };
        self.measuring.asked = Some(MEASURE_ID);
        self.measuring.read = self.sequencer.furthest();
        Some((MEASURE_ID, Request::Ends))
    }

    fn on_end(&mut self, last: Sequence) {
        // Messages that came while the answer was on its way may be behind that.
        let read = self.measuring.read;
        self.end = Some(last);
        if read <= last {
            self.measuring.short = 0;
            self.has_caught_up &= last.saturating_sub(self.sequencer.last()) <= LAG_MESSAGES_MAX;
            return;
        }
        // It had these messages when they were read, unless this is a local copy of another life.
        self.has_caught_up = false;
        self.measuring.short += 1;
        if self.measuring.short == SHORT_MAX {
            self.fault = Some(format!(
                "the stream ends at message {last}, and the local copy has read message {read}: \
                 the engine lost messages. Restore its data; or, if what the stream has is right, \
                 start this node with an empty data directory"
            ));
        }
    }

    fn claim(&mut self, now_ms: u64, body: impl FnOnce() -> Body) -> Option<(RequestId, Request)> {
        let Claim { asked, at_ms, is_seen } = self.claim;
        if is_seen || asked.is_some() || at_ms > now_ms {
            return None;
        }
        self.claim.asked = Some(CLAIM_ID);
        Some((CLAIM_ID, Request::Append { after: self.sequencer.last(), body: body() }))
    }
}

/// Requests of a stream that has no writer: one of a kind at a time.
const MEASURE_ID: RequestId = RequestId(u64::MAX);
const CLAIM_ID: RequestId = RequestId(u64::MAX - 1);
