//! A PUBLISH's way through the parts of a shard.

use codec::{Publish, QoS, Reason};
use session::{Message, Respondent};
use storage::{AppendError, Position};

use crate::deliver::copies::Routed;
use crate::log::messages::level_of;
use crate::log::waiting::Step;
use crate::parts::client::Pace;
use crate::publish::check::Checked;
use crate::publish::in_streams::InStreams;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::words::reasons::reason_of;
use crate::{Ended, Name, Shard};

impl Shard {
    /// Returns how the slowest subscriber keeps pace.
    pub(crate) fn on_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        checked: Checked,
    ) -> Result<Pace, Ended> {
        let message = match checked {
            Checked::Accept(message) => message,
            Checked::Repeat(retained) => {
                self.on_repeat(slot, publish, retained.as_ref());
                return Ok(Pace::default());
            }
            Checked::Deny(topic) => {
                return self.deny_publish(slot, publish, &topic);
            }
            Checked::Invalid(violation) => {
                return self.refuse_topic(slot, publish, violation);
            }
            Checked::Unknown(message) => {
                return self.refuse_unknown(slot, publish, &message);
            }
            Checked::Refuse(message) => {
                let reason = Reason::QUOTA_EXCEEDED;
                return self.refuse_publish(slot, publish, &message, reason);
            }
        };
        let disk = self.pace_of_disk();
        let mut pace = match self.is_taken_on(slot, publish, &message) {
            true => self.publish_taken(slot, publish, &message)?,
            false => self.publish_now(slot, publish, &message)?,
        };
        pace.slow_to(disk);
        Ok(pace)
    }

    /// The way of a PUBLISH that goes to everybody at once.
    #[inline(always)]
    pub(crate) fn publish_now(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
    ) -> Result<Pace, Ended> {
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
        let answered = self.answer_routed(slot, publish, message, (&routed, asked.as_mut()));
        let Routed { mut pace, own, .. } = routed;
        if own.is_some() {
            pace.slow_to(self.deliver_own(message, own));
        }
        answered.map(|()| pace)
    }

    /// A publish that was accepted comes again. Some: it is retained, too, as that may be undone.
    pub(crate) fn on_repeat(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        retained: Option<&Message>,
    ) {
        let mut asked = self.sessions.ask_for(slot, publish);
        if let Some(asked) = &mut asked {
            self.await_handover(slot, publish, asked);
            self.sessions.inherit(slot, publish, asked);
            asked.ask_again();
        }
        if let Some(message) = retained {
            let asked = asked.as_mut().filter(|_| self.is_awaited(message));
            self.retain_again(slot, publish, message, asked);
        }
        self.queue_stored_answer(slot, publish, asked.as_mut());
    }

    /// A retained publish of QoS 2 is repeated behind one of QoS 1 that may be older than it, and
    /// has replaced it: it is retained anew, and nobody gets it twice.
    pub(crate) fn retain_again(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        mut asked: Option<&mut Asked>,
    ) {
        // Now it stands in the place of those behind it, until they come again.
        let log = self.log.as_ref();
        let own = log.and_then(|log| log.kept.serial_of(slot, publish.packet_id));
        match self.note_sent_again(slot, message, own.unwrap_or_default()) {
            Ok(undone) => self.await_undone(undone, message, asked.as_deref_mut()),
            // It comes again with the next connection.
            Err(_) => self.cx.doomed.push((slot, Ended::JournalFailed)),
        }
        if self.would_overtake(slot, message) {
            return self.wait_in_line(slot, message, asked, true);
        }
        self.retain_or_wait(message, asked, &mut Routed::default());
    }

    /// A retained publish comes again, and stands in the place of what its client has retained on
    /// the topic since, above the serial `above`. Returns what its acknowledgement has to wait for.
    #[cold]
    fn note_sent_again(
        &mut self,
        slot: u32,
        message: &Message,
        above: u64,
    ) -> Result<Option<Position>, AppendError> {
        let own = (slot, self.cx.topic_mark(Name::of(message)));
        let Some(client) = self.sessions.get_mut(slot).expected() else { return Ok(None) };
        client.session.incoming.note_sent_again();
        let Some(log) = &mut self.log else { return Ok(None) };
        log.note_sent_again(own, message.level(), above)
    }

    /// The acknowledgement waits for the facts about those that the message has replaced.
    fn await_undone(
        &mut self,
        undone: Option<Position>,
        message: &Message,
        asked: Option<&mut Asked>,
    ) {
        if let (Some(position), Some(asked), Some(log)) = (undone, asked, &mut self.log) {
            let confirm = asked.ask(Respondent::UNDONE);
            log.wait(position, level_of(message.level()), Step::Answer(confirm));
        }
    }

    /// Sends a message of a client on its way, not before older ones of its topic.
    #[inline(always)]
    pub(crate) fn route_in_turn(
        &mut self,
        slot: u32,
        message: &Message,
        asked: Option<&mut Asked>,
    ) -> Routed {
        if self.would_overtake(slot, message) {
            return self.route_behind(slot, message, asked);
        }
        self.route(message, asked)
    }

    /// Sends a message on its way: to the retained store, the subscribers here, the shared groups
    /// and the shards that may want it.
    pub(crate) fn route(&mut self, message: &Message, mut asked: Option<&mut Asked>) -> Routed {
        if asked.is_some()
            && let Some(reason) = self.lacks_disk_for(message, 0)
        {
            return Routed { refused: Some(reason), ..Routed::default() };
        }
        let mut routed = Routed::default();
        let topic = Name::topic_of(message);
        let mut stored = InStreams::default();
        let mut audience = self.sessions.router.audience(topic, &mut self.cx.flow.work);
        if audience.may_be_streamed() || message.retain() {
            self.sessions.router.keep(audience);
            match self.store(message, asked.as_deref_mut(), &mut routed) {
                Some(in_streams) => stored = in_streams,
                None => return routed,
            }
            audience = self.sessions.router.audience(topic, &mut self.cx.flow.work);
        }
        if self.route_here(message, &mut audience, (asked.as_deref_mut(), stored), &mut routed) {
            if !audience.groups().is_empty() {
                let asked = asked.as_deref_mut();
                self.route_to_groups(message, audience.groups(), asked, &mut routed);
            }
            if audience.interested().wants & !(1 << self.cx.id) != 0 {
                self.route_to_others(message, audience.interested(), asked, &mut routed);
            }
        }
        self.sessions.router.keep(audience);
        routed
    }

    /// Stores a message in streams and as the retained one of its topic, before any mail leaves:
    /// what is refused here has reached nobody. None: it is.
    #[inline(never)]
    fn store(
        &mut self,
        message: &Message,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) -> Option<InStreams> {
        let stored = self.store_in_streams(message, asked.as_deref_mut());
        let stored = stored.inspect_err(|reason| routed.refused = Some(*reason)).ok()?;
        if message.retain() {
            let is_awaited = asked.is_some();
            self.retain(message, asked, routed);
            if routed.refused.is_some() && is_awaited {
                // The publisher is notified and sends it again: nobody is to get it twice.
                return None;
            }
        }
        Some(stored)
    }

    /// Publishes a message of the broker's own, such as `$SYS` ones.
    pub fn on_publish_command(&mut self, message: &Message, now_ms: u64) {
        self.cx.now_ms = now_ms;
        self.route(message, None);
        self.finish();
    }
}
