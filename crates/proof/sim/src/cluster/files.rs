//! A small file in the key-value store, as bans are: the active node changes it, and a takeover has
//! to bring along all that was acknowledged.
//!
//! What is asked is decided by `cluster::FileTask`, as in the server.

use std::collections::BTreeSet;

use cluster::{FileFault, FileStep, FileTask, LeaseAnswer, LeaseRequest, RequestId, read_file};

use super::Cluster;
use super::engine::Question;
use super::member::Member;
use crate::sabotage::Sabotage;
use crate::world::World;

/// The file as the process of one node knows it.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// The lines of its local file.
    lines: BTreeSet<u32>,
    epoch: u64,
    revision: u64,
    running: Option<Running>,
    /// The role was taken over, and the file is this node's.
    pub(crate) is_taken: bool,
    /// The next try to take it over, and until when it is tried.
    retry: Option<(u64, u64)>,
    requests: u64,
}

/// What is under way.
#[derive(Debug)]
struct Running {
    task: FileTask,
    asked: RequestId,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    TakeOver {
        until_ms: u64,
    },
    /// What a node writes that has taken it over, before it opens its journals.
    Begin,
    /// One line more.
    Add(u32),
}

/// All lines, by what became of them.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    last: u32,
    acknowledged: BTreeSet<u32>,
}

impl Cluster {
    /// A node asks what its task wants to know, or is done.
    fn follow_task(&mut self, number: usize, task: FileTask, purpose: Purpose, step: FileStep) {
        let sabotage = self.sabotage;
        let keeper = &mut self.members[number].keeper;
        match step {
            FileStep::Ask(LeaseRequest::Write { expected, value })
                if sabotage == Some(Sabotage::ReadFilesOnly)
                    && matches!(purpose, Purpose::TakeOver { .. }) =>
            {
                let content =
                    read_file(&value).and_then(|(_, content)| content.map(<[u8]>::to_vec));
                self.finish_task(number, purpose, expected, content.as_deref());
            }
            FileStep::Ask(request) => {
                keeper.requests += 1;
                let asked = RequestId(keeper.requests);
                keeper.running = Some(Running { task, asked, purpose });
                let asker = self.members[number].asker();
                let now_ms = self.file_now_ms;
                self.engine.ask(asker, asked, Question::File(request), now_ms);
            }
            FileStep::Done { revision, content } => {
                self.finish_task(number, purpose, revision, content.as_deref());
            }
            FileStep::Failed(fault) => self.fail_task(number, purpose, &fault),
        }
    }

    fn finish_task(
        &mut self,
        number: usize,
        purpose: Purpose,
        revision: u64,
        content: Option<&[u8]>,
    ) {
        let keeper = &mut self.members[number].keeper;
        keeper.revision = revision;
        keeper.lines = lines_of(content.unwrap_or_default());
        match purpose {
            Purpose::TakeOver { .. } => {
                self.toll.files_taken += 1;
                // What it writes then would make the file its own after all.
                let is_sound = self.sabotage != Some(Sabotage::ReadFilesOnly);
                if self.plan.silences && is_sound && self.random.chance(50) {
                    let content = content_of(&keeper.lines);
                    let (task, step) = FileTask::put(keeper.epoch, revision, content);
                    return self.follow_task(number, task, Purpose::Begin, step);
                }
                keeper.is_taken = true;
            }
            Purpose::Begin => {
                keeper.is_taken = true;
                self.toll.beginnings += 1;
            }
            Purpose::Add(line) => {
                self.lines.acknowledged.insert(line);
                self.toll.files_changed += 1;
            }
        }
    }

    fn fail_task(&mut self, number: usize, purpose: Purpose, fault: &FileFault) {
        self.toll.files_fenced += u64::from(matches!(fault, FileFault::Fenced(_)));
        self.toll.files_unknown += u64::from(matches!(fault, FileFault::Unknown(_)));
        let until_ms = match purpose {
            Purpose::TakeOver { until_ms } => until_ms,
            // It is tried once, as in the server.
            Purpose::Begin => 0,
            Purpose::Add(_) => return,
        };
        let may_come = matches!(fault, FileFault::Unknown(_) | FileFault::Busy);
        let next_ms = self.file_now_ms + RETRY_MS;
        let sabotage = self.sabotage;
        let member = &mut self.members[number];
        if purpose == Purpose::Begin && sabotage == Some(Sabotage::ExitOnSilence) {
            member.has_exited = true;
        } else if may_come && next_ms < until_ms {
            member.keeper.retry = Some((next_ms, until_ms));
        } else if let Some(agent) = &mut member.agent {
            // A role that cannot be filled is not kept.
            self.toll.roles_given_up += 1;
            agent.release(None);
        }
    }
}

