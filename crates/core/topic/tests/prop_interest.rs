//! Interest never misses a shard, whatever came before and from whichever thread it is asked.

mod common;

use std::sync::mpsc;

use proptest::prelude::*;
use proptest::sample;
use topic::{Claim, Interest, InterestCounts, Interested, SHARDS_MAX};

const SHARDS: u16 = 3;

#[derive(Clone, Debug)]
enum Change {
    Add(u16, String, Claim),
    /// Takes back a claim that was made.
    Remove(sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    let claim = prop_oneof![Just(Claim::Want), Just(Claim::Promise)];
    let added = (0..SHARDS, common::filter(), claim)
        .prop_map(|(shard, filter, claim)| Change::Add(shard, filter, claim));
    prop_oneof![3 => added, 2 => any::<sample::Index>().prop_map(Change::Remove)]
}

type Claims = Vec<(u16, String, Claim)>;

fn expected(claims: &Claims, topic: &str) -> Interested {
    let mut expected = Interested::default();
    for (shard, _, claim) in claims.iter().filter(|(_, filter, _)| topic::matches(filter, topic)) {
        match claim {
            Claim::Want => expected.wants |= 1 << shard,
            Claim::Promise => expected.promises |= 1 << shard,
        }
    }
    expected
}

proptest! {
    #[test]
    fn no_shard_is_ever_missed(
        seed: u64,
        shard_count in SHARDS..=SHARDS_MAX,
        buckets_log2 in 8..12_u8,
        changes in prop::collection::vec(change(), 1..60),
        topics in prop::collection::vec(common::topic(), 1..10),
    ) {
        let interest = Interest::new(shard_count, buckets_log2, seed);
        let mut counts: Vec<_> =
            (0..SHARDS).map(|shard| InterestCounts::new(shard, &interest)).collect();
        let mut claims = Claims::new();
        for change in changes {
            match change {
                Change::Add(shard, filter, claim) => {
                    counts[usize::from(shard)].add(&interest, &filter, claim);
                    claims.push((shard, filter, claim));
                }
                Change::Remove(any) if !claims.is_empty() => {
                    let (shard, filter, claim) = claims.swap_remove(any.index(claims.len()));
                    counts[usize::from(shard)].remove(&interest, &filter, claim);
                }
                Change::Remove(_) => {}
            }
            for topic in &topics {
                let found = interest.shards(topic.as_bytes());
                let expected = expected(&claims, topic);
                prop_assert_eq!(found.wants & expected.wants, expected.wants, "{}", topic);
                prop_assert_eq!(found.promises & expected.promises, expected.promises, "{}", topic);
            }
        }
        for (shard, filter, claim) in claims {
            counts[usize::from(shard)].remove(&interest, &filter, claim);
        }
        for topic in &topics {
            prop_assert_eq!(interest.shards(topic.as_bytes()), Interested::default());
        }
    }
}

#[test]
fn a_publish_that_follows_the_suback_sees_the_shard() {
    let interest = Interest::new(4, 8, 7);
    std::thread::scope(|scope| {
        let (subacks, heard) = mpsc::channel::<(u16, String)>();
        for shard in 0..4 {
            let (interest, subacks) = (&interest, subacks.clone());
            scope.spawn(move || {
                let mut counts = InterestCounts::new(shard, interest);
                for number in 0..2000_u32 {
                    let filter = format!("s{shard}/{number}/#");
                    counts.add(interest, &filter, Claim::Want);
                    if number % 2 == 0 {
                        subacks.send((shard, format!("s{shard}/{number}/x"))).expect("heard");
                    } else {
                        // Clears bits of shared buckets while others are read.
                        counts.remove(interest, &filter, Claim::Want);
                    }
                }
            });
        }
        drop(subacks);
        let mut count = 0;
        for (shard, topic) in heard {
            assert_ne!(interest.shards(topic.as_bytes()).wants & (1 << shard), 0, "{topic}");
            count += 1;
        }
        assert_eq!(count, 4000);
    });
}
