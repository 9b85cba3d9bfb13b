//! The oracle: what was promised to whom, and whether it came.

mod consumers;
mod payload;
mod retained;
mod rights;
mod session;
mod spans;
mod streams;
mod wills;

use std::collections::{BTreeMap, BTreeSet};

use broker::Durability;
use codec::{Publish, QoS, Reason};

use crate::client::OwnedPublish;
use crate::trace::Trace;
use consumers::Consumers;
pub use payload::Payload;
use retained::Retained;
pub(crate) use rights::Rights;
use session::Session;
use spans::Spans;
use streams::Streams;
pub use wills::Offer;
use wills::Wills;

type MessageId = (String, Payload);

/// Events of the oracle, counted: what came before what.
type Moment = u64;

#[derive(Debug)]
struct Message {
    qos: QoS,
    sent: Moment,
    sent_ms: u64,
    expiry_secs: Option<u32>,
    /// When its acknowledgement was seen.
    acknowledged_ms: Option<u64>,
    /// The shared group had the member that never ends.
    has_group: bool,
    /// Sessions that had a matching subscription when it was sent, with the granted QoS.
    owed: BTreeMap<u32, QoS>,
    /// QoS 2 or not, it may rightly come twice.
    may_repeat: bool,
    /// It may come for the first time after later ones of another QoS.
    may_be_late: bool,
    /// Its publisher may have had the right to send it when it came.
    was_allowed: bool,
    /// It may have had none.
    was_forbidden: bool,
}

/// What is promised in a world.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Deliveries may be dropped, so a repeated publish may be the first that comes.
    pub is_lossy: bool,
    /// Publishers and subscribers may be told that there is no room.
    pub may_refuse: bool,
    /// Journals may be out of service, and refuse what takes no room, too.
    pub may_fail: bool,
    /// Journals get more than disks write: what nobody waits for may be in memory only.
    pub is_crowded: bool,
    /// What the listener keeps firmly.
    pub level: Durability,
    /// A filter whose messages are kept otherwise.
    pub topic_level: Option<(&'static str, Durability)>,
}

impl Terms {
    /// What holds for messages of the topic.
    fn level_of(&self, topic: &str) -> Durability {
        match self.topic_level {
            Some((filter, level)) if topic::matches(filter, topic) => level,
            _ => self.level,
        }
    }
}

/// Judges by rules that stand in the standards; each failure names the rule.
#[derive(Debug, Default)]
pub struct Oracle {
    pub terms: Terms,
    pub now_ms: u64,
    now: Moment,
    messages: BTreeMap<MessageId, Message>,
    sessions: BTreeMap<u32, Session>,
    /// Those who subscribe with No Local, whatever session they have.
    no_local: BTreeSet<u32>,
    /// Messages that shared groups owe to at least one of their members.
    group_owed: BTreeSet<MessageId>,
    group_seen: BTreeSet<MessageId>,
    retained: Retained,
    wills: Wills,
    pub(crate) rights: Rights,
    pub(crate) spans: Spans,
    pub(crate) streams: Streams,
    pub(crate) consumers: Consumers,
    /// Where what is being read stands among the bytes of its connection.
    pub reading_at: u64,
    /// Deliveries that the broker has said it dropped.
    pub dropped: u64,
    pub received: u64,
    /// Filters whose SUBACK has just come.
    pub(crate) fresh: Vec<String>,
    pub trace: Trace,
}

/// The one filter of the shared group, without its share name.
pub const GROUP_FILTER: &str = "g/#";

/// The member of the group whose session never ends, so that its messages are kept.
pub const GROUP_KEEPER: u32 = 0;

/// Timers of the broker run in whole seconds.
pub const TIMER_SLACK_MS: u64 = 2000;

impl Oracle {
    pub fn new(terms: Terms, now_ms: u64, trace_lines: usize) -> Self {
        Self { terms, now_ms, trace: Trace::new(trace_lines), ..Self::default() }
    }

    fn session(&mut self, session: u32) -> &mut Session {
        self.now += 1;
        self.sessions.entry(session).or_default()
    }

    /// A session begins with nothing: what an earlier one was owed is void.
    pub fn on_session_start(&mut self, session: u32) {
        self.trace.note(|| format!("session {session} begins"));
        self.sessions.insert(session, Session::default());
        for message in self.messages.values_mut() {
            message.owed.remove(&session);
        }
    }

