//! `quelea cluster export`: a data directory for a broker without a cluster, out of the stream.
//!
//! The stream is read as a standby reads it, up to the message that was the last one when the
//! command began. So each shard has a prefix of its journal, as in a backup of a running broker.
//! A cluster of format 1 has a stream for each shard. They are read one after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use broker::ShardId;
use cluster::{
    Answer, BlockFile, ClusterId, Record, RecordError, Sequence, Sequencer, Unreadable, Verdict,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::cells_list::{self, CellsList};
use super::connect;
use super::copy::{CopyContext, LocalCopy};
use super::engine::{Engine, Followed, FollowedBy};
use super::files::Files;
use super::import;
use super::stream_files::fetch;
use super::token;
use base::print;
use config::Config;
use data::{DataDir, StreamCopies, sync_entry};
use tools::backup::{begin_copy, partial_of};
use tools::log_tool;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Messages that wait. More wait in the engine.
const FOLLOWED_MAX: usize = 64;
/// How often a stream is read again because its oldest messages were removed meanwhile.
const TRIES_MAX: u32 = 5;
/// How long the engine may deliver nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Exports the cluster: one with several cells as a directory for each, and a list of them.
///
/// # Errors
///
/// Why there is no directory, and what to do.
pub(super) async fn run(engine: &Engine, config: &Config, target: &Path) -> anyhow::Result<()> {
    let record = connect::read_record(engine).await?;
    match Record::read(&record) {
        Err(RecordError::Old) => {
            let facts = Record::read_old(&record)?;
            let sources = (0..facts.shards).map(|shard| Source::of_shard(engine, &facts, shard));
            export(engine, config, target, (&facts, sources.collect())).await
        }
        Ok(facts) if facts.cells() > 1 => all_cells(engine, config, target, &facts).await,
        facts => {
            let facts = facts?;
            connect::refuse_cells(engine.names().cluster(), &facts)?;
            export(engine, config, target, (&facts, vec![Source::of_all(engine, &facts)])).await
        }
    }
}

/// Cells are not exported at one instant. What one has handed over and another one has not yet is
/// handed over again after an import.
async fn all_cells(
    engine: &Engine,
    config: &Config,
    target: &Path,
    facts: &Record,
) -> anyhow::Result<()> {
    import::refuse_unfinished(engine).await?;
    let partial = partial_of(target)?;
    std::fs::create_dir(&partial).with_context(|| {
        let path = partial.display();
        format!("cannot create {path}; remove what an aborted export has left there")
    })?;
    if let Err(error) = cells_into(engine, config, &partial, facts).await {
        // All of it is of this export.
        let _ = std::fs::remove_dir_all(&partial);
        return Err(error);
    }
    std::fs::rename(&partial, target).with_context(|| target.display().to_string())?;
    sync_entry(target).with_context(|| target.display().to_string())?;
    let text = format!("exported to {}: {} cells\n", target.display(), facts.cells());
    print(text.as_bytes());
    Ok(())
}

async fn cells_into(
    engine: &Engine,
    config: &Config,
    partial: &Path,
    facts: &Record,
) -> anyhow::Result<()> {
    let mut epoch = 0;
    for cell in 0..facts.cells() {
        let own = engine.of_cell(cell);
        let facts = connect::read_facts(&own).await?;
        let sources = vec![Source::of_all(&own, &facts)];
        let directory = partial.join(cells_list::directory_of(cell));
        let exported = export(&own, config, &directory, (&facts, sources)).await;
        exported.with_context(|| format!("cell {cell}"))?;
        // Behind the export: no message in it has a later one.
        let lease = connect::read_lease(&own).await?;
        epoch = epoch.max(lease.map_or(0, |lease| lease.epoch));
    }
    token::export(engine, partial).await?;
    CellsList { cells: facts.cells(), epoch }.write(partial)
}

async fn export(
    engine: &Engine,
    config: &Config,
    target: &Path,
    (facts, sources): (&Record, Vec<Source>),
) -> anyhow::Result<()> {
    let began = Instant::now();
    import::refuse_unfinished(engine).await?;
    let partial = partial_of(target)?;
    ensure!(
        ends_of(engine, &sources).await?.iter().any(|last| *last > 0),
        "the cluster has no messages to export: no node has served it yet"
    );
    let copy = Arc::new(begin_copy(&partial)?);
    let mut streams = StreamExport::new(engine, facts.id, copy.path());
    // What retention deletes from here on is in the copy already.
    streams.copy().await.context("cannot copy the files of streams")?;
    let ends = ends_of(engine, &sources).await?;
    copy.shard_count(facts.shards, true)?;
    let durability = config.durability.with_segment_bytes(facts.segment_bytes);
    let settings = durability.journal_settings(facts.shards)?;
    let context = CopyContext { cluster: facts.id, shards: facts.shards, settings };
    let mut export = Export { engine, context, copy: &copy, bytes: 0 };
    for (source, last) in sources.iter().zip(ends) {
        export.copy(source, last).await?;
    }
    // Behind the ends: they have all that the journals name.
    streams.copy().await.context("cannot copy the files of streams")?;
    let bytes = export.bytes;
    // Behind the journals: none speaks of a namespace that has no name yet.
    let files = Files::read_all(engine).await.context("cannot read the small files")?;
    copy.stamp_as_served(facts.shards, &files)?;
    token::export(engine, copy.path()).await?;
    let mut report = String::new();
    if !log_tool::check_data(&copy, &mut report)? {
        bail!("the export in {} is damaged:\n{report}", partial.display());
    }
    std::fs::rename(&partial, target).with_context(|| target.display().to_string())?;
    sync_entry(target).with_context(|| target.display().to_string())?;
    let (target, secs) = (target.display(), began.elapsed().as_secs_f64());
    print(format!("{report}exported to {target}: {bytes} bytes, {secs:.1} s\n").as_bytes());
    Ok(())
}

/// The files of streams, as far as they were copied.
struct StreamExport<'a> {
    engine: &'a Engine,
    cluster: ClusterId,
    copies: StreamCopies,
    /// The next message of each file.
    next: BTreeMap<BlockFile, Sequence>,
}

