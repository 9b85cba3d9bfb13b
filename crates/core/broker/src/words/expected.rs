//! What cannot be missing.

/// Says of a look-up that it finds something, whatever clients, disks and other shards do.
///
/// Tests and the simulator stop where that is not so. The broker goes on without: a message that is
/// not delivered is better than a process that has ended.
pub(crate) trait Expected: Sized {
    #[track_caller]
    fn expected(self) -> Self;
}

impl<T> Expected for Option<T> {
    #[inline(always)]
    fn expected(self) -> Self {
        debug_assert!(self.is_some(), "this cannot be missing");
        self
    }
}
