//! Streams of records over a disk that fails and loses power: what was reported durable is read
//! back, each record once, in its order.

use std::collections::BTreeMap;

use storage::stream::{
    Archived, Block, BlockFault, BlockWriter, FILE_HEADER_BYTES, FILE_TAIL_BYTES, FileIdentity,
    FileIndex, FoundFile, Location, StreamCommand, StreamCommandId, StreamLimits, StreamLog,
    check_reach,
};
use storage::testing::Rng;
use storage::{Fault, FaultKind};

const STREAM: [u8; 16] = *b"0123456789abcdef";
const SHARDS: u16 = 3;

/// A record as it was appended: its time and its bytes.
type Kept = (u64, Vec<u8>);

#[derive(Default)]
struct SimFile {
    /// What survives a loss of power.
    durable: Vec<u8>,
    written: Vec<u8>,
}

impl SimFile {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        self.written.resize(self.written.len().max(end), 0);
        self.written[offset as usize..end].copy_from_slice(bytes);
    }
}

/// The owner of a stream, its disk, and what a journal would remember.
struct Model {
    rng: Rng,
    log: StreamLog,
    limits: StreamLimits,
    files: BTreeMap<u64, SimFile>,
    waiting: Vec<StreamCommand>,
    now_ms: u64,
    /// All records of each shard, by ordinal.
    appended: BTreeMap<u16, Vec<Kept>>,
    archived: BTreeMap<u16, u64>,
    /// How far each file was durable.
    reach: BTreeMap<u64, u64>,
    /// Records below these were dropped.
    floor: BTreeMap<u16, u64>,
}

impl Model {
    fn new(seed: u64, limits: StreamLimits) -> Self {
        let log = StreamLog::open(STREAM, limits, Vec::new(), BTreeMap::new());
        Self {
            rng: Rng::new(seed),
            log,
            limits,
            files: BTreeMap::new(),
            waiting: Vec::new(),
            now_ms: 1000,
            appended: BTreeMap::new(),
            archived: BTreeMap::new(),
            reach: BTreeMap::new(),
            floor: BTreeMap::new(),
        }
    }

    fn append(&mut self, shard: u16, count: u64, bytes_max: u64) {
        let records = self.appended.entry(shard).or_default();
        let mut block = BlockWriter::new(shard, 1, records.len() as u64);
        for _ in 0..count {
            self.now_ms += self.rng.below(3);
            let len = self.rng.below(bytes_max) as usize;
            let bytes = match self.rng.chance(50) {
                true => vec![records.len() as u8; len],
                false => (0..len).map(|_| self.rng.next_u64() as u8).collect(),
            };
            assert!(block.push(self.now_ms, &bytes), "it is small");
            records.push((self.now_ms, bytes));
        }
        self.log.append(block);
        self.log.take_commands(&mut self.waiting);
    }

    /// The disk does the oldest command. `fails`: a write is not done, or only a part of it.
    fn step(&mut self, fails: bool) {
        if self.waiting.is_empty() {
            return;
        }
        match self.waiting.remove(0) {
            StreamCommand::Write { id, file, offset, bytes } => {
                self.write(id, (file, offset), &bytes, fails);
            }
            StreamCommand::Close { file, offset, bytes } => {
                let known = self.files.entry(file).or_default();
                known.write(offset, &bytes);
                if !fails {
                    known.durable = known.written.clone();
                }
            }
            StreamCommand::Delete { file } => {
                self.files.remove(&file);
            }
        }
    }

    fn write(&mut self, id: StreamCommandId, at: (u64, u64), bytes: &[u8], fails: bool) {
        let (file, offset) = at;
        let known = self.files.entry(file).or_default();
        let part = self.rng.below(bytes.len() as u64 + 1) as usize;
        known.write(offset, if fails { &bytes[..part] } else { bytes });
        if !fails {
            known.durable = known.written.clone();
        }
        let fault = || Fault { kind: FaultKind::NoSpace, detail: "full".to_owned() };
        let result = if fails { Err(fault()) } else { Ok(()) };
        if let Some(Archived { shard, next, file, end }) = self.log.on_written(id, result) {
            self.archived.insert(shard, next);
            self.reach.insert(file, end);
        }
        self.log.take_commands(&mut self.waiting);
    }

