//! Stories to begin with, and worlds in which anything happens.

use crate::mutate::Random;

use super::ops::{
    ACK, ACKNOWLEDGE, AUTH, CONNECT, CUT, DELIVER, DISCONNECT, KINDS, PUBLISH, READ, RULES, SETTLE,
    STORM, SUBSCRIBE, TIME,
};
use super::world::SLOTS;

/// Worlds made by chance, and the operations in each.
const CHANCE_WORLDS: u64 = 200;
const CHANCE_OPS: usize = 150;

/// One shard or three, with journals or without, with small limits and large ones.
const WORLDS: [[u8; 2]; 6] = [[0, 0], [2, 1], [6, 2], [2 | 8, 4], [2 | 16 | 32, 8], [6 | 8, 12]];

/// One operation of who sits there.
fn op(kind: u8, slot: u8, more: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind * SLOTS as u8 + slot];
    bytes.extend_from_slice(more);
    bytes
}

/// Anna with a kept session, Bruno with another, and one without a name.
fn three_clients() -> Vec<Vec<u8>> {
    vec![
        op(CONNECT, 0, &[0b0001_1000, 2, 0]),
        op(CONNECT, 1, &[0b0010_1001, 2, 0]),
        op(CONNECT, 2, &[0b0000_0110, 0, 0]),
        op(SUBSCRIBE, 0, &[2 | 1 << 4, 0, 0b10_0101]),
        op(SUBSCRIBE, 1, &[5 | 2 << 4, 1, 0b10_1101]),
        op(SUBSCRIBE, 2, &[6, 2, 1]),
        op(SETTLE, 0, &[]),
    ]
}

fn stories() -> Vec<Vec<Vec<u8>>> {
    let publishes = [
        op(PUBLISH, 0, &[1 << 4, 3 << 3, 1]),
        op(PUBLISH, 1, &[5 | 2 << 4 | 64, 4 << 3 | 1, 2]),
        op(PUBLISH, 0, &[9 | 2 << 4, 7 << 3 | 2, 3]),
        op(PUBLISH, 1, &[3 | 1 << 4, 6 << 3 | 3, 4]),
    ];
    let acks = [op(ACKNOWLEDGE, 0, &[]), op(ACKNOWLEDGE, 1, &[]), op(SETTLE, 0, &[])];
    let leave = [op(CUT, 0, &[]), op(DISCONNECT, 1, &[1]), op(DELIVER, 1, &[0])];
    let back = [op(CONNECT, 3, &[0b0001_1000, 2, 0]), op(SETTLE, 0, &[])];
    let theft = [op(CONNECT, 4, &[0b0110_1000, 2, 0]), op(SETTLE, 0, &[])];
    let storm = [op(STORM, 0, &[49, PUBLISH * SLOTS as u8, 1 << 4, 0, 9]), op(DELIVER, 0, &[0])];
    let proof = [
        op(CONNECT, 5, &[0b0000_1010, 64, 0]),
        op(DELIVER, 5, &[0]),
        op(AUTH, 5, &[0]),
        op(DELIVER, 5, &[0]),
        op(AUTH, 5, &[4]),
        op(AUTH, 5, &[0]),
        op(SETTLE, 0, &[]),
    ];
    let trickle: Vec<_> = (0..40).map(|_| op(DELIVER, 0, &[1])).collect();
    let pieces = [op(READ, 0, &[2]), op(READ, 1, &[1]), op(ACK, 0, &[4]), op(TIME, 0, &[4])];
    let rules = [op(RULES, 0, &[]), op(SETTLE, 0, &[])];
    let settle = [op(SETTLE, 0, &[])];
    vec![
        [&publishes[..], &settle, &acks, &acks].concat(),
        [&leave[..], &publishes[2..], &settle, &back, &acks].concat(),
        [&publishes[..], &theft, &publishes, &rules, &settle].concat(),
        [&storm[..], &pieces, &leave, &back, &acks].concat(),
        [&proof[..], &publishes, &settle].concat(),
        [&publishes[..], &trickle, &rules, &back, &pieces, &acks].concat(),
    ]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for world in WORLDS {
        for story in stories() {
            let ops = three_clients().into_iter().chain(story).flatten();
            seeds.push(world.into_iter().chain(ops).collect());
        }
    }
    seeds.extend((1..=CHANCE_WORLDS).map(by_chance));
    seeds
}

/// Any operation by anybody, but what brings things forward more often.
fn by_chance(number: u64) -> Vec<u8> {
    let mut random = Random::new(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut input = vec![random.below(64) as u8, random.below(256) as u8];
    if number.is_multiple_of(2) {
        input.extend(three_clients().into_iter().flatten());
    }
    for _ in 0..CHANCE_OPS {
        let slot = random.below(SLOTS) as u8;
        let kind = match random.below(10) {
            0..=1 => DELIVER,
            2 => SETTLE,
            3..=4 => PUBLISH,
            _ => random.below(usize::from(KINDS)) as u8,
        };
        input.push(kind * SLOTS as u8 + slot);
        input.extend((0..random.below(4)).map(|_| random.below(256) as u8));
    }
    input
}
