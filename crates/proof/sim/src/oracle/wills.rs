//! Wills: which have to come, which may, and which must not.

use std::collections::{BTreeMap, BTreeSet};

use broker::Durability;
use codec::QoS;

use super::{Message, MessageId, Oracle, Payload};
use crate::client::OwnedPublish;

/// The wills of all connections, by the number of the connection.
#[derive(Debug, Default)]
pub(super) struct Wills {
    by_connection: BTreeMap<u32, Will>,
    by_id: BTreeMap<MessageId, u32>,
    /// The connection of each client that was admitted last.
    admitted: BTreeMap<u32, u32>,
}

/// What a CONNECT said.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub client: u32,
    pub connection: u32,
    /// The session outlives the connection.
    pub is_kept: bool,
    pub delay_ms: u64,
}

#[derive(Debug)]
struct Will {
    offer: Offer,
    id: MessageId,
    retain: bool,
    state: State,
    /// An acknowledgement that waited for the journal came on its connection.
    is_firm: bool,
    /// What its state says is on the medium.
    is_settled: bool,
    /// The broker has ended before the connection of a session that ends with it: the will waits
    /// for its client after the start.
    is_left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It must not come, and why.
    Void(&'static str),
    /// Its connection ended without a goodbye: it comes at a time between these, unless the client
    /// is back before.
    Due { min_ms: u64, max_ms: u64 },
    /// It has to come.
    Published,
    /// It may come.
    Open,
}

impl Wills {
    pub(super) fn has(&self, topic: &str, payload: Payload) -> bool {
        self.by_id.contains_key(&(topic.to_owned(), payload))
    }
}

/// How long wills wait for clients after a start, and how much longer the last of many may wait.
const GRACE_MS: u64 = 10_000;
const SPREAD_MS: u64 = 1000;

const NOT_ADMITTED: &str = "its CONNECT never came";
const CONNECTED: &str = "its client is there";

impl Oracle {
    /// A CONNECT with a will is about to be written.
    pub fn on_will_offered(&mut self, offer: Offer, publish: &OwnedPublish) {
        self.now += 1;
        self.trace.note(|| format!("a will: {publish}, {offer:?}"));
        let message = Message {
            qos: publish.qos,
            sent: self.now,
            sent_ms: self.now_ms,
            expiry_secs: None,
            acknowledged_ms: None,
            has_group: false,
            owed: BTreeMap::new(),
            may_repeat: false,
            may_be_late: false,
            was_allowed: true,
            was_forbidden: false,
        };
        self.streams.on_sent(publish, true);
        let id = (publish.topic.clone(), publish.payload);
        self.messages.insert(id.clone(), message);
        if publish.retain {
            self.retained.on_sent(&publish.topic, publish.payload.sequence, false);
        }
        let will = Will {
            offer,
            id: id.clone(),
            retain: publish.retain,
            state: State::Void(NOT_ADMITTED),
            is_firm: false,
            is_settled: true,
            is_left: false,
        };
        self.wills.by_connection.insert(offer.connection, will);
        self.wills.by_id.insert(id, offer.connection);
    }

    /// The broker takes a connection on: what was due by then comes, what was not does not.
    pub fn on_will_admitted(&mut self, client: u32, connection: u32, is_clean: bool) {
        let before = self.wills.admitted.insert(client, connection);
        if let Some(before) = before {
            self.return_within(before, is_clean);
        }
        if let Some(will) = self.wills.by_connection.get_mut(&connection) {
            (will.state, will.is_settled) = (State::Void(CONNECTED), false);
        }
    }

    fn return_within(&mut self, connection: u32, is_clean: bool) {
        let Some(will) = self.wills.by_connection.get_mut(&connection) else { return };
        let State::Due { min_ms, max_ms } = will.state else { return };
        let (now_ms, is_over) = (self.now_ms, is_clean && !will.is_left);
        if is_over || now_ms >= max_ms {
            self.on_will_published(connection);
        } else if now_ms < min_ms {
            self.set_will(connection, State::Void("its client was back in time"));
        } else {
            self.set_will(connection, State::Open);
        }
    }

    fn set_will(&mut self, connection: u32, state: State) {
        let Some(will) = self.wills.by_connection.get_mut(&connection) else { return };
        (will.state, will.is_settled) = (state, false);
        if let Some(message) = self.messages.get_mut(&will.id) {
            message.owed.clear();
        }
    }

