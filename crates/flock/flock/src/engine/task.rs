//! A client's program: the steps of its life cycle, one after another, each as soon as the last is
//! done.
//!
//! Steps that wait (for time, for the broker) leave a [`Wait`] behind; whoever brings what is
//! waited for sets the task ready and calls [`Client::step`]. Times are **logical**: a delay that
//! ends at 10.000 s makes the next step start at 10.000 s, even if the thread came to it a little
//! later, so that ramps and schedules do not drift.

use client::{ConnectOptions, PeerTakes};
use codec::{FilterBuf, Properties, Property, PropertyBuf, Publish, QoS, Reason, RetainHandling};
use codec::{SubscribeOptions, TopicBuf};

use super::client::{Client, Hearing, Link};
use super::context::{Context, TimerKind};
use super::plan::{Op, Plan};
use super::publish::CATCH_UP_NS_MAX;
use flock_measure::LatencyKind;
use flock_model::{Disconnect, Rate, Receive, Subscribe, SubscriptionId, Version};

/// Where a client stands in its program.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) wait: Wait,
    pc: u32,
    /// When the last step ended, in the schedule's time.
    logical_ns: u64,
    /// The valid timer.
    pub(super) timer_ns: u64,
    /// When the request that is waited for was sent.
    asked_ns: u64,
    loops: Vec<Round>,
    /// The stage is over, and until then the client may send what was due in it.
    pub(super) give_up_ns: Option<u64>,
}

/// What the program waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing left to do.
    #[default]
    Idle,
    /// Not waiting.
    Ready,
    /// The start of the stage, a delay, a paced round.
    Time,
    Connecting,
    Publishing,
    /// So many SUBACKs or UNSUBACKs.
    Answers(u32),
    /// The acknowledgements of the client's own messages, before it leaves in this way.
    Settled(Disconnect),
    /// The broker closing a silent connection.
    Silence,
    Stalled,
    /// So many messages that a `receive` counts itself (with a pattern or of one subscription).
    Messages(u64),
    /// So many messages of any kind.
    AnyMessages(u64),
}

#[derive(Debug)]
struct Round {
    start: u32,
    done: u64,
    times: Option<u64>,
    rate: Option<Rate>,
    started_ns: u64,
}

/// A reason code, and what the broker says to it.
pub(super) fn described(reason: Reason, text: Option<&str>) -> String {
    match text {
        Some(text) => format!("{reason} (0x{:02X}), {text}", reason.0),
        None => format!("{reason} (0x{:02X})", reason.0),
    }
}

impl Task {
    /// What was waited for is there.
    pub(super) fn ready(&mut self, now_ns: u64) {
        self.wait = Wait::Ready;
        self.logical_ns = now_ns;
        self.timer_ns = u64::MAX;
    }

    pub(super) fn logical_ns(&self) -> u64 {
        self.logical_ns
    }

    pub(super) fn asked_ns(&self) -> u64 {
        self.asked_ns
    }
}

impl Client {
    /// Begins the stage's program, at the stage's start.
    pub(super) fn begin(&mut self, ctx: &mut Context) {
        if ctx.plan.program(ctx.stage, self.group.index()).is_empty() {
            return;
        }
        self.task = Task { wait: Wait::Time, logical_ns: ctx.stage_at_ns, ..Task::default() };
        self.set_task_timer(ctx.stage_at_ns, ctx);
        ctx.active += 1;
    }

    /// The stage is over: whatever the client was at, it stops.
    pub(super) fn end_stage(&mut self, ctx: &mut Context) {
        if self.task.wait == Wait::Idle {
            return;
        }
        if self.task.wait == Wait::Stalled {
            self.set_stalled(false, ctx);
        }
        if self.task.wait == Wait::Publishing && self.catch_up(ctx) {
            return;
        }
        if self.unanswered_ns(ctx).is_some_and(|waited_ns| waited_ns > CATCH_UP_NS_MAX) {
            let told = "no answer at the end of the stage, other steps were skipped";
            return self.give_up(told, ctx);
        }
        self.stop_publishing(ctx);
        self.finish(ctx);
    }

