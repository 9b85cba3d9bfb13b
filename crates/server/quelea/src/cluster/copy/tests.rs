//! Local copies that are as they should be, and all others.

use std::path::Path;

use storage::{CommandId, Step};

use super::*;
use crate::cluster::source::Source;

const SEGMENT_BYTES: u32 = 64 * 1024;

fn context(cluster: u8) -> CopyContext {
    let settings = Settings::with_segment_bytes(SEGMENT_BYTES);
    CopyContext { cluster: [cluster; 16], shards: 1, settings }
}

fn opened(directory: &Path, cluster: u8) -> anyhow::Result<(LocalCopy, Cursor)> {
    LocalCopy::open(&DataDir::open(directory).unwrap(), 0, &context(cluster))
}

/// Messages with the journal of a single broker, as they are appended to the stream.
fn messages(directory: &Path) -> Vec<Portion> {
    let mut source = Source::open(directory, 1, SEGMENT_BYTES).unwrap();
    let journal = &mut source.journals[0];
    let all = (0..journal.commits()).flat_map(|commit| journal.steps(commit).unwrap());
    let all = all.collect::<Vec<_>>().iter().map(message).collect();
    journal.check_end().unwrap();
    all
}

fn message(step: &Step) -> Portion {
    let (tag, segment, offset, bytes) = match step {
        Step::Write { segment, offset, bytes } => (1, *segment, *offset, bytes),
        Step::Manifest { offset, bytes } => (2, 0, *offset, bytes),
        Step::Sync { .. } => panic!("nothing to sync in a stream"),
    };
    let mut body = b"QJ\x02\x02\x01\x00".to_vec();
    body.resize(56, 0);
    body.extend_from_slice(&[tag, 0, 0]);
    for number in [segment, offset, bytes.len() as u32] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    body.extend_from_slice(bytes);
    let crc = storage::checksum(&body);
    body.extend_from_slice(&crc.to_le_bytes());
    let mut portions = Portion::all_of(&body.into()).unwrap();
    portions.pop().unwrap()
}

fn cursor(last: u64) -> Cursor {
    Cursor { last, epoch: 1, writer: 1, number: last, ..Cursor::default() }
}

fn journal_file(directory: &Path) -> PathBuf {
    directory.join("shard-000/0000000001.log")
}

/// The copy of a node that has read all of a journal, and said so.
fn copied() -> tempfile::TempDir {
    let (from, to) = (directory(), tempfile::tempdir().unwrap());
    let (mut copy, _) = opened(to.path(), 7).unwrap();
    messages(from.path()).iter().for_each(|it| assert!(copy.apply(it).is_ok()));
    copy.mark(Some(cursor(4)));
    to
}

fn refusal(directory: &Path, cluster: u8) -> String {
    format!("{:#}", opened(directory, cluster).err().expect("it is refused"))
}

#[test]
fn an_imported_journal_is_the_same_when_it_is_exported() {
    let (from, to) = (directory(), tempfile::tempdir().unwrap());
    let (mut copy, start) = opened(to.path(), 7).unwrap();
    assert_eq!(start, Cursor::default());
    messages(from.path()).iter().for_each(|it| assert!(copy.apply(it).is_ok()));
    copy.finish_export().unwrap();
    drop(copy);
    let read = |directory: &Path| std::fs::read(journal_file(directory)).unwrap();
    assert!(read(from.path()) == read(to.path()));
    assert!(!to.path().join("shard-000").join(MARK_FILE).exists());
    let data = DataDir::open(to.path()).unwrap();
    data.stamp_as_served(1, &[("bans", b"one\n".to_vec())]).unwrap();
    let (stamps, _) = data.begin_start(1).unwrap();
    assert!(stamps.are_of_a_used_directory());
    assert_eq!(stamps.read(&to.path().join("bans")).unwrap().unwrap(), b"one\n");
    drop(data);
    let mut report = String::new();
    let data = DataDir::open(to.path()).unwrap();
    assert!(tools::log_tool::check_data(&data, &mut report).unwrap(), "{report}");
    assert!(report.contains("5 records"), "{report}");
}

