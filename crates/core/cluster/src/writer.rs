//! The third driver of `storage::Command`: commits become fenced appends to a stream.
//!
//! The commits of all shards are packed into messages of at most [`MESSAGE_BYTES_MAX`]. What comes
//! while one is under way goes into the next one. Up to [`APPENDS_MAX`] are under way at a time,
//! each with the last sequence that it expects: further ones only when there is half a message.
//! Messages that carry less begin some time apart (`spacing.rs`).
//!
//! The shards take turns to be the first in a message, so a large commit of one does not hold up
//! the others. A commit is reported as done when the engine has acknowledged all its messages and
//! the local copy has them.
//!
//! # An append of unknown fate
//!
//! When the front append is not acknowledged, nothing further is sent until all that is under way
//! has been answered, one way or the other. If the engine refused it for certain, and no append of
//! it can arrive late, the commits in it are refused: of each shard that it does not continue a
//! step of. What else was packed is packed again. Otherwise the message behind the last known one
//! is read:
//!
//! - It is the front message: it was stored, and the next one is looked at in the same way.
//! - There is none: the same message is sent again with the same expected sequence, and nothing
//!   else until it is stored. Should the lost one arrive late, only one of the two can be stored.
//! - It is of a later epoch: the stream has another writer. This one has ended.
//! - It is of an earlier epoch, or of this writer but out of turn: it counts for nobody, and is
//!   skipped. With two appends under way the second can be stored without the first: the message
//!   of somebody else was stored in between, and made the second's expectation true. So the order
//!   of numbers decides what counts (`sequencer.rs`), and the expected sequence only what is tried.
//!
//! # What is removed of the stream
//!
//! Messages before the oldest segment of all shards. A shard that writes little would keep all.
//! When its oldest segment begins more than [`SPAN_FACTOR`] times the live bytes of the node before
//! the end of the stream, its journal is asked to do without that segment.

use std::collections::VecDeque;

use storage::{Command, Completion, Fault, FaultKind};

use crate::commits::{Commits, Part, refused};
use crate::effect::{Answer, Body, Request, RequestId, Sequence, ShardId};
use crate::log::ShardLog;
use crate::sequencer::Cursor;
use crate::spacing::Spacing;
use crate::wire::{self, CELL, Header, Origin, Packet, Portion};

/// Bytes of a message, larger writes are split. Measured: above this an engine's cost per byte
/// does not fall any more.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Appends under way. An append costs the engine the same whatever it carries, so those beside the
/// first one have to carry much.
const APPENDS_MAX: usize = 2;

/// How much of the stream a shard may keep that writes little: so many times the live bytes of all
/// shards. [`span_bytes_min`] is the least.
const SPAN_FACTOR: u64 = 4;

/// The least that a shard of a cluster may keep of the stream: the smallest size of the logs.
pub fn span_bytes_min(shards: ShardId, segment_bytes: u32) -> u64 {
    SPAN_FACTOR * u64::from(shards) * u64::from(segment_bytes)
}

/// How long it waits before it asks or sends again what was not answered.
pub(crate) const RETRY_MS: u64 = 200;

/// The writer of one stream, from its claim to the next one's.
#[derive(Debug)]
pub(crate) struct Writer {
    origin: Origin,
    /// Of the last message that is known to be in the stream.
    last: Sequence,
    /// Of the last message that counts.
    last_number: u64,
    /// Of the next message that is made.
    next_number: u64,
    shards: Vec<Shard>,
    /// The shard that is the first in the next message.
    first: usize,
    messages: VecDeque<Outgoing>,
    state: State,
    retry_at_ms: Option<u64>,
    next_request: u64,
    purge: Purge,
    fenced: Option<Fault>,
    /// Why the engine takes nothing at present.
    unavailable: Option<String>,
    /// The end of the stream when it was measured last: until a message is stored behind it, one
    /// is sent at a time, and not at once.
    stalled_at: Option<Sequence>,
    limits: WriterLimits,
    spacing: Spacing,
    /// When there is something to send, because a message is to carry more.
    begins_at_ms: Option<u64>,
    /// Spans or live bytes have changed since the last check.
    looks_at_spans: bool,
}

