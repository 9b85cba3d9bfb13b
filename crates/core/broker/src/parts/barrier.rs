//! What waits until all other shards have heard of something.
//!
//! Who publishes to a shared group finds it in the tables of its own shard, and those learn of a
//! member by mail. A message that is published behind the SUBACK, wherever, is the group's, and is
//! kept if the member is; so the SUBACK of a shared subscription waits until each shard has said
//! that it has dealt with the mail before. It is asked once a turn for all that wait.

use std::collections::VecDeque;

use codec::{Packet, Properties, Suback};

use crate::durable::Durable;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::{Mail, SessionKey, ShardId};

/// Bytes of what waits. Policy: above it no SUBSCRIBE is read.
const WAITING_BYTES_MAX: usize = 1024 * 1024;

/// What each filter counts for, as other shards may have mail of it that waits.
const FILTER_BYTES: usize = 64;

/// A SUBACK that waits.
#[derive(Debug)]
pub(crate) struct PendingSuback {
    session: SessionKey,
    connection: u64,
    packet_id: u16,
    reasons: Box<[u8]>,
    /// What it has to wait for beside that.
    kept: Option<storage::Position>,
}

/// The questions of a shard, and what waits for their answers.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// The number of the last question, and that of the last that each shard has answered.
    asked: u64,
    answered: Box<[u64]>,
    /// With the number of the question, in its order.
    waiting: VecDeque<(u64, PendingSuback)>,
    waiting_bytes: usize,
}

impl Barrier {
    pub(crate) fn new(shard_count: ShardId) -> Self {
        let answered = (0..shard_count).map(|_| 0).collect();
        Self { asked: 0, answered, waiting: VecDeque::new(), waiting_bytes: 0 }
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.waiting_bytes > WAITING_BYTES_MAX
    }

    /// Waits for the question that comes next.
    fn push(&mut self, waiting: PendingSuback) {
        self.waiting_bytes += waiting.bytes();
        self.waiting.push_back((self.asked + 1, waiting));
    }

    /// Is there a question that has to be asked now?
    pub(crate) fn has_question(&self) -> bool {
        self.waiting.back().is_some_and(|(number, _)| *number > self.asked)
    }

    /// The question that has to be asked now, if there is one.
    fn next_question(&mut self) -> Option<u64> {
        self.has_question().then(|| {
            self.asked += 1;
            self.asked
        })
    }

    /// The next of those that every shard but `own` has heard of.
    fn next_passed(&mut self, own: ShardId) -> Option<PendingSuback> {
        let (number, _) = self.waiting.front()?;
        let mut answered = self.answered.iter().enumerate();
        if answered.any(|(shard, answered)| shard != usize::from(own) && answered < number) {
            return None;
        }
        let (_, waiting) = self.waiting.pop_front()?;
        self.waiting_bytes -= waiting.bytes();
        Some(waiting)
    }
}

impl PendingSuback {
    fn bytes(&self) -> usize {
        size_of::<Self>() + FILTER_BYTES * self.reasons.len()
    }
}

impl Sessions {
    /// Answers a SUBSCRIBE when all shards know what it has led to, and the journal does.
    pub(crate) fn answer_behind_barrier(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        slot: u32,
        packet_id: u16,
        reasons: Vec<u8>,
        kept: Option<storage::Position>,
    ) {
        let session = self.key(slot);
        let Some(client) = self.get(slot).expected() else { return };
        let connection = client.connection;
        let waiting =
            PendingSuback { session, connection, packet_id, reasons: reasons.into(), kept };
        cx.flow.barrier.push(waiting);
        // Nobody has to be asked where there is one shard.
        self.answer_passed(cx, durable);
    }
}

impl Context {
    /// Asks the other shards, behind all mail of this turn.
    pub(crate) fn ask_barrier(&mut self) {
        if let Some(number) = self.flow.barrier.next_question() {
            self.send_to_others(&Mail::Ask { from: self.id, number });
        }
    }
}

impl Sessions {
    pub(crate) fn on_barrier_passed(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        by: ShardId,
        number: u64,
    ) {
        if let Some(answered) = cx.flow.barrier.answered.get_mut(usize::from(by)) {
            *answered = number.max(*answered);
        }
        self.answer_passed(cx, durable);
    }

    fn answer_passed(&mut self, cx: &mut Context, durable: &mut Durable) {
        while let Some(waiting) = cx.flow.barrier.next_passed(cx.id) {
            let PendingSuback { session, connection, packet_id, reasons, kept } = waiting;
            let Some(slot) = self.slot_of(session) else { continue };
            if self.link(slot, connection).is_some() {
                let properties = Properties::EMPTY;
                let suback = Suback { packet_id, properties, reasons: &reasons };
                durable.answer_when_kept(cx, self, slot, kept, &Packet::Suback(suback));
            }
        }
    }
}
