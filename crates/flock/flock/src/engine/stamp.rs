//! The sixteen bytes at the front of a payload: when the message was due, whose it is, its number,
//! and a checksum over all of the message.
//!
//! | bits | content |
//! |---|---|
//! | 0-15 | tag of the run, so that messages of an earlier run are told apart |
//! | 16-31 | checksum over the stamp's other bits, the topic, and the payload behind the stamp |
//! | 32-71 | due time, wall clock of who led the run, units of 256 ns modulo 2^40 (78 hours) |
//! | 72 | form of the number: 0 for 23 bits of stream and 32 of sequence, 1 for 28 and 27 |
//! | 73-127 | stream (publisher and topic), sequence in the stream, from 0 |
//!
//! All big endian. A due time is rounded down, so that a latency is never shorter than it was. The
//! checksum tells what was damaged on the way: one damaged message in 65,536 gets past it. The tag
//! is part of it, so that a message of another run is known for what it is.

use crc_fast::crc32_iscsi;

use super::clock::Clock;
use flock_measure::ledger::StreamId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) due_ns: u64,
    pub(super) stream: StreamId,
    pub(super) sequence: u32,
}

/// Writes and reads the stamps of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamps {
    tag: u16,
    /// The wall clock when the run began.
    wall_ns: u64,
    form: Form,
    /// A run without streams has no messages of its own but wills, whatever their tag.
    publishes: bool,
}

/// How stream and sequence share their 55 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Few streams, which may be long.
    Long,
    /// Many streams, each of up to 134 million messages.
    Many,
}

/// What was found at the front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Ours {
        stamp: Stamp,
        /// Due after it arrived, by the clocks.
        is_early: bool,
    },
    /// Whole, and of another run, which counted `age_ns` since it was due by the wall clock.
    Foreign { age_ns: u64, is_early: bool },
    /// As sent but for its topic, which is another than that of its stream.
    WrongTopic,
    /// Not what was sent, or without a stamp.
    Damaged,
}

impl Stamps {
    pub(super) fn new(tag: u16, clock: Clock, streams: u64) -> Self {
        let form = if streams < 1 << Form::Long.stream_bits() { Form::Long } else { Form::Many };
        Self { tag, wall_ns: clock.wall_ns(), form, publishes: streams > 0 }
    }

    /// Messages that one stream may have.
    pub(super) fn sequences_max(&self) -> u32 {
        (u64::MAX >> (64 - self.form.sequence_bits())) as u32
    }

    /// The wall clock at this time of the run.
    pub(super) fn wall_ns_at(&self, at_ns: u64) -> u64 {
        self.wall_ns.wrapping_add(at_ns)
    }

    /// The stamp of a message on a topic with this checksum, with a payload whose rest has that
    /// one.
    #[inline]
    pub(super) fn write(&self, stamp: Stamp, topic: Sum, rest: Sum) -> [u8; STAMP_BYTES] {
        let time = (self.wall_ns.wrapping_add(stamp.due_ns) >> UNIT_BITS) & TIME_MASK;
        let number = self.form.join(stamp.stream, stamp.sequence);
        let word =
            u128::from(self.tag) << TAG_AT | u128::from(time) << TIME_AT | u128::from(number);
        (word | u128::from(seal(word, topic, rest)) << CHECK_AT).to_be_bytes()
    }

    /// The stream that a payload says it is of, whether that is true or not.
    pub(super) fn stream_of(payload: &[u8]) -> Option<StreamId> {
        let front = payload.first_chunk::<STAMP_BYTES>()?;
        Some(Form::split(u128::from_be_bytes(*front) as u64).0)
    }

