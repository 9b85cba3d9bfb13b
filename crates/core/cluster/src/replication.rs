//! The files of MQTT streams on their way into the second stream of the cell, from the node that is
//! active.
//!
//! ```text
//! put(file, offset, bytes)     as the local disk writes it
//! remove(file)                 retention has deleted it
//! work(now_ms, &mut asked)     -> appends and removals, for the engine
//! on_answer(id, answer, ..)    take_done(): a quorum has these writes
//! ```
//!
//! # Why nothing is fenced here
//!
//! The journal decides what counts: it states how far each file reaches, and its stream is fenced.
//! A file has one writer, see [`crate::first_file_of`]. So what is not answered is appended again
//! until it is: a copy changes nothing. What a former active node left behind, and no journal
//! names, is an orphan ([`Replication::remove_orphans`]).

use std::collections::{BTreeSet, VecDeque};

use crate::block_wire::{BlockFile, BlockMessage, epoch_of};
use crate::effect::{Answer, Body, RequestId, Sequence};
use crate::wire::ClusterId;
use crate::writer::RETRY_MS;

/// Appends under way. A write of the files is about eight messages.
const APPENDS_MAX: usize = 8;

/// What is asked of the second stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockRequest {
    /// Append, whatever was last: answered by [`Answer::Appended`].
    Append { file: BlockFile, body: Body },
    /// Remove all messages of a file: answered by [`Answer::Purged`].
    Remove { file: BlockFile },
    /// Remove all messages of an MQTT stream: answered by [`Answer::Purged`].
    RemoveStream { stream: u32 },
}

/// Names a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PutId(u64);

/// The side of the active node.
#[derive(Debug)]
pub struct Replication {
    of: (ClusterId, u64),
    /// What journals may name, or will.
    files: BTreeSet<BlockFile>,
    /// In order. Bound: the owner of streams has few blocks at the disk at a time.
    tasks: VecDeque<Task>,
    next_put: u64,
    next_request: u64,
    retry_at_ms: u64,
    /// Why the engine took nothing when it was asked last.
    unavailable: Option<String>,
    done: Vec<PutId>,
    /// All that this node has put up to this message is in its own files.
    reached: Sequence,
}

#[derive(Debug)]
enum Task {
    Put { id: PutId, parts: Vec<Part> },
    Remove { request: BlockRequest, asked: Option<RequestId> },
}

#[derive(Debug)]
struct Part {
    file: BlockFile,
    body: Body,
    sent: Sent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    Not,
    Asked(RequestId),
    Stored(Sequence),
}

impl Replication {
    /// For a node that has become active with this epoch. `files`: those that the journals name.
    pub fn new(of: (ClusterId, u64), files: BTreeSet<BlockFile>) -> Self {
        Self {
            of,
            files,
            tasks: VecDeque::new(),
            next_put: 0,
            next_request: 0,
            retry_at_ms: 0,
            unavailable: None,
            done: Vec::new(),
            reached: 0,
        }
    }

    /// A write of a file that this node makes.
    pub fn put(&mut self, file: BlockFile, offset: u64, bytes: &[u8]) -> PutId {
        let id = PutId(self.next_put);
        self.next_put += 1;
        self.files.insert(file);
        let bodies = BlockMessage::all_of(self.of, file, offset, bytes);
        let parts = bodies.into_iter().map(|body| Part { file, body, sent: Sent::Not }).collect();
        self.tasks.push_back(Task::Put { id, parts });
        id
    }

    /// A file is deleted: no journal names it any more.
    pub fn remove(&mut self, file: BlockFile) {
        self.files.remove(&file);
        let request = BlockRequest::Remove { file };
        self.tasks.push_back(Task::Remove { request, asked: None });
    }

    /// All files of an MQTT stream are deleted: it is gone.
    pub fn remove_stream(&mut self, stream: u32) {
        self.files.retain(|file| file.stream != stream);
        let request = BlockRequest::RemoveStream { stream };
        self.tasks.push_back(Task::Remove { request, asked: None });
    }

    /// Removes files that no journal names. `found`: what the engine has. Files of a later epoch
    /// are somebody else's.
    pub fn remove_orphans(&mut self, found: impl IntoIterator<Item = BlockFile>) {
        for file in found {
            let is_orphan = epoch_of(file.file) <= self.of.1 && !self.files.contains(&file);
            if is_orphan && !self.removes(file) {
                self.remove(file);
            }
        }
    }

    fn removes(&self, of: BlockFile) -> bool {
        self.tasks.iter().any(|task| match task {
            Task::Remove { request: BlockRequest::Remove { file }, .. } => *file == of,
            Task::Remove { request: BlockRequest::RemoveStream { stream }, .. } => {
                *stream == of.stream
            }
            _ => false,
        })
    }