impl<'a> StreamExport<'a> {
    fn new(engine: &'a Engine, cluster: ClusterId, directory: &Path) -> Self {
        let (copies, next) = (StreamCopies::new(directory), BTreeMap::new());
        Self { engine, cluster, copies, next }
    }

    async fn copy(&mut self) -> anyhow::Result<()> {
        if !self.engine.has_blocks().await? {
            return Ok(());
        }
        let mut said_at = Instant::now() + PROGRESS_INTERVAL;
        let (files, _) = self.engine.block_files().await?;
        for (done, file) in files.iter().enumerate() {
            let next = self.next.entry(*file).or_insert(1);
            *next = fetch(self.engine, self.cluster, *file, *next, &mut self.copies).await?;
            if said_at <= Instant::now() {
                said_at = Instant::now() + PROGRESS_INTERVAL;
                eprintln!("quelea: export: {} of {} files of streams", done + 1, files.len());
            }
        }
        Ok(self.copies.sync()?)
    }
}

/// A stream, and the shards that are in it.
struct Source {
    name: String,
    shards: std::ops::Range<ShardId>,
    sequencer: Sequencer,
}

impl Source {
    fn of_all(engine: &Engine, facts: &Record) -> Self {
        let sequencer = Sequencer::new(facts.id, facts.shards);
        Self { name: engine.names().stream(), shards: 0..facts.shards, sequencer }
    }

    /// Of format 1.
    fn of_shard(engine: &Engine, facts: &Record, shard: ShardId) -> Self {
        let sequencer = Sequencer::of_old_stream(facts.id, shard);
        Self { name: engine.names().old_stream(shard), shards: shard..shard + 1, sequencer }
    }
}

