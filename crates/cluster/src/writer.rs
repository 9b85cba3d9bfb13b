//! The third driver of `storage::Command`: commits become fenced appends to a stream.
//!
//! A commit is packed into messages of at most [`MESSAGE_BYTES_MAX`]. [`APPENDS_MAX`] of them are
//! under way at a time, each with the last sequence that it expects; what comes meanwhile goes into
//! the next ones. A commit is reported as done when the engine has acknowledged all its messages
//! and the local copy has them.
//!
//! # An append of unknown fate
//!
//! When the front append is not acknowledged, nothing further is sent until all that is under way
//! has been answered, one way or the other. If the engine refused it for certain, and no append of
//! it can arrive late, its commit is refused. Otherwise the message behind the last known one is
//! read:
//!
//! - It is the front message: it was stored, and the next one is looked at in the same way.
//! - There is none: the same message is sent again with the same expected sequence, and nothing
//!   else until it is stored. Should the lost one arrive late, only one of the two can be stored.
//! - It is of a later epoch: the stream has another writer. This one has ended.
//! - It is of an earlier epoch, or of this writer but out of turn: it counts for nobody, and is
//!   skipped. With two appends under way the second can be stored without the first: the message
//!   of somebody else was stored in between, and made the second's expectation true. So the order
//!   of numbers decides what counts (`sequencer.rs`), and the expected sequence only what is tried.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use storage::{Command, CommandId, Completion, Fault, FaultKind, Outcome, Step};

use crate::effect::{Answer, Body, Request, RequestId, Sequence};
use crate::sequencer::Cursor;
use crate::wire::{self, Header, Origin, Packet};

/// Bytes of a message, larger writes are split. Measured: above this an engine's cost per byte
/// does not fall any more.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Appends under way for one stream.
pub const APPENDS_MAX: usize = 2;

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
    /// That message ends within a step.
    is_cut: bool,
    /// Of the next message that is made.
    next_number: u64,
    commits: VecDeque<Pending>,
    messages: VecDeque<Outgoing>,
    state: State,
    retry_at_ms: Option<u64>,
    next_request: u64,
    /// Where each segment begins, of those whose beginning is known.
    segments: BTreeMap<u32, Sequence>,
    purge: Purge,
    fenced: Option<Fault>,
    /// Why the engine takes nothing at present.
    unavailable: Option<String>,
    /// The end of the stream when it was measured last: until a message is stored behind it, one
    /// is sent at a time, and not at once.
    stalled_at: Option<Sequence>,
    /// The last commit was refused: those behind it are skipped until one says `resume`.
    skips: bool,
}

/// A commit that is not done.
#[derive(Debug)]
struct Pending {
    id: CommandId,
    steps: Vec<Step>,
    /// Steps that are in messages wholly, and bytes of the next one.
    packed: usize,
    packed_bytes: usize,
    /// Steps of which the stream has all.
    done: usize,
    /// Messages that hold a part of it and are not stored.
    open: usize,
}

/// A message that is not known to be stored.
#[derive(Debug)]
struct Outgoing {
    number: u64,
    body: Body,
    /// Of the commit that it belongs to.
    commit: CommandId,
    /// Steps of that commit that are done with it.
    steps_done: usize,
    /// It begins within a step: what came before it cannot be taken back.
    is_rest: bool,
    /// It ends within a step.
    is_cut: bool,
    segment: Option<u32>,
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
    /// The stream has this message: the local copy gets it.
    Store(Sequence, Body),
    Background(Command),
    Done(Completion),
}