#[test]
fn what_does_not_fit_a_cluster_is_not_imported() {
    let dir = directory();
    let report =
        |shards, bytes| format!("{:#}", Source::open(dir.path(), shards, bytes).err().unwrap());
    let shards = report(3, SEGMENT_BYTES);
    assert!(shards.contains("`server.shards = 1`"), "{shards}");
    let segments = report(1, SEGMENT_BYTES * 2);
    assert!(segments.contains("`durability.segment_bytes = 65536`"), "{segments}");
    let lock = DataDir::open(dir.path()).unwrap();
    assert!(report(1, SEGMENT_BYTES).contains("in use by another process"));
    drop(lock);
    let empty = tempfile::tempdir().unwrap();
    let none = Source::open(empty.path(), 1, SEGMENT_BYTES).err().unwrap().to_string();
    assert!(none.contains("has no logs"), "{none}");
    let own = copied();
    let copy = Source::open(own.path(), 1, SEGMENT_BYTES).err().unwrap().to_string();
    assert!(copy.contains("is the local copy of a cluster's log"), "{copy}");
}

#[test]
fn a_node_goes_on_where_its_copy_ends() {
    let dir = copied();
    let (copy, start) = opened(dir.path(), 7).unwrap();
    assert_eq!((start.last, start.number), (4, 4));
    assert!(copy.bytes() > 0);
}

/// Files may be ahead of what was noted: segments that are gone keep nothing of the stream.
#[test]
fn segments_that_the_files_do_not_have_any_more_are_forgotten() {
    let dir = copied();
    let (mut copy, _) = opened(dir.path(), 7).unwrap();
    let text = r#"{"last":4,"epoch":1,"writer":1,"number":4,
        "log":{"bytes":900,"segments":{"0":{"at":2,"bytes":100},"1":{"at":3,"bytes":500}}}}"#;
    let noted: Cursor = serde_json::from_str(text).unwrap();
    assert_eq!((noted.log.oldest(), noted.log.span()), (Some((0, 2)), 800));
    copy.mark(Some(noted));
    drop(copy);
    let (_, start) = opened(dir.path(), 7).unwrap();
    assert_eq!((start.log.oldest(), start.log.span()), (Some((1, 3)), 400));
}

#[test]
fn a_node_that_was_killed_when_it_had_just_begun_starts_again() {
    let (from, to) = (directory(), tempfile::tempdir().unwrap());
    let (mut copy, _) = opened(to.path(), 7).unwrap();
    copy.apply(&messages(from.path())[1]).unwrap_err();
    let (mut copy, _) = opened(to.path(), 7).unwrap();
    messages(from.path())[..2].iter().for_each(|it| assert!(copy.apply(it).is_ok()));
    assert!(journal_file(to.path()).exists());
    drop(copy);
    let (_, start) = opened(to.path(), 7).unwrap();
    assert_eq!(start, Cursor::default());
    assert!(!journal_file(to.path()).exists());
}

#[test]
fn the_journal_of_a_single_broker_is_refused_and_left_alone() {
    let dir = directory();
    let report = refusal(dir.path(), 7);
    assert!(report.contains("without a cluster") && report.contains("cluster import"), "{report}");
    assert!(journal_file(dir.path()).exists());
}

#[test]
fn one_foreign_shard_keeps_all_others_from_being_touched() {
    let dir = copied();
    let of_cluster = |id| cluster::Record {
        id,
        shards: 1,
        segment_bytes: SEGMENT_BYTES,
        extent: cluster::Extent::One,
    };
    let data = DataDir::open(dir.path()).unwrap();
    crate::cluster::check_data(&data, &of_cluster([7; 16])).unwrap();
    data.journal_files(1).unwrap();
    let two = cluster::Record { shards: 2, ..of_cluster([8; 16]) };
    let report = format!("{:#}", crate::cluster::check_data(&data, &two).unwrap_err());
    assert!(report.contains("another cluster"), "{report}");
    assert!(!dir.path().join("shard-001").join(MARK_FILE).exists());
}

#[test]
fn the_copy_of_another_cluster_is_refused_and_left_alone() {
    let dir = copied();
    let report = refusal(dir.path(), 8);
    assert!(
        report.contains("another cluster") && report.contains("another data directory"),
        "{report}"
    );
    assert!(journal_file(dir.path()).exists());
}