async fn ends_of(engine: &Engine, sources: &[Source]) -> anyhow::Result<Vec<Sequence>> {
    let mut ends = Vec::new();
    for source in sources {
        ends.push(last_of(engine, &source.name).await?);
    }
    Ok(ends)
}

async fn last_of(engine: &Engine, stream: &str) -> anyhow::Result<Sequence> {
    match engine.ends(stream).await {
        Answer::Ends { last, .. } => Ok(last),
        Answer::Unknown(why) => bail!("cannot read where the stream '{stream}' ends: {why}"),
        answer => bail!("unexpected answer of the engine: {answer:?}"),
    }
}

struct Export<'a> {
    engine: &'a Engine,
    context: CopyContext,
    copy: &'a DataDir,
    bytes: u64,
}

/// Why the reading of a stream ended.
enum End {
    Whole,
    /// Its oldest messages were removed while it was read.
    Purged,
}

impl Export<'_> {
    async fn copy(&mut self, source: &Source, last: Sequence) -> anyhow::Result<()> {
        let opened = |shard| anyhow::Ok(LocalCopy::open(self.copy, shard, &self.context)?.0);
        let mut journals = source.shards.clone().map(opened).collect::<anyhow::Result<Vec<_>>>()?;
        let mut is_whole = last == 0;
        for _ in 0..TRIES_MAX {
            if is_whole {
                break;
            }
            match self.read(source, last, &mut journals).await? {
                End::Whole => is_whole = true,
                End::Purged => journals.iter_mut().try_for_each(LocalCopy::start_over)?,
            }
        }
        ensure!(
            is_whole,
            "the stream '{}' removes segments faster than they are read; repeat the export when there is less traffic",
            source.name
        );
        for (shard, journal) in source.shards.clone().zip(&mut journals) {
            self.bytes += journal.finish_export().with_context(|| format!("shard {shard}"))?;
        }
        Ok(())
    }

    async fn read(
        &self,
        source: &Source,
        last: Sequence,
        journals: &mut [LocalCopy],
    ) -> anyhow::Result<End> {
        let (to, mut messages) = mpsc::channel(FOLLOWED_MAX);
        let to = FollowedBy { stream: source.name.clone(), over_gaps: None, round: 0, to };
        let engine = self.engine.clone();
        let following = tokio::spawn(async move { engine.follow(1, to).await });
        let mut sequencer = source.sequencer.clone();
        let mut said_at = Instant::now() + PROGRESS_INTERVAL;
        let ended = loop {
            if sequencer.last() >= last {
                break Ok(End::Whole);
            }
            let Ok(Some(followed)) = timeout(SILENCE_MAX, messages.recv()).await else {
                break Err(anyhow::anyhow!(
                    "the engine delivers no message after {} of the stream '{}': check `quelea \
                    cluster status`, then run this again",
                    sequencer.last(),
                    source.name
                ));
            };
            match take(&mut sequencer, source.shards.start, journals, &followed) {
                Ok(true) => {}
                Ok(false) => break Ok(End::Purged),
                Err(error) => break Err(error.context(format!("stream '{}'", source.name))),
            }
            if said_at <= Instant::now() {
                said_at = Instant::now() + PROGRESS_INTERVAL;
                let (name, at) = (&source.name, sequencer.last());
                eprintln!("quelea: export: stream '{name}', message {at} of {last}");
            }
        };
        following.abort();
        ended
    }
}