    fn finish(&mut self, ctx: &mut Context) {
        self.task.wait = Wait::Idle;
        self.task.timer_ns = u64::MAX;
        self.task.loops = Vec::new();
        self.task.give_up_ns = None;
        ctx.active -= 1;
    }

    /// There is no connection and will be none: steps that need one are skipped with the rest.
    pub(super) fn on_link_hopeless(&mut self, ctx: &mut Context) {
        match self.task.wait {
            Wait::Connecting | Wait::Settled(_) => self.task.ready(ctx.now_ns()),
            Wait::Publishing | Wait::Answers(_) | Wait::Messages(_) | Wait::AnyMessages(_) => {
                self.give_up(UNCONNECTED, ctx);
            }
            _ => {}
        }
    }

    pub(super) fn give_up(&mut self, why: &str, ctx: &mut Context) {
        ctx.tally.error("program", why, || self.id(&ctx.plan));
        ctx.tally.totals.programs_cut_short += 1;
        let from = self.task.pc as usize;
        let plan = std::sync::Arc::clone(&ctx.plan);
        let ops = plan.program(ctx.stage, self.group.index());
        let asked = ops.get(from.wrapping_sub(1));
        if let (Wait::Answers(_), Some(Op::Subscribe(_))) = (self.task.wait, asked) {
            let waited_ns = ctx.now_ns().saturating_sub(self.task.asked_ns);
            ctx.tally.unfinished(LatencyKind::Subscribe, 0, waited_ns, 1);
        }
        if self.publishing.as_ref().is_some_and(|publishing| publishing.is_active()) {
            self.abandon_publishing(ctx);
        }
        for op in ops.iter().skip(from) {
            if let Op::Publish(command) = op {
                self.skip_publishing(*command, ctx);
            }
        }
        self.finish(ctx);
    }

    fn set_task_timer(&mut self, at_ns: u64, ctx: &mut Context) {
        self.task.timer_ns = at_ns;
        ctx.timers.set(at_ns, self.at, TimerKind::Task);
    }

    pub(super) fn wake_at(&mut self, at_ns: u64, ctx: &mut Context) {
        self.set_task_timer(at_ns, ctx);
    }

    pub(super) fn on_task_timer(&mut self, ctx: &mut Context) {
        match self.task.wait {
            // The logical time was set when the timer was.
            Wait::Time => self.task.wait = Wait::Ready,
            Wait::Stalled => {
                self.set_stalled(false, ctx);
                self.task.ready(ctx.now_ns());
            }
            Wait::Settled(how) => {
                self.task.ready(ctx.now_ns());
                if self.machine.is_pinging() && self.link == Link::Up {
                    self.lost_in_silence(ctx);
                } else {
                    ctx.ledger.unreleased += self.unreleased() as u64;
                }
                self.disconnect(how, ctx);
            }
            Wait::Silence => {
                self.not_missed(ctx);
                self.close(ctx);
                self.task.ready(ctx.now_ns());
            }
            Wait::Publishing if self.task.give_up_ns.is_some_and(|at| at <= ctx.now_ns()) => {
                self.stop_publishing(ctx);
                self.finish(ctx);
            }
            Wait::Answers(_) => self.give_up(UNANSWERED, ctx),
            Wait::Messages(_) | Wait::AnyMessages(_) => {
                ctx.tally.totals.receives_failed += 1;
                ctx.tally
                    .error("receive", "not all messages arrived in time", || self.id(&ctx.plan));
                self.task.ready(ctx.now_ns());
            }
            _ => {}
        }
    }

    /// Runs steps until one has to wait.
    pub(super) fn step(&mut self, ctx: &mut Context) {
        let plan = std::sync::Arc::clone(&ctx.plan);
        let ops = plan.program(ctx.stage, self.group.index());
        for _ in 0..STEPS_MAX {
            if self.task.wait == Wait::Publishing {
                self.pump(ctx);
            }
            if self.task.wait != Wait::Ready {
                return;
            }
            if self.task.give_up_ns.is_some() {
                return self.finish(ctx);
            }
            match ops.get(self.task.pc as usize) {
                Some(op) => {
                    self.task.pc += 1;
                    self.execute(op, &plan, ctx);
                }
                None => self.finish(ctx),
            }
        }
        ctx.again.push(self.at);
    }

