//! A load thread: its clients, one poll, one timer, one read buffer.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::client::Client;
use super::context::{Context, Setting};
use super::pool::{Counting, StagePace};
use super::stay::Breaks;
use super::tally::{Measured, Tick};
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use flock_measure::ledger::{Heard, Ledger, SentTable};
use flock_measure::{ClientLatency, ErrorCount, LatencyHistogram};
use flock_model::{GroupId, SubscriptionId};

/// What a load thread is told.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Start stage `stage` at `at_ns`, with publishers at this pace.
    Begin { stage: usize, at_ns: u64, end_ns: Option<u64>, pace: StagePace },
    /// The stage is over.
    End,
    /// Close the sockets of this share of a group.
    Cut { group: GroupId, share: f64 },
    /// Whether latencies count for the report from now on.
    Measure(Counting),
    /// Answer with [`News::Standing`].
    Probe,
    /// The run is over: tick once more and end.
    Finish,
}

/// What a load thread tells.
#[derive(Debug)]
pub(super) enum News {
    /// All clients of this thread are through with the stage.
    StageDone(usize),
    Tick(Box<Tick>),
    Standing(Standing),
    /// The thread broke down (and is gone).
    Died(String),
}

/// How far the thread's clients are with what was asked of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Deliveries that all messages published here make.
    pub owed: u64,
    /// Deliveries that arrived here, repeats not counted.
    pub received: u64,
    /// Messages published here without an acknowledgement.
    pub in_flight: u64,
    /// Messages published here.
    pub published: u64,
    pub connects_ok: u64,
    pub connections: u64,
    /// Retained messages that came because their receivers subscribed.
    #[serde(default)]
    pub stored: u64,
}

/// What is left of a load thread when it ended.
#[derive(Debug)]
pub(super) struct Harvest {
    pub(super) ledger: Ledger,
    pub(super) sent: SentTable,
    /// Subscriptions as they were taken: client, and how it is to be judged.
    pub(super) heard: Vec<HeardEntry>,
    /// By client.
    pub(super) breaks: HashMap<u32, Breaks>,
    /// Position in the thread's list by group and slot.
    pub(super) bases: Vec<u32>,
    pub(super) latencies: Vec<Measured>,
    pub(super) timers: Vec<LatencyHistogram>,
    pub(super) timers_unfinished: Vec<u64>,
    pub(super) receive_lag: LatencyHistogram,
    pub(super) worst_clients: Vec<ClientLatency>,
    pub(super) errors: Vec<ErrorCount>,
}

/// One client's subscription at the end of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeardEntry {
    pub(super) client: u32,
    pub(super) group: GroupId,
    /// Position in the group.
    pub(super) index: u64,
    pub(super) subscription: SubscriptionId,
    pub(super) since_ns: u64,
    pub(super) until_ns: u64,
    /// Breaks in which nothing is owed, and those in which QoS 0 is not: those that it came back
    /// from.
    pub(super) generation: u16,
    pub(super) returns: u16,
    /// How long it stayed.
    pub(super) stayed_ns: u64,
    /// How long a message may be under way.
    pub(super) patience_ns: u64,
    /// Whether it asked for what the broker has in store, and to be told so.
    pub(super) takes_stored: bool,
    pub(super) as_published: bool,
    /// The session began in this run, with the latest connection.
    pub(super) is_fresh: bool,
}

impl HeardEntry {
    /// How strictly the client is to be judged for deliveries of this QoS.
    pub(super) fn strictness(&self, qos: u8, settled_ns: u64) -> Heard {
        Heard {
            since_ns: self.since_ns,
            until_ns: self.until_ns,
            generation: if qos == 0 { self.returns } else { self.generation },
            copies_may_repeat: false,
            is_patchy: false,
            settled_ns,
            patience_ns: self.patience_ns,
        }
    }
}

pub(super) struct Worker {
    ctx: Context,
    clients: Vec<Client>,
    bases: Vec<u32>,
    poll: Poll,
    events: Events,
    timer: std::os::fd::OwnedFd,
    timer_set_ns: u64,
    scratch: Vec<u8>,
    orders: Receiver<Order>,
    news: Sender<News>,
    next_tick_secs: u32,
    last_tick_ns: u64,
    cpu_ns: u64,
    stage_open: bool,
    /// When the turn began, and what had been received until then.
    turn: (u64, u64),
}

