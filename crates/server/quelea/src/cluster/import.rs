//! `quelea cluster import`: the data directory of a broker without a cluster becomes the content of
//! a stream that is empty.
//!
//! It is a node that is active for as long as it appends: [`cluster::Node`] takes the lease, claims
//! the stream and writes the journals, with the same fences. A key in the bucket says that it has
//! begun, and at the end that it is done. No node starts or serves in between, so an import that
//! was broken off cannot be mistaken for a journal that ends there; the next run begins anew.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use broker::ShardId;
use cluster::{
    Answer, BlockFile, BlockMessage, BlockRequest, Body, ClusterId, Cursor, Effect, Extent,
    LeaseAnswer, LeaseValue, Node, Record, RequestId, Role,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use storage::{Command, CommandId, Completion, FaultKind, Outcome, Step};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::acting::boot_ms;
use super::cells_list::{self, CellsList};
use super::connect;
use super::engine::{Engine, EngineError, Followed, FollowedBy, LEASE_KEY, NO_STREAM, Put};
use super::files;
use super::source::Source;
use super::token as shared_token;
use crate::api::token;
use base::print;
use config::TOKEN_FILE;

/// Whether an import is under way, as JSON.
pub(super) const IMPORT_KEY: &str = "import";

/// The name that it has as a node.
const NODE: &str = "quelea-cluster-import";

const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// How long a commit that the engine could not take waits.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How long the engine has to take the lease back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// A holder of the lease has renewed it within this time.
const LEASE_LOOK: Duration = Duration::from_millis(2500);
/// The number that the claim of an import has in the stream.
const OWN_CLAIM: u64 = 1;
/// Messages that wait, and answers. More wait in the engine.
const FOLLOWED_MAX: usize = 16;

const IMPORTED: &str = "a data directory was imported into this cluster already: start the nodes; \
                        for another import, make a cluster with another `cluster.name`";

/// What the key says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    Begun,
    Done,
}

/// Refuses a cluster with an import that has not ended.
///
/// # Errors
///
/// There is one, or the engine does not answer.
pub(super) async fn refuse_unfinished(engine: &Engine) -> anyhow::Result<()> {
    refuse_begun(&engine.get(IMPORT_KEY).await?)
}

/// The same, of what the key was found to hold.
///
/// # Errors
///
/// There is an import that has not ended.
pub(super) fn refuse_begun(found: &Option<(u64, Vec<u8>)>) -> anyhow::Result<()> {
    match stage_of(found)?.1 {
        Some(Stage::Begun) => bail!(
            "a data directory is being imported into this cluster, or the import was broken off: \
             wait for its end, or run `quelea cluster import` again"
        ),
        _ => Ok(()),
    }
}

fn stage_of(found: &Option<(u64, Vec<u8>)>) -> anyhow::Result<(u64, Option<Stage>)> {
    let Some((revision, value)) = found else { return Ok((0, None)) };
    let stage = serde_json::from_slice(value).context("the key 'import' is malformed")?;
    Ok((*revision, Some(stage)))
}

/// Imports a data directory; into a cluster with several cells, the export of one.
///
/// # Errors
///
/// Why it was not imported, and what to do.
pub(super) async fn run(engine: &Engine, directory: &Path) -> anyhow::Result<()> {
    let facts = connect::read_whole(engine).await?;
    match facts.extent {
        Extent::Many { cells, .. } => all_cells(engine, cells, directory).await?,
        Extent::One | Extent::Cell { .. } => import(engine, &facts, directory).await?,
    }
    print(b"Start the nodes now, each with an empty data directory.\n");
    Ok(())
}

