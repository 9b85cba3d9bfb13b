//! The journal of a shard: what it is given, and what waits for its answers.

use std::sync::Arc;

use storage::{Command, Completion, InPlace, InPlaceEnd, Journal, Recovered, Status};

use crate::log::queues::Queue;
use crate::log::{Replay, Restored, Unreadable};
use crate::words::queue_number::QueueId;
use crate::words::stream_set::{StreamOrder, StreamsFound};
use crate::{Limits, Shard};

impl Shard {
    /// The state of the journal; none if the shard keeps everything in memory.
    pub fn journal_status(&self) -> Option<Status> {
        self.durable.journal().map(Journal::status)
    }

    /// The journal, to look at. No connection may come before it is [ready](Journal::is_ready).
    pub fn journal(&self) -> Option<&Journal> {
        self.durable.journal()
    }

    /// The journal, to be closed, or pinned for a backup. Only the shard appends to it.
    pub fn journal_mut(&mut self) -> Option<&mut Journal> {
        self.durable.journal_mut()
    }

    /// Joins the shard's journal and rebuilds the state that it holds. `limits` hold for restored
    /// sessions until their clients connect again.
    ///
    /// Call [`crate::settle`] when all shards have done so, and carry out disk commands until
    /// the journal is [ready](Journal::is_ready), before the first connection.
    ///
    /// # Errors
    ///
    /// A record with a right checksum cannot be read: another program version wrote it.
    pub fn open_journal(
        &mut self,
        recovered: Recovered,
        settings: storage::Settings,
        mut replay: Replay,
        limits: &Arc<Limits>,
        now_ms: u64,
    ) -> Result<Restored, Unreadable> {
        self.cx.now_ms = now_ms;
        let Self { cx, sessions, durable, groups, retained, .. } = self;
        durable.open(cx, recovered, settings, &mut replay)?;
        durable.restore(cx, sessions, groups, retained, replay, limits)
    }

    /// Has `write` write what the driver may write itself, at most `bytes_max` bytes. Call it right
    /// before [`Shard::take_disk_commands`]. True: [`Shard::on_disk_write`] is to follow.
    pub fn write_in_place(
        &mut self,
        bytes_max: usize,
        write: impl FnOnce(&InPlace) -> InPlaceEnd,
        now_ms: u64,
    ) -> bool {
        self.cx.now_ms = now_ms;
        if !self.durable.has_journal() {
            return false;
        }
        let Self { sessions, durable, groups, retained, .. } = self;
        durable.append_lists(sessions, groups, retained);
        let Some(journal) = durable.journal_mut() else { return false };
        let Some(in_place) = journal.begin_write(bytes_max) else { return false };
        let end = write(&in_place);
        journal.end_write(in_place, end);
        end != InPlaceEnd::NotDone
    }

    /// Moves what the disk has to do to the end of `out`. Call it once per turn, after everything
    /// else, so that all that a turn appends shares a write.
    pub fn take_disk_commands(&mut self, out: &mut Vec<Command>, now_ms: u64) {
        self.cx.now_ms = now_ms;
        if self.durable.has_journal() {
            let Self { sessions, durable, groups, retained, .. } = self;
            durable.take_commands(sessions, groups, retained, out, now_ms);
            self.note_journal_status();
            self.finish();
        }
    }

    /// The driver has written in place.
    pub fn on_disk_write(&mut self, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let waiters = self.durable.on_written();
        self.go_on_with_disk(waiters);
    }

    /// The disk has carried out a command.
    pub fn on_disk(&mut self, completion: Completion, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let waiters = self.durable.on_completed(&mut self.cx, completion);
        self.go_on_with_disk(waiters);
    }

    /// What the journal had of streams and consumers at the start. Call it once.
    pub fn streams_found(&mut self) -> StreamsFound {
        self.durable.streams_found()
    }

    /// Plants a fault in what the journal has of streams.
    #[cfg(feature = "testing")]
    pub fn plant_stream_flaw(&mut self, flaw: crate::words::stream_set::StreamFlaw) {
        self.durable.plant_stream_flaw(flaw);
    }

    /// The owner of streams has an order, answered by [`crate::Effects::stream_news`].
    pub fn on_stream_order(&mut self, order: StreamOrder, now_ms: u64) {
        self.cx.now_ms = now_ms;
        self.durable.on_stream_order(&mut self.cx, &mut self.sessions.router, order);
        self.durable.hand_over_streams(&mut self.cx);
        self.finish();
    }

    fn go_on_with_disk(&mut self, waiters: Vec<QueueId>) {
        self.keep_promises();
        self.durable.hand_over_streams(&mut self.cx);
        self.note_journal_status();
        self.resume_queues(waiters);
        self.write_postponed();
        self.finish();
    }

    /// Time has passed for the journal and for the messages in it.
    pub(crate) fn tick_journal(&mut self) {
        if self.durable.has_journal() {
            let waiters = self.durable.on_tick(self.cx.now_ms);
            self.resume_queues(waiters);
            self.resume_handovers();
            self.write_postponed();
        }
    }

    fn write_postponed(&mut self) {
        let Self { cx, sessions, durable, groups, retained, .. } = self;
        durable.write_postponed(cx, sessions, groups, retained);
    }

    /// Looks at the state of the journal, and does once what follows from a change of it.
    fn note_journal_status(&mut self) {
        let Self { cx, sessions, durable, groups, retained, .. } = self;
        if durable.note_status(cx, sessions, groups, retained) {
            self.resume_handovers();
        }
    }

    /// Does what has waited for what is committed by now.
    fn keep_promises(&mut self) {
        while let Some(promise) = self.durable.next_promise() {
            let Self { cx, sessions, durable, .. } = self;
            if let Some(slot) = durable.keep_promise(cx, sessions, promise) {
                self.pump(slot);
            }
        }
        let Self { cx, sessions, durable, groups, retained, .. } = self;
        durable.pass_on_line(cx, sessions, groups, retained);
    }

    /// The disk has brought what these queues asked for.
    fn resume_queues(&mut self, queues: Vec<QueueId>) {
        for id in queues {
            match self.durable.queue(id) {
                Some(Queue::Handover) => self.resume_handovers(),
                Some(Queue::Session(slot)) => self.pump(slot),
                Some(Queue::Group(id)) => {
                    let Self { cx, durable, groups, .. } = self;
                    if let Some(key) = durable.group_of(id) {
                        groups.drain_group(cx, durable, key);
                    }
                }
                // Nothing waits there; or it is gone meanwhile.
                Some(Queue::Seen(_)) | None => {}
            }
        }
    }

    /// After a start: what may not have been passed on is passed on again.
    fn resume_handovers(&mut self) {
        let Self { cx, sessions, durable, groups, retained, .. } = self;
        if durable.resume_handovers(cx, sessions, groups, retained) {
            self.keep_promises();
        }
    }
}
