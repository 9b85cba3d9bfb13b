//! The thread that owns streams and consumers: it drives [`Hub`], and carries out what that wants.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use base::Clock;
use broker::streams::{ConsumerNumber, StreamNumber, StreamOrder};
use broker::{Calendar, ShardId};
use data::{StreamDisk, StreamFiles, StreamJob};
use storage::stream::StreamCommand;
use streams::{ConsumerView, Effect, Happening, Hub, ReadFiles};

use super::board::{Board, Progress, Reported};
use super::inbox::{Inbox, Input};
use super::operate::Answer;
use super::report::Reporter;
use super::sending::Targets;
use super::start::{Ground, InForce};
use crate::run::mailbox::{Item, Mailbox};
use crate::run::worker::Order;

/// Inputs that are taken before the hub works again.
const INPUTS_MAX: usize = 4096;

/// What waits for a target is given to it again after so long.
const PUSH_INTERVAL: Duration = Duration::from_millis(5);

/// The longest sleep, and how often the board is written.
const LOOK_INTERVAL_MS: u64 = 1000;

/// A stop waits so long for answers of targets and for the last cursors.
pub(super) const STOP_TIME_MAX: Duration = Duration::from_secs(3);

/// The files of all streams.
#[derive(Default)]
pub(super) struct Files(pub(super) BTreeMap<StreamNumber, Arc<StreamFiles>>);

