//! The simulated engine: one stream per shard, a key with the lease, and a network that loses,
//! delays and reorders.
//!
//! It has one truth, as an engine with a majority has, and never loses what it acknowledged. What
//! differs from a machine at hand is when a request reaches it, and whether its answer comes back.

use std::collections::VecDeque;

use cluster::{
    ANSWER_MS_MAX, Answer, Body, LeaseAnswer, LeaseRequest, Request, RequestId, Sequence, ShardId,
};

use super::Toll;
use crate::random::Random;
use crate::sabotage::Sabotage;

/// Requests under way. Beyond it the oldest one that nobody waits for is lost.
const FLIGHTS_MAX: usize = 400;

/// A process on a machine: answers for an earlier one are for nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) member: usize,
    pub(crate) life: u64,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    Stream(ShardId, Request),
    Lease(LeaseRequest),
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Stream(ShardId, Answer),
    Lease(LeaseAnswer),
}

/// A request under way, or its answer.
#[derive(Debug)]
struct Flight {
    asker: Asker,
    id: RequestId,
    question: Question,
    at: At,
    sent_ms: u64,
    /// Its asker was told that nothing is known of it.
    is_given_up: bool,
}

#[derive(Debug)]
enum At {
    /// On its way to the engine.
    Going,
    /// The answer is on its way back.
    Coming(Reply),
    /// It never comes.
    Lost,
}

/// What an old leader on the wrong side of a partition still shows to those beside it.
#[derive(Debug)]
pub(crate) struct Stale {
    member: usize,
    ends: Vec<Sequence>,
    lease: (u64, Vec<u8>),
}

/// One stream. Sequences of removed messages are not given again.
#[derive(Debug, Default)]
struct Stream {
    removed: Sequence,
    messages: VecDeque<Body>,
}

/// The network between a machine and the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) is_cut_to: bool,
    pub(crate) is_cut_from: bool,
    /// Only the messages of streams wait.
    pub(crate) is_late: bool,
}

#[derive(Debug)]
pub(crate) struct Engine {
    streams: Vec<Stream>,
    /// Revision and value; revision 0: there is none.
    lease: (u64, Vec<u8>),
    flights: Vec<Flight>,
    pub(crate) links: Vec<Link>,
    /// No leader, or no majority, before this time.
    pub(crate) is_out_until_ms: u64,
    pub(crate) stale: Option<Stale>,
    /// Of a hundred answers so many are lost.
    pub(crate) loss_percent: usize,
    /// Its servers answer at once that there is no leader.
    pub(crate) says_unavailable: bool,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) toll: Toll,
    random: Random,
}

impl Stream {
    fn last(&self) -> Sequence {
        self.removed + self.messages.len() as Sequence
    }

    fn message(&self, sequence: Sequence) -> Option<&Body> {
        let place = sequence.checked_sub(self.removed + 1)?;
        self.messages.get(usize::try_from(place).ok()?)
    }

    fn purge(&mut self, before: Sequence) -> u64 {
        let count = before.saturating_sub(self.removed + 1).min(self.messages.len() as u64);
        self.messages.drain(..count as usize);
        self.removed += count;
        count
    }
}

impl Engine {
    pub(crate) fn new(shards: ShardId, members: usize, random: &mut Random) -> Self {
        Self {
            streams: (0..shards).map(|_| Stream::default()).collect(),
            lease: (0, Vec::new()),
            flights: Vec::new(),
            links: vec![Link::default(); members],
            is_out_until_ms: 0,
            stale: None,
            loss_percent: [0, 1, 10][random.below(3)],
            says_unavailable: false,
            sabotage: None,
            toll: Toll::default(),
            random: Random::new(random.next()),
        }
    }

    pub(crate) fn ask(&mut self, asker: Asker, id: RequestId, question: Question, now_ms: u64) {
        if self.flights.len() >= FLIGHTS_MAX
            && let Some(place) = self.flights.iter().position(|flight| flight.is_given_up)
        {
            self.flights.remove(place);
        }
        let (at, is_given_up) = (At::Going, false);
        self.flights.push(Flight { asker, id, question, at, sent_ms: now_ms, is_given_up });
    }

    /// Nothing is under way that anybody waits for, other than the lease.
    pub(crate) fn is_idle(&self) -> bool {
        !self
            .flights
            .iter()
            .any(|flight| !flight.is_given_up && matches!(flight.question, Question::Stream(..)))
    }

    /// Something moves. Some: an answer arrives.
    pub(crate) fn step(&mut self, now_ms: u64) -> Option<(Asker, RequestId, Reply)> {
        if self.flights.is_empty() {
            return None;
        }
        let place = match self.random.chance(70) {
            true => self.flights.iter().position(|flight| !flight.is_given_up).unwrap_or(0),
            false => self.random.below(self.flights.len()),
        };
        if self.flights[place].is_given_up && !self.random.chance(10) {
            return None;
        }
        match &self.flights[place].at {
            At::Lost => None,
            At::Going => {
                self.arrive(place, now_ms);
                None
            }
            At::Coming(_) => self.come_back(place),
        }
    }