/// See [`Settings`](crate::Settings).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterLimits {
    pub(crate) message_bytes_max: usize,
    pub(crate) span_bytes_min: u64,
    pub(crate) stream_bytes_max: u64,
    pub(crate) append_interval_ms: u64,
}

/// What a shard writes.
#[derive(Debug, Default)]
struct Shard {
    commits: Commits,
    log: ShardLog,
    /// Of its journal, when it submitted something last. `None`: it has not yet.
    live_bytes: Option<u64>,
    /// Up to this segment the journal was asked to do without.
    renewed: u32,
}

/// A message that is not known to be stored.
#[derive(Debug)]
struct Outgoing {
    number: u64,
    body: Body,
    /// Of the commits that it holds.
    parts: Vec<Part>,
    portions: Vec<Portion>,
    sent: Sent,
    /// An append of it was not answered, and may be stored at any time. A commit that was refused
    /// comes back in other messages under the same numbers: this one must not be among them.
    may_come_late: bool,
    /// Why the engine did not take it when it was sent last.
    refusal: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    Not,
    Asked(RequestId),
    /// Acknowledged, while the one before it is not.
    Stored(Sequence),
    /// Answered, and not known to be stored.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Sending,
    /// Waits until all that is under way is answered, then looks.
    Draining,
    /// Asks for the message behind the last known one.
    Looking(RequestId),
    /// Asks for both ends, because there is none though the sequence was wrong.
    Measuring(RequestId),
}

#[derive(Debug, Default)]
struct Purge {
    /// Everything before this sequence is to go.
    wanted: Sequence,
    done: Sequence,
    asked: Option<(RequestId, Sequence)>,
    retry_at_ms: u64,
}

/// What a writer wants done.
#[derive(Debug)]
pub(crate) enum Wish {
    Ask(RequestId, Request),
    /// The stream has this message: the local copy gets what is in it.
    Store(Sequence, Portion),
    Background(ShardId, Command),
    Done(ShardId, Completion),
    /// The journal is to do without its segments up to this one.
    Renew(ShardId, u32),
}

impl Writer {
    /// A writer whose claim is the last message. `logs`: of each shard.
    pub(crate) fn new(
        origin: Origin,
        claimed: Sequence,
        logs: impl IntoIterator<Item = ShardLog>,
        limits: WriterLimits,
    ) -> Self {
        let shards = logs.into_iter().map(|log| Shard { log, ..Shard::default() });
        Self {
            origin,
            last: claimed,
            last_number: 0,
            next_number: 1,
            shards: shards.collect(),
            first: 0,
            messages: VecDeque::new(),
            state: State::Sending,
            retry_at_ms: None,
            next_request: 0,
            purge: Purge::default(),
            fenced: None,
            unavailable: None,
            stalled_at: None,
            limits,
            spacing: Spacing::new(limits.append_interval_ms),
            begins_at_ms: None,
            looks_at_spans: false,
        }
    }

    /// Why the engine takes nothing at present, if so.
    pub(crate) fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// Somebody else owns the stream.
    pub(crate) const fn fenced(&self) -> Option<&Fault> {
        self.fenced.as_ref()
    }

    /// Of the last message known to be in the stream.
    pub(crate) const fn last(&self) -> Sequence {
        self.last
    }

    /// Where the segments of a shard begin.
    pub(crate) fn log(&self, shard: ShardId) -> Option<&ShardLog> {
        self.shards.get(usize::from(shard)).map(|shard| &shard.log)
    }

    /// Where the local copy of a shard ends, if that is not within a step.
    pub(crate) fn cursor(&self, shard: ShardId) -> Option<Cursor> {
        let Origin { epoch, writer, .. } = self.origin;
        let shard = self.shards.get(usize::from(shard))?;
        (!shard.commits.is_cut()).then(|| Cursor {
            last: self.last,
            epoch,
            writer,
            number: self.last_number,
            log: shard.log.clone(),
        })
    }

