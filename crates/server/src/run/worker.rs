//! A worker: an event queue, its connections, its shards. A thread drives it (`drive`).
//!
//! One turn: take what is ready, feed the shards, let mail flow, write each dirty connection once,
//! sleep until something happens. No connection owns a read buffer; the worker has one.

mod coming_and_going;
mod commands;
mod incoming;
mod reading;
mod work_pace;
mod writing;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use broker::{Answer, Mail, Numbers, Shard, ShardId, key_of};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use net::Stream;
use session::{NEVER, Outbox};
use slab::Slab;
use tokio::sync::oneshot;

use super::clock::Clock;
use super::gate::Seat;
use super::line_pace::LinePace;
use super::logs::Logs;
use super::mailbox::{Asked, Handover, Item, Mailbox, Pinned};
use super::reauthentication::Reauthentication;
use super::report;
use super::timing::Timing;
use crate::auth::bans::Lists;
use crate::life_cycle::LifeCycle;
use crate::memory;
use incoming::Incoming;
pub(super) use incoming::IncomingRoom;
use reading::BYTES_PER_TURN;
use work_pace::{UNITS_MEASURED_MIN, WorkPace};

/// The token of the waker. Connections count from 0; just below it are other workers (`drive`).
pub(super) const WAKER: Token = Token(usize::MAX);

const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Events of one turn; the rest follows with the next. What the first of them led to is written
/// when the last is dealt with.
const EVENTS_MAX: usize = 256;

/// Rounds of mail between the shards of this worker in one turn; the rest follows with the next.
const MAIL_ROUNDS_MAX: usize = 64;

/// The longest sleep: shards sweep once a second.
const SLEEP_MS_MAX: u64 = 1000;

struct Connection {
    stream: Stream,
    /// What its shard knows it by.
    number: u64,
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
    /// Present while more than a little of what it sent waits here.
    incoming: Option<Box<Incoming>>,
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
    pub(super) line_pace: Arc<LinePace>,
    pub(super) life_cycle: Arc<LifeCycle>,
    /// For packets under way.
    pub(super) incoming_room: IncomingRoom,
}

