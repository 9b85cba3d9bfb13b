//! The two facts that are lists: they are written once per commit for all sessions that had any.

use crate::log::facts::fact::Malformed;
use crate::log::facts::wire::{Reader, put_number, put_queue, put_queue_if_any};
use crate::words::queue_number::QueueId;
use crate::words::queue_number::QueueNumber;

/// How far queues have been worked off. Replaces what was known of each queue in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress<'a>(&'a [u8]);

/// One queue's progress: everything up to `floor` is done, and so are the runs in `above`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgressEntry<'a> {
    pub queue: QueueId,
    /// Delivered and acknowledged, expired or dropped: nothing up to this serial is assigned any
    /// more.
    pub floor: u64,
    /// Done out of order; about as many runs as messages in flight.
    pub above: Runs<'a>,
}

/// Growing runs of serials, first and last of each, which do not touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Runs<'a> {
    raw: &'a [u8],
    floor: u64,
}

/// Collects a [`Progress`].
#[derive(Clone, Debug, Default)]
pub struct ProgressBuf {
    raw: Vec<u8>,
    above: Vec<u8>,
}

impl<'a> Progress<'a> {
    pub(super) fn decode(raw: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(raw);
        while !reader.is_empty() {
            read_entry(&mut reader)?;
        }
        Ok(Self(raw))
    }

    pub(super) fn raw(&self) -> &'a [u8] {
        self.0
    }

    /// The entries in the order they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = ProgressEntry<'a>> + use<'a> {
        let mut reader = Reader(self.0);
        std::iter::from_fn(move || read_entry(&mut reader).ok())
    }
}

impl<'a> Runs<'a> {
    /// The runs, growing: first and last serial of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let (mut reader, mut last) = (Reader(self.raw), self.floor);
        std::iter::from_fn(move || {
            let from = last.checked_add(reader.number().ok()?)?;
            last = from.checked_add(reader.number().ok()?)?;
            Some((from, last))
        })
    }
}

impl ProgressBuf {
    /// Adds a queue. The runs `above` must grow, be above `floor`, and not touch.
    pub fn push(
        &mut self,
        queue: QueueId,
        floor: u64,
        above: impl IntoIterator<Item = (u64, u64)>,
    ) {
        self.above.clear();
        let mut last = floor;
        for (from, through) in above {
            debug_assert!(from > last && through >= from, "runs above the floor must grow");
            put_number(&mut self.above, from - last);
            put_number(&mut self.above, through - from);
            last = through;
        }
        put_number(&mut self.raw, queue.number());
        put_number(&mut self.raw, floor);
        put_number(&mut self.raw, self.above.len() as u64);
        self.raw.extend_from_slice(&self.above);
    }

    pub fn clear(&mut self) {
        self.raw.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Its bytes so far.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    pub fn as_progress(&self) -> Progress<'_> {
        Progress(&self.raw)
    }
}

fn read_entry<'a>(reader: &mut Reader<'a>) -> Result<ProgressEntry<'a>, Malformed> {
    let (queue, floor) = (QueueId::of_number(reader.number()?), reader.number()?);
    let raw = reader.bytes()?;
    let (mut steps, mut last) = (Reader(raw), floor);
    while !steps.is_empty() {
        let (step, more) = (steps.number()?, steps.number()?);
        let from = last.checked_add(step).filter(|_| step > 0);
        last =
            from.and_then(|from| from.checked_add(more)).ok_or(Malformed("serials do not grow"))?;
    }
    Ok(ProgressEntry { queue, floor, above: Runs { raw, floor } })
}

/// Deliveries that have a packet id, and how far they are. Replaces what was known of the packet id
/// in its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFlight<'a>(&'a [u8]);

/// One delivery in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    pub session: QueueNumber,
    pub packet_id: u16,
    pub stage: Stage,
    /// The queue it came from: that of the session, or of a shared group. None: its message is
    /// not in the journal, and its serial only identifies it.
    pub queue: Option<QueueNumber>,
    pub serial: u64,
}

/// How far a delivery is. One from a queue that is complete is in no list: it is part of the
/// progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// PUBLISH of QoS 1 sent.
    AwaitsPuback,
    /// PUBLISH of QoS 2 sent. It is sent again as such, whatever its subscription says by then: the
    /// client has the packet id until a PUBREL.
    AwaitsPubrec,
    /// PUBREC received, PUBREL sent.
    AwaitsPubcomp,
    /// Complete, and from no queue.
    Over,
}

/// The flag of a delivery that did not come from the session's own queue.
const SHARED: u8 = 2;

impl Stage {
    const fn bits(self) -> u8 {
        match self {
            Self::AwaitsPuback => 0,
            Self::AwaitsPubcomp => 1,
            Self::AwaitsPubrec => 4,
            Self::Over => 5,
        }
    }