impl ReadFiles for Files {
    fn read(
        &self,
        stream: StreamNumber,
        file: u64,
        offset: u64,
        bytes: usize,
    ) -> io::Result<Vec<u8>> {
        match self.0.get(&stream) {
            Some(files) => files.read(file, offset, bytes),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Callers whose answers wait until all shards have confirmed the definitions. Policy: others are
/// answered at once.
const AWAITING_MAX: usize = 64;

/// Answers to be given.
pub(super) type Awaiting = Vec<Box<dyn FnOnce() + Send>>;

/// What the thread has.
pub(crate) struct Owner {
    pub(super) hub: Hub,
    pub(super) files: Files,
    pub(super) targets: Targets,
    pub(super) disk: StreamDisk,
    pub(super) inbox: Inbox,
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) board: Arc<Board>,
    pub(super) reporter: Reporter,
    pub(super) clock: Clock,
    /// For times of events, which are those of the wall clock.
    pub(super) calendar: Calendar,
    pub(super) ground: Ground,
    pub(super) in_force: InForce,
    /// Orders for shards since the last look.
    pub(super) orders: BTreeMap<ShardId, Vec<StreamOrder>>,
    pub(super) consumers: Vec<ConsumerNumber>,
    /// Rules that are to go on somewhere else, and who awaits that.
    pub(super) seeks: Vec<(ConsumerNumber, Answer)>,
    /// Who awaits that all shards have the definitions in force.
    pub(super) awaiting: Awaiting,
    /// The board is written next.
    pub(super) look_ms: u64,
    /// Backups that are under way, and the deletions that wait for them. A crash forgets these: a
    /// start removes files that no journal names.
    pub(super) holds: u32,
    pub(super) held: Vec<StreamJob>,
    /// Less is free than `routing.free_disk_bytes_min`.
    pub(super) is_disk_short: bool,
    /// Streams that are gone, and their files are not.
    pub(super) removed: Vec<StreamNumber>,
    /// It is to end by then.
    pub(super) ends_at: Option<Instant>,
}

impl Owner {
    /// Until it is stopped.
    pub(super) fn run(mut self, inputs: &Receiver<Input>) -> io::Result<()> {
        let mut effects = Vec::new();
        loop {
            if !self.wait_for_lease() {
                return Ok(());
            }
            let waits = self.targets.push();
            match inputs.recv_timeout(self.sleep(waits)) {
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            for input in inputs.try_iter().take(INPUTS_MAX) {
                self.take(input);
            }
            let now_ms = self.clock.now_ms();
            self.look_at_clocks(now_ms);
            self.hub.work(now_ms, &self.files, &mut effects);
            if !self.wait_for_lease() {
                return Ok(());
            }
            for effect in effects.drain(..) {
                self.carry_out(effect);
            }
            self.post();
            self.inbox.set_behind(self.hub.is_memory_full());
            if self.look_ms <= now_ms {
                self.look_ms = now_ms + LOOK_INTERVAL_MS;
                self.look(now_ms);
            }
            if self.has_ended() {
                return Ok(());
            }
        }
    }

    /// Nothing may leave that another node may have sent since. False: another node may send now.
    fn wait_for_lease(&self) -> bool {
        self.ground.cluster.as_ref().is_none_or(|cluster| cluster.acting.wait())
    }

    fn sleep(&self, waits_for_target: bool) -> Duration {
        if self.hub.has_work() {
            return Duration::ZERO;
        }
        let now_ms = self.clock.now_ms();
        let due_ms = self.hub.next_deadline().unwrap_or(u64::MAX).min(self.look_ms);
        let sleep = Duration::from_millis(due_ms.saturating_sub(now_ms).min(LOOK_INTERVAL_MS));
        let is_urgent = waits_for_target || self.ends_at.is_some();
        if is_urgent { sleep.min(PUSH_INTERVAL) } else { sleep }
    }

    fn take(&mut self, input: Input) {
        let now_ms = self.clock.now_ms();
        match input {
            Input::News(shard, news, bytes) => {
                self.inbox.take_out(bytes);
                for news in news {
                    self.hub.on_news(shard, news, now_ms);
                }
            }
            Input::File(stream, id, result) => self.hub.on_file(stream, id, result, now_ms),
            Input::Answer { target, answer } => {
                if let Some((consumer, batch, answer)) = self.targets.on_answer(target, answer) {
                    self.hub.on_answer(consumer, batch, answer, now_ms);
                }
            }
            Input::Call(wish) => wish(self),
            Input::Stop => self.begin_to_end(now_ms),
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Order { shard, order } => self.orders.entry(shard).or_default().push(order),
            Effect::File { stream, command } => {
                if let Some(files) = self.files.0.get(&stream) {
                    let is_deletion = matches!(command, StreamCommand::Delete { .. });
                    let files = Arc::clone(files);
                    let job = StreamJob { stream: stream.0, files, command };
                    match is_deletion && self.holds > 0 {
                        true => self.held.push(job),
                        false => self.disk.submit(job),
                    }
                }
            }
            Effect::Send { consumer, batch, is_alone, records } => {
                self.targets.send(consumer, batch, is_alone, records);
            }
            Effect::Happened(happening) => self.on_happened(happening),
        }
    }

    /// A backup is done.
    pub(super) fn release_files(&mut self) {
        self.holds = self.holds.saturating_sub(1);
        if self.holds == 0 {
            for job in std::mem::take(&mut self.held) {
                self.disk.submit(job);
            }
        }
    }

    fn post(&mut self) {
        for (shard, orders) in std::mem::take(&mut self.orders) {
            let mailbox = &self.mailboxes[usize::from(shard) % self.mailboxes.len()];
            mailbox.put(Item::Order(Order::Streams(shard, orders)));
        }
    }

    /// Answers as soon as all shards store by the definitions in force. What is published after an
    /// earlier answer could be stored by those before.
    pub(crate) fn answer_in_force<E: Send + 'static>(
        &mut self,
        done: Result<(), E>,
        answer: impl FnOnce(Result<(), E>) + Send + 'static,
    ) {
        match done {
            Ok(()) if self.awaiting.len() < AWAITING_MAX => {
                self.awaiting.push(Box::new(move || answer(Ok(()))));
            }
            done => answer(done),
        }
    }

    fn on_happened(&mut self, happening: Happening) {
        match &happening {
            Happening::Full { stream, is_full } => {
                let mut streams = self.in_force.set.streams.iter();
                if let Some(own) = streams.find(|own| own.number == *stream) {
                    own.is_full.set(*is_full);
                }
            }
            Happening::Ended { consumer } => {
                self.consumers.retain(|own| own != consumer);
                self.targets.forget(*consumer);
                self.targets.close_unused();
                self.remove_streams();
            }
            Happening::StreamsSet => {
                self.remove_files();
                self.awaiting.drain(..).for_each(|answer| answer());
            }
            Happening::Started { consumer, .. } => self.answer_seeks(*consumer),
            // That all rules are paused at the end is no news.
            Happening::State { .. } if self.ends_at.is_some() => return,
            _ => {}
        }
        self.reporter.report(&happening, &self.board.names());
    }

    /// Writes what operators and metrics read.
    pub(super) fn look(&mut self, now_ms: u64) {
        self.look_at_disk();
        let views = self.consumers.iter().filter_map(|number| self.hub.view(*number, now_ms));
        let consumers: Vec<ConsumerView> = views.collect();
        let before = self.board.reported();
        let busy = consumers.iter().filter_map(|it| {
            Some((it.consumer, Progress::of(it, before.busy.get(&it.consumer), now_ms)?))
        });
        let busy = busy.collect();
        let paused = self.consumers.iter().filter(|it| self.in_force.numbers.is_paused(it.0));
        let paused = paused.copied().collect();
        let streams = self.files.0.keys().filter_map(|number| self.hub.stream_view(*number));
        let streams = streams.collect();
        let memory_bytes = self.hub.memory_bytes() as u64;
        self.board.put(Reported { consumers, streams, paused, busy, memory_bytes });
    }

    fn look_at_clocks(&mut self, now_ms: u64) {
        // Whether it was set is logged by the watch of the whole process.
        let _ = self.calendar.look(now_ms, self.clock.wall_ms());
        self.hub.set_wall_ahead(self.calendar.note(now_ms).ahead_ms);
    }

    fn look_at_disk(&mut self) {
        // A system that does not say it is taken for one with space.
        let Ok(found) = rustix::fs::statvfs(&self.ground.directory) else { return };
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        let is_short = free_bytes < self.ground.free_disk_bytes_min;
        if is_short != self.is_disk_short {
            self.is_disk_short = is_short;
            let least = self.ground.free_disk_bytes_min;
            match is_short {
                true => tracing::warn!(
                    free_bytes,
                    routing.free_disk_bytes_min = least,
                    "disk nearly full: streams delete their oldest files or refuse messages"
                ),
                false => tracing::info!(free_bytes, "streams have free disk space again"),
            }
        }
        self.hub.set_disk_short(is_short);
    }

    fn begin_to_end(&mut self, now_ms: u64) {
        self.ends_at.get_or_insert_with(|| Instant::now() + STOP_TIME_MAX);
        for number in self.consumers.clone() {
            self.hub.pause(number, now_ms);
        }
    }

    /// No target owes an answer and all outcomes are committed, or the time is over.
    fn has_ended(&self) -> bool {
        let Some(ends_at) = self.ends_at else { return false };
        Instant::now() >= ends_at || self.targets.under_way() == 0 && self.hub.is_committed()
    }
}