impl Keeper {
    pub(crate) fn is_beginning(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.purpose == Purpose::Begin)
    }
}

impl Member {
    /// Its broker answers operators.
    const fn may_change_file(&self) -> bool {
        self.is_running() && self.is_ready && !self.has_shut_down && self.keeper.running.is_none()
    }
}

impl World {
    /// A node has become active: the file comes before the journals.
    pub(crate) fn take_file_over(&mut self, number: usize, epoch: u64) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        cluster.members[number].keeper.epoch = epoch;
        self.try_to_take(number, now_ms + TAKE_OVER_MS_MAX);
    }

    fn try_to_take(&mut self, number: usize, until_ms: u64) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        cluster.file_now_ms = now_ms;
        let (task, step) = FileTask::take(cluster.members[number].keeper.epoch);
        cluster.follow_task(number, task, Purpose::TakeOver { until_ms }, step);
        self.carry_out(number);
    }

    /// Tries that are due. True: the file is this node's, and its journals are to be opened.
    pub(crate) fn look_at_file(&mut self, number: usize) -> bool {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return false };
        let member = &mut cluster.members[number];
        if !member.is_running() {
            return false;
        }
        let due = member.keeper.retry.take_if(|(at_ms, _)| *at_ms <= now_ms);
        if let Some((_, until_ms)) = due {
            self.try_to_take(number, until_ms);
        }
        let Some(cluster) = &mut self.cluster else { return false };
        let keeper = &mut cluster.members[number].keeper;
        // One that was paused meanwhile may be late: its journals and its clients get nothing any
        // more.
        let is_late = keeper.epoch < cluster.opened_epoch;
        let is_taken = std::mem::take(&mut keeper.is_taken) && !is_late;
        if is_taken {
            cluster.opened_epoch = keeper.epoch;
            if let Some(lost) = cluster.lines.acknowledged.difference(&keeper.lines).next() {
                let rule = format!("node {number} takes the file over without line {lost}");
                cluster.engine.broken_rule.get_or_insert(rule);
            }
        }
        is_taken
    }

    /// An operator changes the file, on a node that serves or believes so.
    pub(crate) fn change_file(&mut self) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let number = cluster.random.below(cluster.members.len());
        if !cluster.members[number].may_change_file() || cluster.lines.last == LINES_MAX {
            return;
        }
        cluster.lines.last += 1;
        let (line, keeper) = (cluster.lines.last, &cluster.members[number].keeper);
        let mut lines = keeper.lines.clone();
        lines.insert(line);
        let (task, step) = FileTask::put(keeper.epoch, keeper.revision, content_of(&lines));
        cluster.file_now_ms = now_ms;
        cluster.follow_task(number, task, Purpose::Add(line), step);
    }

    /// The key has answered.
    pub(crate) fn on_file_answer(&mut self, number: usize, id: RequestId, answer: LeaseAnswer) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let running = cluster.members[number].keeper.running.take_if(|it| it.asked == id);
        let Some(Running { mut task, purpose, .. }) = running else { return };
        cluster.file_now_ms = now_ms;
        let step = task.on_answer(answer);
        cluster.follow_task(number, task, purpose, step);
    }
}

fn content_of(lines: &BTreeSet<u32>) -> Vec<u8> {
    lines.iter().flat_map(|line| line.to_le_bytes()).collect()
}

fn lines_of(content: &[u8]) -> BTreeSet<u32> {
    let (lines, _) = content.as_chunks::<4>();
    lines.iter().map(|line| u32::from_le_bytes(*line)).collect()
}

/// In one world.
const LINES_MAX: u32 = 200;

/// As in the server: how often it is tried to take the file over, and for how long.
const RETRY_MS: u64 = 500;
const TAKE_OVER_MS_MAX: u64 = 5_000;
