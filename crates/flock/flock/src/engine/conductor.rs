//! The conductor: leads the pool through the stages, watches, and puts the results together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::clock::Clock;
use super::contention::MachineTimes;
use super::host::Sampler;
use super::plan::Plan;
use super::pool::{Counting, Pool, PoolNews, PoolOrder, StagePace};
use super::relay::RelayWatch;
use super::script::{self, Action};
use super::sinks::Sinks;
use super::tally::{Tick, add_totals};
use super::watch::{Company, Watched};
use super::worker::Standing;
use crate::faults::{BrokerProcess, Ensemble, FaultError};
use flock_measure::series::{LEVELS, Steps};
use flock_measure::{
    AgentInfo, FaultRecord, Heat, HeatSecond, LatencyHistogram, LatencyKind, LatencyPoint, Outcome,
    Phase, QosSecond, Second, Service, Totals,
};
use flock_model::{FOR_EVER_US, Fault, Length, Party};

/// What a run tells about itself once a second.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub stage: &'a str,
    pub second: &'a Second,
    pub totals: &'a Totals,
    /// Clients of the scenario.
    pub clients: u64,
    /// Who carries it out; empty where this process does it alone.
    pub agents: &'a [AgentInfo],
    /// How long the run takes, as far as that is known.
    pub length: Length,
    /// Broker's CPU in hundredths of a core and memory, when it is watched.
    pub broker_cpu_percent: Option<f64>,
    pub broker_memory_bytes: Option<u64>,
}

/// Called once a second.
pub type OnProgress<'a> = Box<dyn FnMut(&Progress<'_>) + 'a>;

/// Leads one run. Made by [`super::run()`].
pub struct Conductor<'a> {
    pub(super) plan: Arc<Plan>,
    pub(super) clock: Clock,
    pub(super) pool: &'a mut dyn Pool,
    pub(super) broker: Option<BrokerProcess>,
    /// The broker's process, where its socket told it.
    pub(super) found: Option<u32>,
    pub(super) company: Company,
    relay: Option<RelayWatch>,
    pub(super) ensemble: Ensemble,
    pub(super) sinks: Sinks,
    pub(super) broker_load: Option<Sampler>,
    pub(super) own_load: Sampler,
    pub(super) stop: Arc<AtomicBool>,
    on_progress: OnProgress<'a>,
    stage_name: String,
    length: Length,
    gathering: BTreeMap<u32, Gathered>,
    sampled_secs: u64,
    lost_threads: usize,
    /// Running values at the end of the last full second.
    running: Running,
    pub(super) series: Vec<Second>,
    pub(super) heat: Vec<Heat>,
    pub(super) steps: Steps,
    /// By QoS.
    pub(super) levels: [Vec<QosSecond>; LEVELS],
    pub(super) totals: Totals,
    pub(super) phases: Vec<Phase>,
    pub(super) faults: Vec<FaultRecord>,
    pub(super) marks: Marks,
    pub(super) rate_search: Option<flock_measure::RateSearch>,
    /// Replaces the stage's own duration while a rate is tried.
    duration_us: Option<u64>,
    pub(super) outcome: Outcome,
    pub(super) reasons: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) thread_cpu: Vec<f64>,
    /// End-to-end latency since it was last taken, or that of answers, for the rate search.
    pub(super) recent: LatencyHistogram,
    pub(super) recent_lateness: LatencyHistogram,
    /// Messages that were due and not sent, and such as the broker refused, while rates were tried.
    pub(super) excused_skips: u64,
    pub(super) excused_refusals: u64,
    counting: Counting,
    done: DoneCount,
    /// Whether the stage under way lasts until the user ends it, and whether that happened.
    is_endless: bool,
    is_stage_ended: bool,
    /// Connections that nobody planned to lose, by the second.
    pub(super) lost_by_second: Vec<(u32, u64)>,
    pub(super) service: Service,
    /// Retained messages that subscribers are owed so far.
    stored_owed: u64,
}

#[derive(Default)]
struct DoneCount {
    stage: usize,
    threads: usize,
}

/// Ticks of one second, as far as they have come.
#[derive(Default)]
struct Gathered {
    ticks: usize,
    sum: Tick,
    thread_cpu_max: f64,
}

