//! Worlds with several cells, and proof that the oracle sees what a cell must not do.
//!
//! `SIM_CELLS_SEEDS` says how many worlds are tried (default 200).

use sim::{CellsToll, GatewayFlaw, Options, RetainedFlaw, Sabotage, run, run_many};

fn seeds() -> u64 {
    std::env::var("SIM_CELLS_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(200)
}

#[test]
fn what_was_acknowledged_outlives_the_ends_of_cells() {
    let (reports, failures) = run_many(0, seeds(), Options::cells(), false);
    if let Some(failure) = failures.first() {
        panic!("{failure}");
    }
    let toll = reports.iter().fold(CellsToll::default(), |sum, it| sum.plus(&it.cells));
    // All of it has to happen, or the worlds prove less than they seem to.
    for (name, count) in toll.counts() {
        assert!(count > 0, "{name} never came about: {toll:?}");
    }
    assert!(reports.iter().any(|report| report.wills > 0));
}

#[test]
fn one_seed_is_one_world_of_cells() {
    let once = run(7, Options::cells()).expect("it keeps its promises");
    let again = run(7, Options::cells()).expect("it keeps its promises");
    assert_eq!((once.received, once.cells), (again.received, again.cells));
    assert!(once.received > 0);
}

/// Is the planted bug seen in one of some worlds, from this seed on? One that few worlds show is
/// looked for where it was last seen.
fn is_caught(sabotage: Sabotage, from: u64) {
    let options = Options { sabotage: Some(sabotage), ..Options::cells() };
    let caught = (from..from + SABOTAGED_SEEDS).any(|seed| run(seed, options).is_err());
    assert!(caught, "the oracle does not see {sabotage:?}");
}

const SABOTAGED_SEEDS: u64 = 3000;

/// A test for each planted bug, so that they run side by side.
macro_rules! sees {
    ($($name:ident: $sabotage:expr, $from:expr;)*) => {
        $(#[test] fn $name() { is_caught($sabotage, $from); })*
    };
}

use GatewayFlaw as Flaw;

sees! {
    messages_that_a_new_owner_is_not_asked_again: Sabotage::Gateway(Flaw::ForgetsMessages), 0;
    pages_that_a_new_owner_is_not_asked_again: Sabotage::Gateway(Flaw::ForgetsPages), 0;
    grants_that_a_new_owner_is_not_asked_again: Sabotage::Gateway(Flaw::ForgetsGrants), 0;
    subacks_that_wait_for_an_owner_that_is_gone: Sabotage::Gateway(Flaw::KeepsBarriers), 120;
    subacks_that_do_not_wait_for_other_cells: Sabotage::Gateway(Flaw::PassesEarly), 590;
    questions_that_are_overtaken_by_newer_ones: Sabotage::Gateway(Flaw::AsksAgainLate), 0;
    qos_2_that_is_asked_again_without_a_serial: Sabotage::Gateway(Flaw::RepeatsExact), 40;
    summaries_that_are_taken_for_empty: Sabotage::Gateway(Flaw::TakesUnknownForEmpty), 0;
    answers_that_are_of_an_earlier_owner: Sabotage::Gateway(Flaw::ReusesNumbers), 150;
    answers_before_the_shards_have_the_message: Sabotage::Gateway(Flaw::AnswersEarly), 0;
    retained_messages_that_are_asked_for_early: Sabotage::Retained(RetainedFlaw::AsksEarly), 26100;
    homes_that_answer_early: Sabotage::Retained(RetainedFlaw::AnswersEarly), 5200;
    frames_that_are_lost: Sabotage::LoseFrames, 0;
    frames_that_are_delivered_twice: Sabotage::DoubleFrames, 0;
    frames_of_an_earlier_owner: Sabotage::KeepOldFrames, 30;
    changes_of_a_summary_out_of_order: Sabotage::SpreadChanges, 1950;
    depths_that_are_forgotten: Sabotage::ForgetDepths, 0;
    serials_that_are_given_twice: Sabotage::SameSerials, 2820;
    repetitions_that_are_answered_before_the_first: Sabotage::AnswerRepetitions, 0;
    serials_that_are_noted_only_where_something_was_kept: Sabotage::NoteKeptOnly, 620;
}
