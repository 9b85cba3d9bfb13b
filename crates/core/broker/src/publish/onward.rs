//! The way of messages that go on when their turn in the line has come: to the retained store, the
//! groups and the other shards.
//!
//! A QoS 2 publish of a kept session goes on when it is committed, and what its client publishes on
//! the same topic meanwhile behind it (`log/waiting.rs`).

use codec::Reason;
use session::{Message, Respondent};

use crate::deliver::copies::Routed;
use crate::log::handovers::HandoverFlaw;
use crate::log::messages::level_of;
use crate::log::store::Loaded;
use crate::log::waiting::{Behind, Onward, Step};
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::{Confirm, Mail, Name, SessionKey, Shard};

impl Shard {
    /// Would this message overtake an older one of the same client and topic?
    #[inline]
    pub(super) fn would_overtake(&self, slot: u32, message: &Message) -> bool {
        let Some(log) = self.log.as_ref().filter(|log| log.is_in_line(slot)) else { return false };
        log.would_overtake(slot, self.cx.topic_mark(Name::of(message)))
    }

    /// The message goes on behind older ones; so much of its way is left.
    pub(super) fn wait_in_line(
        &mut self,
        slot: u32,
        message: &Message,
        asked: Option<&mut Asked>,
        is_for_store_only: bool,
    ) {
        let own = (slot, self.cx.topic_mark(Name::of(message)));
        let confirm = asked.map(|asked| asked.ask(Respondent::LINE));
        if let Some(log) = self.log.as_mut().expected() {
            log.wait_in_line(own, message, confirm, is_for_store_only);
        }
    }

    /// A message goes on whose turn in the line has come.
    pub(crate) fn go_on(&mut self, onward: Onward) {
        match onward {
            Onward::Taken { serial } | Onward::Will { serial } => self.pass_on_taken(serial),
            Onward::Behind(behind) => self.pass_on_behind(*behind),
        }
    }

    /// The same where the log is out of service: what it should have kept is refused, and delays
    /// nothing.
    pub(crate) fn go_on_failed(&mut self, onward: Onward) {
        match onward {
            Onward::Taken { serial } => self.refuse_taken(serial),
            other => self.go_on(other),
        }
    }

    fn pass_on_behind(&mut self, behind: Behind) {
        let Behind { session, message, confirm, is_for_store_only } = behind;
        if let Some(log) = &mut self.log {
            log.kept.leave_line(Some(session));
        }
        let mut routed = Routed::default();
        let mut asked = confirm.map(Asked::new);
        if message.retain() {
            self.retain_or_wait(&message, asked.as_mut(), &mut routed);
        }
        let is_refused = routed.refused.is_some() && confirm.is_some();
        if !is_for_store_only && !is_refused {
            self.route_onward(&message, asked.as_mut(), &mut routed);
        }
        let (Some(confirm), Some(mut asked)) = (confirm, asked) else { return };
        if let Some(reason) = routed.refused {
            return self.on_confirmed(confirm, reason, Some(&message));
        }
        // It waits for these, and for the line no more. If its connection has ended, what comes
        // again on the next one does.
        if let Some(client) = self.sessions.at(confirm.publisher) {
            let (awaited, number) = (asked.take_awaited().unwrap_or_default(), confirm.ack_number);
            let is_current = client.connection == confirm.connection && client.is_connected();
            let session = &mut client.session;
            match is_current {
                true => session.await_more(number, &awaited),
                false => session.incoming.await_more((confirm.connection, number), &awaited),
            }
        }
        // Says nothing of whether anybody subscribes.
        self.on_confirmed(confirm, Reason::NO_MATCHING_SUBSCRIBERS, None);
    }

