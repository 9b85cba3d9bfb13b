//! Which messages of a stream count.
//!
//! The messages of a stream are read in the order of their sequences. A claim of a later epoch than
//! all before makes its writer the current one. A message counts if it is of the current writer and
//! has the next number. Every other message of this cluster is void, for every reader alike:
//!
//! - of an earlier epoch: sent by a writer that was fenced already;
//! - of the current writer with a number out of turn: sent behind one that was not stored. Its
//!   writer sends it again.

use std::collections::BTreeMap;

use crate::effect::Sequence;
use crate::wire::{self, ClusterId, Content, Header, Origin, Piece, WireError};

/// Reads one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequencer {
    cluster: ClusterId,
    /// Of the last message read.
    last: Sequence,
    /// The current writer and the number of its last message that counts.
    current: Option<Header>,
    segments: BTreeMap<u32, Sequence>,
}

/// What to do with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A new writer begins here.
    Claim(Origin),
    /// It belongs to the journal.
    Counts,
    /// It counts for nobody.
    Void,
}

/// Why a stream cannot be read on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("message {0}: {1}")]
    Wire(Sequence, WireError),
    #[error("message {0} is of another cluster: two clusters share a stream; check `cluster.name`")]
    Cluster(Sequence),
    #[error("message {0} follows message {1}: messages between them are missing")]
    Gap(Sequence, Sequence),
}

/// Where to go on reading, kept beside a local copy.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Cursor {
    pub last: Sequence,
    pub epoch: u64,
    pub writer: u64,
    pub number: u64,
    /// Where each segment begins, of those whose beginning is known.
    pub segments: BTreeMap<u32, Sequence>,
}