    const fn of_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AwaitsPuback),
            1 => Some(Self::AwaitsPubcomp),
            4 => Some(Self::AwaitsPubrec),
            5 => Some(Self::Over),
            _ => None,
        }
    }
}

/// Collects an [`InFlight`].
#[derive(Clone, Debug, Default)]
pub struct InFlightBuf(Vec<u8>);

impl<'a> InFlight<'a> {
    pub(super) fn decode(raw: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(raw);
        while !reader.is_empty() {
            read_sent(&mut reader)?;
        }
        Ok(Self(raw))
    }

    pub(super) fn raw(&self) -> &'a [u8] {
        self.0
    }

    /// The deliveries in the order they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = Sent> + use<'a> {
        let mut reader = Reader(self.0);
        std::iter::from_fn(move || read_sent(&mut reader).ok())
    }
}

impl InFlightBuf {
    /// For so many deliveries, of about as many bytes, or fewer.
    pub fn for_entries(count: usize, bytes_max: usize) -> Self {
        Self(Vec::with_capacity((count * ENTRY_BYTES).min(bytes_max)))
    }

    pub fn push(&mut self, sent: Sent) {
        // A delivery from the session's own queue, by far the most frequent, does not repeat it.
        let is_shared = sent.queue != Some(sent.session);
        put_queue(&mut self.0, sent.session);
        put_number(&mut self.0, u64::from(sent.packet_id));
        self.0.push(sent.stage.bits() | if is_shared { SHARED } else { 0 });
        if is_shared {
            put_queue_if_any(&mut self.0, sent.queue);
        }
        put_number(&mut self.0, sent.serial);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn as_in_flight(&self) -> InFlight<'_> {
        InFlight(&self.0)
    }
}

/// What a delivery takes in a busy journal.
const ENTRY_BYTES: usize = 8;

fn read_sent(reader: &mut Reader<'_>) -> Result<Sent, Malformed> {
    let session = reader.queue()?;
    let packet_id = reader.number_u16()?;
    let flags = reader.byte()?;
    let stage = Stage::of_bits(flags & !SHARED);
    let Some(stage) = stage.filter(|_| packet_id != 0) else {
        return Err(Malformed("a delivery has unknown flags or packet ID 0"));
    };
    let is_shared = flags & SHARED != 0;
    let queue = if is_shared { reader.queue_if_any()? } else { Some(session) };
    if is_shared && queue == Some(session) {
        return Err(Malformed("a delivery names its own queue"));
    }
    Ok(Sent { session, packet_id, stage, queue, serial: reader.number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_acknowledgement_takes_few_bytes() {
        let mut progress = ProgressBuf::default();
        let session = QueueNumber::new(1000).unwrap();
        progress.push(session.into(), 1_000_000, []);
        assert_eq!(progress.as_progress().raw().len(), 6);
        let mut in_flight = InFlightBuf::default();
        let (queue, stage) = (Some(session), Stage::AwaitsPuback);
        in_flight.push(Sent { session, packet_id: 99, stage, queue, serial: 1_000_000 });
        assert_eq!(in_flight.as_in_flight().raw().len(), 7);
    }

    /// Bytes as they stand in journals from before queues had a type.
    #[test]
    fn lists_of_older_journals_are_read() {
        let second_source = [0x81, 0x80, 0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let raw = [&[0, 10, 0, 5, 7, 2, 1, 0][..], &second_source, &[9, 0]].concat();
        let read: Vec<_> = Progress::decode(&raw)
            .unwrap()
            .iter()
            .map(|entry| (entry.queue, entry.floor, entry.above.iter().collect::<Vec<_>>()))
            .collect();
        let fifth = QueueNumber::new(5).unwrap();
        let above = vec![(8, 8)];
        let queues = [
            (QueueId::Handover, 10, vec![]),
            (fifth.into(), 7, above),
            (QueueId::Seen(1), 9, vec![]),
        ];
        assert_eq!(read, queues);
        let sent = InFlight::decode(&[5, 1, 0, 8, 5, 2, 4 | SHARED, 0, 9]).unwrap();
        let queues: Vec<_> = sent.iter().map(|sent| (sent.session, sent.queue)).collect();
        assert_eq!(queues, [(fifth, Some(fifth)), (fifth, None)]);
    }

    #[test]
    fn serials_that_overflow_or_stand_still_are_malformed() {
        let mut raw = Vec::new();
        put_number(&mut raw, 1);
        put_number(&mut raw, u64::MAX);
        raw.extend_from_slice(&[2, 1, 0]);
        assert!(Progress::decode(&raw).is_err());
        assert!(Progress::decode(&[1, 5, 2, 0, 3]).is_err());
        assert!(Progress::decode(&[1, 5, 1, 1]).is_err());
        assert!(Progress::decode(&[1, 5, 2, 1, 3]).is_ok());
    }
}
