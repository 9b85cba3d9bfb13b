//! Several cells from outside: clients of each, frames between them, and owners that end alone.

mod answers;
mod exact;
mod groups;
mod interest;
#[path = "../shard/notation.rs"]
mod notation;
mod order;
mod retained;
mod serials;
mod stage;
mod waits;
mod wills;
