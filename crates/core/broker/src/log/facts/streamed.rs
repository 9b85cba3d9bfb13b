//! Facts of streams: messages that streams have, what is in files, and how far consumers are.

use crate::log::facts::fact::{Malformed, StoredMessage};
use crate::log::facts::stream_record::StreamRecord;
use crate::log::facts::wire::{
    Reader, put_bytes, put_fixed, put_number, put_queue, put_queue_if_any,
};
use crate::words::queue_number::QueueNumber;

/// A message that at least one stream has, with what else its record stands for: both survive a
/// crash or neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Streamed<'a> {
    pub serial: u64,
    pub purpose: Purpose<'a>,
    /// Who is charged for it; empty: nobody.
    pub owner: &'a str,
    /// As that of a [`StoredMessage`].
    pub author: u64,
    pub stamps: Stamps<'a>,
    /// A [`StreamRecord`].
    pub record: &'a [u8],
}

/// What a record is in addition to a record of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose<'a> {
    /// No session wants the message.
    Streams,
    /// [`super::Fact::Message`].
    Message,
    /// [`super::Fact::Taken`].
    Taken { session: QueueNumber, packet_id: u16 },
    /// [`super::Fact::WillTaken`].
    WillTaken { session: Option<QueueNumber> },
    /// A dead letter, with the [`super::Fact::Cursor`] of the consumer that gave it up.
    DeadLetter { consumer: u32, cursor: &'a [u8] },
}

/// The streams of a record, each with the ordinal of the record in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamps<'a>(&'a [u8]);

/// The records of a stream below `next` are in files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Archived {
    pub stream: u32,
    pub next: u64,
    /// The file of the last of them. 0: it was deleted.
    pub file: u64,
    /// How far that file must reach, in bytes.
    pub end: u64,
}

impl<'a> Stamps<'a> {
    /// The stamps, written into `buffer`.
    pub fn write(stamps: impl Iterator<Item = (u32, u64)>, buffer: &'a mut Vec<u8>) -> Self {
        for (stream, ordinal) in stamps {
            put_number(buffer, u64::from(stream));
            put_number(buffer, ordinal);
        }
        Self(buffer)
    }

    /// Streams and ordinals.
    pub fn iter(self) -> impl Iterator<Item = (u32, u64)> + use<'a> {
        let mut r = Reader(self.0);
        // They were read once when the fact was.
        std::iter::from_fn(move || next_stamp(&mut r).ok().flatten())
    }

    fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let mut last = None;
        while let Some((stream, ordinal)) = next_stamp(&mut r)? {
            if last >= Some(stream) || ordinal == u64::MAX {
                return Err(Malformed("the streams of a record are not in order"));
            }
            last = Some(stream);
        }
        last.map(|_| Self(bytes)).ok_or(Malformed("a record of streams has no stream"))
    }
}

fn next_stamp(r: &mut Reader<'_>) -> Result<Option<(u32, u64)>, Malformed> {
    match r.is_empty() {
        true => Ok(None),
        false => Ok(Some((r.number_u32()?, r.number()?))),
    }
}

impl<'a> Streamed<'a> {
    /// The message that it stands for. None: its bytes were checked when it was read, so there is
    /// one.
    pub fn message(&self) -> Option<StoredMessage<'a>> {
        let record = StreamRecord::decode(self.record).ok()?;
        Some(StoredMessage {
            serial: self.serial,
            origin: None,
            queue: None,
            qos: record.qos,
            retain: record.retain,
            expires_at_ms: record.expires_at_ms,
            owner: self.owner,
            author: self.author,
            topic: record.topic,
            properties: record.properties,
            payload: record.payload,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) -> &'a [u8] {
        let has_author = u8::from(self.author != 0) << 7;
        match self.purpose {
            Purpose::Streams => out.push(has_author),
            Purpose::Message => out.push(has_author | 1),
            Purpose::Taken { session, packet_id } => {
                out.push(has_author | 2);
                put_queue(out, session);
                put_number(out, u64::from(packet_id));
            }
            Purpose::WillTaken { session } => {
                out.push(has_author | 3);
                put_queue_if_any(out, session);
            }
            Purpose::DeadLetter { consumer, cursor } => {
                out.push(has_author | 4);
                put_number(out, u64::from(consumer));
                put_bytes(out, cursor);
            }
        }
        put_number(out, self.serial);
        if self.author != 0 {
            put_fixed(out, self.author);
        }
        put_bytes(out, self.owner.as_bytes());
        put_bytes(out, self.stamps.0);
        self.record
    }

    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let flags = r.byte()?;
        let purpose = match flags & 0x7f {
            0 => Purpose::Streams,
            1 => Purpose::Message,
            2 => Purpose::Taken { session: r.queue()?, packet_id: r.number_u16()? },
            3 => Purpose::WillTaken { session: r.queue_if_any()? },
            4 => Purpose::DeadLetter { consumer: r.number_u32()?, cursor: r.bytes()? },
            _ => return Err(Malformed("the purpose of a record of streams is unknown")),
        };
        let serial = r.number()?;
        let author = if flags & 0x80 == 0 { 0 } else { r.fixed()? };
        if flags & 0x80 != 0 && author == 0 {
            return Err(Malformed("the author of a message is 0"));
        }
        let (owner, stamps) = (r.text()?, Stamps::read(r.bytes()?)?);
        let record = r.rest();
        StreamRecord::decode(record)?;
        Ok(Self { serial, purpose, owner, author, stamps, record })
    }
}

impl Archived {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, u64::from(self.stream));
        put_number(out, self.next);
        put_number(out, self.file);
        put_number(out, self.end);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (stream, next) = (r.number_u32()?, r.number()?);
        Ok(Self { stream, next, file: r.number()?, end: r.number()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_in_the_order_of_their_streams_and_never_none() {
        let read = |numbers: &[u64]| {
            let mut raw = Vec::new();
            numbers.iter().for_each(|number| put_number(&mut raw, *number));
            Stamps::read(&raw).map(|stamps| stamps.iter().collect::<Vec<_>>())
        };
        assert_eq!(read(&[1, 7, 300, 0]), Ok(vec![(1, 7), (300, 0)]));
        for wrong in [&[][..], &[1], &[1, 0, 1, 1], &[2, 0, 1, 0], &[1, u64::MAX]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