    fn execute(&mut self, op: &Op, plan: &Plan, ctx: &mut Context) {
        let needs_link =
            matches!(op, Op::Publish(_) | Op::Subscribe(_) | Op::Unsubscribe(_) | Op::Receive(_));
        if needs_link && !self.is_reachable() {
            // The step itself is one of those that are left out.
            self.task.pc -= 1;
            return self.give_up(UNCONNECTED, ctx);
        }
        match op {
            Op::Connect(command) => {
                if self.link != Link::Up {
                    self.task.wait = Wait::Connecting;
                    self.connect(*command, ctx);
                }
            }
            Op::Disconnect(how) => self.settle_and_disconnect(*how, ctx),
            Op::Publish(command) => self.begin_publishing(*command, ctx),
            Op::Subscribe(command) if self.unfit_subscription(*command, plan).is_some() => {
                let why = self.unfit_subscription(*command, plan).unwrap_or_default();
                self.task.pc -= 1;
                self.give_up(why, ctx);
            }
            Op::Subscribe(command) => {
                self.task.asked_ns = ctx.now_ns();
                let asked = self.subscribe(*command, plan, ctx);
                self.await_answers(asked, ctx);
            }
            Op::Unsubscribe(from) => {
                self.task.asked_ns = ctx.now_ns();
                let asked = self.unsubscribe(from, plan, ctx);
                self.await_answers(asked, ctx);
            }
            Op::Receive(receive) => self.receive(receive, ctx),
            Op::Loop { times, rate, end } => self.enter_loop(*times, *rate, *end),
            Op::Again { .. } => self.next_round(ctx),
            Op::Delay(delay) => {
                let clients = plan.scenario.group(self.group).count;
                self.wait_until(
                    self.task.logical_ns + delay.wait_us(self.index, clients) * 1_000,
                    ctx,
                );
            }
            Op::StartTimer(timer) => {
                let now = ctx.now_ns();
                let watches = &mut self.extra.get_or_insert_default().stopwatches;
                watches.retain(|(running, _)| running != timer);
                watches.push((*timer, now));
            }
            Op::StopTimer(timer) => self.stop_timer(*timer, ctx),
            Op::Stall { duration_ns } => {
                self.set_stalled(true, ctx);
                self.task.wait = Wait::Stalled;
                self.set_task_timer(ctx.now_ns() + duration_ns, ctx);
            }
        }
    }

    /// Waits for a time of the schedule; a time that has passed is kept as the logical one.
    fn wait_until(&mut self, at_ns: u64, ctx: &mut Context) {
        self.task.logical_ns = at_ns;
        if at_ns > ctx.now_ns() {
            self.task.wait = Wait::Time;
            self.set_task_timer(at_ns, ctx);
        }
    }

    fn enter_loop(&mut self, times: Option<u64>, rate: Option<Rate>, end: usize) {
        if times == Some(0) {
            self.task.pc = end as u32 + 1;
            return;
        }
        self.task.loops.push(Round {
            start: self.task.pc,
            done: 0,
            times,
            rate,
            started_ns: self.task.logical_ns,
        });
    }

    fn next_round(&mut self, ctx: &mut Context) {
        let Some(round) = self.task.loops.last_mut() else { return };
        round.done += 1;
        if round.times.is_some_and(|times| round.done >= times) {
            self.task.loops.pop();
            return;
        }
        self.task.pc = round.start;
        if let Some(rate) = round.rate {
            let due_ns = round.started_ns + rate.due_us(round.done) * 1_000;
            self.wait_until(due_ns, ctx);
        }
    }

    /// The run is over: what still runs has run for so long at least.
    pub(super) fn stop_timers(&mut self, ctx: &mut Context) {
        let now_ns = ctx.clock.now_ns();
        for (timer, started_ns) in self.extra.iter_mut().flat_map(|it| it.stopwatches.drain(..)) {
            ctx.tally.unstopped(timer, now_ns - started_ns);
        }
    }

    fn stop_timer(&mut self, timer: u16, ctx: &mut Context) {
        let Some(extra) = &mut self.extra else { return };
        let at = extra.stopwatches.iter().position(|(running, _)| *running == timer);
        if let Some(at) = at {
            let (_, started_ns) = extra.stopwatches.swap_remove(at);
            let nanos = ctx.clock.now_ns() - started_ns;
            ctx.tally.timers[usize::from(timer)].record_nanos(nanos);
        }
    }

