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
            BarrierKind::Arrived => {
                let arrivals = self.cx.flow.arrivals.iter_mut();
                arrivals.for_each(|barrier| barrier.note_answer(by, number));
            }
        }
        self.answer_passed();
    }

    pub(crate) fn answer_passed(&mut self) {
        let next = |cx: &mut Context| {
            let known = cx.flow.barrier.next_passed(cx.id);
            known.or_else(|| cx.flow.arrivals.as_mut()?.next_passed(cx.id))
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
        let is_early = self.cx.flow.barrier.flaw == Some(RetainedFlaw::AnswersEarly);
        match &mut self.cx.flow.arrivals {
            Some(barrier) if !query.is_settled && !is_early => barrier.push(Behind::Query(query)),
            _ => self.retained.on_query(query, &mut self.cx.effects),
        }
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
        if let Some(number) = self.flow.barrier.next_question() {
            let kind = BarrierKind::Known;
            self.effects.send_to_others(&Mail::Ask { from: self.id, number, kind });
        }
        if let Some(barrier) = &mut self.flow.arrivals
            && let Some(number) = barrier.next_question()
        {
            let kind = BarrierKind::Arrived;
            self.effects.send_to_others(&Mail::Ask { from: self.id, number, kind });
        }
    }
}
