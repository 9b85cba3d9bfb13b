//! A user of the journal that is simple enough to know what must be true: a map whose every change
//! is a record. It is what the broker will be in the large.

#![allow(dead_code, reason = "each test file that includes the model uses a part of it")]

use std::collections::BTreeMap;

use storage::testing::{Crash, Rng, SimDisk};
use storage::{
    AppendError, Chunk, Command, Completion, Identity, InPlaceEnd, Journal, Ledger, Level,
    Position, Record, RecordKind, Refusal, Settings, Status, weight,
};

pub(crate) const SEGMENT_BYTES: u32 = 64 * 1024;
pub(crate) const PUT: RecordKind = RecordKind::new(1);
pub(crate) const DELETE: RecordKind = RecordKind::new(2);
pub(crate) const IDENTITY: Identity = Identity { id: *b"a log for a test", shard: 1, shards: 4 };

/// Short times, so that histories have all of it.
pub(crate) fn settings() -> Settings {
    Settings { sync_interval_ms: 50, retry_ms: 50, ..Settings::with_segment_bytes(SEGMENT_BYTES) }
}

/// The histories to try: `STORAGE_SEEDS` says how many, `STORAGE_SEED` picks one.
pub(crate) fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("STORAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STORAGE_SEEDS").unwrap_or(default),
    }
}

/// Changes, turns and disk steps in any order, for `events` events.
pub(crate) fn live(model: &mut Model, rng: &mut Rng, events: u64) {
    for _ in 0..events {
        match rng.below(10) {
            0..4 => model.random_append(rng),
            4..6 => model.turn(),
            6..9 => model.step(),
            _ => model.tick(rng.below(40)),
        }
    }
}

/// One change: `op` numbers them, `life` tells apart equal numbers before and after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) key: u16,
    pub(crate) op: u64,
    pub(crate) life: u32,
    /// `None`: the key is removed.
    pub(crate) filler: Option<usize>,
}

impl Op {
    fn encode(&self) -> (RecordKind, Vec<u8>) {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.key.to_le_bytes());
        bytes.extend_from_slice(&self.op.to_le_bytes());
        bytes.extend_from_slice(&self.life.to_le_bytes());
        let Some(filler) = self.filler else { return (DELETE, bytes) };
        bytes.extend((0..filler).map(|at| (at as u64 ^ self.op) as u8));
        (PUT, bytes)
    }

    fn decode(record: Record<'_>) -> Self {
        let bytes = record.bytes;
        Self {
            key: u16::from_le_bytes(bytes[..2].try_into().expect("two bytes")),
            op: u64::from_le_bytes(bytes[2..10].try_into().expect("eight bytes")),
            life: u32::from_le_bytes(bytes[10..14].try_into().expect("four bytes")),
            filler: (record.kind == PUT).then_some(bytes.len() - 14),
        }
    }
}

/// What the map holds, and where.
pub(crate) type State = BTreeMap<u16, (Op, Position)>;

pub(crate) struct Model {
    pub(crate) disk: SimDisk,
    pub(crate) journal: Journal,
    pub(crate) settings: Settings,
    pub(crate) now_ms: u64,
    state: State,
    /// Every change so far that may have survived.
    ops: Vec<Op>,
    /// Position of each change of this life.
    positions: Vec<(u64, Position)>,
    /// Changes below these numbers were reported committed.
    pub(crate) promised_disk: u64,
    pub(crate) promised_fsync: u64,
    /// What the last recovery found: promised once the journal is ready.
    recovered_upto: u64,
    life: u32,
    chunk: Option<Chunk>,
    /// Of changes at random.
    pub(crate) fsync_percent: u64,
    /// The disk has done something, and the journal is not notified before the next step.
    pub(crate) answers_late: bool,
    late_answer: Option<Completion>,
    /// What the owner writes itself, and how that ends.
    pub(crate) in_place_bytes_max: usize,
    pub(crate) in_place_end: InPlaceEnd,
    /// The planted bug: everything written is promised as if it were synced.
    pub(crate) promise_too_early: bool,
    /// The planted bug: a record of this key is not copied forward.
    pub(crate) forget_key: Option<u16>,
}

