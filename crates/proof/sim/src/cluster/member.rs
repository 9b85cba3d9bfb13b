//! A machine of a cluster, and the process on it.

use std::collections::{BTreeSet, VecDeque};

use broker::ShardId;
use cluster::{
    ClusterId, Cursor, Facts, Foreign, Identity, MESSAGE_BYTES_MAX, Record, RequestId, Role,
    Sequence, Settings, Timing, span_bytes_min,
};
use storage::{Command, CommandId, Completion, Fault, FaultKind, Outcome};

use super::copy::Copy;
use super::engine::{Asker, Reply};
use super::files::Keeper;
use super::odd::Oddity;
use super::programs::Program;
use super::setup::{Comparison, Setup};
use super::silent;
use crate::node::Node;
use crate::random::Random;
use crate::sabotage::Sabotage;

/// A clock that nobody sets, and that runs a little too fast or too slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    begin_ms: u64,
    offset_ms: u64,
    /// Milliseconds that it counts in 1,000.
    rate: u64,
}

impl Clock {
    pub(crate) fn read(&self, now_ms: u64) -> u64 {
        self.offset_ms + now_ms.saturating_sub(self.begin_ms) * self.rate / 1000
    }
}

pub(crate) struct Member {
    number: usize,
    /// Its broker, while the world has another one in its hands.
    pub(crate) broker: Node,
    /// None: the process does not run.
    pub(crate) agent: Option<cluster::Node>,
    /// Processes so far.
    pub(crate) life: u64,
    pub(crate) copies: Vec<Copy>,
    /// The sequence that the stream is to be delivered from.
    pub(crate) follows: Option<Sequence>,
    /// Done, and not yet told to the shard.
    pub(crate) completions: VecDeque<(ShardId, Completion)>,
    /// Commits that a planted bug has reported already.
    pub(crate) early: BTreeSet<(ShardId, CommandId)>,
    /// The shard whose commit was refused last: a planted bug skips what others commit.
    refused: Option<ShardId>,
    /// Commands of journals that are not answered.
    pub(crate) commands: usize,
    pub(crate) clock: Clock,
    /// What its clock on the wall shows more than the time that has passed.
    pub(crate) wall_wrong_ms: i64,
    pub(crate) is_paused: bool,
    /// The next message cannot be written to the local copy.
    pub(crate) is_disk_failing: bool,
    /// Answers that came while it was paused.
    pub(crate) mail: Vec<(RequestId, Reply)>,
    /// Its role has changed.
    pub(crate) new_role: Option<Role>,
    pub(crate) was_acting: bool,
    /// When it is paused, down or cut off no longer.
    pub(crate) until_ms: Option<u64>,
    /// How far it had come when it was looked at last.
    pub(crate) step: silent::Step,
    /// Its process has ended by itself, for good.
    pub(crate) has_exited: bool,
    /// Its journals were opened.
    pub(crate) has_journals: bool,
    /// Its journals are ready.
    pub(crate) is_ready: bool,
    /// It was told to give its role back, to whom.
    pub(crate) leaving: Option<Option<String>>,
    pub(crate) has_shut_down: bool,
    /// A copy was of use to a later process.
    pub(crate) has_resumed: bool,
    /// Shards whose copies this process has read again because they did not fit.
    pub(crate) has_started_over: Vec<bool>,
    /// What it does not have in common with its cluster.
    pub(crate) oddity: Oddity,
    pub(crate) setup: Setup,
    pub(crate) keeper: Keeper,
    pub(crate) program: Program,
    /// Its process has said that it cannot read the stream.
    pub(crate) is_too_old: bool,
    /// It was given a program that can, and has not served since.
    pub(crate) is_mended: bool,
    /// Of the process.
    pub(crate) comparison: Option<Comparison>,
    seed: u64,
}

impl Member {
    pub(crate) fn new(
        number: usize,
        shards: ShardId,
        journal: &storage::Settings,
        broker: Node,
        sabotage: Option<Sabotage>,
        random: &mut Random,
    ) -> Self {
        let mut rate = 1000 - DRIFT_MAX + random.below(2 * DRIFT_MAX as usize + 1) as u64;
        if sabotage == Some(Sabotage::DriftAway) {
            rate = if random.chance(50) { 50 } else { 1000 };
        }
        let clock = Clock { begin_ms: crate::dice::BEGIN_MS, offset_ms: random.next() >> 30, rate };
        let copies = (0..shards).map(|it| Copy::new(it, shards, journal.clone(), random.next()));
        Self {
            number,
            broker,
            agent: None,
            life: 0,
            copies: copies.collect(),
            follows: None,
            completions: VecDeque::new(),
            early: BTreeSet::new(),
            refused: None,
            commands: 0,
            clock,
            wall_wrong_ms: 0,
            is_paused: false,
            is_disk_failing: false,
            mail: Vec::new(),
            new_role: None,
            was_acting: false,
            until_ms: None,
            step: silent::Step::Standby,
            has_exited: false,
            has_journals: false,
            is_ready: false,
            leaving: None,
            has_shut_down: false,
            has_resumed: false,
            has_started_over: vec![false; usize::from(shards)],
            oddity: Oddity::default(),
            setup: Setup::new(number, shards, journal),
            keeper: Keeper::default(),
            program: Program::default(),
            is_too_old: false,
            is_mended: false,
            comparison: None,
            seed: random.next(),
        }
    }