impl Worker {
    /// Thread `thread` of `threads`, with its share of the clients that run here.
    pub(super) fn new(
        setting: Setting,
        (thread, threads): (u64, u64),
        orders: Receiver<Order>,
        news: Sender<News>,
    ) -> io::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let registry = poll.registry().try_clone()?;
        let ctx = Context::new(setting, registry, thread);
        let (mut clients, mut bases) = (Vec::new(), Vec::new());
        let plan = Arc::clone(&ctx.plan);
        for (group, model) in plan.scenario.groups.iter().enumerate() {
            bases.push(clients.len() as u32);
            let here = (thread..model.here.count).step_by(threads as usize);
            for (slot, local) in here.enumerate() {
                let index = model.here.global(local);
                let at = clients.len() as u32;
                clients.push(Client::new(at, slot as u32, GroupId(group as u32), index, &ctx));
            }
        }
        let worker = Self {
            ctx,
            clients,
            bases,
            poll,
            events: Events::with_capacity(EVENTS),
            timer,
            timer_set_ns: u64::MAX,
            scratch: vec![0; READ_BYTES],
            orders,
            news,
            next_tick_secs: 1,
            last_tick_ns: 0,
            cpu_ns: 0,
            stage_open: false,
            turn: (0, 0),
        };
        Ok((worker, waker))
    }

    /// Works until told to finish.
    pub(super) fn run(mut self) -> Harvest {
        loop {
            if !self.take_orders() {
                break;
            }
            self.tick_if_due();
            self.fire_timers();
            self.give_turns();
            self.report_stage();
            self.book_turn();
            if let Err(error) = self.wait() {
                let _ = self.news.send(News::Died(format!("poll failed: {error}")));
                break;
            }
            self.turn = (self.ctx.now_ns(), self.ctx.tally.totals.received_all());
            self.serve();
        }
        self.look_once_more();
        self.harvest()
    }

    /// What came in this turn may have waited as long as the turn took: nobody looked meanwhile.
    fn book_turn(&mut self) {
        let (from_ns, received) = self.turn;
        let came = self.ctx.tally.totals.received_all() - received;
        if came > 0 {
            let took_ns = self.ctx.now_ns().saturating_sub(from_ns);
            self.ctx.tally.receive_lag(took_ns, came);
        }
    }

    /// Reads what sockets hold. A run ends when all that is due has come, but what comes twice or
    /// to the wrong client is due to nobody, and may be the last to be read.
    fn look_once_more(&mut self) {
        let until_ns = self.ctx.now_ns() + LAST_LOOK_NS_MAX;
        while self.ctx.now_ns() < until_ns
            && self.poll.poll(&mut self.events, Some(Duration::ZERO)).is_ok()
            && !(self.events.is_empty() && self.ctx.again.is_empty())
        {
            self.serve();
            self.give_turns();
        }
    }

    /// `false`: the run is over.
    fn take_orders(&mut self) -> bool {
        loop {
            match self.orders.try_recv() {
                Ok(Order::Begin { stage, at_ns, end_ns, pace }) => {
                    self.ctx.stage = stage;
                    self.ctx.stage_at_ns = at_ns;
                    self.ctx.stage_end_ns = end_ns;
                    self.ctx.pace = pace;
                    self.stage_open = true;
                    self.ctx.tally.end_cut_off(u64::MAX);
                    for client in &mut self.clients {
                        client.begin(&mut self.ctx);
                    }
                }
                Ok(Order::End) => {
                    for client in &mut self.clients {
                        client.end_stage(&mut self.ctx);
                    }
                    self.ctx.tally.end_cut_off(u64::MAX);
                }
                Ok(Order::Cut { group, share }) => self.cut(group, share),
                Ok(Order::Probe) => {
                    let _ = self.news.send(News::Standing(self.standing()));
                }
                Ok(Order::Measure(counting)) => {
                    let now = self.ctx.now_ns();
                    self.ctx.tally.set_measured(counting, now);
                }
                Ok(Order::Finish) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn standing(&self) -> Standing {
        let totals = &self.ctx.tally.totals;
        let aside = totals.received_retained + totals.wills_received + totals.received_foreign;
        let unasked = self.ctx.ledger.duplicated_so_far + self.ctx.ledger.misrouted;
        Standing {
            owed: self.ctx.tally.owed,
            received: totals.received_all().saturating_sub(aside + unasked),
            in_flight: self.in_flight(),
            published: totals.published_all(),
            connects_ok: totals.connects_ok,
            connections: self.ctx.tally.connections,
            stored: totals.received_retained,
        }
    }

    fn in_flight(&self) -> u64 {
        self.clients.iter().map(|client| client.in_flight() as u64).sum()
    }

    fn cut(&mut self, group: GroupId, share: f64) {
        for client in self.clients.iter_mut().filter(|client| client.group == group) {
            // Spread over the group, and the same whatever the number of threads.
            let (i, next) = (client.index as f64, client.index as f64 + 1.0);
            if (i * share).floor() < (next * share).floor() {
                client.cut(&mut self.ctx);
                client.go_on(&mut self.ctx);
            }
        }
    }

    fn tick_if_due(&mut self) {
        let now = self.ctx.now_ns();
        while now >= u64::from(self.next_tick_secs) * SECOND_NS {
            self.tick(self.next_tick_secs, now);
            self.next_tick_secs += 1;
        }
    }

    fn tick(&mut self, at_secs: u32, now: u64) {
        let seconds = (now - self.last_tick_ns) as f64 / SECOND_NS as f64;
        self.last_tick_ns = now;
        let (lost, duplicated) = (self.ctx.ledger.lost_so_far, self.ctx.ledger.duplicated_so_far);
        let mut tick = self.ctx.tally.tick(at_secs, seconds, lost, duplicated);
        let cpu_ns = thread_cpu_ns();
        tick.cpu_ns = cpu_ns - self.cpu_ns;
        tick.wall_ns = (seconds * SECOND_NS as f64) as u64;
        self.cpu_ns = cpu_ns;
        self.ctx.tally.end_cut_off(now);
        tick.in_flight = self.in_flight();
        // Nobody listens any more when the run is being torn down.
        let _ = self.news.send(News::Tick(Box::new(tick)));
    }

    fn fire_timers(&mut self) {
        for _ in 0..TIMERS_PER_TURN {
            let now = self.ctx.now_ns();
            let Some((at_ns, client, kind)) = self.ctx.timers.pop_due(now) else { return };
            self.clients[client as usize].on_timer(at_ns, kind, &mut self.ctx);
        }
    }

    /// Clients that had more to do than fits a turn.
    fn give_turns(&mut self) {
        let waiting = std::mem::take(&mut self.ctx.again);
        for &at in &waiting {
            let client = &mut self.clients[at as usize];
            client.read(&mut self.scratch, &mut self.ctx);
            client.go_on(&mut self.ctx);
        }
    }

    /// A stage whose clients cannot go on lasts as long as planned, so that its rates are of all of
    /// its time. A step of a search has failed by then, and its time is not waited for.
    fn open_until_ns(&self) -> Option<u64> {
        let due_ns = self.ctx.tally.cut_off_until_ns();
        due_ns.filter(|_| self.stage_open && self.ctx.pace == StagePace::Own)
    }

    fn report_stage(&mut self) {
        if !self.stage_open || self.ctx.active > 0 {
            return;
        }
        if self.open_until_ns().is_none_or(|until_ns| until_ns <= self.ctx.now_ns()) {
            self.stage_open = false;
            let _ = self.news.send(News::StageDone(self.ctx.stage));
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let tick_ns = u64::from(self.next_tick_secs) * SECOND_NS;
        let others_ns = [self.ctx.timers.next_ns(), self.open_until_ns()];
        let next_ns = others_ns.into_iter().flatten().fold(tick_ns, u64::min);
        let busy = !self.ctx.again.is_empty() || next_ns <= self.ctx.now_ns();
        if !busy && next_ns != self.timer_set_ns {
            let at = self.ctx.clock.to_monotonic(next_ns);
            let at = Timespec { tv_sec: at / 1_000_000_000, tv_nsec: at % 1_000_000_000 };
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let setting = Itimerspec { it_interval: zero, it_value: at };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting)?;
            self.timer_set_ns = next_ns;
        }
        let limit = busy.then_some(Duration::ZERO);
        match self.poll.poll(&mut self.events, limit) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            done => done,
        }
    }

    fn serve(&mut self) {
        for event in &self.events {
            match event.token() {
                WAKER => {}
                TIMER => self.timer_set_ns = u64::MAX,
                Token(at) => {
                    if let Some(client) = self.clients.get_mut(at) {
                        client.on_ready(&mut self.scratch, &mut self.ctx);
                    }
                }
            }
        }
    }

    fn harvest(mut self) -> Harvest {
        for client in &mut self.clients {
            // A run that was cut short ends in the middle of things.
            client.stop_publishing(&mut self.ctx);
            client.unacknowledged(&mut self.ctx);
            client.end_opening(&mut self.ctx);
            client.unanswered(&mut self.ctx);
            client.stop_timers(&mut self.ctx);
        }
        let now = self.ctx.now_ns();
        self.tick(self.next_tick_secs, now);
        let sent = self.sent_table();
        let patience_ns = self.ctx.plan.scenario.drain_us * 1_000;
        let (mut heard, mut breaks) = (Vec::new(), HashMap::new());
        for client in &mut self.clients {
            if let Some(extra) = &mut client.extra {
                breaks.insert(client.at, std::mem::take(&mut extra.breaks));
            }
            for hearing in &client.hearing {
                let subscribe = &self.ctx.plan.subscribes[usize::from(hearing.command)];
                let end_ns = hearing.until_ns.min(now);
                heard.push(HeardEntry {
                    patience_ns,
                    stayed_ns: end_ns.saturating_sub(hearing.since_ns),
                    takes_stored: subscribe.retain_handling == 0,
                    as_published: subscribe.retain_as_published,
                    is_fresh: client.is_fresh,
                    client: client.at,
                    group: client.group,
                    index: client.index,
                    subscription: hearing.subscription,
                    since_ns: hearing.since_ns,
                    until_ns: hearing.until_ns,
                    generation: client.sessions().1.generation,
                    returns: client.sessions().0.generation,
                });
            }
        }
        let name = |at: u32| self.clients[at as usize].id(&self.ctx.plan);
        let worst_clients = self.ctx.tally.worst_clients(name);
        Harvest {
            worst_clients,
            ledger: self.ctx.ledger,
            sent,
            heard,
            breaks,
            bases: self.bases,
            latencies: self.ctx.tally.latencies(),
            errors: self.ctx.tally.errors(),
            timers: self.ctx.tally.timers,
            timers_unfinished: self.ctx.tally.timers_unfinished,
            receive_lag: self.ctx.tally.receive_lag,
        }
    }

    fn sent_table(&mut self) -> SentTable {
        let mut table = SentTable::default();
        let plan = Arc::clone(&self.ctx.plan);
        for (family, entries) in plan.families.iter().zip(&mut self.ctx.sent) {
            let base = self.bases[family.group.index()] as usize;
            for (at, entry) in entries.iter_mut().enumerate() {
                if entry.count == 0 {
                    continue;
                }
                let (slot, position) = (at / family.stride as usize, at % family.stride as usize);
                let index = self.clients[base + slot].index as u32;
                let stream = family.base + index * family.stride + position as u32;
                table.streams.insert(stream, std::mem::take(entry));
            }
        }
        for (stream, unpromised) in self.ctx.unpromised.drain(..) {
            table.unpromised.entry(stream).or_default().push(unpromised);
        }
        for (stream, sequence) in self.ctx.resent.drain(..) {
            table.resent.entry(stream).or_default().push(sequence);
        }
        for (stream, sequence) in self.ctx.unheard.drain(..) {
            table.unheard.entry(stream).or_default().push(sequence);
        }
        table.wills.extend(self.ctx.wills.drain());
        table.sort();
        table
    }
}

fn thread_cpu_ns() -> u64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as u64 * SECOND_NS + spent.tv_nsec as u64
}

const WAKER: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);
const SECOND_NS: u64 = 1_000_000_000;
const EVENTS: usize = 1_024;
/// A broker that goes on sending does not keep the run from ending.
const LAST_LOOK_NS_MAX: u64 = SECOND_NS;
/// The one read buffer of the thread.
const READ_BYTES: usize = 256 * 1024;
/// Timers in a turn, before sockets are looked at again.
const TIMERS_PER_TURN: usize = 256;
