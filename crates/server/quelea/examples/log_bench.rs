//! What the journal costs beside a bare writer of the same batches.
//!
//! ```text
//! cargo run --release -p quelea --example log_bench -- [DIR] [SECONDS per case]
//! ```
//!
//! For each record size and level: a producer keeps a bounded number of records waiting for their
//! commit, as publishers waiting for a PUBACK do. Then the very same groups of bytes are written
//! by a loop of `pwrite` and `fdatasync` to a file made in the same way: that is what the disk
//! gives.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use data::{DataDir, JournalDisk};
use storage::{
    Command, Completion, Identity, Journal, Level, Position, RecordKind, Settings, Status, weight,
};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("log_bench"), PathBuf::from);
    let secs: f64 = args.next().map_or(Ok(5.0), |secs| secs.parse()).context("SECONDS")?;
    println!(
        "{:>7} {:>6} {:>9} {:>11} {:>8} {:>9} {:>9} {:>9} {:>9} {:>11} {:>6}",
        "bytes",
        "level",
        "in flight",
        "records/s",
        "MB/s",
        "us CPU",
        "records/",
        "p50 ms",
        "p99 ms",
        "bare rec/s",
        "ratio"
    );
    for (bytes, waiting) in [(16, 10_000), (1024, 10_000), (8192, 2_000), (1024, 100)] {
        for level in [Level::Disk, Level::Fsync] {
            let result = run_journal(&dir, bytes, waiting, level, secs);
            let measured = result.with_context(|| format!("{bytes} bytes, {level:?}"))?;
            let bare = run_bare(&dir, &measured.groups, level)?;
            measured.print(bytes, waiting, level, bare);
        }
    }
    Ok(())
}

/// What one case gave.
struct Measured {
    records: u64,
    elapsed: Duration,
    cpu: Duration,
    /// Bytes of each group, in order.
    groups: Vec<u32>,
    /// Milliseconds from append to commit.
    waits: Vec<f64>,
}

impl Measured {
    fn print(mut self, bytes: usize, waiting: usize, level: Level, bare: Duration) {
        let rate = self.records as f64 / self.elapsed.as_secs_f64();
        let bare_rate = self.records as f64 / bare.as_secs_f64();
        self.waits.sort_unstable_by(f64::total_cmp);
        let percentile = |share: f64| self.waits[((self.waits.len() - 1) as f64 * share) as usize];
        println!(
            "{bytes:>7} {:>6} {waiting:>9} {rate:>11.0} {:>8.0} {:>9.2} {:>9.0} {:>9.2} {:>9.2} \
             {bare_rate:>11.0} {:>6.2}",
            format!("{level:?}").to_lowercase(),
            rate * bytes as f64 / 1e6,
            self.cpu.as_secs_f64() * 1e6 / self.records as f64,
            self.records as f64 / self.groups.len() as f64,
            percentile(0.5),
            percentile(0.99),
            bare_rate / rate,
        );
    }
}

/// The journal with its disk, and the records that are not committed yet.
struct Bench {
    journal: Journal,
    disk: JournalDisk,
    completions: Receiver<Completion>,
    pending: VecDeque<(Position, Instant)>,
    measured: Measured,
    begun: Instant,
    /// No more may be appended for now.
    is_full: bool,
}

fn run_journal(
    dir: &Path,
    bytes: usize,
    waiting: usize,
    level: Level,
    secs: f64,
) -> Result<Measured> {
    let _ = std::fs::remove_dir_all(dir);
    let mut bench = Bench::open(dir)?;
    let record = vec![0x5a; bytes];
    while bench.journal.status() != Status::Ready {
        bench.turn(level)?;
    }
    let cpu = cpu_time()?;
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < secs {
        // As a worker's turn: a part of what may wait, not all of it at once.
        bench.fill(&record, waiting, level);
        bench.turn(level)?;
    }
    bench.is_full = true;
    while !bench.pending.is_empty() {
        bench.turn(level)?;
    }
    bench.measured.elapsed = begun.elapsed();
    bench.measured.cpu = cpu_time()? - cpu;
    Ok(bench.measured)
}

