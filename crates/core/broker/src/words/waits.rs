//! What waits in a shard for another one: the whole list.
//!
//! Each of these is begun by mail, and ended by the mail that [`Waits`] names beside it. Shards of
//! a cell end together. For what waits for another cell, whose owner may end alone, the gateway
//! keeps the question ([`crate::cells::gateway`]); mail of pauses and of groups does not cross
//! cells. What waits for this shard's own journal is in `log/waiting.rs`. A group whose home has a
//! queue (`Group::is_waiting`) is no wait: it changes where messages go, and may stay so for ever.

/// How much of each kind waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Acknowledgements of publishes, for the places that were asked to accept them:
    /// [`Mail::Confirmed`](crate::Mail::Confirmed).
    pub acknowledgements: usize,
    /// The same of publishes whose connection has ended.
    pub orphans: usize,
    /// The same of publishes of operators.
    pub publications: usize,
    /// Messages that this shard has taken on, for those that are to have them: the same.
    pub handovers: usize,
    /// SUBACKs, for all shards to know the member of a group:
    /// [`Mail::Passed`](crate::Mail::Passed).
    pub subacks: usize,
    /// Requests for retained messages: [`Mail::Retained`](crate::Mail::Retained).
    pub pages: usize,
    /// Publishers, for a shard before which too much lies: [`Mail::Grant`](crate::Mail::Grant).
    pub windows: usize,
    /// Publishers, for the subscriber of another shard whose queue is long:
    /// [`Mail::Resume`](crate::Mail::Resume).
    pub pauses: usize,
    /// Messages of groups that have their home here, for the member that was chosen:
    /// [`Mail::GroupDone`](crate::Mail::GroupDone) or
    /// [`Mail::GroupReturned`](crate::Mail::GroupReturned).
    pub dispatched: usize,
}

impl Waits {
    /// Nothing waits.
    pub fn are_over(&self) -> bool {
        *self == Self::default()
    }
}
