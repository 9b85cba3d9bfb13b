//! Topic names and filters, and the three questions a broker asks about them:
//!
//! - [`Index`]: which subscriptions of one shard match this topic?
//! - [`Interest`]: which shards of the process may hold such a subscription at all?
//! - [`Retained`]: which retained messages match this filter?
//!
//! **Does not know**: packets, sessions, sockets, clocks or other shards' state. A subscriber, a
//! shared group, the subscription options and a retained message are opaque values of the caller.
//!
//! **Start reading** at [`matches()`] (the whole matching rule in twenty lines; every structure
//! here is tested against it), then [`Index`].
//!
//! # Invariants
//!
//! - Names and filters reach [`Index`], [`Interest`] and [`Retained`] only after [`check_topic`],
//!   [`check_filter`] or [`parse_filter`] accepted them. In particular they hold no U+0000.
//! - Text is compared byte for byte: nothing is normalised or substituted (`MQTT-4.7.3-4`). That is
//!   why a topic that is looked up comes as bytes: whoever holds it need not prove again that it is
//!   text.
//! - [`Index`] and [`Interest`] never miss a match. Only [`Interest`] may report one too many.
//! - Matching allocates nothing once its buffers have grown to the size of the work.
//! - The same calls with the same seed give the same answers in the same order.

mod audience;
mod filter;
mod hash;
mod index;
pub mod interest;
mod retained;
mod routes;
mod slab;
mod trie;

pub use filter::{
    DELAYED, EXCLUSIVE, FILE, FILE_ASYNC, Filter, QUEUE, QUEUE_GROUP, SHARE, TopicError,
    TopicLimits, canonical, check_filter, check_size, check_topic, has_wildcard, matches, overlap,
    parse_filter, reserved, without_share,
};
pub use index::{FilterId, Index, Matches, Subscribed, Subscription, Unsubscribed};
pub use interest::{Claim, Interest, InterestCounts, Interested, SHARDS_MAX};
pub use retained::{CHILD_COUNT_MAX, Child, Cursor, Retainable, Retained};
