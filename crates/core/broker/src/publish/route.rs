//! The way of a message that was accepted: to the streams and the retained store, the subscribers
//! here, the shared groups and the other shards.

use codec::{Publish, QoS};
use session::{Message, Respondent};
use topic::Interested;

use crate::deliver::copies::{Delivered, Routed};
use crate::log::messages::level_of;
use crate::log::waiting::Step;
use crate::parts::client::Pace;
use crate::parts::work::Task;
use crate::publish::check::{Checked, Way};
use crate::publish::in_streams::InStreams;
use crate::words::asked::Asked;
use crate::{Ended, Mail, Name, Shard};

impl Shard {
    /// A PUBLISH that was checked goes on its way. Returns how the slowest subscriber keeps pace.
    pub(crate) fn publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        checked: Checked,
    ) -> Result<Pace, Ended> {
        let (message, way) = match checked {
            Checked::Accept(message, way) => (message, way),
            other => return self.refuse(slot, publish, other),
        };
        let disk = self.pace_of_disk();
        let mut pace = match way {
            Way::Kept => self.publish_kept(slot, publish, &message)?,
            Way::Plain => {
                let mut asked = match publish.qos {
                    QoS::AtMostOnce => None,
                    _ => self.sessions.ask_for(slot, publish),
                };
                let routed = self.route(&message, asked.as_mut());
                self.end_publish(slot, publish, &message, (routed, asked.as_mut()))?
            }
        };
        pace.slow_to(disk);
        Ok(pace)
    }

    /// Answers a publish that is on its way, and delivers what its publisher gets of it.
    pub(super) fn end_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        (routed, asked): (Routed, Option<&mut Asked>),
    ) -> Result<Pace, Ended> {
        let answered = self.answer_routed(slot, publish, message, (&routed, asked));
        let Routed { mut pace, own, .. } = routed;
        if own.is_some() {
            pace.slow_to(self.deliver_own(message, own));
        }
        answered.map(|()| pace)
    }

    /// Publishes a message of the broker's own, such as `$SYS` ones.
    pub fn on_publish_command(&mut self, message: &Message, now_ms: u64) {
        self.cx.now_ms = now_ms;
        self.route(message, None);
        self.finish();
    }

    /// Sends a message on its way.
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
        let keeping = stored.keeping(asked.as_deref());
        let delivered = self.deliver(message, audience.subscriptions(), keeping);
        routed.matched |= stored.has_any;
        if self.note_delivered(message, delivered, asked.as_deref_mut(), &mut routed) {
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

    /// The acknowledgement waits for what was written for the subscribers here. False: the message
    /// is refused.
    #[inline(always)]
    pub(super) fn note_delivered(
        &mut self,
        message: &Message,
        delivered: Delivered,
        asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) -> bool {
        routed.matched |= delivered.matched;
        routed.pace.slow_to(delivered.pace);
        routed.own = delivered.own;
        if delivered.refused.is_some() {
            routed.refused = delivered.refused;
            return false;
        }
        if let (Some(position), Some(asked), Some(log)) = (delivered.kept, asked, &mut self.log) {
            let confirm = asked.ask(Respondent::OWN_JOURNAL);
            log.wait(position, level_of(message.level()), Step::Answer(confirm));
        }
        true
    }

    /// The way of a message from the subscribers here to the groups and the other shards.
    pub(super) fn route_onward(
        &mut self,
        message: &Message,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let topic = Name::topic_of(message);
        let audience = self.sessions.router.audience(topic, &mut self.cx.flow.work);
        self.route_to_groups(message, audience.groups(), asked.as_deref_mut(), routed);
        self.route_to_others(message, audience.interested(), asked, routed);
        self.sessions.router.keep(audience);
    }

    pub(super) fn route_to_groups(
        &mut self,
        message: &Message,
        matches: &[u32],
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let mut over = 0;
        for group in matches {
            if self.groups.is_over(*group) {
                over += 1;
                continue;
            }
            routed.matched = true;
            self.deliver_to_group(*group, message, asked.as_deref_mut());
        }
        self.cx.flow.work.charge_for(Task::EmptyGroups(over));
    }

    pub(super) fn route_to_others(
        &mut self,
        message: &Message,
        interested: Interested,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let mut others = interested.wants & !(1 << self.cx.id);
        routed.matched |= others != 0;
        while others != 0 {
            let shard = others.trailing_zeros() as u16;
            others &= others - 1;
            // Another cell answers when it has received it.
            // One that was taken on may be mailed again after a crash: who has kept it meanwhile,
            // though nobody there was promised it yet, has to know it by its serial.
            let promises =
                interested.promises & (1 << shard) != 0 || shard >= self.cx.shared.homes.shards();
            let is_awaited = |asked: &&mut Asked| promises || asked.confirm().serial != 0;
            let owner = self.owner_number(message, asked.as_deref());
            let confirm = asked.as_deref_mut().filter(is_awaited).map(|a| a.ask_shard(shard));
            self.cx.send(shard, Mail::Publish { message: message.clone(), confirm, owner });
        }
    }
}