    fn retain(&mut self) {
        for dropped in self.log.retain(self.now_ms, |_| 0) {
            let floor = self.floor.entry(dropped.shard).or_default();
            assert!(*floor <= dropped.first && dropped.first < dropped.next);
            assert_eq!(dropped.records, dropped.next - dropped.first);
            *floor = dropped.next;
            self.reach.remove(&dropped.file);
            self.log.delete_below(dropped.file + 1);
        }
        self.log.take_commands(&mut self.waiting);
    }

    /// A loss of power, and a start from what is left.
    fn restart(&mut self) {
        self.waiting.clear();
        for file in self.files.values_mut() {
            // Of what was not synced any part may be there.
            let rest = file.written.len() - file.durable.len().min(file.written.len());
            let kept = file.durable.len() + self.rng.below(rest as u64 + 1) as usize;
            let kept = kept.min(file.written.len());
            let tail = file.written[file.durable.len().min(kept)..kept].to_vec();
            file.durable.extend(tail);
            file.written = file.durable.clone();
        }
        let mut found = Vec::new();
        self.files.retain(|number, _| self.reach.contains_key(number));
        for (&number, file) in &self.files {
            let index = read_file(number, &file.durable, self.reach[&number]);
            check_reach(&index, number, self.reach[&number]).expect("nothing durable is lost");
            found.push(FoundFile { number, index });
        }
        self.log = StreamLog::open(STREAM, self.limits, found, self.archived.clone());
        // The journal still has what is in no file.
        for shard in 0..SHARDS {
            let next = self.archived.get(&shard).copied().unwrap_or_default();
            let records = self.appended.entry(shard).or_default();
            let mut block = BlockWriter::new(shard, 1, next);
            for (at_ms, bytes) in &records[next as usize..] {
                assert!(block.push(*at_ms, bytes));
            }
            self.log.append(block);
        }
        self.log.take_commands(&mut self.waiting);
    }

    fn finish(&mut self) {
        while !self.waiting.is_empty() || self.log.fault().is_some() {
            self.step(false);
            self.log.retry();
            self.log.take_commands(&mut self.waiting);
        }
    }

    /// Every record that is durable and not dropped is found, by its number and by its time.
    fn check(&self) {
        for shard in 0..SHARDS {
            let floor = self.floor.get(&shard).copied().unwrap_or_default();
            let next = self.archived.get(&shard).copied().unwrap_or_default();
            let all = self.appended.get(&shard).map_or(&[][..], Vec::as_slice);
            if floor > 0 && floor < next {
                assert_eq!(self.log.locate(shard, 0), Location::Gone { next: floor });
            } else if floor > 0 {
                assert_eq!(self.log.locate(shard, 0), Location::Gone { next });
            }
            assert_eq!(self.log.locate(shard, next), Location::Ahead);
            for ordinal in floor..next {
                let found = self.find(shard, ordinal);
                assert_eq!(found.as_ref(), Some(&all[ordinal as usize]), "{shard} {ordinal}");
            }
            let kept = &all[floor as usize..next as usize];
            for (at_ms, _) in kept {
                let first = kept.iter().position(|(ms, _)| ms >= at_ms).expect("this one is");
                let Location::File { file, offset, end } = self.log.locate_time(shard, *at_ms)
                else {
                    panic!("{shard} has nothing at {at_ms}");
                };
                let found = self.read(shard, (file, offset, end)).into_iter();
                let mut behind = found.skip_while(|(_, (ms, _))| ms < at_ms);
                let (ordinal, _) = behind.next().expect("it is in this file");
                assert_eq!(ordinal, floor + first as u64, "{shard} at {at_ms}");
            }
        }
    }

    fn find(&self, shard: u16, ordinal: u64) -> Option<Kept> {
        let Location::File { file, offset, end } = self.log.locate(shard, ordinal) else {
            return None;
        };
        let mut found = self.read(shard, (file, offset, end)).into_iter();
        found.find(|(number, _)| *number == ordinal).map(|(_, kept)| kept)
    }

