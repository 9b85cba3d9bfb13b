//! Worlds with disks and crashes, and proof that the oracle sees what a broker must not lose.

use sim::{Options, Sabotage, run};

/// The first of some seeds at which the planted bug is seen, and the rule it broke.
fn caught(sabotage: Sabotage, seeds: u64) -> String {
    let options = Options { sabotage: Some(sabotage), ..Options::durable() };
    let failure = (0..seeds).find_map(|seed| run(seed, options).err());
    failure.unwrap_or_else(|| panic!("the oracle does not see {sabotage:?}")).rule
}

#[test]
fn the_oracle_sees_a_broker_that_forgets_everything() {
    let rule = caught(Sabotage::ForgetAll, 10);
    assert!(rule.contains("lost"), "{rule}");
}