    fn on_will_published(&mut self, connection: u32) {
        let Some(will) = self.wills.by_connection.get_mut(&connection) else { return };
        (will.state, will.is_settled) = (State::Published, false);
        let id = will.id.clone();
        self.trace.note(|| format!("published: will {id:?}"));
        if let Some(message) = self.messages.get_mut(&id) {
            message.acknowledged_ms = Some(self.now_ms);
        }
    }

    /// The broker has ended a connection. `next_is_clean`: another one took over.
    pub fn on_will_ended(
        &mut self,
        connection: u32,
        is_goodbye: bool,
        next_is_clean: Option<bool>,
    ) {
        let Some(will) = self.wills.by_connection.get(&connection) else { return };
        let delay_ms = will.offer.delay_ms;
        if is_goodbye {
            self.set_will(connection, State::Void("it was withdrawn"));
            return;
        }
        self.make_due(connection, delay_ms);
        if delay_ms == 0 {
            self.on_will_published(connection);
        } else if let Some(is_clean) = next_is_clean {
            self.return_within(connection, is_clean);
        }
    }

    /// The broker stops, which ends a connection.
    pub fn on_will_stopped(&mut self, connection: u32) {
        let Some(will) = self.wills.by_connection.get(&connection) else { return };
        if will.offer.is_kept || self.terms.level == Durability::Memory {
            return self.on_will_ended(connection, false, None);
        }
        self.leave_will(connection);
    }

    /// A will for the next broker: it is published if its client does not come back. Nobody can
    /// tell if the journal may lack room for it, or if rights are asked for.
    fn leave_will(&mut self, connection: u32) {
        let is_unsure =
            self.terms.may_refuse || self.terms.is_crowded || self.rights.are_in_force();
        if is_unsure {
            return self.set_will(connection, State::Open);
        }
        self.make_due(connection, GRACE_MS);
        if let Some(will) = self.wills.by_connection.get_mut(&connection) {
            will.is_left = true;
        }
    }

    /// Another user had the client id for a moment: a will that waited for its client is published.
    pub(crate) fn on_stranger(&mut self, client: u32) {
        let is_left = |will: &&Will| {
            let is_due = matches!(will.state, State::Due { .. });
            will.offer.client == client && will.is_left && is_due
        };
        let left = self.wills.by_connection.values().filter(is_left);
        for connection in left.map(|will| will.offer.connection).collect::<Vec<_>>() {
            self.set_will(connection, State::Open);
        }
    }

    /// An operator has ended the session of a client: its will comes at once.
    pub fn on_purged(&mut self, client: u32) {
        if let Some(connection) = self.wills.admitted.get(&client).copied() {
            self.return_within(connection, true);
        }
    }

    /// From now on it may be published at any time after its delay: for whoever is subscribed.
    fn make_due(&mut self, connection: u32, delay_ms: u64) {
        let Some(will) = self.wills.by_connection.get_mut(&connection) else { return };
        let due_ms = self.now_ms + delay_ms;
        (will.state, will.is_settled) = (State::Due { min_ms: due_ms, max_ms: due_ms }, false);
        let Some(message) = self.messages.get_mut(&will.id) else { return };
        self.now += 1;
        // Rules are asked when it is published.
        message.was_allowed = self.rights.may_leave(will.offer.client, &will.id.0);
        message.was_forbidden = !message.was_allowed;
        for (number, session) in &self.sessions {
            let is_own = *number == will.offer.client && self.no_local.contains(number);
            if let Some(granted) = session.granted(&will.id.0, self.now)
                && self.rights.may_receive_at_once(*number, &will.id.0)
                && !is_own
            {
                message.owed.insert(*number, granted.min(message.qos));
            }
        }
    }

    /// The client was told that its session cannot be kept: who can tell what holds of its wills?
    pub fn on_will_unsure(&mut self, client: u32) {
        let of_client = self.wills.by_connection.iter().filter(|(_, w)| w.offer.client == client);
        let unsure = of_client.filter(|(_, will)| will.state != State::Published);
        for connection in unsure.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            self.set_will(connection, State::Open);
        }
    }

    /// What came before an acknowledgement on this connection is in the journal.
    pub fn on_will_firm(&mut self, connection: u32) {
        if let Some(will) = self.wills.by_connection.get_mut(&connection) {
            will.is_firm = true;
        }
    }