    fn read(&self, shard: u16, (number, offset, end): (u64, u64, u64)) -> Vec<(u64, Kept)> {
        let content = &self.files[&number].durable[..end as usize];
        let identity = FileIdentity { stream: STREAM, number };
        let mut at = offset as usize;
        let mut found = Vec::new();
        while at < content.len() {
            let block = Block::read(&content[at..], &identity).expect("it is durable");
            if block.header.shard == shard {
                let records = block.records();
                found.extend(records.map(|it| (it.ordinal, (it.at_ms, it.bytes.to_vec()))));
            }
            at += block.header.block_bytes() as usize;
        }
        found
    }
}

/// As a start does: by the footer if it states what the journal does, or by the blocks.
fn read_file(number: u64, content: &[u8], reach: u64) -> FileIndex {
    let identity = FileIdentity { stream: STREAM, number };
    assert_eq!(FileIdentity::read(content), Ok(identity));
    let tail = &content[content.len().saturating_sub(FILE_TAIL_BYTES)..];
    if FileIndex::footer_at(tail, &identity) == Some(reach) {
        return FileIndex::read_footer(&content[reach as usize..], &identity).expect("it is whole");
    }
    let mut index = FileIndex::default();
    index.scan(&content[FILE_HEADER_BYTES..], &identity, reach);
    index
}

/// `faults`: of a hundred writes so many fail.
fn history(seed: u64, faults: u64) {
    let mut rng = Rng::new(seed);
    let limits = StreamLimits {
        file_bytes: [500, 5_000, 100_000][rng.below(3) as usize],
        bytes_max: rng.chance(50).then_some(20_000),
        age_ms_max: rng.chance(30).then_some(200),
        records_max: rng.chance(30).then_some(200),
        ..StreamLimits::default()
    };
    let mut model = Model::new(rng.next_u64(), limits);
    for _ in 0..1 + rng.below(3) {
        for _ in 0..rng.below(60) {
            match rng.below(10) {
                0..4 => {
                    let (shard, count) = (rng.below(SHARDS.into()) as u16, 1 + rng.below(20));
                    let bytes_max = [10, 100, 2_000][rng.below(3) as usize];
                    model.append(shard, count, bytes_max);
                }
                4..8 => model.step(rng.chance(faults)),
                8 => {
                    model.log.retry();
                    model.log.take_commands(&mut model.waiting);
                }
                _ => model.retain(),
            }
        }
        if rng.chance(50) {
            model.restart();
            model.check();
        }
    }
    model.finish();
    model.check();
    for (shard, all) in &model.appended {
        assert_eq!(model.archived.get(shard).copied().unwrap_or_default(), all.len() as u64);
    }
}

#[test]
fn what_is_durable_is_found_once_and_in_order() {
    for seed in 0..150 {
        history(seed, 0);
    }
}

#[test]
fn faults_and_losses_of_power_lose_nothing_and_double_nothing() {
    for seed in 0..150 {
        history(seed, 20);
    }
}

/// One entry for each 64 KiB, whatever the records are.
#[test]
fn memory_follows_the_bytes_of_the_files_and_not_the_records() {
    let limits = StreamLimits { file_bytes: 8 << 20, ..StreamLimits::default() };
    let mut model = Model::new(1, limits);
    for _ in 0..60 {
        model.append(0, 1000, 40);
    }
    model.finish();
    let (number, file) = model.files.first_key_value().expect("there is one");
    let index = read_file(*number, &file.durable, model.reach[number]);
    let footer = index.footer(&FileIdentity { stream: STREAM, number: *number });
    assert_eq!(index.records(), 60_000);
    assert!(footer.len() < 1200, "{} bytes of {}", footer.len(), index.end());
}

#[test]
fn a_file_that_is_too_short_refuses_the_start() {
    let mut model = Model::new(1, StreamLimits::default());
    model.append(0, 10, 100);
    model.finish();
    let (number, file) = model.files.first_key_value().expect("there is one");
    let reach = model.reach[number];
    let index = read_file(*number, &file.durable[..file.durable.len() - 1], reach);
    let refusal = check_reach(&index, *number, reach).expect_err("its last block is cut");
    assert!(refusal.to_string().contains("put the whole file back"), "{refusal}");
}