/// An import that was broken off goes on with the cells that it lacks.
async fn all_cells(engine: &Engine, cells: u16, directory: &Path) -> anyhow::Result<()> {
    let list = CellsList::read(directory)?;
    ensure!(
        list.cells == cells,
        "{} has {} cells, and the cluster was created with {cells}. Create a cluster with `--cells \
         {}` and another `cluster.name`, and import into that",
        directory.display(),
        list.cells,
        list.cells
    );
    let (revision, stage) = stage_of(&engine.get(IMPORT_KEY).await?)?;
    ensure!(!matches!(stage, Some(Stage::Done)), IMPORTED);
    let begun = serde_json::to_vec(&Stage::Begun)?;
    let Put::Written(revision) = engine.put_if(IMPORT_KEY, revision, begun).await? else {
        bail!("another import begins at the same time: stop one of them, and run this again");
    };
    for cell in 0..cells {
        let own = engine.of_cell(cell);
        let (_, stage) = stage_of(&own.get(IMPORT_KEY).await?)?;
        if matches!(stage, Some(Stage::Done)) {
            say(&format!("cell {cell} was imported before"));
            continue;
        }
        let facts = connect::read_facts(&own).await?;
        let imported = async {
            put_epoch(&own, list.epoch).await?;
            import(&own, &facts, &directory.join(cells_list::directory_of(cell))).await
        };
        imported.await.with_context(|| format!("cell {cell}"))?;
    }
    if let Some(token) = token::known(&directory.join(TOKEN_FILE))? {
        let known = engine.get(shared_token::TOKEN_KEY).await?.map_or(0, |(revision, _)| revision);
        engine.put_if(shared_token::TOKEN_KEY, known, shared_token::value_of(&token)).await?;
    }
    match engine.put_if(IMPORT_KEY, revision, serde_json::to_vec(&Stage::Done)?).await? {
        Put::Written(_) => Ok(()),
        Put::Conflict => bail!("another import has begun: stop one of them, and run this again"),
    }
}

/// The owners of the cell will have epochs above this one.
async fn put_epoch(engine: &Engine, epoch: u64) -> anyhow::Result<()> {
    if connect::read_lease(engine).await?.is_some() {
        return Ok(());
    }
    let holder = cluster::Identity { node: NODE.into(), instance: 0, address: String::new() };
    let lease = LeaseValue { holder, epoch, count: 0, is_released: true, successor: None };
    match engine.put_if(LEASE_KEY, 0, serde_json::to_vec(&lease)?).await? {
        Put::Written(_) => Ok(()),
        Put::Conflict => bail!("a node of the cluster runs: stop all of them, and run this again"),
    }
}

async fn import(engine: &Engine, facts: &Record, directory: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    let path = directory.to_owned();
    let (shards, segment_bytes) = (facts.shards, facts.segment_bytes);
    say(&format!("reading {}", directory.display()));
    let opened = tokio::task::spawn_blocking(move || Source::open(&path, shards, segment_bytes));
    let source = opened.await.context("the reading thread stopped")??;
    ensure!(
        source.stream_files.is_empty() || engine.has_blocks().await?,
        "{} has streams, and the cluster was created before it could have some: run `quelea \
         cluster init` again, it adds what is missing",
        directory.display()
    );
    let revision = begin(engine).await?;
    let bytes = source.bytes();
    let records: u64 = source.journals.iter().map(|journal| journal.records).sum();
    let mut importer = Importer::new(engine, facts, bytes);
    importer.take_role().await?;
    if let Some(why) = importer.why_not_alone() {
        importer.release().await;
        bail!(why);
    }
    let source = importer.append_all(source).await?;
    importer.append_stream_files(&source).await?;
    importer.put_files(&source).await?;
    let done = serde_json::to_vec(&Stage::Done)?;
    match engine.put_if(IMPORT_KEY, revision, done).await? {
        Put::Written(_) => {}
        Put::Conflict => bail!("another import has begun: stop one of them, and run this again"),
    }
    importer.release().await;
    let text = format!(
        "imported {}: {shards} shards, {records} records, {bytes} bytes, {} small files, {:.1} s\n",
        directory.display(),
        source.files.len(),
        began.elapsed().as_secs_f64()
    );
    print(text.as_bytes());
    Ok(())
}

