//! Two nodes of three shards and an engine that loses, delays, refuses and forgets: what was
//! reported as committed is in the stream, once and in the order of its shard, whoever is active.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{
    Answer, Body, Cursor, Effect, Identity, LeaseAnswer, LeaseRequest, MESSAGE_BYTES_MAX, Node,
    Piece, Request, RequestId, Role, Sequencer, Settings, ShardId, Timing, Verdict,
};
use proptest::prelude::*;
use storage::{Command, CommandId, FaultKind, Outcome, Step};

const CLUSTER: [u8; 16] = [7; 16];
const SHARDS: usize = 3;

/// A write: segment, offset and bytes.
type Write = (u32, u32, Vec<u8>);

/// Of one shard.
#[derive(Default)]
struct Journal {
    /// Where the next write goes.
    at: (u32, u32),
    /// Commits under way, with what they write, in their order.
    commits: BTreeMap<u64, Vec<Write>>,
    /// What was refused, and has to come first.
    refused: Vec<Write>,
    resumes: bool,
}

/// One stream and one key.
#[derive(Default)]
struct Engine {
    messages: Vec<Body>,
    /// Revision and value.
    lease: Option<(u64, Vec<u8>)>,
    is_down: bool,
}

impl Engine {
    fn stream(&mut self, request: &Request) -> Answer {
        let last = self.messages.len() as u64;
        match request {
            Request::Append { after, body } if *after == last => {
                self.messages.push(body.clone());
                Answer::Appended(last + 1)
            }
            Request::Append { .. } => Answer::WrongSequence,
            Request::Message { sequence } => {
                Answer::Message(self.messages.get(*sequence as usize - 1).cloned())
            }
            Request::Ends => Answer::Ends { first: 1, last },
            Request::Purge { .. } => Answer::Purged,
        }
    }

    fn key(&mut self, request: &LeaseRequest) -> LeaseAnswer {
        let revision = self.lease.as_ref().map_or(0, |(revision, _)| *revision);
        match request {
            LeaseRequest::Read => match &self.lease {
                Some((revision, value)) => {
                    LeaseAnswer::Found { revision: *revision, value: value.clone() }
                }
                None => LeaseAnswer::Missing,
            },
            LeaseRequest::Write { expected, value } if *expected == revision => {
                self.lease = Some((revision + 1, value.clone()));
                LeaseAnswer::Written(revision + 1)
            }
            LeaseRequest::Write { .. } => LeaseAnswer::Conflict,
        }
    }
}

enum Asked {
    Stream(RequestId, Request),
    Lease(RequestId, LeaseRequest),
}

struct Member {
    node: Node,
    asked: Vec<Asked>,
    /// Requests of which the answer is lost, and that arrive late.
    late: Vec<Asked>,
    follows_from: Option<u64>,
    next_id: u64,
    journals: Vec<Journal>,
    is_paused: bool,
    now_ms: u64,
}

impl Member {
    fn new(name: &str, instance: u64) -> Self {
        let identity = Identity { node: name.into(), instance, address: String::new() };
        let seed = instance << 32;
        let settings = Settings {
            cluster: CLUSTER,
            identity,
            seed,
            timing: Timing::default(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            span_bytes_min: 1 << 20,
            stream_bytes_max: u64::MAX,
            append_interval_ms: 0,
        };
        Self {
            node: Node::new(settings, vec![Cursor::default(); SHARDS], 0),
            asked: Vec::new(),
            late: Vec::new(),
            follows_from: None,
            next_id: 0,
            journals: (0..SHARDS).map(|_| Journal::default()).collect(),
            is_paused: false,
            now_ms: 0,
        }
    }
}

struct World {
    engine: Engine,
    members: Vec<Member>,
    seed: u64,
    /// All that was reported as committed, by shard.
    promised: Vec<(usize, Write)>,
    takeovers: usize,
    refusals: usize,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        (self.seed >> 33) % below
    }

    fn step(&mut self) {
        let who = self.random(self.members.len() as u64) as usize;
        match self.random(100) {
            0 => self.members[who].is_paused = true,
            1..4 => self.members[who].is_paused = false,
            4 => self.engine.is_down = !self.engine.is_down,
            5 => self.engine.is_down = false,
            6..16 => self.members.iter_mut().for_each(|member| member.now_ms += 100),
            _ if self.members[who].is_paused => {}
            16..36 => self.submit(who),
            36..56 => self.deliver(who),
            56..60 => self.arrive_late(who),
            _ => self.answer(who),
        }
        if !self.members[who].is_paused {
            let now_ms = self.members[who].now_ms;
            self.members[who].node.on_tick(now_ms, 0);
        }
        self.carry_out(who);
    }

