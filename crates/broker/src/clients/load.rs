//! How much waits for clients, for the metrics. Clients are looked at one after the other, so many
//! each second, so that no message pays for being counted.

use crate::clients::sessions::Sessions;
use crate::shard::context::Context;

/// Clients that are looked at in one go. A shard with more shows what was some seconds ago.
const LOOKS_MAX: u32 = 5_000;

/// How far the walk is, and what it has found.
#[derive(Debug, Default)]
pub(crate) struct LoadWalk {
    next_slot: u32,
    queued: u64,
    in_flight: u64,
}

impl Sessions {
    /// Walks on; at the end the metrics get what was found.
    pub(crate) fn look_at_load(&mut self, cx: &Context) {
        let slots_end = self.clients.slots_end();
        let walk = &mut self.load_walk;
        let end = slots_end.min(walk.next_slot.saturating_add(LOOKS_MAX));
        for slot in walk.next_slot..end {
            if let Some(client) = self.clients.get(slot) {
                walk.queued += (client.session.outgoing.queued() + client.backlog()) as u64;
                walk.in_flight += u64::from(client.session.outgoing.in_flight());
            }
        }
        walk.next_slot = end;
        if end == slots_end {
            let LoadWalk { queued, in_flight, .. } = std::mem::take(walk);
            cx.metrics.queued.set(queued);
            cx.metrics.in_flight.set(in_flight);
        }
    }
}
