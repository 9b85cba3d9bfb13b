//! The files of MQTT streams in a cluster: the active node appends what it writes to a second
//! stream of the engine, the others copy them from there.
//!
//! A thread of its own, so that neither the lease nor the journals wait for these bytes. Who may
//! write what is decided in `cluster::replication`; which files count, by the journals.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cluster::{
    Answer, BlockFile, BlockMark, BlockMessage, ClusterId, PutId, Replication, RequestId, Sequence,
};
use data::StreamCopies;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::acting::boot_ms;
use super::engine::{Engine, Followed, FollowedBy};

/// How far each file of each stream must reach, as the journals say.
pub(crate) type Reach = BTreeMap<u32, BTreeMap<u64, u64>>;

/// Called when a quorum has a write.
pub(crate) type WriteDone = Box<dyn FnOnce() + Send>;

/// What others want of the thread.
enum FilesOrder {
    /// This node is active with this epoch, and its files are the ones that count.
    Lead {
        epoch: u64,
        reach: Reach,
        answer: Sender<anyhow::Result<()>>,
    },
    Write {
        file: BlockFile,
        offset: u64,
        bytes: Vec<u8>,
        done: Option<WriteDone>,
    },
    Delete(BlockFile),
    DeleteStream(u32),
    /// A backup: nothing is deleted until it is released.
    Hold(Sender<()>),
    /// Answered once the copies have what the engine had when this came.
    CatchUp(Sender<()>),
    Release,
}

/// How the thread is reached.
#[derive(Clone)]
pub(crate) struct ClusterStreamFiles {
    orders: mpsc::UnboundedSender<FilesOrder>,
    board: Arc<Board>,
}

/// How the copies are, for other threads.
#[derive(Debug, Default)]
struct Board {
    /// Messages of the engine that are not in the files. More than there are: some were removed.
    behind: AtomicU64,
    is_ready: AtomicBool,
    detail: Mutex<String>,
}

/// The same, for those who ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamFilesStatus {
    /// Messages of the engine that are not in the files of the node.
    pub(crate) behind: u64,
    /// The node may become active.
    pub(crate) is_ready: bool,
    /// What is wrong. Empty: nothing.
    pub(crate) detail: String,
}

