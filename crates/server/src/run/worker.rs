//! A worker: an event queue, its connections, its shards. A thread drives it (`drive`).
//!
//! One turn: take what is ready, feed the shards, let mail flow, write each dirty connection once,
//! sleep until something happens. No connection owns a read buffer; the worker has one.

mod coming_and_going;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use broker::{Mail, Shard, ShardId};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use net::{Read, Stream};
use session::{NEVER, Outbox};
use slab::Slab;

use super::clock::Clock;
use super::gate::Seat;
use super::logs::Logs;
use super::mailbox::{Handover, Held, Item, Mailbox};
use super::reauthentication::Reauthentication;
use super::report;
use super::timing::Timing;

/// The token of the waker. Connections count from 0; just below it are other workers (`drive`).
pub(super) const WAKER: Token = Token(usize::MAX);

const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Reads of one connection before the others get their turn, beside those of a large packet.
const READS_PER_TURN: usize = 1;

/// A turn that has been shorter goes on reading where there is more: a read of large messages is
/// only a few of them, and hardly worth a look at the sockets.
const TURN_MIN: Duration = Duration::from_micros(100);

/// What is read in one go from a connection that has just sent a large packet: enough to see how
/// large the next one is, and little to move to where it is gathered.
const LARGE_READ_BYTES: usize = 4 * 1024;

/// Bytes that are read in one turn, in either of its two parts, before those that send much have
/// to wait for the next. What they sent is written while the cache still has it, a subscriber that
/// many publish to does not run dry until all are read, and other workers, which wait until this
/// one has dealt with their mail, do not stand still meanwhile.
const BYTES_PER_TURN: usize = 256 * 1024;

/// Events of one turn; the rest follows with the next. What the first of them led to is written
/// when the last is dealt with.
const EVENTS_MAX: usize = 256;

/// Connections of a shard that get their part of a broadcast in one turn; the rest follows with the
/// next. A write takes some microseconds, and there may be many thousands.
const BROADCAST_WRITES_PER_TURN: usize = 64;

/// Slices of one write; the rest follows with the next.
const SLICES_MAX: usize = 64;

/// Rounds of mail between the shards of this worker in one turn; the rest follows with the next.
const MAIL_ROUNDS_MAX: usize = 64;

/// The longest sleep: shards sweep once a second.
const SLEEP_MS_MAX: u64 = 1000;

struct Connection {
    stream: Stream,
    /// The place of its shard in `Worker::shards`.
    shard: u16,
    slot: u32,
    state: State,
    /// A write took less than it was given: wait for a writable event.
    is_blocked: bool,
    /// It is among `Worker::unread`.
    is_unread: bool,
    /// A large packet is under way: it is read right to where its shard gathers it.
    gathers: bool,
    /// The last packet was a large one.
    sends_large: bool,
    /// The last read left something behind.
    sends_much: bool,
    _seat: Seat,
}

#[derive(Debug)]
enum State {
    Open,
    /// Read nothing before the time; [`NEVER`]: before the shard says so.
    Paused(u64),
    /// The shard is done with it; the client may still read its farewell until the time.
    Leaving {
        farewell: Box<Outbox>,
        until_ms: u64,
    },
    /// Nothing is read or written any more: the shard's `Close` is on its way, or the connection
    /// is among `Worker::closing`.
    Lost,
}

/// Connections that wait for a time: paused or leaving.
struct Waiting {
    keys: Vec<usize>,
    /// When the first of them has waited long enough, unless it waits no more.
    until_ms: u64,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { keys: Vec::new(), until_ms: NEVER }
    }
}

impl Waiting {
    fn add(&mut self, key: usize, until_ms: u64) {
        self.keys.push(key);
        self.until_ms = self.until_ms.min(until_ms);
    }

    /// All of them, once one has waited long enough: who still has to wait is to be added anew.
    fn take_if_due(&mut self, now_ms: u64) -> Vec<usize> {
        if now_ms < self.until_ms { Vec::new() } else { std::mem::take(self).keys }
    }
}

/// What a worker needs to start.
pub(super) struct WorkerParts {
    pub(super) poll: Poll,
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) index: usize,
    pub(super) shards: Vec<Shard>,
    pub(super) clock: Clock,
    pub(super) shutdown_grace_ms: u64,
    pub(super) reauthentication: Reauthentication,
    /// None: nothing is kept.
    pub(super) logs: Option<Logs>,
    /// Of all workers: how long their turns take.
    pub(super) turns: Arc<[Timing]>,
}

