//! The allocator counts what is held.

use base::memory::{Counting, ask_to_purge, held_bytes, purge_if_asked, taken_bytes};
use base::resident_bytes;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: u64 = 1 << 20;

/// What threads may have counted for themselves only, generously.
const WRONG_BYTES_MAX: u64 = MIB;

#[test]
fn what_is_allocated_is_held_until_it_is_freed_wherever() {
    let before = held_bytes();
    let about = |bytes: u64| held_bytes().abs_diff(before + bytes) < WRONG_BYTES_MAX;
    let small: Vec<Vec<u8>> = (0..100_000).map(|_| vec![1; 200]).collect();
    let all = 100_000 * (200 + size_of::<Vec<u8>>() as u64);
    assert!(about(all), "{} of {all}", held_bytes() - before);
    let mut large = vec![0u8; 10 << 20];
    large.reserve_exact(30 << 20);
    assert!(about(all + 40 * MIB));
    assert!(taken_bytes() + WRONG_BYTES_MAX > held_bytes(), "it comes from the system");
    let freed = std::thread::spawn(move || drop((small, large)));
    assert!(freed.join().is_ok());
    assert!(about(0), "freed by another thread");
    ask_to_purge();
    purge_if_asked();
    let resident = resident_bytes();
    assert!(resident.is_none_or(|bytes| bytes < 40 * MIB), "{resident:?} stay");
}
