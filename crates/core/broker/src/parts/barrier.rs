//! What waits until all other shards have heard of something.
//!
//! Who publishes to a shared group finds it in the tables of its own shard, and those learn of a
//! member by mail. A message that is published behind the SUBACK, wherever, is the group's, and is
//! kept if the member is; so the SUBACK of a shared subscription waits until each shard has said
//! that it has dealt with the mail before. It is asked once a turn for all that wait.
//!
//! With several cells the other cells are asked as well, and two more things wait. A message that
//! is retained finds subscribers where it is published, by what is known of them there, and is
//! kept at the home of its topic. A subscriber that is not known yet has to find it at the home:
//!
//! - Retained messages are asked for behind the barrier of their SUBSCRIBE. Who publishes later
//!   knows of the subscriber.
//! - The home answers behind a barrier of its own, for which all shards of all cells are asked.
//!   What was published before has come by then, since each answers behind what it has sent.

use std::collections::VecDeque;

use crate::words::homes::Place;
use crate::{RetainedQuery, SessionKey, ShardId};

/// Bytes of what waits. Policy: above it no SUBSCRIBE is read.
const WAITING_BYTES_MAX: usize = 1024 * 1024;

/// What each filter counts for, as other shards may have mail of it that waits.
const FILTER_BYTES: usize = 64;

/// A SUBACK that waits.
#[derive(Debug)]
pub(crate) struct PendingSuback {
    pub(crate) session: SessionKey,
    pub(crate) connection: u64,
    pub(crate) packet_id: u16,
    pub(crate) reasons: Box<[u8]>,
    /// What it has to wait for beside that.
    pub(crate) kept: Option<storage::Position>,
}

/// What waits for the answers to a question.
#[derive(Debug)]
pub(crate) enum Behind {
    Suback(PendingSuback),
    /// A session wants retained messages.
    Wanted(SessionKey),
    /// A question for retained messages that have their home here.
    Query(Box<RetainedQuery>),
}

/// A fault that tests plant, of several cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetainedFlaw {
    /// Retained messages are asked for before all know of the subscription.
    AsksEarly,
    /// Their home answers before what is on its way has come.
    AnswersEarly,
}

/// The questions of a shard, and what waits for their answers.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// The number of the last question, and that of the last that each shard has answered.
    asked: u64,
    answered: Box<[u64]>,
    /// With the number of the question, in its order.
    waiting: VecDeque<(u64, Behind)>,
    waiting_bytes: usize,
    pub(crate) flaw: Option<RetainedFlaw>,
}

impl Barrier {
    pub(crate) fn new(places: Place) -> Self {
        let answered = (0..places).map(|_| 0).collect();
        Self { asked: 0, answered, waiting: VecDeque::new(), waiting_bytes: 0, flaw: None }
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.iter().filter(|(_, it)| matches!(it, Behind::Suback(_))).count()
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.waiting_bytes > WAITING_BYTES_MAX
    }

    /// Waits for the question that comes next.
    pub(crate) fn push(&mut self, waiting: Behind) {
        self.waiting_bytes += waiting.bytes();
        self.waiting.push_back((self.next_number(), waiting));
    }

    /// Of the question that comes next.
    pub(crate) const fn next_number(&self) -> u64 {
        self.asked + 1
    }

    /// Has every shard but `own` answered this question?
    pub(crate) fn is_passed(&self, own: ShardId, number: u64) -> bool {
        let mut answered = self.answered.iter().enumerate();
        answered.all(|(shard, answered)| shard == usize::from(own) || *answered >= number)
    }

    /// Is there a question that has to be asked now?
    pub(crate) fn has_question(&self) -> bool {
        self.waiting.back().is_some_and(|(number, _)| *number > self.asked)
    }

    /// The question that has to be asked now, if there is one.
    pub(crate) fn next_question(&mut self) -> Option<u64> {
        self.has_question().then(|| {
            self.asked += 1;
            self.asked
        })
    }

    /// A shard has answered this question, and with it those before.
    pub(crate) fn note_answer(&mut self, by: ShardId, number: u64) {
        if let Some(answered) = self.answered.get_mut(usize::from(by)) {
            *answered = number.max(*answered);
        }
    }

    /// The next of those that every shard but `own` has heard of.
    pub(crate) fn next_passed(&mut self, own: ShardId) -> Option<Behind> {
        let (number, _) = self.waiting.front()?;
        if !self.is_passed(own, *number) {
            return None;
        }
        let (_, waiting) = self.waiting.pop_front()?;
        self.waiting_bytes -= waiting.bytes();
        Some(waiting)
    }
}

impl Behind {
    fn bytes(&self) -> usize {
        let rest = match self {
            Self::Suback(suback) => FILTER_BYTES * suback.reasons.len(),
            Self::Wanted(_) => 0,
            Self::Query(query) => size_of::<RetainedQuery>() + query.filter.len(),
        };
        size_of::<Self>() + rest
    }
}
