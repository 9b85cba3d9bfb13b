//! Which messages of a stream count, and what of them each shard still needs.
//!
//! The messages of a stream are read in the order of their sequences. A claim of a later epoch than
//! all before makes its writer the current one. A message counts if it is of the current writer and
//! has the next number. Every other message of this cluster is void, for every reader alike:
//!
//! - of an earlier epoch: sent by a writer that was fenced already;
//! - of the current writer with a number out of turn: sent behind one that was not stored. Its
//!   writer sends it again.
//!
//! All shards of a node share the stream, and each has a local copy with a position of its own. The
//! stream is read from the smallest position on. A shard skips what its copy has already.

use crate::effect::{Body, Sequence, ShardId};
use crate::log::ShardLog;
use crate::wire::{self, CELL, ClusterId, Header, Origin, Parsed, Portion, WireError};

/// Reads one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequencer {
    cluster: ClusterId,
    /// Of the last message read.
    last: Sequence,
    /// The current writer and the number of its last message that counts.
    current: Option<Header>,
    shards: Vec<Reading>,
    /// The stream is of version 1, of this shard.
    old: Option<ShardId>,
}

/// How far a shard is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Reading {
    /// Up to here its copy has all, though the stream is read again.
    read: Sequence,
    log: ShardLog,
}

/// What to do with a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A new writer begins here.
    Claim(Origin),
    /// It belongs to the journals: what those shards need of it that do not have it yet.
    Counts(Vec<Portion>),
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
    #[error("message {0} is of cell {1}, and this program knows cell {CELL} only: use a newer one")]
    Cell(Sequence, u16),
    #[error(
        "message {0} has a write of shard {1}, and the cluster has {2} shards: two clusters share a \
         stream; check `cluster.name`"
    )]
    Shard(Sequence, ShardId, usize),
    #[error("message {0} follows message {1}: messages between them are missing")]
    Gap(Sequence, Sequence),
}

/// Where to go on reading for a shard, kept beside its local copy.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Cursor {
    pub last: Sequence,
    pub epoch: u64,
    pub writer: u64,
    pub number: u64,
    pub log: ShardLog,
}

impl Cursor {
    /// The files of the copy are ahead of it, and segments below are gone there.
    pub fn forget_segments_below(&mut self, oldest: u32) {
        self.log.forget_below(oldest);
    }
}

impl Sequencer {
    /// Begins with the first message of a stream of so many shards.
    pub fn new(cluster: ClusterId, shards: ShardId) -> Self {
        let shards = vec![Reading::default(); usize::from(shards)];
        Self { cluster, last: 0, current: None, shards, old: None }
    }

    /// Begins with the first message of a stream of version 1: that of one shard.
    pub fn of_old_stream(cluster: ClusterId, shard: ShardId) -> Self {
        Self { old: Some(shard), ..Self::new(cluster, shard + 1) }
    }

    /// Goes on at the smallest cursor of all shards.
    pub fn resume(cluster: ClusterId, cursors: Vec<Cursor>) -> Self {
        let first = cursors.iter().min_by_key(|cursor| cursor.last).cloned().unwrap_or_default();
        let Cursor { last, epoch, writer, number, .. } = first;
        let origin = Origin { cluster, epoch, writer };
        let header = Header { origin, number, sent_at_ms: 0, cell: CELL };
        let reading = |cursor: Cursor| Reading { read: cursor.last, log: cursor.log };
        Self {
            cluster,
            last,
            current: (epoch > 0).then_some(header),
            shards: cursors.into_iter().map(reading).collect(),
            old: None,
        }
    }

    /// Where a shard stands. `None`: its copy has more than was read again.
    pub fn cursor(&self, shard: ShardId) -> Option<Cursor> {
        let reading = self.shards.get(usize::from(shard))?;
        let header = self.current.unwrap_or_default();
        (reading.read <= self.last).then(|| Cursor {
            last: self.last,
            epoch: header.origin.epoch,
            writer: header.origin.writer,
            number: header.number,
            log: reading.log.clone(),
        })
    }

