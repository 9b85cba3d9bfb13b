//! From which message on a filter of a session counts.
//!
//! The journal keeps a message once for all sessions and without their options: it is delivered by
//! the subscriptions of today. But whether it was accepted for a session must not depend on them:
//!
//! - What came before a filter was subscribed, or while it had QoS 0, is none of its business.
//!   [`Since`] has the serial.
//! - What was accepted for a subscription that has QoS 0 by now is still due, at QoS 1
//!   (MQTT-3.8.4-4). The subscription stays marked as durable, in the index and in its fact, and
//!   [skips](Log::skip) what comes from then on.

use topic::FilterId;

use crate::log::kept_sessions::KeptSession;
use crate::log::store::Store;
use crate::log::{Kept, Log};

/// The last serial that came before, by filter. Only of filters that have begun while older
/// messages were due; no more than the session has subscriptions.
#[derive(Debug, Default)]
pub(super) struct Since(Vec<(FilterId, u64)>);

impl Since {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, filter: FilterId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&filter, |(of, _)| *of)
    }

    pub(super) fn begin(&mut self, filter: FilterId, through: u64) {
        match self.find(filter) {
            Ok(known) => self.0[known].1 = through,
            Err(place) => self.0.insert(place, (filter, through)),
        }
    }

    fn forget(&mut self, filter: FilterId) {
        if let Ok(known) = self.find(filter) {
            self.0.remove(known);
        }
    }

    /// Everything up to the serial is done.
    pub(super) fn forget_through(&mut self, floor: u64) {
        self.0.retain(|(_, through)| *through > floor);
        self.0.shrink_to_fit();
    }
}

impl KeptSession {
    /// What came up to this serial is none of the filter's business. 0: all is.
    pub(super) fn since(&self, filter: FilterId) -> u64 {
        let since = self.rare.as_ref().map(|rare| &rare.since);
        since.and_then(|it| it.find(filter).ok().map(|known| it.0[known].1)).unwrap_or_default()
    }
}

impl Log {
    /// A filter of the session begins or ends to be one of what is kept. True: it ends, and older
    /// messages are due by it.
    pub(crate) fn change_filter(&mut self, slot: u32, filter: FilterId, is_kept: bool) -> bool {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return false };
        let Some(through) = store.due_through(kept) else { return false };
        if is_kept {
            kept.rare().since.begin(filter, through);
        }
        !is_kept
    }
}

impl Kept {
    /// The session has given the filter up.
    pub(crate) fn forget_since(&mut self, slot: u32, filter: FilterId) {
        if let Some(rare) = self.get_mut(slot).and_then(|durable| durable.rare.as_mut()) {
            rare.since.forget(filter);
        }
    }
}

impl Store {
    /// The newest serial, if any up to that waits for the session or is in flight to it.
    fn due_through(&self, durable: &mut KeptSession) -> Option<u64> {
        let last_serial = self.last_serial();
        if !durable.is_behind {
            durable.track.advance(last_serial);
        }
        (durable.track.floor() < last_serial).then_some(last_serial)
    }
}