impl ClusterStreamFiles {
    /// Begins to copy.
    ///
    /// # Errors
    ///
    /// When the files cannot be used, or there is no thread.
    pub(super) fn start(
        engine: Engine,
        cluster: ClusterId,
        directory: &std::path::Path,
    ) -> anyhow::Result<Self> {
        let (orders, ordered) = mpsc::unbounded_channel();
        let board = Arc::<Board>::default();
        let own = Self { orders, board: board.clone() };
        let (copies, applied) = open_copies(cluster, directory).with_context(|| {
            format!("cannot use the files of streams in {}", directory.display())
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime for files of streams")?;
        std::thread::Builder::new().name("stream files".into()).spawn(move || {
            let _guard = super::AbortOnPanic;
            runtime.block_on(Loop::new(engine, cluster, copies, applied, board).run(ordered));
        })?;
        Ok(own)
    }

    fn order(&self, order: FilesOrder) {
        // The thread ends with the process.
        let _ = self.orders.send(order);
    }

    /// This node is active: returns when its files have all that the journals name.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub(crate) fn lead(&self, epoch: u64, reach: Reach) -> anyhow::Result<()> {
        let (answer, answered) = std::sync::mpsc::channel();
        self.order(FilesOrder::Lead { epoch, reach, answer });
        answered.recv().context("the thread for files of streams has ended")?
    }

    /// A write that the local disk has done. `done` is called when a quorum has it, too.
    pub(crate) fn write(
        &self,
        file: BlockFile,
        offset: u64,
        bytes: Vec<u8>,
        done: Option<WriteDone>,
    ) {
        self.order(FilesOrder::Write { file, offset, bytes, done });
    }

    /// A file that is deleted here.
    pub(crate) fn delete(&self, file: BlockFile) {
        self.order(FilesOrder::Delete(file));
    }

    /// All files of a stream that is gone.
    pub(crate) fn delete_stream(&self, stream: u32) {
        self.order(FilesOrder::DeleteStream(stream));
    }

    /// A standby deletes nothing until [`ClusterStreamFiles::release`].
    ///
    /// # Errors
    ///
    /// The thread does not answer in this time.
    pub(crate) fn hold(&self, time_max: Duration) -> io::Result<()> {
        self.ask(FilesOrder::Hold, time_max)
    }

    /// Returns when the copies have all that the engine has now.
    ///
    /// # Errors
    ///
    /// They do not in this time.
    pub(crate) fn catch_up(&self, time_max: Duration) -> io::Result<()> {
        self.ask(FilesOrder::CatchUp, time_max)
    }

    fn ask(&self, order: impl FnOnce(Sender<()>) -> FilesOrder, max: Duration) -> io::Result<()> {
        let (answer, answered) = std::sync::mpsc::channel();
        self.order(order(answer));
        answered.recv_timeout(max).map_err(|_| {
            io::Error::other("the files of streams on this node are behind the cluster: try again")
        })
    }

    pub(crate) fn release(&self) {
        self.order(FilesOrder::Release);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.board.is_ready.load(Ordering::Relaxed)
    }

    pub(crate) fn status(&self) -> StreamFilesStatus {
        StreamFilesStatus {
            behind: self.board.behind.load(Ordering::Relaxed),
            is_ready: self.board.is_ready.load(Ordering::Relaxed),
            detail: self.board.detail(),
        }
    }
}

impl Board {
    fn detail(&self) -> String {
        self.detail.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_detail(&self, detail: &str) {
        let mut own = self.detail.lock().unwrap_or_else(PoisonError::into_inner);
        if *own != detail {
            if !detail.is_empty() {
                tracing::warn!(detail, "files of streams");
            }
            *own = detail.to_owned();
        }
    }
}

/// The copies of a data directory, and up to which message they are. What is not of this cluster,
/// or has no mark, is read again.
fn open_copies(
    cluster: ClusterId,
    directory: &std::path::Path,
) -> io::Result<(StreamCopies, Sequence)> {
    let mut copies = StreamCopies::new(directory);
    let mark = copies.read_mark()?.as_deref().and_then(BlockMark::read);
    match mark.filter(|mark| mark.cluster == cluster) {
        Some(mark) => Ok((copies, mark.sequence)),
        None => {
            copies.start_over()?;
            Ok((copies, 0))
        }
    }
}

struct Loop {
    engine: Engine,
    cluster: ClusterId,
    copies: StreamCopies,
    side: Side,
    board: Arc<Board>,
    follow: mpsc::Sender<Followed>,
    followed: mpsc::Receiver<Followed>,
    heard: mpsc::UnboundedReceiver<(RequestId, Answer)>,
    hear: mpsc::UnboundedSender<(RequestId, Answer)>,
    /// How often the stream was followed from somewhere.
    round: u64,
    /// Up to this message the mark says.
    marked: Sequence,
    holds: u32,
    /// How many files the engine had when it was asked last.
    files: u64,
    /// Who waits for the copies to reach a message.
    waiting: Vec<(Sequence, Sender<()>)>,
    look_at: Instant,
    mark_at: Instant,
    tidy_at: Instant,
}

enum Side {
    /// What messages up to `applied` hold is in the files.
    Copying {
        applied: Sequence,
        follower: Option<tokio::task::JoinHandle<()>>,
    },
    Leading {
        own: Replication,
        waiting: BTreeMap<PutId, WriteDone>,
    },
    /// What the engine has cannot be read: this node does not become active.
    Failed,
}

impl Loop {
    fn new(
        engine: Engine,
        cluster: ClusterId,
        copies: StreamCopies,
        applied: Sequence,
        board: Arc<Board>,
    ) -> Self {
        let (follow, followed) = mpsc::channel(FOLLOWED_MAX);
        let (hear, heard) = mpsc::unbounded_channel();
        let now = Instant::now();
        Self {
            engine,
            cluster,
            copies,
            side: Side::Copying { applied, follower: None },
            board,
            follow,
            followed,
            heard,
            hear,
            round: 0,
            marked: applied,
            holds: 0,
            files: 0,
            waiting: Vec::new(),
            look_at: now,
            mark_at: now + MARK_INTERVAL,
            // What was written here ahead of a crash may be in no other node.
            tidy_at: now,
        }
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<FilesOrder>) {
        self.begin_to_follow();
        loop {
            self.work().await;
            let due = self.look_at.min(self.mark_at).min(self.tidy_at).min(self.next_try());
            tokio::select! {
                biased;
                Some((id, answer)) = self.heard.recv() => self.on_answer(id, answer),
                Some(followed) = self.followed.recv() => self.on_followed(&followed),
                order = orders.recv() => match order {
                    Some(order) => self.on_order(order).await,
                    None => return,
                },
                () = tokio::time::sleep_until(due) => {}
            }
        }
    }