impl Bench {
    fn open(dir: &Path) -> Result<Self> {
        let data = DataDir::open(dir)?;
        let files = data.journal_files(0)?;
        let identity = Identity { id: [1; 16], shard: 0, shards: 1 };
        let settings = Settings::default();
        let recovered = data.recover(&files, identity, &settings, &mut |_, _| {}, &|_| {})?;
        let (sender, completions) = channel();
        let disk = JournalDisk::spawn(files, move |done| {
            done.into_iter().for_each(|done| drop(sender.send(done.completion)));
        })?;
        let measured = Measured {
            records: 0,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            groups: Vec::new(),
            waits: Vec::new(),
        };
        let journal = Journal::open(recovered, settings);
        let begun = Instant::now();
        Ok(Self {
            journal,
            disk,
            completions,
            pending: VecDeque::new(),
            measured,
            begun,
            is_full: true,
        })
    }

    /// Appends a turn's records, so that at most `waiting` wait for their commit.
    fn fill(&mut self, record: &[u8], waiting: usize, level: Level) {
        let now = Instant::now();
        self.is_full = true;
        for _ in 0..TURN_RECORDS {
            if self.pending.len() >= waiting {
                return;
            }
            let Ok(position) = self.journal.append(KIND, &[record], level) else { return };
            // Nothing is kept: the space of what was written is to come back.
            self.journal.release(position, weight(record.len()));
            self.pending.push_back((position, now));
        }
        self.is_full = false;
    }

    /// Commands out, completions in; waits for one when no more may be appended.
    fn turn(&mut self, level: Level) -> Result<()> {
        let now_ms = self.begun.elapsed().as_millis() as u64;
        self.journal.on_tick(now_ms);
        let mut commands = Vec::new();
        self.journal.take_commands(&mut commands, now_ms);
        for command in commands {
            self.note(&command);
            if let Err(completion) = self.disk.submit(command, false) {
                bail!("the disk thread ended: {completion:?}");
            }
        }
        if self.is_full {
            self.journal.on_completed(self.completions.recv_timeout(Duration::from_secs(30))?);
        }
        while let Ok(completion) = self.completions.try_recv() {
            self.journal.on_completed(completion);
        }
        if let Status::Full(fault) | Status::Poisoned(fault) = self.journal.status() {
            bail!("{fault}");
        }
        let now = Instant::now();
        while let Some(&(position, since)) = self.pending.front()
            && self.journal.is_committed(position, level)
        {
            self.pending.pop_front();
            self.measured.records += 1;
            if self.measured.records.is_multiple_of(64) {
                self.measured.waits.push((now - since).as_secs_f64() * 1e3);
            }
        }
        Ok(())
    }

    fn note(&mut self, command: &Command) {
        let Command::Commit { steps, .. } = command else { return };
        let bytes = steps.iter().map(|step| step.bytes() as u32);
        self.measured.groups.push(bytes.sum());
    }
}

/// Writes the groups one after the other into a file that is gone round and round.
fn run_bare(dir: &Path, groups: &[u32], level: Level) -> Result<Duration> {
    let path = dir.join("bare");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    let largest = groups.iter().copied().max().unwrap_or(0) as usize;
    let file_bytes = BARE_FILE_BYTES.max(largest as u64);
    let zeros = vec![0; 1 << 20];
    for at in (0..file_bytes).step_by(zeros.len()) {
        file.write_all_at(&zeros, at)?;
    }
    file.sync_all()?;
    let bytes = vec![0x5a; largest];
    let begun = Instant::now();
    let mut at = 0;
    for &group in groups {
        if at + u64::from(group) > file_bytes {
            // The journal syncs each segment too before it goes on in the next.
            file.sync_data()?;
            at = 0;
        }
        file.write_all_at(&bytes[..group as usize], at)?;
        at += u64::from(group);
        if level == Level::Fsync {
            file.sync_data()?;
        }
    }
    let elapsed = begun.elapsed();
    std::fs::remove_file(path)?;
    Ok(elapsed)
}

/// User and system time of this process so far.
fn cpu_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("/proc/self/stat")?;
    Ok(Duration::from_millis((user + system) * 1000 / TICKS_PER_SEC))
}

const KIND: RecordKind = RecordKind::new(1);
const TURN_RECORDS: usize = 256;
const BARE_FILE_BYTES: u64 = 64 << 20;
/// What Linux shows in /proc on all its platforms.
const TICKS_PER_SEC: u64 = 100;