    pub(crate) const fn is_running(&self) -> bool {
        self.agent.is_some() && !self.is_paused
    }

    pub(crate) fn asker(&self) -> Asker {
        Asker { member: self.number, life: self.life }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.commands == 0 && self.completions.is_empty()
    }

    /// What its journals have handed over waits for others, until time passes.
    pub(crate) fn delays_commits(&self) -> bool {
        self.completions.is_empty()
            && self.agent.as_ref().is_some_and(cluster::Node::delays_commits)
    }

    /// The process starts. `record`: what names the cluster. The error is why it ends at once.
    pub(crate) fn begin(
        &mut self,
        now_ms: u64,
        record: &[u8],
        sabotage: Option<Sabotage>,
    ) -> Result<(), String> {
        self.life += 1;
        self.is_too_old = false;
        let record = Record::read(record).map_err(|why| why.to_string())?;
        self.oddity.begin(record.id);
        if sabotage == Some(Sabotage::TakeForeign) {
            self.copies.iter_mut().for_each(|copy| copy.adopt(record.id));
        }
        let shards = self.setup.shards(&record, sabotage);
        let format = self.program.format();
        self.copies.iter_mut().for_each(|copy| copy.be_of_process(shards, format));
        let cursors = self.open_copies(record.id).map_err(|why| why.to_string())?;
        self.has_resumed |= cursors.iter().any(|cursor| *cursor != Cursor::default());
        self.has_started_over.iter_mut().for_each(|has| *has = false);
        let instance = self.setup.instance(self.seed ^ self.life, sabotage);
        let node = self.setup.name.clone();
        let (version, config) = (self.program.version().to_owned(), self.setup.checksum());
        let started = Random::new(self.seed ^ self.life).next();
        let facts = Facts { node: node.clone(), instance: started, version, config };
        self.comparison = Some(Comparison::new(facts));
        let identity = Identity { node, instance, address: String::new() };
        let settings = Settings {
            cluster: record.id,
            identity,
            seed: instance,
            timing: Timing::default(),
            // Little, so that it comes about in worlds that write little.
            message_bytes_max: MESSAGE_BYTES_MAX >> MESSAGE_SHIFTS[self.seed as usize % 3],
            span_bytes_min: span_bytes_min(1, record.segment_bytes),
            stream_bytes_max: u64::MAX,
            append_interval_ms: APPEND_INTERVALS_MS[self.seed as usize / 3 % 3],
        };
        self.agent = Some(cluster::Node::new(settings, cursors, self.clock.read(now_ms)));
        Ok(())
    }

    /// A planted bug: this commit of another shard than the refused one is skipped.
    pub(crate) fn skip_of_neighbour(
        &mut self,
        shard: ShardId,
        command: &Command,
    ) -> Option<Completion> {
        let Command::Commit { id, resume, .. } = command else { return None };
        let refused = self.refused.take_if(|refused| *refused == shard && *resume);
        let is_skipped = refused.is_none() && self.refused.is_some_and(|refused| refused != shard);
        let detail = "a write before it was refused".to_owned();
        let fault = Some(Fault { kind: FaultKind::Skipped, detail });
        let outcome = Outcome::Committed { steps_done: 0, fault };
        (is_skipped && !*resume).then_some(Completion { id: *id, outcome })
    }

    /// For the same.
    pub(crate) fn note_refusal(&mut self, shard: ShardId, completion: &Completion) {
        if let Outcome::Committed { fault: Some(fault), .. } = &completion.outcome
            && fault.kind != FaultKind::Skipped
        {
            self.refused = Some(shard);
        }
    }

    /// All are looked at before one of them is touched.
    fn open_copies(&mut self, own: ClusterId) -> Result<Vec<Cursor>, Foreign> {
        self.copies.iter().try_for_each(|copy| copy.check(&own).map(drop))?;
        self.copies.iter_mut().map(|copy| copy.open(own)).collect()
    }

    /// What is started from now on.
    pub(crate) fn take_program(&mut self, program: Program) {
        self.is_mended |= self.is_too_old && program == Program::Later;
        self.program = program;
    }

    /// It must neither serve nor write.
    pub(crate) fn is_barred(&self) -> bool {
        self.oddity.is_of_other_cluster() || self.copies.iter().any(|copy| copy.is_foreign)
    }

    /// The process is gone, with all that it had in memory.
    pub(crate) fn end(&mut self, idle: Node) {
        self.broker = idle;
        self.agent = None;
        self.comparison = None;
        self.keeper = Keeper::default();
        self.follows = None;
        self.completions.clear();
        self.early.clear();
        self.refused = None;
        self.commands = 0;
        (self.has_journals, self.is_ready, self.is_paused) = (false, false, false);
        (self.new_role, self.was_acting) = (None, false);
        self.mail.clear();
        self.is_disk_failing = false;
        (self.leaving, self.has_shut_down) = (None, false);
    }
}

/// How much smaller than in a server messages are: some hold all that a turn writes, some are less
/// than a batch.
const MESSAGE_SHIFTS: [u32; 3] = [0, 6, 7];
const APPEND_INTERVALS_MS: [u64; 3] = [0, 5, 20];

/// Clocks drift by so many thousandths: more than any that is not broken.
const DRIFT_MAX: u64 = 30;
