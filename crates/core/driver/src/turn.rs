//! The driver of some shards: their connections, and what a turn does with both.
//!
//! One turn: take what is ready, feed the shards, let mail flow, write each dirty connection once.
//! No connection owns a read buffer; the driver has one. It knows sockets, clocks, disks and other
//! drivers by their interfaces only ([`Host`], [`Socket`], [`Mailbox`]).

mod arrivals;
mod coming_and_going;
mod commands;
mod incoming;
mod reading;
mod work_pace;
mod writing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Homes, Mail, Numbers, Shard, ShardId, key_of};
use session::{NEVER, Outbox};
use slab::Slab;

use crate::host::Host;
use crate::mailbox::{Asked, Item, Mailbox};
use crate::shards::Shards;
use crate::socket::Socket;
use arrivals::Arrivals;
use incoming::Incoming;
pub use incoming::IncomingRoom;
use reading::BYTES_PER_TURN;
use work_pace::{UNITS_MEASURED_MIN, WorkPace};

const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Rounds of mail between the shards of this driver in one turn; the rest follows with the next.
const MAIL_ROUNDS_MAX: usize = 64;

/// Rounds of writes of journals, and of what comes of them, in one turn; the rest follows with the
/// next.
const JOURNAL_ROUNDS_MAX: usize = 2;

/// The longest sleep: shards sweep once a second.
pub const SLEEP_MS_MAX: u64 = 1000;

/// Longer than this between two looks at the sockets, and the process stood still (stopped by a
/// signal, starved, suspended): a driver sleeps no longer than [`SLEEP_MS_MAX`].
const STANDSTILL_MS: u64 = SLEEP_MS_MAX + SLEEP_MS_MAX / 4;

/// More of them in a row are no standstills.
const STANDSTILLS_MAX: u8 = 8;

/// How long timers may wait after a standstill until all that has come meanwhile is looked at.
const UNHEARD_MS_MAX: u64 = 2000;

/// What has become of a socket since the last turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Of the connection, as its socket was given to be watched.
    pub key: usize,
    pub is_readable: bool,
    pub is_writable: bool,
    /// The peer sends no more, or the connection is lost.
    pub is_ending: bool,
}

struct Connection<H: Host> {
    socket: H::Socket,
    /// What its shard knows it by.
    number: u64,
    /// The place of its shard in `Driver::shards`.
    shard: u16,
    slot: u32,
    state: State,
    /// It is not read before: the latest word of its shard. [`NEVER`]: before another one. None:
    /// it is read.
    paused_until_ms: Option<u64>,
    /// It is among `Driver::waiting`.
    is_waiting: bool,
    /// A write took less than it was given: wait for a writable event.
    is_blocked: bool,
    /// It is among `Driver::unread`.
    is_unread: bool,
    /// A large packet is under way: it is read right to where its shard gathers it.
    gathers: bool,
    /// The last packet was a large one.
    sends_large: bool,
    /// The last read left something behind.
    sends_much: bool,
    /// Present while more than a little of what it sent waits here.
    incoming: Option<Box<Incoming>>,
    _permit: H::Permit,
}

impl<H: Host> Connection<H> {
    /// May packets of the client be read now?
    const fn is_read(&self) -> bool {
        matches!(self.state, State::Open) && self.paused_until_ms.is_none()
    }
}

#[derive(Debug)]
enum State {
    Open,
    /// The shard is done with it; the client may still read its farewell until the time.
    Leaving {
        farewell: Box<Outbox>,
        until_ms: u64,
    },
    /// Nothing is read or written any more: the shard's `Close` is on its way, or the connection
    /// is among `Driver::closing`.
    Lost,
}

/// Connections that wait for a time: not to be read before, or leaving. Each once.
struct TimedConnections {
    keys: Vec<usize>,
    /// When the first of them has waited long enough, unless it waits no more.
    until_ms: u64,
}

impl Default for TimedConnections {
    fn default() -> Self {
        Self { keys: Vec::new(), until_ms: NEVER }
    }
}

