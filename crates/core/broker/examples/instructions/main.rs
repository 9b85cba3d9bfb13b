//! Does one kind of work so many times, for counting instructions from outside:
//! `instructions WORK COUNT`. `tests/instructions.py` runs it under callgrind.

#[path = "../../benches/fan/mod.rs"]
mod fan;
mod ways;

use std::hint::black_box;

use codec::{Sender, Version};
use fan::Fan;
use ways::Way;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [work, count] = arguments.as_slice() else {
        eprintln!(
            "usage: instructions WORK COUNT\n\
             WORK is decode, encode, fan-VERSION-QOS-SUBSCRIBERS, other-VERSION-QOS-BATCH, one of \
             kept, group and kept_group with -BATCH, or stream-FILTER-QOS-TOPICS-RULES, where \
             FILTER none is no stream"
        );
        std::process::exit(2);
    };
    let count: usize = count.parse().unwrap_or(1);
    match work.split('-').collect::<Vec<_>>().as_slice() {
        ["decode"] => decode(count),
        ["encode"] => encode(count),
        ["fan", version, qos, subscribers] => {
            let mut fan = Fan::new(version_of(version), number(subscribers), number(qos) as u8);
            (0..count).for_each(|_| fan.round());
        }
        ["other", version, qos, batch] => {
            let qos = number(qos) as u8;
            repeat(count, Way::to_other_shard(version_of(version), qos, number(batch)));
        }
        ["kept", batch] => repeat(count, Way::to_kept_session(number(batch))),
        ["group", batch] => repeat(count, Way::to_group(number(batch))),
        ["kept_group", batch] => repeat(count, Way::to_kept_group(number(batch))),
        ["stream", filter, qos, topics, rules] => {
            let (topics, rules) = (number(topics), number(rules) as u32);
            repeat(count, Way::past_stream(filter, number(qos) as u8, topics, rules));
        }
        _ => std::process::exit(2),
    }
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or(1)
}

fn version_of(text: &str) -> Version {
    if text == "5" { Version::V5 } else { Version::V311 }
}

fn repeat(count: usize, mut way: Way) {
    (0..count).for_each(|_| way.round());
}

fn publish() -> Vec<u8> {
    let mut bytes = vec![0x30, 2 + 21 + 64, 0, 21];
    bytes.extend_from_slice(b"sensors/1/temperature");
    bytes.extend_from_slice(&[7; 64]);
    bytes
}

fn decode(count: usize) {
    let bytes = publish();
    for _ in 0..count {
        let packet = codec::decode(black_box(&bytes), Version::V311, Sender::Client, 1 << 20);
        let _ = black_box(packet);
    }
}

fn encode(count: usize) {
    let bytes = publish();
    let Ok(Some((packet, _))) = codec::decode(&bytes, Version::V311, Sender::Client, 1 << 20)
    else {
        return;
    };
    let mut out = Vec::with_capacity(1024);
    for _ in 0..count {
        out.clear();
        black_box(&packet).encode(Version::V311, &mut out);
        black_box(&out);
    }
}