#[derive(Default)]
struct Running {
    connections: i64,
    backlog: i64,
    lost: i64,
    duplicated: u64,
}

/// Readings at the edges of stages, for what the broker spent per message and per connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) start: Option<Mark>,
    /// Before the first stage that publishes, or, once clients have connected, that connects none.
    pub(super) connected: Option<Mark>,
    /// After the hold that follows it, if one does: what opening left behind is gone by then.
    pub(super) settled: Option<Mark>,
    pub(super) measured_from: Option<Mark>,
    pub(super) measured_to: Option<Mark>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) at_secs: f64,
    pub(super) broker_cpu_secs: Option<f64>,
    pub(super) broker_wait_secs: Option<f64>,
    pub(super) own_cpu_secs: Option<f64>,
    pub(super) company_cpu_secs: f64,
    pub(super) machine: MachineTimes,
    pub(super) broker_memory_bytes: Option<u64>,
    pub(super) standing: Standing,
}

impl<'a> Conductor<'a> {
    pub(super) fn new(
        plan: Arc<Plan>,
        clock: Clock,
        pool: &'a mut dyn Pool,
        watched: Watched,
        stop: Arc<AtomicBool>,
        on_progress: OnProgress<'a>,
    ) -> Self {
        let mut own_load = Sampler::of_process(std::process::id());
        if let Some(pid) = watched.broker.as_ref().and_then(BrokerProcess::pid).or(watched.found) {
            own_load.leave_out(pid);
        }
        Self {
            length: plan.scenario.length(),
            plan,
            clock,
            pool,
            broker: watched.broker,
            found: watched.found,
            company: watched.company,
            relay: watched.relay,
            ensemble: Ensemble::default(),
            sinks: Sinks::default(),
            broker_load: watched.load,
            own_load,
            stop,
            on_progress,
            stage_name: String::new(),
            gathering: BTreeMap::new(),
            sampled_secs: 0,
            lost_threads: 0,
            running: Running::default(),
            series: Vec::new(),
            heat: Vec::new(),
            steps: Steps::default(),
            levels: Default::default(),
            totals: Totals::default(),
            phases: Vec::new(),
            faults: Vec::new(),
            marks: Marks::default(),
            rate_search: None,
            duration_us: None,
            outcome: Outcome::Completed,
            reasons: Vec::new(),
            notes: watched.notes,
            thread_cpu: Vec::new(),
            recent: LatencyHistogram::new(),
            recent_lateness: LatencyHistogram::new(),
            excused_skips: 0,
            excused_refusals: 0,
            counting: Counting::No,
            done: DoneCount::default(),
            is_endless: false,
            is_stage_ended: false,
            lost_by_second: Vec::new(),
            service: Service::default(),
            stored_owed: 0,
        }
    }

    /// Every stage in turn, until one cannot be gone on from.
    pub(super) fn conduct(&mut self) {
        self.marks.start = Some(self.mark());
        let measured_any = self.plan.scenario.stages.iter().any(|stage| stage.measured);
        let (mut have_connected, mut settles) = (false, false);
        for stage in 0..self.plan.scenario.stages.len() {
            let measured = self.plan.scenario.stages[stage].measured || !measured_any;
            let publishes = self.plan.publishes_in(stage);
            let connects = self.plan.connects_in(stage);
            if self.marks.connected.is_none() && (publishes || (have_connected && !connects)) {
                self.marks.connected = Some(self.mark());
                settles = !publishes && !self.plan.scenario.stages[stage].has_client_steps();
            }
            have_connected |= connects;
            match (measured && publishes, self.plan.scenario.search) {
                (true, Some(search)) => self.search(stage, search),
                _ => {
                    let (warm_up_us, _) =
                        self.plan.scenario.margins_of(&self.plan.scenario.stages[stage]);
                    match (measured, warm_up_us) {
                        (false, _) => self.count(Counting::No),
                        (true, 0) => self.take_figures(),
                        (true, _) => self.count(Counting::Warming),
                    }
                    self.run_stage(stage, StagePace::Own);
                }
            }
            if publishes {
                self.drain();
            }
            self.await_stored(stage);
            // Otherwise a cool-down came before.
            if measured && self.counting == Counting::Yes {
                self.marks.measured_to = Some(self.mark());
            }
            if publishes {
                self.listen_on();
            }
            if std::mem::take(&mut settles) {
                self.marks.settled = Some(self.mark());
            }
            // Everybody is where the stage was to bring them: a peak between two seconds.
            let standing = self.standing();
            self.totals.connections_max = self.totals.connections_max.max(standing.connections);
            self.look_for_relay(standing.connections);
            if self.is_over() {
                break;
            }
        }
        self.count(Counting::No);
        if self.marks.connected.is_none() {
            self.marks.connected = Some(self.mark());
        }
    }