    fn next_try(&self) -> Instant {
        let due_ms = match &self.side {
            Side::Leading { own, .. } => own.next_deadline(),
            _ => None,
        };
        let wait_ms = due_ms.map_or(LOOK_INTERVAL.as_millis() as u64, |at| {
            at.saturating_sub(boot_ms()).min(LOOK_INTERVAL.as_millis() as u64)
        });
        Instant::now() + Duration::from_millis(wait_ms)
    }

    async fn work(&mut self) {
        if let Side::Leading { own, waiting } = &mut self.side {
            let mut asked = Vec::new();
            own.work(boot_ms(), &mut asked);
            for (id, request) in asked {
                let (engine, hear) = (self.engine.clone(), self.hear.clone());
                tokio::spawn(async move {
                    let _ = hear.send((id, engine.ask_blocks(request).await));
                });
            }
            for id in own.take_done() {
                if let Some(done) = waiting.remove(&id) {
                    done();
                }
            }
            self.board.set_detail(own.unavailable().unwrap_or_default());
        }
        let now = Instant::now();
        if self.look_at <= now {
            self.look_at = now + LOOK_INTERVAL;
            self.look().await;
        }
        if self.mark_at <= now {
            self.mark_at = now + MARK_INTERVAL;
            self.mark();
        }
        if self.tidy_at <= now {
            self.tidy_at = now + TIDY_INTERVAL;
            self.tidy().await;
        }
    }

    fn on_answer(&mut self, id: RequestId, answer: Answer) {
        if let Side::Leading { own, .. } = &mut self.side {
            own.on_answer(id, answer, boot_ms());
        }
    }

    async fn on_order(&mut self, order: FilesOrder) {
        match order {
            FilesOrder::Lead { epoch, reach, answer } => {
                let led = self.lead(epoch, &reach).await;
                // Who waits is the start of the broker.
                let _ = answer.send(led);
            }
            FilesOrder::Write { file, offset, bytes, done } => {
                if let Side::Leading { own, waiting } = &mut self.side {
                    let id = own.put(file, offset, &bytes);
                    waiting.extend(done.map(|done| (id, done)));
                }
            }
            FilesOrder::Delete(file) => {
                if let Side::Leading { own, .. } = &mut self.side {
                    own.remove(file);
                }
            }
            FilesOrder::DeleteStream(stream) => {
                if let Side::Leading { own, .. } = &mut self.side {
                    own.remove_stream(stream);
                }
            }
            FilesOrder::Hold(answer) => {
                self.holds += 1;
                confirm(&answer);
            }
            FilesOrder::CatchUp(answer) => self.wait_for_end(answer).await,
            FilesOrder::Release => self.holds = self.holds.saturating_sub(1),
        }
    }
}

/// A standby.
impl Loop {
    fn begin_to_follow(&mut self) {
        let Side::Copying { applied, follower } = &mut self.side else { return };
        let (engine, from) = (self.engine.clone(), *applied + 1);
        self.round += 1;
        let to = FollowedBy {
            stream: engine.names().blocks(),
            over_gaps: Some(engine.names().blocks_subjects()),
            round: self.round,
            to: self.follow.clone(),
        };
        *follower = Some(tokio::spawn(async move { engine.follow(from, to).await }));
    }

    fn on_followed(&mut self, followed: &Followed) {
        let Side::Copying { applied, .. } = &mut self.side else { return };
        // It was delivered before, or is what an earlier follower has left in the queue.
        if followed.sequence <= *applied || followed.round != self.round {
            return;
        }
        match apply(&mut self.copies, self.cluster, &followed.body) {
            Ok(()) => *applied = followed.sequence,
            Err(CopyFault::Message(why)) => {
                self.fail(&format!("message {}: {why}", followed.sequence));
            }
            Err(CopyFault::Files(error)) => self.read_later(&error),
        }
        self.answer_waiting();
    }

    fn fail(&mut self, why: &str) {
        if let Side::Copying { follower: Some(follower), .. } = &self.side {
            follower.abort();
        }
        self.side = Side::Failed;
        self.board.is_ready.store(false, Ordering::Relaxed);
        self.board.set_detail(&format!("cannot copy the files of streams: {why}"));
    }