impl TimedConnections {
    /// `is_waiting` is that of the connection.
    fn add(&mut self, key: usize, is_waiting: &mut bool, until_ms: u64) {
        if !std::mem::replace(is_waiting, true) {
            self.keys.push(key);
        }
        self.until_ms = self.until_ms.min(until_ms);
    }

    /// All of them, once one has waited long enough: who still has to wait is to be added anew.
    fn take_if_due(&mut self, now_ms: u64) -> Vec<usize> {
        if now_ms < self.until_ms { Vec::new() } else { std::mem::take(self).keys }
    }
}

/// What a driver needs to start.
pub struct DriverParts<H: Host> {
    pub host: H,
    pub mailboxes: Arc<[Arc<Mailbox<H>>]>,
    /// Which of them is its own.
    pub index: usize,
    pub shards: Vec<Shard>,
    pub shutdown_grace_ms: u64,
    /// For packets under way.
    pub incoming_room: IncomingRoom,
}

pub struct Driver<H: Host> {
    host: H,
    index: usize,
    mailbox: Arc<Mailbox<H>>,
    mailboxes: Arc<[Arc<Mailbox<H>>]>,
    /// Shard `n` lives on driver `n % drivers`, as its shard `n / drivers`.
    shards: Shards,
    /// Of all drivers: mail for others is for other cells.
    cell_shards: ShardId,
    connections: Slab<Connection<H>>,
    numbers: Numbers,
    buffer: Box<[u8]>,
    now_ms: u64,
    /// Connections with more to read than one turn gave them.
    unread: VecDeque<usize>,
    /// Bytes that may still be read in this part of the turn from those that send much.
    bytes_left: usize,
    waiting: TimedConnections,
    local_mail: Vec<(ShardId, Vec<Mail>)>,
    /// The last turn did not get all that was ready.
    has_more_ready: bool,
    /// What came of the last writes in place is still to be handed to the journals.
    has_journal_work: bool,
    /// Admitted connections. They are opened between reads, because opening one may read another
    /// into the buffer.
    arrivals: Arrivals<H>,
    /// Connections that nobody needs any more.
    closing: VecDeque<usize>,
    /// Commands of operators, and those who wait for the answers to what has begun.
    asked: VecDeque<Asked<H::Asker>>,
    askers: Slab<H::Asker>,
    work_pace: WorkPace,
    /// When the last turn ended.
    ended: Instant,
    incoming_room: IncomingRoom,
    shutdown_grace_ms: u64,
    /// When the shards are ticked at the latest.
    ticks_at_ms: u64,
    /// When the last turn with a look at the sockets was, and since when there is more to look at
    /// than a turn has.
    looked_ms: u64,
    unheard_since_ms: Option<u64>,
    /// So many turns in a row began a standstill after the one before.
    standstills: u8,
    /// Set once the broker stops: when to give up on the last connections.
    ends_at_ms: Option<u64>,
}

impl<H: Host> Driver<H> {
    pub fn new(parts: DriverParts<H>) -> Self {
        let now = parts.host.now();
        let homes = parts.shards.first().map(|shard| shard.shared().homes);
        let mut driver = Self {
            cell_shards: homes.map_or(ShardId::MAX, Homes::shards),
            index: parts.index,
            mailbox: parts.mailboxes[parts.index].clone(),
            mailboxes: parts.mailboxes,
            shards: Shards::new(parts.shards),
            connections: Slab::new(),
            numbers: Numbers::default(),
            buffer: vec![0; READ_BUFFER_BYTES].into(),
            now_ms: parts.host.ms_at(now),
            host: parts.host,
            unread: VecDeque::new(),
            bytes_left: 0,
            waiting: TimedConnections::default(),
            local_mail: Vec::new(),
            has_more_ready: false,
            has_journal_work: false,
            arrivals: Arrivals::default(),
            closing: VecDeque::new(),
            asked: VecDeque::new(),
            askers: Slab::new(),
            work_pace: WorkPace::default(),
            ended: now,
            incoming_room: parts.incoming_room,
            shutdown_grace_ms: parts.shutdown_grace_ms,
            ticks_at_ms: 0,
            looked_ms: 0,
            unheard_since_ms: None,
            standstills: 0,
            ends_at_ms: None,
        };
        // Opening the journals does not wait for the first event.
        driver.drive_journals();
        driver
    }

