//! The second stream of a cluster's engine, under the files of streams: what the active node puts
//! into it, what comes late, and what another node makes of it.
//!
//! The active node's side is the state machine of the server (`cluster::Replication`). The engine
//! answers, or does not, and stores, or does not, in any combination. A node that has ended may be
//! one that does not know yet: what it has asked for is done at any later time.

use std::collections::{BTreeMap, BTreeSet};

use broker::streams::StreamNumber;
use cluster::{
    Answer, BlockFile, BlockMessage, BlockRequest, Body, ClusterId, PutId, Replication, RequestId,
};
use storage::stream::StreamCommandId;

use super::disk::FileName;
use crate::random::Random;

/// A write of the owner that waits for the engine.
pub(super) type Waiting = (StreamNumber, StreamCommandId);

#[derive(Debug)]
pub(super) struct Replica {
    active: Option<Node>,
    /// The node before, as far as it does not know that it has ended.
    former: Option<Node>,
    /// By their sequences.
    messages: BTreeMap<u64, (BlockFile, Body)>,
    last: u64,
    /// Requests that were not answered, and are carried out at any time.
    late: Vec<BlockRequest>,
    random: Random,
}

#[derive(Debug)]
struct Node {
    own: Replication,
    puts: BTreeMap<PutId, Waiting>,
    under_way: Vec<(RequestId, BlockRequest)>,
}

const CLUSTER: ClusterId = [9; 16];

/// Requests that may come late. Policy: further ones do not come.
const LATE_MAX: usize = 20;

impl Replica {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            active: None,
            former: None,
            messages: BTreeMap::new(),
            last: 0,
            late: Vec::new(),
            random: Random::new(seed),
        }
    }

    /// The active node ends, for others at least.
    pub(super) fn crash(&mut self) {
        if let Some(node) = self.active.take() {
            self.former = Some(node);
        }
    }

    /// A node is active with this epoch. `reach`: what the journals name.
    pub(super) fn begin(&mut self, epoch: u32, reach: impl IntoIterator<Item = FileName>) {
        let files: BTreeSet<BlockFile> = reach.into_iter().map(block_file).collect();
        let own = Replication::new((CLUSTER, epoch.into()), files);
        self.active = Some(Node { own, puts: BTreeMap::new(), under_way: Vec::new() });
        self.tidy();
    }

    fn tidy(&mut self) {
        let found: BTreeSet<BlockFile> = self.messages.values().map(|(file, _)| *file).collect();
        if let Some(node) = &mut self.active {
            node.own.remove_orphans(found.iter().copied());
        }
        if let Some(node) = self.former.as_mut().filter(|_| self.random.chance(30)) {
            node.own.remove_orphans(found);
        }
    }

    /// The local disk has done a write.
    pub(super) fn put(&mut self, name: FileName, offset: u64, bytes: &[u8], by: Option<Waiting>) {
        let Some(node) = &mut self.active else { return };
        let id = node.own.put(block_file(name), offset, bytes);
        node.puts.extend(by.map(|by| (id, by)));
    }

    pub(super) fn remove(&mut self, name: FileName) {
        if let Some(node) = &mut self.active {
            node.own.remove(block_file(name));
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.as_ref().is_none_or(|node| node.own.is_idle())
    }

    /// The active node waits for time to pass, or for nothing.
    pub(super) fn is_still(&self, now_ms: u64) -> bool {
        self.active.as_ref().is_none_or(|node| {
            let waits = node.own.next_deadline().is_none_or(|at_ms| at_ms > now_ms);
            node.under_way.is_empty() && (node.own.is_idle() || waits)
        })
    }

    /// Something happens in the engine. Returns the writes that a quorum has; `None`: there is
    /// nothing to do now.
    pub(super) fn step(&mut self, now_ms: u64) -> Option<Vec<Waiting>> {
        if self.random.chance(5) {
            self.tidy();
        }
        if !self.late.is_empty() && self.random.chance(20) {
            let place = self.random.below(self.late.len());
            let request = self.late.swap_remove(place);
            self.carry_out(request);
        }
        if let Some(mut node) = self.former.take() {
            self.turn(&mut node, now_ms);
            // It gets to know.
            self.former = Some(node).filter(|_| self.random.chance(95));
        }
        let mut node = self.active.take()?;
        let works = self.turn(&mut node, now_ms);
        let done: Vec<PutId> = node.own.take_done().collect();
        let done = done.into_iter().filter_map(|id| node.puts.remove(&id)).collect();
        self.active = Some(node);
        works.then_some(done)
    }

    /// False: it waits for time to pass, or for nothing.
    fn turn(&mut self, node: &mut Node, now_ms: u64) -> bool {
        node.own.work(now_ms, &mut node.under_way);
        if node.under_way.is_empty() {
            return false;
        }
        let place = self.random.below(node.under_way.len());
        let (id, request) = node.under_way.swap_remove(place);
        let answer = match self.random.below(100) {
            0..=79 => self.carry_out(request),
            80..=86 => {
                self.carry_out(request);
                Answer::Unknown("simulated silence".to_owned())
            }
            87..=95 => {
                if self.late.len() < LATE_MAX {
                    self.late.push(request);
                }
                Answer::Unknown("simulated silence".to_owned())
            }
            _ => Answer::NoSpace("simulated full engine".to_owned()),
        };
        node.own.on_answer(id, answer, now_ms);
        true
    }

    fn carry_out(&mut self, request: BlockRequest) -> Answer {
        match request {
            BlockRequest::Append { file, body } => {
                self.last += 1;
                self.messages.insert(self.last, (file, body));
                return Answer::Appended(self.last);
            }
            BlockRequest::Remove { file } => self.messages.retain(|_, (own, _)| *own != file),
            BlockRequest::RemoveStream { stream } => {
                self.messages.retain(|_, (own, _)| own.stream != stream);
            }
        }
        Answer::Purged
    }

    /// All that the engine has, in its order.
    pub(super) fn messages(&self) -> Vec<(FileName, u64, Vec<u8>)> {
        self.messages.values().filter_map(|(_, body)| piece_of(body)).collect()
    }

    /// What the engine has of a file.
    pub(super) fn pieces(&self, name: FileName) -> Vec<(u64, Vec<u8>)> {
        let of_file = self.messages.values().filter(|(file, _)| *file == block_file(name));
        let pieces = of_file.filter_map(|(_, body)| piece_of(body));
        pieces.map(|(_, offset, bytes)| (offset, bytes)).collect()
    }
}

fn piece_of(body: &Body) -> Option<(FileName, u64, Vec<u8>)> {
    let BlockMessage { file, offset, bytes, .. } = BlockMessage::decode(body).ok()?;
    Some(((file.stream, file.file), offset, bytes.to_vec()))
}

const fn block_file((stream, file): FileName) -> BlockFile {
    BlockFile { stream, file }
}
