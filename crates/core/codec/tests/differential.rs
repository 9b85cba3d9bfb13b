//! Two unrelated decoders as referees: `rmqtt-codec` and `mqtt-proto`. What we accept they accept,
//! what we refuse they refuse, save for a list of differences, each with its reason.

mod common;

use bytes::BytesMut;
use codec::{Packet, Sender, Version, decode};
use common::{ingredients, mutate, mutations};
use proptest::prelude::*;
use tokio_util::codec::Decoder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Referee {
    Rmqtt,
    MqttProto,
}

#[derive(Debug)]
enum Verdict {
    Accepted,
    Incomplete,
    Refused(String),
}

impl Referee {
    fn judge(self, bytes: &[u8], version: Version) -> Verdict {
        let outcome = match (self, version >= Version::V5) {
            (Self::Rmqtt, true) => rmqtt_codec::v5::Codec::default()
                .decode(&mut BytesMut::from(bytes))
                .map(|found| found.is_some())
                .map_err(|error| format!("{error:?}")),
            (Self::Rmqtt, false) => rmqtt_codec::v3::Codec::default()
                .decode(&mut BytesMut::from(bytes))
                .map(|found| found.is_some())
                .map_err(|error| format!("{error:?}")),
            (Self::MqttProto, true) => mqtt_proto::v5::Packet::decode(bytes)
                .map(|found| found.is_some())
                .map_err(|error| format!("{error:?}")),
            (Self::MqttProto, false) => mqtt_proto::v3::Packet::decode(bytes)
                .map(|found| found.is_some())
                .map_err(|error| format!("{error:?}")),
        };
        match outcome {
            Ok(true) => Verdict::Accepted,
            Ok(false) => Verdict::Incomplete,
            Err(error) => Verdict::Refused(error),
        }
    }

    /// Rules of ours, by their detail, that the referee does not enforce.
    fn is_laxer_about(self, detail: &str) -> bool {
        const BOTH: [&str; 17] = [
            // They are not told who sends.
            "this packet is only ever sent by the other side",
            "a client's PUBLISH carries a subscription identifier",
            "DISCONNECT cannot carry this reason code",
            "AUTH cannot carry this reason code",
            // They do not look at the end of every packet, nor for an empty list of codes.
            "a ping packet is not empty",
            "bytes are left over at the end of the packet",
            "SUBACK without a code",
            "UNSUBACK without a reason code",
            // Refusing control characters in names is a MAY; U+0000 is a MUST that they miss in
            // some places.
            "a string contains a control character",
            "a string contains a noncharacter of Unicode",
            "a string contains U+0000",
            "the client identifier is not well-formed UTF-8 or contains a control character",
            "the username is not well-formed UTF-8 or contains a control character",
            // MUSTs that they miss, each in some packets or versions only.
            "AUTH lacks the authentication method",
            "CONNACK refuses the connection but says that a session is present",
            "a variable byte integer is not in its shortest form",
            "DUP is set on a QoS 0 PUBLISH",
        ];
        const BOTH_IN_CONNECT: [&str; 2] =
            ["will retain is set without a will", "a password is given without a username"];
        const RMQTT: [&str; 9] = [
            "the topic name of a PUBLISH contains a wildcard",
            "the will topic contains a wildcard",
            "the response topic contains a wildcard",
            "a will QoS is given without a will",
            "reserved bits of the subscription options are set",
            "No Local is set on a shared subscription",
            "CONNACK cannot carry this code",
            "a topic name or filter is empty",
            "the topic name is empty and the topic alias is missing",
        ];
        const MQTT_PROTO: [&str; 5] = [
            "a topic name or filter is empty",
            "the topic name is empty and the topic alias is missing",
            // It reads a stream, and so beyond the end of a packet.
            "a field reaches beyond the end of its packet",
            "the username is announced but missing",
            "the password is announced but missing",
        ];
        BOTH.contains(&detail)
            || BOTH_IN_CONNECT.contains(&detail)
            || match self {
                Self::Rmqtt => RMQTT.contains(&detail),
                Self::MqttProto => MQTT_PROTO.contains(&detail),
            }
    }