    /// One turn: what is ready, mail, what is due; then the effects. Who comes and who goes is
    /// last: in a storm of connections messages do not wait for them. `has_more`: there may be
    /// others that are ready, and each is reported once. It begins at `began`, and reads the clock
    /// when it [ends](Driver::ended). In between all it does has the same time; only the work that
    /// it measures reads the clock.
    pub fn turn(&mut self, began: Instant, ready: impl Iterator<Item = Ready>, has_more: bool) {
        self.now_ms = self.host.ms_at(began);
        self.take_mail();
        self.bytes_left = BYTES_PER_TURN;
        for ready in ready {
            self.on_ready(ready);
        }
        self.has_more_ready = has_more;
        self.read_on(began);
        self.on_time();
        self.take_local_mail();
        self.measure_work(began);
        self.write_and_close();
        self.write_broadcasts();
        self.open_arrivals();
        self.close_some();
        self.answer_one();
        self.end_turn();
        self.drive_journals();
        self.note_turn(began);
    }

    /// A turn without a look at the sockets, without those who come and go, and without a portion
    /// of a broadcast: the main thread makes several of these before it looks at the sockets again.
    pub fn turn_for_mail(&mut self, began: Instant) {
        self.now_ms = self.host.ms_at(began);
        self.take_mail();
        self.take_local_mail();
        self.measure_work(began);
        self.write_and_close();
        self.end_turn();
        self.drive_journals();
        self.note_turn(began);
    }

    fn note_turn(&mut self, began: Instant) {
        self.ended = self.host.now();
        self.host.note_turn(self.ended.saturating_duration_since(began));
    }

    fn took_since(&self, began: Instant) -> Duration {
        self.host.now().saturating_duration_since(began)
    }

    /// Answers that need no more than a write leave in the same turn.
    fn drive_journals(&mut self) {
        self.has_journal_work = false;
        for _ in 0..JOURNAL_ROUNDS_MAX {
            self.has_journal_work = self.host.drive_journals(&mut self.shards, self.now_ms);
            #[cfg(feature = "testing")]
            if self.shards.has_flaw(crate::Flaw::StrandsAnswers) {
                self.has_journal_work = false;
            }
            if !self.has_journal_work {
                break;
            }
            self.take_local_mail();
            self.write_and_close();
            self.end_turn();
        }
        self.shards.settle();
    }

    /// Has it come to its end after the order to stop?
    pub fn is_over(&mut self) -> bool {
        let Some(end) = self.ends_at_ms else { return false };
        let has_ended = self.connections.is_empty() && self.host.have_journals_ended();
        has_ended || self.now_ms >= end
    }

    /// When the last turn ended.
    pub const fn ended(&self) -> Instant {
        self.ended
    }

    pub const fn is_stopping(&self) -> bool {
        self.ends_at_ms.is_some()
    }

    pub const fn index(&self) -> usize {
        self.index
    }

    pub const fn host(&self) -> &H {
        &self.host
    }

    pub const fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    pub fn shards(&self) -> &[Shard] {
        self.shards.all()
    }

    /// Those that it has, with those that are leaving.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    #[cfg(feature = "testing")]
    pub fn shard_mut(&mut self, place: usize) -> &mut Shard {
        &mut self.shards[place]
    }

    /// What the next turn would pass by, though it is there.
    #[cfg(feature = "testing")]
    pub fn missed(&self) -> Option<String> {
        self.shards.missed()
    }

    /// Has a connection something that the last turn should have written?
    #[cfg(feature = "testing")]
    pub fn has_unsent(&self) -> bool {
        self.shards.all().iter().any(Shard::has_urgent)
    }

    /// A planted bug.
    #[cfg(feature = "testing")]
    pub const fn plant(&mut self, flaw: crate::Flaw) {
        self.shards.plant(flaw);
    }