pub(super) struct Worker {
    poll: Poll,
    index: usize,
    mailbox: Arc<Mailbox>,
    mailboxes: Arc<[Arc<Mailbox>]>,
    /// Shard `n` lives on worker `n % workers`, as its shard `n / workers`.
    shards: Vec<Shard>,
    connections: Slab<Connection>,
    numbers: Numbers,
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
    /// As they were read again last.
    bans: Arc<Lists>,
    /// Connections that nobody needs any more.
    closing: VecDeque<usize>,
    /// Commands of operators, and those who wait for the answers to what has begun.
    asked: VecDeque<Asked>,
    askers: Slab<oneshot::Sender<Answer>>,
    reauthentication: Reauthentication,
    logs: Option<Logs>,
    turns: Arc<[Timing]>,
    work_pace: WorkPace,
    line_pace: Arc<LinePace>,
    life_cycle: Arc<LifeCycle>,
    incoming_room: IncomingRoom,
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
            numbers: Numbers::default(),
            buffer: vec![0; READ_BUFFER_BYTES].into(),
            now_ms: parts.clock.now_ms(),
            clock: parts.clock,
            unread: VecDeque::new(),
            bytes_left: 0,
            waiting: Waiting::default(),
            local_mail: Vec::new(),
            has_more_events: false,
            arrivals: VecDeque::new(),
            bans: Arc::default(),
            closing: VecDeque::new(),
            asked: VecDeque::new(),
            askers: Slab::new(),
            reauthentication: parts.reauthentication,
            logs: parts.logs,
            turns: parts.turns,
            work_pace: WorkPace::default(),
            line_pace: parts.line_pace,
            life_cycle: parts.life_cycle,
            incoming_room: parts.incoming_room,
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
        self.carry_out(Some(began));
        self.write_broadcasts();
        self.open_arrivals();
        self.close_some();
        self.answer_one();
        self.drive_logs();
        self.turns[self.index].note(began.elapsed());
    }

    /// A turn without a look at the sockets, without those who come and go, and without a portion
    /// of a broadcast: the lead makes several of these before it looks at the sockets again.
    pub(super) fn turn_for_mail(&mut self) {
        let began = Instant::now();
        self.now_ms = self.clock.ms_at(began);
        self.take_mail();
        self.carry_out(Some(began));
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
            && self.asked.is_empty()
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
        let logs = self.logs.as_ref().and_then(Logs::next_deadline_ms);
        let others = self.ends_at_ms.into_iter().chain(logs);
        let next_ms = shards.chain(others).fold(self.waiting.until_ms, u64::min);
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
            Item::Command(asked) => self.on_asked(*asked),
            Item::Publish(shard, message) => {
                self.shard(shard).on_publish_command(&message, now_ms);
            }
            Item::Access(rules) => {
                for shard in &mut self.shards {
                    shard.set_access(rules.clone());
                }
            }
            Item::Bans { listed, ends } => self.on_bans(listed, ends),
            Item::Disk(shard, completion) => self.shard(shard).on_disk(*completion, now_ms),
            Item::Pin(answer) => self.pin_logs(&answer),
            Item::Unpin => self.shards.iter_mut().for_each(Shard::unpin_log),
            Item::Purge => memory::purge_if_asked(),
            Item::MemoryLook => {
                self.shards.iter_mut().for_each(|shard| shard.on_memory_look(now_ms));
            }
            Item::Shutdown => {
                self.ends_at_ms = Some(now_ms + self.shutdown_grace_ms);
                self.asked.clear();
                for shard in &mut self.shards {
                    shard.on_shutdown(now_ms);
                }
            }
            Item::CloseLogs => self.shards.iter_mut().for_each(Shard::close_log),
        }
    }

    fn pin_logs(&mut self, answer: &Sender<Pinned>) {
        for shard in &mut self.shards {
            // Who asked may be gone; it takes its pin back all the same.
            let (segments, manifest) = shard.pin_log();
            let _ = answer.send(Pinned { shard: shard.id(), segments, manifest });
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

    fn take_pauses(&mut self, place: usize) {
        for (paused, until_ms) in self.shards[place].effects.pauses.drain(..) {
            let key = key_of(paused);
            if let Some(connection) = self.connections.get_mut(key)
                && connection.number == paused
                && matches!(connection.state, State::Open | State::Paused(NEVER))
            {
                connection.state = State::Paused(until_ms);
                if until_ms != NEVER {
                    self.waiting.add(key, until_ms);
                }
            }
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
            self.cut_dawdlers();
        }
        for place in 0..self.shards.len() {
            self.take_pauses(place);
        }
        for key in self.waiting.take_if_due(self.now_ms) {
            let Some(connection) = self.connections.get(key) else { continue };
            match connection.state {
                State::Paused(until_ms) if until_ms <= self.now_ms => self.go_on(key),
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

    /// The pause of a connection is over.
    fn go_on(&mut self, key: usize) {
        if !self.may_be_read(key) {
            return;
        }
        if let Some(connection) = self.connections.get_mut(key) {
            connection.state = State::Open;
        }
        self.give(key, 0);
        self.read_later(key);
    }

    /// Carries out the effects of the turn: mail first, so that others can start; then the sockets.
    /// `began`: what has been done since then was work for clients and mail, if that is known.
    fn carry_out(&mut self, began: Option<Instant>) {
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
        if let Some(began) = began {
            self.measure_work(began);
        }
        for place in 0..self.shards.len() {
            self.write_urgent(place);
            self.close_and_report(place);
            // An answer to a re-authentication.
            self.write_urgent(place);
            if !self.shards[place].effects.answers.is_empty() {
                self.give_answers(place);
            }
            self.shards[place].end_turn();
        }
        self.post();
    }

    /// How long did the work of this turn take? The next ones have as much as fits.
    fn measure_work(&mut self, began: Instant) {
        let used = self.shards.iter().map(|shard| u64::from(shard.turn_units_used())).sum();
        if used >= UNITS_MEASURED_MIN {
            let units = self.work_pace.units(used, began.elapsed(), self.shards.len());
            self.shards.iter_mut().for_each(|shard| shard.set_turn_units(units));
        }
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
            report::log(&event, &self.line_pace, self.now_ms);
            if let Some(message) = report::message(&event)
                && shard.shared().interest.shards(message.topic_bytes()).wants != 0
            {
                shard.on_publish_command(&message, self.now_ms);
            }
            self.life_cycle.on_event(&event, self.now_ms, |message| {
                shard.on_publish_command(&message, self.now_ms);
            });
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

#[cfg(test)]
mod tests;
