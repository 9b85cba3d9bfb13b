//! A host that keeps what is reported to it, for tests to look at.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use broker::streams::{StreamNews, StreamOrder};
use broker::{
    AccessQuestion, Answer, Close, ConnectRequest, Event, Mail, Name, Place, Reauthenticate,
    Reauthenticated, Scope, Shard, ShardId, Span, Traced,
};
use codec::Reason;

use super::pipe::{Pipe, PipeEnd, Watched};
use crate::{Host, Ready, Shards, Waker};

/// The one clock of a world.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    began_ms: u64,
    micros: Cell<u64>,
}

impl Clock {
    pub fn new(now_ms: u64) -> Rc<Self> {
        Rc::new(Self { began: Instant::now(), began_ms: now_ms, micros: Cell::new(0) })
    }

    pub fn now_ms(&self) -> u64 {
        self.began_ms + self.micros.get() / 1000
    }

    /// It is this late at least.
    pub fn advance_to(&self, now_ms: u64) {
        let micros = now_ms.saturating_sub(self.began_ms) * 1000;
        self.micros.set(self.micros.get().max(micros));
    }

    pub fn pass(&self, time: Duration) {
        self.micros.set(self.micros.get() + time.as_micros() as u64);
    }
}

/// What a driver has reported to its host.
#[derive(Debug, Default)]
pub struct Reports {
    /// With the time of the turn.
    pub events: Vec<(u64, Event)>,
    pub answers: Vec<(u32, Answer)>,
    pub commands: Vec<(ShardId, storage::Command)>,
    /// Who has asked to authenticate anew, and how.
    pub asks: Vec<(Box<str>, Box<str>)>,
    /// For the authorization service, each of a shard.
    pub questions: Vec<(ShardId, AccessQuestion)>,
    pub traced: Vec<Traced>,
    pub spans: Vec<Span>,
    /// Spans that were only counted.
    pub spans_lost: u64,
    /// For the owner of streams, each of a shard.
    pub streams: Vec<(ShardId, Vec<StreamNews>)>,
    /// For other cells, each of a shard.
    pub for_cells: Vec<(ShardId, Place, Vec<Mail>)>,
}

/// Answers those who authenticate anew.
pub type BackEnd = Box<dyn FnMut() -> Reauthenticated>;

/// The disk under the journal of a shard, for writes in place.
pub type InPlaceDisk = Box<dyn FnMut(ShardId, &storage::InPlace) -> storage::InPlaceEnd>;

/// Whether a driver was woken.
#[derive(Clone, Debug, Default)]
pub struct Alarm(Rc<Cell<bool>>);

impl Alarm {
    /// Was it woken since it was asked last?
    pub fn take(&self) -> bool {
        self.0.take()
    }
}

impl Waker for Alarm {
    fn wake(&self) {
        self.0.set(true);
    }
}

/// Each look at the clock takes so long, so that turns come to an end.
const LOOK: Duration = Duration::from_micros(7);

pub struct MemoryHost {
    clock: Rc<Clock>,
    watched: Vec<Watched>,
    reports: Rc<RefCell<Reports>>,
    /// Clients that are not let in.
    banned: Rc<RefCell<BTreeSet<String>>>,
    back_end: BackEnd,
    /// What journals may write at once, and where.
    in_place: Option<(usize, InPlaceDisk)>,
    /// No byte comes or goes.
    is_shut: bool,
    /// The right to act is lost.
    is_lost: bool,
}

impl MemoryHost {
    pub fn new(clock: &Rc<Clock>) -> Self {
        let (watched, reports, banned) = (Vec::new(), Rc::default(), Rc::default());
        let back_end = Box::new(|| Reauthenticated::Failure(Reason::NOT_AUTHORIZED));
        let (in_place, is_shut, is_lost) = (None, false, false);
        let clock = clock.clone();
        Self { clock, watched, reports, banned, back_end, in_place, is_shut, is_lost }
    }

    /// From now on it writes itself what a journal may have written in place: at most `bytes_max`
    /// bytes at a time.
    pub fn set_disk(&mut self, bytes_max: usize, disk: InPlaceDisk) {
        self.in_place = Some((bytes_max, disk));
    }

    pub fn set_back_end(&mut self, back_end: BackEnd) {
        self.back_end = back_end;
    }

    /// Whether sockets give and take bytes, as they do while a lease is held.
    pub fn shut(&mut self, is_shut: bool) {
        if std::mem::replace(&mut self.is_shut, is_shut) != is_shut {
            self.watched.iter().for_each(|watched| watched.shut(is_shut));
        }
    }

    /// Another node has what this one had, and its driver does not know yet.
    pub const fn lose(&mut self) {
        self.is_lost = true;
    }

    pub fn clock(&self) -> &Rc<Clock> {
        &self.clock
    }

    /// The reports, now and later.
    pub fn reports(&self) -> Rc<RefCell<Reports>> {
        self.reports.clone()
    }

    pub fn banned(&self) -> Rc<RefCell<BTreeSet<String>>> {
        self.banned.clone()
    }