    /// The slot of the connection with this number, in the shard that has it.
    #[cfg(feature = "testing")]
    pub fn slot_of(&self, number: u64) -> Option<u32> {
        let connection = self.connections.get(key_of(number))?;
        (connection.number == number).then_some(connection.slot)
    }

    /// Bytes of the farewell of this connection, with all that its shard had for it.
    #[cfg(feature = "testing")]
    pub fn farewell_len(&self, number: u64) -> usize {
        let known = self.connections.get(key_of(number)).filter(|known| known.number == number);
        match known.map(|known| &known.state) {
            Some(State::Leaving { farewell, .. }) => farewell.len(),
            _ => 0,
        }
    }

    /// Is mail under way between its own shards?
    #[cfg(feature = "testing")]
    pub fn has_local_mail(&self) -> bool {
        !self.local_mail.is_empty()
    }

    /// A planted bug: numbers that were given are given again.
    #[cfg(feature = "testing")]
    pub fn forget_numbers(&mut self) {
        self.numbers = Numbers::default();
    }

    pub fn has_mail(&self) -> bool {
        self.mailbox.has_items()
    }

    /// Announces sleep, and says for how many milliseconds there is nothing to do.
    pub fn fall_asleep(&self, now: Instant) -> u64 {
        let may_sleep = !self.has_leftovers() && self.mailbox.fall_asleep();
        if may_sleep { self.idle_ms(now) } else { 0 }
    }

    /// Is there something to do beside what its event queue may have?
    pub fn has_work(&self, now: Instant) -> bool {
        self.has_leftovers() || self.has_mail() || self.idle_ms(now) == 0
    }

    fn has_leftovers(&self) -> bool {
        let is_done = self.unread.is_empty()
            && self.arrivals.is_empty()
            && self.closing.is_empty()
            && self.asked.is_empty()
            && self.local_mail.is_empty()
            && !self.has_more_ready
            && !self.has_journal_work
            && !self.has_broadcast();
        !is_done
    }

    pub fn wake_up(&self) {
        self.mailbox.wake_up();
    }