fn say(text: &str) {
    eprintln!("quelea: {text}");
}

/// Makes sure that nobody uses the cluster and that its stream is empty, and notes that an import
/// has begun. Returns the revision of the note.
async fn begin(engine: &Engine) -> anyhow::Result<u64> {
    let (revision, stage) = stage_of(&engine.get(IMPORT_KEY).await?)?;
    refuse_holder(engine).await?;
    let name = engine.names().stream();
    let is_used = is_used(engine, &name).await?;
    match stage {
        Some(Stage::Done) => bail!(IMPORTED),
        Some(Stage::Begun) => {}
        None if !is_used => {}
        None => bail!(
            "the stream of the cluster is not empty ({name}): an import needs a cluster that no \
             node has served yet. Make one with another `cluster.name`, or remove the stream and \
             the bucket (`nats stream rm`), and run `quelea cluster init`"
        ),
    }
    let value = serde_json::to_vec(&Stage::Begun)?;
    let Put::Written(revision) = engine.put_if(IMPORT_KEY, revision, value).await? else {
        bail!("another import begins at the same time: stop one of them, and run this again");
    };
    if is_used {
        say("an import was aborted: its stream is created again");
        // Whoever has begun another import since owns the stream.
        let (now, _) = stage_of(&engine.get(IMPORT_KEY).await?)?;
        ensure!(now == revision, "another import has begun: stop one of them, and run this again");
        make_anew(engine, &name).await?;
    }
    Ok(revision)
}

/// A node that runs renews the lease, or would take it.
async fn refuse_holder(engine: &Engine) -> anyhow::Result<()> {
    let nodes = super::operate::nodes(engine).await?;
    let names: Vec<&str> = nodes.iter().map(|node| node.node.as_str()).collect();
    ensure!(names.is_empty(), "nodes of the cluster run ({}): stop them first", names.join(", "));
    let Some(before) = connect::read_lease(engine).await? else { return Ok(()) };
    if before.is_released {
        return Ok(());
    }
    tokio::time::sleep(LEASE_LOOK).await;
    let after = connect::read_lease(engine).await?;
    ensure!(
        after.as_ref() == Some(&before),
        "'{}' has the lease and renews it: stop it first",
        before.holder.node
    );
    Ok(())
}

/// Whether a stream has or had messages.
async fn is_used(engine: &Engine, name: &str) -> anyhow::Result<bool> {
    let info = engine.api(&format!("STREAM.INFO.{name}"), Value::Null).await;
    let info = info.with_context(|| format!("cannot query the stream '{name}'"))?;
    Ok(info["state"]["last_seq"].as_u64() != Some(0))
}

/// Sequences would go on where they were, and nodes would wait for messages that are gone: so a
/// purge is not enough.
async fn make_anew(engine: &Engine, name: &str) -> anyhow::Result<()> {
    let fail = || format!("cannot create the stream '{name}' again; run `quelea cluster init`");
    let info = engine.api(&format!("STREAM.INFO.{name}"), Value::Null).await.with_context(fail)?;
    match engine.api(&format!("STREAM.DELETE.{name}"), json!({})).await {
        // An earlier try has removed it, and its answer was lost.
        Ok(_) | Err(EngineError::Refused { code: NO_STREAM, .. }) => {}
        Err(error) => return Err(error).with_context(fail),
    }
    let created = engine.api(&format!("STREAM.CREATE.{name}"), info["config"].clone()).await;
    created.with_context(fail)?;
    Ok(())
}

/// An answer of the engine.
enum Heard {
    Stream(RequestId, Answer),
    Lease(RequestId, LeaseAnswer),
    Followed(Followed),
}

