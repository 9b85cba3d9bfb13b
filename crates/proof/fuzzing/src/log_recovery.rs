//! Recovery: any bytes as the files of a journal give a clean start or a clean refusal, and after a
//! start the journal can be used and gives the same records again.
//!
//! An input is a byte of flags, where the first file ends (two bytes), and the bytes of one or two
//! files. With flag 1 the checksums are mended first, so that what is behind them is reached too.

use storage::testing::{Crash, SimDisk, mend_checksums};
use storage::{
    HeaderRead, Identity, Journal, Level, RecordKind, Recovered, Refusal, SegmentHeader, Settings,
    Status, Survey,
};

const IDENTITY: Identity = Identity { id: *b"a log for a fuzz", shard: 0, shards: 1 };
const KIND: RecordKind = RecordKind::new(1);
const SEGMENT_BYTES: u32 = 64 * 1024;
const FLAG_MEND: u8 = 1;
const FLAG_TWO_FILES: u8 = 2;

pub fn log_recovery(input: &[u8]) {
    let Some((&[flags, low, high], bytes)) = input.split_first_chunk::<3>() else { return };
    let mut files = vec![bytes.to_vec()];
    if flags & FLAG_TWO_FILES != 0 {
        let end = bytes.len().min(usize::from(u16::from_le_bytes([low, high])));
        files = vec![bytes[..end].to_vec(), bytes[end..].to_vec()];
    }
    let mut disk = SimDisk::new(1);
    for (number, mut file) in (1..).zip(files) {
        if flags & FLAG_MEND != 0 {
            mend_checksums(&mut file);
        }
        if let HeaderRead::Valid(header) = SegmentHeader::decode(&file)
            && header.segment_bytes <= SEGMENT_BYTES
        {
            // Inputs leave the zeros out that files end with.
            file.resize(file.len().max(header.segment_bytes as usize), 0);
        }
        disk.put(number, file);
    }
    let Ok((recovered, first)) = recover(&disk) else { return repair(disk) };
    assert_eq!(recovered.report.records, first.len() as u64);
    let mut journal = Journal::open(recovered, settings());
    if !drive(&mut journal, &mut disk, |journal| journal.status() == Status::Ready) {
        return;
    }
    let appended = journal.append(KIND, &[b"after"], Level::Fsync);
    drive(&mut journal, &mut disk, |journal| journal.stats().pending_bytes == 0);
    disk.crash(Crash::Power);
    let (_, second) = recover(&disk).expect("a log that was opened opens again");
    assert_eq!(second[..first.len()], first, "what was found once is found again");
    assert_eq!(second.len(), first.len() + usize::from(appended.is_ok()));
}

/// RecordKind and bytes of each record in order.
type Records = Vec<(u8, Vec<u8>)>;

fn recover(disk: &SimDisk) -> Result<(Recovered, Records), Refusal> {
    let mut records = Records::new();
    let recovery = disk.read_back((0, 1), &settings(), &mut |record, _| {
        records.push((record.kind.get(), record.bytes.to_vec()));
    })?;
    Ok((recovery.finish(IDENTITY), records))
}

/// A repair of whatever was refused is not refused for damage.
fn repair(mut disk: SimDisk) {
    let mut survey = Survey::default();
    for file in disk.files() {
        survey.on_segment(file.number, disk.content(file.number));
    }
    let repair = survey.finish(IDENTITY);
    for file in disk.files().iter().filter(|file| file.number > repair.last_kept) {
        disk.remove(file.number);
    }
    if let Some(end) = repair.end {
        let mut content = disk.content(end.segment()).to_vec();
        content.resize(end.offset() as usize, 0);
        content.extend_from_slice(&repair.write);
        disk.put(end.segment(), content);
    }
    disk.put_manifest(Some(repair.manifest.file()));
    if let Err(Refusal::Damaged(at)) = recover(&disk).map(drop) {
        panic!("repaired, and still damaged at {at}");
    }
}

/// Turns and steps until `reached`; false when it does not come to that.
fn drive(journal: &mut Journal, disk: &mut SimDisk, reached: impl Fn(&Journal) -> bool) -> bool {
    for now_ms in 0..1000 {
        let mut commands = Vec::new();
        journal.take_commands(&mut commands, now_ms * 100);
        commands.into_iter().for_each(|command| disk.submit(command));
        if reached(journal) {
            return true;
        }
        while let Some(completion) = disk.step() {
            journal.on_completed(completion);
        }
        journal.on_tick(now_ms * 100);
    }
    false
}

fn settings() -> Settings {
    Settings::with_segment_bytes(SEGMENT_BYTES)
}

/// Journals of one and two files, after a crash and closed in order.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (records, close) in [(0, false), (3, false), (3, true), (70, true)] {
        let mut disk = SimDisk::new(1);
        let mut journal = Journal::create(IDENTITY, settings());
        drive(&mut journal, &mut disk, |journal| journal.status() == Status::Ready);
        for number in 0..records {
            let bytes = vec![number; 1000];
            journal.append(KIND, &[&bytes], Level::Fsync).expect("a new log takes records");
            drive(&mut journal, &mut disk, |journal| journal.stats().pending_bytes == 0);
        }
        if close {
            journal.close();
            drive(&mut journal, &mut disk, |journal| journal.status() == Status::Closed);
        }
        for flags in [0, FLAG_MEND] {
            seeds.push(input_of(&disk, flags));
        }
    }
    seeds
}

fn input_of(disk: &SimDisk, flags: u8) -> Vec<u8> {
    let trimmed = |number| {
        let content = disk.content(number);
        let end = content.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        content[..end].to_vec()
    };
    let (first, second) = (trimmed(1), trimmed(2));
    let flags = if second.is_empty() { flags } else { flags | FLAG_TWO_FILES };
    let [low, high] = u16::try_from(first.len()).map_or([255, 255], u16::to_le_bytes);
    [&[flags, low, high], &first[..], &second[..]].concat()
}