pub(super) struct Worker {
    poll: Poll,
    index: usize,
    mailbox: Arc<Mailbox>,
    mailboxes: Arc<[Arc<Mailbox>]>,
    /// Shard `n` lives on worker `n % workers`, as its shard `n / workers`.
    shards: Vec<Shard>,
    connections: Slab<Connection>,
    buffer: Box<[u8]>,
    clock: Clock,
    now_ms: u64,
    /// Connections with more to read than one turn gave them.
    unread: VecDeque<usize>,
    /// Bytes that may still be read in this part of the turn from those that send much.
    bytes_left: usize,
    waiting: Waiting,
    local_mail: Vec<(ShardId, Vec<Mail>)>,
    /// The last turn had as many events as one can have.
    has_more_events: bool,
    /// Admitted connections. They are opened between reads, because opening one may read another
    /// into the buffer.
    arrivals: VecDeque<Handover>,
    /// Connections that nobody needs any more.
    closing: VecDeque<usize>,
    reauthentication: Reauthentication,
    logs: Option<Logs>,
    turns: Arc<[Timing]>,
    shutdown_grace_ms: u64,
    /// When the shards are ticked at the latest.
    ticks_at_ms: u64,
    /// Set once the broker stops: when to give up on the last connections.
    ends_at_ms: Option<u64>,
}

impl Worker {
    pub(super) fn new(parts: WorkerParts) -> Self {
        let mut worker = Self {
            index: parts.index,
            mailbox: parts.mailboxes[parts.index].clone(),
            poll: parts.poll,
            mailboxes: parts.mailboxes,
            shards: parts.shards,
            connections: Slab::new(),
            buffer: vec![0; READ_BUFFER_BYTES].into(),
            now_ms: parts.clock.now_ms(),
            clock: parts.clock,
            unread: VecDeque::new(),
            bytes_left: 0,
            waiting: Waiting::default(),
            local_mail: Vec::new(),
            has_more_events: false,
            arrivals: VecDeque::new(),
            closing: VecDeque::new(),
            reauthentication: parts.reauthentication,
            logs: parts.logs,
            turns: parts.turns,
            shutdown_grace_ms: parts.shutdown_grace_ms,
            ticks_at_ms: 0,
            ends_at_ms: None,
        };
        // Opening the logs does not wait for the first event.
        worker.drive_logs();
        worker
    }

    /// One turn: what is ready, mail, what is due; then the effects. Who comes and who goes is
    /// last: in a storm of connections messages do not wait for them.
    pub(super) fn turn(&mut self, events: &Events) {
        let began = Instant::now();
        self.now_ms = self.clock.ms_at(began);
        self.take_mail();
        self.bytes_left = BYTES_PER_TURN;
        for event in events {
            if event.token() != WAKER {
                self.on_event(event);
            }
        }
        // An event queue tells of each change once: what did not fit is still there.
        self.has_more_events = events.iter().count() == EVENTS_MAX;
        self.read_on(began);
        self.on_time();
        self.carry_out();
        self.write_broadcasts();
        self.open_arrivals();
        self.close_some();
        self.drive_logs();
        self.turns[self.index].note(began.elapsed());
    }

    /// A turn without a look at the sockets, without those who come and go, and without a portion
    /// of a broadcast: the lead makes several of these before it looks at the sockets again.
    pub(super) fn turn_for_mail(&mut self) {
        let began = Instant::now();
        self.now_ms = self.clock.ms_at(began);
        self.take_mail();
        self.carry_out();
        self.drive_logs();
        self.turns[self.index].note(began.elapsed());
    }

    fn drive_logs(&mut self) {
        if let Some(logs) = &mut self.logs {
            logs.carry_out(&mut self.shards, self.now_ms);
        }
    }

