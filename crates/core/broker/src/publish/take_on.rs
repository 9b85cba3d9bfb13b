//! The door for what the log has a say in: QoS 2 of kept sessions, what comes again, and what would
//! overtake what waits in the line.

use codec::{Publish, QoS};
use session::{Message, Respondent};
use storage::AppendError;

use crate::deliver::copies::{Delivered, Routed};
use crate::log::passing::ToTakeOn;
use crate::parts::client::Pace;
use crate::parts::sessions::Sessions;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::reasons::reason_of;
use crate::{Confirm, Ended, Name, Shard};

impl Shard {
    pub(super) fn publish_kept(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
    ) -> Result<Pace, Ended> {
        if self.is_taken_on(slot, publish, message) {
            return self.publish_taken(slot, publish, message);
        }
        let mut undone = None;
        if publish.dup && publish.retain {
            match self.note_sent_again(slot, message, 0) {
                Ok(position) => undone = position,
                Err(error) => {
                    let reason = reason_of(&error);
                    return self.refuse_publish(slot, publish, message, reason);
                }
            }
        }
        let mut asked = match publish.qos {
            QoS::AtMostOnce => None,
            _ if self.is_awaited(message) => self.sessions.ask_for(slot, publish),
            _ => None,
        };
        let routed = self.route_in_turn(slot, message, asked.as_mut());
        if undone.is_some() && routed.refused.is_none() {
            self.await_undone(undone, message, asked.as_mut());
        }
        self.end_publish(slot, publish, message, (routed, asked.as_mut()))
    }

    /// Sends a message of a client on its way, not before older ones of its topic.
    pub(crate) fn route_in_turn(
        &mut self,
        slot: u32,
        message: &Message,
        asked: Option<&mut Asked>,
    ) -> Routed {
        match self.would_overtake(slot, message) {
            true => self.route_behind(slot, message, asked),
            false => self.route(message, asked),
        }
    }

    /// Subscribers here have had the older ones; the others get the message behind them.
    #[cold]
    fn route_behind(
        &mut self,
        slot: u32,
        message: &Message,
        mut asked: Option<&mut Asked>,
    ) -> Routed {
        let mut routed = Routed::default();
        if asked.is_some()
            && let Some(reason) = self.lacks_disk_for(message, 0)
        {
            routed.refused = Some(reason);
            return routed;
        }
        let stored = match self.store_in_streams(message, asked.as_deref_mut()) {
            Ok(stored) => stored,
            Err(reason) => {
                routed.refused = Some(reason);
                return routed;
            }
        };
        let mut audience =
            self.sessions.router.audience(Name::topic_of(message), &mut self.cx.flow.work);
        let keeping = stored.keeping(asked.as_deref());
        let delivered = self.deliver(message, audience.subscriptions(), keeping);
        routed.matched |= stored.has_any;
        let is_taken = self.note_delivered(message, delivered, asked.as_deref_mut(), &mut routed);
        let has_others = audience.interested().wants & !(1 << self.cx.id) != 0;
        let goes_on = has_others || !audience.groups().is_empty();
        self.sessions.router.keep(audience);
        if !is_taken {
            return routed;
        }
        routed.matched |= goes_on;
        if goes_on || message.retain() {
            self.wait_in_line(slot, message, asked, false);
        }
        routed
    }

    fn publish_taken(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
    ) -> Result<Pace, Ended> {
        let own = 1 << self.cx.id;
        let lacks_disk = self.lacks_disk_for(message, own);
        let places = self.sessions.streams_for(message);
        if let Some(reason) = lacks_disk.or_else(|| self.sessions.reason_of_full(&places)) {
            return self.refuse_publish(slot, publish, message, reason);
        }
        let mut asked = self.sessions.ask_for(slot, publish);
        let confirm = asked.as_mut().map(|asked| asked.ask(Respondent::HANDOVER));
        let serial = match self.take_on(slot, publish.packet_id, (message, &places), confirm) {
            Ok(serial) => serial,
            Err(error) => {
                let reason = reason_of(&error);
                return self.refuse_publish(slot, publish, message, reason);
            }
        };
        let Delivered { mut pace, own, .. } = self.deliver_kept(message, serial);
        self.queue_stored_answer(slot, publish, asked.as_mut());
        pace.slow_to(self.deliver_own(message, own));
        Ok(pace)
    }

    /// Takes a QoS 2 publish of a kept session on, also for the streams at these places. Returns
    /// its serial.
    fn take_on(
        &mut self,
        slot: u32,
        packet_id: u16,
        (message, places): (&Message, &[u32]),
        confirm: Option<Confirm>,
    ) -> Result<u64, AppendError> {
        let Self { cx, sessions, log: Some(log), .. } = self else {
            return Err(AppendError::Closed);
        };
        let Some((client, router)) = sessions.with_index(slot).expected() else {
            return Err(AppendError::Closed);
        };
        let own = ToTakeOn {
            message,
            packet_id,
            mark: cx.topic_mark(Name::of(message)),
            publisher: client.as_publisher(),
            owner: client.charged.account(),
            streams: (router.streams().set(), places),
            confirm,
        };
        let serial = log.take_on(slot, &own, cx.now_ms)?;
        client.session.incoming.insert(packet_id);
        Ok(serial)
    }

    /// Is it a QoS 2 publish of a durable session? It is taken on in the journal first, and passed
    /// to the others when it is committed.
    #[inline]
    fn is_taken_on(&self, slot: u32, publish: &Publish<'_>, message: &Message) -> bool {
        // With the retained store about full its home has to be asked first: what is taken on
        // cannot be refused any more.
        publish.qos == QoS::ExactlyOnce
            && message.level() > 0
            && !self.lacks_room_to_retain(message)
            && !self.cx.shared.settings.rejects
            && self.sessions.get(slot).is_some_and(|client| client.is_kept)
    }

    /// What no journal keeps is refused by none: it waits for nobody, and a repetition is known at
    /// once.
    pub(super) fn is_awaited(&mut self, message: &Message) -> bool {
        self.log.is_none()
            || self.cx.shared.homes.has_other_cells()
            || message.level() > 0
            || self.cx.shared.settings.rejects
            || self.lacks_room_to_retain(message)
            || !self.sessions.streams_for(message).is_empty()
    }
}

impl Sessions {
    /// A publish of which the publisher waits for answers; its ack number is the one that
    /// `answer_publish` will get.
    pub(crate) fn ask_for(&self, slot: u32, publish: &Publish<'_>) -> Option<Asked> {
        if publish.qos == QoS::AtMostOnce {
            return None;
        }
        let client = self.get(slot)?;
        let publisher = client.key;
        let ack_number = client.session.link()?.next_ack_number();
        let connection = client.connection;
        let packet_id = publish.packet_id;
        let (serial, is_will, is_again) = (0, false, false);
        let owner = client.charged.account().map_or(NOBODY, |account| account.number());
        Some(Asked::new(Confirm {
            publisher,
            connection,
            ack_number,
            packet_id,
            respondent: Respondent::ASKING,
            serial,
            is_will,
            owner,
            is_again,
        }))
    }
}