    /// A request reaches the engine, if it can.
    fn arrive(&mut self, place: usize, now_ms: u64) {
        let Flight { asker, is_given_up, question, .. } = &self.flights[place];
        let (member, is_late) = (asker.member, *is_given_up);
        let question = question.clone();
        if self.links[member].is_cut_to {
            if self.random.chance(10) {
                self.flights[place].at = At::Lost;
            }
            return;
        }
        if let Some(reply) = self.stale_reply(member, &question) {
            self.flights[place].at = At::Coming(reply);
            return;
        }
        let is_beside_stale = self.stale.as_ref().is_some_and(|stale| stale.member == member);
        if now_ms < self.is_out_until_ms || is_beside_stale {
            self.find_no_leader(place, &question);
            return;
        }
        let reply = self.land(&question, is_late);
        let is_lost = self.random.chance(self.loss_percent);
        if is_lost && self.sabotage == Some(Sabotage::WriteTwice) {
            self.write_again(&question, &reply);
        }
        self.flights[place].at = if is_lost { At::Lost } else { At::Coming(reply) };
    }

    /// A planted bug: what was stored is stored once more, under the next number of its writer.
    fn write_again(&mut self, question: &Question, reply: &Reply) {
        let Reply::Stream(shard, Answer::Appended(_)) = reply else { return };
        let Question::Stream(_, Request::Append { body, .. }) = question else { return };
        self.streams[usize::from(*shard)].messages.push_back(renumbered(body));
    }

    /// It waits, is lost, or is refused for certain.
    fn find_no_leader(&mut self, place: usize, question: &Question) {
        match question {
            Question::Stream(shard, _) if self.says_unavailable && self.random.chance(20) => {
                self.toll.unavailable += 1;
                let answer = Answer::Unavailable("no leader".into());
                self.flights[place].at = At::Coming(Reply::Stream(*shard, answer));
            }
            _ if self.random.chance(10) => self.flights[place].at = At::Lost,
            _ => {}
        }
    }

    fn come_back(&mut self, place: usize) -> Option<(Asker, RequestId, Reply)> {
        let member = self.flights[place].asker.member;
        if self.links[member].is_cut_from {
            if self.random.chance(10) {
                self.flights[place].at = At::Lost;
            }
            return None;
        }
        let flight = self.flights.remove(place);
        match flight.at {
            At::Coming(reply) if !flight.is_given_up => Some((flight.asker, flight.id, reply)),
            _ => None,
        }
    }

    /// Requests of a member that it waits for no longer.
    pub(crate) fn give_up(&mut self, asker: Asker, now_ms: u64) -> Vec<(RequestId, Reply)> {
        let mut given_up = Vec::new();
        for flight in &mut self.flights {
            let is_over = now_ms >= flight.sent_ms + ANSWER_MS_MAX;
            if flight.asker != asker || flight.is_given_up || !is_over {
                continue;
            }
            flight.is_given_up = true;
            let why = "no answer in time".to_owned();
            let reply = match &flight.question {
                Question::Stream(shard, _) => Reply::Stream(*shard, Answer::Unknown(why)),
                Question::Lease(_) => Reply::Lease(LeaseAnswer::Unknown(why)),
            };
            given_up.push((flight.id, reply));
        }
        self.toll.unknown += given_up.len() as u64;
        self.flights.retain(|flight| !flight.is_given_up || matches!(flight.at, At::Going));
        given_up
    }

    /// Its process is gone; what it asked may still arrive.
    pub(crate) fn forget(&mut self, member: usize) {
        self.flights.iter_mut().filter(|flight| flight.asker.member == member).for_each(|flight| {
            flight.is_given_up = true;
        });
        self.flights.retain(|flight| !flight.is_given_up || matches!(flight.at, At::Going));
    }

    /// The leaders are gone for a while: what is under way is stored, or lost, or still to come.
    pub(crate) fn elect(&mut self, until_ms: u64) {
        self.is_out_until_ms = until_ms;
        for place in 0..self.flights.len() {
            let Flight { asker, at, question, is_given_up, .. } = &self.flights[place];
            let is_reachable = !self.links[asker.member].is_cut_to
                && self.stale.as_ref().is_none_or(|stale| stale.member != asker.member);
            let (question, is_late) = (question.clone(), *is_given_up);
            match (at, self.random.below(3)) {
                (At::Going, 0) if is_reachable => {
                    self.land(&question, is_late);
                    self.flights[place].at = At::Lost;
                }
                (_, 1) => self.flights[place].at = At::Lost,
                _ => {}
            }
        }
    }

    /// A member is cut off together with a server that takes itself for the leader.
    pub(crate) fn isolate(&mut self, member: usize) {
        let ends = self.streams.iter().map(Stream::last).collect();
        self.stale = Some(Stale { member, ends, lease: self.lease.clone() });
    }

