//! Reclaiming: the oldest segment is read, what is still needed in it is appended again, and its
//! file is given back.
//!
//! Always the oldest: the journal stays one unbroken run of segments, so a missing file is noticed;
//! and a deletion can never outlive the record it deletes, so no tombstones have to be kept. The
//! price is that data which never changes is copied once per turn of the journal. With
//! `space_percent` = 200 a segment is on average half live when its turn comes, and one byte is
//! copied per byte appended.

use crate::chunk::{Chunk, ChunkEnd};
use crate::command::{Command, CommandId, Fault, FaultKind};
use crate::format::HEADER_BLOCK_BYTES;
use crate::journal::{Journal, Phase};
use crate::position::Position;

/// How often reclaiming looks what time has granted it.
const TICK_MS: u64 = 100;

/// When less than this part of a journal is left, reclaiming hurries: nobody is to find it full
/// that holds little in it.
const HURRY_PART: u64 = 16;

/// How long reclaiming waits before it tries again to read what it could not.
const RETRY_MS: u64 = 1000;

/// The segment that is being emptied.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    victim: Option<Victim>,
    /// Bytes that may be read before the appends have to earn more.
    budget: i64,
    /// Where reclaiming met bytes that are not what was written, or that it could not read. It
    /// stops there.
    damaged: Option<Position>,
    /// When it tries again what it could not read.
    retry_at_ms: Option<u64>,
    /// Up to this segment the journal is to do without, however little space that gives.
    renewed: u32,
}

#[derive(Debug)]
struct Victim {
    segment: u32,
    end: u32,
    /// Offset behind the last record that the user has dealt with.
    at: u32,
    /// How much to read at least, when the next record is longer than a chunk.
    bytes_min: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Idle,
    Reading(CommandId),
    Ready(Chunk),
    /// The chunk is with the user.
    Out,
}

impl Journal {
    /// A chunk of the oldest segment whose live records want to be appended again, if one is at
    /// hand.
    ///
    /// For each record of the chunk that is still needed (and only those: the journal does not
    /// know), append it again with [`Journal::append_copy`] and remember its new position; the old
    /// one need not be released. Then hand the chunk back to [`Journal::reclaimed`]. It may be kept
    /// for several turns, say because an append was refused (see [`Chunk::put_back`]).
    pub fn reclaim(&mut self) -> Option<Chunk> {
        let victim = self.reclaim.victim.as_mut()?;
        if !matches!(victim.state, State::Ready(_)) {
            return None;
        }
        match std::mem::replace(&mut victim.state, State::Out) {
            State::Ready(chunk) => Some(chunk),
            _ => None,
        }
    }

    /// Takes back a chunk of [`Journal::reclaim`]. All records before [`Chunk::position`] have been
    /// dealt with.
    pub fn reclaimed(&mut self, chunk: Chunk) {
        let Some(victim) = self.reclaim.victim.as_mut() else { return };
        if chunk.start().segment() != victim.segment || !matches!(victim.state, State::Out) {
            return;
        }
        victim.state = State::Idle;
        victim.at = chunk.position().offset();
        victim.bytes_min = 0;
        match chunk.end() {
            ChunkEnd::Whole => {}
            ChunkEnd::Partial(bytes) if bytes as u64 > u64::from(victim.end - victim.at) => {
                self.reclaim.damaged = Some(chunk.position());
            }
            ChunkEnd::Partial(bytes) => victim.bytes_min = bytes as u32,
            ChunkEnd::Damaged => self.reclaim.damaged = Some(chunk.position()),
        }
    }

    /// Where reclaiming found bytes that are not what was written, or that cannot be read, if it
    /// did: the medium is failing. No space comes back before they can be read, or the next start.
    pub fn damaged(&self) -> Option<Position> {
        self.reclaim.damaged
    }

    /// The journal is to do without its segments up to this one, however little they hold: they
    /// are emptied as if space were short. Where the last one is among them, it goes on in another.
    /// For a medium that many journals share, and of which the oldest segment of each keeps all
    /// that follows.
    pub fn renew(&mut self, segment: u32) {
        self.reclaim.renewed = self.reclaim.renewed.max(segment);
    }

    /// Whether a segment is there that the journal is to do without.
    fn must_renew(&self) -> bool {
        let renewed = self.reclaim.renewed;
        self.ledger.oldest().is_some_and(|oldest| oldest <= renewed)
    }

    /// Whether the segment that is written is one that the journal is to do without.
    pub(crate) fn must_leave_head(&self) -> bool {
        self.phase == Phase::Running
            && self.head.segment <= self.reclaim.renewed
            && self.must_renew()
    }

    pub(crate) fn plan_reclaim(&mut self) {
        let Reclaim { damaged, retry_at_ms, .. } = &self.reclaim;
        let waits = retry_at_ms.map_or(damaged.is_some(), |at_ms| at_ms > self.now_ms);
        if self.poison.is_some() || waits {
            return;
        }
        if self.must_leave_head() {
            // Without a spare segment it is tried again when there is one.
            self.roll();
        }
        self.retire_dead();
        if self.reclaim.victim.is_none() && self.reclaim_is_due() {
            self.choose_victim();
        }
        let affordable = self.reclaim.budget > 0 || self.reclaim_is_urgent();
        let chunk_bytes = self.settings.reclaim_chunk_bytes;
        let Some(victim) = self.reclaim.victim.as_mut() else { return };
        if !matches!(victim.state, State::Idle) {
            return;
        }
        if victim.at >= victim.end {
            self.retire_oldest();
            return;
        }
        if affordable {
            let (segment, offset) = (victim.segment, victim.at);
            let bytes = chunk_bytes.max(victim.bytes_min).min(victim.end - offset);
            let id = self.command_id();
            self.reclaim.budget -= i64::from(bytes);
            self.stats.bytes_reclaim_read += u64::from(bytes);
            self.commands.push(Command::Read { id, segment, offset, bytes });
            if let Some(victim) = self.reclaim.victim.as_mut() {
                victim.state = State::Reading(id);
            }
        }
    }

