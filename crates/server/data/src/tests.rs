use std::sync::mpsc::{Receiver, channel};

use storage::{Journal, Level, Position, RecordKind, Status};

use super::*;

#[test]
fn what_changes_in_the_first_sector_only_is_written_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let old: Vec<u8> = (0..2000_u32).map(|at| at as u8).collect();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut new = old.clone();
        change(&mut new);
        new
    };
    for (new, fits) in [
        (old.clone(), true),
        (with(&|new| new[0] ^= 1), true),
        (with(&|new| (new[3] ^= 1, new[SECTOR_BYTES - 1] ^= 1).0), true),
        (with(&|new| new[SECTOR_BYTES] ^= 1), false),
        (with(&|new| (new[0] ^= 1, new[1999] ^= 1).0), false),
        (with(&|new| new.push(0)), false),
        (with(&|new| new.truncate(1999)), false),
        (Vec::new(), false),
    ] {
        std::fs::write(&path, &old).unwrap();
        assert_eq!(rewrite_front(&path, &new).unwrap(), fits);
        assert_eq!(std::fs::read(&path).unwrap(), if fits { new } else { old.clone() });
    }
    assert!(!rewrite_front(&dir.path().join("none"), b"x").unwrap());
}

#[test]
fn a_write_that_fails_leaves_no_part_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::create_dir(&path).unwrap();
    write_whole(&path, b"x").unwrap_err();
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left, [path]);
}

#[test]
fn a_full_disk_is_known_by_any_cause() {
    let full = || io::Error::from(io::ErrorKind::StorageFull);
    assert!(is_full(&full()) && lacks_space(&full()));
    assert!(!lacks_space(&DataDirError::Missing("a".into())));
    assert!(lacks_space(&DataDirError::Io { path: "a".into(), error: full() }));
    assert!(is_full(&io::Error::new(io::ErrorKind::QuotaExceeded, "why")));
}

const KIND: RecordKind = RecordKind::new(1);

fn identity() -> Identity {
    Identity { id: [7; 16], shard: 0, shards: 1 }
}

fn settings() -> Settings {
    Settings::with_segment_bytes(256 * 1024)
}

/// A journal on real files, driven by hand.
struct Driven {
    journal: Journal,
    disk: JournalDisk,
    completions: Receiver<storage::Completion>,
}

impl Driven {
    fn open(data: &DataDir) -> (Self, Vec<(Position, Vec<u8>)>) {
        let files = data.journal_files(0).unwrap();
        let mut found = Vec::new();
        let recovered = data
            .recover(
                &files,
                identity(),
                &settings(),
                &mut |record, _| found.push((record.position, record.bytes.to_vec())),
                &|_| {},
            )
            .unwrap();
        let (sender, completions) = channel();
        let disk = JournalDisk::spawn(files, move |done| {
            done.into_iter().for_each(|done| drop(sender.send(done.completion)));
        })
        .unwrap();
        let journal = Journal::open(recovered, settings());
        let mut driven = Self { journal, disk, completions };
        driven.until(|journal| journal.status() == Status::Ready);
        (driven, found)
    }

    fn until(&mut self, reached: impl Fn(&Journal) -> bool) -> Vec<storage::ReadBack> {
        let mut reads = Vec::new();
        while !reached(&self.journal) || !reads.is_empty() {
            let mut commands = Vec::new();
            self.journal.take_commands(&mut commands, 0);
            for command in commands {
                self.disk.submit(command, false).unwrap();
            }
            if reached(&self.journal) {
                break;
            }
            reads.extend(self.journal.on_completed(self.completions.recv().unwrap()));
            if !reads.is_empty() {
                break;
            }
        }
        reads
    }
}

#[test]
fn records_come_back_after_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut positions = Vec::new();
    {
        let data = DataDir::open(dir.path()).unwrap();
        let (mut driven, found) = Driven::open(&data);
        assert!(found.is_empty());
        for number in 0..2000_u32 {
            let bytes = vec![number as u8; 500];
            let position = loop {
                match driven.journal.append(KIND, &[&bytes], Level::Fsync) {
                    Ok(position) => break position,
                    Err(_) => {
                        let before = driven.journal.stats();
                        driven.until(|journal| journal.stats() != before);
                    }
                }
            };
            positions.push(position);
        }
        let last = *positions.last().unwrap();
        driven.until(|journal| journal.is_committed(last, Level::Fsync));
        // The process "dies" here: the journal is not closed.
    }
    let data = DataDir::open(dir.path()).unwrap();
    let (driven, found) = Driven::open(&data);
    let found_positions: Vec<_> = found.iter().map(|(position, _)| *position).collect();
    assert_eq!(found_positions, positions);
    assert!(found.iter().enumerate().all(|(number, (_, bytes))| bytes == &[number as u8; 500]));
    assert!(driven.journal.stats().segments > 3);
}