    /// Reads are answered by such a leader without asking anybody.
    fn stale_reply(&mut self, member: usize, question: &Question) -> Option<Reply> {
        let stale = self.stale.as_ref().filter(|stale| stale.member == member)?;
        let reply = match question {
            Question::Stream(shard, request) => {
                let end = stale.ends[usize::from(*shard)];
                let stream = &self.streams[usize::from(*shard)];
                let answer = match request {
                    Request::Ends => Answer::Ends { first: stream.removed + 1, last: end },
                    Request::Message { sequence } => {
                        let message = stream.message(*sequence).filter(|_| *sequence <= end);
                        Answer::Message(message.cloned())
                    }
                    _ => return None,
                };
                Reply::Stream(*shard, answer)
            }
            Question::Lease(LeaseRequest::Read) => Reply::Lease(found(&stale.lease)),
            Question::Lease(LeaseRequest::Write { .. }) => return None,
        };
        self.toll.stale_reads += 1;
        Some(reply)
    }

    fn land(&mut self, question: &Question, is_late: bool) -> Reply {
        match question {
            Question::Stream(shard, request) => {
                let answer = self.land_in_stream(*shard, request);
                let is_stored = matches!(answer, Answer::Appended(_));
                self.toll.late_appends += u64::from(is_late && is_stored);
                Reply::Stream(*shard, answer)
            }
            Question::Lease(LeaseRequest::Read) => Reply::Lease(found(&self.lease)),
            Question::Lease(LeaseRequest::Write { expected, value }) => {
                if *expected != self.lease.0 {
                    return Reply::Lease(LeaseAnswer::Conflict);
                }
                self.lease = (self.lease.0 + 1, value.clone());
                Reply::Lease(LeaseAnswer::Written(self.lease.0))
            }
        }
    }

    fn land_in_stream(&mut self, shard: ShardId, request: &Request) -> Answer {
        let is_unfenced = self.sabotage == Some(Sabotage::AppendUnfenced);
        let is_greedy = self.sabotage == Some(Sabotage::PurgeTooFar);
        let stream = &mut self.streams[usize::from(shard)];
        match request {
            Request::Append { after, body } => {
                if *after != stream.last() && !is_unfenced {
                    return Answer::WrongSequence;
                }
                stream.messages.push_back(body.clone());
                Answer::Appended(stream.last())
            }
            Request::Message { sequence } => Answer::Message(stream.message(*sequence).cloned()),
            Request::Ends => Answer::Ends { first: stream.removed + 1, last: stream.last() },
            Request::Purge { before } => {
                let count = stream.purge(*before + if is_greedy { PURGED_TOO_MANY } else { 0 });
                self.toll.purges += u64::from(count > 0);
                Answer::Purged
            }
        }
    }

    /// The next message for a follower: the first one that there is from this sequence on.
    pub(crate) fn next_message(
        &self,
        member: usize,
        shard: ShardId,
        from: Sequence,
    ) -> Option<(Sequence, Body)> {
        let stream = &self.streams[usize::from(shard)];
        let sequence = from.max(stream.removed + 1);
        let is_hidden = self.stale.as_ref().is_some_and(|stale| {
            stale.member == member && sequence > stale.ends[usize::from(shard)]
        });
        let link = self.links[member];
        if link.is_cut_from || link.is_late || is_hidden {
            return None;
        }
        stream.message(sequence).map(|body| (sequence, body.clone()))
    }

    /// Messages were removed that a follower has not read.
    pub(crate) fn has_overtaken(&self, shard: ShardId, from: Sequence) -> bool {
        self.streams[usize::from(shard)].removed >= from
    }

    /// A member is reached again.
    pub(crate) fn reach(&mut self, member: usize) {
        self.links[member] = Link::default();
        self.stale.take_if(|stale| stale.member == member);
    }

    /// Nothing is wrong with it any more.
    pub(crate) fn heal(&mut self) {
        self.links.iter_mut().for_each(|link| *link = Link::default());
        self.is_out_until_ms = 0;
        self.stale = None;
        self.loss_percent = 0;
        self.says_unavailable = false;
    }
}

fn found((revision, value): &(u64, Vec<u8>)) -> LeaseAnswer {
    match revision {
        0 => LeaseAnswer::Missing,
        _ => LeaseAnswer::Found { revision: *revision, value: value.clone() },
    }
}

/// The same content as the next message of its writer (`crates/cluster/src/wire.rs`).
fn renumbered(body: &Body) -> Body {
    let mut bytes = body[..body.len() - size_of::<u32>()].to_vec();
    let mut number = [0; size_of::<u64>()];
    number.copy_from_slice(&bytes[NUMBER_AT..NUMBER_AT + size_of::<u64>()]);
    let next = u64::from_le_bytes(number) + 1;
    bytes[NUMBER_AT..NUMBER_AT + size_of::<u64>()].copy_from_slice(&next.to_le_bytes());
    let checksum = storage::checksum(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.into()
}

/// Where the number stands in a message.
const NUMBER_AT: usize = 38;

/// Messages that a planted bug removes beyond what it should.
const PURGED_TOO_MANY: Sequence = 40;