impl Model {
    pub(crate) fn new(seed: u64, settings: Settings) -> Self {
        settings.check().expect("settings of a test agree");
        Self {
            disk: SimDisk::new(seed),
            journal: Journal::create(IDENTITY, settings.clone()),
            settings,
            now_ms: 0,
            state: State::new(),
            ops: Vec::new(),
            positions: Vec::new(),
            promised_disk: 0,
            promised_fsync: 0,
            recovered_upto: 0,
            life: 1,
            chunk: None,
            fsync_percent: 70,
            answers_late: false,
            late_answer: None,
            in_place_bytes_max: 0,
            in_place_end: InPlaceEnd::Done,
            promise_too_early: false,
            forget_key: None,
        }
    }

    pub(crate) fn append(&mut self, key: u16, filler: Option<usize>, level: Level) -> bool {
        let op = Op { key, op: self.ops.len() as u64 + 1, life: self.life, filler };
        if filler.is_none() && !self.state.contains_key(&key) {
            return false;
        }
        let (kind, bytes) = op.encode();
        let (front, back) = bytes.split_at(bytes.len() / 2);
        let result = match filler {
            Some(_) => self.journal.append(kind, &[front, back], level),
            None => self.journal.append_essential(kind, &[front, back], level),
        };
        let position = match result {
            Ok(position) => position,
            Err(error) => {
                assert!(!matches!(error, AppendError::TooLarge { .. }), "{error}");
                return false;
            }
        };
        let record = self.journal.read(position).expect("a record just appended is in memory");
        assert_eq!((record.kind, record.bytes), (kind, &bytes[..]));
        self.positions.push((op.op, position));
        self.ops.push(op.clone());
        let journal = &mut self.journal;
        apply(&mut self.state, op, position, &mut |position, bytes| {
            journal.release(position, bytes)
        });
        true
    }

    /// One turn of the owner: reclaiming, a write in place, then the commands to the disk.
    pub(crate) fn turn(&mut self) {
        self.copy_forward();
        if let Some(write) = self.journal.begin_write(self.in_place_bytes_max) {
            let end = match self.in_place_end {
                InPlaceEnd::NotDone => self.disk.tear_in_place(&write),
                end => match self.disk.write_in_place(&write) {
                    InPlaceEnd::Done => end,
                    other => other,
                },
            };
            self.journal.end_write(write, end);
            self.note_promises();
        }
        let mut commands = Vec::new();
        self.journal.take_commands(&mut commands, self.now_ms);
        commands.into_iter().for_each(|command: Command| self.disk.submit(command));
    }

    /// One step of the disk, or the answer to the one before where answers are late.
    pub(crate) fn step(&mut self) {
        let is_late = self.late_answer.is_some();
        let done = self.late_answer.take().or_else(|| self.disk.step());
        if self.answers_late && !is_late {
            self.late_answer = done;
        } else if let Some(completion) = done {
            assert!(self.journal.on_completed(completion).is_none());
            self.note_promises();
        }
    }

    pub(crate) fn tick(&mut self, elapsed_ms: u64) {
        self.now_ms += elapsed_ms;
        self.journal.on_tick(self.now_ms);
    }

