//! What one session asked for, and what it has seen.

use std::collections::BTreeMap;

use codec::QoS;

use super::{GROUP_FILTER, MessageId, Moment, Payload};

/// A session as its client knows it.
#[derive(Debug, Default)]
pub(super) struct Session {
    subscriptions: Vec<Subscription>,
    pub(super) times: BTreeMap<MessageId, u32>,
    /// Of those, the times at QoS 2.
    pub(super) times_exactly: BTreeMap<MessageId, u32>,
    /// By topic: what came with the RETAIN flag.
    pub(super) retained: BTreeMap<String, Payload>,
    /// The last new sequence numbers by topic and publisher; of what is kept in memory only by QoS
    /// of the publish, too.
    pub(super) last: BTreeMap<(String, u32, Option<QoS>), Last>,
    /// When its present connection began.
    pub(super) opened_ms: u64,
    /// When it was known that the connection has the session.
    pub(super) connected: Moment,
}

/// The last new sequence number, of any QoS, and of QoS 1 and 2.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    any: u32,
    kept: u32,
}

impl Last {
    /// QoS 0 waits in no queue of a subscriber, so it may come before others, and not after them.
    pub(super) const fn of(self, qos: QoS) -> u32 {
        match qos {
            QoS::AtMostOnce => self.any,
            _ => self.kept,
        }
    }

    pub(super) fn note(&mut self, qos: QoS, sequence: u32) {
        self.any = self.any.max(sequence);
        if qos != QoS::AtMostOnce {
            self.kept = self.kept.max(sequence);
        }
    }
}

/// A filter, from the SUBSCRIBE that asked for it to the UNSUBACK.
#[derive(Debug)]
struct Subscription {
    filter: String,
    /// The least that is granted, with a SUBSCRIBE under way.
    qos: QoS,
    asked: QoS,
    /// Since when the broker surely has it: SUBACK has come, and no UNSUBSCRIBE is under way.
    certain: Option<Moment>,
    ended: Option<Moment>,
    /// When its QoS was raised last, and what it had been before at least.
    raised: Option<(Moment, QoS)>,
}

impl Subscription {
    fn is_shared(&self) -> bool {
        self.filter.starts_with("$share/")
    }

    fn is_certain(&self, sent: Moment) -> bool {
        self.ended.is_none() && self.certain.is_some_and(|since| since < sent)
    }

    /// What was sent before its QoS was raised came at a lower one.
    fn qos_at(&self, sent: Moment) -> QoS {
        match self.raised {
            Some((since, before)) if sent < since => self.qos.min(before),
            _ => self.qos,
        }
    }

    fn matches(&self, topic: &str) -> bool {
        let filter = if self.is_shared() { GROUP_FILTER } else { &self.filter };
        topic::matches(filter, topic)
    }
}

impl Session {
    /// Returns whether it asks for less than it has.
    pub(super) fn on_subscribing(&mut self, filter: &str, qos: QoS) -> bool {
        let Some(known) = self.open(filter) else {
            let (filter, asked, certain, ended) = (filter.into(), qos, None, None);
            let raised = None;
            self.subscriptions.push(Subscription { filter, qos, asked, certain, ended, raised });
            return false;
        };
        let is_less = qos < known.qos;
        (known.qos, known.asked) = (known.qos.min(qos), qos);
        is_less
    }

    pub(super) fn on_subscribed(&mut self, filter: &str, now: Moment) {
        if let Some(subscription) = self.open(filter) {
            subscription.certain.get_or_insert(now);
            if subscription.asked > subscription.qos {
                subscription.raised = Some((now, subscription.qos_at(0)));
            }
            subscription.qos = subscription.asked;
        }
    }

    pub(super) fn on_unsubscribing(&mut self, filter: &str) {
        if let Some(subscription) = self.open(filter) {
            subscription.certain = None;
        }
    }

    pub(super) fn on_unsubscribed(&mut self, filter: &str, now: Moment) {
        if let Some(subscription) = self.open(filter) {
            subscription.ended = Some(now);
        }
    }

    /// Notes a message that has come, and returns the last that it must not come after: of whatever
    /// QoS of its publish, or only of the same.
    pub(super) fn note_order(
        &mut self,
        (topic, publisher): (String, u32),
        (qos, by_qos): (QoS, bool),
        delivered: QoS,
        sequence: u32,
    ) -> u32 {
        let of_all = self.last.entry((topic.clone(), publisher, None)).or_default();
        let before_all = of_all.of(delivered);
        if !by_qos {
            of_all.note(delivered, sequence);
        }
        let of_qos = self.last.entry((topic, publisher, Some(qos))).or_default();
        let before = of_qos.of(delivered);
        of_qos.note(delivered, sequence);
        if by_qos { before } else { before_all }
    }

    fn open(&mut self, filter: &str) -> Option<&mut Subscription> {
        let mut all = self.subscriptions.iter_mut();
        all.find(|subscription| subscription.ended.is_none() && subscription.filter == filter)
    }

    /// The QoS at which it surely gets for itself what is sent on the topic at that time.
    pub(super) fn granted(&self, topic: &str, sent: Moment) -> Option<QoS> {
        let all = self.subscriptions.iter().filter(|s| s.is_certain(sent) && !s.is_shared());
        all.filter(|s| s.matches(topic)).map(|s| s.qos_at(sent)).max()
    }

    /// Has it subscribed to the topic on its present connection, and not given that up?
    pub(super) fn has_asked_for(&self, topic: &str) -> bool {
        let is_of_connection = |own: &&Subscription| {
            own.ended.is_none() && own.certain.is_some_and(|since| since > self.connected)
        };
        let all = self.subscriptions.iter().filter(|own| !own.is_shared());
        all.filter(is_of_connection).any(|own| own.matches(topic))
    }

    /// Is it surely in the shared group?
    pub(super) fn is_member(&self, now: Moment) -> bool {
        self.subscriptions.iter().any(|s| s.is_shared() && s.is_certain(now))
    }

    /// May it get a message that was sent at that time, or is it none of its business?
    pub(super) fn may_get(&self, topic: &str, sent: Moment) -> bool {
        let mut all = self.subscriptions.iter().filter(|s| s.matches(topic));
        all.any(|s| s.ended.is_none_or(|ended| ended > sent))
    }
}
