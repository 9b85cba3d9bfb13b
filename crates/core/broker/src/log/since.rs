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

/// The last serial that came before, by filter. Only of filters that have begun while older
/// messages were due; no more than the session has subscriptions.
#[derive(Debug, Default)]
pub(super) struct Since(pub(super) Vec<(FilterId, u64)>);

impl Since {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn find(&self, filter: FilterId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&filter, |(of, _)| *of)
    }

    pub(super) fn begin(&mut self, filter: FilterId, through: u64) {
        match self.find(filter) {
            Ok(known) => self.0[known].1 = through,
            Err(place) => self.0.insert(place, (filter, through)),
        }
    }

    pub(super) fn forget(&mut self, filter: FilterId) {
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