#[test]
fn bytes_of_another_file_or_stream_are_no_block() {
    let identity = FileIdentity { stream: STREAM, number: 1 };
    let mut block = BlockWriter::new(0, 1, 0);
    assert!(block.push(5, b"record"));
    let bytes = block.encode(&identity).1;
    assert_eq!(Block::read(&bytes, &identity).map(|block| block.records().count()), Ok(1));
    let mut others = [identity; 2];
    others[0].number = 2;
    others[1].stream[0] ^= 1;
    for other in others {
        assert_eq!(Block::read(&bytes, &other), Err(BlockFault::Header));
    }
}

#[test]
fn every_changed_byte_is_seen() {
    let identity = FileIdentity { stream: STREAM, number: 1 };
    for len in [1, 3000] {
        let mut block = BlockWriter::new(2, 1, 7);
        assert!(block.push(5, &vec![1; len]) && block.push(6, b"more"));
        let bytes = block.encode(&identity).1;
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(Block::read(&changed, &identity).is_err(), "byte {at}");
            assert!(Block::read(&bytes[..at], &identity).is_err(), "cut at {at}");
        }
    }
}

#[test]
fn a_damaged_block_is_passed_by_to_the_next_that_the_index_names() {
    let mut model = Model::new(3, StreamLimits::default());
    for _ in 0..20 {
        model.append(0, 10, 2_000);
        model.append(1, 10, 2_000);
    }
    model.finish();
    let (number, file) = model.files.first_key_value().expect("there is one");
    let index = read_file(*number, &file.durable, model.reach[number]);
    let identity = FileIdentity { stream: STREAM, number: *number };
    let offset = index.resume_behind(FILE_HEADER_BYTES as u64).expect("there are more");
    assert!(Block::read(&file.durable[offset as usize..], &identity).is_ok());
    assert_eq!(index.resume_behind(index.end()), None);
}

#[test]
fn a_record_that_is_too_large_and_a_block_that_is_full_refuse() {
    let mut block = BlockWriter::new(0, 1, 0);
    assert!(block.push(0, &vec![1; 400_000]));
    assert!(!block.push(0, &vec![1; 200_000]), "it begins the next block");
    assert!(block.push(0, &vec![1; 1000]));
    assert!(!block.push(u64::from(u32::MAX) + 1, b""), "too much later");
    let mut large = BlockWriter::new(0, 1, 0);
    assert!(large.push(0, &vec![1; 30 << 20]), "larger than a block, and alone in one");
    assert!(!large.push(0, b"x"));
}

#[test]
fn files_that_all_consumers_have_passed_go_if_that_is_wanted() {
    let limits = StreamLimits { file_bytes: 500, consumed: true, ..StreamLimits::default() };
    let mut model = Model::new(1, limits);
    for _ in 0..10 {
        model.append(0, 10, 100);
    }
    model.finish();
    assert_eq!(model.log.retain(0, |_| 0), []);
    let dropped = model.log.retain(0, |_| 45);
    assert!(dropped.iter().all(|it| it.next <= 45) && !dropped.is_empty(), "{dropped:?}");
    assert_eq!(dropped[0].first, 0);
}

#[test]
fn files_that_a_consumer_has_not_passed_stay_if_that_is_wanted() {
    let limits = StreamLimits {
        file_bytes: 500,
        records_max: Some(30),
        keep_unconsumed: true,
        ..StreamLimits::default()
    };
    let mut model = Model::new(1, limits);
    for _ in 0..10 {
        model.append(0, 10, 100);
    }
    model.finish();
    assert_eq!(model.log.retain(0, |_| 0), []);
    assert!(model.log.retain(0, |_| 45).iter().all(|it| it.next <= 45));
    assert!(model.log.records() > 30);
    model.log.retain(0, |_| u64::MAX);
    assert!(model.log.records() <= 30, "no more than the limits ask for: {}", model.log.records());
}

