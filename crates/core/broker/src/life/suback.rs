//! A SUBACK that waits until all other shards have heard of its subscription.

use codec::{Packet, Properties, Suback};

use crate::Shard;
use crate::parts::barrier::PendingSuback;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::{Mail, ShardId};

impl Shard {
    /// Answers a SUBSCRIBE when all shards know what it has led to, and the journal does.
    pub(crate) fn answer_behind_barrier(
        &mut self,
        slot: u32,
        packet_id: u16,
        reasons: Vec<u8>,
        kept: Option<storage::Position>,
    ) {
        let session = self.sessions.key(slot);
        let Some(client) = self.sessions.get(slot).expected() else { return };
        let connection = client.connection;
        let waiting =
            PendingSuback { session, connection, packet_id, reasons: reasons.into(), kept };
        self.cx.flow.barrier.push(waiting);
        // Nobody has to be asked where there is one shard.
        self.answer_passed();
    }

    pub(crate) fn on_barrier_passed(&mut self, by: ShardId, number: u64) {
        self.cx.flow.barrier.note_answer(by, number);
        self.answer_passed();
    }

    pub(crate) fn answer_passed(&mut self) {
        while let Some(waiting) = self.cx.flow.barrier.next_passed(self.cx.id) {
            let PendingSuback { session, connection, packet_id, reasons, kept } = waiting;
            let Some(slot) = self.sessions.slot_of(session) else { continue };
            if self.sessions.link(slot, connection).is_some() {
                let properties = Properties::EMPTY;
                let suback = Suback { packet_id, properties, reasons: &reasons };
                self.answer_when_kept(slot, kept, &Packet::Suback(suback));
            }
        }
    }
}

impl Context {
    /// Asks the other shards, behind all mail of this turn.
    pub(crate) fn ask_barrier(&mut self) {
        if let Some(number) = self.flow.barrier.next_question() {
            self.effects.send_to_others(&Mail::Ask { from: self.id, number });
        }
    }
}
