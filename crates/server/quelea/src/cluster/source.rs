//! The data directory of a broker without a cluster, as the writes of its journals: what
//! `quelea cluster import` appends to the stream.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use broker::ShardId;
use storage::{
    Follow, HeaderRead, Identity, Manifest, Position, Scan, SegmentHeader, Settings, Step,
};

use crate::api::token;
use config::TOKEN_FILE;
use data::MARK_FILE;
use data::{DataDir, JournalFiles, StreamFile};

/// Bytes of one write. A writer splits it into messages.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// A locked data directory that was checked.
pub(super) struct Source {
    pub(super) journals: Vec<SourceJournal>,
    /// By name; contents as nodes write them.
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
    /// Files of streams.
    pub(super) stream_files: Vec<StreamFile>,
    /// Of the API, if it was on.
    pub(super) token: Option<String>,
    /// Keeps the lock.
    data: DataDir,
}

/// One journal.
pub(super) struct SourceJournal {
    shard: ShardId,
    files: JournalFiles,
    manifest: Option<Manifest>,
    /// The segments that are needed, and how many bytes of each.
    segments: Vec<(u32, u32)>,
    /// What was read of the steps so far, checked as a standby does.
    follow: Follow,
    end: Position,
    pub(super) records: u64,
}

impl Source {
    /// Locks and checks it.
    ///
    /// # Errors
    ///
    /// It is in use, is not whole, or does not fit the cluster.
    pub(super) fn open(path: &Path, shards: u16, segment_bytes: u32) -> anyhow::Result<Self> {
        let named = || path.display().to_string();
        let found = DataDir::shards_in(path).with_context(named)?;
        ensure!(!found.is_empty(), "{} has no logs: there is nothing to import", named());
        let data = DataDir::open(path)?;
        for shard in &found {
            let mark = data.journal_path(*shard).join(MARK_FILE);
            ensure!(
                !mark.exists(),
                "{} is the local copy of a cluster's log; name the data directory of a broker \
                 that ran without [cluster]",
                mark.display()
            );
        }
        let count = found.len();
        ensure!(
            count == usize::from(shards),
            "{} has the logs of {count} shards, and the cluster was created with {shards}. Create a cluster with `server.shards = {count}` and another `cluster.name`, and import into that",
            named()
        );
        let (_, faults) = data.look_together()?;
        if !faults.is_empty() {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            bail!("the data directory is incomplete:\n{}", faults.join("\n"));
        }
        let files = data.files_for_cluster().with_context(named)?;
        let stream_files = StreamFile::all_in(path).with_context(named)?;
        let token = token::known(&path.join(TOKEN_FILE))?;
        let journals =
            (0..shards).map(|shard| SourceJournal::open(&data, shard, shards, segment_bytes));
        let journals = journals.collect::<anyhow::Result<_>>()?;
        Ok(Self { journals, files, stream_files, token, data })
    }

    /// Of all journals.
    pub(super) fn bytes(&self) -> u64 {
        let all = self.journals.iter().flat_map(|journal| &journal.segments);
        let of_journals: u64 = all.map(|(_, bytes)| u64::from(*bytes)).sum();
        of_journals + self.stream_files.iter().map(|file| file.bytes).sum::<u64>()
    }

    /// A part of a file of a stream.
    pub(super) fn read_stream_file(&self, file: &StreamFile, offset: u64) -> io::Result<Vec<u8>> {
        let mut part = vec![0; WRITE_BYTES_MAX.min((file.bytes - offset) as usize)];
        File::open(file.path_in(self.data.path()))?.read_exact_at(&mut part, offset)?;
        Ok(part)
    }
}

impl SourceJournal {
    fn open(
        data: &DataDir,
        shard: ShardId,
        shards: u16,
        segment_bytes: u32,
    ) -> anyhow::Result<Self> {
        let files = data.journal_files(shard)?;
        let settings = Settings::default();
        let fresh = Identity { id: [0; 16], shard, shards };
        let recovered = data.recover(&files, fresh, &settings, &mut |_, _| {}, &|_| {})?;
        let records = recovered.report.records;
        let manifest = files.manifest()?.map(|content| Manifest::read(&content)).transpose()?;
        let (oldest, end) = {
            let follow = Follow::resume(recovered, (shard, shards), &settings);
            (follow.oldest(), follow.end())
        };
        let mut journal = Self {
            shard,
            files,
            manifest,
            segments: Vec::new(),
            follow: Follow::new((shard, shards), &settings),
            end,
            records,
        };
        let mut numbers = oldest..=end.segment();
        if end > Position::default() {
            journal.segments = numbers.try_fold(Vec::new(), |mut segments, number| {
                let file = journal.segment(number, segment_bytes)?;
                segments.push((number, file.len() as u32));
                anyhow::Ok(segments)
            })?;
        }
        Ok(journal)
    }

