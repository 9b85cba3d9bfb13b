//! A SUBACK that waits until all other shards have heard of its subscription.

use codec::{Packet, Properties, Suback};

use crate::durable::Durable;
use crate::parts::barrier::PendingSuback;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::{Mail, ShardId};

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
        cx.flow.barrier.note_answer(by, number);
        self.answer_passed(cx, durable);
    }

    pub(crate) fn answer_passed(&mut self, cx: &mut Context, durable: &mut Durable) {
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