    /// Asks what is to be asked next.
    pub fn work(&mut self, now_ms: u64, out: &mut Vec<(RequestId, BlockRequest)>) {
        if now_ms < self.retry_at_ms {
            return;
        }
        let mut under_way = self.under_way();
        for place in 0..self.tasks.len() {
            match &mut self.tasks[place] {
                Task::Put { parts, .. } => {
                    for part in parts.iter_mut().filter(|part| part.sent == Sent::Not) {
                        if under_way == APPENDS_MAX {
                            return;
                        }
                        let id = RequestId(self.next_request);
                        self.next_request += 1;
                        under_way += 1;
                        part.sent = Sent::Asked(id);
                        let (file, body) = (part.file, Body::clone(&part.body));
                        out.push((id, BlockRequest::Append { file, body }));
                    }
                }
                // What was put before it must be there: it would be put back.
                Task::Remove { .. } if place > 0 => return,
                Task::Remove { request, asked } => {
                    if asked.is_none() {
                        let id = RequestId(self.next_request);
                        self.next_request += 1;
                        *asked = Some(id);
                        out.push((id, request.clone()));
                    }
                    return;
                }
            }
        }
    }

    fn under_way(&self) -> usize {
        let parts = self.tasks.iter().flat_map(|task| match task {
            Task::Put { parts, .. } => parts.as_slice(),
            Task::Remove { .. } => &[],
        });
        parts.filter(|part| matches!(part.sent, Sent::Asked(_))).count()
    }

    /// Takes the answer to a request.
    pub fn on_answer(&mut self, id: RequestId, answer: Answer, now_ms: u64) {
        let is_done = matches!(answer, Answer::Appended(_) | Answer::Purged);
        for task in &mut self.tasks {
            match task {
                Task::Put { parts, .. } => {
                    if let Some(part) = parts.iter_mut().find(|it| it.sent == Sent::Asked(id)) {
                        part.sent = match answer {
                            Answer::Appended(sequence) => Sent::Stored(sequence),
                            _ => Sent::Not,
                        };
                    }
                }
                Task::Remove { asked, .. } if *asked == Some(id) => {
                    *asked = None;
                    if is_done {
                        self.tasks.pop_front();
                        break;
                    }
                }
                Task::Remove { .. } => {}
            }
        }
        match answer {
            _ if is_done => self.unavailable = None,
            Answer::NoSpace(why) | Answer::Unavailable(why) | Answer::Unknown(why) => {
                self.unavailable = Some(why);
            }
            _ => self.unavailable = Some("the engine gave an unexpected answer".to_owned()),
        }
        if !is_done {
            self.retry_at_ms = now_ms + RETRY_MS;
        }
        self.end_puts();
    }

    fn end_puts(&mut self) {
        while let Some(Task::Put { id, parts }) = self.tasks.front() {
            let mut stored = parts.iter().map(|part| match part.sent {
                Sent::Stored(sequence) => Some(sequence),
                _ => None,
            });
            let Some(last) = stored.try_fold(0, |last, own| own.map(|own| own.max(last))) else {
                return;
            };
            self.reached = self.reached.max(last);
            self.done.push(*id);
            self.tasks.pop_front();
        }
    }