    pub(super) fn is_over(&mut self) -> bool {
        let Some(end) = self.ends_at_ms else { return false };
        let is_quiet = self.connections.is_empty();
        let has_ended = match &mut self.logs {
            Some(logs) if is_quiet => {
                logs.tell_quiet();
                logs.have_ended()
            }
            Some(_) => false,
            None => is_quiet,
        };
        has_ended || self.now_ms >= end
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.ends_at_ms.is_some()
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn queue(&mut self) -> &mut Poll {
        &mut self.poll
    }

    /// From now on the event queue of this worker tells of the other's, too, by a token of which
    /// this worker has no connection.
    pub(super) fn watch_queue(&self, other: &Self, token: Token) -> io::Result<()> {
        let queue = other.poll.as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&queue), token, Interest::READABLE)
    }

    pub(super) fn forget_queue(&self, other: &Self) -> io::Result<()> {
        self.poll.registry().deregister(&mut SourceFd(&other.poll.as_raw_fd()))
    }

    pub(super) fn has_mail(&self) -> bool {
        self.mailbox.has_items()
    }

    /// Sleeps until there is something to do; says how long.
    pub(super) fn sleep(&mut self, events: &mut Events) -> io::Result<Duration> {
        let idle_ms = self.fall_asleep();
        let slept = poll(&mut self.poll, events, idle_ms);
        self.wake_up();
        slept
    }

    /// Announces sleep, and says for how many milliseconds there is nothing to do.
    pub(super) fn fall_asleep(&self) -> u64 {
        let may_sleep = !self.has_leftovers() && self.mailbox.fall_asleep();
        if may_sleep { self.idle_ms() } else { 0 }
    }

    /// Is there something to do beside what its event queue may have?
    pub(super) fn has_work(&self) -> bool {
        self.has_leftovers() || self.has_mail() || self.idle_ms() == 0
    }

    fn has_leftovers(&self) -> bool {
        let is_done = self.unread.is_empty()
            && self.arrivals.is_empty()
            && self.closing.is_empty()
            && self.local_mail.is_empty()
            && !self.has_more_events
            && !self.has_broadcast();
        !is_done
    }

    pub(super) fn wake_up(&self) {
        self.mailbox.wake_up();
    }

    /// How long nothing is due.
    fn idle_ms(&self) -> u64 {
        let now_ms = self.clock.now_ms();
        let shards = self.shards.iter().map(Shard::next_deadline_ms);
        let next_ms = shards.chain(self.ends_at_ms).fold(self.waiting.until_ms, u64::min);
        next_ms.saturating_sub(now_ms).min(SLEEP_MS_MAX)
    }

    fn take_mail(&mut self) {
        if !self.mailbox.has_items() {
            return;
        }
        for item in self.mailbox.take() {
            self.on_item(item);
        }
    }

    fn on_item(&mut self, item: Item) {
        let now_ms = self.now_ms;
        match item {
            Item::Mail(shard, mails) => {
                self.shard(shard).on_batch(mails, now_ms);
            }
            Item::Connection(handover) => self.arrivals.push_back(*handover),
            Item::Publish(shard, message) => {
                self.shard(shard).on_publish_command(&message, now_ms);
            }
            Item::Access(access) => {
                for shard in &mut self.shards {
                    shard.set_access(access.clone());
                }
            }
            Item::Disk(shard, completion) => self.shard(shard).on_disk(*completion, now_ms),
            Item::Hold(answer) => self.hold_logs(&answer),
            Item::Release => self.shards.iter_mut().for_each(Shard::unhold_log),
            Item::Shutdown => {
                self.ends_at_ms = Some(now_ms + self.shutdown_grace_ms);
                for shard in &mut self.shards {
                    shard.on_shutdown(now_ms);
                }
            }
            Item::CloseLogs => self.shards.iter_mut().for_each(Shard::close_log),
        }
    }

    fn hold_logs(&mut self, answer: &Sender<Held>) {
        for shard in &mut self.shards {
            // Who asked may be gone; it takes its hold back all the same.
            let _ = answer.send(Held { shard: shard.id(), segments: shard.hold_log() });
        }
    }

    fn shard(&mut self, shard: ShardId) -> &mut Shard {
        let place = usize::from(shard) / self.mailboxes.len();
        &mut self.shards[place]
    }

    fn on_event(&mut self, event: &Event) {
        let key = event.token().0;
        let Some(connection) = self.connections.get_mut(key) else { return };
        if event.is_writable() && (connection.is_blocked || connection.stream.wants_write()) {
            connection.is_blocked = false;
            self.write(key);
        }
        let is_ending = event.is_read_closed() || event.is_error();
        if event.is_readable() || is_ending {
            self.read(key, is_ending);
        }
    }

    /// Goes on with connections that had more to read than one turn gave them.
    fn read_on(&mut self, began: Instant) {
        self.bytes_left = BYTES_PER_TURN;
        let mut not_yet = self.unread.len();
        while not_yet > 0 || began.elapsed() < TURN_MIN {
            not_yet = not_yet.saturating_sub(1);
            if self.bytes_left == 0 {
                // Those that are left come first in the next turn.
                return;
            }
            let Some(key) = self.unread.pop_front() else { return };
            if let Some(connection) = self.connections.get_mut(key) {
                connection.is_unread = false;
                self.read(key, true);
            }
        }
    }

    fn read_later(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !std::mem::replace(&mut connection.is_unread, true) {
            self.unread.push_back(key);
        }
    }

    /// Reads what is there. `to_the_end`: do not take a short read for the last, because no event
    /// will tell of what comes behind it (the end of the stream came with this one).
    fn read(&mut self, key: usize, to_the_end: bool) {
        if !self.gather(key, to_the_end) {
            return;
        }
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(key) else { return };
            match connection.state {
                State::Open | State::Leaving { .. } => {}
                State::Paused(_) | State::Lost => return,
            }
            if connection.sends_much && self.bytes_left == 0 {
                return self.read_later(key);
            }
            let room = if connection.sends_large { LARGE_READ_BYTES } else { self.buffer.len() };
            let read = connection.stream.read(&mut self.buffer[..room]);
            match read {
                Ok(Read::Bytes(count)) => {
                    let is_drained = connection.stream.is_drained(count, room);
                    connection.sends_much = !is_drained;
                    self.bytes_left = self.bytes_left.saturating_sub(count);
                    if matches!(connection.state, State::Open) {
                        self.feed(key, count);
                    }
                    if is_drained && !to_the_end {
                        return self.write_own(key);
                    }
                }
                Ok(Read::WouldBlock) => return self.write_own(key),
                Ok(Read::Closed) | Err(_) => return self.on_lost(key),
            }
        }
        if self.gather(key, to_the_end) {
            self.read_later(key);
        }
    }

    /// Reads what a large packet lacks that is under way, right to where it is gathered. False:
    /// there is nothing more to read for now.
    fn gather(&mut self, key: usize, to_the_end: bool) -> bool {
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return false };
            if !connection.gathers || !matches!(connection.state, State::Open) {
                return true;
            }
            if self.bytes_left == 0 {
                self.read_later(key);
                return false;
            }
            let (place, slot) = (usize::from(connection.shard), connection.slot);
            let inbox = self.shards[place].inbox(slot, key as u32);
            let Some(inbox) = inbox.filter(|inbox| inbox.len() < inbox.capacity()) else {
                connection.gathers = false;
                return true;
            };
            let room = inbox.capacity() - inbox.len();
            match connection.stream.read_onto(inbox) {
                Ok(Read::Bytes(count)) => {
                    self.bytes_left = self.bytes_left.saturating_sub(count);
                    self.feed(key, 0);
                    if count < room && !to_the_end {
                        return false;
                    }
                }
                Ok(Read::WouldBlock) => return false,
                Ok(Read::Closed) | Err(_) => {
                    self.on_lost(key);
                    return false;
                }
            }
        }
    }

    /// Gives the first `count` bytes of the buffer to the shard of the connection; none, if they
    /// were read to where it gathers them.
    fn feed(&mut self, key: usize, count: usize) {
        // A publish that follows a SUBACK on another worker must find that subscription: mail that
        // was sent before these bytes were read is taken before they are looked at.
        self.take_mail();
        self.give(key, count);
    }

    fn give(&mut self, key: usize, count: usize) {
        let Some(connection) = self.connections.get(key) else { return };
        let (place, slot) = (usize::from(connection.shard), connection.slot);
        let shard = &mut self.shards[place];
        let gathers = shard.on_bytes(slot, key as u32, &self.buffer[..count], self.now_ms);
        self.take_pauses(place);
        self.note_gathers(key, gathers, count);
    }

    /// Of the last `count` bytes a large packet is under way, or not.
    fn note_gathers(&mut self, key: usize, gathers: bool, count: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.gathers = gathers && !connection.stream.has_layers();
        if count > 0 {
            connection.sends_large = connection.gathers;
        }
    }

    fn take_pauses(&mut self, place: usize) {
        for (paused, until_ms) in self.shards[place].effects.pauses.drain(..) {
            let key = paused as usize;
            if let Some(connection) = self.connections.get_mut(key)
                && matches!(connection.state, State::Open | State::Paused(NEVER))
            {
                connection.state = State::Paused(until_ms);
                if until_ms != NEVER {
                    self.waiting.add(key, until_ms);
                }
            }
        }
    }

    /// Sends what the transport itself has to say, such as a WebSocket pong.
    fn write_own(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.stream.wants_write() && connection.stream.flush().is_err() {
            self.on_lost(key);
        }
    }

    /// What is due: shards' timers, pauses, farewells.
    fn on_time(&mut self) {
        for shard in &mut self.shards {
            if shard.next_deadline_ms() <= self.now_ms || self.ticks_at_ms <= self.now_ms {
                shard.on_tick(self.now_ms);
            }
        }
        if self.ticks_at_ms <= self.now_ms {
            self.ticks_at_ms = self.now_ms + SLEEP_MS_MAX;
        }
        for place in 0..self.shards.len() {
            self.take_pauses(place);
        }
        for key in self.waiting.take_if_due(self.now_ms) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            match connection.state {
                State::Paused(until_ms) if until_ms <= self.now_ms => {
                    connection.state = State::Open;
                    self.give(key, 0);
                    self.read_later(key);
                }
                State::Leaving { until_ms, .. } if until_ms <= self.now_ms => {
                    self.close_later(key);
                }
                State::Paused(until_ms) | State::Leaving { until_ms, .. } => {
                    self.waiting.add(key, until_ms);
                }
                State::Open | State::Lost => {}
            }
        }
    }

    /// Carries out the effects of the turn: mail first, so that others can start; then the sockets.
    fn carry_out(&mut self) {
        for _ in 0..MAIL_ROUNDS_MAX {
            self.post();
            if self.local_mail.is_empty() {
                break;
            }
            for (shard, mails) in std::mem::take(&mut self.local_mail) {
                let now_ms = self.now_ms;
                self.shard(shard).on_batch(mails, now_ms);
            }
        }
        for place in 0..self.shards.len() {
            self.write_urgent(place);
            self.close_and_report(place);
            // An answer to a re-authentication.
            self.write_urgent(place);
            self.shards[place].end_turn();
        }
        self.post();
    }

    /// Writing makes room, and room may make a connection dirty again.
    fn write_urgent(&mut self, place: usize) {
        while let Some((_, connection)) = self.shards[place].take_urgent() {
            self.write(connection as usize);
        }
    }

    /// A portion of what broadcasts have left over.
    fn write_broadcasts(&mut self) {
        if !self.has_broadcast() {
            return;
        }
        for place in 0..self.shards.len() {
            for _ in 0..BROADCAST_WRITES_PER_TURN {
                let Some((_, connection)) = self.shards[place].take_dirty() else { break };
                self.write(connection as usize);
            }
        }
        self.carry_out();
    }

    fn has_broadcast(&self) -> bool {
        self.shards.iter().any(Shard::has_broadcast)
    }

    fn post(&mut self) {
        let workers = self.mailboxes.len();
        for shard in &mut self.shards {
            for to in 0..shard.effects.mail.len() {
                let mails = shard.take_batch(to as ShardId);
                if mails.is_empty() {
                    continue;
                }
                let mailbox = &self.mailboxes[to % workers];
                if Arc::ptr_eq(mailbox, &self.mailbox) {
                    self.local_mail.push((to as ShardId, mails));
                } else {
                    mailbox.put(Item::Mail(to as ShardId, mails));
                }
            }
        }
    }

    fn close_and_report(&mut self, place: usize) {
        self.take_pauses(place);
        let shard = &mut self.shards[place];
        let shard_id = shard.id();
        let closes = std::mem::take(&mut shard.effects.closes);
        for event in std::mem::take(&mut shard.effects.events) {
            report::log(&event);
            if let Some(message) = report::message(&event)
                && shard.shared().interest.shards(message.topic_bytes()).wants != 0
            {
                shard.on_publish_command(&message, self.now_ms);
            }
        }
        for ask in std::mem::take(&mut shard.effects.reauthentications) {
            let answer = self.reauthentication.answer(shard_id, &ask);
            shard.on_reauthenticated(ask.slot, ask.connection, &answer, self.now_ms);
        }
        for close in closes {
            self.reauthentication.forget(shard_id, close.slot, close.connection);
            self.close(close);
        }
    }

    /// Writes what a connection is owed, as far as it takes it.
    fn write(&mut self, key: usize) {
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if connection.is_blocked || matches!(connection.state, State::Lost) {
                return;
            }
            let (place, slot) = (usize::from(connection.shard), connection.slot);
            let written = match &mut connection.state {
                State::Leaving { farewell, .. } => write_outbox(&mut connection.stream, farewell),
                _ => match self.shards[place].outbox(slot, key as u32) {
                    Some(outbox) => write_outbox(&mut connection.stream, outbox),
                    None => return,
                },
            };
            let Ok((written, wanted)) = written else { return self.on_lost(key) };
            connection.is_blocked = written < wanted;
            if let State::Leaving { farewell, .. } = &mut connection.state {
                farewell.advance(written);
                if farewell.is_empty() {
                    let _ = connection.stream.shutdown();
                    return;
                }
            } else if written > 0 {
                self.shards[place].on_written(slot, key as u32, written, self.now_ms);
            }
            if written == 0 {
                return;
            }
        }
    }
}