    fn submit(&mut self, who: usize) {
        let shard = self.random(SHARDS as u64) as usize;
        let (rolls, len) = (self.random(10) == 0, 1 + self.random(150_000));
        let fill = self.random(256) as u8;
        let member = &mut self.members[who];
        let journal = &mut member.journals[shard];
        // What was refused comes again when all that was behind it has come back.
        let waits = !journal.refused.is_empty() && !journal.commits.is_empty();
        let is_active = matches!(member.node.role(), Role::Active { .. });
        if !is_active || waits || journal.commits.len() >= 2 {
            return;
        }
        let mut writes = std::mem::take(&mut journal.refused);
        if writes.is_empty() {
            if rolls || journal.at.0 == 0 {
                journal.at = (journal.at.0 + 1, 0);
            }
            let (segment, offset) = journal.at;
            journal.at.1 += len as u32;
            writes.push((segment, offset, vec![fill; len as usize]));
        }
        member.next_id += 1;
        let id = member.next_id;
        let step = |(segment, offset, bytes): &Write| Step::Write {
            segment: *segment,
            offset: *offset,
            bytes: Arc::new(bytes.clone()),
        };
        let steps = writes.iter().map(step).chain([Step::Sync { segment: 1 }]).collect();
        journal.commits.insert(id, writes);
        let resume = std::mem::take(&mut journal.resumes);
        let command = Command::Commit { id: CommandId(id), steps, resume };
        member.node.submit(shard as ShardId, command, 0, member.now_ms);
    }

    fn on_done(
        &mut self,
        who: usize,
        shard: usize,
        id: u64,
        done: usize,
        fault: Option<FaultKind>,
    ) {
        let journal = &mut self.members[who].journals[shard];
        let first = journal.commits.keys().next().copied();
        assert_eq!(first, Some(id), "the commits of shard {shard} end in their order");
        let mut writes = journal.commits.remove(&id).expect("a commit under way");
        let refused = writes.split_off(done.min(writes.len()));
        self.promised.extend(writes.into_iter().map(|write| (shard, write)));
        if let Some(kind) = fault.filter(|kind| *kind != FaultKind::Fenced) {
            let is_behind = !journal.refused.is_empty();
            assert_eq!(kind == FaultKind::Skipped, is_behind, "skipped behind a refused one only");
            journal.refused.extend(refused);
            journal.resumes = true;
            self.refusals += 1;
        }
    }

    fn deliver(&mut self, who: usize) {
        let member = &mut self.members[who];
        let Some(from) = member.follows_from else { return };
        let Some(body) = self.engine.messages.get(from as usize - 1) else { return };
        member.follows_from = Some(from + 1);
        let (body, now_ms) = (body.clone(), member.now_ms);
        member.node.on_message(from, &body, now_ms);
    }

    fn answer(&mut self, who: usize) {
        if self.members[who].asked.is_empty() {
            return;
        }
        let place = self.random(self.members[who].asked.len() as u64) as usize;
        let asked = self.members[who].asked.remove(place);
        let fate = if self.engine.is_down { 1 } else { self.random(12) };
        let unknown = || "no answer".to_owned();
        match asked {
            Asked::Stream(id, request) => {
                let answer = match fate {
                    0 => {
                        self.engine.stream(&request);
                        Answer::Unknown(unknown())
                    }
                    1 => {
                        self.members[who].late.push(Asked::Stream(id, request));
                        Answer::Unknown(unknown())
                    }
                    2 if matches!(request, Request::Append { .. }) => {
                        Answer::NoSpace("full".to_owned())
                    }
                    _ => self.engine.stream(&request),
                };
                let now_ms = self.members[who].now_ms;
                self.members[who].node.on_answer(id, answer, now_ms);
            }
            Asked::Lease(id, request) => {
                let answer = match fate {
                    0 => {
                        self.engine.key(&request);
                        LeaseAnswer::Unknown(unknown())
                    }
                    1 => {
                        self.members[who].late.push(Asked::Lease(id, request));
                        LeaseAnswer::Unknown(unknown())
                    }
                    _ => self.engine.key(&request),
                };
                let now_ms = self.members[who].now_ms;
                self.members[who].node.on_lease_answer(id, answer, now_ms);
            }
        }
    }

    fn arrive_late(&mut self, who: usize) {
        match self.members[who].late.pop() {
            Some(Asked::Stream(_, request)) => drop(self.engine.stream(&request)),
            Some(Asked::Lease(_, request)) => drop(self.engine.key(&request)),
            None => {}
        }
    }

    fn carry_out(&mut self, who: usize) {
        let mut effects = Vec::new();
        self.members[who].node.take_effects(&mut effects);
        for effect in effects {
            let member = &mut self.members[who];
            match effect {
                Effect::Ask(id, request) => member.asked.push(Asked::Stream(id, request)),
                Effect::AskLease(id, request) => member.asked.push(Asked::Lease(id, request)),
                Effect::Follow(from) => member.follows_from = Some(from),
                Effect::Unfollow => member.follows_from = None,
                Effect::Done(shard, completion) => {
                    let Outcome::Committed { steps_done, fault } = completion.outcome else {
                        panic!();
                    };
                    let fault = fault.map(|fault| fault.kind);
                    self.on_done(who, shard.into(), completion.id.0, steps_done, fault);
                }
                Effect::Role(Role::Active { .. }) => self.begin(who),
                Effect::Role(Role::Ended(_)) => {
                    let name = format!("again-{who}");
                    let instance = self.random(1 << 30);
                    let now_ms = self.members[who].now_ms;
                    self.members[who] = Member::new(&name, instance);
                    self.members[who].now_ms = now_ms;
                    return self.carry_out(who);
                }
                _ => {}
            }
        }
    }

