//! The key with a cluster's lease, whatever it holds: the first byte says what the node knows and
//! does before it reads the value.

use cluster::{Identity, Lease, LeaseAnswer, LeaseRequest, LeaseValue, Standing, Timing};

pub fn cluster_lease(input: &[u8]) {
    let Some((&choice, value)) = input.split_first() else { return };
    let read = serde_json::from_slice::<LeaseValue>(value).ok();
    if let Some(read) = &read {
        let again = serde_json::to_vec(read).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<LeaseValue>(&again).ok().as_ref(), Some(read));
    }
    let own = Identity { node: "a".into(), instance: 7, address: String::new() };
    let mut lease = Lease::new(own.clone(), Timing::default());
    lease.want(choice & 1 == 1, 0);
    let mut now_ms = 1;
    for revision in 1..=u64::from(choice >> 4) {
        now_ms += 400;
        let mut asked = Vec::new();
        lease.work(now_ms, &mut asked);
        for (id, request) in asked {
            let answer = match request {
                LeaseRequest::Read if choice & 2 == 2 => LeaseAnswer::Missing,
                LeaseRequest::Write { .. } if choice & 4 == 4 => LeaseAnswer::Written(revision),
                LeaseRequest::Write { .. } if choice & 8 == 8 => LeaseAnswer::Conflict,
                _ => LeaseAnswer::Found { revision, value: value.to_vec() },
            };
            lease.on_answer(id, answer, now_ms);
        }
    }
    check(&lease, &own, read.as_ref(), choice, now_ms);
}

fn check(lease: &Lease, own: &Identity, read: Option<&LeaseValue>, choice: u8, now_ms: u64) {
    let timing = Timing::default();
    let until_ms = lease.acting_until_ms();
    assert!(until_ms <= now_ms + timing.lease_ms - timing.guard_ms, "it acts on what it asked for");
    if lease.standing() == Standing::Lost || choice & 1 == 0 {
        assert_eq!(until_ms, 0, "it acts without a lease");
    }
    let may_be_own = choice & 4 == 4 || read.is_some_and(|it| it.holder.instance == own.instance);
    if !may_be_own {
        assert!(!matches!(lease.standing(), Standing::Held { .. }), "it holds what others have");
    }
}

/// Values of other nodes and of this one.
pub fn seeds() -> Vec<Vec<u8>> {
    let identity = |node: &str, instance| Identity {
        node: node.into(),
        instance,
        address: "10.0.0.1:1883".into(),
    };
    let other = LeaseValue {
        holder: identity("b", 9),
        epoch: 3,
        count: 12,
        is_released: false,
        successor: None,
    };
    let released = LeaseValue { is_released: true, successor: Some("a".into()), ..other.clone() };
    let own = LeaseValue { holder: identity("a", 7), epoch: 1, count: 1, ..other.clone() };
    let mut seeds = Vec::new();
    for choice in [0xf0_u8, 0xf1, 0xf3, 0xf5, 0xf7, 0xf9] {
        for value in [&other, &released, &own] {
            let mut seed = vec![choice];
            seed.extend(serde_json::to_vec(value).unwrap_or_default());
            seeds.push(seed);
        }
    }
    seeds
}
