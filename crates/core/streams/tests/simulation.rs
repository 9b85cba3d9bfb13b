//! Whole histories of streams and consumers: crashes, faults, targets with their own mind. Each is
//! checked by an oracle, and each planted fault is found by it.

mod model;

use std::panic::{AssertUnwindSafe, catch_unwind};

use model::{Weather, World};
use streams::Flaw;

/// Histories of each kind. `QUELEA_SEEDS` names another number.
fn seeds() -> u64 {
    let seeds = std::env::var("QUELEA_SEEDS").ok().and_then(|text| text.parse().ok());
    seeds.unwrap_or(400)
}

fn live(seed: u64, weather: Weather) -> Result<(), String> {
    let steps = 100 + (seed % 5) as usize * 60;
    World::new(seed, weather).live(steps).map_err(|error| format!("seed {seed}: {error}"))
}

/// `QUELEA_SEED` names one history, and what happens in it is printed.
fn check(weather: Weather) {
    let seed = std::env::var("QUELEA_SEED").ok().and_then(|text| text.parse().ok());
    let seeds = seed.map_or(0..seeds(), |seed: u64| seed..seed + 1);
    for seed in seeds {
        if let Err(error) = live(seed, weather) {
            panic!("{error}");
        }
    }
}

#[test]
fn each_record_has_one_outcome_whatever_happens() {
    check(Weather::default());
}

#[test]
fn what_limits_delete_is_counted() {
    check(Weather { drops: true, ..Weather::default() });
}

#[test]
fn what_is_damaged_is_counted() {
    check(Weather { damages: true, ..Weather::default() });
}

/// Some history shows the fault.
fn is_found(flaw: Flaw) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let is_caught = |seed: u64| {
        let weather = Weather { flaw: Some(flaw), drops: seed % 2 == 1, damages: false };
        let lived = catch_unwind(AssertUnwindSafe(|| live(seed, weather)));
        !matches!(lived, Ok(Ok(())))
    };
    let found = (0..2_000).find(|seed| is_caught(*seed));
    std::panic::set_hook(hook);
    println!("{flaw:?}: history {found:?}");
    assert!(found.is_some(), "{flaw:?} is not found");
}

#[test]
fn planted_faults_are_found() {
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
    ] {
        is_found(flaw);
    }
}