    /// Whether the referee refuses what the standards allow.
    fn is_stricter_about(self, packet: &Packet<'_>, version: Version, error: &str) -> bool {
        // MQTT 3.1 calls the reserved flags unused; both know it under the rules of 3.1.1 only.
        let flags_of_31 = version == Version::V31
            && ["InvalidHeader", "UnsupportedPacketType", "InvalidConnackFlags", "ConnAckReserved"]
                .iter()
                .any(|name| error.starts_with(name));
        let credentials_of_31 = version == Version::V31 && matches!(packet, Packet::Connect(_));
        flags_of_31
            || credentials_of_31
            || match packet {
                // The version byte of bridges is a custom of mosquitto, and whether an empty client
                // identifier is acceptable is a question for the session.
                Packet::Connect(connect) => {
                    connect.bridge
                        || connect.client_id.is_empty()
                        // mqtt-proto also checks the payload against its format (a MAY).
                        || error.contains("InvalidPayloadFormat")
                }
                Packet::Publish(_) => {
                    error.contains("InvalidPayloadFormat")
                        // MQTT-3.3.4-4: a server sends several of them.
                        || error.contains("DuplicatedProperty(SubscriptionIdentifier)")
                }
                // Section 2.4 gives bad authentication method to DISCONNECT too.
                Packet::Disconnect(_) => error.contains("140"),
                // The syntax of filters is checked elsewhere.
                Packet::Subscribe(_) | Packet::Unsubscribe(_) => error.contains("TopicFilter"),
                _ => false,
            }
    }
}

proptest! {
    // Seeded: a difference is found by whoever changes the decoder, not by whoever runs it next.
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(311),
        ..ProptestConfig::default()
    })]

    #[test]
    fn referees_agree_about_valid_packets(ingredients in ingredients()) {
        let sender = ingredients.with_packet(|_, sender| sender);
        compare(&ingredients.encoded(), ingredients.version, sender)?;
    }

    #[test]
    fn referees_agree_about_changed_packets(
        ingredients in ingredients(),
        changes in mutations(),
        mend in any::<bool>(),
    ) {
        let sender = ingredients.with_packet(|_, sender| sender);
        let mut bytes = ingredients.encoded();
        mutate(&mut bytes, &changes, mend);
        compare(&bytes, ingredients.version, sender)?;
    }
}

fn compare(bytes: &[u8], version: Version, sender: Sender) -> Result<(), TestCaseError> {
    let ours = decode(bytes, version, sender, u32::MAX);
    for referee in [Referee::Rmqtt, Referee::MqttProto] {
        let theirs = referee.judge(bytes, version);
        let agreed = match (&ours, &theirs) {
            (Ok(Some(_)), Verdict::Accepted)
            | (Ok(None), Verdict::Incomplete)
            | (Err(_), Verdict::Refused(_)) => true,
            (Ok(Some((packet, _))), Verdict::Refused(error)) => {
                referee.is_stricter_about(packet, version, error)
            }
            (Err(violation), Verdict::Accepted) => referee.is_laxer_about(violation.detail),
            // Fixed headers are checked here before the length is there, and mqtt-proto finds
            // faults, and ends, while it reads on in a stream.
            (Err(_), Verdict::Incomplete) => true,
            (Ok(None), Verdict::Refused(_)) => referee == Referee::MqttProto || bytes.len() < 2,
            // It does not hold the fields of some packets against the length at all.
            (Ok(None), Verdict::Accepted) => referee == Referee::MqttProto,
            // Credentials that MQTT 3.1 lets a client announce and leave out.
            (Ok(Some((Packet::Connect(_), _))), Verdict::Incomplete) => version == Version::V31,
            (Ok(Some(_)), Verdict::Incomplete) => false,
        };
        prop_assert!(agreed, "{referee:?}: {theirs:?}, ours: {ours:?}, bytes {bytes:02X?}");
    }
    Ok(())
}