    /// Whoever says good-bye waits for the acknowledgements of what it published, as long as a
    /// drain lasts: a message given up in flight would be neither promised nor refused.
    fn settle_and_disconnect(&mut self, how: Disconnect, ctx: &mut Context) {
        let is_polite = matches!(how, Disconnect::Message | Disconnect::MessageWithWill);
        if is_polite && self.link == Link::Up {
            self.ask_whether_it_is_there(ctx);
        }
        if is_polite && self.link == Link::Up && self.is_unsettled() {
            self.task.wait = Wait::Settled(how);
            let drain_ns = ctx.plan.scenario.drain_us * 1_000;
            return self.set_task_timer(ctx.now_ns() + drain_ns, ctx);
        }
        self.disconnect(how, ctx);
    }

    fn is_unsettled(&self) -> bool {
        self.in_flight() > 0 || self.machine.is_pinging() || self.unreleased() > 0
    }

    /// QoS 2 messages that came and whose PUBREL did not. Who holds acknowledgements back has not
    /// asked for all of them.
    fn unreleased(&self) -> usize {
        if self.machine.leaves_acks() { 0 } else { self.machine.unreleased() }
    }

    /// Something that the client waits for before it leaves may be there.
    pub(super) fn on_settled(&mut self, now_ns: u64, ctx: &mut Context) {
        if let Wait::Settled(how) = self.task.wait
            && !self.is_unsettled()
        {
            self.task.ready(now_ns);
            self.disconnect(how, ctx);
        }
    }

    fn disconnect(&mut self, how: Disconnect, ctx: &mut Context) {
        if self.link != Link::Up {
            return self.close(ctx);
        }
        match how {
            Disconnect::Message => self.leave(Reason::NORMAL_DISCONNECTION, ctx),
            Disconnect::MessageWithWill if self.machine.version() == codec::Version::V5 => {
                self.leave(Reason::DISCONNECT_WITH_WILL, ctx);
            }
            Disconnect::MessageWithWill | Disconnect::Close => self.close(ctx),
            Disconnect::Silent => {
                self.fall_silent(ctx);
                self.task.wait = Wait::Silence;
                self.set_task_timer(ctx.now_ns() + self.silence_max_ns(), ctx);
                return;
            }
        }
        self.task.logical_ns = ctx.now_ns().max(self.task.logical_ns);
    }

    // --- Subscribing

