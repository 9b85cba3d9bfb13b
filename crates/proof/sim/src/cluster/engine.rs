//! The simulated engine: a stream, a key with the lease, and a network that loses,
//! delays and reorders.
//!
//! It has one truth, as an engine with a majority has, and never loses what it acknowledged. What
//! differs from a machine at hand is when a request reaches it, and whether its answer comes back.
//! The stream may be full for a while, or without a leader now and then.

use std::collections::VecDeque;

use cluster::{
    ANSWER_MS_MAX, Answer, Body, LeaseAnswer, LeaseRequest, Request, RequestId, Sequence,
};

use super::Toll;
use super::bugs::{Unclaimed, renumbered};
use super::programs::{is_later, is_opaque};
use crate::random::Random;
use crate::sabotage::Sabotage;

/// Requests under way. Beyond it the oldest one that nobody waits for is lost.
const FLIGHTS_MAX: usize = 400;

/// Refused appends that it remembers: for the toll only.
const REFUSED_MAX: usize = 100;

/// A process on a machine: answers for an earlier one are for nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) member: usize,
    pub(crate) life: u64,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    Stream(Request),
    Lease(LeaseRequest),
    /// Of the small file.
    File(LeaseRequest),
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Stream(Answer),
    Lease(LeaseAnswer),
    File(LeaseAnswer),
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
    /// It does not arrive before that.
    is_held_up: bool,
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
    end: Sequence,
    lease: (u64, Vec<u8>),
    file: (u64, Vec<u8>),
}

/// The stream. Sequences of removed messages are not given again.
#[derive(Debug, Default)]
struct Stream {
    removed: Sequence,
    messages: VecDeque<Body>,
    /// The last message of a later format.
    later_upto: Sequence,
    unwilling: Unwilling,
}

/// A stream that takes only some appends for a while, and refuses the others for certain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unwilling {
    pub(crate) until_ms: u64,
    /// Of a hundred appends so many are refused.
    pub(crate) percent: usize,
    /// For lack of space; otherwise for lack of a leader.
    pub(crate) is_full: bool,
}

/// The network between a machine and the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) is_cut_to: bool,
    pub(crate) is_cut_from: bool,
    /// Only the messages of streams wait.
    pub(crate) is_late: bool,
}

impl Link {
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut_to || self.is_cut_from
    }
}

#[derive(Debug)]
pub(crate) struct Engine {
    stream: Stream,
    /// Revision and value; revision 0: there is none.
    lease: (u64, Vec<u8>),
    /// The same for a small file.
    file: (u64, Vec<u8>),
    flights: Vec<Flight>,
    pub(crate) links: Vec<Link>,
    /// No leader, or no majority, before this time.
    pub(crate) is_out_until_ms: u64,
    pub(crate) stale: Option<Stale>,
    /// Of a hundred answers so many are lost.
    pub(crate) loss_percent: usize,
    /// Of a hundred occasions a request that was given up takes so many to arrive.
    late_percent: usize,
    /// Of a hundred appends so many arrive only when they were given up.
    held_percent: usize,
    /// Appends that were refused to whom, behind which message.
    refused: Vec<(Asker, Sequence)>,
    /// Its servers answer at once that there is no leader.
    pub(crate) says_unavailable: bool,
    pub(crate) sabotage: Option<Sabotage>,
    unclaimed: Unclaimed,
    pub(crate) broken_rule: Option<String>,
    pub(crate) toll: Toll,
    random: Random,
}