    /// Turns and steps until the journal is ready and the disk has nothing to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            self.turn();
            if self.is_idle() && self.journal.status() != Status::Opening {
                return;
            }
            self.step();
            if self.journal.status() == Status::Opening && self.is_idle() {
                self.tick(100);
            }
        }
        panic!("the log does not come to rest: {:?}", self.journal.status());
    }

    fn is_idle(&self) -> bool {
        self.disk.is_idle() && self.late_answer.is_none()
    }

    /// Whether the map holds `key` now.
    pub(crate) fn holds(&self, key: u16) -> bool {
        self.state.contains_key(&key)
    }

    fn note_promises(&mut self) {
        let (written, synced) = (self.journal.written_upto(), self.journal.synced_upto());
        let early = self.promise_too_early;
        if self.journal.is_ready() {
            self.promised_fsync = self.promised_fsync.max(self.recovered_upto);
        }
        for &(op, position) in &self.positions {
            if position < written {
                self.promised_disk = self.promised_disk.max(op);
            }
            if position < synced || (early && position < written) {
                self.promised_fsync = self.promised_fsync.max(op);
            }
        }
        self.positions.retain(|&(_, position)| position >= synced);
    }

    fn copy_forward(&mut self) {
        let Some(mut chunk) = self.chunk.take().or_else(|| self.journal.reclaim()) else { return };
        while let Some(record) = chunk.next() {
            let Op { key, .. } = Op::decode(record);
            let is_live = self.state.get(&key).is_some_and(|(_, at)| *at == record.position);
            if !is_live || self.forget_key == Some(key) {
                continue;
            }
            match self.journal.append_copy(record.kind, &[record.bytes], Level::Disk) {
                Ok(position) => self.moved(key, position),
                Err(_) => {
                    chunk.put_back();
                    self.chunk = Some(chunk);
                    return;
                }
            }
        }
        self.journal.reclaimed(chunk);
    }

    fn moved(&mut self, key: u16, to: Position) {
        if let Some((_, position)) = self.state.get_mut(&key) {
            *position = to;
        }
    }

    pub(crate) fn crash(&mut self, crash: Crash) {
        self.disk.crash(crash);
        self.late_answer = None;
    }

    /// A disk with what a backup made now has.
    pub(crate) fn backup(&self, seed: u64) -> SimDisk {
        let mut copy = SimDisk::new(seed);
        for (number, bytes) in self.journal.written_files() {
            let whole = self.disk.content(number);
            let mut content = whole[..bytes as usize].to_vec();
            content.resize(whole.len(), 0);
            copy.put(number, content);
        }
        copy.put_manifest(self.journal.manifest());
        copy
    }

    /// Starts again, and checks everything that must be true.
    pub(crate) fn recover(&mut self, crash: Crash) -> Result<(), String> {
        let (recovered, seen) = replay(&self.disk, &self.settings).map_err(|r| r.to_string())?;
        let promised = match crash {
            Crash::Kill => self.promised_disk.max(self.promised_fsync),
            Crash::Power => self.promised_fsync,
        };
        let upto = promised.max(seen.max_op);
        if upto > self.ops.len() as u64 {
            return Err(format!("change {upto} was never made"));
        }
        self.ops.truncate(upto as usize);
        let mut expected = State::new();
        for op in &self.ops {
            apply(&mut expected, op.clone(), Position::default(), &mut |_, _| {});
        }
        let content =
            |state: &State| -> Vec<Op> { state.values().map(|(op, _)| op.clone()).collect() };
        let (expected, found) = (content(&expected), content(&seen.state));
        if expected != found {
            return Err(format!(
                "after {upto} changes ({promised} promised) the state differs: {} keys, not {}",
                found.len(),
                expected.len()
            ));
        }
        self.state = seen.state;
        self.positions.clear();
        self.promised_disk = upto;
        self.recovered_upto = upto;
        self.life += 1;
        self.chunk = None;
        self.journal = Journal::open(recovered, self.settings.clone());
        self.journal.on_tick(self.now_ms);
        Ok(())
    }

    /// A change at random.
    pub(crate) fn random_append(&mut self, rng: &mut Rng) {
        let key = rng.below(40) as u16;
        let level = match rng.below(100) {
            percent if percent < self.fsync_percent => Level::Fsync,
            percent if percent % 2 == 0 => Level::Disk,
            _ => Level::Lazy,
        };
        let filler = match rng.below(10) {
            0..2 => None,
            2..8 => Some(rng.below(300) as usize),
            8 => Some(rng.below(4000) as usize),
            _ => Some(rng.below(u64::from(self.settings.record_bytes_max) - 14) as usize),
        };
        self.append(key, filler, level);
    }
}

/// What the records of a journal say.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) state: State,
    max_op: u64,
}

impl Seen {
    pub(crate) fn on_record(&mut self, record: Record<'_>, ledger: &mut Ledger) {
        let op = Op::decode(record);
        assert_eq!(op.encode().1, record.bytes, "a record that was never appended");
        self.max_op = self.max_op.max(op.op);
        apply(&mut self.state, op, record.position, &mut |position, bytes| {
            ledger.release(position, bytes);
        });
    }
}

/// Recovers from what is on the disk.
pub(crate) fn replay(
    disk: &SimDisk,
    settings: &Settings,
) -> Result<(storage::Recovered, Seen), Refusal> {
    let mut seen = Seen::default();
    let recovery = disk.read_back((1, 4), settings, &mut |record, ledger: &mut Ledger| {
        seen.on_record(record, ledger);
    })?;
    Ok((recovery.finish(IDENTITY), seen))
}

/// Applies a change, and releases what it makes superfluous. A deletion is superfluous at once:
/// segments are reclaimed oldest first, so what it deletes is gone before it.
fn apply(state: &mut State, op: Op, position: Position, release: &mut dyn FnMut(Position, u64)) {
    let len = |op: &Op| weight(op.encode().1.len());
    if op.filler.is_none() {
        release(position, len(&op));
        if let Some((old, at)) = state.remove(&op.key) {
            release(at, len(&old));
        }
        return;
    }
    if let Some((old, at)) = state.insert(op.key, (op.clone(), position)) {
        release(at, len(&old));
    }
}
