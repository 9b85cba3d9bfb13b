//! A member of a shared group, as all shards know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use codec::QoS;

use crate::SessionKey;
use crate::words::options;

/// How busy a session is, for the shards that choose among the members of a shared group.
#[derive(Debug, Default)]
pub struct MemberLoad {
    is_online: AtomicBool,
    in_flight: AtomicU32,
    room: AtomicU32,
}

impl MemberLoad {
    pub(crate) fn set(&self, is_online: bool, in_flight: u16, room: u16) {
        self.is_online.store(is_online, Ordering::Release);
        self.in_flight.store(u32::from(in_flight), Ordering::Relaxed);
        self.room.store(u32::from(room), Ordering::Release);
    }

    /// Can the session take a message right now? An estimate: its shard has the last word.
    pub(crate) fn is_available(&self) -> bool {
        self.is_online.load(Ordering::Acquire) && self.room.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_online(&self) -> bool {
        self.is_online.load(Ordering::Acquire)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a message that is on its way to the session.
    pub(crate) fn assign(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let _ = self
            .room
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |room| Some(room.saturating_sub(1)));
    }
}

/// A member as all shards know it.
#[derive(Clone, Debug)]
pub struct Member {
    pub(crate) key: SessionKey,
    pub(crate) load: Arc<MemberLoad>,
    pub(crate) options: u8,
    pub(crate) identifier: u32,
    /// Its session is in the journal, and so is what the group keeps for it.
    pub(crate) is_durable: bool,
}

impl Member {
    /// Is it given messages that it acknowledges?
    pub(crate) fn acknowledges(&self) -> bool {
        options::qos(self.options) != QoS::AtMostOnce
    }

    /// Does the journal keep messages for this member?
    pub(crate) fn is_kept_for(&self) -> bool {
        self.is_durable && self.acknowledges()
    }
}
