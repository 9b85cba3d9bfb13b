//! The oracle: what was promised to whom, and whether it came.

use std::collections::{BTreeMap, BTreeSet};

use codec::{Publish, QoS};

use crate::client::OwnedPublish;

/// What every message carries: who sent it, and as which of its messages on the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Payload {
    pub publisher: u32,
    pub sequence: u32,
}

impl Payload {
    pub fn to_bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.publisher.to_be_bytes());
        bytes[4..].copy_from_slice(&self.sequence.to_be_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let publisher = u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?);
        let sequence = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
        Some(Self { publisher, sequence })
    }
}

type MessageId = (String, Payload);

#[derive(Debug)]
struct Message {
    qos: QoS,
    is_acknowledged: bool,
    /// The shared group had the member that never ends.
    has_group: bool,
    /// Sessions that had a matching subscription when it was sent, with the granted QoS.
    owed: BTreeMap<u32, QoS>,
}

/// What one session has seen.
#[derive(Debug, Default)]
struct Seen {
    filters: Vec<(String, QoS)>,
    times: BTreeMap<MessageId, u32>,
    /// By topic: what came with the RETAIN flag.
    retained: BTreeMap<String, Payload>,
    /// The last new sequence number by topic, publisher and QoS.
    last: BTreeMap<(String, u32, QoS), u32>,
}

/// Judges by rules that stand in the standards; each failure names the rule.
#[derive(Debug, Default)]
pub struct Oracle {
    messages: BTreeMap<MessageId, Message>,
    sessions: BTreeMap<u32, Seen>,
    /// Messages that shared groups owe to at least one of their members.
    group_owed: BTreeSet<MessageId>,
    group_seen: BTreeSet<MessageId>,
    /// By topic: the last acknowledged retained message.
    retained: BTreeMap<String, Payload>,
    /// Deliveries may be dropped, so a repeated publish may be the first that comes.
    is_lossy: bool,
    /// Publishers may be told that there is no room.
    may_refuse: bool,
    /// Deliveries that the broker has said it dropped.
    pub dropped: u64,
    pub received: u64,
}

/// The one filter of the shared group, without its share name.
pub const GROUP_FILTER: &str = "g/#";

/// The member of the group whose session never ends, so that its messages are kept.
pub const GROUP_KEEPER: u32 = 0;

fn plain(filter: &str) -> Option<&str> {
    (!filter.starts_with("$share/")).then_some(filter)
}

impl Oracle {
    pub fn new(is_lossy: bool, may_refuse: bool) -> Self {
        Self { is_lossy, may_refuse, ..Self::default() }
    }

    pub fn on_session_start(&mut self, session: u32) {
        self.sessions.insert(session, Seen::default());
        for message in self.messages.values_mut() {
            message.owed.remove(&session);
        }
    }

    pub fn on_subscribed(&mut self, session: u32, filters: &[(String, QoS)]) {
        self.sessions.entry(session).or_default().filters = filters.to_vec();
    }

    /// The publish is about to be written: from here on it counts for whoever is subscribed.
    pub fn on_sent(&mut self, publish: &OwnedPublish) {
        let mut owed = BTreeMap::new();
        for (session, seen) in &self.sessions {
            let granted = seen
                .filters
                .iter()
                .filter(|(filter, _)| {
                    plain(filter).is_some_and(|filter| topic::matches(filter, &publish.topic))
                })
                .map(|(_, qos)| *qos)
                .max();
            if let Some(granted) = granted {
                owed.insert(*session, granted.min(publish.qos));
            }
        }
        let has_group = topic::matches(GROUP_FILTER, &publish.topic)
            && self
                .sessions
                .get(&GROUP_KEEPER)
                .is_some_and(|seen| seen.filters.iter().any(|(filter, _)| plain(filter).is_none()));
        let message = Message { qos: publish.qos, is_acknowledged: false, has_group, owed };
        self.messages.insert((publish.topic.clone(), publish.payload), message);
    }

