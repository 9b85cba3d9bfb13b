//! A disk in memory that carries out every command at once.

use std::collections::BTreeMap;

use storage::testing::SimDisk;
use storage::{Command, Completion, Outcome, Step};

/// The segments of one journal. It does next to nothing, so that what is counted is the journal.
pub struct QuickDisk(BTreeMap<u32, Vec<u8>>);

impl QuickDisk {
    /// With the segments of another disk.
    pub fn like(other: &SimDisk) -> Self {
        let content = |number: u32| other.content(number).to_vec();
        Self(other.files().iter().map(|file| (file.number, content(file.number))).collect())
    }

    pub fn carry_out(&mut self, command: Command) -> Completion {
        let id = command.id();
        let outcome = match command {
            Command::Commit { steps, .. } => {
                steps.iter().for_each(|step| self.write(step));
                Outcome::Committed { steps_done: steps.len(), fault: None }
            }
            Command::Create { segment, bytes, .. } => {
                self.0.insert(segment, vec![0; bytes as usize]);
                Outcome::Done(Ok(()))
            }
            Command::Recycle { from, to, .. } => {
                let content = self.0.remove(&from).unwrap_or_default();
                self.0.insert(to, content);
                Outcome::Done(Ok(()))
            }
            Command::Delete { segment, .. } => {
                self.0.remove(&segment);
                Outcome::Done(Ok(()))
            }
            Command::Read { segment, offset, bytes, .. } => {
                let content = self.0.get(&segment).map_or(&[][..], Vec::as_slice);
                let end = content.len().min((offset + bytes) as usize);
                Outcome::Read(Ok(content[offset as usize..end].to_vec()))
            }
        };
        Completion { id, outcome }
    }

    /// Syncs and the manifest leave nothing to do: no broker starts from this disk.
    pub fn write(&mut self, step: &Step) {
        if let Step::Write { segment, offset, bytes } = step
            && let Some(content) = self.0.get_mut(segment)
        {
            let begin = *offset as usize;
            content[begin..begin + bytes.len()].copy_from_slice(bytes);
        }
    }
}