    /// Writes that a quorum has since the last call, in their order.
    pub fn take_done(&mut self) -> impl Iterator<Item = PutId> + '_ {
        self.done.drain(..)
    }

    /// What this node has put up to this message is in its own files. 0: it has put nothing.
    pub const fn reached(&self) -> Sequence {
        self.reached
    }

    /// Why the engine takes nothing at present, if so.
    pub fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// Nothing is left to be asked or answered.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// When [`Replication::work`] has something to do, if nothing else happens: what is under way
    /// is answered.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.under_way() > 0 {
            return None;
        }
        let waits = self.tasks.front().is_some_and(|task| match task {
            Task::Put { parts, .. } => parts.iter().any(|part| part.sent == Sent::Not),
            Task::Remove { asked, .. } => asked.is_none(),
        });
        waits.then_some(self.retry_at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_wire::{BLOCK_BYTES_MAX, first_file_of};

    const CLUSTER: ClusterId = [7; 16];
    const OWN: BlockFile = BlockFile { stream: 1, file: first_file_of(2) };

    fn replication(files: &[BlockFile]) -> Replication {
        Replication::new((CLUSTER, 2), files.iter().copied().collect())
    }

    fn asked(own: &mut Replication, now_ms: u64) -> Vec<(RequestId, BlockRequest)> {
        let mut out = Vec::new();
        own.work(now_ms, &mut out);
        out
    }

    fn done(own: &mut Replication) -> Vec<PutId> {
        own.take_done().collect()
    }

    #[test]
    fn a_write_is_done_when_a_quorum_has_all_of_it() {
        let mut own = replication(&[]);
        let first = own.put(OWN, 0, &vec![1; BLOCK_BYTES_MAX + 1]);
        let second = own.put(OWN, BLOCK_BYTES_MAX as u64 + 1, b"x");
        let requests = asked(&mut own, 0);
        assert_eq!(requests.len(), 3, "they do not wait for each other");
        assert_eq!(asked(&mut own, 0), []);
        own.on_answer(requests[0].0, Answer::Appended(5), 1);
        own.on_answer(requests[2].0, Answer::Appended(6), 1);
        assert_eq!(done(&mut own), [], "the first one is not whole");
        own.on_answer(requests[1].0, Answer::Appended(7), 1);
        assert_eq!(done(&mut own), [first, second]);
        assert_eq!(own.reached(), 7);
    }

    #[test]
    fn what_is_not_answered_is_appended_again_until_it_is() {
        let mut own = replication(&[]);
        let id = own.put(OWN, 0, b"x");
        let mut now_ms = 0;
        for answer in [
            Answer::Unknown("silent".to_owned()),
            Answer::NoSpace("full".to_owned()),
            Answer::Unavailable("no leader".to_owned()),
        ] {
            let requests = asked(&mut own, now_ms);
            assert_eq!(requests.len(), 1);
            own.on_answer(requests[0].0, answer, now_ms);
            assert!(own.unavailable().is_some());
            assert_eq!(asked(&mut own, now_ms), [], "not at once");
            now_ms = own.next_deadline().expect("it is tried again");
        }
        let requests = asked(&mut own, now_ms);
        own.on_answer(requests[0].0, Answer::Appended(1), now_ms);
        assert_eq!(
            (done(&mut own), own.unavailable(), own.next_deadline()),
            (vec![id], None, None)
        );
    }

    #[test]
    fn no_more_are_under_way_than_the_limit() {
        let mut own = replication(&[]);
        for at in 0..20 {
            own.put(OWN, at, b"x");
        }
        assert_eq!(own.next_deadline(), Some(0));
        let requests = asked(&mut own, 0);
        assert_eq!((requests.len(), own.next_deadline()), (APPENDS_MAX, None));
        own.on_answer(requests[1].0, Answer::Appended(1), 0);
        assert_eq!(asked(&mut own, 0).len(), 1);
    }

    #[test]
    fn a_file_is_removed_behind_what_was_put_into_it() {
        let mut own = replication(&[]);
        own.put(OWN, 0, b"x");
        own.remove(OWN);
        own.put(BlockFile { stream: 1, file: OWN.file + 1 }, 0, b"y");
        let put = asked(&mut own, 0);
        assert_eq!(put.len(), 1);
        own.on_answer(put[0].0, Answer::Appended(1), 0);
        let removal = asked(&mut own, 0);
        assert_eq!(removal[0].1, BlockRequest::Remove { file: OWN });
        own.on_answer(removal[0].0, Answer::Unknown("silent".to_owned()), 0);
        let again = asked(&mut own, RETRY_MS);
        assert_eq!(again[0].1, BlockRequest::Remove { file: OWN });
        own.on_answer(again[0].0, Answer::Purged, RETRY_MS);
        let later = asked(&mut own, RETRY_MS);
        assert!(matches!(later[..], [(_, BlockRequest::Append { .. })]));
    }

    #[test]
    fn what_no_journal_names_is_removed_but_for_what_a_later_node_makes() {
        let named = BlockFile { stream: 1, file: 3 };
        let orphan = BlockFile { stream: 1, file: 4 };
        let left_behind = BlockFile { stream: 2, file: first_file_of(1) + 9 };
        let later = BlockFile { stream: 1, file: first_file_of(3) };
        let mut own = replication(&[named]);
        own.put(OWN, 0, b"x");
        own.remove_orphans([named, orphan, left_behind, later, OWN]);
        own.remove_orphans([orphan, left_behind]);
        let put = asked(&mut own, 0);
        own.on_answer(put[0].0, Answer::Appended(1), 0);
        for file in [orphan, left_behind] {
            let removal = asked(&mut own, 0);
            assert_eq!(removal[0].1, BlockRequest::Remove { file });
            own.on_answer(removal[0].0, Answer::Purged, 0);
        }
        assert_eq!(asked(&mut own, 0), []);
    }

    #[test]
    fn a_stream_that_is_gone_takes_its_files_along() {
        let mut own = replication(&[OWN, BlockFile { stream: 2, file: 1 }]);
        own.remove_stream(1);
        let removal = asked(&mut own, 0);
        assert_eq!(removal[0].1, BlockRequest::RemoveStream { stream: 1 });
        own.on_answer(removal[0].0, Answer::Purged, 0);
        own.remove_orphans([OWN]);
        assert_eq!(asked(&mut own, 0).len(), 1, "one that comes late goes as well");
    }
}