/// A node that appends journals and does nothing else.
struct Importer {
    /// What the node asks: it decides itself what to try again.
    engine: Engine,
    patient: Engine,
    cluster: ClusterId,
    node: Node,
    heard: mpsc::UnboundedReceiver<Heard>,
    hear: mpsc::UnboundedSender<Heard>,
    followed: mpsc::Receiver<Followed>,
    follow: mpsc::Sender<Followed>,
    follower: Option<oneshot::Sender<()>>,
    completed: Option<Completion>,
    ended: Option<String>,
    commands: u64,
    shard: ShardId,
    shards: ShardId,
    bytes: u64,
    bytes_done: u64,
    said_at: Instant,
}

impl Importer {
    fn new(engine: &Engine, facts: &Record, bytes: u64) -> Self {
        let instance = u64::from_ne_bytes(base::random());
        let settings = cluster::Settings {
            cluster: facts.id,
            identity: cluster::Identity { node: NODE.into(), instance, address: String::new() },
            seed: u64::from_ne_bytes(base::random()),
            timing: cluster::Timing::default(),
            message_bytes_max: cluster::MESSAGE_BYTES_MAX,
            span_bytes_min: cluster::span_bytes_min(facts.shards, facts.segment_bytes),
            stream_bytes_max: u64::MAX,
            append_interval_ms: 0,
        };
        let cursors = vec![Cursor::default(); usize::from(facts.shards)];
        let (hear, heard) = mpsc::unbounded_channel();
        let (follow, followed) = mpsc::channel(FOLLOWED_MAX);
        Self {
            engine: engine.impatient(),
            patient: engine.clone(),
            cluster: facts.id,
            follower: None,
            node: Node::new(settings, cursors, boot_ms()),
            heard,
            hear,
            followed,
            follow,
            completed: None,
            ended: None,
            commands: 0,
            shard: 0,
            shards: facts.shards,
            bytes,
            bytes_done: 0,
            said_at: Instant::now() + PROGRESS_INTERVAL,
        }
    }

    async fn take_role(&mut self) -> anyhow::Result<()> {
        while !matches!(self.node.role(), Role::Active { .. }) {
            self.turn("waits for the lease and the stream").await?;
        }
        Ok(())
    }

    /// The stream must hold nothing but the claim of this import. If it does not, why not.
    fn why_not_alone(&self) -> Option<String> {
        self.node.streams().find(|stream| stream.last != OWN_CLAIM)?;
        let stream = self.engine.names().stream();
        Some(format!(
            "a node has written to the stream '{stream}' meanwhile: stop all nodes, and run this \
             again"
        ))
    }

    async fn append_all(&mut self, mut source: Source) -> anyhow::Result<Source> {
        for shard in 0..source.journals.len() {
            self.shard = shard as ShardId;
            let commits = source.journals[shard].commits();
            for commit in 0..commits {
                let read = tokio::task::spawn_blocking(move || {
                    let steps = source.journals[shard].steps(commit);
                    (source, steps)
                });
                let mut read = std::pin::pin!(read);
                let steps = loop {
                    tokio::select! {
                        done = &mut read => {
                            let (back, steps) = done.context("the reading thread stopped")?;
                            source = back;
                            break steps?;
                        }
                        turned = self.turn("reads the logs") => turned?,
                    }
                };
                self.commit(steps).await?;
            }
            if commits > 0 {
                source.journals[shard].check_end()?;
            }
        }
        Ok(source)
    }

