//! When a connection is read, and how much a turn does for it.

pub(crate) mod filter_pauses;
pub(crate) mod pause;
pub(crate) mod shortage;
pub(crate) mod windows;
pub(crate) mod work;
pub(crate) mod write_order;

use crate::Shared;
use crate::flow::filter_pauses::FilterPauses;
use crate::flow::work::Work;
use crate::routing::broadcast::Broadcasts;
use crate::shard::barrier::Barrier;
use crate::shard::inbox::Inbox;

/// How much a turn does, and what waits for a later one.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) work: Work,
    /// Mail that waits.
    pub(crate) inbox: Inbox,
    pub(crate) broadcasts: Broadcasts,
    pub(crate) pauses: FilterPauses,
    pub(crate) barrier: Barrier,
}

impl Flow {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            work: Work::new(shared.settings.turn_units),
            inbox: Inbox::default(),
            broadcasts: Broadcasts::default(),
            pauses: FilterPauses::default(),
            barrier: Barrier::new(shared.shard_count),
        }
    }
}
