//! Life-cycle events: who comes, goes, subscribes, loses messages, is banned; each a CloudEvent
//! (`cloud.rs`), published below `$SYS/events/` and given to those who read the API's stream
//! (`readers.rs`), as far as their pace allows (`pace.rs`). Nothing is made of what nobody hears.

mod cloud;
mod pace;
mod readers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use broker::{Event, Scope, Shared};
use codec::QoS;
use serde_json::{Value, json};
use session::{Message, MessageParts, NEVER};

use crate::config::Events;
use crate::config::namespaces::DEFAULT;
use crate::moment;
use crate::run::Clock;
pub use cloud::KINDS;
pub(crate) use cloud::{ClientRefused, Happened};
use pace::Pace;
pub(crate) use readers::{Readers, Reading, Wanted};

/// The part of `per_second_max` that refused log-ins have, beside it.
const REFUSALS_PART: u32 = 10;

/// Shared by workers, doors, the API and the control plane.
#[derive(Debug)]
pub struct LifeCycle {
    shared: Arc<Shared>,
    clock: Clock,
    /// `source` of each event.
    source: String,
    /// They are published, too.
    is_published: bool,
    /// What begins the ids of this process.
    start: u64,
    made: AtomicU64,
    pace: Pace,
    /// Refused log-ins have a pace of their own: a client that was refused has proved nothing, and
    /// may not use up what others have.
    refusals: Pace,
    pub(crate) readers: Readers,
    /// Who subscribes is told by the shards only while somebody reads.
    tells_subscriptions: AtomicBool,
}

impl LifeCycle {
    pub fn new(config: &Events, shared: &Arc<Shared>, clock: Clock) -> Self {
        let own = Self {
            shared: shared.clone(),
            clock,
            source: config.source.clone(),
            is_published: config.sys,
            start: clock.wall_ms(),
            made: AtomicU64::new(0),
            pace: Pace::new(config.per_client_per_second_max, config.per_second_max),
            refusals: Pace::new(0, config.per_second_max.div_ceil(REFUSALS_PART)),
            readers: Readers::default(),
            tells_subscriptions: AtomicBool::new(false),
        };
        own.note_readers();
        own
    }

    /// What came of an event of a shard: messages to be published.
    pub(crate) fn on_event(
        &self,
        event: &Event,
        namespace: &str,
        now_ms: u64,
        mut publish: impl FnMut(Message),
    ) {
        if self.is_unheard() {
            return;
        }
        for happened in cloud::of(event, namespace) {
            if self.is_heard(&happened) && self.pace.allows(&happened, now_ms) {
                self.tell(&happened).into_iter().for_each(&mut publish);
            }
        }
    }

    /// Nobody can hear of anything.
    pub(crate) fn is_unheard(&self) -> bool {
        !self.is_published && self.readers.are_none()
    }

    /// A CONNECT was refused before it came to a shard. The message is to be published.
    pub(crate) fn on_refused(&self, refused: &ClientRefused<'_>, now_ms: u64) -> Option<Message> {
        let happened = refused.happened();
        let is_told = self.is_heard(&happened) && self.refusals.allows(&happened, now_ms);
        if is_told { self.tell(&happened) } else { None }
    }

    /// Something has happened that no client has a hand in. The message is to be published.
    pub(crate) fn on_other(&self, happened: &Happened<'_>) -> Option<Message> {
        if self.is_heard(happened) { self.tell(happened) } else { None }
    }

    /// Tells how many were withheld, and that those who read are still read to. To be called about
    /// twice a second.
    pub(crate) fn tick(&self, now_ms: u64) -> Option<Message> {
        self.readers.beat(now_ms);
        self.note_readers();
        let count = self.pace.take_withheld() + self.refusals.take_withheld();
        let what = json!({ "count": count });
        if count == 0 { None } else { self.on_other(&Happened::of_broker("events.withheld", what)) }
    }

    /// What a namespace is called.
    pub(crate) fn namespace_of(&self, scope: Scope) -> Box<str> {
        match self.shared.spaces.get(scope) {
            _ if scope.is_first() => DEFAULT.into(),
            Some(space) => space.name().into(),
            None => "?".into(),
        }
    }

