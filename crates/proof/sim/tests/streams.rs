//! Worlds with streams and consumers, and proof that the oracle sees what they must not do.
//!
//! `SIM_SEEDS` says how many worlds are tried (default 1,000).

use broker::streams::StreamFlaw;
use sim::{Options, Sabotage, StreamToll, run, run_many};
use streams::Flaw;

fn seeds() -> u64 {
    std::env::var("SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(1000)
}

#[test]
fn streams_and_consumers_keep_their_promises_across_every_end() {
    let (reports, failures) = run_many(0, seeds(), Options::streams(), false);
    if let Some(failure) = failures.first() {
        panic!("{failure}");
    }
    let toll = reports.iter().fold(StreamToll::default(), |sum, it| sum.plus(&it.streams));
    // All of it has to happen, or the worlds prove less than they seem to.
    let counts = [
        toll.accepted,
        toll.dead_letters,
        toll.given_up,
        toll.dropped,
        toll.seeks,
        toll.removed,
        toll.full,
        toll.behind,
        toll.write_faults,
        toll.files_deleted,
    ];
    assert!(counts.iter().all(|count| *count > 0), "{toll:?}");
    assert!(toll.sent > toll.accepted, "some are sent again: {toll:?}");
}

#[test]
fn streams_keep_their_promises_to_clients_with_aliases_and_keep_alives() {
    let options = Options { driven: true, ..Options::streams() };
    let (_, failures) = run_many(0, seeds() / 4, options, false);
    if let Some(failure) = failures.first() {
        panic!("{failure}");
    }
}

#[test]
fn one_seed_is_one_world_with_streams() {
    let once = run(7, Options::streams()).expect("it keeps its promises");
    let again = run(7, Options::streams()).expect("it keeps its promises");
    assert_eq!((once.received, once.streams), (again.received, again.streams));
    assert!(once.streams.stored > 0);
}

/// Is the planted bug seen in one of some worlds?
fn is_caught(sabotage: Sabotage) {
    let options = Options { sabotage: Some(sabotage), ..Options::streams() };
    let caught = (0..SABOTAGED_SEEDS).any(|seed| run(seed, options).is_err());
    assert!(caught, "the oracle does not see {sabotage:?}");
}

#[test]
fn the_oracle_sees_the_faults_of_an_owner() {
    for flaw in [
        Flaw::CommittedBeforeAnswer,
        Flaw::FloorOverHole,
        Flaw::DeadLetterLost,
        Flaw::SumOffByOne,
        Flaw::UnsyncedInBlock,
        Flaw::ReleasedBeforeSync,
        Flaw::EarlierRunTaken,
        Flaw::LaneOvertaken,
        Flaw::DeletedEarly,
        Flaw::DropUncounted,
        Flaw::RunUnsynced,
    ] {
        is_caught(Sabotage::Hub(flaw));
    }
}

#[test]
fn the_oracle_sees_the_faults_of_what_journals_have_of_streams() {
    for flaw in [
        StreamFlaw::UncommittedRead,
        StreamFlaw::SyncedEarly,
        StreamFlaw::HandoverStoredAgain,
        StreamFlaw::PinsJournal,
        StreamFlaw::WillLost,
        StreamFlaw::OrdinalReused,
    ] {
        is_caught(Sabotage::Streams(flaw));
    }
}

#[test]
fn the_oracle_sees_an_event_whose_id_was_that_of_another() {
    is_caught(Sabotage::ReuseLife);
}

#[test]
fn the_oracle_sees_a_block_of_an_earlier_process() {
    is_caught(Sabotage::LateBlock);
}

#[test]
fn the_oracle_sees_a_file_of_two_nodes() {
    is_caught(Sabotage::SharedFileNumbers);
}

#[test]
fn the_oracle_sees_files_that_are_behind_in_a_takeover() {
    is_caught(Sabotage::CopyBehind);
}

/// The rarest shows in one of a thousand worlds.
const SABOTAGED_SEEDS: u64 = 2_000;
