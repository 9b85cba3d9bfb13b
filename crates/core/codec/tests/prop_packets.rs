//! What holds for every packet in every version: it survives a round trip, its prefixes mislead
//! nobody, and no change to its bytes makes the decoder panic.

mod common;

use codec::{Sender, Version, Violation, decode, packet_len};
use common::{ingredients, mutate, mutations};
use proptest::prelude::*;

const ANY_SIZE: u32 = u32::MAX;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_packet_decodes_to_what_was_encoded(ingredients in ingredients()) {
        let version = ingredients.version;
        ingredients.with_packet(|packet, sender| {
            let mut bytes = b"before".to_vec();
            packet.encode(version, &mut bytes);
            let bytes = &bytes[6..];
            let decoded = decode(bytes, version, sender, ANY_SIZE);
            assert_eq!(decoded, Ok(Some((packet, bytes.len()))));
            assert_eq!(packet_len(bytes), Ok(Some(bytes.len())));
            if let codec::Packet::Publish(publish) = packet {
                assert_eq!(publish.encoded_len(version), bytes.len());
                if let Some(at) = publish.packet_id_at(version) {
                    assert_eq!(bytes[at..at + 2], publish.packet_id.to_be_bytes());
                }
            }
        });
    }

    #[test]
    fn the_bytes_behind_a_packet_are_left_alone(
        ingredients in ingredients(),
        behind in prop::collection::vec(any::<u8>(), 0..10),
    ) {
        let version = ingredients.version;
        ingredients.with_packet(|packet, sender| {
            let mut bytes = Vec::new();
            packet.encode(version, &mut bytes);
            let len = bytes.len();
            bytes.extend_from_slice(&behind);
            assert_eq!(decode(&bytes, version, sender, ANY_SIZE), Ok(Some((packet, len))));
        });
    }

    #[test]
    fn every_prefix_of_a_packet_wants_more(ingredients in ingredients()) {
        let version = ingredients.version;
        let sender = ingredients.with_packet(|_, sender| sender);
        let bytes = ingredients.encoded();
        for len in 0..bytes.len() {
            prop_assert_eq!(decode(&bytes[..len], version, sender, ANY_SIZE), Ok(None));
        }
    }

    #[test]
    fn a_limit_refuses_larger_packets_only(ingredients in ingredients(), below in 1..50_u32) {
        let version = ingredients.version;
        let sender = ingredients.with_packet(|_, sender| sender);
        let bytes = ingredients.encoded();
        let len = bytes.len() as u32;
        prop_assert!(decode(&bytes, version, sender, len).is_ok());
        let refused = decode(&bytes, version, sender, len.saturating_sub(below));
        prop_assert_eq!(refused.map_err(|violation| violation.reason.0), Err(0x95));
    }

    #[test]
    fn changed_bytes_never_mislead(
        ingredients in ingredients(),
        changes in mutations(),
        mend in any::<bool>(),
    ) {
        let mut bytes = ingredients.encoded();
        mutate(&mut bytes, &changes, mend);
        for version in [Version::V31, Version::V311, Version::V5] {
            for sender in [Sender::Client, Sender::Server] {
                check_any(&bytes, version, sender)?;
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_mislead(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for version in [Version::V31, Version::V311, Version::V5] {
            for sender in [Sender::Client, Sender::Server] {
                check_any(&bytes, version, sender)?;
            }
        }
    }
}

/// Whatever the bytes are: what is accepted encodes to something that decodes to the same, and a
/// prefix gives either nothing or what the whole gives.
fn check_any(bytes: &[u8], version: Version, sender: Sender) -> Result<(), TestCaseError> {
    let whole = decode(bytes, version, sender, ANY_SIZE);
    for len in 0..bytes.len() {
        let part = decode(&bytes[..len], version, sender, ANY_SIZE);
        prop_assert!(part == Ok(None) || part == whole, "{part:?} instead of {whole:?}");
    }
    match whole {
        Ok(None) => {}
        Ok(Some((packet, taken))) => {
            prop_assert!(taken <= bytes.len());
            let mut again = Vec::new();
            packet.encode(version, &mut again);
            let back = decode(&again, version, sender, ANY_SIZE);
            prop_assert_eq!(back, Ok(Some((packet, again.len()))));
        }
        Err(Violation { reason, clause, detail }) => {
            prop_assert!(reason.is_error());
            prop_assert!(clause.starts_with("MQTT-"));
            prop_assert!(!detail.is_empty());
        }
    }
    Ok(())
}