    /// A CONNACK has come: the will of a session that ends with its connection is in the journal.
    pub fn on_will_connected(&mut self, connection: u32) {
        if let Some(will) = self.wills.by_connection.get_mut(&connection) {
            will.is_firm |= !will.offer.is_kept;
        }
    }

    /// The journal has no room for the will of the client's connection.
    pub fn on_will_not_kept(&mut self, client: u32) {
        self.trace.note(|| format!("no room for the will of client {client}"));
        if let Some(connection) = self.wills.admitted.get(&client).copied()
            && let Some(will) = self.wills.by_connection.get_mut(&connection)
        {
            (will.offer.is_kept, will.is_firm) = (false, false);
        }
    }

    /// The broker ends. `has_synced`: all that was written is on the medium; `is_lossy`: nothing
    /// else is.
    pub(super) fn crash_wills(
        &mut self,
        has_synced: bool,
        is_lossy: bool,
        is_hit: impl Fn(u32) -> bool,
    ) {
        let may_refuse = self.terms.may_refuse;
        let may_lack_room = may_refuse || self.terms.is_crowded;
        for connection in self.wills.by_connection.keys().copied().collect::<Vec<_>>() {
            let Some(will) = self.wills.by_connection.get(&connection) else { continue };
            let (state, offer) = (will.state, will.offer);
            if !is_hit(offer.client) {
                // Another cell may have had it, and its next owner gets it again.
                self.may_repeat_will(connection, !offer.is_kept);
                continue;
            }
            let is_settled = has_synced || will.is_settled && !is_lossy;
            let is_firm = !is_lossy && (has_synced || will.is_firm);
            let is_left = is_firm && !offer.is_kept && self.terms.level > Durability::Memory;
            let is_known = offer.is_kept && is_firm || will.is_left;
            match state {
                State::Void(NOT_ADMITTED) | State::Open => {}
                State::Void(CONNECTED) if is_known => self.make_due(connection, offer.delay_ms),
                State::Void(CONNECTED) if is_left => self.leave_will(connection),
                State::Due { .. } if is_known => {}
                State::Void(CONNECTED) | State::Due { .. } => {
                    self.set_will(connection, State::Open);
                }
                State::Void(_) if is_settled && !may_refuse => {}
                State::Void(_) => self.set_will(connection, State::Open),
                // That of a clean session is written down only where there is room for it at once
                // (docs/use/durability.md).
                State::Published if is_settled && (offer.is_kept || !may_lack_room) => {}
                State::Published if is_known && !may_refuse => {
                    if let Some(message) = self.messages.get_mut(&will.id) {
                        message.may_repeat = true;
                    }
                }
                State::Published => {
                    if let Some(message) = self.messages.get_mut(&will.id) {
                        message.may_repeat = true;
                    }
                    self.set_will(connection, State::Open);
                }
            }
            self.may_repeat_will(connection, !has_synced);
        }
    }

    /// One that is being published when the broker ends may be published again.
    fn may_repeat_will(&mut self, connection: u32, may_repeat: bool) {
        let Some(will) = self.wills.by_connection.get(&connection) else { return };
        if let Some(message) = self.messages.get_mut(&will.id).filter(|_| !will.is_settled) {
            message.may_repeat |= may_repeat;
        }
    }

    /// A new process counts the delay of those who were connected from its start.
    pub fn on_will_start(&mut self) {
        let now_ms = self.now_ms;
        for will in self.wills.by_connection.values_mut() {
            // What credentials say is not known yet: who may publish only because of that leaves
            // none.
            if let Some(message) = self.messages.get_mut(&will.id)
                && self.rights.are_in_force()
                && will.state != State::Published
            {
                message.was_forbidden = true;
            }
            if let State::Due { max_ms, .. } = &mut will.state {
                let wait_ms = if will.is_left { GRACE_MS + SPREAD_MS } else { will.offer.delay_ms };
                *max_ms = (*max_ms).max(now_ms + wait_ms);
            }
        }
    }

    /// All is at rest: what holds now outlives what comes.
    pub(super) fn settle_wills(&mut self) {
        let may_lack_room = self.terms.may_refuse || self.terms.is_crowded;
        for will in self.wills.by_connection.values_mut() {
            if matches!(will.state, State::Void(why) if why == CONNECTED) {
                continue;
            }
            will.is_settled = true;
            let was_forbidden = self.messages.get(&will.id).is_some_and(|m| m.was_forbidden);
            let is_sure = (will.offer.is_kept || !may_lack_room) && !was_forbidden;
            if will.state == State::Published && is_sure && will.retain {
                self.retained.on_acknowledged(&will.id.0, will.id.1.sequence);
            } else if will.retain {
                self.retained.on_maybe_refused(&will.id.0, will.id.1.sequence);
            }
        }
    }