    /// Reads a message that arrived at `now_ns`. `topic_of` is asked only where something is
    /// wrong.
    #[inline]
    pub(super) fn read(
        &self,
        topic: &str,
        payload: &[u8],
        now_ns: u64,
        topic_of: impl FnOnce(StreamId) -> Option<String>,
    ) -> Reading {
        let Some((front, rest)) = payload.split_first_chunk::<STAMP_BYTES>() else {
            return Reading::Damaged;
        };
        let whole = u128::from_be_bytes(*front);
        let word = whole & !(0xFFFF << CHECK_AT);
        let check = (whole >> CHECK_AT) as u16;
        let rest = Sum::of(rest);
        if seal(word, Sum::of(topic.as_bytes()), rest) != check {
            let (stream, _) = Form::split(word as u64);
            let sent_on = topic_of(stream).map(|topic| Sum::of(topic.as_bytes()));
            let is_topic = sent_on.is_some_and(|sent_on| seal(word, sent_on, rest) == check);
            return if is_topic { Reading::WrongTopic } else { Reading::Damaged };
        }
        let due_units = (word >> TIME_AT) as u64 & TIME_MASK;
        let wall_ns = self.wall_ns.wrapping_add(now_ns);
        // The distance has a sign: clocks of two machines may disagree.
        let ahead = (wall_ns >> UNIT_BITS).wrapping_sub(due_units) & TIME_MASK;
        let is_early = ahead > TIME_MASK / 2;
        let age_ns = (ahead << UNIT_BITS) + (wall_ns & UNIT_MASK);
        let (stream, sequence) = Form::split(word as u64);
        let is_ours = self.publishes || stream == WILL_STREAM;
        if (word >> TAG_AT) as u16 != self.tag || !is_ours {
            return Reading::Foreign { age_ns: if is_early { 0 } else { age_ns }, is_early };
        }
        let due_ns = if is_early { now_ns } else { now_ns.saturating_sub(age_ns) };
        Reading::Ours { stamp: Stamp { due_ns, stream, sequence }, is_early }
    }
}

impl Form {
    fn stream_bits(self) -> u32 {
        match self {
            Self::Long => 23,
            Self::Many => 28,
        }
    }

    fn sequence_bits(self) -> u32 {
        NUMBER_BITS - self.stream_bits()
    }

    fn join(self, stream: StreamId, sequence: u32) -> u64 {
        let stream = u64::from(stream) & ((1 << self.stream_bits()) - 1);
        u64::from(self == Self::Many) << NUMBER_BITS
            | stream << self.sequence_bits()
            | u64::from(sequence)
    }

    fn split(word: u64) -> (StreamId, u32) {
        let form = if word >> NUMBER_BITS & 1 == 1 { Self::Many } else { Self::Long };
        let sequence = word & ((1 << form.sequence_bits()) - 1);
        let stream = (word & ((1 << NUMBER_BITS) - 1)) >> form.sequence_bits();
        let wills = stream == (1 << form.stream_bits()) - 1;
        (if wills { WILL_STREAM } else { stream as StreamId }, sequence as u32)
    }
}

/// The checksum of a topic or of a part of a payload, and how long that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum(u64);

impl Sum {
    #[inline]
    pub(super) fn of(bytes: &[u8]) -> Self {
        let sum = if bytes.is_empty() { 0 } else { crc32_iscsi(bytes) };
        Self((bytes.len() as u64) << 32 | u64::from(sum))
    }
}

/// Sixteen bits of everything. What is damaged anywhere changes each of them half of the time.
#[inline]
fn seal(word: u128, topic: Sum, rest: Sum) -> u16 {
    let front = mix((word >> 64) as u64 ^ SALT[0], word as u64 ^ SALT[1]);
    let back = mix(topic.0 ^ SALT[2], rest.0 ^ SALT[3]);
    (mix(front ^ SALT[0], back ^ SALT[2]) >> 48) as u16
}

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