    /// Appends, and returns when a quorum has all of it.
    async fn commit(&mut self, mut steps: Vec<Step>) -> anyhow::Result<()> {
        let mut resume = false;
        while !steps.is_empty() {
            self.commands += 1;
            let id = CommandId(self.commands);
            let command = Command::Commit { id, steps: steps.clone(), resume };
            // Nothing is reclaimed, so it does not matter what of it is live.
            self.node.submit(self.shard, command, 0, boot_ms());
            let outcome = loop {
                self.turn("appends").await?;
                if let Some(done) = self.completed.take_if(|done| done.id == id) {
                    break done.outcome;
                }
            };
            let Outcome::Committed { steps_done, fault } = outcome else {
                bail!("unexpected answer to a commit");
            };
            let done = steps.drain(..steps_done);
            self.bytes_done += done.map(|step| step.bytes() as u64).sum::<u64>();
            let Some(fault) = fault else { continue };
            resume = true;
            match fault.kind {
                FaultKind::Unavailable => {
                    say(&format!(
                        "the engine accepts no writes at present, retrying: {}",
                        fault.detail
                    ));
                    let again_at = Instant::now() + RETRY_DELAY;
                    while Instant::now() < again_at {
                        self.turn("waits for the engine").await?;
                    }
                }
                FaultKind::NoSpace => bail!(
                    "the engine has no space: {}; give it more (`cluster.stream_bytes_max`, or \
                     the disks of the NATS servers), and run this again",
                    fault.detail
                ),
                _ => bail!("the stream cannot be written: {}", fault.detail),
            }
        }
        Ok(())
    }

    /// The files of streams, as they are. What an import that was broken off has appended is the
    /// same.
    async fn append_stream_files(&mut self, source: &Source) -> anyhow::Result<()> {
        let Role::Active { epoch } = *self.node.role() else { bail!("the role is lost") };
        for own in &source.stream_files {
            let file = BlockFile { stream: own.stream, file: own.file };
            let mut offset = 0;
            while offset < own.bytes {
                let part = source.read_stream_file(own, offset)?;
                for body in BlockMessage::all_of((self.cluster, epoch), file, offset, &part) {
                    self.append_block(file, body).await?;
                }
                offset += part.len() as u64;
                self.bytes_done += part.len() as u64;
            }
        }
        Ok(())
    }

    async fn append_block(&mut self, file: BlockFile, body: Body) -> anyhow::Result<()> {
        loop {
            let (engine, body) = (self.engine.clone(), body.clone());
            let asked = async move { engine.ask_blocks(BlockRequest::Append { file, body }).await };
            let mut asked = std::pin::pin!(asked);
            let answer = loop {
                tokio::select! {
                    answer = &mut asked => break answer,
                    turned = self.turn("appends files of streams") => turned?,
                }
            };
            match answer {
                Answer::Appended(_) => return Ok(()),
                Answer::NoSpace(why) => bail!(
                    "the engine has no space: {why}; give the NATS servers more, and run this again"
                ),
                answer => say(&format!("the engine accepts no writes at present: {answer:?}")),
            }
            let again_at = Instant::now() + RETRY_DELAY;
            while Instant::now() < again_at {
                self.turn("waits for the engine").await?;
            }
        }
    }

    /// The small files, as a node that is active writes them, and the token of the API.
    async fn put_files(&mut self, source: &Source) -> anyhow::Result<()> {
        let Role::Active { epoch } = *self.node.role() else { bail!("the role is lost") };
        for (name, content) in &source.files {
            self.put(name, files::key(name), cluster::file_value(epoch, Some(content))).await?;
        }
        if let Some(token) = &source.token {
            self.put(TOKEN_FILE, shared_token::TOKEN_KEY.to_owned(), shared_token::value_of(token))
                .await?;
        }
        Ok(())
    }

    async fn put(&mut self, name: &str, key: String, value: Vec<u8>) -> anyhow::Result<()> {
        let engine = self.patient.clone();
        let written = async move {
            let revision = engine.get(&key).await?.map_or(0, |(revision, _)| revision);
            engine.put_if(&key, revision, value).await
        };
        let mut written = std::pin::pin!(written);
        let put = loop {
            tokio::select! {
                put = &mut written => break put,
                turned = self.turn("writes the small files") => turned?,
            }
        };
        let put = put.with_context(|| format!("cannot write '{name}'; run this again"))?;
        ensure!(matches!(put, Put::Written(_)), "'{name}' is written by another process");
        Ok(())
    }