    pub fn on_acknowledged(&mut self, publish: &OwnedPublish) {
        let id = (publish.topic.clone(), publish.payload);
        if publish.retain {
            self.retained.insert(publish.topic.clone(), publish.payload);
        }
        if let Some(message) = self.messages.get_mut(&id) {
            message.is_acknowledged = true;
            if message.has_group {
                self.group_owed.insert(id);
            }
        }
    }

    /// The publisher was told that the message is not held: nothing is owed.
    pub fn on_refused(&mut self, publish: &OwnedPublish) {
        if let Some(message) = self.messages.get_mut(&(publish.topic.clone(), publish.payload)) {
            message.owed.clear();
        }
    }

    pub fn on_received(
        &mut self,
        session: u32,
        publish: &Publish<'_>,
        payload: Payload,
    ) -> Result<(), String> {
        self.received += 1;
        let id = (publish.topic.to_owned(), payload);
        let name = format!("session {session}, {id:?}");
        let Some(message) = self.messages.get(&id) else {
            return Err(format!("{name}: nobody sent it"));
        };
        if publish.qos > message.qos {
            return Err(format!("{name}: a higher QoS than published"));
        }
        let seen = self.sessions.entry(session).or_default();
        let via_group = topic::matches(GROUP_FILTER, publish.topic);
        let wanted = seen.filters.is_empty()
            || seen.filters.iter().any(|(filter, _)| match plain(filter) {
                Some(filter) => topic::matches(filter, publish.topic),
                None => via_group,
            });
        if !wanted {
            return Err(format!("{name}: no subscription matches"));
        }
        let times = seen.times.entry(id.clone()).or_default();
        *times += 1;
        if via_group {
            self.group_seen.insert(id);
            return Ok(());
        }
        if publish.retain {
            seen.retained.insert(id.0, payload);
            return Ok(());
        }
        // A refused publish may have reached a part of its subscribers, and is sent again.
        if publish.qos == QoS::ExactlyOnce && *times > 1 && !self.may_refuse {
            return Err(format!("{name}: QoS 2, received {times} times (MQTT-4.3.3)"));
        }
        // A publish that came before the subscription may rightly be repeated after newer ones.
        let may_be_first_repeat = publish.qos == QoS::AtMostOnce && message.qos > publish.qos;
        if may_be_first_repeat || self.is_lossy || !message.owed.contains_key(&session) {
            return Ok(());
        }
        let last = seen.last.entry((id.0, payload.publisher, publish.qos)).or_default();
        if payload.sequence < *last && *times == 1 {
            return Err(format!("{name}: after {last} of the same topic (MQTT-4.6.0-6)"));
        }
        *last = payload.sequence.max(*last);
        Ok(())
    }

    /// After everybody has read and acknowledged everything.
    pub fn judge(&self) -> Result<(), String> {
        let mut missing = Vec::new();
        for (id, message) in self.messages.iter().filter(|(_, message)| message.is_acknowledged) {
            for (session, qos) in message.owed.iter().filter(|(_, qos)| **qos > QoS::AtMostOnce) {
                let times = self.sessions.get(session).and_then(|seen| seen.times.get(id));
                if times.is_none() {
                    missing.push(format!("session {session} never got {id:?} ({qos:?})"));
                }
            }
        }
        if missing.len() as u64 > self.dropped {
            return Err(format!("{} lost, of them: {}", missing.len(), missing[0]));
        }
        if let Some(id) = self.group_owed.difference(&self.group_seen).next() {
            return Err(format!("no member of the group got {id:?}"));
        }
        Ok(())
    }

    /// Has the fresh subscriber `session` got what is retained?
    pub fn judge_retained(&self, session: u32) -> Result<(), String> {
        let Some(Seen { retained: got, .. }) = self.sessions.get(&session) else {
            return Err(format!("session {session} never began"));
        };
        for (topic, acknowledged) in &self.retained {
            match got.get(topic) {
                // A later one may have been kept without its acknowledgement having come.
                Some(payload) if payload.sequence >= acknowledged.sequence => {}
                other => {
                    return Err(format!(
                        "retained on {topic}: {other:?}, acknowledged {acknowledged:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