    /// The session is there, and may have been over since that time: what was acknowledged later
    /// need not have found it.
    pub(crate) fn on_maybe_over(&mut self, session: u32, since_ms: u64) {
        let is_later = |it: &&mut Message| it.acknowledged_ms.is_none_or(|ms| ms >= since_ms);
        for message in self.messages.values_mut().filter(is_later) {
            message.owed.remove(&session);
        }
    }

    /// The session has a connection, which was begun at that time.
    pub fn on_connected(&mut self, session: u32, opened_ms: u64) {
        let now = self.now + 1;
        let own = self.session(session);
        (own.opened_ms, own.connected) = (opened_ms, now);
    }

    /// From here on the broker may grant less. What it has acknowledged before to the publisher is
    /// owed as it was, if a journal keeps it; else it may be on its way to the subscriber's shard.
    /// So may a will, which is acknowledged to nobody: a message has the QoS that the subscription
    /// has when it reaches it (MQTT-3.8.4-8), and this SUBSCRIBE may be ahead of it.
    pub fn on_subscribing(&mut self, session: u32, filter: &str, qos: QoS, is_kept: bool) {
        self.trace.note(|| format!("session {session} asks for {filter} ({qos:?})"));
        if !self.session(session).on_subscribing(filter, qos) {
            return;
        }
        for ((topic, payload), message) in &mut self.messages {
            let is_accepted = is_kept
                && message.acknowledged_ms.is_some()
                && !self.wills.has(topic, *payload)
                && self.terms.level_of(topic) != Durability::Memory;
            if let Some(owed) = message.owed.get_mut(&session).filter(|_| !is_accepted)
                && topic::matches(filter, topic)
            {
                *owed = qos.min(*owed);
            }
        }
    }

    /// All that it subscribes to from now on, but the shared group, is with No Local.
    pub fn on_no_local(&mut self, session: u32) {
        self.no_local.insert(session);
    }

    /// Is the message one of its own that the session does not want?
    fn is_unwanted(&self, session: u32, publisher: u32, topic: &str) -> bool {
        publisher == session
            && self.no_local.contains(&session)
            && !topic::matches(GROUP_FILTER, topic)
    }

    pub fn on_subscribed(&mut self, session: u32, filter: &str) {
        self.trace.note(|| format!("session {session} has {filter}"));
        self.fresh.push(filter.to_owned());
        let now = self.now + 1;
        self.session(session).on_subscribed(filter, now);
    }

    /// From here on the broker need not deliver any more what only this filter matches.
    pub fn on_unsubscribing(&mut self, session: u32, filter: &str) {
        self.trace.note(|| format!("session {session} gives up {filter}"));
        self.session(session).on_unsubscribing(filter);
        let Some(seen) = self.sessions.get(&session) else { return };
        for ((topic, _), message) in &mut self.messages {
            if let Some(owed) = message.owed.get_mut(&session) {
                match seen.granted(topic, message.sent) {
                    Some(granted) => *owed = granted.min(*owed),
                    None => drop(message.owed.remove(&session)),
                }
            }
        }
    }

    pub fn on_unsubscribed(&mut self, session: u32, filter: &str) {
        self.trace.note(|| format!("session {session} has given up {filter}"));
        let now = self.now + 1;
        self.session(session).on_unsubscribed(filter, now);
    }

    /// The publish is about to be written: from here on it counts for whoever is subscribed.
    pub fn on_sent(&mut self, publish: &OwnedPublish) {
        self.now += 1;
        self.trace.note(|| format!("sent: {publish}"));
        self.streams.on_sent(publish, false);
        let topic = &publish.topic;
        let mut owed = BTreeMap::new();
        // Those who get what clears a topic cannot tell which of them it is.
        for (number, session) in self.sessions.iter().filter(|_| !publish.is_clear) {
            if let Some(granted) = session.granted(topic, self.now)
                && self.rights.may_receive(*number, topic)
                && !self.is_unwanted(*number, publish.payload.publisher, topic)
            {
                owed.insert(*number, granted.min(publish.qos));
            }
        }
        let is_allowed = self.rights.may_publish(publish.payload.publisher, topic);
        let has_group = topic::matches(GROUP_FILTER, topic)
            && self.sessions.get(&GROUP_KEEPER).is_some_and(|keeper| keeper.is_member(self.now));
        if publish.retain {
            self.retained.on_sent(topic, publish.payload.sequence, publish.is_clear);
        }
        let message = Message {
            qos: publish.qos,
            sent: self.now,
            sent_ms: self.now_ms,
            expiry_secs: publish.expiry_secs,
            acknowledged_ms: None,
            has_group,
            owed,
            may_repeat: false,
            may_be_late: false,
            was_allowed: is_allowed,
            was_forbidden: !is_allowed,
        };
        self.messages.insert((topic.clone(), publish.payload), message);
    }

