//! What the index and the retained messages cost in heap, counted byte by byte, and that matching
//! allocates nothing once it is warm. Run with `--nocapture` to see the figures.
#![allow(unsafe_code, reason = "counting allocations takes a global allocator of one's own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use topic::{Index, Matches, Retainable, Retained, Subscription};

struct Counting;

thread_local! {
    /// Per thread, as tests run side by side.
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Ignored while a thread is torn down: nobody measures there.
    let _ = HELD_BYTES.try_with(|held| held.set(held.get() + bytes));
    if bytes > 0 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: every call goes to the system allocator unchanged; counting touches no allocated memory
// and does not allocate (both cells are const-initialised and need no destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's guarantees for `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `pointer` came from `System` with this `layout`, as `alloc` forwards to it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn held_bytes() -> isize {
    HELD_BYTES.with(Cell::get)
}

/// Builds a value; returns it with the heap bytes that it holds.
fn weigh<T>(build: impl FnOnce() -> T) -> (T, f64) {
    let before = held_bytes();
    let built = build();
    (built, (held_bytes() - before) as f64)
}

/// A message with nothing but its topic.
struct Named(Box<str>);

impl Retainable for Named {
    fn topic(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn subscription(subscriber: u32) -> Subscription {
    Subscription { subscriber, options: 1, identifier: 0 }
}

fn index_of(count: u32, filter: impl Fn(u32) -> String) -> Index {
    let mut index = Index::new(1);
    for number in 0..count {
        index.subscribe(&filter(number), subscription(number));
    }
    index
}

fn assert_estimate(index: &Index, bytes: f64) {
    let estimate = index.heap_bytes() as f64;
    assert!((estimate / bytes - 1.0).abs() < 0.1, "heap_bytes says {estimate}, held are {bytes}");
}

#[test]
fn a_lone_exact_subscription_costs_less_than_100_bytes() {
    // The second count is the worst case: the hash table has just doubled.
    for count in [1_000_000, 917_505] {
        let (index, bytes) =
            weigh(|| index_of(count, |number| format!("device/{number:08}/command")));
        let each = bytes / f64::from(count);
        println!("{count} exact filters of 23 bytes: {each:.1} bytes per subscription");
        assert!(each < 100.0, "{each} bytes");
        assert_estimate(&index, bytes);
    }
}

#[test]
fn a_subscriber_of_a_popular_filter_costs_little() {
    let (index, bytes) = weigh(|| index_of(1_000_000, |_| "news".to_string()));
    let each = bytes / 1e6;
    println!("1,000,000 subscribers of one filter: {each:.1} bytes per subscription");
    assert!(each < 40.0, "{each} bytes");
    assert_estimate(&index, bytes);
}

#[test]
fn a_lone_wildcard_subscription_costs_what_an_exact_one_does() {
    for count in [1_000_000, 917_505] {
        let (index, bytes) = weigh(|| index_of(count, |number| format!("device/{number:08}/+/#")));
        let each = bytes / f64::from(count);
        println!("{count} wildcard filters of 19 bytes: {each:.1} bytes per subscription");
        assert!(each < 90.0, "{each} bytes");
        assert_estimate(&index, bytes);
    }
}

#[test]
fn wildcard_subscriptions_that_share_a_level_of_their_own_cost_one_node() {
    let filter = |number: u32| {
        let tail = if number.is_multiple_of(2) { "+/state" } else { "+/command" };
        format!("device/{:08}/{tail}", number / 2)
    };
    let (index, bytes) = weigh(|| index_of(1_000_000, filter));
    let each = bytes / 1e6;
    println!("1,000,000 wildcard filters of 24 bytes in pairs: {each:.1} bytes per subscription");
    assert!(each < 170.0, "{each} bytes");
    assert_estimate(&index, bytes);
}

#[test]
fn a_retained_message_costs_less_than_50_bytes_beside_its_own_block() {
    for is_sorted in [true, false] {
        let (retained, bytes) = weigh(|| {
            let mut retained = Retained::new();
            for number in 0..1_000_000_u32 {
                // An odd factor visits every number once, in an order far from sorted.
                let place =
                    if is_sorted { number } else { number.wrapping_mul(0x9E37_79B1) % (1 << 20) };
                let topic = format!("site{}/device{}/metric{}", place / 10_000, place / 10, place);
                retained.insert(Named(topic.into()));
            }
            retained
        });
        let count = retained.len() as f64;
        let mut blocks = 0;
        retained.walk("#", None, usize::MAX, &mut |message| blocks += message.0.len());
        let bytes = bytes - blocks as f64;
        let each = bytes / count;
        println!("{count} retained topics, sorted {is_sorted}: {each:.1} bytes each");
        assert!(each < 50.0, "{each} bytes");
        let estimate = retained.heap_bytes() as f64;
        assert!((estimate / bytes - 1.0).abs() < 0.25, "estimate {estimate}, held {bytes}");
    }
}

#[test]
fn warm_matching_allocates_nothing() {
    let mut index = index_of(10_000, |number| match number % 4 {
        0 => format!("a/{number}/+"),
        1 => format!("a/+/{number}/#"),
        _ => format!("a/{number}/x"),
    });
    let topics: Vec<String> = (0..10_000).map(|number| format!("a/{number}/x")).collect();
    let mut found = Matches::default();
    let mut pass = || topics.iter().for_each(|topic| index.matches(topic.as_bytes(), &mut found));
    // The cache takes a few passes to grow to the size of the work.
    (0..8).for_each(|_| pass());
    let before = ALLOCATIONS.with(Cell::get);
    pass();
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

#[test]
fn everything_given_back_leaves_almost_nothing() {
    let before = held_bytes();
    let mut index = Index::new(1);
    let filters: Vec<String> = (0..20_000)
        .map(|number| match number % 4 {
            0 => format!("a/{number}/+"),
            1 => format!("a/{}/+/#", number / 4),
            2 => format!("a/+/{}/+/{number}", number / 16),
            _ => format!("b/{number}"),
        })
        .collect();
    let own = held_bytes() - before;
    for filter in &filters {
        for subscriber in 0..3 {
            index.subscribe(filter, subscription(subscriber));
        }
    }
    let full = held_bytes() - before - own;
    for filter in &filters {
        let id = index.find(filter).expect("subscribed above");
        for subscriber in 0..3 {
            index.unsubscribe(id, subscriber);
        }
    }
    let left = held_bytes() - before - own;
    assert!(left < 40_000, "{left} of {full} bytes left");
}
