//! Does one kind of work so many times, for counting instructions from outside:
//! `instructions WORK COUNT`. `tests/instructions.py` runs it under callgrind.

#[path = "../benches/fan/mod.rs"]
mod fan;

use std::hint::black_box;

use codec::{Sender, Version};
use fan::Fan;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [work, count] = arguments.as_slice() else {
        eprintln!("usage: instructions decode|encode|fan-VERSION-QOS-SUBSCRIBERS COUNT");
        std::process::exit(2);
    };
    let count: usize = count.parse().unwrap_or(1);
    match work.split('-').collect::<Vec<_>>().as_slice() {
        ["decode"] => decode(count),
        ["encode"] => encode(count),
        ["fan", version, qos, subscribers] => {
            let version = if *version == "5" { Version::V5 } else { Version::V311 };
            let qos = qos.parse().unwrap_or(0);
            let mut fan = Fan::new(version, subscribers.parse().unwrap_or(1), qos);
            (0..count).for_each(|_| fan.round());
        }
        _ => std::process::exit(2),
    }
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
