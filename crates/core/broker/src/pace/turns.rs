//! Who waits for the next turn, or for what others have to get first.

use codec::{Packet, Publish};
use session::PauseReason;

use crate::parts::client::{Client, topic_of};
use crate::state::Context;
use crate::{Mail, Name};

impl Client {
    /// Has a publish to wait until others have reached everybody?
    #[cold]
    pub(crate) fn waits_for_broadcast(&self, cx: &Context, publish: &Publish<'_>) -> bool {
        let topic = Name::new(self.scope, topic_of(self, publish).as_bytes());
        cx.flow.broadcasts.is_overtaken_by(self.key.as_u64(), topic)
    }

    /// Reads nothing more from it before those that wait have had their part.
    pub(crate) fn wait_for_turn(&mut self, cx: &mut Context) {
        if self.stand_in_line(cx) {
            cx.flow.work.line.push_back((self.key.slot(), self.connection));
            cx.metrics.work_waits.add(1);
        }
    }

    /// Do its access rules make a short request a costly one?
    pub(crate) fn checks_much(&self, cx: &Context, packet: &Packet<'_>) -> bool {
        let Packet::Subscribe(subscribe) = packet else { return false };
        if self.grants.asks_service() {
            return true;
        }
        let units = self.grants.filter_units();
        units > 0 && units * subscribe.filters.iter().count() >= cx.flow.work.heavy_units()
    }

    /// It was sent more while it had not read what it was sent before: it is not read until it
    /// has. `unread` are the bytes that waited for it before its request.
    #[cold]
    pub(crate) fn check_reading(&mut self, cx: &mut Context, unread: usize) {
        // Its packets may have ended the connection.
        let Some(link) = self.session.link_mut() else { return };
        if link.note_answers(unread)
            && self.change_read_pauses(cx, |pauses| pauses.pause(PauseReason::UnreadAnswers))
        {
            cx.metrics.unread_waits.add(1);
        }
    }

    /// A client that was not read because it did not read has taken something.
    #[cold]
    pub(crate) fn read_on_if_it_reads(&mut self, cx: &mut Context) {
        let Some(link) = self.session.link_mut() else { return };
        link.last_packet_ms = cx.now_ms;
        if link.outbox.len() <= link.settings().outbox_bytes_max as usize / 2 {
            self.change_read_pauses(cx, |pauses| pauses.resume(PauseReason::UnreadAnswers));
        }
    }
}

impl Context {
    /// Does it have to wait for the end of a broadcast, or behind mail that has to?
    pub(crate) fn is_behind_broadcast(&self, mail: &Mail) -> bool {
        self.flow.broadcasts.is_overtaken_by_mail(mail) || self.flow.inbox.is_behind_deferred(mail)
    }

    pub(crate) fn lets_pass(&self, mail: &Mail) -> bool {
        self.flow.inbox.has_unread() && self.flow.work.lets_pass() && self.flow.inbox.may_pass(mail)
    }
}