impl Sequencer {
    /// Begins with the first message of a stream.
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, last: 0, current: None, segments: BTreeMap::new() }
    }

    /// Goes on at a cursor.
    pub fn resume(cluster: ClusterId, cursor: Cursor) -> Self {
        let Cursor { last, epoch, writer, number, segments } = cursor;
        let origin = Origin { cluster, epoch, writer };
        let current = (epoch > 0).then_some(Header { origin, number, sent_at_ms: 0 });
        Self { cluster, last, current, segments }
    }

    /// Where it stands.
    pub fn cursor(&self) -> Cursor {
        let header = self.current.unwrap_or_default();
        Cursor {
            last: self.last,
            epoch: header.origin.epoch,
            writer: header.origin.writer,
            number: header.number,
            segments: self.segments.clone(),
        }
    }

    /// Of the last message read.
    pub const fn last(&self) -> Sequence {
        self.last
    }

    /// The header of the last message that counts.
    pub const fn current(&self) -> Option<&Header> {
        self.current.as_ref()
    }

    /// Where each segment begins, of those whose beginning is known.
    pub const fn segments(&self) -> &BTreeMap<u32, Sequence> {
        &self.segments
    }

    /// Segments below are gone.
    pub fn forget_segments_below(&mut self, oldest: u32) {
        self.segments = self.segments.split_off(&oldest);
    }

    /// Looks at the next message.
    ///
    /// # Errors
    ///
    /// When it is not the next one, or cannot be read.
    pub fn on_message(&mut self, sequence: Sequence, body: &[u8]) -> Result<Verdict, Unreadable> {
        let is_first = self.last == 0 && self.current.is_none();
        if sequence != self.last + 1 && !is_first {
            return Err(Unreadable::Gap(sequence, self.last));
        }
        let message = wire::decode(body).map_err(|error| Unreadable::Wire(sequence, error))?;
        let header = message.header;
        if header.origin.cluster != self.cluster {
            return Err(Unreadable::Cluster(sequence));
        }
        self.last = sequence;
        let verdict = self.judge(&message.content, &header);
        match verdict {
            Verdict::Void => {}
            Verdict::Claim(_) | Verdict::Counts => self.current = Some(header),
        }
        if let (Verdict::Counts, Content::Pieces(pieces)) = (verdict, &message.content) {
            self.note_segments(pieces, sequence);
        }
        Ok(verdict)
    }

    fn judge(&self, content: &Content<'_>, header: &Header) -> Verdict {
        let is_claim = matches!(content, Content::Claim { .. });
        match &self.current {
            // A stream that was purged begins in the midst of a writer's messages.
            None if !is_claim => Verdict::Counts,
            None => Verdict::Claim(header.origin),
            Some(current) if is_claim && header.origin.epoch > current.origin.epoch => {
                Verdict::Claim(header.origin)
            }
            Some(current)
                if !is_claim
                    && header.origin == current.origin
                    && current.number.checked_add(1) == Some(header.number) =>
            {
                Verdict::Counts
            }
            Some(_) => Verdict::Void,
        }
    }

    fn note_segments(&mut self, pieces: &[Piece<'_>], sequence: Sequence) {
        for piece in pieces {
            if let Piece::Write { segment, offset: 0, .. } = piece {
                self.segments.entry(*segment).or_insert(sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use storage::Step;

    use super::*;
    use crate::wire::Packet;

    const CLUSTER: ClusterId = [3; 16];

    fn header(epoch: u64, number: u64) -> Header {
        let origin = Origin { cluster: CLUSTER, epoch, writer: epoch * 10 };
        Header { origin, number, sent_at_ms: 0 }
    }

    fn claim(epoch: u64) -> Vec<u8> {
        wire::claim(&header(epoch, 0), "n")
    }

    fn write(epoch: u64, number: u64, segment: u32) -> Vec<u8> {
        let mut packet = Packet::new(&header(epoch, number), 1024);
        packet.add(&Step::Write { segment, offset: 0, bytes: Arc::new(vec![1; 8]) }, 0);
        packet.finish()
    }

    fn verdicts(bodies: &[Vec<u8>]) -> Vec<Verdict> {
        let mut sequencer = Sequencer::new(CLUSTER);
        let numbered = bodies.iter().zip(1..);
        numbered.map(|(body, at)| sequencer.on_message(at, body).unwrap()).collect()
    }

    #[test]
    fn a_fenced_writer_counts_no_more() {
        let origin = |epoch| header(epoch, 0).origin;
        let stream = [claim(1), write(1, 1, 1), claim(2), write(1, 2, 1), write(2, 1, 1)];
        let (first, second) = (Verdict::Claim(origin(1)), Verdict::Claim(origin(2)));
        let expected = [first, Verdict::Counts, second, Verdict::Void, Verdict::Counts];
        assert_eq!(verdicts(&stream), expected);
    }

    #[test]
    fn a_message_without_the_one_before_it_is_void_until_it_is_sent_again() {
        let stream = [claim(2), write(2, 2, 1), write(2, 1, 1), write(2, 2, 1), write(2, 2, 1)];
        let expected = [Verdict::Void, Verdict::Counts, Verdict::Counts, Verdict::Void];
        assert_eq!(verdicts(&stream)[1..], expected);
    }

    #[test]
    fn a_claim_of_an_earlier_epoch_claims_nothing() {
        let stream = [claim(2), claim(1), claim(2), write(2, 1, 1)];
        assert_eq!(verdicts(&stream)[1..], [Verdict::Void, Verdict::Void, Verdict::Counts]);
    }

    #[test]
    fn a_purged_stream_is_read_from_where_it_begins_and_gaps_are_named() {
        let mut sequencer = Sequencer::new(CLUSTER);
        assert_eq!(sequencer.on_message(70, &write(2, 9, 4)), Ok(Verdict::Counts));
        assert_eq!(sequencer.segments().get(&4), Some(&70));
        assert_eq!(sequencer.on_message(72, &write(2, 11, 4)), Err(Unreadable::Gap(72, 70)));
        let mut resumed = Sequencer::resume(CLUSTER, sequencer.cursor());
        assert_eq!(resumed.on_message(71, &write(2, 10, 5)), Ok(Verdict::Counts));
    }

    #[test]
    fn a_stream_of_two_clusters_is_refused() {
        let mut sequencer = Sequencer::new([4; 16]);
        assert_eq!(sequencer.on_message(1, &claim(1)), Err(Unreadable::Cluster(1)));
    }
}