    /// What a broker's CONNACK rules out is not asked for (MQTT-3.2.2-18 ff.).
    fn unfit_subscription(&self, command: u16, plan: &Plan) -> Option<&'static str> {
        let takes = self.machine.peer_takes();
        if takes == PeerTakes::default() {
            return None;
        }
        let subscribe = &plan.subscribes[usize::from(command)];
        let has = |is: fn(&str) -> bool| {
            subscribe.to.iter().any(|&subscription| {
                let model = plan.scenario.subscription(subscription);
                let mut text = String::new();
                plan.filters_of(self.group, self.index, model).iter().any(|filter| {
                    text.clear();
                    plan.write_filter(model, filter, &mut text);
                    is(&text)
                })
            })
        };
        match () {
            () if !takes.identifiers && subscribe.identifier.is_some() => Some(NO_IDENTIFIERS),
            () if !takes.shared && has(|filter| filter.starts_with("$share/")) => Some(NO_SHARED),
            () if !takes.wildcards && has(|filter| filter.contains(['+', '#'])) => {
                Some(NO_WILDCARDS)
            }
            () => None,
        }
    }

    /// Each may take as long as a CONNACK.
    fn await_answers(&mut self, asked: u32, ctx: &mut Context) {
        if asked > 0 {
            self.task.wait = Wait::Answers(asked);
            let timeout_us = self.connect_command(ctx).map_or(0, |command| command.timeout_us);
            self.set_task_timer(ctx.now_ns() + timeout_us * 1_000, ctx);
        }
    }

    /// Sends the SUBSCRIBE packets of a command; returns how many.
    fn subscribe(&mut self, command: u16, plan: &Plan, ctx: &mut Context) -> u32 {
        let subscribe = &plan.subscribes[usize::from(command)];
        let mut asked = 0;
        for &subscription in &subscribe.to {
            let known = self.hearing.iter_mut().find(|hearing| {
                hearing.subscription == subscription && hearing.until_ns == u64::MAX
            });
            if known.is_none() {
                self.hearing.push(Hearing {
                    command,
                    subscription,
                    since_ns: u64::MAX,
                    until_ns: u64::MAX,
                    left_ns: u64::MAX,
                });
            }
            asked += self.send_subscribe(subscribe, subscription, plan, ctx);
        }
        asked
    }

    fn send_subscribe(
        &mut self,
        subscribe: &Subscribe,
        subscription: SubscriptionId,
        plan: &Plan,
        ctx: &mut Context,
    ) -> u32 {
        if self.link != Link::Up {
            // It is asked for as soon as the connection is back.
            return 0;
        }
        let mut properties = PropertyBuf::new();
        if let (codec::Version::V5, Some(id)) = (self.machine.version(), subscribe.identifier) {
            properties.push(Property::SubscriptionId(id));
        }
        let options = subscribe_options(subscribe);
        let model = plan.scenario.subscription(subscription);
        let filters = plan.filters_of(self.group, self.index, model);
        ctx.lend(&mut self.outbox);
        let (mut list, mut text, mut packets) = (FilterBuf::new(), String::new(), 0);
        let all = filters.len();
        for (n, filter) in filters.iter().enumerate() {
            text.clear();
            plan.write_filter(model, filter, &mut text);
            list.push(&text, options);
            if (n + 1) % FILTERS_PER_PACKET == 0 || n as u64 + 1 == all {
                let properties = properties.as_properties();
                let sent = self.machine.subscribe(list.as_filters(), properties, &mut self.outbox);
                packets += u32::from(sent.is_ok());
                if let Err(why) = sent {
                    ctx.tally.totals.subscribes_failed += list.as_filters().iter().count() as u64;
                    ctx.tally.error("subscribe", &why.to_string(), || self.id(&ctx.plan));
                }
                list.clear();
            }
        }
        packets
    }

    pub(super) fn resubscribe(&mut self, again: bool, ctx: &mut Context) {
        if !again {
            return;
        }
        let plan = std::sync::Arc::clone(&ctx.plan);
        let mut asked = 0;
        for at in 0..self.hearing.len() {
            let hearing = self.hearing[at];
            if hearing.until_ns == u64::MAX {
                let subscribe = &plan.subscribes[usize::from(hearing.command)];
                asked += self.send_subscribe(subscribe, hearing.subscription, &plan, ctx);
            }
        }
        if let Wait::Answers(_) = self.task.wait {
            self.task.wait = Wait::Ready;
            self.await_answers(asked, ctx);
        }
    }

    pub(super) fn on_subscribed(&mut self, reasons: &[u8], now_ns: u64, ctx: &mut Context) {
        ctx.tally.latency(LatencyKind::Subscribe, 0, now_ns.saturating_sub(self.task.asked_ns));
        self.subscribed_ns = now_ns;
        let refused = reasons.iter().filter(|&&reason| reason >= 0x80).count() as u64;
        ctx.tally.totals.subscribes_failed += refused;
        ctx.tally.totals.subscribes_ok += reasons.len() as u64 - refused;
        if let Some(&reason) = reasons.iter().find(|&&reason| reason >= 0x80) {
            let text = format!("refused: {} (0x{reason:02X})", Reason(reason));
            ctx.tally.error("subscribe", &text, || self.id(&ctx.plan));
        }
        self.last_break(|last| last.to_ns = last.to_ns.min(now_ns));
        self.note_grants(reasons, ctx);
        for hearing in &mut self.hearing {
            // A subscription that is renewed after a break keeps its beginning.
            if hearing.since_ns == u64::MAX {
                hearing.since_ns = now_ns;
            }
        }
        self.on_answer(now_ns, ctx);
    }

    /// A broker may grant less than was asked for (MQTT-3.8.4-7): no delivery is wrong for it, but
    /// the run is not what its scenario asks for. Which filter an answer is for is not looked up:
    /// where a client asks for several QoS, what is below all of them counts.
    fn note_grants(&mut self, reasons: &[u8], ctx: &mut Context) {
        let subscribes = &ctx.plan.subscribes;
        let asked = |hearing: &Hearing| subscribes[usize::from(hearing.command)].qos as u8;
        let Some(asked) = self.hearing.iter().map(asked).min() else { return };
        for &granted in reasons.iter().filter(|&&reason| reason < asked) {
            self.granted = self.granted.min(granted);
            ctx.tally.totals.subscribes_lowered += 1;
        }
    }

    fn on_answer(&mut self, now_ns: u64, ctx: &mut Context) {
        match self.task.wait {
            Wait::Answers(0 | 1) => self.task.ready(now_ns),
            Wait::Answers(left) => self.await_answers(left - 1, ctx),
            _ => {}
        }
    }

    fn unsubscribe(&mut self, from: &[SubscriptionId], plan: &Plan, ctx: &mut Context) -> u32 {
        let now = ctx.now_ns();
        let (mut list, mut text, mut asked) = (TopicBuf::new(), String::new(), 0);
        ctx.lend(&mut self.outbox);
        for &subscription in from {
            for hearing in &mut self.hearing {
                if hearing.subscription == subscription {
                    hearing.until_ns = hearing.until_ns.min(now);
                }
            }
            let model = plan.scenario.subscription(subscription);
            let filters = plan.filters_of(self.group, self.index, model);
            for (n, filter) in filters.iter().enumerate() {
                text.clear();
                plan.write_filter(model, filter, &mut text);
                list.push(&text);
                if (n + 1) % FILTERS_PER_PACKET == 0 || n as u64 + 1 == filters.len() {
                    let (topics, none) = (list.as_topics(), Properties::EMPTY);
                    asked +=
                        u32::from(self.machine.unsubscribe(topics, none, &mut self.outbox).is_ok());
                    list.clear();
                }
            }
        }
        asked
    }

    pub(super) fn on_unsubscribed(&mut self, reasons: &[u8], now_ns: u64, ctx: &mut Context) {
        let knows = self.hearing.iter().all(|hearing| hearing.since_ns != u64::MAX);
        let is_wrong = |reason: Reason| {
            reason.is_error() || (reason == Reason::NO_SUBSCRIPTION_EXISTED && knows)
        };
        if let Some(&reason) = reasons.iter().find(|&&reason| is_wrong(Reason(reason))) {
            let failed = reasons.iter().filter(|&&reason| is_wrong(Reason(reason))).count();
            ctx.tally.totals.unsubscribes_failed += failed as u64;
            let text = format!("refused: {} (0x{reason:02X})", Reason(reason));
            ctx.tally.error("unsubscribe", &text, || self.id(&ctx.plan));
        }
        ctx.tally.totals.unsubscribes_ok += 1;
        if matches!(self.task.wait, Wait::Answers(0 | 1)) {
            for hearing in self.hearing.iter_mut().filter(|one| one.until_ns != u64::MAX) {
                hearing.left_ns = hearing.left_ns.min(now_ns);
                self.has_left = true;
            }
        }
        self.on_answer(now_ns, ctx);
    }

    // --- Receiving

    fn receive(&mut self, receive: &Receive, ctx: &mut Context) {
        if receive.count == 0 {
            return;
        }
        let counts_any = receive.message_pattern.is_none()
            && (receive.from.is_none() || self.hearing.len() <= 1);
        if counts_any {
            if self.unclaimed >= receive.count {
                self.unclaimed -= receive.count;
                return;
            }
            self.task.wait = Wait::AnyMessages(receive.count);
        } else {
            // Anchored: the whole payload has to match.
            let pattern = receive
                .message_pattern
                .as_ref()
                .and_then(|pattern| regex_lite::Regex::new(&format!("^(?s:{pattern})$")).ok());
            self.extra.get_or_insert_default().pattern = pattern;
            self.task.wait = Wait::Messages(receive.count);
        }
        self.task.timer_ns = u64::MAX;
        if let Some(timeout_us) = receive.timeout_us {
            self.set_task_timer(ctx.now_ns() + timeout_us * 1_000, ctx);
        }
    }

    /// Counts a message for the program.
    #[inline]
    pub(super) fn claim(&mut self, publish: &Publish<'_>, ctx: &Context) {
        match self.task.wait {
            Wait::AnyMessages(count) => {
                self.unclaimed += 1;
                if self.unclaimed >= count {
                    self.unclaimed -= count;
                    self.task.ready(ctx.now_ns());
                }
            }
            Wait::Messages(left) if self.is_wanted(publish, ctx) => {
                if left <= 1 {
                    self.task.ready(ctx.now_ns());
                } else {
                    self.task.wait = Wait::Messages(left - 1);
                }
            }
            _ => self.unclaimed += 1,
        }
    }

    fn is_wanted(&self, publish: &Publish<'_>, ctx: &Context) -> bool {
        let op = ctx.plan.program(ctx.stage, self.group.index()).get(self.task.pc as usize - 1);
        let Some(Op::Receive(receive)) = op else { return false };
        let pattern = self.extra.as_ref().and_then(|extra| extra.pattern.as_ref());
        let text_matches = pattern.is_none_or(|pattern| {
            std::str::from_utf8(publish.payload).is_ok_and(|text| pattern.is_match(text))
        });
        text_matches
            && receive.from.is_none_or(|from| {
                let model = ctx.plan.scenario.subscription(from);
                let mut text = String::new();
                ctx.plan.filters_of(self.group, self.index, model).iter().any(|filter| {
                    text.clear();
                    ctx.plan.write_filter(model, filter, &mut text);
                    flock_model::matches(flock_model::unshared(&text).1, publish.topic)
                })
            })
    }

    // --- CONNECT

    pub(super) fn connect_options(&self, ctx: &Context) -> ConnectOptions {
        let Some(command) = self.connect_command(ctx) else { return ConnectOptions::default() };
        let group = ctx.plan.scenario.group(self.group);
        let is_v5 = group.version == Version::V5;
        ConnectOptions {
            version: wire_version(group.version),
            client_id: self.wire_id(ctx),
            clean_start: command.clean_start,
            keep_alive_secs: command.keep_alive_secs,
            session_expiry_secs: if is_v5 { command.session_expiry_secs } else { 0 },
            receive_max: command.receive_max,
            username: command.username.as_ref().map(|pattern| pattern.name(self.index)),
            password: command.password.as_ref().map(|p| p.name(self.index).into_bytes()),
            will: command.will.as_ref().map(|will| self.will_options(will, ctx)),
            user_properties: command.user_properties.clone(),
            ..ConnectOptions::default()
        }
    }
}

