//! What a commit allows, and what may not overtake it.

use std::collections::VecDeque;

use session::Message;
use storage::{Level, Position};

use crate::Confirm;
use crate::log::handovers::HandoverFlaw;
use crate::log::store::Log;
use crate::log::waiting::{Behind, Step};
use crate::words::expected::Expected;

impl Log {
    /// The step may be done once the position is committed at the level.
    pub(crate) fn wait(&mut self, position: Position, level: Level, step: Step) {
        self.store.waiting.push(position, level, step);
    }

    /// Answers mail of a serial that this shard has had. What came first may not be committed yet:
    /// another cell may have a new owner meanwhile, which sends it again. Some: there is nothing to
    /// wait for.
    pub(crate) fn answer_repetition(&mut self, level: Level, confirm: Confirm) -> Option<Confirm> {
        if self.has_handover_flaw(HandoverFlaw::AnswersRepetitions) {
            return Some(confirm);
        }
        self.store.waiting.push_behind_all(level, Step::Answer(confirm)).map(|_| confirm)
    }

    /// The next step that may be done.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        let is_line_open = !self.store.handovers.is_resuming;
        self.store.waiting.next(&self.store.journal, is_line_open)
    }

    /// The journal is out of service: the next step that never gets a success.
    pub(crate) fn take_step(&mut self) -> Option<Step> {
        self.store.waiting.take()
    }

    /// Has the session something in the line?
    #[inline]
    pub(crate) fn is_in_line(&self, slot: u32) -> bool {
        self.in_line(slot).is_some_and(|marks| !marks.is_empty())
    }

    /// Would a message of the session overtake an older one on its topic, for which `mark` stands?
    pub(crate) fn would_overtake(&self, slot: u32, mark: u64) -> bool {
        self.in_line(slot).is_some_and(|marks| marks.contains(&mark))
    }

    fn in_line(&self, slot: u32) -> Option<&VecDeque<u64>> {
        Some(&self.kept.get(slot)?.rare.as_ref()?.in_line)
    }

    /// A message goes on behind older ones; so much of its way is left.
    pub(crate) fn wait_in_line(
        &mut self,
        (slot, mark): (u32, u64),
        message: &Message,
        confirm: Option<Confirm>,
        is_for_store_only: bool,
    ) {
        let Some(session) = self.kept.get(slot).map(|kept| kept.queue).expected() else { return };
        self.kept.enter_line(slot, mark);
        let message = message.clone();
        self.store.waiting.push_behind(Behind { session, message, confirm, is_for_store_only });
    }

    /// Lines a will up if it would overtake anything. Subscribers here have it. False: it would
    /// not. `own`: the slot of its session, if that is there, and the mark of its topic.
    pub(crate) fn will_waits_in_line(&mut self, own: Option<(u32, u64)>, serial: u64) -> bool {
        let waits = self.store.waiting.has_will()
            || own.is_some_and(|(slot, mark)| self.would_overtake(slot, mark));
        if !waits {
            return false;
        }
        self.store.waiting.push_will(serial);
        if let Some((slot, mark)) = own {
            self.store.handovers.note_in_line(serial);
            self.kept.enter_line(slot, mark);
        }
        true
    }

    /// Does too much wait behind others?
    pub(crate) const fn line_is_full(&self) -> bool {
        self.store.waiting.is_line_full()
    }
}