    /// Of the last message read.
    pub const fn last(&self) -> Sequence {
        self.last
    }

    /// Of the last message that any shard has.
    pub fn furthest(&self) -> Sequence {
        self.shards.iter().map(|shard| shard.read).fold(self.last, Sequence::max)
    }

    /// Of the last message that this shard has.
    pub fn last_of(&self, shard: ShardId) -> Sequence {
        self.shards.get(usize::from(shard)).map_or(0, |shard| shard.read.max(self.last))
    }

    /// The header of the last message that counts.
    pub const fn current(&self) -> Option<&Header> {
        self.current.as_ref()
    }

    /// Where the segments of each shard begin, of those whose beginning is known.
    pub fn logs(&self) -> impl Iterator<Item = &ShardLog> {
        self.shards.iter().map(|shard| &shard.log)
    }

    /// Segments of a shard below are gone.
    pub fn forget_segments_below(&mut self, shard: ShardId, oldest: u32) {
        if let Some(shard) = self.shards.get_mut(usize::from(shard)) {
            shard.log.forget_below(oldest);
        }
    }

    /// The stream begins with a later message than the one behind the last: these shards lack what
    /// is gone.
    pub fn lacking_before(&self, first: Sequence) -> Vec<ShardId> {
        let shards = 0..self.shards.len() as ShardId;
        shards.filter(|shard| self.last_of(*shard) + 1 < first).collect()
    }

    /// The stream is read again from its first message, for a shard that begins with nothing. The
    /// others skip what they have.
    pub fn start_over(&mut self, shard: ShardId) {
        for reading in &mut self.shards {
            reading.read = reading.read.max(self.last);
        }
        if let Some(reading) = self.shards.get_mut(usize::from(shard)) {
            *reading = Reading::default();
        }
        (self.last, self.current) = (0, None);
    }

    /// The shards that have not read this message before.
    pub fn readers_of(&self, sequence: Sequence) -> impl Iterator<Item = ShardId> {
        let reads =
            move |(shard, it): (usize, &Reading)| (it.read < sequence).then_some(shard as ShardId);
        self.shards.iter().enumerate().filter_map(reads)
    }

    /// Looks at the next message.
    ///
    /// # Errors
    ///
    /// When it is not the next one, or cannot be read.
    pub fn on_message(&mut self, sequence: Sequence, body: &Body) -> Result<Verdict, Unreadable> {
        if !self.is_next(sequence) {
            return Err(Unreadable::Gap(sequence, self.last));
        }
        let parsed = match self.old {
            Some(shard) => wire::parse_old(body, shard),
            None => wire::parse(body),
        };
        let (header, parsed) = parsed.map_err(|error| Unreadable::Wire(sequence, error))?;
        if header.origin.cluster != self.cluster {
            return Err(Unreadable::Cluster(sequence));
        }
        if header.cell != CELL {
            return Err(Unreadable::Cell(sequence, header.cell));
        }
        self.last = sequence;
        let counts = self.counts(matches!(parsed, Parsed::Claim { .. }), &header);
        if counts {
            self.current = Some(header);
        }
        let verdict = match parsed {
            _ if !counts => Verdict::Void,
            Parsed::Claim { .. } => Verdict::Claim(header.origin),
            Parsed::Pieces(pieces) => {
                Verdict::Counts(self.take(sequence, wire::portions(body, pieces))?)
            }
        };
        for shard in self.shards.iter_mut().filter(|shard| shard.read < sequence) {
            shard.log.pass(body.len());
        }
        Ok(verdict)
    }

    /// A stream that was purged begins with any sequence. No copy must lack what is gone.
    fn is_next(&self, sequence: Sequence) -> bool {
        let is_first = self.last == 0 && self.current.is_none();
        let lacks = |shard: &Reading| shard.read > 0 && shard.read + 1 < sequence;
        match is_first {
            true => !self.shards.iter().any(lacks),
            false => sequence == self.last + 1,
        }
    }

