//! Other cells of a cluster: what stands for each of them among the places of this one.
//!
//! A shard mails another cell as it mails a shard. The [gateway](gateway::Gateway) packs that mail
//! into [frames](frame::Frame), deals out what comes in to the shards here, and gathers their
//! answers into one. It keeps all that the other cell has not answered, so a shard never notices
//! that the other cell has a new owner: it is only slow.

pub mod frame;
pub mod gateway;
pub mod lane;
pub mod wire;

mod dealt;
mod requests;
mod summary;
