//! WebSocket frames, cut anywhere, against a decoder that needs the whole stream at once.

use net::ws::frame::{Control, Decoder, Opcode, Role, encode};

/// The first byte says how the rest is cut and which end decodes it.
pub fn ws_frame(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let role = if choice & 1 == 0 { Role::Server } else { Role::Client };
    let whole = decode(bytes, role, bytes.len().max(1));
    let pieces = decode(bytes, role, usize::from(choice >> 1) + 1);
    assert_eq!(whole, pieces, "the cutting makes no difference");
    if let Ok(decoded) = whole {
        assert_eq!(decoded, reference(bytes, role), "the reference agrees");
        let mut again = Vec::new();
        let key = (role == Role::Server).then_some([choice, 1, 2, 3]);
        encode(&mut again, Opcode::Binary, &decoded.0, key);
        assert_eq!(decode(&again, role, 7).map(|(payload, _)| payload), Ok(decoded.0));
    }
}

type Outcome = (Vec<u8>, Vec<Control>);

/// Up to the first close frame, as an endpoint would.
fn decode(bytes: &[u8], role: Role, cut: usize) -> Result<Outcome, net::ws::frame::FrameError> {
    let mut decoder = Decoder::new(role, FRAME_BYTES_MAX);
    let (mut payload, mut controls) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(cut) {
        let mut piece = piece.to_vec();
        let mut at = 0;
        while at < piece.len() {
            let decoded = decoder.decode(&mut piece[at..])?;
            assert!(decoded.taken > 0 && decoded.payload <= decoded.taken);
            payload.extend_from_slice(&piece[at..at + decoded.payload]);
            at += decoded.taken;
            controls.extend(decoded.control);
            if matches!(controls.last(), Some(Control::Close(_))) {
                return Ok((payload, controls));
            }
        }
    }
    Ok((payload, controls))
}

/// For streams that are known to keep the rules.
fn reference(mut bytes: &[u8], role: Role) -> Outcome {
    let (mut payload, mut controls) = (Vec::new(), Vec::new());
    while let [first, second, rest @ ..] = bytes {
        let length_bytes = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask_bytes = if role == Role::Server { 4 } else { 0 };
        if rest.len() < length_bytes + mask_bytes {
            break;
        }
        let (length, rest) = rest.split_at(length_bytes);
        let (key, rest) = rest.split_at(mask_bytes);
        let length = match length {
            [] => usize::from(second & 0x7f),
            bytes => bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
        };
        let have = length.min(rest.len());
        let mut data = rest[..have].to_vec();
        if !key.is_empty() {
            data.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= key[at % 4]);
        }
        match first & 0x0f {
            0x0 | 0x2 => payload.extend(data),
            _ if have < length => {}
            0x8 => {
                let code = data.first_chunk().map(|code| u16::from_be_bytes(*code));
                controls.push(Control::Close(code));
                break;
            }
            0x9 => controls.push(Control::Ping(data)),
            _ => controls.push(Control::Pong),
        }
        bytes = &rest[have..];
    }
    (payload, controls)
}

/// Good streams of both directions.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for choice in [0u8, 1, 4, 5, 200, 201] {
        let key = (choice & 1 == 0).then_some([0x37, 0xfa, 0x21, 0x3d]);
        for len in [0, 1, 125, 126, 1000, 70_000] {
            let mut seed = vec![choice];
            encode(&mut seed, Opcode::Binary, &vec![0x5a; len], key);
            let fragment = seed.len();
            encode(&mut seed, Opcode::Binary, b"first", key);
            seed[fragment] &= 0x7f;
            encode(&mut seed, Opcode::Ping, b"between", key);
            encode(&mut seed, Opcode::Continuation, b"last", key);
            encode(&mut seed, Opcode::Pong, b"", key);
            encode(&mut seed, Opcode::Close, b"\x03\xe8bye", key);
            seeds.push(seed);
        }
    }
    seeds
}

const FRAME_BYTES_MAX: u32 = 100_000;