    fn counts(&self, is_claim: bool, header: &Header) -> bool {
        // A stream that was purged begins in the midst of a writer's messages.
        let Some(current) = &self.current else { return true };
        match is_claim {
            true => header.origin.epoch > current.origin.epoch,
            false => {
                header.origin == current.origin
                    && current.number.checked_add(1) == Some(header.number)
            }
        }
    }

    /// Leaves what its shard has already.
    fn take(
        &mut self,
        sequence: Sequence,
        mut portions: Vec<Portion>,
    ) -> Result<Vec<Portion>, Unreadable> {
        let count = self.shards.len();
        if let Some(Portion { shard, .. }) =
            portions.iter().find(|portion| usize::from(portion.shard) >= count)
        {
            return Err(Unreadable::Shard(sequence, *shard, count));
        }
        portions.retain(|portion| self.shards[usize::from(portion.shard)].read < sequence);
        for portion in &portions {
            let log = &mut self.shards[usize::from(portion.shard)].log;
            portion.begun().for_each(|segment| log.begin(segment, sequence));
        }
        Ok(portions)
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
        Header { origin, number, ..Header::default() }
    }

    fn claim(epoch: u64) -> Body {
        wire::claim(&header(epoch, 0), "n").into()
    }

    /// A message with the beginning of a segment of each of these shards.
    fn writes(epoch: u64, number: u64, begun: &[(ShardId, u32)]) -> Body {
        let mut packet = Packet::new(&header(epoch, number), 1024);
        for (shard, segment) in begun {
            let bytes = Arc::new(vec![1; 8]);
            packet.add(*shard, &Step::Write { segment: *segment, offset: 0, bytes }, 0);
        }
        packet.finish().0
    }

    fn write(epoch: u64, number: u64, segment: u32) -> Body {
        writes(epoch, number, &[(0, segment)])
    }

    /// `true`: the message counts.
    fn verdicts(bodies: &[Body]) -> Vec<bool> {
        let mut sequencer = Sequencer::new(CLUSTER, 1);
        let numbered = bodies.iter().zip(1..);
        let verdicts = numbered.map(|(body, at)| sequencer.on_message(at, body).unwrap());
        verdicts.map(|verdict| verdict != Verdict::Void).collect()
    }

    /// The shards that get something of a message.
    fn shards_of(verdict: Result<Verdict, Unreadable>) -> Vec<ShardId> {
        let Ok(Verdict::Counts(portions)) = verdict else { panic!("{verdict:?}") };
        portions.iter().map(|portion| portion.shard).collect()
    }

    #[test]
    fn a_fenced_writer_counts_no_more() {
        let stream = [claim(1), write(1, 1, 1), claim(2), write(1, 2, 1), write(2, 1, 1)];
        assert_eq!(verdicts(&stream), [true, true, true, false, true]);
    }

    #[test]
    fn a_message_without_the_one_before_it_is_void_until_it_is_sent_again() {
        let stream = [claim(2), write(2, 2, 1), write(2, 1, 1), write(2, 2, 1), write(2, 2, 1)];
        assert_eq!(verdicts(&stream), [true, false, true, true, false]);
    }

    #[test]
    fn a_claim_of_an_earlier_epoch_claims_nothing() {
        let stream = [claim(2), claim(1), claim(2), write(2, 1, 1)];
        assert_eq!(verdicts(&stream), [true, false, false, true]);
    }

    #[test]
    fn a_purged_stream_is_read_from_where_it_begins_and_gaps_are_named() {
        let mut sequencer = Sequencer::new(CLUSTER, 1);
        assert_eq!(shards_of(sequencer.on_message(70, &write(2, 9, 4))), [0]);
        assert_eq!(sequencer.logs().next().and_then(ShardLog::oldest), Some((4, 70)));
        assert_eq!(sequencer.on_message(72, &write(2, 11, 4)), Err(Unreadable::Gap(72, 70)));
        let cursor = sequencer.cursor(0).unwrap();
        let mut resumed = Sequencer::resume(CLUSTER, vec![cursor]);
        assert_eq!(shards_of(resumed.on_message(71, &write(2, 10, 5))), [0]);
    }