    /// How far behind the copies are.
    async fn look(&mut self) {
        let Side::Copying { applied, follower } = &self.side else { return };
        let before = *applied;
        if follower.is_none() {
            return self.read_from(before);
        }
        let (files, last) = match self.engine.block_ends().await {
            Ok(ends) => ends,
            Err(error) => return self.board.set_detail(&error.to_string()),
        };
        if files < self.files {
            self.tidy_at = Instant::now();
        }
        self.files = files;
        if last < before {
            // What is in the files was in the engine: it has lost it, or this is another one.
            self.board.set_detail(
                "the engine has fewer messages than this node has copied: NATS lost messages, or \
                 its stream was created again; the files are read again",
            );
            self.marked = 0;
            return self.read_from(0);
        }
        let mut behind = last - before;
        if behind > 0
            && let Ok(None) = self.engine.block_from(None, before + 1).await
        {
            behind = 0;
            if let Side::Copying { applied, .. } = &mut self.side {
                *applied = (*applied).max(last);
            }
        }
        self.board.behind.store(behind, Ordering::Relaxed);
        self.board.is_ready.store(behind <= BEHIND_MAX, Ordering::Relaxed);
        self.board.set_detail("");
        self.answer_waiting();
    }

    /// Reads what the engine has behind this message, whatever was read before.
    fn read_from(&mut self, reached: Sequence) {
        let Side::Copying { applied, follower } = &mut self.side else { return };
        follower.take().into_iter().for_each(|follower| follower.abort());
        *applied = reached;
        self.begin_to_follow();
    }

    /// The disk may have space again, or be better.
    fn read_later(&mut self, error: &io::Error) {
        self.board.is_ready.store(false, Ordering::Relaxed);
        self.board.set_detail(&format!("cannot write the files of streams: {error}"));
        if let Side::Copying { applied, follower } = &mut self.side {
            follower.take().into_iter().for_each(|follower| follower.abort());
            *applied = self.marked;
        }
        // What was synced since the mark is the same again.
        self.round += 1;
    }

    async fn wait_for_end(&mut self, answer: Sender<()>) {
        // An active node has all of it.
        let Side::Copying { .. } = &self.side else { return confirm(&answer) };
        let ends = self.engine.ends(&self.engine.names().blocks()).await;
        if let Answer::Ends { last, .. } = ends {
            self.waiting.push((last, answer));
            self.look_at = Instant::now();
            self.answer_waiting();
        }
    }

    fn answer_waiting(&mut self) {
        let Side::Copying { applied, .. } = &self.side else { return };
        let applied = *applied;
        let reached = self.waiting.extract_if(.., |(last, _)| *last <= applied);
        reached.for_each(|(_, answer)| confirm(&answer));
    }
}

/// Who asked may have given up.
fn confirm(answer: &Sender<()>) {
    let _ = answer.send(());
}

/// Why a message is not in the files.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyFault {
    #[error("{0}")]
    Message(String),
    #[error("cannot write the copy: {0}")]
    Files(io::Error),
}

fn apply(copies: &mut StreamCopies, cluster: ClusterId, body: &[u8]) -> Result<(), CopyFault> {
    let message =
        BlockMessage::decode(body).map_err(|error| CopyFault::Message(error.to_string()))?;
    if message.cluster != cluster {
        return Err(CopyFault::Message("it is of another cluster".to_owned()));
    }
    let BlockFile { stream, file } = message.file;
    copies.put((stream, file), message.offset, message.bytes).map_err(CopyFault::Files)
}

impl Loop {
    /// Notes up to where the files are.
    fn mark(&mut self) {
        let reached = match &self.side {
            Side::Copying { applied, .. } => *applied,
            // Its files are synced before they are replicated.
            Side::Leading { own, .. } => own.reached(),
            Side::Failed => return,
        };
        if reached <= self.marked {
            return;
        }
        let mark = BlockMark { cluster: self.cluster, sequence: reached };
        let noted = self.copies.sync().and_then(|()| self.copies.write_mark(&mark.to_bytes()));
        match noted {
            Ok(()) => self.marked = reached,
            // What a failed sync has lost is read again.
            Err(error) => {
                self.read_later(&error);
            }
        }
    }

    /// Deletes what the other side does not have any more.
    async fn tidy(&mut self) {
        // Ahead of the question: what is found here later may be newer than the answer.
        let Ok(local) = self.copies.list() else { return };
        let Ok((files, last)) = self.engine.block_files().await else { return };
        match &mut self.side {
            Side::Leading { own, .. } => own.remove_orphans(files),
            Side::Copying { applied, .. } if *applied <= last && self.holds == 0 => {
                let known: BTreeSet<BlockFile> = files.into_iter().collect();
                for file in local {
                    let name = BlockFile { stream: file.stream, file: file.file };
                    if !known.contains(&name) {
                        let removed = self.copies.remove((file.stream, file.file));
                        removed.unwrap_or_else(|error| {
                            tracing::warn!(%error, "cannot delete an old file of a stream");
                        });
                    }
                }
            }
            _ => {}
        }
    }

