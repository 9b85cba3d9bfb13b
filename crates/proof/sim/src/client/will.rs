//! The will that a client leaves with each of its connections.

use codec::{QoS, Version};

use super::{ModelClient, OwnedPublish};
use crate::oracle::{Offer, Oracle, Payload};
use crate::random::Random;

/// What a client wants to be told of it.
#[derive(Clone, Debug)]
pub struct Habit {
    topic: String,
    qos: QoS,
    retain: bool,
    /// Only MQTT 5 can say it.
    pub(super) delay_secs: u32,
    sequence: u32,
}

impl Habit {
    pub(crate) fn new(number: u32, version: Version, random: &mut Random) -> Self {
        let retain = random.chance(30);
        // Retained ones are looked at by the newcomer at the end, below its filter.
        let topic = if retain { format!("r/w/{number}") } else { format!("w/{number}") };
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][random.below(3)];
        let delays = [0, 0, 1, 10, 100];
        let delay_secs =
            if version == Version::V5 { delays[random.below(delays.len())] } else { 0 };
        Self { topic, qos, retain, delay_secs, sequence: 0 }
    }
}

impl ModelClient {
    /// The will of the next connection.
    pub(super) fn next_will(
        &mut self,
        connection: u32,
        is_clean: bool,
        oracle: &mut Oracle,
    ) -> Option<OwnedPublish> {
        let is_kept = self.is_persistent() && (self.version == Version::V5 || !is_clean);
        // A session that ends takes its will with it, however long that was to wait.
        let expiry_secs = if is_kept { self.expiry_secs } else { 0 };
        let habit = self.habit.as_mut()?;
        habit.sequence += 1;
        let will = OwnedPublish {
            topic: habit.topic.clone(),
            qos: habit.qos,
            retain: habit.retain,
            is_clear: false,
            expiry_secs: None,
            payload: Payload { publisher: self.number, sequence: habit.sequence },
            padding: 0,
        };
        let delay_ms = u64::from(habit.delay_secs.min(expiry_secs)) * 1000;
        let offer = Offer { client: self.number, connection, is_kept, delay_ms };
        oracle.on_will_offered(offer, &will);
        Some(will)
    }
}
