//! Worlds whose broker is driven by the code that drives it in the server, and proof that what goes
//! wrong there is seen.

use session::Overflow;
use sim::{Options, Report, Sabotage, Turns, run, run_many};

const SEEDS: u64 = 1000;

fn options() -> Options {
    Options { driven: true, ..Options::default() }
}

fn keep_promises(options: Options, count: u64) -> Vec<Report> {
    let (reports, failures) = run_many(0, count, options, false);
    if let Some(failure) = failures.first() {
        panic!("{failure}");
    }
    reports
}

#[test]
fn every_driven_world_keeps_its_promises() {
    let reports = keep_promises(options(), SEEDS);
    // All of it has to happen, or the worlds prove less than they seem to.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let of_toll = |of: fn(&Turns) -> u64| reports.iter().map(|r| of(&r.driven)).sum::<u64>();
    assert!(sum(|report| report.received) > SEEDS * 50);
    assert!(sum(|report| report.takeovers) > SEEDS / 2);
    assert!(sum(|report| report.wills) > SEEDS / 2);
    assert!(sum(|report| report.mail_waits) > SEEDS / 10);
    assert!(of_toll(|toll| toll.turns_cut) > SEEDS * 10);
    assert!(of_toll(|toll| toll.sleeps) > SEEDS * 10);
    assert!(of_toll(|toll| toll.keep_alive_cuts) > SEEDS / 2);
    assert!(of_toll(|toll| toll.room_waits) > SEEDS / 50);
}

#[test]
fn what_a_full_queue_drops_or_refuses_is_reported() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Reject] {
        keep_promises(Options { overflow: Some(overflow), ..options() }, 200);
    }
}

#[test]
fn one_seed_is_one_driven_world() {
    let once = run(7, options()).expect("it keeps its promises");
    let again = run(7, options()).expect("it keeps its promises");
    assert_eq!((once.received, once.driven), (again.received, again.driven));
    assert!(once.received > 0);
}

fn is_caught_in(seeds: u64, options: Options) {
    let (_, failures) = run_many(0, seeds, options, false);
    assert!(!failures.is_empty(), "nobody sees {:?}", options.sabotage);
}

fn is_caught(sabotage: Sabotage) {
    is_caught_in(200, Options { sabotage: Some(sabotage), ..options() });
}

#[test]
fn a_write_that_forgets_the_rest_is_seen() {
    is_caught(Sabotage::ForgetRest);
}

#[test]
fn a_read_that_hides_the_rest_is_seen() {
    is_caught(Sabotage::HideRest);
}

#[test]
fn a_flush_that_is_forgotten_is_seen() {
    is_caught(Sabotage::HideOwn);
}

#[test]
fn room_of_which_nobody_hears_is_seen() {
    is_caught(Sabotage::StayFull);
}

#[test]
fn a_waker_that_wakes_nobody_is_seen() {
    is_caught(Sabotage::SleepOn);
}

#[test]
fn a_shard_that_has_changed_and_is_not_looked_at_is_seen() {
    is_caught(Sabotage::ForgetMarks);
}

#[test]
fn an_old_deadline_of_a_shard_is_seen() {
    is_caught(Sabotage::KeepDeadlines);
}

#[test]
fn mail_that_is_taken_in_another_order_is_seen() {
    is_caught(Sabotage::SwapItems);
}

/// It shows when an answer comes for a connection that has gone, and another has its number.
#[test]
fn a_connection_with_the_number_of_one_before_is_seen() {
    let (sabotage, overflow) = (Some(Sabotage::ReuseNumbers), Some(Overflow::Reject));
    is_caught_in(1000, Options { sabotage, overflow, ..options() });
}