    /// Takes a command of a shard's journal, of which so many bytes are live.
    pub(crate) fn submit(
        &mut self,
        number: ShardId,
        command: Command,
        (live_bytes, now_ms): (u64, u64),
        out: &mut Vec<Wish>,
    ) {
        let has_company = !self.messages.is_empty() || self.waiting_bytes() > 0;
        let Some(shard) = self.shards.get_mut(usize::from(number)) else { return };
        self.looks_at_spans |= shard.live_bytes.replace(live_bytes) != Some(live_bytes);
        match command {
            Command::Commit { id, steps, resume } => {
                self.spacing.note_commit(has_company, now_ms);
                let refusal = match &self.fenced {
                    Some(fault) => Some(refused(id, 0, fault.clone())),
                    None => shard.commits.submit(id, steps, resume),
                };
                out.extend(refusal.map(|refusal| Wish::Done(number, refusal)));
            }
            Command::Delete { segment, .. } | Command::Recycle { from: segment, .. } => {
                shard.log.forget_below(segment + 1);
                self.want_purge();
                out.push(Wish::Background(number, command));
            }
            Command::Create { .. } | Command::Read { .. } => {
                out.push(Wish::Background(number, command));
            }
        }
    }

    /// Each shard needs what follows the beginning of its oldest segment.
    fn want_purge(&mut self) {
        let needed = self.shards.iter().filter_map(|shard| shard.log.needed_from()).min();
        self.purge.wanted = self.purge.wanted.max(needed.unwrap_or_default());
    }

    /// Sends what there is to send. `wall_ms` is stated in the messages.
    pub(crate) fn work(&mut self, now_ms: u64, wall_ms: u64, out: &mut Vec<Wish>) {
        if self.fenced.is_some() {
            return;
        }
        self.work_purge(now_ms, out);
        self.renew(out);
        if self.retry_at_ms.is_some_and(|at_ms| at_ms > now_ms) {
            return;
        }
        self.retry_at_ms = None;
        if self.state == State::Draining && self.is_drained() {
            self.settle(now_ms, out);
        }
        if self.state == State::Sending && self.retry_at_ms.is_none() {
            self.send(now_ms, wall_ms, out);
        }
        self.complete(out);
    }

    pub(crate) const fn delays_commits(&self) -> bool {
        self.begins_at_ms.is_some() && self.fenced.is_none()
    }

