//! What waits until all other shards have heard of a subscription: its SUBACK, and the retained
//! messages that it asks for.

use codec::{Packet, Properties, Suback};

use crate::Shard;
use crate::parts::barrier::{Behind, PendingSuback, RetainedFlaw};
use crate::state::Context;
use crate::words::expected::Expected;
use crate::{BarrierKind, Mail, RetainedQuery, ShardId};

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
        self.cx.flow.barrier.push(Behind::Suback(waiting));
        // Nobody has to be asked where there is one shard.
        self.answer_passed();
    }

    pub(crate) fn on_barrier_passed(&mut self, by: ShardId, number: u64, kind: BarrierKind) {
        match kind {
            BarrierKind::Known => self.cx.flow.barrier.note_answer(by, number),
            BarrierKind::Arrived => self.cx.flow.arrivals.note_answer(by, number),
        }
        self.answer_passed();
    }

    pub(crate) fn answer_passed(&mut self) {
        let next = |cx: &mut Context| {
            let known = cx.flow.barrier.next_passed(cx.id);
            known.or_else(|| cx.flow.arrivals.next_passed(cx.id))
        };
        while let Some(passed) = next(&mut self.cx) {
            match passed {
                Behind::Suback(suback) => self.answer_subscribe(suback),
                Behind::Wanted(session) => {
                    if let Some(slot) = self.sessions.slot_of(session) {
                        self.ask_next_page(slot);
                    }
                }
                Behind::Query(query) => self.on_settled_query(query),
            }
        }
    }

    fn answer_subscribe(&mut self, waiting: PendingSuback) {
        let PendingSuback { session, connection, packet_id, reasons, kept } = waiting;
        let Some(slot) = self.sessions.slot_of(session) else { return };
        if self.sessions.link(slot, connection).is_some() {
            let properties = Properties::EMPTY;
            let suback = Suback { packet_id, properties, reasons: &reasons };
            self.answer_when_kept(slot, kept, &Packet::Suback(suback));
        }
    }

    /// A question for retained messages. Those of several cells wait for what is on its way here.
    pub(crate) fn on_query(&mut self, query: Box<RetainedQuery>) {
        let waits = self.cx.shared.homes.has_other_cells() && !query.is_settled;
        if !waits || self.cx.flow.barrier.flaw == Some(RetainedFlaw::AnswersEarly) {
            return self.retained.on_query(query, &mut self.cx.effects);
        }
        self.cx.flow.arrivals.push(Behind::Query(query));
    }

    /// Plants a fault.
    #[cfg(feature = "testing")]
    pub const fn plant_retained_flaw(&mut self, flaw: RetainedFlaw) {
        self.cx.flow.barrier.flaw = Some(flaw);
    }

    /// Its barrier is passed. What came before the answers may not be dealt with yet.
    fn on_settled_query(&mut self, mut query: Box<RetainedQuery>) {
        query.is_settled = true;
        match self.cx.flow.inbox.has_unread() {
            true => self.cx.flow.inbox.push_unread(Mail::QueryRetained(query)),
            false => self.retained.on_query(query, &mut self.cx.effects),
        }
    }
}

impl Context {
    /// Asks the other shards, behind all mail of this turn.
    pub(crate) fn ask_barrier(&mut self) {
        let known = self.flow.barrier.next_question().map(|it| (it, BarrierKind::Known));
        let arrived = self.flow.arrivals.next_question().map(|it| (it, BarrierKind::Arrived));
        for (number, kind) in known.into_iter().chain(arrived) {
            self.effects.send_to_others(&Mail::Ask { from: self.id, number, kind });
        }
    }
}