fn subscribe_options(subscribe: &Subscribe) -> SubscribeOptions {
    let mut options = SubscribeOptions::new(wire_qos(subscribe.qos));
    options.no_local = subscribe.no_local;
    options.retain_as_published = subscribe.retain_as_published;
    options.retain_handling = match subscribe.retain_handling {
        0 => RetainHandling::Always,
        1 => RetainHandling::IfNew,
        _ => RetainHandling::Never,
    };
    options
}

/// The wire's word for the model's version.
pub(super) fn wire_version(version: Version) -> codec::Version {
    match version {
        Version::V31 => codec::Version::V31,
        Version::V311 => codec::Version::V311,
        Version::V5 => codec::Version::V5,
    }
}

pub(super) fn wire_qos(qos: flock_model::QoS) -> QoS {
    match qos {
        flock_model::QoS::AtMostOnce => QoS::AtMostOnce,
        flock_model::QoS::AtLeastOnce => QoS::AtLeastOnce,
        flock_model::QoS::ExactlyOnce => QoS::ExactlyOnce,
    }
}

const NO_IDENTIFIERS: &str =
    "not subscribed: the CONNACK says that subscription identifiers are not available";
const NO_SHARED: &str =
    "not subscribed: the CONNACK says that shared subscriptions are not available";
const NO_WILDCARDS: &str =
    "not subscribed: the CONNACK says that wildcard subscriptions are not available";
const UNANSWERED: &str =
    "no answer to SUBSCRIBE or UNSUBSCRIBE within `timeout`, other steps were skipped";
const UNCONNECTED: &str = "not connected, other steps were skipped";
/// Steps in one go, before other clients have their turn.
const STEPS_MAX: usize = 1_000;
const FILTERS_PER_PACKET: usize = 200;
