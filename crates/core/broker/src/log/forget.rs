//! What a replay forgets when segments of its journal are given back.
//!
//! Before a segment goes, the owner of the journal has written again all in it that is needed. So a
//! fact of which nothing newer has come is needed by nobody, also if no record has deleted it.

use std::collections::BTreeMap;

use crate::log::replay::{MessageFacts, Replay, SessionFacts};

impl Replay {
    /// Segments below `oldest` are given back.
    pub(super) fn forget_before(&mut self, oldest: u32) {
        if oldest <= self.oldest {
            return;
        }
        self.oldest = oldest;
        self.forget_messages(oldest);
        let messages = &self.messages;
        self.sessions.retain(|_, facts| {
            facts.forget_before(oldest, messages);
            !facts.is_empty()
        });
        self.groups.retain(|_, facts| !facts.place.is_before(oldest));
        self.progress.retain(|_, facts| !facts.place.is_before(oldest));
        let texts = &mut self.texts;
        self.retained.retain(|_, facts| {
            let is_gone = facts.place.is_before(oldest);
            if let Some(owner) = facts.owner.filter(|_| is_gone) {
                texts.leave(owner);
            }
            !is_gone
        });
        self.streams.forget_before(oldest);
        self.unreadable.take_if(|unreadable| unreadable.at.segment() < oldest);
    }

    /// Only those that were read from these segments are looked at.
    fn forget_messages(&mut self, oldest: u32) {
        while let Some((_, serials)) = self.by_segment.pop_front_if(|(of, _)| *of < oldest) {
            for serial in serials {
                let is_gone = |facts: &MessageFacts| facts.place.is_before(oldest);
                if self.messages.get(&serial).is_some_and(is_gone)
                    && let Some(facts) = self.messages.remove(&serial)
                {
                    self.taken.remove(&serial);
                    self.leave_texts(&facts);
                }
            }
        }
    }
}

impl SessionFacts {
    fn forget_before(&mut self, oldest: u32, messages: &BTreeMap<u64, MessageFacts>) {
        self.opened.take_if(|opened| opened.place.is_before(oldest));
        self.detached.take_if(|(.., place)| place.is_before(oldest));
        self.subscriptions.forget_before(oldest);
        self.rare.take_if(|rare| {
            rare.will.take_if(|(_, place)| place.is_before(oldest));
            rare.received.retain(|_, received| match received.place.is_some() {
                true => !received.place.is_before(oldest),
                // The record of the message has it.
                false => messages.contains_key(&received.serial),
            });
            rare.in_flight.retain(|_, (_, place)| !place.is_before(oldest));
            rare.formerly.retain(|_, (.., place)| !place.is_before(oldest));
            rare.is_empty()
        });
    }
}
