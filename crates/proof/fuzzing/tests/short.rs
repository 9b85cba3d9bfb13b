//! A short run of every target on a stable compiler: the same inputs each time, some thousands of
//! changes to the seeds. `FUZZ_ITERATIONS` says how many per target.
//!
//! `cargo test -p quelea-fuzzing`

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fuzzing::mutate::{Random, mutate};
use fuzzing::{TARGETS, Target};

const ITERATIONS: usize = 50_000;

#[test]
fn every_target_survives_its_changed_seeds() {
    std::thread::scope(|scope| {
        for target in &TARGETS {
            scope.spawn(|| survives_its_changed_seeds(target));
        }
    });
}

#[test]
fn every_target_has_a_fuzzer_of_its_name() {
    let manifest = include_str!("../../../../fuzz/Cargo.toml");
    for target in &TARGETS {
        assert!(manifest.contains(&format!("fuzz_targets/{}.rs", target.name)), "{}", target.name);
    }
    assert_eq!(manifest.matches("path = \"fuzz_targets/").count(), TARGETS.len());
}

fn survives_its_changed_seeds(target: &Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    seeds.iter().for_each(|seed| try_one(target, seed));
    let mut random = Random::new(0x9E37_79B9_7F4A_7C15);
    for _ in 0..iterations() / target.cost {
        let mut input = seeds[random.below(seeds.len())].clone();
        mutate(&mut input, &mut random);
        try_one(target, &input);
    }
}

fn iterations() -> usize {
    std::env::var("FUZZ_ITERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(ITERATIONS)
}

fn try_one(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        eprintln!("{} fails on {input:02X?}", target.name);
        resume_unwind(panic);
    }
}
