//! What the thread of the links waits for, and who can wake it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::{Poll, Registry, Token, Waker};

/// Tokens of a [`Handler`](crate::Handler) begin here. Those below are of links.
pub const HANDLER_TOKENS: usize = 1 << (usize::BITS - 2);

/// Made before the thread, so that what works on the thread can use it.
pub struct Poller {
    pub(crate) poll: Poll,
    pub(crate) bell: Arc<Bell>,
}

/// Wakes the thread of the links. While the thread is awake that costs no system call.
#[derive(Debug)]
pub struct Bell {
    /// The thread waits, or is about to.
    is_asleep: AtomicBool,
    waker: Waker,
}

impl Poller {
    /// # Errors
    ///
    /// The system has no more files.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        Ok(Self { poll, bell: Arc::new(Bell { is_asleep: AtomicBool::new(false), waker }) })
    }

    /// Where a handler registers sources of its own, with tokens from [`HANDLER_TOKENS`] on.
    ///
    /// # Errors
    ///
    /// The system has no more files.
    pub fn registry(&self) -> io::Result<Registry> {
        self.poll.registry().try_clone()
    }

    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }
}

impl Bell {
    /// Call it after something was put where the thread looks before it waits.
    pub fn ring(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            // It fails only if the counter is full, and then the thread is about to wake.
            let _ = self.waker.wake();
        }
    }

    /// From now on it rings. The thread looks at all that could ring it after this call, and only
    /// then waits: what it does not see comes with a ring.
    pub(crate) fn lie_down(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
    }

    pub(crate) fn get_up(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}

pub(crate) const WAKER: Token = Token(1);