    /// A takeover: each journal goes on where its part of the stream ends.
    fn begin(&mut self, who: usize) {
        self.takeovers += 1;
        let found = read(&self.engine.messages);
        for (journal, writes) in self.members[who].journals.iter_mut().zip(&found) {
            let end = writes.last();
            let at = end.map(|(segment, offset, bytes)| (*segment, offset + bytes.len() as u32));
            *journal = Journal { at: at.unwrap_or_default(), resumes: true, ..Journal::default() };
        }
        self.check(&found);
    }

    fn check(&self, found: &[Vec<Write>]) {
        let mut journals: Vec<BTreeMap<u32, Vec<u8>>> = vec![BTreeMap::new(); SHARDS];
        for (shard, writes) in found.iter().enumerate() {
            for (segment, offset, bytes) in writes {
                let file = journals[shard].entry(*segment).or_default();
                assert_eq!(
                    file.len(),
                    *offset as usize,
                    "writes of segment {segment} of shard {shard} are contiguous"
                );
                file.extend_from_slice(bytes);
            }
        }
        for (shard, (segment, offset, bytes)) in &self.promised {
            let (from, to) = (*offset as usize, *offset as usize + bytes.len());
            let stored = journals[*shard].get(segment).and_then(|file| file.get(from..to));
            assert_eq!(stored, Some(&bytes[..]), "a promised write {shard}:{segment}:{offset}");
        }
    }
}

impl World {
    fn of(members: Vec<Member>) -> Self {
        let (engine, promised) = (Engine::default(), Vec::new());
        Self { engine, members, seed: 1, promised, takeovers: 0, refusals: 0 }
    }

    /// The engine answers all, and the stream is read, until nothing is asked.
    fn settle(&mut self, who: usize, now_ms: u64) {
        self.members[who].now_ms = now_ms;
        self.members[who].node.on_tick(now_ms, 0);
        self.carry_out(who);
        while let Some(asked) = self.members[who].asked.pop() {
            let node = &mut self.members[who].node;
            match asked {
                Asked::Stream(id, request) => {
                    node.on_answer(id, self.engine.stream(&request), now_ms);
                }
                Asked::Lease(id, request) => {
                    node.on_lease_answer(id, self.engine.key(&request), now_ms);
                }
            }
            self.deliver(who);
            self.carry_out(who);
        }
    }

    fn role(&self, who: usize) -> &Role {
        self.members[who].node.role()
    }
}

#[test]
fn a_standby_that_leaves_takes_the_lease_no_more() {
    let mut world = World::of(vec![Member::new("a", 1), Member::new("b", 2)]);
    (0..20).for_each(|step| world.settle(0, step * 100));
    assert!(matches!(world.role(0), Role::Active { .. }));
    world.settle(1, 2000);
    assert_eq!(*world.role(1), Role::Standby);
    world.members[1].node.release(None);
    assert_eq!(*world.role(1), Role::Released);
    assert_eq!(world.members[1].node.next_deadline(), None);
    (20..200).for_each(|step| world.settle(1, step * 100));
    assert_eq!(*world.role(1), Role::Released, "the lease of the other ran out long ago");
    world.members[0].node.release(None);
    assert!(matches!(world.role(0), Role::Active { .. }), "it has a lease to give back");
    world.settle(0, 2100);
    assert_eq!(*world.role(0), Role::Released);
}

/// The writes that count, by shard.
fn read(messages: &[Body]) -> Vec<Vec<Write>> {
    let mut sequencer = Sequencer::new(CLUSTER, SHARDS as ShardId);
    let mut writes = vec![Vec::new(); SHARDS];
    for (place, body) in messages.iter().enumerate() {
        let verdict = sequencer.on_message(place as u64 + 1, body).expect("readable");
        let portions = match verdict {
            Verdict::Counts(portions) => portions,
            Verdict::Claim(_) | Verdict::Void => continue,
        };
        for portion in portions {
            for piece in portion.pieces() {
                let Piece::Write { segment, offset, bytes } = piece else { continue };
                writes[usize::from(portion.shard)].push((segment, offset, bytes.to_vec()));
            }
        }
    }
    writes
}

/// A world of so many steps, and what is in its stream.
fn lived(seed: u64, steps: usize) -> World {
    let members = vec![Member::new("a", 1), Member::new("b", 2)];
    let mut world = World { seed, ..World::of(members) };
    for who in 0..2 {
        world.carry_out(who);
    }
    for _ in 0..steps {
        world.step();
    }
    world.check(&read(&world.engine.messages));
    world
}

#[test]
fn refused_commits_are_among_what_happens() {
    let refusals: usize = (0..8).map(|seed| lived(seed, 6000).refusals).sum();
    assert!(refusals > 20, "{refusals}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn what_was_promised_is_in_the_stream(seed: u64) {
        let world = lived(seed, 6000);
        prop_assert!(world.takeovers > 0 && !world.promised.is_empty());
    }
}