    /// Events that were not told, because there were too many.
    pub fn withheld(&self) -> u64 {
        self.pace.withheld() + self.refusals.withheld()
    }

    /// Readers that were cut, because they did not read.
    pub fn cut(&self) -> u64 {
        self.readers.cut()
    }

    /// There may be one reader more, or one less.
    pub(crate) fn note_readers(&self) {
        let tells = self.is_published || !self.readers.are_none();
        if self.tells_subscriptions.swap(tells, Ordering::Relaxed) != tells {
            self.shared.set_tells_subscriptions(tells);
        }
    }

    fn is_heard(&self, happened: &Happened<'_>) -> bool {
        let is_wanted = || self.shared.interest.shards(happened.topic().as_bytes()).wants != 0;
        !self.readers.are_none() || self.is_published && is_wanted()
    }

    fn tell(&self, happened: &Happened<'_>) -> Option<Message> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}-{number}", self.start);
        let text = self.cloud_event(&id, happened).to_string();
        self.readers.put(happened, &id, &text);
        let topic = happened.topic();
        let parts = MessageParts {
            topic: &topic,
            properties: &[],
            payload: text.as_bytes(),
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at_ms: NEVER,
            publisher: 0,
            level: 0,
            scope: 0,
        };
        self.is_published.then(|| Message::new(&parts))
    }

    /// CloudEvents 1.0, section 3.1.
    fn cloud_event(&self, id: &str, happened: &Happened<'_>) -> Value {
        let wall_ms = self.clock.wall_ms();
        let time = moment::text_of(wall_ms / 1000);
        let time = format!("{}.{:03}Z", time.trim_end_matches('Z'), wall_ms % 1000);
        let mut event = json!({
            "specversion": "1.0",
            "id": id,
            "source": self.source,
            "type": happened.full_type(),
            "time": time,
            "datacontenttype": "application/json",
            "data": happened.data,
        });
        if let Some(subject) = happened.subject() {
            event["subject"] = subject.into();
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use broker::Settings;
    use codec::Reason;

    use super::*;
    use crate::config::{Config, Machine};

    #[test]
    fn a_flood_of_refused_log_ins_leaves_room_for_other_events() {
        let config = Config::defaults(&Machine::here()).events;
        let shared = Shared::new(Settings::default(), 1, 1);
        let life_cycle = LifeCycle::new(&config, &shared, Clock::start());
        let mut reading = life_cycle.readers.add("me", Wanted::default()).unwrap();
        let refuse = |number: u32, client_id: &str, address: &str| {
            let refused = ClientRefused {
                client_id,
                username: None,
                peer: &format!("{address}:{number}"),
                listener: "tcp",
                namespace: None,
                provider: None,
                reason_code: Reason::NOT_AUTHORIZED,
                reason: "wrong",
            };
            life_cycle.on_refused(&refused, 5_000);
        };
        let mut told = |kind: &str| {
            let all = std::iter::from_fn(|| reading.queue.try_recv().ok());
            let of_kind = format!("event: quelea.{kind}\n");
            all.filter(|bytes| String::from_utf8_lossy(bytes).contains(&of_kind)).count()
        };
        let share = config.per_second_max.div_ceil(REFUSALS_PART) as usize;
        (1..=1_000).for_each(|number| refuse(number, "victim", "10.0.0.1"));
        assert_eq!(told("client.refused"), share.div_ceil(4), "of one address");
        for number in 1..=10_000 {
            refuse(number, "victim", &format!("10.1.{}.{}", number / 256, number % 256));
        }
        assert_eq!(told("client.refused"), share - share.div_ceil(4));
        for _ in 0..config.per_client_per_second_max {
            let client_id = "victim".into();
            let purged = Event::SessionPurged { client_id, username: None };
            life_cycle.on_event(&purged, DEFAULT, 5_000, |_| {});
        }
        assert_eq!(told("session.purged"), config.per_client_per_second_max as usize);
        assert_eq!(life_cycle.withheld(), 11_000 - share as u64);
    }
}