    /// How long nothing is due.
    fn idle_ms(&self, now: Instant) -> u64 {
        let now_ms = self.host.ms_at(now);
        let journals = self.host.journals_deadline_ms();
        let others = self.ends_at_ms.into_iter().chain(journals);
        let own_ms = self.shards.next_deadline_ms().min(self.waiting.until_ms);
        let next_ms = others.fold(own_ms, u64::min);
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

    fn on_item(&mut self, item: Item<H>) {
        let now_ms = self.now_ms;
        match item {
            Item::Mail(shard, mails) => {
                self.shard(shard).on_batch(mails, now_ms);
            }
            Item::Connection(handover) => self.arrivals.push(*handover),
            Item::Command(asked) => self.on_asked(*asked),
            Item::Publish(shard, message) => {
                self.shard(shard).on_publish_command(&message, now_ms);
            }
            Item::Access(rules) => {
                for shard in self.shards.all_mut() {
                    shard.set_access(rules.clone());
                }
            }
            Item::Disk(shard, completion) => self.shard(shard).on_disk(*completion, now_ms),
            Item::RenewLog(shard, segment) => {
                let journal = self.shard(shard).journal_mut();
                journal.into_iter().for_each(|journal| journal.renew(segment));
            }
            Item::MemoryLook => {
                let shards = self.shards.all_mut().iter_mut();
                shards.for_each(|shard| shard.on_memory_look(now_ms));
            }
            Item::Shutdown => {
                self.ends_at_ms = Some(now_ms + self.shutdown_grace_ms);
                self.asked.clear();
                for shard in self.shards.all_mut() {
                    shard.on_shutdown(now_ms);
                }
            }
            Item::CloseJournals => {
                let journals = self.shards.all_mut().iter_mut().filter_map(Shard::journal_mut);
                journals.for_each(|journal| journal.close());
            }
            Item::Abandon => self.abandon(),
            Item::Order(order) => self.host.on_order(order, &mut self.shards, now_ms),
        }
    }

    /// Somebody else has the right to act: sockets close as they are, and who waits for an answer
    /// gets none.
    fn abandon(&mut self) {
        self.ends_at_ms = Some(0);
        self.connections.clear();
        self.arrivals = Arrivals::default();
        self.closing.clear();
        self.unread.clear();
        self.asked.clear();
        self.askers.clear();
    }

    fn shard(&mut self, shard: ShardId) -> &mut Shard {
        let place = usize::from(shard) / self.mailboxes.len();
        &mut self.shards[place]
    }

    fn on_ready(&mut self, ready: Ready) {
        let Some(connection) = self.connections.get_mut(ready.key) else { return };
        if ready.is_writable && (connection.is_blocked || connection.socket.wants_write()) {
            connection.is_blocked = false;
            // What the layers have taken goes on though there is nothing more to write.
            self.write_own(ready.key);
            self.write(ready.key);
        }
        if ready.is_readable || ready.is_ending {
            self.read(ready.key, ready.is_ending);
        }
    }

    fn take_pauses(&mut self, place: usize) {
        if self.shards[place].effects().pauses.is_empty() {
            return;
        }
        for (paused, until_ms) in self.shards[place].effects_mut().pauses.drain(..) {
            let key = key_of(paused);
            if let Some(connection) = self.connections.get_mut(key)
                && connection.number == paused
                && matches!(connection.state, State::Open)
                && (connection.paused_until_ms.is_some() || until_ms > self.now_ms)
            {
                connection.paused_until_ms = Some(until_ms);
                if until_ms != NEVER {
                    self.waiting.add(key, &mut connection.is_waiting, until_ms);
                }
            }
        }
    }

    /// Looks at the connection when the time has come.
    fn wait_until(&mut self, key: usize, until_ms: u64) {
        if let Some(connection) = self.connections.get_mut(key) {
            self.waiting.add(key, &mut connection.is_waiting, until_ms);
        }
    }

    /// What is due: shards' timers, pauses, farewells.
    fn on_time(&mut self) {
        let has_heard_all = self.has_heard_all();
        let are_all_due = self.ticks_at_ms <= self.now_ms;
        let due = if are_all_due { self.shards.places() } else { self.shards.due(self.now_ms) };
        for place in due {
            let shard = &mut self.shards[place];
            match has_heard_all {
                true => shard.on_tick(self.now_ms),
                false => shard.on_tick_unheard(self.now_ms),
            }
        }
        if are_all_due {
            self.ticks_at_ms = self.now_ms + SLEEP_MS_MAX;
            self.close_late();
        }
        for place in self.shards.marked() {
            self.take_pauses(place);
        }
        for key in self.waiting.take_if_due(self.now_ms) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            connection.is_waiting = false;
            let until_ms = match connection.state {
                State::Open => connection.paused_until_ms,
                State::Leaving { until_ms, .. } => Some(until_ms),
                State::Lost => None,
            };
            match until_ms {
                Some(until_ms) if until_ms > self.now_ms => self.wait_until(key, until_ms),
                Some(_) if matches!(connection.state, State::Open) => self.go_on(key),
                Some(_) => self.close_later(key),
                None => {}
            }
        }
    }

    /// Has all been looked at that clients have said while the process stood still? Before that
    /// nobody is silent; but there may always be more. What was ready for the first turn after a
    /// standstill may have been asked for before it, so that turn never has heard all.
    fn has_heard_all(&mut self) -> bool {
        let last_ms = std::mem::replace(&mut self.looked_ms, self.now_ms);
        let stood_still = self.now_ms > last_ms + STANDSTILL_MS;
        self.standstills = if stood_still { self.standstills.saturating_add(1) } else { 0 };
        // One after the other, they are turns that take so long.
        let stood_still = stood_still && self.standstills <= STANDSTILLS_MAX;
        if !stood_still && !self.has_more_ready && self.unread.is_empty() {
            self.unheard_since_ms = None;
            return true;
        }
        let since_ms = self.unheard_since_ms.filter(|_| !stood_still).unwrap_or(self.now_ms);
        self.unheard_since_ms = Some(since_ms);
        self.now_ms >= since_ms + UNHEARD_MS_MAX
    }