    /// Some of what has become of the sockets, so many of them at most, and whether there is more.
    /// `choose`: which of so many is looked at next.
    pub fn ready(
        &mut self,
        count_max: usize,
        mut choose: impl FnMut(usize) -> usize,
    ) -> (Vec<Ready>, bool) {
        let (mut ready, mut looked_at) = (Vec::new(), Vec::new());
        while ready.len() < count_max && !self.watched.is_empty() {
            let watched = self.watched.swap_remove(choose(self.watched.len()));
            if let Some(edge) = watched.take_edge() {
                ready.extend(edge);
                looked_at.push(watched);
            }
        }
        self.watched.append(&mut looked_at);
        let has_more = ready.len() == count_max;
        (ready, has_more)
    }

    /// What has become of this one socket.
    pub fn ready_of(&self, end: &PipeEnd) -> Option<Ready> {
        self.watched.iter().find(|watched| watched.is_of(end))?.take_edge()?
    }

    pub fn has_ready(&self) -> bool {
        self.watched.iter().any(Watched::has_edge)
    }
}

impl Host for MemoryHost {
    type Socket = Pipe;
    type Permit = ();
    type Charge = ();
    type Waker = Alarm;
    type Asker = u32;
    type Order = (ShardId, Vec<StreamOrder>);

    fn now(&self) -> Instant {
        self.clock.pass(LOOK);
        self.clock.began + Duration::from_micros(self.clock.micros.get())
    }

    fn ms_at(&self, time: Instant) -> u64 {
        let passed = time.saturating_duration_since(self.clock.began);
        self.clock.began_ms + passed.as_millis() as u64
    }

    fn note_turn(&mut self, _took: Duration) {}

    fn watch(&mut self, socket: &mut Pipe, key: usize) -> io::Result<()> {
        self.watched.retain(|watched| watched.key != key);
        let watched = socket.watch(key);
        if self.is_shut {
            watched.shut(true);
        }
        self.watched.push(watched);
        Ok(())
    }

    fn refuses(&self, request: &ConnectRequest) -> Option<Reason> {
        let is_banned = self.banned.borrow().contains(&*request.client_id);
        is_banned.then_some(Reason::BANNED)
    }

    fn on_let_in(&mut self, _client: Name<'_>, _username: Option<&str>) {}

    fn on_untaken(&mut self, _client_id: &str, _error: &io::Error) {}

    fn on_event(&mut self, _shard: &mut Shard, _scope: Scope, event: &Event, now_ms: u64) {
        self.reports.borrow_mut().events.push((now_ms, event.clone()));
    }

    fn reauthenticate(&mut self, _shard: ShardId, ask: &Reauthenticate) -> Reauthenticated {
        let asked = (ask.client_id.as_ref().into(), ask.method.as_ref().into());
        self.reports.borrow_mut().asks.push(asked);
        (self.back_end)()
    }

    fn authorize(&mut self, shard: ShardId, question: AccessQuestion) {
        self.reports.borrow_mut().questions.push((shard, question));
    }

    fn on_traced(&mut self, traced: Vec<Traced>) {
        self.reports.borrow_mut().traced.extend(traced);
    }

    fn on_spans(&mut self, spans: Vec<Span>, lost: u64) {
        let mut reports = self.reports.borrow_mut();
        reports.spans.extend(spans);
        reports.spans_lost += lost;
    }

    fn on_streams(&mut self, shard: ShardId, news: Vec<StreamNews>) {
        self.reports.borrow_mut().streams.push((shard, news));
    }

    fn await_lease(&self) -> bool {
        !self.is_lost
    }

    fn on_mail_for_cell(&mut self, from: ShardId, to: Place, mails: Vec<Mail>) {
        self.reports.borrow_mut().for_cells.push((from, to, mails));
    }

    fn on_close(&mut self, _shard: ShardId, _close: &Close) {}

    fn has_gone(&self, _asker: &u32) -> bool {
        false
    }

    fn answer(&mut self, asker: u32, answer: Answer) {
        self.reports.borrow_mut().answers.push((asker, answer));
    }

    fn on_order(
        &mut self,
        (shard, orders): (ShardId, Vec<StreamOrder>),
        shards: &mut Shards,
        now_ms: u64,
    ) {
        if let Some(shard) = shards.find_mut(shard) {
            orders.into_iter().for_each(|order| shard.on_stream_order(order, now_ms));
        }
    }

    fn drive_journals(&mut self, shards: &mut Shards, now_ms: u64) -> bool {
        let mut commands = Vec::new();
        let mut has_written = false;
        let mut bytes_left = self.in_place.as_ref().map_or(0, |(bytes_max, _)| *bytes_max);
        for place in shards.marked() {
            let shard = &mut shards[place];
            let id = shard.id();
            let is_written = self.in_place.as_mut().is_some_and(|(_, disk)| {
                let bytes_max = bytes_left;
                let write = |write: &storage::InPlace| {
                    let end = disk(id, write);
                    let is_done = end == storage::InPlaceEnd::Done;
                    bytes_left =
                        bytes_left.saturating_sub(write.bytes.len()) * usize::from(is_done);
                    end
                };
                shard.write_in_place(bytes_max, write, now_ms)
            });
            shard.take_disk_commands(&mut commands, now_ms);
            let of_shard = commands.drain(..).map(|command| (shard.id(), command));
            self.reports.borrow_mut().commands.extend(of_shard);
            if is_written {
                shard.on_disk_write(now_ms);
                has_written = true;
            }
        }
        has_written
    }

    fn journals_deadline_ms(&self) -> Option<u64> {
        None
    }

    fn have_journals_ended(&mut self) -> bool {
        true
    }
}