impl Stream {
    pub(crate) fn last(&self) -> Sequence {
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
    pub(crate) fn new(members: usize, random: &mut Random) -> Self {
        Self {
            stream: Stream::default(),
            lease: (0, Vec::new()),
            file: (0, Vec::new()),
            flights: Vec::new(),
            links: vec![Link::default(); members],
            is_out_until_ms: 0,
            stale: None,
            loss_percent: [0, 1, 10][random.below(3)],
            late_percent: [10, 50][random.below(2)],
            held_percent: [0, 0, 1, 5][random.below(4)],
            refused: Vec::new(),
            says_unavailable: false,
            sabotage: None,
            unclaimed: Unclaimed::default(),
            broken_rule: None,
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
        let (at, sent_ms, is_given_up) = (At::Going, now_ms, false);
        let is_append = matches!(question, Question::Stream(Request::Append { .. }));
        let is_held_up = is_append && self.random.chance(self.held_percent);
        self.flights.push(Flight { asker, id, question, at, sent_ms, is_given_up, is_held_up });
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
        if self.flights[place].is_given_up && !self.random.chance(self.late_percent) {
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
        let (asker, member, is_late) = (*asker, asker.member, *is_given_up);
        if self.flights[place].is_held_up && !is_late {
            return;
        }
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
        let reply = self.land(asker, &question, is_late, now_ms);
        let is_lost = self.random.chance(self.loss_percent);
        if is_lost && self.sabotage == Some(Sabotage::WriteTwice) {
            self.write_again(&question, &reply);
        }
        self.flights[place].at = if is_lost { At::Lost } else { At::Coming(reply) };
    }

    /// A planted bug: what was stored is stored once more, under the next number of its writer.
    fn write_again(&mut self, question: &Question, reply: &Reply) {
        let Reply::Stream(Answer::Appended(_)) = reply else { return };
        let Question::Stream(Request::Append { body, .. }) = question else { return };
        self.stream.messages.push_back(renumbered(body));
    }

    /// It waits, is lost, or is refused for certain.
    fn find_no_leader(&mut self, place: usize, question: &Question) {
        match question {
            Question::Stream(_) if self.says_unavailable && self.random.chance(20) => {
                self.toll.unavailable += 1;
                let answer = Answer::Unavailable("no leader".into());
                self.flights[place].at = At::Coming(Reply::Stream(answer));
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
            let is_refused = self.sabotage == Some(Sabotage::RefuseUnknown);
            let reply = match &flight.question {
                Question::Stream(Request::Append { .. }) if is_refused => {
                    Reply::Stream(Answer::Unavailable(why))
                }
                Question::Stream(_) => Reply::Stream(Answer::Unknown(why)),
                Question::Lease(_) => Reply::Lease(LeaseAnswer::Unknown(why)),
                Question::File(_) => Reply::File(LeaseAnswer::Unknown(why)),
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
    pub(crate) fn elect(&mut self, now_ms: u64, until_ms: u64) {
        self.is_out_until_ms = until_ms;
        for place in 0..self.flights.len() {
            let Flight { asker, at, question, is_given_up, .. } = &self.flights[place];
            let is_reachable = !self.links[asker.member].is_cut_to
                && self.stale.as_ref().is_none_or(|stale| stale.member != asker.member);
            let (asker, question, is_late) = (*asker, question.clone(), *is_given_up);
            match (at, self.random.below(3)) {
                (At::Going, 0) if is_reachable => {
                    self.land(asker, &question, is_late, now_ms);
                    self.flights[place].at = At::Lost;
                }
                (_, 1) => self.flights[place].at = At::Lost,
                _ => {}
            }
        }
    }

    /// The stream refuses appends. Those on their way are held up.
    pub(crate) fn refuse(&mut self, how: Unwilling) {
        self.stream.unwilling = how;
        for flight in &mut self.flights {
            let is_append = matches!(flight.question, Question::Stream(Request::Append { .. }));
            flight.is_held_up |= is_append;
        }
    }

    /// A member is cut off together with a server that takes itself for the leader.
    pub(crate) fn isolate(&mut self, member: usize) {
        let end = self.end();
        self.stale =
            Some(Stale { member, end, lease: self.lease.clone(), file: self.file.clone() });
    }

    /// Reads are answered by such a leader without asking anybody.
    fn stale_reply(&mut self, member: usize, question: &Question) -> Option<Reply> {
        let stale = self.stale.as_ref().filter(|stale| stale.member == member)?;
        let reply = match question {
            Question::Stream(request) => {
                let (end, stream) = (stale.end, &self.stream);
                let answer = match request {
                    Request::Ends => Answer::Ends { first: stream.removed + 1, last: end },
                    Request::Message { sequence } => {
                        let message = stream.message(*sequence).filter(|_| *sequence <= end);
                        Answer::Message(message.cloned())
                    }
                    _ => return None,
                };
                Reply::Stream(answer)
            }
            Question::Lease(LeaseRequest::Read) => Reply::Lease(found(&stale.lease)),
            Question::File(LeaseRequest::Read) => Reply::File(found(&stale.file)),
            Question::Lease(LeaseRequest::Write { .. })
            | Question::File(LeaseRequest::Write { .. }) => return None,
        };
        self.toll.stale_reads += 1;
        Some(reply)
    }

    fn land(&mut self, asker: Asker, question: &Question, is_late: bool, now_ms: u64) -> Reply {
        match question {
            Question::Stream(request) => {
                let answer = self.land_of(asker, request, now_ms);
                self.note_append(asker, request, &answer, is_late);
                Reply::Stream(answer)
            }
            Question::File(request) => Reply::File(land_in_key(&mut self.file, request)),
            Question::Lease(request) => {
                if let LeaseRequest::Write { expected, value } = request
                    && *expected == self.lease.0
                    && is_opaque(&self.lease.1)
                    && !is_opaque(value)
                {
                    self.broken_rule = Some("a node takes a lease that it cannot read".to_owned());
                }
                Reply::Lease(land_in_key(&mut self.lease, request))
            }
        }
    }

    fn note_append(&mut self, asker: Asker, request: &Request, answer: &Answer, is_late: bool) {
        let Request::Append { after, .. } = *request else { return };
        let append = (asker, after);
        match answer {
            Answer::NoSpace(_) | Answer::Unavailable(_) if !is_late => {
                if self.refused.len() == REFUSED_MAX {
                    self.refused.remove(0);
                }
                self.refused.push(append);
            }
            Answer::Appended(_) if is_late => {
                self.toll.late_appends += 1;
                self.toll.late_refused += u64::from(self.refused.contains(&append));
            }
            _ => {}
        }
    }

    /// A planted bug shifts the sequences of a node that has not claimed the stream.
    fn land_of(&mut self, asker: Asker, request: &Request, now_ms: u64) -> Answer {
        let last = self.stream.last();
        if self.sabotage == Some(Sabotage::SkipClaim)
            && self.unclaimed.swallows(asker, request, last)
        {
            return Answer::Appended(last + 1);
        }
        if !self.unclaimed.is_of(asker) {
            return self.land_in_stream(request, now_ms);
        }
        let answer = self.land_in_stream(&Unclaimed::back(request), now_ms);
        Unclaimed::forth(answer)
    }

    fn land_in_stream(&mut self, request: &Request, now_ms: u64) -> Answer {
        let is_unfenced = self.sabotage == Some(Sabotage::AppendUnfenced);
        let is_greedy = self.sabotage == Some(Sabotage::PurgeTooFar);
        let stream = &mut self.stream;
        match request {
            Request::Append { .. }
                if now_ms < stream.unwilling.until_ms
                    && self.random.chance(stream.unwilling.percent) =>
            {
                self.toll.no_space += u64::from(stream.unwilling.is_full);
                self.toll.no_leader += u64::from(!stream.unwilling.is_full);
                match stream.unwilling.is_full {
                    true => Answer::NoSpace("maximum bytes exceeded".to_owned()),
                    false => Answer::Unavailable("no leader for this stream".to_owned()),
                }
            }
            Request::Append { after, body } => {
                if *after != stream.last() && !is_unfenced {
                    return Answer::WrongSequence;
                }
                stream.messages.push_back(body.clone());
                if is_later(body) {
                    stream.later_upto = stream.last();
                }
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

    /// The stream holds messages of a later format.
    pub(crate) fn has_later_messages(&self) -> bool {
        self.stream.later_upto > self.stream.removed
    }

    /// The same, or the lease is one, or some may still come.
    pub(crate) fn has_later(&self) -> bool {
        let comes = |flight: &Flight| match &flight.question {
            Question::Stream(Request::Append { body, .. }) => is_later(body),
            Question::Lease(LeaseRequest::Write { value, .. }) => is_opaque(value),
            _ => false,
        };
        let is_lease = is_opaque(&self.lease.1);
        is_lease || self.has_later_messages() || self.flights.iter().any(comes)
    }

    /// The last sequence of the stream.
    pub(crate) fn end(&self) -> Sequence {
        self.stream.last()
    }

    /// Bytes that the stream has.
    pub(crate) fn stream_bytes(&self) -> u64 {
        self.stream.messages.iter().map(|body| body.len() as u64).sum()
    }

    /// The next message for a follower: the first one that there is from this sequence on.
    pub(crate) fn next_message(&self, asker: Asker, from: Sequence) -> Option<(Sequence, Body)> {
        if let Some(claim) = self.unclaimed.claim(asker, from) {
            return Some((from, claim));
        }
        let member = asker.member;
        let stream = &self.stream;
        let sequence = from.max(stream.removed + 1);
        let is_stale = |stale: &Stale| stale.member == member && sequence > stale.end;
        let is_hidden = self.stale.as_ref().is_some_and(is_stale);
        let link = self.links[member];
        if link.is_cut_from || link.is_late || is_hidden {
            return None;
        }
        stream.message(sequence).map(|body| (sequence, body.clone()))
    }

    /// Messages were removed that a follower has not read.
    pub(crate) fn has_overtaken(&self, from: Sequence) -> bool {
        self.stream.removed >= from
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
        self.stream.unwilling.until_ms = 0;
        (self.loss_percent, self.held_percent) = (0, 0);
        self.says_unavailable = false;
    }
}

fn land_in_key(key: &mut (u64, Vec<u8>), request: &LeaseRequest) -> LeaseAnswer {
    match request {
        LeaseRequest::Read => found(key),
        LeaseRequest::Write { expected, .. } if *expected != key.0 => LeaseAnswer::Conflict,
        LeaseRequest::Write { value, .. } => {
            *key = (key.0 + 1, value.clone());
            LeaseAnswer::Written(key.0)
        }
    }
}

fn found((revision, value): &(u64, Vec<u8>)) -> LeaseAnswer {
    match revision {
        0 => LeaseAnswer::Missing,
        _ => LeaseAnswer::Found { revision: *revision, value: value.clone() },
    }
}

/// Messages that a planted bug removes beyond what it should.
const PURGED_TOO_MANY: Sequence = 40;