    /// When [`Writer::work`] has something to do, if nothing else happens.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if self.fenced.is_some() {
            return None;
        }
        let waits_to_purge = self.purge.asked.is_none() && self.purge.wanted > self.purge.done;
        let purge = waits_to_purge.then_some(self.purge.retry_at_ms);
        [self.retry_at_ms, purge, self.begins_at_ms].into_iter().flatten().min()
    }

    fn work_purge(&mut self, now_ms: u64, out: &mut Vec<Wish>) {
        let Purge { wanted, done, asked: None, retry_at_ms } = self.purge else { return };
        if wanted > done && retry_at_ms <= now_ms {
            let id = self.request_id();
            self.purge.asked = Some((id, wanted));
            out.push(Wish::Ask(id, Request::Purge { before: wanted }));
        }
    }

    fn send(&mut self, now_ms: u64, wall_ms: u64, out: &mut Vec<Wish>) {
        self.begins_at_ms = None;
        loop {
            let sent = self.messages.iter().take_while(|it| it.sent != Sent::Not).count();
            let sent_max = if self.stalled_at == Some(self.last) { 1 } else { APPENDS_MAX };
            if sent >= sent_max {
                return;
            }
            let is_packed = sent < self.messages.len();
            if !is_packed && (!self.has_enough(sent, now_ms) || !self.pack(now_ms, wall_ms)) {
                return;
            }
            let id = self.request_id();
            let after = self.last + sent as Sequence;
            let Some(message) = self.messages.get_mut(sent) else { return };
            message.sent = Sent::Asked(id);
            message.refusal = None;
            let body = message.body.clone();
            out.push(Wish::Ask(id, Request::Append { after, body }));
        }
    }

    /// Whether enough waits for one more message beside so many.
    fn has_enough(&mut self, sent: usize, now_ms: u64) -> bool {
        let waiting = self.waiting_bytes();
        if waiting == 0 || waiting >= self.limits.message_bytes_max / 2 {
            return waiting > 0;
        }
        let waits_until_ms = self.spacing.waits_until_ms(now_ms);
        self.begins_at_ms = waits_until_ms.filter(|_| sent == 0);
        sent == 0 && waits_until_ms.is_none()
    }

    /// Bytes that are in no message.
    fn waiting_bytes(&self) -> usize {
        self.shards.iter().map(|it| it.commits.waiting_bytes()).sum()
    }

    /// Makes the next message of what is committed. False: there is nothing more.
    fn pack(&mut self, now_ms: u64, sent_at_ms: u64) -> bool {
        let number = self.next_number;
        let header = Header { origin: self.origin, number, sent_at_ms, cell: CELL };
        let mut packet = Packet::new(&header, self.limits.message_bytes_max);
        let mut parts: Vec<Part> = Vec::new();
        let count = self.shards.len();
        for place in (self.first..count).chain(0..self.first) {
            self.shards[place].commits.pack(place as ShardId, &mut packet, &mut parts);
        }
        let Some(first) = parts.first().filter(|_| !packet.is_empty()) else { return false };
        self.first = (usize::from(first.shard) + 1) % count;
        self.next_number += 1;
        self.spacing.note_begin(now_ms);
        let (body, portions) = packet.finish();
        self.messages.push_back(Outgoing {
            number,
            body,
            parts,
            portions,
            sent: Sent::Not,
            may_come_late: false,
            refusal: None,
        });
        true
    }

    /// Takes the answer to a request.
    pub(crate) fn on_answer(
        &mut self,
        id: RequestId,
        answer: Answer,
        now_ms: u64,
        out: &mut Vec<Wish>,
    ) {
        if self.purge.asked.is_some_and(|(asked, _)| asked == id) {
            self.on_purged(&answer, now_ms);
        } else if self.state == State::Looking(id) {
            self.on_seen(&answer, now_ms, out);
        } else if self.state == State::Measuring(id) {
            self.on_measured(&answer, now_ms);
        } else {
            self.on_append_answered(id, answer, now_ms, out);
        }
    }

    fn on_purged(&mut self, answer: &Answer, now_ms: u64) {
        let Some((_, before)) = self.purge.asked.take() else { return };
        match answer {
            Answer::Purged => self.purge.done = before,
            _ => self.purge.retry_at_ms = now_ms + RETRY_MS,
        }
    }

    fn on_append_answered(
        &mut self,
        id: RequestId,
        answer: Answer,
        now_ms: u64,
        out: &mut Vec<Wish>,
    ) {
        let Some(message) = self.messages.iter_mut().find(|it| it.sent == Sent::Asked(id)) else {
            return;
        };
        message.sent = Sent::Unknown;
        match answer {
            Answer::Appended(sequence) => {
                message.sent = Sent::Stored(sequence);
                if self.state == State::Sending {
                    self.take_stored(out);
                }
                return;
            }
            Answer::NoSpace(detail) => {
                message.refusal = Some(Fault { kind: FaultKind::NoSpace, detail });
            }
            Answer::Unavailable(detail) => {
                message.refusal = Some(Fault { kind: FaultKind::Unavailable, detail });
            }
            Answer::Unknown(detail) => {
                message.may_come_late = true;
                self.unavailable = Some(detail);
            }
            _ => {}
        }
        self.state = State::Draining;
        self.retry_at_ms = Some(now_ms);
    }

    /// All that was sent is answered, and something is not stored.
    fn settle(&mut self, now_ms: u64, out: &mut Vec<Wish>) {
        match self.messages.front().and_then(|front| front.refusal.clone()) {
            Some(fault) if self.is_gone() => {
                self.state = State::Sending;
                if !self.refuse(&fault, out) {
                    self.unavailable = Some(fault.detail);
                    self.retry_at_ms = Some(now_ms + RETRY_MS);
                }
            }
            Some(fault) => {
                self.unavailable = Some(fault.detail);
                self.look(out);
            }
            None => self.look(out),
        }
    }

    /// Whether no message is stored, nor will be.
    fn is_gone(&self) -> bool {
        let is_gone = |it: &Outgoing| !it.may_come_late && !matches!(it.sent, Sent::Stored(_));
        self.messages.iter().all(is_gone)
    }

    /// Refuses what the front message holds of each shard, and packs all else again. A step that
    /// was begun in an earlier message has to be ended. False: the message holds nothing else. Then
    /// the rest of the step shares the next message with other shards, so that they are refused.
    fn refuse(&mut self, fault: &Fault, out: &mut Vec<Wish>) -> bool {
        self.complete(out);
        let Some(front) = self.messages.front() else { return false };
        let is_meant = |(place, shard): (usize, &Shard)| {
            let is_there = front.parts.iter().any(|part| usize::from(part.shard) == place);
            (is_there && !shard.commits.is_cut()).then_some(place)
        };
        let meant: Vec<usize> = self.shards.iter().enumerate().filter_map(is_meant).collect();
        self.next_number = front.number;
        self.messages.clear();
        self.shards.iter_mut().for_each(|shard| shard.commits.unpack());
        for place in &meant {
            let refusals = self.shards[*place].commits.refuse(fault);
            out.extend(refusals.into_iter().map(|it| Wish::Done(*place as ShardId, it)));
        }
        !meant.is_empty()
    }

    /// Takes those at the front that are stored.
    fn take_stored(&mut self, out: &mut Vec<Wish>) {
        while let Some(Outgoing { sent: Sent::Stored(sequence), .. }) = self.messages.front() {
            let sequence = *sequence;
            self.on_front_stored(sequence, out);
        }
    }

    fn on_front_stored(&mut self, sequence: Sequence, out: &mut Vec<Wish>) {
        let Some(message) = self.messages.pop_front() else { return };
        (self.last, self.last_number) = (sequence, message.number);
        self.unavailable = None;
        for part in &message.parts {
            self.shards[usize::from(part.shard)].commits.note_stored(part);
        }
        for portion in message.portions {
            let log = &mut self.shards[usize::from(portion.shard)].log;
            portion.begun().for_each(|segment| log.begin(segment, sequence));
            out.push(Wish::Store(sequence, portion));
        }
        self.shards.iter_mut().for_each(|shard| shard.log.pass(message.body.len()));
        self.looks_at_spans = true;
    }

    /// How much of the stream a shard may keep: at most half of its limit, or the stream would be
    /// full before the shard is asked to renew. `None`: until all journals have written something
    /// it is not known.
    pub(crate) fn span_bytes_max(&self) -> Option<u64> {
        let live: Option<u64> = self.shards.iter().map(|shard| shard.live_bytes).sum();
        let most = self.limits.stream_bytes_max / 2;
        live.map(|live| (SPAN_FACTOR * live).max(self.limits.span_bytes_min).min(most))
    }

    /// No shard keeps much more of the stream than the live bytes of all are worth. Once for each
    /// segment: its journal does not forget.
    fn renew(&mut self, out: &mut Vec<Wish>) {
        let Some(span) = self.span_bytes_max().filter(|_| self.looks_at_spans) else { return };
        self.looks_at_spans = false;
        for (place, shard) in self.shards.iter_mut().enumerate() {
            let found = shard.log.newest_behind(span).filter(|segment| *segment > shard.renewed);
            let Some(segment) = found else { continue };
            shard.renewed = segment;
            out.push(Wish::Renew(place as ShardId, segment));
        }
    }

    /// Reports the commits that are done, in the order of each shard.
    fn complete(&mut self, out: &mut Vec<Wish>) {
        for (place, shard) in self.shards.iter_mut().enumerate() {
            while let Some(completion) = shard.commits.take_done() {
                out.push(Wish::Done(place as ShardId, completion));
            }
        }
    }

    fn is_drained(&self) -> bool {
        !self.messages.iter().any(|it| matches!(it.sent, Sent::Asked(_)))
    }

    fn look(&mut self, out: &mut Vec<Wish>) {
        while self.messages.front().is_some_and(|it| it.sent == Sent::Stored(self.last + 1)) {
            self.on_front_stored(self.last + 1, out);
        }
        if self.messages.front().is_none_or(|it| it.sent == Sent::Not) {
            self.state = State::Sending;
            return;
        }
        let id = self.request_id();
        self.state = State::Looking(id);
        out.push(Wish::Ask(id, Request::Message { sequence: self.last + 1 }));
    }

    /// What stands behind the last known message.
    fn on_seen(&mut self, answer: &Answer, now_ms: u64, out: &mut Vec<Wish>) {
        let body = match answer {
            Answer::Message(Some(body)) => body,
            Answer::Message(None) => {
                let id = self.request_id();
                self.state = State::Measuring(id);
                out.push(Wish::Ask(id, Request::Ends));
                return;
            }
            _ => return self.look_later(now_ms),
        };
        let found = match wire::parse(body) {
            Ok((header, _)) => header,
            Err(error) => return self.end(format!("message {}: {error}", self.last + 1), out),
        };
        let own = self.messages.front().filter(|message| message.number == found.number);
        if let Some(own) = own.filter(|_| found.origin == self.origin) {
            if own.body != *body {
                let detail = format!("message {} has other bytes than were written", self.last + 1);
                return self.end(detail, out);
            }
            self.on_front_stored(self.last + 1, out);
            self.look(out);
        } else if found.origin == self.origin || is_void(&found.origin, &self.origin) {
            self.last += 1;
            self.look(out);
        } else {
            let Origin { epoch, .. } = found.origin;
            self.end(format!("message {} is of epoch {epoch}", self.last + 1), out);
        }
    }

    /// There is no message behind the last known one: is that the end of the stream?
    fn on_measured(&mut self, answer: &Answer, now_ms: u64) {
        match *answer {
            Answer::Ends { first, .. } if first > self.last + 1 => {
                let detail = format!(
                    "the stream begins at message {first}, after the last \
                written one"
                );
                self.fence(detail);
            }
            Answer::Ends { last, .. } if last == self.last => {
                let is_refused = self.messages.iter().any(|it| it.refusal.is_some());
                let was_stalled = self.stalled_at.replace(last) == Some(last);
                if was_stalled {
                    let why = || format!("appends after message {last} are not stored");
                    self.unavailable.get_or_insert_with(why);
                }
                for message in &mut self.messages {
                    message.sent = Sent::Not;
                }
                self.state = State::Sending;
                let waits = is_refused || was_stalled;
                self.retry_at_ms = Some(now_ms + if waits { RETRY_MS } else { 0 });
            }
            // Of a leader that is no more, or of an engine that lost what it had acknowledged.
            Answer::Ends { last, .. } if last < self.last => {
                self.unavailable = Some(format!(
                    "the stream ends at message {last}, and message {} was acknowledged",
                    self.last
                ));
                self.look_later(now_ms);
            }
            _ => self.look_later(now_ms),
        }
    }

    fn look_later(&mut self, now_ms: u64) {
        self.state = State::Draining;
        self.retry_at_ms = Some(now_ms + RETRY_MS);
    }

    fn end(&mut self, detail: String, out: &mut Vec<Wish>) {
        let fault = self.fence(detail);
        for (place, shard) in self.shards.iter_mut().enumerate() {
            let refusals = shard.commits.end(&fault);
            out.extend(refusals.into_iter().map(|it| Wish::Done(place as ShardId, it)));
        }
    }

    fn fence(&mut self, detail: String) -> Fault {
        let detail = format!("the stream has another writer: {detail}");
        let fault = Fault { kind: FaultKind::Fenced, detail };
        self.fenced = Some(fault.clone());
        self.messages.clear();
        fault
    }

    fn request_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }
}

/// Whether a message of `found` counts for nobody, once `current` has claimed the stream.
pub(crate) fn is_void(found: &Origin, current: &Origin) -> bool {
    found.cluster == current.cluster && found.epoch < current.epoch
}

#[cfg(test)]
mod tests;