    /// The publish is written again.
    pub(crate) fn on_resent(&mut self, publish: &OwnedPublish) {
        self.streams.on_resent(publish);
    }

    /// PUBACK or PUBREC was seen: a promise.
    pub fn on_acknowledged(&mut self, publish: &OwnedPublish) {
        self.trace.note(|| format!("acknowledged: {publish}"));
        self.streams.on_acknowledged(publish, self.terms.level_of(&publish.topic));
        let id = (publish.topic.clone(), publish.payload);
        let was_forbidden = self.messages.get(&id).is_some_and(|message| message.was_forbidden);
        if publish.retain && was_forbidden {
            // To some versions nobody can say no.
            self.retained.on_maybe_refused(&publish.topic, publish.payload.sequence);
        } else if publish.retain {
            self.retained.on_acknowledged(&publish.topic, publish.payload.sequence);
        }
        if let Some(message) = self.messages.get_mut(&id) {
            message.acknowledged_ms.get_or_insert(self.now_ms);
            if message.has_group && !was_forbidden {
                self.group_owed.insert(id);
            }
        }
    }

    /// For lack of room, where there may be none, or of a right.
    pub fn may_refuse_filter(&self, reason: Reason) -> bool {
        match reason {
            // Of older versions it is the only word.
            Reason::NOT_AUTHORIZED | Reason::UNSPECIFIED_ERROR if self.rights.are_in_force() => {
                true
            }
            _ => self.terms.may_refuse,
        }
    }

    /// May the publisher have been told that it has no right to this?
    pub fn may_be_forbidden(&self, publish: &OwnedPublish) -> bool {
        let message = self.messages.get(&(publish.topic.clone(), publish.payload));
        message.is_some_and(|message| message.was_forbidden)
    }

    /// The publisher was told that the message is not held: nothing is owed.
    pub fn on_refused(&mut self, publish: &OwnedPublish) {
        self.trace.note(|| format!("refused: {publish}"));
        if let Some(message) = self.messages.get_mut(&(publish.topic.clone(), publish.payload)) {
            message.owed.clear();
        }
    }

    /// The connection ended before the publish was answered. If that was for lack of room, it may
    /// have reached a part of its subscribers, and is sent again.
    pub fn on_unanswered(&mut self, publish: &OwnedPublish) {
        let id = (publish.topic.clone(), publish.payload);
        if self.terms.may_refuse
            && let Some(message) = self.messages.get_mut(&id)
        {
            message.may_repeat = true;
            self.streams.on_maybe_refused(publish);
            self.retained.on_maybe_refused(&publish.topic, publish.payload.sequence);
        }
    }

    /// Its publisher has given up the session, and will not ask for the answer any more.
    pub fn on_given_up(&mut self, publish: &OwnedPublish) {
        let id = (publish.topic.clone(), publish.payload);
        if let Some(message) = self.messages.get_mut(&id) {
            message.may_be_late = true;
        }
    }

    /// The broker ended, and what it kept less firmly than `kept` may be gone.
    /// `is_hit`: a client whose session was there.
    pub fn on_crash(&mut self, kept: Durability, has_synced: bool, is_hit: impl Fn(u32) -> bool) {
        self.crash_wills(has_synced, self.terms.level < kept, is_hit);
        self.streams.on_crash(kept, &self.terms);
        // It is sent again, and what was taken on behind it at QoS 2 goes on without it.
        let resent = self.messages.values_mut();
        resent
            .filter(|m| m.qos == QoS::AtLeastOnce && m.acknowledged_ms.is_none())
            .for_each(|message| message.may_be_late = true);
        let terms = self.terms.clone();
        let is_lost = |topic: &str| terms.level_of(topic).min(terms.level) < kept;
        for (id, message) in self.messages.iter_mut().filter(|((topic, _), _)| is_lost(topic)) {
            message.owed.clear();
            message.has_group = false;
            message.may_repeat = true;
            self.group_owed.remove(id);
        }
        self.retained.forgive(is_lost);
    }

