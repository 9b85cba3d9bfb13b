//! The manifest: a small file beside the segments that says how far the journal reaches at least.
//!
//! The segments of a journal say about each other what must be there, but nothing stands behind the
//! newest one: without it, or with an older copy of it, the rest looks like a journal that was
//! never longer. The manifest states an [`end`](Manifest::end) before which everything is durable,
//! with the place in the chain of batches that is there; a journal that does not come that far has
//! lost something. It is a lower bound, so it need not follow each commit: it is written when the
//! journal is opened, when it goes on in a new segment, when it is closed, and now and then in
//! between.
//!
//! It also states the [`reach`](Manifest::reach), behind which nothing was written yet: a start
//! need not read on there in order to distinguish a torn tail from damage.
//!
//! And it carries the [`Stamp`] that ties the journal to the other parts of its data directory.
//!
//! The file has two slots which are written in turn, each in place: so a crash leaves one of them
//! whole, and a full disk is no obstacle.

use std::sync::Arc;

use crate::command::Step;
use crate::format::{Identity, crc32c, u16_at, u32_at, u64_at};
use crate::journal::{Journal, Phase};
use crate::position::Position;
use crate::refusal::Refusal;
use crate::scan::Walk;
use crate::stamp::Stamp;

/// What the manifest says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manifest {
    pub identity: Identity,
    /// Grows by one with each that is written: the higher one counts.
    pub number: u64,
    /// Everything before it is durable.
    pub end: Position,
    /// What a batch that begins there states.
    pub sequence: u64,
    pub previous: u32,
    /// Of the last batch before it.
    pub epoch: u32,
    /// No batch goes beyond it before a later manifest is durable.
    pub reach: Position,
    /// `None`: the program that wrote it knew none.
    pub stamp: Option<Stamp>,
}

/// What of the manifest was written, and when it has to be written again.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// The last one that was queued, or found at the start.
    pub(crate) last: Option<Manifest>,
    /// The last one that is on the medium.
    durable: Option<Manifest>,
    /// The end of the next group is to be stated.
    pub(crate) is_due: bool,
    stated_ms: u64,
}

impl Manifest {
    /// Reads a manifest file: the better of its slots counts. A slot of a later version is a
    /// refusal, whatever the other one says: a later program was here.
    pub fn read(file: &[u8]) -> Result<Self, Refusal> {
        let mut best: Option<Self> = None;
        for slot in file.chunks(SLOT_BYTES as usize) {
            let found = Self::decode(slot)?;
            best = best.into_iter().chain(found).max_by_key(|found| found.number);
        }
        best.ok_or(Refusal::Manifest)
    }

    /// The next one, with this stamp.
    #[must_use]
    pub fn stamped(self, stamp: Stamp) -> Self {
        Self { number: self.number + 1, stamp: Some(stamp), ..self }
    }

    /// Whether it is of a journal that has never had a segment, and that no broker has served from.
    pub(crate) fn is_of_new_journal(&self) -> bool {
        self.end == Position::default() && self.stamp.is_some_and(|stamp| !stamp.is_finished)
    }