    /// The pause of a connection is over.
    fn go_on(&mut self, key: usize) {
        if !self.may_be_read(key) {
            return;
        }
        if let Some(connection) = self.connections.get_mut(key) {
            connection.paused_until_ms = None;
        }
        self.give(key, 0);
        self.read_later(key);
    }

    /// Mail between its own shards, and what comes of that.
    fn take_local_mail(&mut self) {
        for _ in 0..MAIL_ROUNDS_MAX {
            self.post();
            if self.local_mail.is_empty() {
                break;
            }
            let mut batches = std::mem::take(&mut self.local_mail);
            for (shard, mails) in batches.drain(..) {
                let now_ms = self.now_ms;
                self.shard(shard).on_batch(mails, now_ms);
            }
            self.local_mail = batches;
        }
    }

    /// Carries out what has come of a part of the turn: mail first, so that others can start; then
    /// the sockets.
    fn carry_out(&mut self) {
        self.take_local_mail();
        self.write_and_close();
    }

    fn write_and_close(&mut self) {
        for place in self.shards.marked() {
            self.write_urgent(place);
            if self.shards[place].effects().is_mail_only() {
                continue;
            }
            self.close_and_report(place);
            // An answer to a re-authentication.
            self.write_urgent(place);
            if !self.shards[place].effects().answers.is_empty() {
                self.give_answers(place);
            }
        }
    }

    /// The turn is over, for all that was done in it: the next has its own budget of work.
    fn end_turn(&mut self) {
        for place in self.shards.marked() {
            self.shards[place].end_turn();
        }
        self.post();
    }

    /// How long did the work take that was done since the turn began? The next ones have as much as
    /// fits.
    fn measure_work(&mut self, began: Instant) {
        let marked = self.shards.marked();
        let used = marked.map(|place| u64::from(self.shards[place].work().used())).sum();
        if used >= UNITS_MEASURED_MIN {
            let units = self.work_pace.units(used, self.took_since(began), self.shards.len());
            self.shards.set_units(units);
        }
    }

    fn post(&mut self) {
        let workers = self.mailboxes.len();
        for place in self.shards.marked() {
            let shard = &mut self.shards[place];
            let id = shard.id();
            while let Some((to, mails)) = shard.effects_mut().next_batch() {
                let index = usize::from(to) % workers;
                if to >= self.cell_shards {
                    self.host.on_mail_for_cell(id, to, mails);
                } else if index == self.index {
                    self.local_mail.push((to, mails));
                } else {
                    self.mailboxes[index].put(Item::Mail(to, mails));
                }
            }
        }
    }

    fn close_and_report(&mut self, place: usize) {
        self.take_pauses(place);
        let shard = &mut self.shards[place];
        let shard_id = shard.id();
        if shard.effects().has_traced() {
            let traced = std::mem::take(&mut shard.effects_mut().traced);
            let (spans, lost) = shard.effects_mut().take_spans();
            if !traced.is_empty() {
                self.host.on_traced(traced);
            }
            if !spans.is_empty() || lost > 0 {
                self.host.on_spans(spans, lost);
            }
        }
        let closes = std::mem::take(&mut shard.effects_mut().closes);
        if !shard.effects().events.is_empty() {
            for (scope, event) in std::mem::take(&mut shard.effects_mut().events) {
                self.host.on_event(shard, scope, &event, self.now_ms);
            }
        }
        if !shard.effects().reauthentications.is_empty() {
            for ask in std::mem::take(&mut shard.effects_mut().reauthentications) {
                let answer = self.host.reauthenticate(shard_id, &ask);
                shard.on_reauthenticated(ask.slot, ask.connection, &answer, self.now_ms);
            }
        }
        if !shard.effects().questions.is_empty() {
            for question in std::mem::take(&mut shard.effects_mut().questions) {
                self.host.authorize(shard_id, question);
            }
        }
        if !shard.effects().stream_news.is_empty() {
            let news = std::mem::take(&mut shard.effects_mut().stream_news);
            self.host.on_streams(shard_id, news);
        }
        for close in closes {
            self.host.on_close(shard_id, &close);
            self.close(close);
        }
    }
}

#[cfg(test)]
mod tests;
