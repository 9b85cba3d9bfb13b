//! The journal of a shard: what it is given, and what waits for its answers.

use std::sync::Arc;

use codec::Reason;
use storage::{AppendError, Command, Completion, InPlace, InPlaceEnd, Journal, Status};

use crate::log::queues::Queue;
use crate::log::store::Heard;
use crate::log::waiting::Step;
use crate::log::writing::Owner;
use crate::parts::notices::Subject;
use crate::words::expected::Expected;
use crate::words::queue_number::QueueId;
use crate::words::stream_set::{OrderRefusal, StreamChange, StreamNews, StreamOrder, StreamsFound};
use crate::{Name, Shard};

impl Shard {
    /// The state of the journal; none if the shard keeps everything in memory.
    pub fn journal_status(&self) -> Option<Status> {
        self.log.as_ref().map(|log| log.status())
    }

    /// The journal, to look at. No connection may come before it is [ready](Journal::is_ready).
    pub fn journal(&self) -> Option<&Journal> {
        self.log.as_ref().map(|log| log.journal())
    }

    /// The journal, to be closed, or pinned for a backup. Only the shard appends to it.
    pub fn journal_mut(&mut self) -> Option<&mut Journal> {
        self.log.as_mut().map(|log| log.journal_mut())
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
        self.write_lists();
        let Some(log) = &mut self.log else { return false };
        let Some(in_place) = log.journal_mut().begin_write(bytes_max) else { return false };
        let end = write(&in_place);
        log.journal_mut().end_write(in_place, end);
        end != InPlaceEnd::NotDone
    }

    /// Moves what the disk has to do to the end of `out`. Call it once per turn, after everything
    /// else, so that all that a turn appends shares a write.
    pub fn take_disk_commands(&mut self, out: &mut Vec<Command>, now_ms: u64) {
        self.cx.now_ms = now_ms;
        self.write_lists();
        let Some(log) = &mut self.log else { return };
        log.take_commands(out, now_ms);
        self.note_journal_status();
        self.finish();
    }

    /// Appends what has piled up in the turn, and what is still needed of the oldest segment.
    fn write_lists(&mut self) {
        self.reclaim();
        if let Some(log) = &mut self.log {
            log.write_lists();
        }
    }

    /// What of the oldest segment is still needed is written again. The log knows most of it;
    /// others know where their own facts stand.
    fn reclaim(&mut self) {
        while let Some(owner) = self.log.as_mut().and_then(|log| log.reclaim()) {
            let copied = match owner {
                Owner::Subscription { slot, filter } => self.copy_subscription(slot, &filter),
                Owner::Retained { topic } => self.copy_retained(Name::of_key(&topic)),
            };
            if copied.is_err() {
                return;
            }
        }
    }

    fn copy_subscription(&mut self, slot: u32, filter: &str) -> Result<(), AppendError> {
        let listed = self.listed_of(slot, filter);
        let Self { sessions, log: Some(log), .. } = self else { return Ok(()) };
        let subscriptions = sessions.get_mut(slot).map(|client| &mut client.subscriptions);
        let known = subscriptions.zip(listed).and_then(|(own, listed)| own.place_mut(&listed));
        let copied = log.copy(known.as_deref().copied())?;
        if let (Some(known), Some(copied)) = (known, copied) {
            *known = copied;
        }
        Ok(())
    }

    fn copy_retained(&mut self, topic: Name<'_>) -> Result<(), AppendError> {
        let Self { retained, log: Some(log), .. } = self else { return Ok(()) };
        if let Some(copied) = log.copy(retained.place_of(topic))? {
            retained.set_place(topic, copied);
        }
        Ok(())
    }

    /// The driver has written in place.
    pub fn on_disk_write(&mut self, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let Some(log) = &mut self.log else { return };
        let readers = log.on_written();
        self.go_on_with_disk(readers);
    }

    /// The disk has carried out a command.
    pub fn on_disk(&mut self, completion: Completion, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let Some(log) = self.log.as_mut().expected() else { return };
        let Heard { readers, unreadable } = log.on_completed(completion);
        if let Some(fault) = unreadable {
            self.cx.note_of_shard(Subject::JournalUnreadable(fault), 1);
        }
        self.go_on_with_disk(readers);
    }

    /// What the journal had of streams and consumers at the start. Call it once.
    pub fn streams_found(&mut self) -> StreamsFound {
        self.log.as_mut().map_or_else(StreamsFound::default, |log| log.streams_found())
    }

    /// Plants a fault in what the journal has of streams.
    #[cfg(feature = "testing")]
    pub fn plant_stream_flaw(&mut self, flaw: crate::words::stream_set::StreamFlaw) {
        self.log.iter_mut().for_each(|log| log.plant_stream_flaw(flaw));
    }

    /// Plants a fault in what the journal knows of messages that come again.
    #[cfg(feature = "testing")]
    pub fn plant_handover_flaw(&mut self, flaw: crate::HandoverFlaw) {
        self.log.iter_mut().for_each(|log| log.plant_handover_flaw(flaw));
    }