pub(super) const STAMP_BYTES: usize = flock_model::STAMP_BYTES as usize;
/// The stream of every will: they are counted, not judged.
pub(super) const WILL_STREAM: StreamId = StreamId::MAX;
/// Streams that a run may have; the last number marks wills.
pub(super) const STREAMS_MAX: u64 = (1 << 28) - 1;
const TAG_AT: u32 = 112;
const CHECK_AT: u32 = 96;
const TIME_AT: u32 = 56;
const NUMBER_BITS: u32 = 55;
const TIME_MASK: u64 = (1 << 40) - 1;
const UNIT_BITS: u32 = 8;
const UNIT_MASK: u64 = (1 << UNIT_BITS) - 1;
/// Any odd numbers do.
const SALT: [u64; 4] =
    [0x2D35_8DCC_AA6C_78A5, 0x8BB8_4B93_962E_ACC9, 0x4B33_A62E_D433_D4A3, 0x4D5A_2DA5_1DE1_AA47];

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: &str = "pairs/7";

    fn stamps(streams: u64) -> Stamps {
        Stamps::new(0xBEEF, Clock::start(), streams)
    }

    fn message(stamps: &Stamps, stamp: Stamp, rest: &[u8]) -> Vec<u8> {
        let front = stamps.write(stamp, Sum::of(TOPIC.as_bytes()), Sum::of(rest));
        [&front, rest].concat()
    }

    fn read(stamps: &Stamps, topic: &str, payload: &[u8], now_ns: u64) -> Reading {
        stamps.read(topic, payload, now_ns, |_| Some(TOPIC.to_owned()))
    }

    #[test]
    fn a_stamp_reads_back_and_is_never_later() {
        for (streams, stream) in [(1, 0), ((1 << 23) - 1, (1 << 23) - 2), (STREAMS_MAX, 1 << 27)] {
            let stamps = stamps(streams);
            let sent = Stamp { due_ns: 123_456_789, stream, sequence: stamps.sequences_max() };
            let payload = message(&stamps, sent, b"rest");
            match read(&stamps, TOPIC, &payload, 223_456_789) {
                Reading::Ours { stamp, is_early: false } => {
                    assert_eq!((stamp.stream, stamp.sequence), (sent.stream, sent.sequence));
                    assert!((0..256).contains(&(sent.due_ns - stamp.due_ns)), "{stamp:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_will_is_known_in_both_forms() {
        for streams in [1, STREAMS_MAX] {
            let stamps = stamps(streams);
            let stamp = Stamp { due_ns: 5, stream: WILL_STREAM, sequence: 9 };
            let Reading::Ours { stamp, .. } =
                read(&stamps, TOPIC, &message(&stamps, stamp, b""), 900)
            else {
                panic!("not read")
            };
            assert_eq!((stamp.stream, stamp.sequence), (WILL_STREAM, 9));
        }
    }

    #[test]
    fn a_due_time_ahead_of_the_clock_is_told() {
        let stamps = stamps(1);
        let payload = message(&stamps, Stamp { due_ns: 50_000, stream: 0, sequence: 0 }, b"");
        let read = read(&stamps, TOPIC, &payload, 10_000);
        assert!(matches!(read, Reading::Ours { is_early: true, .. }), "{read:?}");
    }

    #[test]
    fn every_flipped_bit_is_seen_but_one_in_many() {
        let stamps = stamps(1);
        let (mut missed, mut foreign, mut tried) = (0, 0, 0);
        for sequence in 0..200 {
            let payload = message(&stamps, Stamp { due_ns: 7, stream: 3, sequence }, &[b'x'; 48]);
            for bit in 0..payload.len() * 8 {
                let mut damaged = payload.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                tried += 1;
                match read(&stamps, TOPIC, &damaged, 1_000) {
                    Reading::Damaged => {}
                    Reading::Foreign { .. } => foreign += 1,
                    Reading::Ours { .. } | Reading::WrongTopic => missed += 1,
                }
            }
        }
        // 102,400 tries at two in 65,536; far more would be a weakness.
        assert!(missed + foreign < 20, "{missed} and {foreign} of {tried}");
    }

    #[test]
    fn the_age_of_another_runs_message_is_told_and_its_tag_is_no_matter() {
        let (due_ns, now_ns) = (500_000_000, 512_345_678);
        for streams in [1, STREAMS_MAX] {
            let sender = stamps(streams);
            let listener = Stamps { publishes: false, ..sender };
            let payload = message(&sender, Stamp { due_ns, stream: 0, sequence: 7 }, b"");
            let Reading::Foreign { age_ns, is_early: false } =
                read(&listener, TOPIC, &payload, now_ns)
            else {
                panic!("not read")
            };
            assert!((0..256).contains(&(age_ns - (now_ns - due_ns))), "{age_ns}");
            let early = read(&listener, TOPIC, &payload, 400_000_000);
            assert_eq!(early, Reading::Foreign { age_ns: 0, is_early: true });
        }
    }

    #[test]
    fn length_topic_and_run_are_part_of_it() {
        let stamps = stamps(1);
        let payload = message(&stamps, Stamp { due_ns: 7, stream: 3, sequence: 4 }, b"abc");
        let of = |payload: &[u8], topic: &str| read(&stamps, topic, payload, 1_000);
        assert_eq!(of(&payload[..18], TOPIC), Reading::Damaged);
        assert_eq!(of(&[&payload[..], b"d"].concat(), TOPIC), Reading::Damaged);
        assert_eq!(of(&payload[..9], TOPIC), Reading::Damaged);
        assert_eq!(of(&payload, "pairs/8"), Reading::WrongTopic);
        let other = Stamps::new(0xBEE0, Clock::start(), 1);
        let read = read(&other, TOPIC, &payload, 1_000);
        assert!(matches!(read, Reading::Foreign { .. }), "{read:?}");
    }
}
