//! The data directory of a running broker: read back at the start, before any listener opens.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use broker::{Limits, Replay, Restored, Rules, Scope, Shard, ShardId, Shared};
use storage::{Identity, Manifest, Record, Report, Stamp};

use super::journals::JournalBackend;
use super::limits;
use super::parts::Parts;
use super::service::ServiceManager;
use super::unwritten::write_when_possible;
use crate::cluster::{Clustered, Member, TakenJournal};
use config::Config;
use data::MARK_FILE;
use data::{DataDir, JournalFiles, Stamps};

/// How often a start that takes long says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// A locked data directory, and the sizes of the journals in it.
pub(super) struct Store {
    data: Arc<DataDir>,
    shards: u16,
    settings: storage::Settings,
    stamps: Stamps,
    /// `None`: the directory is a local copy of a cluster's journals.
    start: Option<Stamp>,
}

/// A shard, and the files of its journal where it has one.
pub(super) type Restoration = (Shard, Option<StoredJournal>);

/// The files of a journal, and the manifest that it goes on from.
pub(super) struct StoredJournal {
    pub(super) place: JournalBackend,
    /// `None`: in a stream.
    manifest: Option<Manifest>,
}

/// One journal read back.
struct ReadBack {
    shard: Shard,
    stored: StoredJournal,
    restored: Restored,
    report: Report,
    /// The newest time in a session's record.
    newest_ms: u64,
    /// The namespaces that it speaks of.
    scopes: BTreeSet<Scope>,
}

impl ReadBack {
    fn into_stored(self) -> Restoration {
        (self.shard, Some(self.stored))
    }
}

/// From where a journal comes.
enum Source {
    Files(ShardId),
    Taken(Box<TakenJournal>, Member),
}

/// What the reading of all journals needs.
struct Reading<'a> {
    store: &'a Store,
    is_stamped: bool,
    shared: &'a Arc<Shared>,
    rules: &'a Rules,
    limits: Arc<Limits>,
    now_ms: u64,
    waiting: Mutex<VecDeque<Source>>,
    bytes_read: AtomicU64,
}