    /// After a start: what may not have been passed on is passed on again. True: that is done.
    pub(crate) fn pass_on_again(&mut self) -> bool {
        let Some(log) = self.log.as_ref().filter(|log| log.is_resuming()) else { return false };
        for serial in log.handovers() {
            let Some(log) = &mut self.log else { return false };
            match log.load_handover(serial) {
                None => {}
                Some(Loaded::Ready(message)) => {
                    if let Some(slot) = log.stores_again(serial) {
                        self.store_again(slot, &message);
                    }
                    self.pass_on_taken(serial);
                }
                // Serials are passed on in their order: none overtakes one that is still read.
                Some(Loaded::Pending) => return false,
                Some(Loaded::Gone) => {
                    let confirm = log.forget_handover(serial);
                    self.answer_handed_over(confirm);
                }
            }
        }
        if let Some(log) = &mut self.log {
            log.end_resuming();
        }
        true
    }

    /// The retained store, the groups and the other shards get it. The record of a QoS 2 publish is
    /// committed.
    ///
    /// What is retained is what was acknowledged last: if its session was given up, no client is
    /// notified any more that such a publish is kept, so it must not replace what was said since.
    pub(crate) fn pass_on_taken(&mut self, serial: u64) {
        let Some(log) = self.log.as_mut().expected() else { return };
        let Some(own) = log.begin_passing(serial) else { return };
        let (message, is_will) = (own.message, own.is_will);
        let mut asked = Asked::new(Confirm {
            publisher: SessionKey::new(self.cx.id, 0, 0),
            connection: crate::NO_CONNECTION,
            ack_number: 0,
            packet_id: 0,
            respondent: Respondent::ASKING,
            serial,
            is_will,
            owner: own.owner,
            is_again: false,
        });
        let mut routed = Routed::default();
        if message.retain() && (is_will || own.has_session) {
            self.retain(&message, Some(&mut asked), &mut routed);
        }
        self.route_onward(&message, Some(&mut asked), &mut routed);
        let awaited = asked.take_awaited().unwrap_or_default();
        let confirm = self.log.as_mut().and_then(|log| log.end_passing(serial, &awaited));
        self.answer_handed_over(confirm);
    }

    /// The record of a publish that was taken on never gets to the disk: its publisher is notified.
    fn refuse_taken(&mut self, serial: u64) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        let Some(confirm) = log.refuse_handover(serial) else { return };
        if let Some(client) = sessions.at(confirm.publisher) {
            log.forget_received(client.key.slot(), confirm.packet_id, serial);
            // Also on the next connection it is no repetition when it comes again.
            client.session.incoming.release(confirm.packet_id);
        }
        self.on_confirmed(confirm, Reason::IMPLEMENTATION_SPECIFIC_ERROR, None);
    }

    /// A message from another shard.
    pub(crate) fn on_publish_mail(
        &mut self,
        message: Message,
        confirm: Option<Confirm>,
        owner: u32,
    ) {
        if confirm.is_some() && self.has_late_mail() {
            return self.put_off_mail(Mail::Publish { message, confirm, owner });
        }
        if let Some(confirm) = confirm.filter(|confirm| self.has_had(*confirm, 0)) {
            return self.answer_repetition(confirm, message);
        }
        let delivered = self.deliver_mailed(&message, confirm, owner);
        match (delivered.refused, delivered.kept, confirm) {
            (Some(_), _, Some(_)) if delivered.lacks_journal && self.waits_for_disk(confirm) => {
                self.put_off_mail(Mail::Publish { message, confirm, owner });
            }
            (Some(reason), _, _) => self.cx.answer(confirm, reason, message),
            (None, Some(position), Some(confirm)) => {
                let source = self.cx.source_of(confirm, 0);
                let level = level_of(message.level());
                if let Some(log) = &mut self.log {
                    log.note_seen(source, confirm.serial);
                    log.wait(position, level, Step::Answer(confirm));
                }
            }
            (None, ..) => {
                // Should it be sent again, this shard may still have those who have got it: another
                // cell ends alone.
                if let (Some(confirm), Some(log)) = (confirm, &mut self.log)
                    && confirm.serial != 0
                    && !log.has_handover_flaw(HandoverFlaw::NotesKeptOnly)
                {
                    log.note_seen(self.cx.source_of(confirm, 0), confirm.serial);
                }
                let reason = match delivered.matched {
                    true => Reason::SUCCESS,
                    false => Reason::NO_MATCHING_SUBSCRIBERS,
                };
                self.cx.answer(confirm, reason, message);
            }
        }
    }
}
