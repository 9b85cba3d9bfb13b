//! Work in bounded pieces, and when there is some.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use broker::streams::{ConsumerNumber, StreamNumber};
use routing::Outcome;

use crate::consumer::Consumer;
use crate::effect::{Effect, Happening};
use crate::front::Front;
use crate::hub::Hub;
use crate::orders::Asker;
use crate::reader::{ReadFiles, Source};
use crate::settings::Flaw;
use crate::turn::Turn;

/// Milliseconds between looks at retention, ages and faults.
const TICK_MS: u64 = 1_000;

/// Ticks in which each idle consumer has its cursor ordered once.
const IDLE_TICKS: u64 = 10;

impl Hub {
    /// Does some work, and appends what is to be done outside. It is to be called again while
    /// [`Hub::has_work`], and at [`Hub::next_deadline`].
    pub fn work(&mut self, now_ms: u64, files: &impl ReadFiles, out: &mut Vec<Effect>) {
        self.wake(now_ms);
        if now_ms >= self.tick_ms && !self.streams.is_empty() {
            self.tick_ms = now_ms + TICK_MS;
            self.ticks += 1;
            self.tick(now_ms);
        }
        self.pass_fronts(now_ms);
        self.take_turns(now_ms, files);
        self.work_streams(now_ms);
        self.orders.work(now_ms, &mut self.out);
        out.append(&mut self.out);
    }

    /// Whether there is something to do at once.
    pub fn has_work(&self) -> bool {
        !(self.ready.is_empty()
            && self.fresh.is_empty()
            && self.touched.is_empty()
            && self.out.is_empty())
    }

    /// When there is something to do, if nothing is reported.
    pub fn next_deadline(&self) -> Option<u64> {
        let tick = (!self.streams.is_empty()).then_some(self.tick_ms);
        let timer = self.timers.first().map(|(at_ms, _)| *at_ms);
        tick.into_iter().chain(timer).chain(self.orders.next_deadline()).min()
    }

    fn wake(&mut self, now_ms: u64) {
        while let Some((_, number)) = self.timers.first().filter(|(at_ms, _)| *at_ms <= now_ms) {
            let number = *number;
            self.timers.pop_first();
            self.ready.insert(number);
            if let Some(consumer) = self.consumers.get_mut(&number) {
                consumer.wake_ms = None;
            }
        }
    }

    fn pass_fronts(&mut self, now_ms: u64) {
        for (number, shard) in std::mem::take(&mut self.fresh) {
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            let mut front = Front {
                stream,
                consumers: &mut self.consumers,
                matches: &mut self.matches,
                ready: &mut self.ready,
                settings: &self.settings,
                now_ms,
                out: &mut self.out,
            };
            if front.pass(shard) {
                self.fresh.insert((number, shard));
            }
        }
    }

    /// Turns of some consumers, those first that have waited longest.
    fn take_turns(&mut self, now_ms: u64, files: &impl ReadFiles) {
        for _ in 0..self.settings.turns.min(self.ready.len()) {
            let next = self.ready.range((Excluded(self.last), Unbounded)).next();
            let Some(number) = next.or(self.ready.first()).copied() else { return };
            self.ready.remove(&number);
            self.last = number;
            self.take_turn(number, now_ms, files);
        }
    }

    fn take_turn(&mut self, number: ConsumerNumber, now_ms: u64, files: &impl ReadFiles) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        let Some(stream) = self.streams.get(&consumer.definition.stream) else { return };
        let source = Source { stream, files };
        let turn = Turn { source, settings: &self.settings, now_ms };
        let before = consumer.read_bytes();
        let has_more = turn.read(consumer, &mut self.out);
        if self.read_bytes - before + consumer.read_bytes() > self.settings.read_bytes_max {
            consumer.drop_blocks();
        }
        self.read_bytes = self.read_bytes - before + consumer.read_bytes();
        consumer.send(&stream.definition, now_ms, &self.settings, &mut self.out);
        self.order_facts(number, now_ms);
        self.report_state(number, now_ms);
        if has_more {
            self.ready.insert(number);
        }
        self.set_timer(number, now_ms);
    }

    fn report_state(&mut self, number: ConsumerNumber, now_ms: u64) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        let Some(stream) = self.streams.get(&consumer.definition.stream) else { return };
        let state = consumer.state(stream, now_ms);
        if consumer.reported != state.reported() {
            consumer.reported = state.reported();
            let name = consumer.definition.name.clone();
            self.happened(Happening::State { consumer: number, name, state });
        }
    }

    fn set_timer(&mut self, number: ConsumerNumber, now_ms: u64) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        let wake_ms = consumer.next_deadline().map(|at_ms| at_ms.max(now_ms + 1));
        if consumer.wake_ms == wake_ms {
            return;
        }
        if let Some(at_ms) = consumer.wake_ms {
            self.timers.remove(&(at_ms, number));
        }
        consumer.wake_ms = wake_ms;
        self.timers.extend(wake_ms.map(|at_ms| (at_ms, number)));
    }
}

/// Streams.
impl Hub {
    /// What is looked at once a second.
    fn tick(&mut self, now_ms: u64) {
        let numbers: Vec<StreamNumber> = self.streams.keys().copied().collect();
        for number in numbers {
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            stream.retry(now_ms);
            self.retain(number, now_ms);
            self.touched.insert(number);
            self.flush_idle(number, now_ms);
        }
    }