    async fn release(&mut self) {
        self.node.release(None);
        let ends_at = Instant::now() + RELEASE_TIMEOUT;
        while *self.node.role() != Role::Released && Instant::now() < ends_at {
            if self.turn("gives the lease back").await.is_err() {
                return;
            }
        }
    }

    /// Carries out what the node wants, and waits for the next event. Can be dropped while it
    /// waits.
    async fn turn(&mut self, doing: &str) -> anyhow::Result<()> {
        self.node.on_tick(boot_ms(), super::member::wall_ms());
        self.apply_effects();
        if let Some(why) = &self.ended {
            bail!("the import lost its role: {why}; see `quelea cluster status`, run it again");
        }
        if self.said_at <= Instant::now() {
            self.said_at = Instant::now() + PROGRESS_INTERVAL;
            self.say_progress(doing);
        }
        let due = self.node.next_deadline().map_or(u64::MAX, |at| at.saturating_sub(boot_ms()));
        let due = Instant::now() + Duration::from_millis(due.min(100));
        let heard = tokio::select! {
            Some(heard) = self.heard.recv() => heard,
            Some(followed) = self.followed.recv() => Heard::Followed(followed),
            () = sleep_until(due) => return Ok(()),
        };
        match heard {
            Heard::Stream(id, answer) => self.node.on_answer(id, answer, boot_ms()),
            Heard::Lease(id, answer) => self.node.on_lease_answer(id, answer, boot_ms()),
            Heard::Followed(Followed { sequence, body, .. }) => {
                self.node.on_message(sequence, &body, boot_ms());
            }
        }
        self.apply_effects();
        Ok(())
    }

    fn say_progress(&self, doing: &str) {
        let (done, all) = (self.bytes_done, self.bytes);
        let (shard, shards) = (self.shard, self.shards);
        let streams = self.node.streams();
        let why = streams.filter_map(|stream| stream.fault.or(stream.unavailable)).next();
        let why = why.or_else(|| self.node.unreachable().map(str::to_owned));
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        say(&format!("import {doing}: shard {shard} of {shards}, {done} of {all} bytes{why}"));
    }

    fn apply_effects(&mut self) {
        let mut effects = Vec::new();
        self.node.take_effects(&mut effects);
        for effect in effects {
            self.apply(effect);
        }
    }

    fn apply(&mut self, effect: Effect) {
        let (engine, hear) = (self.engine.clone(), self.hear.clone());
        match effect {
            Effect::Ask(id, request) => drop(tokio::spawn(async move {
                let answer = engine.ask(request).await;
                let _ = hear.send(Heard::Stream(id, answer));
            })),
            Effect::AskLease(id, request) => drop(tokio::spawn(async move {
                let answer = engine.ask_lease(request).await;
                let _ = hear.send(Heard::Lease(id, answer));
            })),
            Effect::Follow(from) => {
                let (stop, stopped) = oneshot::channel();
                self.follower = Some(stop);
                // Nothing is read twice from a stream that only this process writes.
                let stream = engine.names().stream();
                let follow =
                    FollowedBy { stream, over_gaps: None, round: 0, to: self.follow.clone() };
                tokio::spawn(async move {
                    tokio::select! {
                        () = engine.follow(from, follow) => {}
                        _ = stopped => {}
                    }
                });
            }
            Effect::Unfollow => self.follower = None,
            Effect::Done(_, completion) => self.completed = Some(completion),
            Effect::Role(Role::Ended(why)) => self.ended = Some(why),
            // There is no local copy.
            Effect::StartOver(_)
            | Effect::NewWriter(..)
            | Effect::Apply(..)
            | Effect::Store(..)
            | Effect::Background(..)
            | Effect::Renew(..)
            | Effect::Role(_) => {}
        }
    }
}