    /// What the journals name is in the files of this node, and this node writes from now on.
    async fn lead(&mut self, epoch: u64, reach: &Reach) -> anyhow::Result<()> {
        let applied = match &self.side {
            Side::Copying { follower, applied } => {
                follower.iter().for_each(|it| it.abort());
                *applied
            }
            Side::Leading { .. } => bail!("this node is active already"),
            Side::Failed => bail!("{}", self.board.detail()),
        };
        // All that the journals name was acknowledged, so it is behind none of these.
        self.read_to_end(applied).await.context("cannot read the files of streams from NATS")?;
        for (stream, reach) in reach {
            self.complete(*stream, reach).await.with_context(|| format!("stream {stream}"))?;
        }
        self.copies.sync().context("cannot sync the files of streams")?;
        let names = reach.iter().flat_map(|(stream, reach)| {
            reach.keys().map(|file| BlockFile { stream: *stream, file: *file })
        });
        let own = Replication::new((self.cluster, epoch), names.collect());
        self.side = Side::Leading { own, waiting: BTreeMap::new() };
        self.board.behind.store(0, Ordering::Relaxed);
        self.board.is_ready.store(true, Ordering::Relaxed);
        self.board.set_detail("");
        self.waiting.drain(..).for_each(|(_, answer)| confirm(&answer));
        // What former active nodes have left.
        self.tidy_at = Instant::now();
        Ok(())
    }

    async fn read_to_end(&mut self, applied: Sequence) -> anyhow::Result<()> {
        let last = last_of(&self.engine).await?;
        let (mut next, mut until) = (applied + 1, Instant::now() + COMPLETE_MAX);
        while next <= last {
            match self.engine.block_from(None, next).await {
                Ok(None) => break,
                Ok(Some((sequence, body))) => {
                    apply(&mut self.copies, self.cluster, &body)?;
                    (next, until) = (sequence + 1, Instant::now() + COMPLETE_MAX);
                }
                Err(error) if until <= Instant::now() => return Err(error.into()),
                Err(_) => tokio::time::sleep(COMPLETE_INTERVAL).await,
            }
        }
        Ok(())
    }

    async fn complete(&mut self, stream: u32, reach: &BTreeMap<u64, u64>) -> anyhow::Result<()> {
        let until = Instant::now() + COMPLETE_MAX;
        loop {
            let lacking = self.copies.lacking(stream, reach)?;
            let Some(file) = lacking.first() else { return Ok(()) };
            let file = BlockFile { stream, file: *file };
            let fetched = fetch(&self.engine, self.cluster, file, 1, &mut self.copies).await;
            if self.copies.lacking(stream, reach)?.len() < lacking.len() {
                continue;
            }
            if until <= Instant::now() {
                fetched.with_context(|| format!("file {}", file.file))?;
                bail!(
                    "file {} is not complete in the engine: restore the data of NATS, or a backup",
                    file.file
                );
            }
            tokio::time::sleep(COMPLETE_INTERVAL).await;
        }
    }
}

/// The last message, once the engine says so.
async fn last_of(engine: &Engine) -> anyhow::Result<Sequence> {
    let until = Instant::now() + COMPLETE_MAX;
    loop {
        match engine.ends(&engine.names().blocks()).await {
            Answer::Ends { last, .. } => return Ok(last),
            Answer::Unknown(why) if until <= Instant::now() => bail!(why),
            _ => tokio::time::sleep(COMPLETE_INTERVAL).await,
        }
    }
}

/// Reads a file from the engine, from this message on; returns the next one.
pub(super) async fn fetch(
    engine: &Engine,
    cluster: ClusterId,
    file: BlockFile,
    from: Sequence,
    copies: &mut StreamCopies,
) -> anyhow::Result<Sequence> {
    let mut next = from;
    while let Some((sequence, body)) = engine.block_from(Some(file), next).await? {
        apply(copies, cluster, &body).with_context(|| format!("message {sequence}"))?;
        next = sequence + 1;
    }
    Ok(next)
}

/// Messages that wait for the thread, of up to 64 KiB.
const FOLLOWED_MAX: usize = 128;

/// A standby that lacks more messages does not become active: it would serve nobody meanwhile.
const BEHIND_MAX: u64 = 256;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const MARK_INTERVAL: Duration = Duration::from_secs(5);
const TIDY_INTERVAL: Duration = Duration::from_secs(30);

/// How long a takeover asks for what the engine does not give, and how often. The engine may have
/// to elect a leader.
const COMPLETE_MAX: Duration = Duration::from_secs(20);
const COMPLETE_INTERVAL: Duration = Duration::from_millis(200);