impl Store {
    /// Locks the data directory, where the configuration keeps anything at all.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used, with what to do about it.
    pub(super) fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        if !config.durability.has_journal() {
            return Ok(None);
        }
        let path = &config.server.data_dir;
        let data = DataDir::open(path)
            .with_context(|| format!("cannot use the data directory; {OTHER_DIRECTORY}"))?;
        let shards = data.shard_count(config.server.shards, config.shards_are_fixed)?;
        let settings = config.durability.journal_settings(shards).with_context(|| {
            format!("cannot use these settings for the {shards} shards in {}", path.display())
        })?;
        let begin = || data.begin_start(shards);
        let (stamps, stamp) = write_when_possible("the manifests of the logs", begin)?;
        // A local copy of a cluster's journals is one no more: this broker goes on by itself.
        for shard in 0..shards {
            let mark = data.journal_path(shard).join(MARK_FILE);
            match std::fs::remove_file(&mark) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| mark.display().to_string());
                }
                _ => {}
            }
        }
        let (data, start) = (Arc::new(data), Some(stamp));
        Ok(Some(Self { data, shards, settings, stamps, start }))
    }

    /// The directory of a node that has become active.
    pub(super) fn of_cluster(clustered: &Clustered) -> Self {
        let (data, settings) = (clustered.data.clone(), clustered.settings.clone());
        let stamps = Stamps::clustered(Arc::new(clustered.member.clone()), data.path());
        Self { data, shards: clustered.shards, settings, stamps, start: None }
    }

    /// A cluster has its logs and small files; the directory has copies.
    pub(super) fn is_of_cluster(&self) -> bool {
        self.start.is_none()
    }

    /// As many as the directory was made for.
    pub(super) fn shards(&self) -> u16 {
        self.shards
    }

    /// For the small files of the directory.
    pub(super) fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// All parts have the stamp of this start, or those that wait for space will: now the broker
    /// may serve.
    ///
    /// # Errors
    ///
    /// When a manifest cannot be written.
    pub(super) fn finish_start(&self, restored: &[Restoration]) -> anyhow::Result<()> {
        for stored in restored.iter().filter_map(|(_, stored)| stored.as_ref()) {
            let (JournalBackend::Files(files), Some(manifest)) = (&stored.place, &stored.manifest)
            else {
                continue;
            };
            let fail = || files.manifest_path().display().to_string();
            let put = || files.put_manifest(manifest);
            write_when_possible("the manifest of a log", put).with_context(fail)?;
        }
        Ok(())
    }

    /// The directory.
    pub(super) fn data(&self) -> &DataDir {
        &self.data
    }

    /// Reads all journals back, a thread for each worker, and rebuilds the shards. `is_stamped`:
    /// the small files have the stamp of this start.
    ///
    /// # Errors
    ///
    /// What is wrong with each journal that cannot be used.
    pub(super) fn restore(
        &self,
        parts: &Parts,
        rules: &Rules,
        taken: Option<Vec<TakenJournal>>,
        is_stamped: bool,
    ) -> anyhow::Result<Vec<Restoration>> {
        let began = Instant::now();
        let config = parts.config();
        let waiting = match taken.zip(parts.member.clone()) {
            None => (0..self.shards).map(Source::Files).collect(),
            Some((journals, member)) => journals
                .into_iter()
                .map(|journal| Source::Taken(Box::new(journal), member.clone()))
                .collect(),
        };
        let reading = Reading {
            store: self,
            is_stamped,
            shared: &parts.shared,
            rules,
            limits: limits::of_restored(config),
            now_ms: parts.clock.now_ms(),
            waiting: Mutex::new(waiting),
            bytes_read: AtomicU64::new(0),
        };
        let bytes = self.file_bytes()?;
        let (done, results) = channel();
        let mut read = std::thread::scope(|scope| {
            for _ in 0..config.server.workers.min(self.shards) {
                let (done, reading) = (done.clone(), &reading);
                scope.spawn(move || reading.work(&done));
            }
            drop(done);
            collect(&results, &reading.bytes_read, bytes, &parts.service)
        })?;
        read.sort_by_key(|journal| journal.shard.id());
        if self.start.is_some() {
            self.data
                .check_together(read.iter().map(|journal| (journal.shard.id(), &journal.report)))?;
        }
        let scopes = read.iter().flat_map(|journal| journal.scopes.iter().copied()).collect();
        parts.namespaces.settle(&scopes)?;
        let bytes_read = reading.bytes_read.load(Ordering::Relaxed);
        report(&read, bytes_read, began.elapsed(), reading.now_ms);
        let (mut shards, files): (Vec<_>, Vec<_>) =
            read.into_iter().map(|journal| journal.into_stored()).unzip();
        broker::settle(&mut shards, reading.now_ms);
        Ok(shards.into_iter().zip(files).collect())
    }

    fn file_bytes(&self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        for shard in 0..self.shards {
            let path = self.data.journal_path(shard);
            let list = JournalFiles::list_in(&path).with_context(|| path.display().to_string())?;
            bytes += list.iter().map(|file| file.bytes).sum::<u64>();
        }
        Ok(bytes)
    }
}

