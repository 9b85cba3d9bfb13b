//! The commits of one shard that are not done, and how far they are in messages and in the stream.

use std::collections::VecDeque;

use storage::{CommandId, Completion, Fault, FaultKind, Outcome, Step};

use crate::effect::ShardId;
use crate::wire::Packet;

/// See the module. Bound: the journal's own.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    pending: VecDeque<Pending>,
    /// The last commit was refused: those behind it are skipped until one says `resume`.
    skips: bool,
}

/// A commit that is not done.
#[derive(Debug)]
struct Pending {
    id: CommandId,
    steps: Vec<Step>,
    /// What is in messages.
    packed: Place,
    /// What the stream has.
    stored: Place,
    /// Messages that hold a part of it and are not stored.
    open: usize,
}

/// Whole steps, and bytes of the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Place {
    steps: usize,
    bytes: usize,
}

/// What a message holds of a commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) shard: ShardId,
    commit: CommandId,
    /// Where the commit is when the message is stored.
    upto: Place,
}

impl Commits {
    /// Takes a commit. Some: it is skipped.
    pub(crate) fn submit(
        &mut self,
        id: CommandId,
        steps: Vec<Step>,
        resume: bool,
    ) -> Option<Completion> {
        self.skips &= !resume;
        if self.skips {
            return Some(skipped(id));
        }
        let (packed, stored) = (Place::default(), Place::default());
        self.pending.push_back(Pending { id, steps, packed, stored, open: 0 });
        None
    }

    /// Packs as much as fits, and notes what that is.
    pub(crate) fn pack(&mut self, shard: ShardId, packet: &mut Packet, parts: &mut Vec<Part>) {
        for pending in &mut self.pending {
            if pending.pack(shard, packet) > 0 {
                pending.open += 1;
                parts.push(Part { shard, commit: pending.id, upto: pending.packed });
            }
            if !pending.is_packed() {
                return;
            }
        }
    }

    /// Bytes that are in no message.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let of_commit = |pending: &Pending| {
            let rest = pending.steps.get(pending.packed.steps..).unwrap_or_default();
            rest.iter().map(step_bytes).sum::<usize>() - pending.packed.bytes
        };
        self.pending.iter().map(of_commit).sum()
    }

    /// A message is in the stream, with this part.
    pub(crate) fn note_stored(&mut self, part: &Part) {
        if let Some(pending) = self.pending.iter_mut().find(|it| it.id == part.commit) {
            pending.open -= 1;
            pending.stored = part.upto;
        }
    }

    /// The stream ends within a step: what is there of it cannot be taken back.
    pub(crate) fn is_cut(&self) -> bool {
        self.pending.iter().any(|pending| pending.stored.bytes > 0)
    }

    /// The messages that are not stored are no more.
    pub(crate) fn unpack(&mut self) {
        for pending in &mut self.pending {
            (pending.packed, pending.open) = (pending.stored, 0);
        }
    }

    /// The next commit that is done.
    pub(crate) fn take_done(&mut self) -> Option<Completion> {
        let pending = self.pending.front_mut()?;
        pending.skip_syncs();
        if pending.open > 0 || !pending.is_packed() {
            return None;
        }
        let Pending { id, steps, .. } = self.pending.pop_front()?;
        let outcome = Outcome::Committed { steps_done: steps.len(), fault: None };
        Some(Completion { id, outcome })
    }

    /// Refuses the first commit and skips what was submitted behind it. Nothing of them is packed.
    pub(crate) fn refuse(&mut self, fault: &Fault) -> Vec<Completion> {
        self.skips |= !self.pending.is_empty();
        let mut refusals = Vec::new();
        for (place, pending) in self.pending.drain(..).enumerate() {
            refusals.push(match place {
                0 => refused(pending.id, pending.steps_done(), fault.clone()),
                _ => skipped(pending.id),
            });
        }
        refusals
    }

    /// Refuses all: the stream has another writer.
    pub(crate) fn end(&mut self, fault: &Fault) -> Vec<Completion> {
        let all = self.pending.drain(..);
        all.map(|pending| refused(pending.id, pending.stored.steps, fault.clone())).collect()
    }
}

impl Pending {
    /// A sync asks for no message: what was acknowledged is synced.
    fn skip_syncs(&mut self) {
        while matches!(self.steps.get(self.packed.steps), Some(Step::Sync { .. })) {
            self.packed.steps += 1;
        }
    }

    /// What the stream has is synced, so a journal is refused at a write.
    fn steps_done(&self) -> usize {
        let rest = self.steps.get(self.stored.steps..).unwrap_or_default();
        let syncs = rest.iter().take_while(|step| matches!(step, Step::Sync { .. }));
        self.stored.steps + syncs.count()
    }

    /// Says how many bytes fit.
    fn pack(&mut self, shard: ShardId, packet: &mut Packet) -> usize {
        let mut added_bytes = 0;
        self.skip_syncs();
        while let Some(step) = self.steps.get(self.packed.steps) {
            let added = packet.add(shard, step, self.packed.bytes);
            added_bytes += added;
            self.packed.bytes += added;
            if added == 0 || self.packed.bytes < step_bytes(step) {
                break;
            }
            self.packed = Place { steps: self.packed.steps + 1, bytes: 0 };
            self.skip_syncs();
        }
        added_bytes
    }

    fn is_packed(&self) -> bool {
        self.packed.steps == self.steps.len()
    }
}

fn step_bytes(step: &Step) -> usize {
    match step {
        Step::Write { bytes, .. } | Step::Manifest { bytes, .. } => bytes.len(),
        Step::Sync { .. } => 0,
    }
}

pub(crate) fn refused(id: CommandId, steps_done: usize, fault: Fault) -> Completion {
    Completion { id, outcome: Outcome::Committed { steps_done, fault: Some(fault) } }
}

fn skipped(id: CommandId) -> Completion {
    let detail = "a write before it was refused".to_owned();
    refused(id, 0, Fault { kind: FaultKind::Skipped, detail })
}