#[test]
fn a_record_on_disk_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path()).unwrap();
    let (mut driven, _) = Driven::open(&data);
    let first = driven.journal.append(KIND, &[b"the ", b"first"], Level::Disk).unwrap();
    let second = driven.journal.append(KIND, &[b"the second"], Level::Disk).unwrap();
    driven.until(|journal| journal.is_committed(second, Level::Disk));
    drop(driven);
    let (mut driven, _) = Driven::open(&data);
    assert!(driven.journal.read(first).is_none());
    driven.journal.request(first, 1000).unwrap();
    let mut reads = driven.until(|_| false);
    let mut chunk = reads.pop().unwrap().result.unwrap();
    assert_eq!(chunk.next().unwrap().bytes, b"the first");
    let record = chunk.next().unwrap();
    assert_eq!((record.position, record.bytes), (second, &b"the second"[..]));
    assert!(chunk.next().is_none());
}

#[test]
fn a_directory_has_one_user_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = DataDir::open(dir.path()).unwrap();
    assert!(matches!(DataDir::open(dir.path()), Err(DataDirError::Locked(_))));
    drop(first);
    DataDir::open(dir.path()).unwrap();
}

#[test]
fn a_lock_file_that_was_deleted_lets_nobody_in() {
    let dir = tempfile::tempdir().unwrap();
    let _first = DataDir::open(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    assert!(matches!(DataDir::open(dir.path()), Err(DataDirError::Locked(_))));
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path()).unwrap();
    let files = data.journal_files(0).unwrap();
    // Its entry is there, and reading fails.
    std::fs::create_dir(files.segment_path(1)).unwrap();
    let read = data.recover(&files, identity(), &settings(), &mut |_, _| {}, &|_| {});
    let error = read.unwrap_err().to_string();
    assert!(error.contains("shard-000/0000000001.log at offset 0: "), "{error}");
}

#[test]
fn a_newest_file_that_is_lost_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path()).unwrap();
    drop(Driven::open(&data));
    let files = data.journal_files(0).unwrap();
    let path = files.segment_path(1);
    let recover = || data.recover(&files, identity(), &settings(), &mut |_, _| {}, &|_| {});
    let refusal = || recover().unwrap_err().to_string();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(refusal().contains("segment 1 has 5000 bytes, and had 262144"), "{}", refusal());
    std::fs::remove_file(&path).unwrap();
    assert!(refusal().contains("the file of segment 1 is missing"), "{}", refusal());
    std::fs::write(files.manifest_path(), b"rubbish").unwrap();
    assert!(refusal().contains("`manifest` of the log is damaged"), "{}", refusal());
}

#[test]
fn the_number_of_shards_is_fixed_by_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path()).unwrap();
    assert_eq!(data.shard_count(3, true).unwrap(), 3);
    assert_eq!(data.shards().unwrap(), [0, 1, 2]);
    assert_eq!(data.shard_count(8, false).unwrap(), 3);
    let refused = data.shard_count(8, true);
    assert!(matches!(refused, Err(DataDirError::Shards { found: 3, asked: 8, .. })), "{refused:?}");
}

#[test]
fn a_creation_that_was_cut_short_is_finished_and_a_lost_journal_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path()).unwrap();
    data.journal_files(3).unwrap();
    assert_eq!(data.shard_count(8, false).unwrap(), 4);
    assert_eq!(data.shards().unwrap(), [0, 1, 2, 3]);

    drop(Driven::open(&data));
    std::fs::remove_dir(data.journal_path(2)).unwrap();
    let refused = data.shard_count(4, true);
    assert!(matches!(refused, Err(DataDirError::Missing(_))), "{refused:?}");
    assert!(!data.journal_path(2).exists());
}

#[test]
fn a_data_directory_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let data = DataDir::open(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
    let files = data.journal_files(0).unwrap();
    let id = storage::CommandId(1);
    files.carry_out(storage::Command::Create { id, segment: 1, bytes: 4096 });
    let mode = std::fs::metadata(files.segment_path(1)).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
}

#[test]
fn a_journal_of_another_shard_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path()).unwrap();
    drop(Driven::open(&data));
    let files = data.journal_files(0).unwrap();
    let other = Identity { shard: 1, shards: 2, ..identity() };
    let error = data.recover(&files, other, &settings(), &mut |_, _| {}, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("belongs to shard 0 of 1"), "{error}");
}

#[test]
fn a_commit_that_fails_says_how_far_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let files = JournalFiles::open(dir.path()).unwrap();
    let bytes = std::sync::Arc::new(vec![1, 2, 3]);
    let id = storage::CommandId(1);
    files.carry_out(storage::Command::Create { id, segment: 1, bytes: 4096 });
    let write = |segment| storage::Step::Write { segment, offset: 0, bytes: bytes.clone() };
    let steps = vec![write(1), write(2), write(1)];
    let completion = files.carry_out(storage::Command::Commit { id, steps, resume: true });
    let storage::Outcome::Committed { steps_done, fault: Some(fault) } = completion.outcome else {
        panic!("{completion:?}");
    };
    assert_eq!((steps_done, fault.kind), (1, storage::FaultKind::Missing));
}