    /// Is this a will? Err: it must not come.
    pub(super) fn judge_will(&self, id: &MessageId) -> Result<bool, String> {
        let Some(connection) = self.wills.by_id.get(id) else { return Ok(false) };
        match self.wills.by_connection.get(connection).map(|will| will.state) {
            Some(State::Void(why)) => Err(format!("a will that must not come: {why}")),
            Some(State::Due { min_ms, .. }) if self.now_ms < min_ms => {
                Err(format!("a will, {} ms before its time", min_ms - self.now_ms))
            }
            _ => Ok(true),
        }
    }

    /// Those that had to come.
    pub(super) fn published_wills(&self) -> BTreeSet<MessageId> {
        let published = self.wills.by_connection.values().filter(|w| w.state == State::Published);
        published.map(|will| will.id.clone()).collect()
    }

    /// How many wills had to come to somebody.
    pub fn wills_owed(&self) -> u64 {
        let published = self.wills.by_connection.values().filter(|w| w.state == State::Published);
        let owed = published.filter(|will| {
            let message = self.messages.get(&will.id);
            message.is_some_and(|m| m.owed.values().any(|qos| *qos > QoS::AtMostOnce))
        });
        owed.count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Terms;
    use super::*;

    const READER: u32 = 1;

    /// A will of QoS 2 is published for a session that has its topic at QoS 2.
    fn with_will() -> Oracle {
        with_will_in(Oracle::new(Terms::default(), 0, 10), 2)
    }

    fn with_will_in(mut oracle: Oracle, client: u32) -> Oracle {
        oracle.on_session_start(READER);
        oracle.on_subscribing(READER, "w/#", QoS::ExactlyOnce, true);
        oracle.on_subscribed(READER, "w/#");
        let offer = Offer { client, connection: 7, is_kept: false, delay_ms: 0 };
        let payload = Payload { publisher: client, sequence: 1 };
        let (topic, qos, retain, is_clear) = ("w/2".to_owned(), QoS::ExactlyOnce, false, false);
        let (expiry_secs, padding) = (None, 0);
        let will = OwnedPublish { topic, qos, retain, is_clear, expiry_secs, payload, padding };
        oracle.on_will_offered(offer, &will);
        oracle.on_will_admitted(client, 7, true);
        oracle.on_will_ended(7, false, None);
        oracle
    }

    #[test]
    fn a_will_that_does_not_come_is_seen() {
        assert!(with_will().judge().is_err_and(|rule| rule.contains("never got")));
    }

    /// It is promised to nobody (docs/use/durability.md), and stored if there is room at once.
    #[test]
    fn a_crash_may_take_the_will_of_a_clean_session_where_journals_are_crowded() {
        for is_crowded in [false, true] {
            let terms = Terms { is_crowded, ..Terms::default() };
            let mut oracle = with_will_in(Oracle::new(terms, 0, 10), 2);
            oracle.crash_wills(true, false, |_| true);
            assert_eq!(oracle.judge().is_ok(), is_crowded);
        }
    }

    #[test]
    fn what_comes_back_in_spite_of_no_local_is_seen() {
        let mut oracle = Oracle::new(Terms::default(), 0, 10);
        oracle.on_no_local(READER);
        let mut oracle = with_will_in(oracle, READER);
        assert_eq!(oracle.judge(), Ok(()), "its own will is not for it");
        let publish = codec::Publish {
            dup: false,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: "w/2",
            packet_id: 1,
            properties: codec::Properties::EMPTY,
            payload: &[],
        };
        let own = Payload { publisher: READER, sequence: 1 };
        let judged = oracle.on_received(READER, &publish, own);
        assert!(judged.is_err_and(|rule| rule.contains("MQTT-3.8.3-3")));
    }

    /// The will may be on its way, and reach the subscription when it has the new QoS.
    #[test]
    fn a_subscribe_for_less_may_be_ahead_of_a_will() {
        let mut oracle = with_will();
        oracle.on_subscribing(READER, "w/#", QoS::AtMostOnce, true);
        assert_eq!(oracle.judge(), Ok(()));
    }
}
