//! `quelea cluster export`: a data directory for a broker without a cluster, out of the streams.
//!
//! Each stream is read as a standby reads it, up to the message that was the last one when the
//! command began. So each shard has a prefix of its journal, as in a backup of a running broker.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use broker::ShardId;
use cluster::{Answer, Record, Request, Sequence, Sequencer, Unreadable, Verdict};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::connect::{self, WaitReason};
use super::copy::{CopyContext, LocalCopy};
use super::engine::{Engine, Followed, FollowedBy};
use super::files::Files;
use super::import;
use super::token;
use base::print;
use config::Config;
use data::{DataDir, sync_entry};
use tools::backup::{begin_copy, partial_of};
use tools::log_tool;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Messages that wait. More wait in the engine.
const FOLLOWED_MAX: usize = 64;
/// How often a stream is begun again because its oldest messages were removed meanwhile.
const TRIES_MAX: u32 = 5;
/// How long the engine may deliver nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long the engine has to say where a stream ends.
const ENDS_TRIES_MAX: u32 = 10;

/// Exports the cluster.
///
/// # Errors
///
/// Why there is no directory, and what to do.
pub(super) async fn run(engine: &Engine, config: &Config, target: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    let facts = connect::read_cluster(engine, &WaitReason::default()).await?;
    import::refuse_unfinished(engine).await?;
    let partial = partial_of(target)?;
    let mut ends = Vec::new();
    for shard in 0..facts.shards {
        ends.push(last_of(engine, shard).await?);
    }
    ensure!(
        ends.iter().any(|last| *last > 0),
        "the streams of the cluster are empty: no node has served it yet"
    );
    let copy = Arc::new(begin_copy(&partial)?);
    copy.shard_count(facts.shards, true)?;
    let durability = config.durability.with_segment_bytes(facts.segment_bytes);
    let settings = durability.journal_settings(facts.shards)?;
    let context = CopyContext { cluster: facts.id, shards: facts.shards, settings };
    let mut export = Export { engine, facts: &facts, context, copy: &copy, bytes: 0 };
    for (shard, last) in ends.iter().enumerate() {
        export.shard(shard as ShardId, *last).await?;
    }
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

async fn last_of(engine: &Engine, shard: ShardId) -> anyhow::Result<Sequence> {
    let mut why = String::new();
    for _ in 0..ENDS_TRIES_MAX {
        match engine.ask(shard, Request::Ends).await {
            Answer::Ends { last, .. } => return Ok(last),
            Answer::Unknown(error) => why = error,
            answer => bail!("unexpected answer of the engine: {answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    bail!("cannot read where the stream of shard {shard} ends: {why}")
}

struct Export<'a> {
    engine: &'a Engine,
    facts: &'a Record,
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
    async fn shard(&mut self, shard: ShardId, last: Sequence) -> anyhow::Result<()> {
        let (mut journal, _) = LocalCopy::open(self.copy, shard, &self.context)?;
        let mut is_whole = last == 0;
        for _ in 0..TRIES_MAX {
            if is_whole {
                break;
            }
            match self.read(shard, last, &mut journal).await? {
                End::Whole => is_whole = true,
                End::Purged => journal.start_over()?,
            }
        }
        ensure!(
            is_whole,
            "shard {shard}: the stream removes segments faster than they are read; repeat the export when there is less traffic"
        );
        self.bytes += journal.finish_export().with_context(|| format!("shard {shard}"))?;
        Ok(())
    }

    async fn read(
        &self,
        shard: ShardId,
        last: Sequence,
        journal: &mut LocalCopy,
    ) -> anyhow::Result<End> {
        let (to, mut messages) = mpsc::channel(FOLLOWED_MAX);
        let to = FollowedBy { shard, round: 0, to };
        let engine = self.engine.clone();
        let following = tokio::spawn(async move { engine.follow(1, to).await });
        let mut sequencer = Sequencer::new(self.facts.id);
        let mut said_at = Instant::now() + PROGRESS_INTERVAL;
        let ended = loop {
            if sequencer.last() >= last {
                break Ok(End::Whole);
            }
            let Ok(Some(followed)) = timeout(SILENCE_MAX, messages.recv()).await else {
                let read = sequencer.last();
                break Err(anyhow::anyhow!(
                    "the engine delivers no message after {read} of shard {shard}: check `quelea \
                    cluster status`, then run this again"
                ));
            };
            match take(&mut sequencer, journal, &followed) {
                Ok(true) => {}
                Ok(false) => break Ok(End::Purged),
                Err(error) => break Err(error.context(format!("shard {shard}"))),
            }
            if said_at <= Instant::now() {
                said_at = Instant::now() + PROGRESS_INTERVAL;
                let (at, shards) = (sequencer.last(), self.facts.shards);
                eprintln!("quelea: export: shard {shard} of {shards}, message {at} of {last}");
            }
        };
        following.abort();
        ended
    }
}

/// False: messages are missing.
fn take(
    sequencer: &mut Sequencer,
    journal: &mut LocalCopy,
    followed: &Followed,
) -> anyhow::Result<bool> {
    match sequencer.on_message(followed.sequence, &followed.body) {
        Ok(Verdict::Counts) => {
            journal.apply(&followed.body)?;
        }
        Ok(Verdict::Claim(_)) => journal.on_new_writer(),
        Ok(Verdict::Void) => {}
        Err(Unreadable::Gap(found, read)) if found <= read => {}
        Err(Unreadable::Gap(..)) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}