    /// The owner of streams has an order, answered by [`crate::Effects::stream_news`].
    pub fn on_stream_order(&mut self, order: StreamOrder, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let id = order.id;
        if let Some(result) = self.carry_out_order(order) {
            self.answer_order(id, result);
        }
        self.hand_over_streams();
        self.finish();
    }

    /// None: it is done as soon as what it has written is committed.
    fn carry_out_order(&mut self, order: StreamOrder) -> Option<Result<(), OrderRefusal>> {
        let Self { cx, sessions, log, .. } = self;
        let Some(log) = log else { return Some(Err(OrderRefusal::Failed)) };
        if let StreamChange::Set(set) = &order.change {
            sessions.router.set_streams(Arc::clone(set));
            cx.shared.set_streams(set);
        }
        log.on_stream_order(sessions.router.streams().set(), order)
    }

    fn hand_over_streams(&mut self) {
        if let Some(log) = &mut self.log {
            log.hand_over_streams(&mut self.cx.effects.stream_news);
        }
    }

    fn go_on_with_disk(&mut self, readers: Vec<QueueId>) {
        self.go_on_with_commits();
        self.hand_over_streams();
        self.note_journal_status();
        self.resume_queues(readers);
        self.write_late();
        self.finish();
    }

    /// Time has passed for the journal and for the messages in it.
    pub(super) fn tick_journal(&mut self) {
        let Some(log) = &mut self.log else { return };
        let readers = log.on_tick(self.cx.now_ms);
        self.resume_queues(readers);
        self.resume_handovers();
        self.write_late();
    }

    /// Looks at the state of the journal, and does once what follows from a change of it.
    fn note_journal_status(&mut self) {
        let Some(log) = &mut self.log else { return };
        let (state, has_changed) = log.note_status();
        self.cx.shared.set_journal_state(self.cx.id, state);
        if !has_changed {
            return;
        }
        if state.poisoned {
            self.fail_steps();
        } else if state.full {
            self.wait_for_no_end();
        }
        self.resume_handovers();
    }

    /// Does what has waited for what is committed by now.
    fn go_on_with_commits(&mut self) {
        while let Some(step) = self.log.as_mut().and_then(|log| log.next_step()) {
            self.carry_out(step);
        }
    }

    /// What a step waited for is committed.
    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Answer(confirm) => self.confirm(confirm, Reason::SUCCESS),
            Step::Send { session, packet_id } => {
                if self.send_committed(session, packet_id) {
                    self.pump(session.slot());
                }
            }
            Step::Release { session, packet_id } => self.release_outgoing(session, packet_id),
            Step::Complete { session, connection, packet_id, serial } => {
                self.complete_incoming((session, connection), packet_id, serial);
            }
            Step::Packet { session, connection, packet } => {
                self.send_packet(session, connection, &packet);
            }
            Step::Order(ordered) => {
                self.log.iter_mut().for_each(|log| log.on_ordered(ordered));
                self.answer_order(ordered.id, Ok(()));
            }
            Step::Ended { client } => self.finish_end(client),
            Step::Onward(onward) => self.go_on(onward),
        }
    }

    /// The journal is out of service: what waits for it never gets a success.
    fn fail_steps(&mut self) {
        while let Some(step) = self.log.as_mut().and_then(|log| log.take_step()) {
            match step {
                Step::Answer(confirm) => {
                    self.confirm(confirm, Reason::IMPLEMENTATION_SPECIFIC_ERROR);
                }
                Step::Packet { session, connection, .. } => self.doom(session, connection),
                // Half of a QoS 2 exchange: the client repeats its part with its next connection.
                Step::Send { .. } | Step::Release { .. } | Step::Complete { .. } => {}
                Step::Order(ordered) => self.answer_order(ordered.id, Err(OrderRefusal::Failed)),
                Step::Ended { .. } => {}
                Step::Onward(onward) => self.go_on_failed(onward),
            }
        }
        let ends = self.log.as_mut().map_or_else(Vec::new, |log| log.break_ends());
        for (session, connection) in ends {
            self.doom(session, connection);
        }
        self.break_late();
    }

    fn answer_order(&mut self, order: u64, result: Result<(), OrderRefusal>) {
        self.cx.effects.stream_news.push(StreamNews::Done { order, result });
    }

    /// The disk has brought what these queues asked for.
    fn resume_queues(&mut self, queues: Vec<QueueId>) {
        for id in queues {
            let Some(log) = &self.log else { return };
            match log.queue(id) {
                Some(Queue::Handover) => self.resume_handovers(),
                Some(Queue::Session(slot)) => self.pump(slot),
                Some(Queue::Group(id)) => {
                    let key = log.group_of(id);
                    key.into_iter().for_each(|key| self.drain_group(key));
                }
                // Nothing waits there; or it is gone meanwhile.
                Some(Queue::Seen(_)) | None => {}
            }
        }
    }

    /// After a start: what may not have been passed on is passed on again.
    fn resume_handovers(&mut self) {
        if self.pass_on_again() {
            self.go_on_with_commits();
        }
    }
}
