//! Mail between shards.

use session::Message;

use crate::parts::client::Pace;
use crate::words::expected::Expected;
use crate::{Mail, RetainedQuery, Shard};

impl Shard {
    /// A batch of mail from a shard. It is kept, emptied, for mail that goes out.
    pub fn on_batch(&mut self, mut mails: Vec<Mail>, now_ms: u64) {
        self.cx.now_ms = now_ms;
        self.cx.flow.work.begin_mail();
        for mail in mails.drain(..) {
            let is_behind_broadcast = self.cx.is_behind_broadcast(&mail);
            let is_late = self.cx.flow.work.mail_is_spent()
                || self.cx.flow.inbox.has_unread()
                || is_behind_broadcast;
            if !is_late || !mail.keeps_order() {
                self.on_mail(mail, now_ms);
            } else if !is_behind_broadcast && self.cx.lets_pass(&mail) {
                // A message of somebody who has none among what is unread does not wait for those
                // who have many there, or costly ones.
                let of_mail = self.cx.flow.work.begin_passing();
                self.on_mail(mail, now_ms);
                self.cx.flow.work.end_passing(of_mail);
            } else {
                self.cx.flow.inbox.push_unread(mail);
            }
        }
        self.cx.flow.work.end_mail();
        self.cx.effects.keep_batch(mails);
    }

    /// Goes on with mail for which a turn was not enough, or that waited for a broadcast.
    pub(crate) fn read_mail_on(&mut self) {
        let now_ms = self.cx.now_ms;
        if self.cx.flow.inbox.is_empty() {
            return;
        }
        self.cx.flow.work.begin_mail();
        while !self.cx.flow.work.mail_is_spent()
            && let Some(mail) = self
                .cx
                .flow
                .inbox
                .next_deferred(|mail| self.cx.flow.broadcasts.is_overtaken_by_mail(mail))
        {
            self.on_mail(mail, now_ms);
        }
        while !self.cx.flow.work.mail_is_spent()
            && let Some(mail) = self.cx.flow.inbox.next_unread()
        {
            // It makes way for others.
            match self.cx.is_behind_broadcast(&mail) {
                true => self.cx.flow.inbox.defer(mail),
                false => self.on_mail(mail, now_ms),
            }
        }
        self.cx.flow.work.end_mail();
    }

    /// Mail from a shard, in the order in which it was sent.
    pub fn on_mail(&mut self, mail: Mail, now_ms: u64) {
        self.cx.now_ms = now_ms;
        match mail {
            Mail::Publish { message, confirm, owner } => {
                self.on_publish_mail(message, confirm, owner);
            }
            Mail::Confirmed { confirm, reason, refused } => {
                self.on_confirmed(confirm, reason, refused.as_ref());
            }
            Mail::Congested { publisher, pause_ms, is_urgent } => {
                let pace = Pace { pause_ms, is_urgent, is_filling: false };
                if let Some(client) = self.sessions.at(publisher) {
                    client.pause_as_publisher(&mut self.cx, pace, false);
                }
            }
            Mail::Retain { message, confirm, owner } => {
                self.on_retain_mail(message, confirm, owner);
            }
            Mail::QueryRetained(query) => self.on_query(query),
            Mail::Retained { query, messages: page, is_last: ends } => {
                self.on_retained_page(*query, &page, ends)
            }
            Mail::Join { group, member } => drop(self.on_join(&group, member)),
            Mail::Leave { group, member } => self.on_leave(group, member),
            Mail::Offer { group, member, message, way } => {
                self.on_offer(&group, member, message, way);
            }
            Mail::Park { group, message, number, confirm } => {
                self.on_park(&group, (number, message), confirm);
            }
            Mail::Seen { serial } => self.log.iter_mut().for_each(|log| log.skip_serials(serial)),
            Mail::GroupDone { group, serial } => self.on_group_done(group, serial),
            Mail::GroupReturned { group, serial } => self.on_group_returned(group, serial),
            Mail::GroupDenied { group, message, way } => {
                self.on_group_denied(&group, message, way);
            }
            Mail::Waiting { group, any } => self.on_waiting(group, any),
            Mail::Pull { group } => self.drain_group(group),
            Mail::Online { group, member } => self.groups.on_online(group, member),
            Mail::AskGrant { from, bytes } => self.cx.effects.windows().note_asked(from, bytes),
            // Publishers that waited for that are read on, as many as there is room for.
            Mail::Grant { by, bytes } => {
                self.cx.effects.windows().take(by, bytes);
                while let Some((slot, connection)) = self.cx.effects.windows().next_waiting(by) {
                    self.read_on(slot, connection);
                }
            }
            Mail::Ask { from, number, kind } => {
                self.cx.send(from, Mail::Passed { by: self.cx.id, number, kind })
            }
            Mail::Passed { by, number, kind } => self.on_barrier_passed(by, number, kind),
            Mail::Pause { subscriber, filter, bytes_min: bytes } => {
                self.cx.on_pause(subscriber, filter, bytes)
            }
            Mail::Resume { subscriber } => {
                // One of this shard has ended already, and may have begun anew.
                if subscriber.shard() != self.cx.id {
                    self.cx.flow.pauses.end(subscriber);
                }
                // One whose next publish is for a shard with a full window waits for that window.
                while let Some((slot, connection)) = self.cx.next_resumed() {
                    self.read_on(slot, connection);
                }
            }
        }
        self.finish();
    }

    /// A planted bug: publishers whose pause is over are read on only while no window of the shard
    /// is full.
    #[cfg(feature = "testing")]
    pub const fn couple_pauses(&mut self) {
        self.cx.flow.pauses.is_coupled = true;
    }

    /// The subscriber's side: deliver the page, and go on when there is room.
    fn on_retained_page(&mut self, query: RetainedQuery, messages: &[Message], is_last: bool) {
        // The session has ended since it asked.
        let Some(slot) = self.sessions.slot_of(query.subscriber) else { return };
        let extras = self.sessions.get_mut(slot).and_then(|client| client.extras.as_mut());
        let Some(is_wanted) = extras.and_then(|extras| extras.take_asked(query.page)) else {
            return;
        };
        let subscription = self.sessions.subscription_to(slot, &query.filter);
        if let Some(subscription) = subscription.filter(|_| is_wanted) {
            for message in messages {
                self.offer_retained(slot, &query, subscription, message);
            }
        }
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        let extras = client.extras();
        if !is_last && is_wanted {
            // Without a connection it is asked for after the next CONNECT.
            extras.retained_next.push(query);
        }
        if extras.retained_asked.is_empty() && extras.retained_next.is_empty() {
            extras.retained_fresh = Vec::new();
        }
        self.ask_next_page(slot);
    }
}