#[test]
fn a_copy_that_is_damaged_or_torn_is_read_again() {
    type Harm = fn(&Path);
    let harms: [Harm; 4] = [
        |dir| {
            let mut bytes = std::fs::read(journal_file(dir)).unwrap();
            let at = bytes.windows(3).position(|window| window == b"abc").unwrap();
            bytes[at] ^= 1;
            std::fs::write(journal_file(dir), bytes).unwrap();
        },
        |dir| std::fs::write(dir.join("shard-000/manifest"), b"nonsense").unwrap(),
        |dir| std::fs::remove_file(journal_file(dir)).unwrap(),
        |dir| std::fs::write(dir.join("shard-000").join(MARK_FILE), b"nonsense").unwrap(),
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let dir = copied();
        harm(dir.path());
        let (copy, start) = opened(dir.path(), 7).unwrap();
        assert_eq!((start, copy.bytes()), (Cursor::default(), 0), "harm {number}");
        assert!(!journal_file(dir.path()).exists(), "harm {number}");
    }
}

#[test]
fn a_copy_that_differs_from_its_stream_is_noticed() {
    let dir = copied();
    let (mut copy, _) = opened(dir.path(), 7).unwrap();
    let bytes = std::sync::Arc::new(vec![0xee; 100]);
    let other = message(&Step::Write { segment: 1, offset: 4096, bytes });
    let report = copy.apply(&other).unwrap_err().to_string();
    assert!(report.contains("differs from the stream"), "{report}");
}

#[test]
fn a_backup_has_the_segments_that_were_there_when_it_began() {
    let dir = copied();
    let (mut copy, _) = opened(dir.path(), 7).unwrap();
    let pinned = copy.pin(Some(cursor(4))).unwrap();
    assert_eq!(pinned.segments.len(), 1);
    assert!(pinned.segments[0].1 < u64::from(SEGMENT_BYTES) && pinned.manifest.is_some());
    let mark = Mark::read(&pinned.mark.unwrap()).unwrap();
    assert_eq!((mark.cursor, mark.cluster), (cursor(4), [7; 16]));
    copy.carry_out(Command::Delete { id: CommandId(1), segment: 1 });
    assert!(journal_file(dir.path()).exists());
    assert!(copy.unpin().unwrap());
    assert!(!journal_file(dir.path()).exists());
}

#[test]
fn a_backup_of_a_copy_that_was_thrown_away_is_none() {
    let dir = copied();
    let (mut copy, _) = opened(dir.path(), 7).unwrap();
    copy.pin(Some(cursor(4))).unwrap();
    copy.start_over().unwrap();
    assert!(!copy.unpin().unwrap());
}

#[test]
fn a_journal_that_is_not_whole_is_not_taken_over() {
    let from = directory();
    let messages = messages(from.path());
    let take = |messages: &[&Portion]| {
        let to = tempfile::tempdir().unwrap();
        let (mut copy, _) = opened(to.path(), 7).unwrap();
        messages.iter().for_each(|it| assert!(copy.apply(it).is_ok()));
        copy.take()
    };
    assert!(take(&messages.iter().collect::<Vec<_>>()).unwrap().report.records > 0);
    // The manifest states what is durable, and the segments are gone.
    let is_manifest = |it: &&Portion| it.pieces().any(|it| matches!(it, Piece::Manifest { .. }));
    let manifests: Vec<&Portion> = messages.iter().filter(is_manifest).collect();
    assert!(!manifests.is_empty());
    let error = take(&manifests).err().expect("it is refused");
    assert!(format!("{error:#}").contains("NATS lost messages"), "{error:#}");
}

/// The stream may be purged up to the oldest segment of another shard.
#[test]
fn a_copy_skips_what_is_left_of_a_segment_that_began_before_the_stream() {
    let (from, to) = (directory(), tempfile::tempdir().unwrap());
    let (mut copy, _) = opened(to.path(), 7).unwrap();
    let bytes = std::sync::Arc::new(vec![0xee; 100]);
    let rest = message(&Step::Write { segment: 9, offset: 4096, bytes });
    assert_eq!(copy.apply(&rest).unwrap(), None);
    assert!(copy.files.list().unwrap().is_empty());
    assert!(copy.take().is_err(), "nothing is known of it but that there is more");
    let (mut copy, _) = opened(to.path(), 7).unwrap();
    copy.apply(&rest).unwrap();
    messages(from.path()).iter().for_each(|it| assert!(copy.apply(it).is_ok()));
    assert!(copy.take().unwrap().report.records > 0);
}

/// A directory with a journal of five records; 12 says that a retained message is gone.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    data::sample::write_journal(dir.path(), 12, 1).unwrap();
    dir
}