impl Reading<'_> {
    fn work(&self, done: &Sender<anyhow::Result<ReadBack>>) {
        loop {
            let next = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(source) = next else { return };
            let read = match source {
                Source::Files(shard) => self.read(shard),
                Source::Taken(journal, member) => self.take(*journal, &member),
            };
            // The receiver is gone only after a panic, which ends the process.
            let _ = done.send(read);
        }
    }

    fn read(&self, id: ShardId) -> anyhow::Result<ReadBack> {
        let Store { data, shards, settings, start, .. } = self.store;
        let files = data.journal_files(id)?;
        let fresh = Identity { id: base::random(), shard: id, shards: *shards };
        let mut replay = Replay::new(u64::from_ne_bytes(base::random()));
        let mut sink = |record: Record<'_>, ledger: &mut storage::Ledger| {
            replay.on_record(record, ledger);
        };
        let progress = |bytes| {
            self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        };
        let mut recovered = data.recover(&files, fresh, settings, &mut sink, &progress)?;
        let is_finished = self.is_stamped;
        let manifest = start.map(|stamp| recovered.stamp(Stamp { is_finished, ..stamp }));
        let (report, newest_ms) = (recovered.report, replay.newest_ms());
        let scopes = replay.scopes().clone();
        let mut shard = Shard::new(id, self.shared.clone(), self.rules.clone());
        let restored = shard
            .open_journal(recovered, settings.clone(), replay, &self.limits, self.now_ms)
            .with_context(|| files.path().display().to_string())?;
        let stored = StoredJournal { place: JournalBackend::Files(files), manifest };
        Ok(ReadBack { shard, stored, restored, report, newest_ms, scopes })
    }

    /// A journal that a standby has read already.
    fn take(&self, taken: TakenJournal, member: &Member) -> anyhow::Result<ReadBack> {
        let TakenJournal { shard: id, recovered, replay, report } = taken;
        let newest_ms = replay.newest_ms();
        let scopes = replay.scopes().clone();
        let mut shard = Shard::new(id, self.shared.clone(), self.rules.clone());
        let settings = self.store.settings.clone();
        let restored = shard
            .open_journal(recovered, settings, replay, &self.limits, self.now_ms)
            .with_context(|| format!("the log of shard {id}"))?;
        let stored =
            StoredJournal { place: JournalBackend::Member(member.clone()), manifest: None };
        Ok(ReadBack { shard, stored, restored, report, newest_ms, scopes })
    }
}

/// Waits for all journals, and says how far they are when it takes long.
fn collect(
    results: &Receiver<anyhow::Result<ReadBack>>,
    bytes_read: &AtomicU64,
    bytes: u64,
    service: &ServiceManager,
) -> anyhow::Result<Vec<ReadBack>> {
    let mut told = 0;
    service.progress(&format!("reading the logs: 0 of {bytes} bytes"));
    let mut read = Vec::new();
    let mut failures: Vec<String> = Vec::new();
    loop {
        match results.recv_timeout(PROGRESS_INTERVAL) {
            Ok(Ok(journal)) => read.push(journal),
            Ok(Err(error)) => failures.push(format!("{error:#}")),
            Err(RecvTimeoutError::Timeout) => {
                // Of files that are not full, less is read.
                let bytes_read = bytes_read.load(Ordering::Relaxed).min(bytes);
                tracing::info!(bytes_read, bytes, "reading the logs");
                // A disk that stands still does not extend the time of the start.
                if std::mem::replace(&mut told, bytes_read) != bytes_read {
                    service.progress(&format!("reading the logs: {bytes_read} of {bytes} bytes"));
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    failures.sort();
    if failures.is_empty() { Ok(read) } else { Err(anyhow::anyhow!(failures.join("\n"))) }
}

fn report(read: &[ReadBack], bytes: u64, took: Duration, now_ms: u64) {
    for journal in read {
        if let Some(cut) = journal.report.cut {
            tracing::warn!(
                shard = journal.shard.id(),
                at = %cut,
                "the end of the log was torn by a crash and is discarded; no message in it was \
                acknowledged at level fsync"
            );
        }
    }
    let newest_ms = read.iter().map(|journal| journal.newest_ms).max().unwrap_or(0);
    if newest_ms > now_ms {
        tracing::warn!(
            behind_secs = (newest_ms - now_ms) / 1000,
            "the clock is behind the newest time in the log: sessions and messages expire later \
             than they should"
        );
    }
    let total =
        |of: fn(&Restored) -> u64| read.iter().map(|journal| of(&journal.restored)).sum::<u64>();
    tracing::info!(
        sessions = total(|restored| restored.sessions),
        subscriptions = total(|restored| restored.subscriptions),
        retained = total(|restored| restored.retained),
        messages = total(|restored| restored.messages),
        records = read.iter().map(|journal| journal.report.records).sum::<u64>(),
        bytes,
        seconds = took.as_secs_f64(),
        "state restored"
    );
}

pub(super) const OTHER_DIRECTORY: &str = "choose another data directory with --data DIR, or store \
                                          nothing with --durability memory";
