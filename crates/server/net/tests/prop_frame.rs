//! The frame decoder against frames built otherwise, cut anywhere.

use net::ws::frame::{Control, Decoder, Opcode, Role, encode};
use proptest::collection::vec;
use proptest::prelude::*;

/// What a peer sends: a message in fragments, with control frames between them.
#[derive(Clone, Debug)]
enum Part {
    Message(Vec<Vec<u8>>),
    Ping(Vec<u8>),
    Pong,
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        vec(vec(any::<u8>(), 0..300), 1..4).prop_map(Part::Message),
        (0usize..70_000).prop_map(|len| Part::Message(vec![vec![0x5a; len]])),
        vec(any::<u8>(), 0..=125).prop_map(Part::Ping),
        Just(Part::Pong),
    ]
}

fn wire(parts: &[Part], key: Option<[u8; 4]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            Part::Message(fragments) => {
                for (index, fragment) in fragments.iter().enumerate() {
                    let at = bytes.len();
                    let opcode = if index == 0 { Opcode::Binary } else { Opcode::Continuation };
                    encode(&mut bytes, opcode, fragment, key);
                    if index + 1 < fragments.len() {
                        bytes[at] &= 0x7f;
                    }
                }
            }
            Part::Ping(payload) => encode(&mut bytes, Opcode::Ping, payload, key),
            Part::Pong => encode(&mut bytes, Opcode::Pong, b"", key),
        }
    }
    bytes
}

/// Decodes `bytes` in pieces of the lengths given, over and over.
fn decode(decoder: &mut Decoder, bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<Control>) {
    let (mut payload, mut controls) = (Vec::new(), Vec::new());
    let mut rest = bytes;
    for cut in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, behind) = rest.split_at((*cut).min(rest.len()));
        rest = behind;
        let mut piece = piece.to_vec();
        let mut at = 0;
        while at < piece.len() {
            let decoded = decoder.decode(&mut piece[at..]).expect("good frames");
            payload.extend_from_slice(&piece[at..at + decoded.payload]);
            at += decoded.taken;
            controls.extend(decoded.control);
        }
    }
    (payload, controls)
}

proptest! {
    #[test]
    fn frames_survive_any_cutting(
        parts in vec(part(), 0..8),
        cuts in vec(1usize..2000, 1..20),
        key in proptest::option::of(any::<[u8; 4]>()),
    ) {
        let role = if key.is_some() { Role::Server } else { Role::Client };
        let mut decoder = Decoder::new(role, 1 << 20);
        let (payload, controls) = decode(&mut decoder, &wire(&parts, key), &cuts);
        let mut payload_expected = Vec::new();
        let mut controls_expected = Vec::new();
        for part in parts {
            match part {
                Part::Message(fragments) => payload_expected.extend(fragments.concat()),
                Part::Ping(data) => controls_expected.push(Control::Ping(data)),
                Part::Pong => controls_expected.push(Control::Pong),
            }
        }
        prop_assert_eq!(payload, payload_expected);
        prop_assert_eq!(controls, controls_expected);
    }

    /// Whatever comes: no panic, no byte made up, and the same verdict however it is cut.
    #[test]
    fn any_bytes_have_one_verdict(bytes in vec(any::<u8>(), 0..200), cut in 1usize..20) {
        let verdict = |cut: usize| {
            let mut decoder = Decoder::new(Role::Server, 100);
            let mut payload = Vec::new();
            for piece in bytes.chunks(cut) {
                let mut piece = piece.to_vec();
                let mut at = 0;
                while at < piece.len() {
                    match decoder.decode(&mut piece[at..]) {
                        Ok(decoded) => {
                            payload.extend_from_slice(&piece[at..at + decoded.payload]);
                            at += decoded.taken;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            Ok(payload)
        };
        prop_assert_eq!(verdict(cut), verdict(bytes.len().max(1)));
    }
}