    /// Moves records of streams that have some, and orders what their journals are to know.
    fn work_streams(&mut self, now_ms: u64) {
        let is_pressed = self.is_pressed();
        let mut commands = Vec::new();
        for number in std::mem::take(&mut self.touched) {
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            stream.move_records(now_ms, is_pressed, &self.settings);
            for shard in 0..self.settings.shards {
                while stream.has_orders(shard) {
                    let consumers = &self.consumers;
                    let settled_ms = |own: &BTreeSet<ConsumerNumber>| {
                        let own = own.iter().filter_map(|number| consumers.get(number));
                        settled_ms(own, shard)
                    };
                    let Some(change) = stream.next_order(shard, now_ms, settled_ms) else { break };
                    self.orders.give(shard, Asker::Stream(number), change, &mut self.out);
                }
            }
            stream.take_commands(&mut commands);
            let files = commands.drain(..);
            self.out.extend(files.map(|command| Effect::File { stream: number, command }));
        }
    }

    const fn is_pressed(&self) -> bool {
        self.memory > self.settings.memory_max / 2
    }

    /// Deletes what the limits of a stream say, and counts it for its consumers.
    fn retain(&mut self, number: StreamNumber, now_ms: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let consumers = &self.consumers;
        let own: Vec<ConsumerNumber> = stream.consumers.iter().copied().collect();
        let own = own.iter().filter_map(|number| consumers.get(number));
        let own: Vec<&Consumer> = own.filter(|it| it.ending_ms.is_none()).collect();
        let passed = |shard: u16| {
            let passed = own.iter().map(|it| it.shards[usize::from(shard)].passed());
            passed.min()
        };
        let has_dropped = stream.retain(now_ms, passed);
        if self.settings.has(Flaw::DeletedEarly) {
            stream.log.delete_below(u64::MAX);
        }
        let was_full = stream.is_full;
        let is_full = stream.check_full(passed);
        if was_full != is_full {
            self.happened(Happening::Full { stream: number, is_full });
        }
        if has_dropped {
            self.commit_all(number, now_ms);
        }
        self.trim(number, now_ms);
    }

    /// Outcomes so far are ordered at once: files go that have the records.
    fn commit_all(&mut self, number: StreamNumber, now_ms: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        for own in &stream.consumers {
            let Some(consumer) = self.consumers.get_mut(own) else { continue };
            consumer.commit(stream, now_ms, &self.settings);
            self.ready.insert(*own);
        }
    }

    /// Some of the consumers that nothing matches have their cursors ordered.
    fn flush_idle(&mut self, number: StreamNumber, now_ms: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        for own in &stream.consumers {
            if u64::from(own.0) % IDLE_TICKS != self.ticks % IDLE_TICKS {
                continue;
            }
            let Some(consumer) = self.consumers.get_mut(own) else { continue };
            if consumer.is_active() && consumer.commit(stream, now_ms, &self.settings) {
                self.ready.insert(*own);
            }
        }
    }

    /// Forgets records that are in files, but for those that a consumer is about to read while
    /// memory suffices, and those whose file was deleted. Counts what cannot be read any more.
    pub(crate) fn trim(&mut self, number: StreamNumber, now_ms: u64) {
        let is_pressed = self.is_pressed();
        let Some(stream) = self.streams.get_mut(&number) else { return };
        for shard in 0..self.settings.shards {
            let beginning = stream.beginning(shard);
            let tail = &mut stream.shards[usize::from(shard)].tail;
            let own = stream.consumers.iter().filter_map(|number| self.consumers.get(number));
            let reads = own.filter_map(|it| {
                let progress = &it.shards[usize::from(shard)];
                let reads = it.may_read(shard) && !progress.is_at_front;
                (reads && progress.read >= tail.first).then_some(progress.read)
            });
            let end = if is_pressed { u64::MAX } else { reads.min().unwrap_or(u64::MAX) };
            let end = end.max(beginning);
            self.memory -= tail.trim(end);
        }
        self.drop_gone(number, now_ms);
    }

    fn drop_gone(&mut self, number: StreamNumber, now_ms: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        let turn =
            Turn { source: Source { stream, files: &NoFiles }, settings: &self.settings, now_ms };
        for shard in 0..self.settings.shards {
            let oldest = stream.oldest(shard);
            for own in &stream.consumers {
                let Some(consumer) = self.consumers.get_mut(own) else { continue };
                let progress = &consumer.shards[usize::from(shard)];
                if progress.is_at_front || progress.goal.is_some() || progress.read >= oldest {
                    continue;
                }
                let outcome = Outcome::DroppedByRetention;
                turn.drop_below(consumer, (shard, oldest), outcome, &mut self.out);
                self.ready.insert(*own);
            }
        }
    }
}

/// Outcomes of these consumers in a shard are committed that they had until then.
fn settled_ms<'a>(consumers: impl Iterator<Item = &'a Consumer>, shard: u16) -> u64 {
    let unsettled = consumers.filter_map(|it| it.shards[usize::from(shard)].unsettled_ms());
    unsettled.min().map_or(u64::MAX, |at_ms| at_ms.saturating_sub(1))
}

/// Nothing is read where records are only counted.
struct NoFiles;

impl ReadFiles for NoFiles {
    fn read(&self, _: StreamNumber, _: u64, _: u64, _: usize) -> std::io::Result<Vec<u8>> {
        Ok(Vec::new())
    }
}
