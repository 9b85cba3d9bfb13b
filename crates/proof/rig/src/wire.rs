//! Short packets as bytes, for programs whose instructions are counted.

pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;

/// Of the first byte of a PUBLISH.
pub const QOS_BITS: u8 = 0b0110;

/// Hands the packets of a kind to `take`. All are so short that their remaining length takes one
/// byte. Returns how many there were.
pub fn read_packets(written: &[u8], kind: u8, mut take: impl FnMut(&[u8])) -> usize {
    let mut rest = written;
    let mut count = 0;
    while let [first, body_bytes, ..] = rest {
        let (packet, behind) = rest.split_at(2 + usize::from(*body_bytes));
        if first >> 4 == kind {
            take(packet);
            count += 1;
        }
        rest = behind;
    }
    count
}

/// Answers deliveries of topics that are so long. Returns how many there were.
pub fn acknowledge(written: &[u8], topic_bytes: usize, answers: &mut Vec<u8>) -> usize {
    let packet_id_at = 2 + 2 + topic_bytes;
    read_packets(written, PUBLISH, |packet| {
        if packet[0] & QOS_BITS != 0 {
            let [high, low] = [packet[packet_id_at], packet[packet_id_at + 1]];
            answers.extend_from_slice(&[PUBACK << 4, 2, high, low]);
        }
    })
}
