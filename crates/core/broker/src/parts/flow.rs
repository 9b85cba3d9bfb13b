//! When a connection is read, and how much a turn does for it.
//!
//! All constants of flow control stand here. What is configurable stands in [`Settings`] and
//! [`Limits`](crate::Limits): work per turn (`turn_units`), bytes of mail before other shards
//! (`mail_bytes_max`), queue and outbox of a client, rates of a connection and of a namespace.
//!
//! [`Settings`]: crate::Settings

use std::ops::RangeInclusive;

use crate::Shared;
use crate::parts::barrier::Barrier;
use crate::parts::broadcasts::Broadcasts;
use crate::parts::filter_pauses::FilterPauses;
use crate::parts::inbox::Inbox;
use crate::parts::work::Work;

/// ms. How long publishers are paused for a subscriber that is behind: at first, and at most. Each
/// time that it does not help the pause is twice as long. The first is also how long a publisher
/// waits for a journal that is behind.
pub(crate) const PAUSE_MS: RangeInclusive<u32> = 2..=64;

/// ms. The same while the queue of the subscriber is on the way to its limit.
pub(crate) const URGENT_PAUSE_MS: RangeInclusive<u32> = 8..=512;

/// ms. After so long a cause whose end is not reported is looked at again: a full disk, memory
/// that is short, a subscriber that may not read. Rates of a namespace: after a hundred times that.
pub(crate) const RECHECK_MS: u64 = 100;

/// An eighth of a limit is much: of the work of a turn, its client comes behind the others; of a
/// queue, its publishers are paused.
pub(crate) const LARGE_PART: u32 = 8;

/// Bytes of a long queue, if an eighth of its limit is more.
pub(crate) const LONG_QUEUE_BYTES: u64 = 16 << 20;

/// Bytes per ms that few subscribers take. A queue on the way to its limit pauses its publishers
/// for as long as it takes at this rate.
pub(crate) const DRAIN_BYTES_PER_MS: u64 = 256 << 10;

/// Bytes that a message counts at least.
pub(crate) const MESSAGE_BYTES_MIN: usize = 256;

/// Messages in one go, of a publisher that sends all it can: it is paused for subscribers that are
/// behind. Others are only if that is urgent.
pub(crate) const BURST_MESSAGES: u64 = 8;

/// Bytes that are much in one go: of a publisher, as above; of broadcasts in an outbox, the next
/// one waits until they are written; of a consumer, it is disconnected when memory is short.
pub(crate) const BURST_BYTES: usize = 16 << 10;

/// Bytes of a small request, which waits for nobody that asks for much; of a small message, which
/// may pass a full window; and of what is sent to a connection that is closed for lack of memory.
pub(crate) const SMALL_BYTES_MAX: usize = 4 << 10;

/// Units of work: a client that takes less in one go asks for little, however many do.
pub(crate) const LIGHT_UNITS: u32 = 50;

/// Entries of lists that are looked through one by one. Filters that are paused: above it
/// publishers are paused one by one. Messages that pass a full window in a turn: others wait.
pub(crate) const SCANNED_MAX: usize = 64;

/// Requests for a grant within a credit window.
pub(crate) const GRANTS_PER_WINDOW: u64 = 4;

/// Subscribers of one shard. A message for more is a broadcast: it is written behind all else.
pub const BROADCAST_MIN: usize = 128;

/// Broadcasts of a shard that have not reached everybody. Above it the oldest reaches all others at
/// once.
pub(crate) const UNFINISHED_MAX: usize = 16;

/// Bytes in the outbox of a client that does not read, while memory is short or connections use
/// much. It has its whole outbox again when it has read what was queued for it.
pub(crate) const UNSENT_BYTES_MAX: usize = 64 << 10;

/// How much a turn does, and what waits for a later one.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) work: Work,
    /// Mail that waits.
    pub(crate) inbox: Inbox,
    pub(crate) broadcasts: Broadcasts,
    pub(crate) pauses: FilterPauses,
    pub(crate) barrier: Barrier,
    /// Of several cells: for what all others have sent to come.
    pub(crate) arrivals: Option<Box<Barrier>>,
}

impl Flow {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            work: Work::new(shared.settings.turn_units),
            inbox: Inbox::default(),
            broadcasts: Broadcasts::default(),
            pauses: FilterPauses::default(),
            barrier: Barrier::new(shared.homes.places()),
            arrivals: shared
                .homes
                .has_other_cells()
                .then(|| Box::new(Barrier::new(shared.homes.places()))),
        }
    }
}