#[test]
fn a_dropped_file_is_deleted_when_no_journal_names_it() {
    let limits = StreamLimits { file_bytes: 500, records_max: Some(20), ..StreamLimits::default() };
    let mut model = Model::new(1, limits);
    for _ in 0..10 {
        model.append(0, 10, 100);
    }
    model.finish();
    let dropped = model.log.retain(0, |_| 0);
    let (first, last) = (dropped[0].file, dropped.last().expect("some").file);
    assert!(first < last);
    let deleted = |model: &mut Model| {
        let mut commands = Vec::new();
        model.log.take_commands(&mut commands);
        commands.len() as u64
    };
    let (bytes, next) = (model.log.bytes(), dropped.last().expect("some").next);
    assert_eq!(deleted(&mut model), 0, "journals still name them");
    // Who reads there reads on, and nobody begins there.
    assert!(matches!(model.log.locate(0, 0), Location::File { .. }));
    assert_eq!((model.log.oldest(0), model.log.oldest_kept(0)), (Some(0), Some(next)));
    assert_eq!(model.log.retain(0, |_| 0), []);
    model.log.delete_below(last);
    assert_eq!(deleted(&mut model), last - first);
    model.log.delete_below(u64::MAX);
    assert_eq!(deleted(&mut model), 1);
    assert_eq!(model.log.locate(0, 0), Location::Gone { next });
    assert_eq!((model.log.oldest(0), model.log.bytes()), (Some(next), bytes));
}

#[test]
fn files_that_one_journal_has_forgotten_go_once_all_consumers_have_passed_them() {
    let limits = StreamLimits { file_bytes: 500, ..StreamLimits::default() };
    let mut model = Model::new(1, limits);
    for _ in 0..10 {
        model.append(0, 10, 100);
    }
    model.finish();
    model.restart();
    model.log.resume_drop(3);
    let Some(first) = model.log.oldest_kept(0) else { panic!("there are more files") };
    assert_eq!(model.log.oldest(0), Some(0));
    assert!(first > 0 && matches!(model.log.locate(0, 0), Location::File { .. }));
    assert!(matches!(model.log.locate_time(0, 0), Location::File { file: 3, .. }));
    assert_eq!(model.log.retain(0, |_| 0), [], "a consumer may still be there");
    let dropped = model.log.retain(0, |_| first);
    assert_eq!(dropped.last().map(|it| (it.file, it.next)), Some((2, first)));
}

#[test]
fn the_number_of_a_dropped_file_is_not_used_again() {
    let mut model = Model::new(1, StreamLimits::default());
    model.log.begin_at(7);
    model.append(0, 3, 100);
    assert!(matches!(model.waiting[..], [StreamCommand::Write { file: 7, .. }]));
}

#[test]
fn a_block_that_its_journal_has_not_released_does_not_count_after_a_start() {
    let mut model = Model::new(1, StreamLimits::default());
    for (shard, count) in [(1, 3), (1, 4), (0, 5)] {
        model.append(shard, count, 100);
    }
    model.finish();
    // The journal of shard 1 has lost its last fact, and that of shard 0 knows the whole file.
    model.archived.insert(1, 3);
    model.restart();
    assert_eq!(model.log.locate(1, 5), Location::Ahead);
    assert_eq!(model.log.records(), 3 + 5);
    model.archived.insert(1, 0);
    model.restart();
    assert_eq!((model.log.locate(1, 2), model.log.records()), (Location::Ahead, 5));
    model.finish();
    model.check();
    // They were moved again, and the first copies still do not count.
    model.restart();
    assert_eq!(model.log.records(), 7 + 5);
    model.check();
}

#[test]
fn the_number_of_a_file_that_is_gone_is_not_used_again() {
    let mut log = StreamLog::open(STREAM, StreamLimits::default(), Vec::new(), BTreeMap::new());
    log.begin_at(8);
    let mut block = BlockWriter::new(0, 1, 0);
    assert!(block.push(1, b"x"));
    log.append(block);
    let mut commands = Vec::new();
    log.take_commands(&mut commands);
    assert!(matches!(commands[..], [StreamCommand::Write { file: 8, .. }]), "{commands:?}");
}