    /// A segment up to the end of its last batch.
    fn segment(&self, number: u32, segment_bytes: u32) -> anyhow::Result<Vec<u8>> {
        let path = self.files.segment_path(number);
        let mut file = Vec::new();
        self.files.read_whole(number, &mut file).with_context(|| path.display().to_string())?;
        let HeaderRead::Valid(header) = SegmentHeader::decode(&file) else {
            bail!("{} has no header: run `quelea log check`", path.display());
        };
        let found = header.segment_bytes;
        ensure!(
            found <= segment_bytes && (found == segment_bytes || number < self.end.segment()),
            "{} is a segment of {found} bytes, and the cluster was created with {segment_bytes}. Create a cluster with `durability.segment_bytes = {found}` and another `cluster.name`, and import into that",
            path.display()
        );
        let mut scan = Scan::new(&file, &header);
        while scan.next_batch().is_some() {}
        let end = scan.position().offset();
        file.truncate(end as usize);
        Ok(file)
    }

    /// How many commits it takes.
    pub(super) fn commits(&self) -> usize {
        if self.segments.is_empty() { 0 } else { self.segments.len() + 2 }
    }

    /// The steps of a commit: a manifest that states nothing, for batches that need one; the
    /// segments in order; the manifest that states the end.
    ///
    /// # Errors
    ///
    /// When the files cannot be read, or are not what they were.
    pub(super) fn steps(&mut self, commit: usize) -> anyhow::Result<Vec<Step>> {
        let steps = match commit.checked_sub(1) {
            None => self.manifest_step(true),
            Some(place) => match self.segments.get(place).copied() {
                Some((number, bytes)) => self.segment_steps(number, bytes)?,
                None => self.manifest_step(false),
            },
        };
        self.check(&steps)?;
        Ok(steps)
    }

    fn manifest_step(&self, is_first: bool) -> Vec<Step> {
        let Some(found) = self.manifest else { return Vec::new() };
        let stated = match is_first {
            true => Manifest::of_nothing(found.identity),
            // Above the first one. Stamps tie a directory together, which the cluster's id does.
            false => Manifest { number: found.number + 1, stamp: None, ..found },
        };
        let (offset, bytes) = stated.slot();
        vec![Step::Manifest { offset, bytes: Arc::new(bytes) }]
    }

    fn segment_steps(&self, number: u32, bytes: u32) -> anyhow::Result<Vec<Step>> {
        let mut file = Vec::new();
        self.files.read_whole(number, &mut file)?;
        file.truncate(bytes as usize);
        let part = |(place, part): (usize, &[u8])| Step::Write {
            segment: number,
            offset: (place * WRITE_BYTES_MAX) as u32,
            bytes: Arc::new(part.to_vec()),
        };
        Ok(file.chunks(WRITE_BYTES_MAX).enumerate().map(part).collect())
    }

    /// A standby must be able to read what is appended.
    fn check(&mut self, steps: &[Step]) -> anyhow::Result<()> {
        for step in steps {
            match step {
                Step::Write { segment, offset, bytes } => {
                    self.follow.on_write(*segment, *offset, bytes, &mut |_, _| {})?;
                }
                Step::Manifest { offset, bytes } => self.follow.on_manifest(*offset, bytes)?,
                Step::Sync { .. } => {}
            }
        }
        Ok(())
    }

    /// Whether all of it was given out.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub(super) fn check_end(&self) -> anyhow::Result<()> {
        let (end, found) = (self.follow.end(), self.follow.report().records);
        ensure!(
            end == self.end && found == self.records,
            "the log of shard {} ends at {} with {} records, and {end} with {found} were read: did \
             another program write to it?",
            self.shard,
            self.end,
            self.records
        );
        self.follow.check()?;
        Ok(())
    }
}
