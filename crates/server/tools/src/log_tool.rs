//! `quelea log check|dump|repair`: looking at the logs of a data directory, and mending them, while
//! no broker uses it.

mod fact;

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use broker::journal::{Fact, Malformed};
use clap::{Args, Subcommand};
use storage::{
    HeaderRead, Identity, Manifest, Position, Record, Refusal, Repair, Report, Scan, SegmentHeader,
    Settings, Stamp, Survey, Together,
};

use data::{DataDir, DataDirError, Fault, JournalFiles, Part, replace_small, stamp_journal};

/// Inspects and repairs the durable logs of a data directory. No broker may be using it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LogArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Checks every log as the broker does when it starts. Changes nothing.
    Check {
        /// The data directory.
        dir: PathBuf,
    },
    /// Prints segments, batches and records.
    Dump {
        /// The data directory.
        dir: PathBuf,
        /// Only the log of this shard.
        #[arg(long)]
        shard: Option<u16>,
        /// Only this segment.
        #[arg(long)]
        segment: Option<u32>,
        /// Print this many bytes of each payload; 0 omits records.
        #[arg(long, default_value_t = 32)]
        bytes: usize,
    },
    /// Truncates damaged logs at the first damage. The broker loses all later records; the old
    /// files stay, with the ending `.damaged`.
    Repair {
        /// The data directory.
        dir: PathBuf,
        /// Repair. Without this flag, only print what a repair would discard.
        #[arg(long)]
        give_up_what_follows: bool,
    },
}

/// Runs the tool. Exit codes: 0 all logs are in order, 1 there is damage or a failure.
pub fn run(args: &LogArgs) -> ExitCode {
    let mut out = String::new();
    let result = match &args.action {
        Action::Check { dir } => check(dir, &mut out),
        Action::Dump { dir, shard, segment, bytes } => {
            dump(dir, Selection { shard: *shard, segment: *segment, bytes: *bytes }, &mut out)
        }
        Action::Repair { dir, give_up_what_follows } => {
            repair(dir, *give_up_what_follows, &mut out)
        }
    };
    base::print(base::seen_lines(&out).as_bytes());
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            base::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// What to print of a dump.
#[derive(Clone, Copy)]
struct Selection {
    shard: Option<u16>,
    segment: Option<u32>,
    bytes: usize,
}

/// One shard's log and what a start would make of it.
struct Checked {
    shard: u16,
    shards: u16,
    files: JournalFiles,
    fault: Option<JournalFault>,
}

/// Why a start would refuse a log.
#[derive(Debug, thiserror::Error)]
enum JournalFault {
    #[error(transparent)]
    Log(Refusal),
    #[error("the record at {0}: {1}")]
    Record(Position, Malformed),
    #[error("{0}")]
    Emptied(DataDirError),
    #[error("{0}")]
    Apart(Fault),
}

/// What is wrong with a data directory.
struct Found {
    together: Together,
    logs: Vec<Checked>,
    /// Of the small files.
    faults: Vec<Fault>,
}

fn check(dir: &Path, out: &mut String) -> Result<bool, DataDirError> {
    check_data(&open_existing(dir)?, out)
}

/// Whether a start would find all logs in order.
pub fn check_data(data: &DataDir, out: &mut String) -> Result<bool, DataDirError> {
    let found = check_all(data, out)?;
    Ok(found.faults.is_empty() && found.logs.iter().all(|log| log.fault.is_none()))
}

fn check_all(data: &DataDir, out: &mut String) -> Result<Found, DataDirError> {
    let (together, mut faults) = data.look_together()?;
    let shards = data.shards()?;
    let count = u16::try_from(shards.len()).unwrap_or(u16::MAX);
    if shards.is_empty() {
        let _ = writeln!(out, "no logs here");
    }
    let mut logs = Vec::new();
    for shard in shards {
        let files = data.journal_files(shard)?;
        let read = check_one(data, &files, Identity { id: [0; 16], shard, shards: count })?;
        logs.push((shard, files, read));
    }
    let sound: Vec<(u16, Report)> =
        logs.iter().filter_map(|(shard, _, read)| Some((*shard, *read.as_ref().ok()?))).collect();
    let of_others = |shard: u16, report: Report| {
        let others = sound.iter().filter(|(other, report)| *other != shard && !report.is_new);
        let both = others.map(|(other, report)| (*other, report)).chain([(shard, &report)]);
        data.check_together(both).map(|()| report).map_err(JournalFault::Emptied)
    };
    let mut checked = Vec::new();
    for (shard, files, read) in logs {
        let apart = faults.extract_if(.., |fault| fault.part == Part::Journal(shard)).next();
        let read = read.and_then(|report| match apart {
            Some(fault) => Err(JournalFault::Apart(fault)),
            None => of_others(shard, report),
        });
        let _ = match &read {
            Ok(report) => writeln!(out, "shard {shard}: ok, {}", report_text(report)),
            Err(fault) => writeln!(out, "shard {shard}: REFUSED, {fault}"),
        };
        checked.push(Checked { shard, shards: count, files, fault: read.err() });
    }
    for fault in &faults {
        let _ = writeln!(out, "REFUSED, {fault}");
    }
    Ok(Found { together, logs: checked, faults })
}

fn check_one(
    data: &DataDir,
    files: &JournalFiles,
    identity: Identity,
) -> Result<Result<Report, JournalFault>, DataDirError> {
    let mut fault = None;
    let mut look = |record: Record<'_>, _: &mut storage::Ledger| {
        if fault.is_none()
            && let Err(malformed) = Fact::decode(record.kind.get(), record.bytes)
        {
            fault = Some(JournalFault::Record(record.position, malformed));
        }
    };
    match data.recover(files, identity, &Settings::default(), &mut look, &|_| {}) {
        Ok(recovered) => Ok(fault.map_or(Ok(recovered.report), Err)),
        Err(DataDirError::Refused { refusal, .. }) => Ok(Err(JournalFault::Log(refusal))),
        Err(error) => Err(error),
    }
}