    /// What is measured of a process that only passes clients on is not the broker's.
    fn look_for_relay(&mut self, clients: u64) {
        let Some(relay) = self.relay.as_mut().and_then(|watch| watch.look(clients)) else { return };
        self.relay = None;
        let is_asked_for = self.found.is_none() && self.broker_load.is_some();
        if !is_asked_for {
            (self.found, self.broker_load) = (None, None);
            self.company.unknown = Some(relay.words());
        } else {
            let words = relay.words();
            self.notes.push(format!("{words}: CPU and memory are those of the former"));
        }
    }

    pub(super) fn count(&mut self, counting: Counting) {
        self.counting = counting;
        self.sinks.count(counting);
        self.pool.order(&PoolOrder::Measure(counting));
    }

    /// Figures are taken from now on.
    fn take_figures(&mut self) {
        self.count(Counting::Yes);
        if self.marks.measured_from.is_none() {
            self.marks.measured_from = Some(self.mark());
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.outcome != Outcome::Completed
    }

    /// One stage, from its start to the end of all its programs.
    pub(super) fn run_stage(&mut self, stage: usize, pace: StagePace) {
        let model = self.plan.scenario.stages[stage].clone();
        self.done = DoneCount { stage, threads: 0 };
        let at_ns = self.clock.now_ns() + LEAD_NS;
        let margins = match self.duration_us {
            None => self.plan.scenario.margins_of(&model),
            Some(_) => (0, 0),
        };
        let duration_us = self.duration_us.take().or(model.duration_us);
        let duration_us = duration_us.map(|us| us + margins.0 + margins.1);
        let end_ns = duration_us.map(|us| at_ns + us * 1_000);
        self.pool.order(&PoolOrder::Begin { stage, at_ns, end_ns, pace });
        let mut phase = Phase {
            name: if margins.0 > 0 { WARM_UP.to_owned() } else { model.id.clone() },
            from_secs: at_ns as f64 / 1e9,
            measured: self.counting == Counting::Yes,
            ..Phase::default()
        };
        self.stage_name.clone_from(&phase.name);
        self.is_endless = duration_us.is_some_and(|us| us >= FOR_EVER_US);
        // Where clients have nothing to do, the point of the stage is its length.
        let is_hold = end_ns.is_some() && !model.has_client_steps();
        let mut script = script::with_margins(&model, margins).into_iter().peekable();
        loop {
            let now = self.clock.now_ns();
            if let Some((_, action)) = script.next_if(|(us, _)| at_ns + us * 1_000 <= now) {
                match action {
                    Action::Measure(on) => {
                        phase = self.change_figures(on, &model.id, phase);
                    }
                    action => self.act(&action),
                }
                continue;
            }
            let finished = self.done.threads >= self.alive() && script.peek().is_none();
            if (finished && !is_hold) || self.is_over() {
                break;
            }
            if std::mem::take(&mut self.is_stage_ended) || end_ns.is_some_and(|end| now >= end) {
                self.pool.order(&PoolOrder::End);
                self.await_stage_end();
                break;
            }
            let next_ns = script.peek().map(|(us, _)| at_ns + us * 1_000);
            let until_ns = [end_ns, next_ns].into_iter().flatten().min().unwrap_or(u64::MAX);
            self.follow(Duration::from_nanos(until_ns.saturating_sub(now)).min(STEP));
        }
        if self.is_over() {
            self.pool.order(&PoolOrder::End);
        }
        (self.is_endless, self.is_stage_ended) = (false, false);
        let (from_secs, to_secs) = (at_ns as f64 / 1e9, self.clock.now_ns() as f64 / 1e9);
        self.phases.push(Phase { to_secs, ..phase });
        if let Some(expected_us) = model.expected_us
            && (to_secs - from_secs) * 1e6 > expected_us as f64
        {
            let (took, expected) = (to_secs - from_secs, expected_us as f64 / 1e6);
            self.notes
                .push(format!("stage `{}` took {took:.1} s, expected {expected:.1} s", model.id));
        }
    }

    /// The end of a warm-up, or the beginning of a cool-down, in the middle of a stage: the phase
    /// that ends is noted, and the one that begins comes back.
    fn change_figures(&mut self, on: bool, stage: &str, before: Phase) -> Phase {
        if on {
            self.take_figures();
        } else {
            self.marks.measured_to = Some(self.mark());
            self.count(Counting::No);
        }
        let now_secs = self.clock.now_ns() as f64 / 1e9;
        self.phases.push(Phase { to_secs: now_secs, ..before });
        let name = if on { stage } else { COOL_DOWN };
        name.clone_into(&mut self.stage_name);
        Phase { name: name.to_owned(), from_secs: now_secs, measured: on, ..Phase::default() }
    }

    /// Threads answer an order to end with their last words on the stage.
    fn await_stage_end(&mut self) {
        let started = self.clock.now_ns();
        while self.done.threads < self.alive() && !self.is_over() {
            self.follow(STEP);
            if self.clock.now_ns() - started > ANSWER_MAX.as_nanos() as u64 {
                self.outcome = Outcome::Failed("load threads do not respond".into());
            }
        }
    }

    /// Gives messages under way their time to arrive; shorter when all have.
    pub(super) fn drain(&mut self) {
        let started = self.clock.now_ns();
        let drain_ns = self.plan.scenario.drain_us * 1_000;
        DRAIN.clone_into(&mut self.stage_name);
        while !self.is_over() {
            let waited_ns = self.clock.now_ns() - started;
            let standing = self.standing();
            let have_all = standing.received >= standing.owed && standing.in_flight == 0;
            let are_open = self.sinks.are_open(standing.published, waited_ns);
            if !are_open && (have_all || waited_ns >= drain_ns) {
                break;
            }
            self.follow(PROBE_PAUSE);
        }
        let (from_secs, to_secs) = (started as f64 / 1e9, self.clock.now_ns() as f64 / 1e9);
        self.phases.push(Phase { name: DRAIN.into(), from_secs, to_secs, measured: false });
    }

    /// What comes twice may come late, and is no reason to wait for: it is given this time ahead of
    /// anybody's leaving.
    fn listen_on(&mut self) {
        let listen_ns = LISTEN_NS.min(self.plan.scenario.drain_us * 1_000);
        let end_ns = self.clock.now_ns() + listen_ns;
        while self.clock.now_ns() < end_ns && !self.is_over() {
            self.follow(PROBE_PAUSE);
        }
        if let Some(drain) = self.phases.last_mut().filter(|phase| phase.name == DRAIN) {
            drain.to_secs = self.clock.now_ns() as f64 / 1e9;
        }
    }

    /// Whoever subscribed in this stage is given the time to get what the broker had retained: as
    /// long as some of it comes, and a drain longer.
    fn await_stored(&mut self, stage: usize) {
        let owed = self.plan.stored_in(stage);
        self.stored_owed += owed;
        let mut seen = (u64::MAX, 0);
        while owed > 0 && !self.is_over() {
            let (stored, now_ns) = (self.standing().stored, self.clock.now_ns());
            if stored != seen.0 {
                seen = (stored, now_ns);
            }
            let is_patient = now_ns - seen.1 < self.plan.scenario.drain_us * 1_000;
            if stored >= self.stored_owed || !is_patient {
                break;
            }
            self.follow(PROBE_PAUSE);
        }
    }

    /// The length of the next run of a stage.
    pub(super) fn set_stage_duration(&mut self, duration_us: u64) {
        self.duration_us = Some(duration_us);
    }

    fn alive(&self) -> usize {
        self.pool.threads().saturating_sub(self.lost_threads)
    }

    /// Where everybody stands, asked now.
    pub(super) fn standing(&mut self) -> Standing {
        self.pool.order(&PoolOrder::Probe);
        let (mut sum, mut answers) = (Standing::default(), 0);
        let started = self.clock.now_ns();
        while answers < self.alive() && self.clock.now_ns() - started < ANSWER_MAX.as_nanos() as u64
        {
            self.each_second();
            match self.pool.next(STEP) {
                Some(PoolNews::Standing(one)) => {
                    answers += 1;
                    sum.owed += one.owed;
                    sum.received += one.received;
                    sum.in_flight += one.in_flight;
                    sum.published += one.published;
                    sum.connects_ok += one.connects_ok;
                    sum.connections += one.connections;
                    sum.stored += one.stored;
                }
                Some(news) => self.on_news(news),
                None => {}
            }
        }
        sum
    }

    pub(super) fn mark(&mut self) -> Mark {
        let standing = self.standing();
        let at_secs = self.clock.now_ns() as f64 / 1e9;
        let sample = self.broker_load.as_mut().and_then(|load| load.sample(at_secs));
        Mark {
            at_secs,
            broker_cpu_secs: sample.and_then(|sample| sample.cpu_secs),
            broker_wait_secs: self.broker_load.as_ref().and_then(Sampler::wait_secs),
            own_cpu_secs: self.own_load.sample(at_secs).and_then(|sample| sample.cpu_secs),
            company_cpu_secs: self.company.cpu_secs(at_secs),
            machine: MachineTimes::now(),
            broker_memory_bytes: sample.and_then(|sample| sample.memory_bytes),
            standing,
        }
    }

    /// Takes news for at most `timeout`.
    pub(super) fn follow(&mut self, timeout: Duration) {
        self.each_second();
        if let Some(news) = self.pool.next(timeout) {
            self.on_news(news);
        }
        if self.stop.load(Ordering::Relaxed) && !self.is_over() {
            if std::mem::take(&mut self.is_endless) {
                // The stage has no other end. The run goes on to its own, unless told again.
                self.stop.store(false, Ordering::Relaxed);
                self.is_stage_ended = true;
            } else {
                self.outcome = Outcome::Interrupted("stopped by the user".into());
            }
        }
    }

    fn on_news(&mut self, news: PoolNews) {
        match news {
            PoolNews::StageDone { stage } if stage == self.done.stage => self.done.threads += 1,
            PoolNews::StageDone { .. } | PoolNews::Standing(_) => {}
            PoolNews::Tick(tick) => self.on_tick(&tick),
            PoolNews::Lost { threads, why } => {
                self.lost_threads += threads;
                self.reasons.push(format!("part of the load is missing: {why}"));
                if self.alive() == 0 {
                    self.outcome = Outcome::Failed(why);
                }
            }
        }
    }

    /// Samples the processes when a second has passed.
    fn each_second(&mut self) {
        let now_secs = self.clock.now_ns() as f64 / 1e9;
        if now_secs as u64 <= self.sampled_secs {
            return;
        }
        self.sampled_secs = now_secs as u64;
        self.own_load.sample(now_secs);
        if let Some(load) = &mut self.broker_load {
            load.sample(now_secs);
        }
    }

    /// A thread's account of a second; when all are in, the second is complete.
    pub(super) fn on_tick(&mut self, tick: &Tick) {
        add_totals(&mut self.totals, &tick.totals);
        let asks = self.plan.any_asks;
        if asks {
            self.recent.merge(&tick.latencies.round_trip);
        } else {
            tick.latencies.end_to_end.iter().for_each(|level| self.recent.merge(level));
        }
        self.recent_lateness.merge(&tick.latencies.lateness);
        for (second, bins) in &tick.served {
            self.service.note(*second, *bins);
        }
        let alive = self.alive();
        let gathered = self.gathering.entry(tick.at_secs).or_default();
        gathered.ticks += 1;
        gathered.add(tick);
        // Threads may run a second apart at most, unless one hangs; older seconds are then
        // complete.
        let complete: Vec<u32> = self
            .gathering
            .iter()
            .filter(|(at_secs, gathered)| {
                gathered.ticks >= alive || **at_secs + SECONDS_APART_MAX < tick.at_secs
            })
            .map(|(at_secs, _)| *at_secs)
            .collect();
        for at_secs in complete {
            if let Some(gathered) = self.gathering.remove(&at_secs) {
                self.complete_second(at_secs, &gathered);
            }
        }
    }

    fn is_measuring(&self) -> bool {
        self.marks.measured_from.is_some() && self.marks.measured_to.is_none()
    }

    /// What is left when the pool has gone.
    pub(super) fn complete_rest(&mut self) {
        for (at_secs, gathered) in std::mem::take(&mut self.gathering) {
            self.complete_second(at_secs, &gathered);
        }
    }

    fn complete_second(&mut self, at_secs: u32, gathered: &Gathered) {
        let tick = &gathered.sum;
        let running = &mut self.running;
        running.connections += tick.connections;
        running.lost += tick.lost;
        running.duplicated += tick.duplicated;
        let totals = &tick.totals;
        let aside = totals.received_retained + totals.wills_received + totals.received_foreign;
        running.backlog +=
            tick.owed as i64 - totals.received_all() as i64 + aside as i64 + tick.duplicated as i64;
        let latencies = &tick.latencies;
        let end_to_end = latencies.all_end_to_end();
        let publish_ack = latencies.all_publish_ack();
        let second = Second {
            at_secs,
            connections: running.connections.max(0) as u64,
            connects: totals.connects_ok,
            connect_failures: totals.connects_failed,
            disconnects: totals.disconnects + totals.connections_lost,
            subscribes: totals.subscribes_ok,
            scheduled: tick.scheduled.round() as u64,
            publishing: tick.publishing,
            published: totals.published_all(),
            acknowledged: totals.acknowledged,
            received: totals.received_all(),
            pubacks_sent: totals.pubacks_sent,
            pubacks_received: totals.pubacks_received,
            bytes_in: totals.bytes_in,
            bytes_out: totals.bytes_out,
            backlog: running.backlog,
            lost_so_far: running.lost.max(0) as u64,
            duplicated_so_far: running.duplicated,
            end_to_end: LatencyPoint::of(&end_to_end),
            publish_ack: LatencyPoint::of(&publish_ack),
            connect: LatencyPoint::of(&latencies.connect),
            round_trip: LatencyPoint::of(&latencies.round_trip),
            lateness_p99_us: latencies.lateness.micros_at(99.0),
            spread: None,
        };
        self.totals.connections_max = self.totals.connections_max.max(second.connections);
        let unplanned = totals.connections_lost - totals.connections_cut;
        if unplanned > 0 {
            self.lost_by_second.push((at_secs, unplanned));
        }
        if self.is_measuring() {
            self.thread_cpu.push(gathered.thread_cpu_max);
        }
        self.series.push(second);
        self.steps.add(at_secs, latencies);
        self.add_levels(at_secs, tick);
        self.add_heat(at_secs, LatencyKind::EndToEnd, &end_to_end);
        self.add_heat(at_secs, LatencyKind::PublishAck, &publish_ack);
        self.add_heat(at_secs, LatencyKind::Connect, &latencies.connect);
        self.add_heat(at_secs, LatencyKind::RoundTrip, &latencies.round_trip);
        let broker = self.broker_load.as_ref().and_then(Sampler::last);
        let agents = self.pool.agents();
        (self.on_progress)(&Progress {
            stage: &self.stage_name,
            second: &second,
            totals: &self.totals,
            clients: self.plan.scenario.groups.iter().map(|group| group.count).sum(),
            agents: &agents,
            length: self.length,
            broker_cpu_percent: broker.and_then(|sample| sample.cpu_percent),
            broker_memory_bytes: broker.and_then(|sample| sample.memory_bytes),
        });
    }

    /// What happened at each QoS.
    fn add_levels(&mut self, at_secs: u32, tick: &Tick) {
        for (qos, level) in self.levels.iter_mut().enumerate() {
            let second = QosSecond {
                at_secs,
                published: tick.totals.published[qos],
                acknowledged: tick.latencies.publish_ack[qos].count(),
                received: tick.totals.received[qos],
                end_to_end: LatencyPoint::of(&tick.latencies.end_to_end[qos]),
                publish_ack: LatencyPoint::of(&tick.latencies.publish_ack[qos]),
            };
            if !second.is_empty() {
                level.push(second);
            }
        }
    }

    fn add_heat(&mut self, at_secs: u32, kind: LatencyKind, histogram: &LatencyHistogram) {
        if histogram.is_empty() {
            return;
        }
        let second = HeatSecond::of(at_secs, histogram);
        match self.heat.iter_mut().find(|heat| heat.kind == kind) {
            Some(heat) => heat.seconds.push(second),
            None => self.heat.push(Heat { kind, seconds: vec![second] }),
        }
    }

    // --- Faults

    fn act(&mut self, action: &Action) {
        let at_secs = self.clock.now_ns() as f64 / 1e9;
        let Action::Fault(fault) = action else { return };
        let what = fault.name();
        let done = match *fault {
            Fault::Cut { group, share } => {
                self.pool.order(&PoolOrder::Cut { group, share });
                Ok(())
            }
            Fault::CutLinks { who, directions } => self.ensemble.cut(who, directions),
            Fault::Mend { who } => self.ensemble.mend(who),
            Fault::Kill { who } => self.on(who, BrokerProcess::kill),
            Fault::Stop { who } => self.on(who, BrokerProcess::stop),
            Fault::Pause { who } => self.on(who, BrokerProcess::pause),
            Fault::Resume { who } => self.on(who, BrokerProcess::resume),
            Fault::Restart { who } => self.on(who, BrokerProcess::restart),
        };
        let pid = self.broker.as_ref().and_then(BrokerProcess::pid);
        if let (Some(load), Some(pid)) = (&mut self.broker_load, pid) {
            load.follow(pid);
            self.own_load.leave_out(pid);
        }
        let note = match done {
            Ok(()) => String::new(),
            Err(error) => {
                self.outcome = Outcome::Failed(format!("fault `{what}`: {error}"));
                error.to_string()
            }
        };
        self.faults.push(FaultRecord {
            what: what.to_owned(),
            at_secs,
            note: if note.is_empty() { member_words(fault.party()) } else { note },
            ..FaultRecord::default()
        });
    }

    fn on(
        &mut self,
        who: Party,
        act: fn(&mut BrokerProcess) -> Result<(), FaultError>,
    ) -> Result<(), FaultError> {
        match who {
            Party::Broker(_) => act(self.broker.as_mut().ok_or(FaultError::NoProcess)?),
            who => {
                let words = "a fault changed the processes of the cluster";
                self.company.unknown = Some(words.to_owned());
                self.ensemble.on(who, act)
            }
        }
    }
}

impl Gathered {
    fn add(&mut self, tick: &Tick) {
        let sum = &mut self.sum;
        add_totals(&mut sum.totals, &tick.totals);
        sum.connections += tick.connections;
        sum.owed += tick.owed;
        sum.lost += tick.lost;
        sum.duplicated += tick.duplicated;
        sum.scheduled += tick.scheduled;
        sum.publishing += tick.publishing;
        sum.latencies.merge(&tick.latencies);
        if tick.wall_ns >= WALL_NS_MIN {
            let percent = tick.cpu_ns as f64 / tick.wall_ns as f64 * 100.0;
            self.thread_cpu_max = self.thread_cpu_max.max(percent);
        }
    }
}

/// Which of the cluster it was done to.
fn member_words(party: Option<Party>) -> String {
    match party {
        Some(Party::Node(which)) => format!("node {which}"),
        Some(Party::Engine(at)) => format!("engine {at}"),
        Some(Party::Broker(_)) | None => String::new(),
    }
}

pub(super) const WARM_UP: &str = "warm-up";
const COOL_DOWN: &str = "cool-down";
/// The time in which what is under way may still arrive.
pub const DRAIN: &str = "drain";
/// From the order to begin to the beginning, so that all threads are in time.
const LEAD_NS: u64 = 20_000_000;
/// The longest wait without looking at the clock.
const STEP: Duration = Duration::from_millis(50);
/// After the last message that is owed.
const LISTEN_NS: u64 = 1_000_000_000;
const PROBE_PAUSE: Duration = Duration::from_millis(10);
/// A thread that says nothing for so long is given up.
const ANSWER_MAX: Duration = Duration::from_secs(30);
const SECONDS_APART_MAX: u32 = 5;
/// Shorter ticks (the last one) say little about CPU.
const WALL_NS_MIN: u64 = 500_000_000;