pub(super) fn events() -> Events {
    Events::with_capacity(EVENTS_MAX)
}

/// Waits for events, so many milliseconds at most; says how long it slept.
pub(super) fn poll(poll: &mut Poll, events: &mut Events, idle_ms: u64) -> io::Result<Duration> {
    let began = (idle_ms > 0).then(Instant::now);
    match poll.poll(events, Some(Duration::from_millis(idle_ms))) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(began.map_or(Duration::ZERO, |began| began.elapsed())),
    }
}

/// One write call. Returns the bytes written and those offered.
fn write_outbox(stream: &mut Stream, outbox: &Outbox) -> io::Result<(usize, usize)> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut count = 0;
    let mut wanted = 0;
    for (place, slice) in slices.iter_mut().zip(outbox.slices()) {
        wanted += slice.len();
        *place = IoSlice::new(slice);
        count += 1;
    }
    if wanted == 0 {
        return Ok((0, 0));
    }
    Ok((stream.write(&slices[..count])?, wanted))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::atomic::AtomicU32;

    use broker::{ConnectRequest, Counter, Metrics, Settings};
    use codec::Version;
    use net::{ListenOptions, Listener, Progress};

    use super::coming_and_going::{ARRIVALS_PER_TURN, CLOSINGS_PER_TURN};
    use super::*;
    use crate::config::CertificateIdentity;
    use crate::run::gate::{Entrance, Gate};
    use crate::run::workers::tests::{idle_workers, idle_workers_with};

    fn request(client_id: String) -> ConnectRequest {
        ConnectRequest {
            version: Version::V5,
            clean_start: true,
            keep_alive_secs: 0,
            client_id: client_id.into(),
            is_assigned: false,
            username: None,
            will: None,
            session_expiry_secs: 0,
            receive_max: 1,
            packet_bytes_max: u32::MAX,
            alias_max: 0,
            problem_info: false,
            response_info: false,
            auth_method: None,
            auth_data: None,
            limits: Arc::default(),
            peer: Box::default(),
        }
    }

    /// A listener, and who may come in.
    struct Entry {
        listener: Listener,
        entrance: Arc<Entrance>,
    }

    impl Entry {
        fn open() -> Self {
            let url = "tcp://127.0.0.1:0".parse().unwrap();
            let listener = Listener::bind(&url, &ListenOptions::default()).unwrap();
            let entrance = Arc::new(Entrance {
                name: "test".into(),
                limits: Arc::default(),
                allow_anonymous: true,
                identity: CertificateIdentity::None,
                connections_max: 0,
                connections: AtomicU32::new(0),
                gate: Arc::new(Gate::new(0)),
            });
            Self { listener, entrance }
        }

        /// A client's end of a connection, and the broker's.
        fn connect(&self, shard: ShardId, client_id: String) -> (TcpStream, Handover) {
            let client = TcpStream::connect(self.listener.local_address().unwrap()).unwrap();
            let mut handshake = self.listener.accept().unwrap().expect("a connection waits");
            let Ok(Progress::Done(stream, _)) = handshake.advance(&mut [0; 16]) else {
                panic!("plain TCP has nothing to negotiate");
            };
            let seat = self.entrance.sit().unwrap();
            let request = request(client_id);
            (client, Handover { stream, shard, request, rest: Vec::new(), seat })
        }
    }

    #[test]
    fn a_storm_of_connections_is_opened_over_several_turns() {
        let (mut workers, mailboxes) = idle_workers(1);
        let entry = Entry::open();
        let mut clients = Vec::new();
        for number in 0..ARRIVALS_PER_TURN + 1 {
            let (client, handover) = entry.connect(0, format!("client-{number}"));
            clients.push(client);
            mailboxes[0].put(Item::Connection(Box::new(handover)));
        }
        let nothing = events();
        workers[0].turn(&nothing);
        assert_eq!(workers[0].connections.len(), ARRIVALS_PER_TURN);
        assert!(workers[0].has_work(), "one more is left");
        workers[0].turn(&nothing);
        assert_eq!(workers[0].connections.len(), ARRIVALS_PER_TURN + 1);
    }

    #[test]
    fn a_storm_of_farewells_is_closed_over_several_turns() {
        let (mut workers, mailboxes) = idle_workers(1);
        let entry = Entry::open();
        let count = CLOSINGS_PER_TURN * 2 + 1;
        let mut clients: Vec<_> = (0..count)
            .map(|number| {
                let (client, handover) = entry.connect(0, format!("client-{number}"));
                mailboxes[0].put(Item::Connection(Box::new(handover)));
                client
            })
            .collect();
        drive_until(&mut workers[0], |worker| worker.connections.len() == count);
        for client in &mut clients {
            client.write_all(b"\xe0\x00").unwrap();
        }
        let mut ready = events();
        let mut turns_that_closed = 0;
        while !workers[0].connections.is_empty() {
            let before = workers[0].connections.len();
            poll(workers[0].queue(), &mut ready, 1).unwrap();
            workers[0].turn(&ready);
            let closed = before - workers[0].connections.len();
            assert!(closed <= CLOSINGS_PER_TURN);
            turns_that_closed += usize::from(closed > 0);
            assert!(workers[0].closing.is_empty() || workers[0].has_leftovers());
        }
        assert!(turns_that_closed > 2);
        for mut client in clients {
            assert!(client.read_to_end(&mut Vec::new()).is_ok());
        }
    }

    #[test]
    fn mail_between_workers_opens_no_connections() {
        let (mut workers, mailboxes) = idle_workers(1);
        let entry = Entry::open();
        let (_client, handover) = entry.connect(0, "client".into());
        mailboxes[0].put(Item::Connection(Box::new(handover)));
        workers[0].turn_for_mail();
        assert!(!workers[0].has_mail() && workers[0].connections.is_empty());
        assert!(workers[0].has_work());
        workers[0].turn(&events());
        assert_eq!(workers[0].connections.len(), 1);
    }

    #[test]
    fn a_worker_sleeps_until_the_first_of_its_pauses_is_over() {
        let (mut workers, mailboxes) = idle_workers(1);
        let worker = &mut workers[0];
        let entry = Entry::open();
        let _clients: Vec<_> = (0..3)
            .map(|number| {
                let (client, handover) = entry.connect(0, format!("client-{number}"));
                mailboxes[0].put(Item::Connection(Box::new(handover)));
                client
            })
            .collect();
        drive_until(worker, |worker| worker.connections.len() == 3);
        let until_ms = |ms| worker.now_ms + ms;
        let pauses = [(0, until_ms(60_000)), (1, until_ms(30_000)), (2, NEVER)];
        worker.shards[0].effects.pauses.extend(pauses);
        worker.take_pauses(0);
        assert_eq!(worker.waiting.until_ms, pauses[1].1);
        worker.now_ms = pauses[1].1 - 1;
        worker.on_time();
        assert!(matches!(worker.connections[1].state, State::Paused(_)));
        worker.now_ms = pauses[1].1;
        worker.on_time();
        assert!(matches!(worker.connections[1].state, State::Open));
        assert_eq!((worker.waiting.until_ms, worker.waiting.keys.len()), (pauses[0].1, 1));
    }

    #[test]
    fn a_turn_for_mail_forgets_no_events_that_did_not_fit() {
        let (mut workers, _) = idle_workers(1);
        let nothing = events();
        workers[0].turn(&nothing);
        workers[0].has_more_events = true;
        workers[0].turn_for_mail();
        assert_eq!(workers[0].fall_asleep(), 0);
        workers[0].turn(&nothing);
        assert_ne!(workers[0].fall_asleep(), 0);
    }

    /// Turns of a worker until something is so.
    fn drive_until(worker: &mut Worker, is_so: impl Fn(&Worker) -> bool) {
        let mut ready = events();
        while !is_so(worker) {
            poll(worker.queue(), &mut ready, 1).unwrap();
            worker.turn(&ready);
        }
    }

    fn count(worker: &Worker, counter: impl Fn(&Metrics) -> &Counter) -> u64 {
        worker.shards[0].shared().total(counter)
    }

    #[test]
    fn when_much_is_read_who_sends_more_waits_for_the_next_turn_and_who_sends_little_does_not() {
        const ROOM: usize = 1024;
        let publish = [b"\x30\x80\x02\x00\x01t\x00".as_slice(), &[7; 252]].concat();
        let (mut workers, mailboxes) = idle_workers(1);
        let worker = &mut workers[0];
        let entry = Entry::open();
        let mut clients = ["much", "little"].map(|name| {
            let (client, handover) = entry.connect(0, name.into());
            mailboxes[0].put(Item::Connection(Box::new(handover)));
            client
        });
        drive_until(worker, |worker| worker.connections.len() == 2);
        let taken = |worker: &Worker| count(worker, |m| &m.publishes_received);
        // Connections are numbered in the order in which they are opened.
        let [much, little] = [0, 1];
        worker.buffer = vec![0; ROOM].into();
        worker.bytes_left = ROOM;

        clients[0].write_all(&publish.repeat(8)).unwrap();
        while taken(worker) == 0 {
            worker.read(much, false);
        }
        assert_eq!((taken(worker), worker.bytes_left), (3, 0));
        worker.read(much, false);
        assert_eq!(taken(worker), 3, "it waits");
        clients[1].write_all(&publish).unwrap();
        while taken(worker) < 4 {
            worker.read(little, false);
        }
        assert!(worker.has_work(), "there is more to read");
        drive_until(worker, |worker| taken(worker) == 9);
    }

    #[test]
    fn a_broadcast_is_written_over_several_turns() {
        let (mut workers, mailboxes) = idle_workers(1);
        let entry = Entry::open();
        let crowd = BROADCAST_WRITES_PER_TURN.max(broker::BROADCAST_MIN) + 1;
        let clients: Vec<_> = (0..crowd)
            .map(|number| {
                let (client, mut handover) = entry.connect(0, format!("client-{number}"));
                handover.rest = b"\x82\x07\x00\x01\x00\x00\x01t\x00".to_vec();
                mailboxes[0].put(Item::Connection(Box::new(handover)));
                client
            })
            .collect();
        drive_until(&mut workers[0], |worker| {
            count(worker, |m| &m.subscriptions) == crowd as u64 && !worker.has_work()
        });
        (&clients[0]).write_all(b"\x30\x05\x00\x01t\x00x").unwrap();
        drive_until(&mut workers[0], |worker| count(worker, |m| &m.publishes_received) == 1);
        let mut turns = 1;
        while workers[0].has_broadcast() {
            assert!(workers[0].has_work());
            workers[0].turn(&events());
            turns += 1;
        }
        assert_eq!(turns, crowd.div_ceil(BROADCAST_WRITES_PER_TURN));
        for mut client in clients {
            let mut received = Vec::new();
            while !received.ends_with(b"t\x00x") {
                let mut some = [0; 64];
                let count = client.read(&mut some).unwrap();
                received.extend_from_slice(&some[..count]);
            }
        }
    }

    #[test]
    fn a_publisher_is_not_read_while_much_of_its_mail_lies_before_a_busy_worker() {
        /// Less in all than an outbox takes, so that nothing is dropped whoever reads when.
        const MESSAGES: u64 = 1500;
        let settings = Settings { mail_bytes_max: 64 * 1024, ..Settings::default() };
        let (mut workers, mailboxes) = idle_workers_with(2, settings);
        let entry = Entry::open();
        let mut clients = [1, 0].map(|shard| {
            let (client, handover) = entry.connect(shard, format!("client-{shard}"));
            mailboxes[usize::from(shard)].put(Item::Connection(Box::new(handover)));
            client
        });
        clients[0].write_all(b"\x82\x07\x00\x01\x00\x00\x01t\x00").unwrap();
        drive_until(&mut workers[1], |worker| count(worker, |m| &m.subscriptions) == 1);
        let [mut subscriber, mut publisher] = clients;
        let publishing = std::thread::spawn(move || {
            let message = [b"\x30\x84\x04\x00\x01t\x00", [7; 512].as_slice()].concat();
            publisher.write_all(&message.repeat(MESSAGES as usize)).unwrap();
            publisher
        });
        let reading = std::thread::spawn(move || {
            let mut received = Vec::new();
            subscriber.read_to_end(&mut received).unwrap();
            received.iter().filter(|byte| **byte == 7).count() as u64
        });

        // The other worker does nothing, and the publisher is not read for long.
        drive_until(&mut workers[0], |worker| count(worker, |m| &m.mail_waits) == 1);
        let taken = count(&workers[0], |m| &m.publishes_received);
        let nothing = events();
        (0..20).for_each(|_| workers[0].turn(&nothing));
        assert_eq!(count(&workers[0], |m| &m.publishes_received), taken);
        assert!(taken * 512 < 64 * 1024, "{taken} messages are more than the limit");
        assert_eq!(workers[0].fall_asleep(), SLEEP_MS_MAX, "and it waits without being busy");
        workers[0].wake_up();

        let mut ready = events();
        while count(&workers[0], |m| &m.publishes_sent) < MESSAGES {
            for worker in &mut workers {
                poll(worker.queue(), &mut ready, 0).unwrap();
                worker.turn(&ready);
            }
        }
        let publisher = publishing.join().unwrap();
        mailboxes[1].put(Item::Shutdown);
        drive_until(&mut workers[1], |worker| worker.connections.is_empty());
        assert_eq!(reading.join().unwrap(), MESSAGES * 512);
        drop(publisher);
    }
}