    pub fn on_received(
        &mut self,
        session: u32,
        publish: &Publish<'_>,
        payload: Payload,
    ) -> Result<(), String> {
        self.received += 1;
        self.now += 1;
        let id = (publish.topic.to_owned(), payload);
        let name = format!("session {session}, {id:?}");
        self.trace.note(|| {
            let (qos, dup, packet_id) = (publish.qos as u8, publish.dup, publish.packet_id);
            format!("received: {name}, QoS {qos}, packet id {packet_id}, dup {dup}")
        });
        let Some(message) = self.messages.get(&id) else {
            return Err(format!("{name}: nobody sent it"));
        };
        let is_will = self.judge_will(&id).map_err(|rule| format!("{name}: {rule}"))?;
        self.judge_rights(session, message, &id).map_err(|rule| format!("{name}: {rule}"))?;
        if publish.qos > message.qos {
            return Err(format!("{name}: a higher QoS than published"));
        }
        let seen = self.sessions.entry(session).or_default();
        if !seen.may_get(publish.topic, message.sent) {
            return Err(format!("{name}: no subscription matches"));
        }
        message.judge_age(publish, seen.opened_ms).map_err(|rule| format!("{name}: {rule}"))?;
        let times = seen.times.entry(id.clone()).or_default();
        *times += 1;
        if topic::matches(GROUP_FILTER, publish.topic) {
            self.group_seen.insert(id);
            return Ok(());
        }
        if publish.retain {
            seen.retained.insert(id.0, payload);
            return Ok(());
        }
        let is_first = *times == 1;
        if publish.qos == QoS::ExactlyOnce {
            // What came at QoS 1 may come again, and by then at a higher one.
            let times = seen.times_exactly.entry(id.clone()).or_default();
            *times += 1;
            if *times > 1 && !message.may_repeat {
                return Err(format!("{name}: QoS 2, received {times} times (MQTT-4.3.3)"));
            }
        }
        if is_will {
            return Ok(());
        }
        // A publish that came before the subscription may rightly be repeated after newer ones.
        let may_be_first_repeat = publish.qos == QoS::AtMostOnce && message.qos > publish.qos;
        // What waits comes by the options of now, but what was accepted does not come at QoS 0.
        let is_kept = |qos: QoS| qos != QoS::AtMostOnce;
        let owed = message.owed.get(&session);
        let is_owed = owed.is_some_and(|owed| is_kept(*owed) == is_kept(publish.qos));
        if may_be_first_repeat || self.terms.is_lossy || message.may_lag(self.now_ms) || !is_owed {
            return Ok(());
        }
        let by_qos = message.may_be_late;
        let topic = (id.0, payload.publisher);
        let before = seen.note_order(topic, (message.qos, by_qos), publish.qos, payload.sequence);
        if payload.sequence < before && is_first {
            return Err(format!("{name}: after {before} of the same topic (MQTT-4.6.0-6)"));
        }
        Ok(())
    }