impl Writer {
    /// A writer whose claim is the last message. `segments`: where segments are known to begin.
    pub(crate) fn new(
        origin: Origin,
        claimed: Sequence,
        segments: BTreeMap<u32, Sequence>,
    ) -> Self {
        Self {
            origin,
            last: claimed,
            last_number: 0,
            is_cut: false,
            next_number: 1,
            commits: VecDeque::new(),
            messages: VecDeque::new(),
            state: State::Sending,
            retry_at_ms: None,
            next_request: 0,
            segments,
            purge: Purge::default(),
            fenced: None,
            unavailable: None,
            stalled_at: None,
            skips: false,
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

    /// Where the local copy ends, if that is not within a batch.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        let Origin { epoch, writer, .. } = self.origin;
        (!self.is_cut).then(|| Cursor {
            last: self.last,
            epoch,
            writer,
            number: self.last_number,
            segments: self.segments.clone(),
        })
    }

    /// Takes a command of the journal.
    pub(crate) fn submit(&mut self, command: Command, out: &mut Vec<Wish>) {
        match command {
            Command::Commit { id, steps, resume } => {
                self.skips &= !resume;
                if let Some(fault) = &self.fenced {
                    out.push(refused(id, 0, fault.clone()));
                } else if self.skips {
                    let detail = "a write before it was refused".to_owned();
                    out.push(refused(id, 0, Fault { kind: FaultKind::Skipped, detail }));
                } else {
                    let (packed, packed_bytes, done, open) = (0, 0, 0, 0);
                    self.commits.push_back(Pending { id, steps, packed, packed_bytes, done, open });
                }
            }
            Command::Delete { segment, .. } | Command::Recycle { from: segment, .. } => {
                self.want_purge(segment);
                out.push(Wish::Background(command));
            }
            Command::Create { .. } | Command::Read { .. } => out.push(Wish::Background(command)),
        }
    }

    fn want_purge(&mut self, segment: u32) {
        self.segments = self.segments.split_off(&(segment + 1));
        if let Some(begins) = self.segments.get(&(segment + 1)) {
            self.purge.wanted = self.purge.wanted.max(*begins);
        }
    }

    /// Sends what there is to send. `wall_ms` is stated in the messages.
    pub(crate) fn work(&mut self, now_ms: u64, wall_ms: u64, out: &mut Vec<Wish>) {
        if self.fenced.is_some() {
            return;
        }
        self.work_purge(now_ms, out);
        if self.retry_at_ms.is_some_and(|at_ms| at_ms > now_ms) {
            return;
        }
        self.retry_at_ms = None;
        if self.state == State::Draining && self.is_drained() {
            self.settle(out);
        }
        if self.state == State::Sending {
            self.send(wall_ms, out);
        }
        self.complete(out);
    }

    /// When [`Writer::work`] has something to do, if nothing else happens.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if self.fenced.is_some() {
            return None;
        }
        let waits_to_purge = self.purge.asked.is_none() && self.purge.wanted > self.purge.done;
        let purge = waits_to_purge.then_some(self.purge.retry_at_ms);
        [self.retry_at_ms, purge].into_iter().flatten().min()
    }

    fn work_purge(&mut self, now_ms: u64, out: &mut Vec<Wish>) {
        let Purge { wanted, done, asked: None, retry_at_ms } = self.purge else { return };
        if wanted > done && retry_at_ms <= now_ms {
            let id = self.request_id();
            self.purge.asked = Some((id, wanted));
            out.push(Wish::Ask(id, Request::Purge { before: wanted }));
        }
    }

    fn send(&mut self, wall_ms: u64, out: &mut Vec<Wish>) {
        loop {
            let sent = self.messages.iter().take_while(|it| it.sent != Sent::Not).count();
            let sent_max = if self.stalled_at == Some(self.last) { 1 } else { APPENDS_MAX };
            if sent >= sent_max {
                return;
            }
            if sent == self.messages.len() && !self.pack(wall_ms) {
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

    /// Makes the next message of what is committed. False: there is nothing more.
    fn pack(&mut self, sent_at_ms: u64) -> bool {
        for commit in &mut self.commits {
            commit.skip_syncs();
            if commit.packed == commit.steps.len() {
                continue;
            }
            let number = self.next_number;
            let header = Header { origin: self.origin, number, sent_at_ms };
            let is_rest = commit.packed_bytes > 0;
            let mut packet = Packet::new(&header, MESSAGE_BYTES_MAX);
            commit.fill(&mut packet);
            if packet.is_empty() {
                return false;
            }
            self.next_number += 1;
            commit.open += 1;
            self.messages.push_back(Outgoing {
                number,
                commit: commit.id,
                steps_done: commit.packed,
                is_rest,
                is_cut: commit.packed_bytes > 0,
                segment: packet.segment(),
                body: Arc::from(packet.finish()),
                sent: Sent::Not,
                may_come_late: false,
                refusal: None,
            });
            return true;
        }
        false
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
    fn settle(&mut self, out: &mut Vec<Wish>) {
        match self.messages.front().and_then(|front| front.refusal.clone()) {
            Some(fault) if self.can_refuse() => {
                self.refuse(&fault, out);
                self.state = State::Sending;
            }
            Some(fault) => {
                self.unavailable = Some(fault.detail);
                self.look(out);
            }
            None => self.look(out),
        }
    }

    /// Whether nothing of the front commit from its first message on is stored, nor will be, and it
    /// does not go on with a step that was begun.
    fn can_refuse(&self) -> bool {
        let is_gone = |it: &Outgoing| !it.may_come_late && !matches!(it.sent, Sent::Stored(_));
        self.messages.front().is_some_and(|it| !it.is_rest) && self.messages.iter().all(is_gone)
    }

    /// Refuses a commit, and what was submitted behind it.
    fn refuse(&mut self, fault: &Fault, out: &mut Vec<Wish>) {
        self.next_number = self.messages.front().map_or(self.next_number, |it| it.number);
        self.messages.clear();
        let refused_commit = self.commits.front().map(|commit| (commit.id, commit.done));
        if let Some((id, done)) = refused_commit {
            out.push(refused(id, done, fault.clone()));
        }
        for commit in self.commits.drain(..).skip(1) {
            let detail = "a write before it was refused".to_owned();
            out.push(refused(commit.id, 0, Fault { kind: FaultKind::Skipped, detail }));
        }
        self.skips = true;
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
        (self.last, self.last_number, self.is_cut) = (sequence, message.number, message.is_cut);
        self.unavailable = None;
        if let Some(segment) = message.segment {
            self.segments.entry(segment).or_insert(sequence);
        }
        out.push(Wish::Store(sequence, message.body));
        if let Some(commit) = self.commits.iter_mut().find(|it| it.id == message.commit) {
            commit.open -= 1;
            commit.done = message.steps_done;
        }
    }

    /// Reports the commits at the front that are done.
    fn complete(&mut self, out: &mut Vec<Wish>) {
        while let Some(commit) = self.commits.front_mut() {
            commit.skip_syncs();
            if commit.open > 0 || commit.packed < commit.steps.len() {
                return;
            }
            let outcome = Outcome::Committed { steps_done: commit.steps.len(), fault: None };
            out.push(Wish::Done(Completion { id: commit.id, outcome }));
            self.commits.pop_front();
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
        let found = match wire::decode(body) {
            Ok(found) => found.header,
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
        self.fence(detail);
        let fault = self.fenced.clone();
        for commit in self.commits.drain(..) {
            out.extend(fault.clone().map(|fault| refused(commit.id, commit.done, fault)));
        }
    }

    fn fence(&mut self, detail: String) {
        let detail = format!("the stream has another writer: {detail}");
        self.fenced = Some(Fault { kind: FaultKind::Fenced, detail });
        self.messages.clear();
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

impl Pending {
    /// A sync asks for no message: what was acknowledged is synced.
    fn skip_syncs(&mut self) {
        while matches!(self.steps.get(self.packed), Some(Step::Sync { .. })) {
            self.packed += 1;
        }
    }

    fn fill(&mut self, packet: &mut Packet) {
        while let Some(step) = self.steps.get(self.packed) {
            let added = packet.add(step, self.packed_bytes);
            if added == 0 && !matches!(step, Step::Sync { .. }) {
                return;
            }
            self.packed_bytes += added;
            let is_whole = match step {
                Step::Write { bytes, .. } | Step::Manifest { bytes, .. } => {
                    self.packed_bytes == bytes.len()
                }
                Step::Sync { .. } => true,
            };
            if !is_whole {
                return;
            }
            self.packed += 1;
            self.packed_bytes = 0;
        }
    }
}

fn refused(id: CommandId, steps_done: usize, fault: Fault) -> Wish {
    Wish::Done(Completion { id, outcome: Outcome::Committed { steps_done, fault: Some(fault) } })
}

#[cfg(test)]
mod tests;