    #[test]
    fn a_stream_of_two_clusters_is_refused_and_so_are_other_cells_and_shards() {
        let mut sequencer = Sequencer::new([4; 16], 1);
        assert_eq!(sequencer.on_message(1, &claim(1)), Err(Unreadable::Cluster(1)));
        let other = Header { cell: 3, ..header(1, 0) };
        let mut sequencer = Sequencer::new(CLUSTER, 2);
        let found = sequencer.on_message(1, &wire::claim(&other, "n").into());
        assert_eq!(found, Err(Unreadable::Cell(1, 3)));
        let found = sequencer.on_message(1, &writes(1, 1, &[(1, 1), (2, 1)]));
        assert_eq!(found, Err(Unreadable::Shard(1, 2, 2)));
    }

    #[test]
    fn each_shard_skips_what_it_has_and_no_other_shard_does() {
        let bodies = [claim(1), writes(1, 1, &[(0, 1), (1, 1)]), writes(1, 2, &[(0, 2), (1, 2)])];
        let mut sequencer = Sequencer::new(CLUSTER, 2);
        let mut cursors = Vec::new();
        for (body, at) in bodies.iter().zip(1..) {
            sequencer.on_message(at, body).unwrap();
            cursors.push(sequencer.cursor(1).unwrap());
        }
        let whole = sequencer.clone();
        let early = Sequencer::resume(CLUSTER, cursors[..1].to_vec()).cursor(0).unwrap();
        let mut resumed = Sequencer::resume(CLUSTER, vec![early, cursors[1].clone()]);
        assert_eq!((resumed.last(), resumed.last_of(1), resumed.furthest()), (1, 2, 2));
        assert_eq!(resumed.cursor(1), None, "that would be behind its copy");
        assert_eq!(resumed.readers_of(2).collect::<Vec<_>>(), [0]);
        assert_eq!(shards_of(resumed.on_message(2, &bodies[1])), [0]);
        assert_eq!(shards_of(resumed.on_message(3, &bodies[2])), [0, 1]);
        assert_eq!(resumed.cursor(1), whole.cursor(1), "as if it had never stopped");
    }

    #[test]
    fn a_copy_that_lacks_what_was_purged_is_noticed_when_another_one_begins_with_nothing() {
        let read = Cursor { last: 30, epoch: 2, writer: 20, number: 3, ..Cursor::default() };
        let cursors = vec![Cursor::default(), read];
        let mut sequencer = Sequencer::resume(CLUSTER, cursors);
        let found = sequencer.on_message(70, &write(2, 9, 4));
        assert_eq!(found, Err(Unreadable::Gap(70, 0)));
        assert_eq!(sequencer.lacking_before(70), [0, 1]);
        sequencer.start_over(0);
        sequencer.start_over(1);
        assert_eq!(shards_of(sequencer.on_message(70, &write(2, 9, 4))), [0]);
    }

    #[test]
    fn a_shard_that_starts_over_is_read_again_alone() {
        let bodies = [claim(1), writes(1, 1, &[(0, 1), (1, 1)]), writes(1, 2, &[(0, 2), (1, 2)])];
        let mut sequencer = Sequencer::new(CLUSTER, 2);
        for (body, at) in bodies.iter().zip(1..) {
            sequencer.on_message(at, body).unwrap();
        }
        let whole = sequencer.clone();
        assert!(sequencer.lacking_before(4).is_empty());
        assert_eq!(sequencer.lacking_before(5), [0, 1]);
        sequencer.start_over(1);
        assert_eq!(sequencer.lacking_before(3), [1], "the other has what is gone");
        for (body, at) in bodies.iter().zip(1..) {
            match sequencer.on_message(at, body).unwrap() {
                Verdict::Counts(portions) => assert!(portions.iter().all(|it| it.shard == 1)),
                verdict => assert!(matches!(verdict, Verdict::Claim(_))),
            }
        }
        assert_eq!(sequencer.cursor(1), whole.cursor(1));
        assert_eq!(sequencer.cursor(0), whole.cursor(0));
    }
}