    /// May this session have it, and could its publisher send it?
    fn judge_rights(
        &self,
        session: u32,
        message: &Message,
        (topic, payload): &(String, Payload),
    ) -> Result<(), &'static str> {
        if self.is_unwanted(session, payload.publisher, topic) {
            return Err("its own, in spite of No Local (MQTT-3.8.3-3)");
        }
        if !message.was_allowed {
            return Err("its publisher had no right to send it");
        }
        match self.rights.may_have_received(session, topic, self.reading_at) {
            true => Ok(()),
            false => Err("the rules forbid it"),
        }
    }

    /// A QoS 2 publish that the client takes for a repetition of one on the topic `first`.
    ///
    /// If that one was kept in memory only, the broker may have forgotten it, and have given its
    /// packet id to another.
    pub fn on_repetition(
        &mut self,
        session: u32,
        first: &str,
        publish: &Publish<'_>,
        payload: Payload,
    ) {
        let packet_id = publish.packet_id;
        let id = (publish.topic.to_owned(), payload);
        self.trace.note(|| {
            format!("session {session} takes packet id {packet_id} for a repetition: {id:?}")
        });
        if self.terms.level_of(first) == Durability::Memory
            && let Some(message) = self.messages.get_mut(&id)
        {
            message.owed.remove(&session);
        }
    }

    /// After everybody has read and acknowledged everything.
    pub fn judge(&mut self) -> Result<(), String> {
        self.settle_wills();
        let mut missing = Vec::new();
        for (id, message) in self.messages.iter().filter(|(_, m)| m.is_promised(self.now_ms)) {
            for (session, qos) in message.owed.iter().filter(|(_, qos)| **qos > QoS::AtMostOnce) {
                let times = self.sessions.get(session).and_then(|seen| seen.times.get(id));
                if times.is_none() {
                    missing.push(format!("session {session} never got {id:?} ({qos:?})"));
                }
            }
        }
        if missing.len() as u64 > self.dropped {
            missing.iter().for_each(|line| self.trace.note(|| line.clone()));
            return Err(format!("{} lost, of them: {}", missing.len(), missing[0]));
        }
        let is_promised =
            |id: &&MessageId| self.messages.get(*id).is_some_and(|m| m.is_promised(self.now_ms));
        if let Some(id) = self.group_owed.difference(&self.group_seen).find(is_promised) {
            return Err(format!("no member of the group got {id:?}"));
        }
        self.streams.judge(&self.terms, &self.published_wills())
    }

    /// Has the fresh subscriber `session` got what is retained?
    /// `dropped`: so many deliveries the broker said it dropped meanwhile.
    pub fn judge_retained(&self, session: u32, dropped: u64) -> Result<(), String> {
        let Some(seen) = self.sessions.get(&session) else {
            return Err(format!("session {session} never began"));
        };
        let is_overtaken = |topic: &str, sequence: u32| {
            seen.times.keys().any(|(own, payload)| own == topic && payload.sequence >= sequence)
        };
        self.retained.judge(&seen.retained, is_overtaken, dropped)
    }
}

/// Of several cells.
impl Oracle {
    /// Who has subscribed since it connected has the last change of each topic, as it was made or
    /// as it is retained, whenever that was. `connected`: clients that are.
    pub(crate) fn judge_changes(&self, connected: &[u32]) -> Result<(), String> {
        if self.dropped > 0 {
            return Ok(());
        }
        for (session, seen) in self.sessions.iter().filter(|(id, _)| connected.contains(id)) {
            for (topic, sequence) in self.retained.certain() {
                let publisher_is_it = self.no_local.contains(session);
                let has_it =
                    |(own, payload): &MessageId| own == topic && payload.sequence >= sequence;
                if seen.has_asked_for(topic) && !publisher_is_it && !seen.times.keys().any(has_it) {
                    return Err(format!("session {session} lacks change {sequence} of {topic}"));
                }
            }
        }
        Ok(())
    }
}

impl Message {
    fn is_promised(&self, now_ms: u64) -> bool {
        self.acknowledged_ms.is_some() && !self.was_forbidden && !self.may_be_discarded(now_ms)
    }

    /// It may come after later ones: its first copy was discarded because it was too old, or was
    /// refused for want of a right that its publisher has by now.
    fn may_lag(&self, now_ms: u64) -> bool {
        self.may_repeat || self.may_be_discarded(now_ms) || self.was_forbidden
    }

    /// It may be older than its publisher wanted it to become.
    fn may_be_discarded(&self, now_ms: u64) -> bool {
        let expires_ms = self.expiry_secs.map(|secs| self.sent_ms + u64::from(secs) * 1000);
        expires_ms.is_some_and(|expires_ms| now_ms + TIMER_SLACK_MS >= expires_ms)
    }

    /// A message waits no longer than its expiry interval, and says how much of it is left
    /// (MQTT-3.3.2-5, MQTT-3.3.2-6). `opened_ms`: it was written after that.
    fn judge_age(&self, publish: &Publish<'_>, opened_ms: u64) -> Result<(), String> {
        let (Some(secs), Some(acknowledged_ms)) = (self.expiry_secs, self.acknowledged_ms) else {
            return Ok(());
        };
        let waited_ms = opened_ms.saturating_sub(acknowledged_ms);
        let left_ms = (u64::from(secs) * 1000 + TIMER_SLACK_MS).saturating_sub(waited_ms);
        // What had begun to be sent may be sent again.
        if left_ms == 0 && !publish.dup {
            return Err(format!("sent {waited_ms} ms later, expires after {secs} s"));
        }
        match publish.properties.message_expiry_secs() {
            Some(left) if u64::from(left) * 1000 > left_ms.max(TIMER_SLACK_MS) => {
                Err(format!("{left} s left of {secs}, after {waited_ms} ms"))
            }
            _ => Ok(()),
        }
    }
}
