//! Worlds with several nodes, and proof that the oracle sees what a cluster must not do.
//!
//! `SIM_CLUSTER_SEEDS` says how many worlds are tried (default 300).

use sim::{ClusterToll, Options, Sabotage, run, run_many};

fn seeds() -> u64 {
    std::env::var("SIM_CLUSTER_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

#[test]
fn what_was_acknowledged_outlives_every_fault_of_a_cluster() {
    let (reports, failures) = run_many(0, seeds(), Options::cluster(), false);
    if let Some(failure) = failures.first() {
        panic!("{failure}");
    }
    let toll = reports.iter().fold(ClusterToll::default(), |sum, it| sum.plus(&it.cluster));
    // All of it has to happen, or the worlds prove less than they seem to.
    // Copies that do not fit to their stream are rarer than one in 300 worlds.
    for (name, count) in toll.counts().into_iter().filter(|(name, _)| *name != "copies_refused") {
        assert!(count > 0, "{name} never came about: {toll:?}");
    }
    assert!(reports.iter().any(|report| report.wills > 0));
}

#[test]
fn what_was_acknowledged_outlives_a_cluster_where_answers_come_again() {
    let options = Options { sabotage: Some(Sabotage::AnswerTwice), ..Options::cluster() };
    let (_, failures) = run_many(0, seeds(), options, false);
    if let Some(failure) = failures.first() {
        panic!("{failure}");
    }
}

#[test]
fn one_seed_is_one_world_of_a_cluster() {
    let once = run(7, Options::cluster()).expect("it keeps its promises");
    let again = run(7, Options::cluster()).expect("it keeps its promises");
    assert_eq!((once.received, once.cluster), (again.received, again.cluster));
    assert!(once.received > 0);
}

/// Is the planted bug seen in one of some worlds?
fn is_caught(sabotage: Sabotage) {
    let options = Options { sabotage: Some(sabotage), ..Options::cluster() };
    let caught = (0..SABOTAGED_SEEDS).any(|seed| run(seed, options).is_err());
    assert!(caught, "the oracle does not see {sabotage:?}");
}

#[test]
fn the_oracle_sees_a_stale_node_that_serves_without_its_lease() {
    is_caught(Sabotage::ServeWithoutLease);
}

#[test]
fn the_oracle_sees_acknowledgements_before_the_quorum() {
    is_caught(Sabotage::CommitBeforeQuorum);
}

#[test]
fn the_oracle_sees_a_standby_that_skips_records() {
    is_caught(Sabotage::SkipRecord);
}

#[test]
fn the_oracle_sees_a_takeover_that_misses_the_tail() {
    is_caught(Sabotage::MissTail);
}

#[test]
fn the_oracle_sees_appends_that_are_not_fenced() {
    is_caught(Sabotage::AppendUnfenced);
}

#[test]
fn the_oracle_sees_a_purge_that_goes_too_far() {
    is_caught(Sabotage::PurgeTooFar);
}

#[test]
fn the_oracle_sees_an_append_of_unknown_fate_that_is_written_twice() {
    is_caught(Sabotage::WriteTwice);
}

#[test]
fn the_oracle_sees_a_lease_that_is_kept_too_long_by_a_slow_clock() {
    is_caught(Sabotage::DriftAway);
}

#[test]
fn the_oracle_sees_a_takeover_without_a_claim() {
    is_caught(Sabotage::SkipClaim);
}

#[test]
fn the_oracle_sees_an_append_without_an_answer_that_is_taken_for_refused() {
    is_caught(Sabotage::RefuseUnknown);
}

#[test]
fn the_oracle_sees_data_of_another_cluster_that_is_taken_for_its_own() {
    is_caught(Sabotage::TakeForeign);
}

#[test]
fn the_oracle_sees_a_number_of_shards_that_is_not_the_cluster_s() {
    is_caught(Sabotage::OwnShards);
}

#[test]
fn the_oracle_sees_two_nodes_of_one_name_that_are_taken_for_one() {
    is_caught(Sabotage::SameInstance);
}

#[test]
fn the_oracle_sees_messages_of_a_later_version_that_are_skipped() {
    is_caught(Sabotage::SkipLater);
}

#[test]
fn the_oracle_sees_a_small_file_that_is_read_and_not_taken_over() {
    is_caught(Sabotage::ReadFilesOnly);
}

#[test]
fn the_oracle_sees_a_process_that_ends_because_the_engine_does_not_answer() {
    is_caught(Sabotage::ExitOnSilence);
}

#[test]
fn the_oracle_sees_a_skip_that_hits_a_neighbour() {
    is_caught(Sabotage::SkipNeighbour);
}

#[test]
fn the_oracle_sees_an_idle_shard_that_keeps_the_stream_long() {
    is_caught(Sabotage::KeepIdleSegments);
}

/// Within so many worlds.
const SABOTAGED_SEEDS: u64 = 500;