/// `first`: the shard of the first journal. False: messages are missing.
fn take(
    sequencer: &mut Sequencer,
    first: ShardId,
    journals: &mut [LocalCopy],
    followed: &Followed,
) -> anyhow::Result<bool> {
    match sequencer.on_message(followed.sequence, &followed.body) {
        Ok(Verdict::Counts(portions)) => {
            for portion in portions {
                let place = portion.shard.checked_sub(first).map(usize::from);
                if let Some(journal) = place.and_then(|place| journals.get_mut(place)) {
                    let shard = portion.shard;
                    journal.apply(&portion).with_context(|| format!("shard {shard}"))?;
                }
            }
        }
        Ok(Verdict::Claim(_)) => journals.iter_mut().for_each(LocalCopy::on_new_writer),
        Ok(Verdict::Void) => {}
        Err(Unreadable::Gap(found, read)) if found <= read => {}
        Err(Unreadable::Gap(..)) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cluster::{Body, Portion};
    use storage::{Settings, Step};

    use super::super::source::Source as Directory;
    use super::*;

    const CLUSTER: [u8; 16] = [7; 16];
    const SEGMENT_BYTES: u32 = 64 * 1024;
    const SHARD: ShardId = 0;

    /// A message of version 1: number 0 is a claim.
    fn old_message(number: u64, step: Option<&Step>) -> Body {
        let (kind, count) = if step.is_some() { (2, 1) } else { (1, 0) };
        let mut body = vec![b'Q', b'J', 1, kind, count, 0];
        body.extend_from_slice(&CLUSTER);
        for field in [3, 77, number, 1_700_000_000_000] {
            body.extend_from_slice(&u64::to_le_bytes(field));
        }
        let (tag, segment, offset, bytes) = match step {
            Some(Step::Write { segment, offset, bytes }) => (1, *segment, *offset, &bytes[..]),
            Some(Step::Manifest { offset, bytes }) => (2, 0, *offset, &bytes[..]),
            Some(Step::Sync { .. }) => panic!("nothing to sync in a stream"),
            None => (0, 0, 0, &b"node-1"[..]),
        };
        if step.is_some() {
            body.push(tag);
            for field in [segment, offset, bytes.len() as u32] {
                body.extend_from_slice(&field.to_le_bytes());
            }
        }
        body.extend_from_slice(bytes);
        let crc = storage::checksum(&body);
        body.extend_from_slice(&crc.to_le_bytes());
        body.into()
    }

    /// The steps of a shard of a directory, as they are imported.
    fn steps(directory: &Path) -> Vec<Step> {
        let mut source = Directory::open(directory, 1, SEGMENT_BYTES).unwrap();
        let journal = &mut source.journals[usize::from(SHARD)];
        let steps = (0..journal.commits()).flat_map(|commit| journal.steps(commit).unwrap());
        let steps = steps.collect();
        journal.check_end().unwrap();
        steps
    }

    #[test]
    fn a_stream_of_version_1_is_exported_to_what_can_be_imported() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        data::sample::write_journal(from.path(), 12, 1).unwrap();
        let steps_before = steps(from.path());
        let claim = [old_message(0, None)];
        let writes = steps_before.iter().zip(1..).map(|(step, at)| old_message(at, Some(step)));
        let stream: Vec<Body> = claim.into_iter().chain(writes).collect();
        assert!(Portion::all_of(&stream[1]).is_err(), "a node does not read it");

        let settings = Settings::with_segment_bytes(SEGMENT_BYTES);
        let context = CopyContext { cluster: CLUSTER, shards: 1, settings };
        let data = DataDir::open(to.path()).unwrap();
        let mut journals = [LocalCopy::open(&data, SHARD, &context).unwrap().0];
        let mut sequencer = Sequencer::of_old_stream(CLUSTER, SHARD);
        for (body, sequence) in stream.into_iter().zip(1..) {
            let followed = Followed { round: 0, sequence, body };
            assert!(take(&mut sequencer, SHARD, &mut journals, &followed).unwrap());
        }
        assert!(journals[0].finish_export().unwrap() > 0);
        drop((journals, data));
        let file = |directory: &Path| directory.join("shard-000/0000000001.log");
        let read = |directory: &Path| std::fs::read(file(directory)).unwrap();
        assert!(read(from.path()) == read(to.path()));
        let bytes = |steps: &[Step]| steps.iter().map(Step::bytes).sum::<usize>();
        assert_eq!(bytes(&steps(to.path())), bytes(&steps_before), "it can be imported");
    }
}