fn report_text(report: &Report) -> String {
    let mut text = format!(
        "{} segments, {} batches, {} records, {} bytes of records",
        report.segments, report.batches, report.records, report.record_bytes
    );
    if let Some(cut) = report.cut {
        let _ = write!(text, ", torn tail at {cut} (a start cuts it)");
    } else if report.sealed {
        text.push_str(", closed in order");
    }
    text
}

fn dump(dir: &Path, only: Selection, out: &mut String) -> Result<bool, DataDirError> {
    let data = open_existing(dir)?;
    let mut file = Vec::new();
    for shard in data.shards()? {
        if only.shard.is_some_and(|wanted| wanted != shard) {
            continue;
        }
        let files = data.journal_files(shard)?;
        let fail = failing(files.path());
        if let Some(content) = files.manifest().map_err(&fail)?
            && only.segment.is_none()
        {
            dump_manifest(shard, &content, out);
        }
        for segment in files.list().map_err(&fail)? {
            if only.segment.is_none_or(|wanted| wanted == segment.number) {
                files.read_whole(segment.number, &mut file).map_err(&fail)?;
                let _ = writeln!(
                    out,
                    "shard {shard} segment {} ({} bytes)",
                    segment.number, segment.bytes
                );
                dump_segment(segment.number, &file, only.bytes, out);
                // One segment at a time, so that a dump of many does not fill the memory.
                if !base::print(base::seen_lines(&std::mem::take(out)).as_bytes()) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(true)
}

fn dump_manifest(shard: u16, content: &[u8], out: &mut String) {
    let _ = match Manifest::read(content) {
        Ok(Manifest { number, end, reach, stamp, .. }) => writeln!(
            out,
            "shard {shard} manifest {number}: durable before {end}, nothing from {reach} on, {}",
            stamp_text(stamp)
        ),
        Err(refusal) => writeln!(out, "shard {shard}: {refusal}"),
    };
}

fn stamp_text(stamp: Option<Stamp>) -> String {
    let Some(Stamp { directory, start, is_finished, .. }) = stamp else { return "no stamp".into() };
    let directory = u128::from_be_bytes(directory);
    let state = if is_finished { "" } else { " (not finished)" };
    format!("directory {directory:032x}, start {start}{state}")
}

fn dump_segment(number: u32, file: &[u8], bytes: usize, out: &mut String) {
    let header = match SegmentHeader::decode(file) {
        HeaderRead::Valid(header) => header,
        other => {
            let _ = writeln!(out, "  header: {other:?}");
            return;
        }
    };
    let _ = writeln!(
        out,
        "  header: shard {} of {}, epoch {}, oldest segment {}, first batch {}{}",
        header.identity.shard,
        header.identity.shards,
        header.epoch,
        header.oldest,
        header.first_sequence,
        if header.number == number { "" } else { " (left from an earlier use: a spare)" },
    );
    let mut scan = Scan::new(file, &header);
    while let Some(batch) = scan.next_batch() {
        let it = batch.header;
        let _ = writeln!(
            out,
            "  offset {} batch {}: epoch {}, {} records in {} bytes, flags {}, durable before {}",
            batch.position.offset(),
            it.sequence,
            it.epoch,
            it.records,
            it.body_bytes,
            it.flags,
            it.synced
        );
        for record in batch.records().take(if bytes == 0 { 0 } else { usize::MAX }) {
            let text = fact::describe(record.kind.get(), record.bytes, bytes);
            let _ = writeln!(out, "    offset {} {text}", record.position.offset());
        }
    }
    let _ = writeln!(out, "  end of the chain: offset {}", scan.position().offset());
    for (position, header) in scan.beyond() {
        let (sequence, epoch) = (header.sequence, header.epoch);
        let _ = writeln!(out, "  beyond: {position} has batch {sequence} of epoch {epoch}");
    }
}

fn repair(dir: &Path, really: bool, out: &mut String) -> Result<bool, DataDirError> {
    let data = open_existing(dir)?;
    let Found { together, logs, faults } = check_all(&data, out)?;
    let stamp = together.latest();
    let mut whole = true;
    for log in logs {
        let shard = log.shard;
        let Some(fault) = &log.fault else { continue };
        let can_mend = match fault {
            JournalFault::Log(refusal) => refusal.is_loss(),
            JournalFault::Emptied(_) | JournalFault::Apart(_) => true,
            JournalFault::Record(..) => false,
        };
        if !can_mend {
            let _ = writeln!(out, "shard {shard}: nothing that repair can fix");
            whole = false;
            continue;
        }
        let mended = match fault {
            JournalFault::Apart(fault) if !fault.is_foreign() => {
                take_over(&log, stamp, really, out)
            }
            _ => mend(&log, stamp, really, out),
        };
        mended.map_err(failing(log.files.path()))?;
        whole &= really;
    }
    for fault in faults {
        whole &= repair_small(&fault, stamp, really, out).map_err(failing(&fault.path))?;
    }
    if !whole && !really {
        let _ = writeln!(out, "nothing was changed: add --give-up-what-follows to do it");
    }
    Ok(whole)
}

/// Cuts a log off where it is damaged; one of another directory is given up whole.
fn mend(log: &Checked, stamp: Option<Stamp>, really: bool, out: &mut String) -> io::Result<()> {
    let Checked { shard, shards, files, fault } = log;
    let fresh = Identity { id: base::random(), shard: *shard, shards: *shards };
    let plan = match fault {
        Some(JournalFault::Apart(_)) => Survey::default().finish(fresh),
        _ => plan_repair(files, fresh)?,
    };
    let _ = match plan.end {
        Some(end) => writeln!(out, "shard {shard}: undamaged up to {end}"),
        None => writeln!(out, "shard {shard}: nothing is undamaged: repair creates a new log"),
    };
    if really {
        apply_repair(files, &plan, stamp)?;
        let _ = writeln!(out, "shard {shard}: repaired; all later records are discarded");
    }
    Ok(())
}

/// Takes a log of another time as it is.
fn take_over(
    log: &Checked,
    stamp: Option<Stamp>,
    really: bool,
    out: &mut String,
) -> io::Result<()> {
    let shard = log.shard;
    let _ = writeln!(out, "shard {shard}: a copy of another time: repair discards what it lacks");
    let (Some(stamp), true) = (stamp, really) else { return Ok(()) };
    if log.files.manifest()?.is_some() {
        stamp_journal(&log.files, stamp)?;
    } else {
        let fresh = Identity { id: base::random(), shard, shards: log.shards };
        apply_repair(&log.files, &plan_repair(&log.files, fresh)?, Some(stamp))?;
    }
    let _ = writeln!(out, "shard {shard}: used as it is; what it lacks is discarded");
    Ok(())
}

fn repair_small(
    fault: &Fault,
    stamp: Option<Stamp>,
    really: bool,
    out: &mut String,
) -> io::Result<bool> {
    let path = fault.path.display();
    let (Part::Small, Some(stamp)) = (fault.part, stamp) else {
        let _ = writeln!(out, "{path}: nothing that repair can fix: restore a backup");
        return Ok(false);
    };
    if !really {
        let _ = writeln!(out, "{path}: repair creates a new file: its content is lost");
        return Ok(false);
    }
    replace_small(&fault.path, stamp)?;
    let _ = writeln!(out, "{path}: created again; its content is lost");
    Ok(true)
}

fn plan_repair(files: &JournalFiles, fresh: Identity) -> io::Result<Repair> {
    let mut survey = Survey::default();
    let mut buffer = Vec::new();
    for segment in files.list()? {
        files.read_whole(segment.number, &mut buffer)?;
        survey.on_segment(segment.number, &buffer);
    }
    Ok(survey.finish(fresh))
}

/// Sets aside first and writes last, so that a repair that is cut short can be repeated.
fn apply_repair(files: &JournalFiles, plan: &Repair, stamp: Option<Stamp>) -> io::Result<()> {
    let aside = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push(".damaged");
        PathBuf::from(name)
    };
    for segment in files.list()?.iter().rev().filter(|file| file.number > plan.last_kept) {
        let path = files.segment_path(segment.number);
        std::fs::rename(&path, aside(&path))?;
    }
    if let Some(end) = plan.end {
        let path = files.segment_path(end.segment());
        std::fs::copy(&path, aside(&path))?;
        let file = OpenOptions::new().write(true).open(&path)?;
        file.write_all_at(&plan.write, u64::from(end.offset()))?;
        file.sync_all()?;
    } else {
        // A start refuses a log without any file if other logs have records.
        File::create(files.segment_path(1))?.sync_all()?;
    }
    let manifest = stamp.map_or(plan.manifest, |stamp| plan.manifest.stamped(stamp));
    files.replace_manifest(&manifest.file())
}

/// A directory to look at is not to be made by looking at it.
fn open_existing(dir: &Path) -> Result<DataDir, DataDirError> {
    std::fs::metadata(dir).map_err(failing(dir))?;
    DataDir::open(dir)
}

fn failing(path: &Path) -> impl Fn(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |error| DataDirError::Io { path: path.clone(), error }
}

const EXAMPLES: &str = "\
Examples:
  quelea log check /var/lib/quelea               what the broker would report
  quelea log dump /var/lib/quelea --shard 0
  quelea log repair /var/lib/quelea              what a repair would discard";

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Says that the retained message of the topic is no more.
    const RETAINED_CLEARED: u8 = 12;

    /// A directory with one log of five records.
    pub(crate) fn directory() -> tempfile::TempDir {
        directory_with(RETAINED_CLEARED, 1)
    }

    fn directory_with(kind: u8, shards: u16) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        data::sample::write_journal(dir.path(), kind, shards).unwrap();
        dir
    }

    fn segment(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("shard-000/0000000001.log")
    }

    /// Turns over one bit of the record `abc` numbered `which`.
    fn damage(dir: &tempfile::TempDir, which: usize) {
        let mut bytes = std::fs::read(segment(dir)).unwrap();
        let places: Vec<usize> =
            bytes.windows(3).enumerate().filter(|(_, w)| w == b"abc").map(|(at, _)| at).collect();
        bytes[places[which]] ^= 1;
        std::fs::write(segment(dir), bytes).unwrap();
    }

    #[test]
    fn an_orderly_log_is_ok() {
        let dir = directory();
        let mut out = String::new();
        assert!(check(dir.path(), &mut out).unwrap());
        assert!(out.contains("shard 0: ok, 1 segments"), "{out}");
        assert!(out.contains("5 records") && out.contains("closed in order"), "{out}");
    }

    #[test]
    fn damage_is_found_and_repaired_only_on_demand() {
        let dir = directory();
        damage(&dir, 2);
        let before = std::fs::read(segment(&dir)).unwrap();
        let mut out = String::new();
        assert!(!check(dir.path(), &mut out).unwrap());
        assert!(out.contains("REFUSED, the log is damaged at segment 1"), "{out}");

        out.clear();
        assert!(!repair(dir.path(), false, &mut out).unwrap());
        assert!(out.contains("nothing was changed"), "{out}");
        assert_eq!(std::fs::read(segment(&dir)).unwrap(), before);

        out.clear();
        assert!(repair(dir.path(), true, &mut out).unwrap(), "{out}");
        let aside = dir.path().join("shard-000/0000000001.log.damaged");
        assert_eq!(std::fs::read(aside).unwrap(), before);
        out.clear();
        assert!(check(dir.path(), &mut out).unwrap(), "{out}");
        assert!(out.contains("2 records"), "{out}");
    }

    #[test]
    fn a_dump_shows_batches_and_records() {
        let dir = directory();
        let file = std::fs::read(segment(&dir)).unwrap();
        let mut out = String::new();
        dump_segment(1, &file, 2, &mut out);
        assert_eq!(out.matches("retained cleared: topic \"abc\"\n").count(), 5, "{out}");
        assert!(out.contains("header: shard 0 of 1, epoch 1"), "{out}");
    }

    #[test]
    fn records_of_another_program_are_found_and_not_repaired() {
        let dir = directory_with(99, 1);
        let mut out = String::new();
        assert!(!check(dir.path(), &mut out).unwrap());
        assert!(out.contains("REFUSED, the record at segment 1"), "{out}");
        out.clear();
        assert!(!repair(dir.path(), true, &mut out).unwrap());
        assert!(out.contains("nothing that repair can fix"), "{out}");
    }

    #[test]
    fn a_newest_file_that_is_lost_is_reported_and_given_up_on_demand() {
        let losses: [fn(&Path); 4] = [
            |file| std::fs::remove_file(file).unwrap(),
            |file| OpenOptions::new().write(true).open(file).unwrap().set_len(4200).unwrap(),
            |file| OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap(),
            |file| std::fs::remove_file(file.with_file_name("manifest")).unwrap(),
        ];
        for (which, lose) in losses.into_iter().enumerate() {
            let dir = directory();
            lose(&segment(&dir));
            let mut out = String::new();
            assert!(!check(dir.path(), &mut out).unwrap(), "{which}: {out}");
            assert!(out.contains("shard 0: REFUSED"), "{which}: {out}");
            assert!(repair(dir.path(), true, &mut out).unwrap(), "{which}: {out}");
            out.clear();
            assert!(check(dir.path(), &mut out).unwrap(), "{which}: {out}");
            assert_eq!(out.contains("5 records"), which == 3, "{which}: {out}");
        }
    }

    #[test]
    fn a_log_without_any_file_is_reported_and_begun_anew_on_demand() {
        let dir = directory_with(RETAINED_CLEARED, 2);
        drop(DataDir::open(dir.path()).unwrap().journal_files(1).unwrap());
        let mut out = String::new();
        assert!(!check(dir.path(), &mut out).unwrap());
        assert!(out.contains("shard 0: ok") && out.contains("shard 1: REFUSED"), "{out}");
        assert!(out.contains("shard-001 has no log"), "{out}");
        assert!(repair(dir.path(), true, &mut out).unwrap(), "{out}");
        out.clear();
        assert!(check(dir.path(), &mut out).unwrap(), "{out}");
    }

    #[test]
    fn a_directory_that_does_not_exist_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        assert!(check(&missing, &mut String::new()).is_err());
        assert!(!missing.exists());
    }
}