    /// Segments without a live record go without being read.
    fn retire_dead(&mut self) {
        while self.reclaim.victim.is_none()
            && let Some(number) = self.ledger.oldest()
            && number < self.commit.written.segment()
            && self.ledger.usage(number).is_some_and(|usage| usage.live == 0)
        {
            self.retire_oldest();
        }
    }

    fn retire_oldest(&mut self) {
        if let Some((number, usage)) = self.ledger.pop_oldest() {
            self.space.retire(number, usage);
        }
        self.reclaim.victim = None;
    }

    fn choose_victim(&mut self) {
        let Some(segment) = self.ledger.oldest() else { return };
        // A segment is read only when no write to it is under way any more.
        if segment >= self.commit.written.segment() {
            return;
        }
        let Some(usage) = self.ledger.usage(segment) else { return };
        self.reclaim.victim = Some(Victim {
            segment,
            end: usage.end,
            at: HEADER_BLOCK_BYTES,
            bytes_min: 0,
            state: State::Idle,
        });
    }

    fn reclaim_is_due(&self) -> bool {
        if self.must_renew() {
            return true;
        }
        let (used, live) = (self.ledger.used_bytes(), self.ledger.live_bytes());
        if self.space_is_short() {
            return used > live + u64::from(self.settings.reserve_bytes);
        }
        let slack =
            u64::from(self.settings.segment_bytes) * u64::from(self.settings.slack_segments);
        used > live * u64::from(self.settings.space_percent) / 100 + slack
    }

    /// On a full disk, and in a journal near its limit, a segment's worth of dead bytes is fetched
    /// as fast as the disk can; less than that is not worth hurrying for, and could not be told
    /// from standing still.
    fn reclaim_is_urgent(&self) -> bool {
        let dead = self.ledger.used_bytes().saturating_sub(self.ledger.live_bytes());
        self.space_is_short() && dead > u64::from(self.settings.segment_bytes)
    }

    fn space_is_short(&self) -> bool {
        let least = self.settings.log_bytes_max / HURRY_PART;
        self.space.full.is_some() || self.bytes_left().is_some_and(|left| left < least)
    }

    pub(crate) fn grant_reclaim_share(&mut self, appended: u64) {
        self.grant(appended * u64::from(self.settings.reclaim_percent) / 100);
    }

    pub(crate) fn grant_reclaim_time(&mut self, elapsed_ms: u64) {
        let per_sec = u64::from(self.settings.reclaim_bytes_per_sec);
        self.grant(elapsed_ms.min(1000) * per_sec / 1000);
    }

    fn grant(&mut self, bytes: u64) {
        let budget_max = 4 * i64::from(self.settings.reclaim_chunk_bytes);
        self.reclaim.budget = (self.reclaim.budget + bytes as i64).min(budget_max);
    }

    /// When reclaiming goes on, if it stands still only until time grants it more, or until it
    /// tries again what it could not read.
    pub(crate) fn reclaim_deadline(&self) -> Option<u64> {
        let idle = match &self.reclaim.victim {
            Some(victim) => matches!(victim.state, State::Idle),
            None => self.reclaim_is_due(),
        };
        let Reclaim { damaged, retry_at_ms, .. } = &self.reclaim;
        let waits = idle && self.poison.is_none() && (damaged.is_none() || retry_at_ms.is_some());
        waits.then(|| (self.now_ms + TICK_MS).max(retry_at_ms.unwrap_or_default()))
    }

    pub(crate) fn on_reclaim_read(&mut self, id: CommandId, result: Result<Vec<u8>, Fault>) {
        let Some(victim) = self.reclaim.victim.as_mut() else { return };
        if !matches!(victim.state, State::Reading(reading) if reading == id) {
            return;
        }
        let start = Position::new(victim.segment, victim.at);
        match result {
            Ok(bytes) if !bytes.is_empty() => {
                let seed = self.identity.seed(victim.segment);
                victim.state = State::Ready(Chunk::new(start, bytes, seed));
                self.reclaim.damaged = None;
                self.reclaim.retry_at_ms = None;
            }
            // The file is shorter than what was written to it.
            Ok(_) => {
                victim.state = State::Idle;
                self.reclaim.damaged = Some(start);
                self.reclaim.retry_at_ms = None;
            }
            Err(fault) if fault.kind == FaultKind::Unavailable => {
                victim.state = State::Idle;
                self.reclaim.retry_at_ms = Some(self.now_ms + RETRY_MS);
            }
            // A device that was gone for a moment gives it back later.
            Err(_) => {
                victim.state = State::Idle;
                self.reclaim.damaged = Some(start);
                self.reclaim.retry_at_ms = Some(self.now_ms + RETRY_MS);
            }
        }
    }
}