    /// Of a journal that has no segment yet, or of one whose length nobody states.
    pub fn of_nothing(identity: Identity) -> Self {
        let nowhere = Position::default();
        Self {
            identity,
            number: 1,
            end: nowhere,
            sequence: 1,
            previous: 0,
            epoch: 0,
            reach: nowhere,
            stamp: None,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CONTENT_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&MANIFEST_VERSION.to_le_bytes());
        out.extend_from_slice(&(CONTENT_BYTES as u16).to_le_bytes());
        out.extend_from_slice(&self.identity.shard.to_le_bytes());
        out.extend_from_slice(&self.identity.shards.to_le_bytes());
        out.extend_from_slice(&self.identity.id);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.end.to_bits().to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.reach.to_bits().to_le_bytes());
        out.extend_from_slice(&self.previous.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        let stamp = self.stamp.unwrap_or(NO_STAMP);
        out.extend_from_slice(&stamp.directory);
        out.extend_from_slice(&stamp.start.to_le_bytes());
        out.extend_from_slice(&stamp.token.to_le_bytes());
        out.extend_from_slice(&u32::from(stamp.is_finished).to_le_bytes());
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None`: nothing whole is there. A slot of an unknown version is a refusal.
    fn decode(slot: &[u8]) -> Result<Option<Self>, Refusal> {
        let is_ours = slot.get(..12).is_some_and(|front| &front[..8] == MAGIC);
        let length = if is_ours { usize::from(u16_at(slot, 10)) } else { 0 };
        let Some(bytes) = slot.get(..length.max(CONTENT_BYTES_V1)) else { return Ok(None) };
        let covered = bytes.len() - 4;
        if !is_ours || crc32c(&bytes[..covered]) != u32_at(bytes, covered) {
            return Ok(None);
        }
        let stamp = match (u16_at(bytes, 8), bytes.len()) {
            (1, CONTENT_BYTES_V1) => None,
            (MANIFEST_VERSION, CONTENT_BYTES) => Self::stamp_in(bytes),
            (version, _) => return Err(Refusal::ManifestVersion(version)),
        };
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[16..32]);
        Ok(Some(Self {
            identity: Identity { id, shard: u16_at(bytes, 12), shards: u16_at(bytes, 14) },
            number: u64_at(bytes, 32),
            end: Position::from_bits(u64_at(bytes, 40)),
            sequence: u64_at(bytes, 48),
            reach: Position::from_bits(u64_at(bytes, 56)),
            previous: u32_at(bytes, 64),
            epoch: u32_at(bytes, 68),
            stamp,
        }))
    }

    fn stamp_in(bytes: &[u8]) -> Option<Stamp> {
        let mut directory = [0; 16];
        directory.copy_from_slice(&bytes[72..88]);
        let (start, token) = (u64_at(bytes, 88), u64_at(bytes, 96));
        let is_finished = u32_at(bytes, 104) & 1 == 1;
        (start > 0).then_some(Stamp { directory, start, token, is_finished })
    }

    /// Whether a walk that has come from one place to another shows that this is another journal.
    pub(crate) fn contradicts(&self, from: Walk, to: Walk) -> bool {
        let is_there = (to.chain.sequence, to.chain.previous) == (self.sequence, self.previous);
        from.position < self.end && self.end < to.position || to.position == self.end && !is_there
    }

    /// Whether the program that wrote the journal up to `end` kept it up to date: one that knows of
    /// no manifest may have gone on in between.
    pub(crate) fn is_current(&self, end: &Walk) -> bool {
        end.chain.epoch <= self.epoch
    }

    /// A whole file that says only this.
    pub fn file(&self) -> Vec<u8> {
        manifest_file(self.slot_offset(), &self.encode())
    }

    /// What has to be written into a manifest file, and where.
    pub fn slot(&self) -> (u32, Vec<u8>) {
        (self.slot_offset(), self.encode())
    }

    fn slot_offset(&self) -> u32 {
        (self.number % SLOTS) as u32 * SLOT_BYTES
    }

    fn step(&self) -> Step {
        Step::Manifest { offset: self.slot_offset(), bytes: Arc::new(self.encode()) }
    }
}

/// The content of a manifest file that has one slot written and the other one blank.
pub fn manifest_file(offset: u32, slot: &[u8]) -> Vec<u8> {
    let mut file = vec![0; MANIFEST_BYTES];
    file[offset as usize..offset as usize + slot.len()].copy_from_slice(slot);
    file
}

impl Upkeep {
    pub(crate) fn new(last: Option<Manifest>) -> Self {
        Self { last, durable: last, ..Self::default() }
    }

    pub(crate) fn note_durable(&mut self, written: &[u8]) {
        if let Ok(Some(manifest)) = Manifest::decode(written) {
            self.durable = Some(manifest);
        }
    }

    /// A whole file with what is known to be durable.
    pub(crate) fn file(&self) -> Option<Vec<u8>> {
        self.durable.as_ref().map(Manifest::file)
    }

    pub(crate) fn exists(&self) -> bool {
        self.last.is_some()
    }
}

impl Journal {
    /// A step that states the present end of the journal. Everything before that end must be
    /// durable when the step's turn comes.
    pub(crate) fn state_end(&mut self) -> Step {
        let end = Position::new(self.head.segment, self.head.next);
        let stated = Manifest {
            identity: self.identity,
            number: 0,
            end,
            sequence: self.head.sequence,
            previous: self.head.previous,
            epoch: self.head.epoch,
            reach: self.reach_from(end),
            stamp: self.upkeep.last.and_then(|last| last.stamp),
        };
        self.upkeep.is_due = false;
        self.upkeep.stated_ms = self.now_ms;
        self.state(stated)
    }

    /// Every part of the data directory has the stamp of this start by now, which the journal was
    /// opened without: the next manifest says so, and is due.
    pub fn finish_stamp(&mut self) {
        let stamp = self.upkeep.last.as_mut().and_then(|last| last.stamp.as_mut());
        if let Some(stamp) = stamp.filter(|stamp| !stamp.is_finished) {
            stamp.is_finished = true;
            self.upkeep.is_due = true;
        }
    }

    /// Before a batch that ends at `end` is written, the manifest has to reach that far.
    pub(crate) fn extend_reach(&mut self, end: Position) {
        if let Some(last) = self.upkeep.last.filter(|last| last.reach < end) {
            let step = self.state(Manifest { reach: self.reach_from(end), ..last });
            self.queue.push_back(step);
        }
    }

    fn state(&mut self, manifest: Manifest) -> Step {
        let number = self.upkeep.last.map_or(0, |last| last.number) + 1;
        let manifest = Manifest { number, ..manifest };
        self.upkeep.last = Some(manifest);
        manifest.step()
    }

    /// As far ahead as the segment is full already, within limits: small journals are read to the
    /// end in no time, and large ones do not have their manifest written all the time.
    fn reach_from(&self, end: Position) -> Position {
        let ahead_min = self.settings.manifest_ahead_bytes;
        let ahead = end.offset().clamp(ahead_min, AHEAD_BYTES_MAX.max(ahead_min));
        Position::new(end.segment(), end.offset().saturating_add(ahead))
    }

    pub(crate) fn on_tick_manifest(&mut self) {
        if self.manifest_deadline().is_some_and(|at| at <= self.now_ms) {
            self.upkeep.is_due = true;
        }
    }

    /// When the manifest falls behind too far.
    pub(crate) fn manifest_deadline(&self) -> Option<u64> {
        let last = self.upkeep.last?;
        let is_behind = self.phase == Phase::Running && last.end < self.end();
        let waits = is_behind && !self.upkeep.is_due && self.poison.is_none();
        waits.then(|| self.upkeep.stated_ms + u64::from(self.settings.manifest_interval_ms))
    }
}

/// The version of the manifest's format.
const MANIFEST_VERSION: u16 = 2;
const MAGIC: &[u8; 8] = b"QueleaMf";
const CONTENT_BYTES: usize = 112;
/// Version 1 ends where the stamp begins.
const CONTENT_BYTES_V1: usize = 76;
const NO_STAMP: Stamp = Stamp { directory: [0; 16], start: 0, token: 0, is_finished: false };
/// Each slot has a block to itself, so that writing one does no harm to the other.
const SLOT_BYTES: u32 = 4096;
const SLOTS: u64 = 2;
/// Bytes of a manifest file.
pub const MANIFEST_BYTES: usize = SLOTS as usize * SLOT_BYTES as usize;
/// The farthest that the manifest is ahead of what is written: what a start may read in vain.
const AHEAD_BYTES_MAX: u32 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(number: u64) -> Manifest {
        Manifest {
            identity: Identity { id: *b"0123456789abcdef", shard: 1, shards: 4 },
            number,
            end: Position::new(3, 5000),
            sequence: 17,
            previous: 0xdead_beef,
            epoch: 2,
            reach: Position::new(3, 70_000),
            stamp: Some(Stamp { directory: [3; 16], start: 5, token: 77, is_finished: true }),
        }
    }

    fn both(first: u64, second: u64) -> Vec<u8> {
        let mut file = manifest(first).file();
        let Step::Manifest { offset, bytes } = manifest(second).step() else { unreachable!() };
        file[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        file
    }

    #[test]
    fn a_manifest_survives_the_way_there_and_back() {
        assert_eq!(Manifest::read(&manifest(6).file()), Ok(manifest(6)));
        assert_eq!(manifest(6).file().len(), 8192);
    }

    #[test]
    fn the_newer_slot_counts_while_it_is_whole() {
        let mut file = both(6, 7);
        assert_eq!(Manifest::read(&file).map(|found| found.number), Ok(7));
        file[SLOT_BYTES as usize + 40] ^= 1;
        assert_eq!(Manifest::read(&file).map(|found| found.number), Ok(6));
        file[40] ^= 1;
        assert_eq!(Manifest::read(&file), Err(Refusal::Manifest));
        assert_eq!(Manifest::read(&[]), Err(Refusal::Manifest));
    }

    #[test]
    fn a_later_version_is_named() {
        let mut file = manifest(2).file();
        file[8] = 9;
        let crc = crc32c(&file[..108]);
        file[108..112].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Manifest::read(&file), Err(Refusal::ManifestVersion(9)));
    }

    #[test]
    fn a_later_version_in_one_slot_is_named_also_when_it_is_shorter() {
        let mut file = both(6, 7);
        file[SLOT_BYTES as usize..][..CONTENT_BYTES_V1].copy_from_slice(VERSION_1);
        file[SLOT_BYTES as usize + 8] = 3;
        let slot = &mut file[SLOT_BYTES as usize..];
        let crc = crc32c(&slot[..72]);
        slot[72..76].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Manifest::read(&file), Err(Refusal::ManifestVersion(3)));
    }

    /// Data directories of version 0.1 have it.
    #[test]
    fn version_1_is_read_and_has_no_stamp() {
        let file = manifest_file(0, VERSION_1);
        let expected = Manifest { stamp: None, ..manifest(6) };
        assert_eq!(Manifest::read(&file), Ok(expected));
    }

    #[rustfmt::skip]
    const VERSION_1: &[u8] = b"QueleaMf\x01\0\x4c\0\x01\0\x04\x000123456789abcdef\
        \x06\0\0\0\0\0\0\0\x88\x13\0\0\x03\0\0\0\x11\0\0\0\0\0\0\0\
        \x70\x11\x01\0\x03\0\0\0\xef\xbe\xad\xde\x02\0\0\0\xc6\x99\x99\x02";
}
