//! What is known of the rights of a connection, and what it waits for.

use std::collections::VecDeque;

use policy::{Action, Manner};
use session::{NEVER, Will};

use crate::parts::client::{Client, Extras, will_bytes};
use crate::words::settings::ServiceSettings;

/// What holds for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Denied,
    /// Nobody knows: the service could not be asked.
    Unknown,
}

/// What is known of the rights of a connection, and what it waits for.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) asked: Option<Asked>,
    /// The answer to the latest question, for the packet that waits for it.
    pub(crate) settled: Option<(Act, Verdict)>,
    /// The oldest first.
    pub(crate) remembered: VecDeque<Remembered>,
    pub(crate) last_number: u32,
    /// The will of the connection, until the service has decided about it.
    pub(crate) will: Option<Box<Will>>,
    /// When it is asked about the will again, after a failure. 0: not.
    pub(crate) asks_again_ms: u64,
    /// Questions for a connection that is gone.
    pub(crate) late: u8,
}

#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) number: u32,
    pub(crate) act: Act,
    /// The will of [`Verdicts::will`].
    pub(crate) is_for_will: bool,
    /// Rules are others than when it was asked.
    pub(crate) is_void: bool,
}

/// What a client wants to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Act {
    pub(crate) publishes: bool,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) topic: Box<str>,
}

#[derive(Debug)]
pub(crate) struct Remembered {
    act: Act,
    allows: bool,
    until_ms: u64,
}

impl Verdicts {
    pub(crate) fn find(
        &self,
        action: Action,
        topic: &str,
        manner: Manner,
        now_ms: u64,
    ) -> Option<Verdict> {
        let settled = self.settled.iter().find(|(act, _)| act.is(action, topic, manner));
        let settled = settled.map(|(_, verdict)| *verdict);
        settled.or_else(|| self.find_remembered(action, topic, manner, now_ms))
    }

    pub(crate) fn find_remembered(
        &self,
        action: Action,
        topic: &str,
        manner: Manner,
        now_ms: u64,
    ) -> Option<Verdict> {
        let mut known = self.remembered.iter().rev();
        let found = known.find(|one| one.act.is(action, topic, manner))?;
        let verdict = if found.allows { Verdict::Allowed } else { Verdict::Denied };
        (now_ms < found.until_ms).then_some(verdict)
    }

    pub(crate) fn remember(
        &mut self,
        act: Act,
        allows: bool,
        now_ms: u64,
        settings: &ServiceSettings,
    ) {
        self.remembered.retain(|one| one.until_ms > now_ms && one.act != act);
        while self.remembered.len() >= usize::from(settings.entries_max) {
            if self.remembered.pop_front().is_none() {
                return;
            }
        }
        let until_ms = now_ms + settings.holds_ms;
        self.remembered.push_back(Remembered { act, allows, until_ms });
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = self.remembered.iter().map(|one| one.act.topic.len()).sum::<usize>();
        // Once here, and once on its way to the service.
        let asked = self.asked.as_ref().map_or(0, |asked| 2 * asked.act.topic.len());
        let own = size_of::<Self>() + self.remembered.len() * size_of::<Remembered>();
        own + texts + asked + will_bytes(self.will.as_deref())
    }
}

impl Act {
    pub(crate) fn new(action: Action, topic: &str, manner: Manner) -> Self {
        let Manner { qos, retain } = manner;
        Self { publishes: action == Action::Publish, qos, retain, topic: topic.into() }
    }

    pub(crate) fn is(&self, action: Action, topic: &str, manner: Manner) -> bool {
        self.publishes == (action == Action::Publish)
            && self.qos == manner.qos
            && self.retain == manner.retain
            && *self.topic == *topic
    }
}

impl Extras {
    pub(crate) fn verdicts(&mut self) -> &mut Verdicts {
        self.verdicts.get_or_insert_default()
    }
}

impl Client {
    /// When the service is to be asked about the will again, or [`NEVER`].
    pub(crate) fn asks_again_ms(&self) -> u64 {
        let verdicts = self.extras.as_ref().and_then(|extras| extras.verdicts.as_ref());
        verdicts.map(|own| own.asks_again_ms).filter(|at_ms| *at_ms > 0).unwrap_or(NEVER)
    }
}
