//! What the process holds of memory, and giving back what it does not hold any more.
//!
//! The system counts pages, and an allocator keeps freed ones: after a flood the resident memory
//! says what was needed once, not what is needed. So allocations are counted here, and the threads
//! can be asked to return what is free in their heaps, which each has to do for itself.

#![allow(unsafe_code, reason = "a global allocator, and two functions of the one behind it")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use mimalloc::MiMalloc;

/// The allocator of the program: mimalloc, and a count of what is allocated.
#[derive(Debug)]
pub struct Counting;

/// How far a thread counts for itself before all others see it. Times the threads, that is how
/// wrong [`held_bytes`] can be.
const OWN_BYTES_MAX: i64 = 64 * 1024;

static HELD: AtomicI64 = AtomicI64::new(0);
static PURGES: AtomicU64 = AtomicU64::new(0);
static SET_APART: AtomicU64 = AtomicU64::new(0);
static LENT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: Cell<i64> = const { Cell::new(0) };
    static PURGED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: declared as mimalloc.h has them; the crate links the library.
unsafe extern "C" {
    fn mi_collect(force: bool);
    fn mi_process_info(
        elapsed_ms: *mut usize,
        user_ms: *mut usize,
        system_ms: *mut usize,
        current_rss: *mut usize,
        peak_rss: *mut usize,
        current_commit: *mut usize,
        peak_commit: *mut usize,
        page_faults: *mut usize,
    );
}

#[inline]
fn note(bytes: i64) {
    OWN.with(|own| {
        let sum = own.get() + bytes;
        if (-OWN_BYTES_MAX..=OWN_BYTES_MAX).contains(&sum) {
            own.set(sum);
        } else {
            own.set(0);
            HELD.fetch_add(sum, Ordering::Relaxed);
        }
    });
}

// SAFETY: every call goes to mimalloc as it came; counting touches neither the memory nor, as the
// counters need no allocation and no destructor, the allocator.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { MiMalloc.dealloc(at, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { MiMalloc.realloc(at, layout, bytes) }
    }
}

/// Bytes that are allocated and not freed, in a program with this allocator.
pub fn held_bytes() -> u64 {
    u64::try_from(HELD.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Bytes that are needed for a moment, again and again, are set apart: whoever looks at the memory
/// counts them all the time, and not as something that comes and goes.
pub fn set_apart(bytes: u64) {
    SET_APART.store(bytes, Ordering::Relaxed);
}

/// What is set apart, and how much of it is in use. Of what was set apart until a moment ago all
/// may still be.
pub fn apart_bytes() -> (u64, u64) {
    let lent = LENT.load(Ordering::Relaxed);
    (SET_APART.load(Ordering::Relaxed).max(lent), lent)
}

/// Somebody uses bytes of what is set apart as long as it lives.
#[derive(Debug)]
pub struct Loan(u64);

impl Loan {
    pub fn of(bytes: u64) -> Self {
        LENT.fetch_add(bytes, Ordering::Relaxed);
        Self(bytes)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        LENT.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What the allocator has taken from the system, at most: what it has given back while its place
/// is kept counts on. What is resident beyond that is not the allocator's: code, stacks, what
/// libraries in C have allocated.
pub fn taken_bytes() -> u64 {
    let mut unused = [0usize; 7];
    let [a, b, c, d, e, f, g] = &mut unused;
    let mut current_commit = 0;
    // SAFETY: eight places for eight numbers, all valid for writing.
    unsafe { mi_process_info(a, b, c, d, e, &raw mut current_commit, f, g) };
    current_commit as u64
}

/// Asks all threads to give back what is free. They do so in [`purge_if_asked`].
pub fn ask_to_purge() {
    PURGES.fetch_add(1, Ordering::Relaxed);
}

/// For threads that allocate much, each time they have been woken: gives back what is free in the
/// heap of this thread, once for each time that it is asked for.
#[inline]
pub fn purge_if_asked() {
    let asked = PURGES.load(Ordering::Relaxed);
    if PURGED.get() != asked {
        PURGED.set(asked);
        purge();
    }
}

/// Gives back what is free in the heap of this thread.
pub fn purge() {
    // SAFETY: it looks at the heap of this thread, and at those that have no thread any more.
    unsafe { mi_collect(true) };
}
