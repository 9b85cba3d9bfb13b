//! Two nodes and an engine that loses, delays and forgets: what was reported as committed is in the
//! stream, once and in order, whoever is active.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{
    Answer, Body, Content, Cursor, Effect, Identity, LeaseAnswer, LeaseRequest, Node, Piece,
    Request, RequestId, Role, Sequencer, Settings, Timing, Verdict, decode,
};
use proptest::prelude::*;
use storage::{Command, CommandId, Outcome, Step};

const CLUSTER: [u8; 16] = [7; 16];

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
    /// Where the next write of its journal goes.
    at: (u32, u32),
    /// Commits under way, with the bytes that they write.
    commits: BTreeMap<u64, Vec<(u32, u32, Vec<u8>)>>,
    is_paused: bool,
    now_ms: u64,
}

impl Member {
    fn new(name: &str, instance: u64) -> Self {
        let identity = Identity { node: name.into(), instance, address: String::new() };
        let seed = instance << 32;
        let settings = Settings { cluster: CLUSTER, identity, seed, timing: Timing::default() };
        Self {
            node: Node::new(settings, vec![Cursor::default()], 0),
            asked: Vec::new(),
            late: Vec::new(),
            follows_from: None,
            next_id: 0,
            at: (1, 0),
            commits: BTreeMap::new(),
            is_paused: false,
            now_ms: 0,
        }
    }
}

struct World {
    engine: Engine,
    members: Vec<Member>,
    seed: u64,
    /// All that was reported as committed.
    promised: Vec<(u32, u32, Vec<u8>)>,
    takeovers: usize,
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
        let (rolls, len) = (self.random(10) == 0, 1 + self.random(150_000));
        let fill = self.random(256) as u8;
        let member = &mut self.members[who];
        if !matches!(member.node.role(), Role::Active { .. }) || member.commits.len() >= 2 {
            return;
        }
        if rolls || member.at == (1, 0) {
            member.at = (member.at.0 + u32::from(rolls), 0);
        }
        let bytes = vec![fill; len as usize];
        let (segment, offset) = member.at;
        member.at.1 += len as u32;
        member.next_id += 1;
        let id = member.next_id;
        member.commits.insert(id, vec![(segment, offset, bytes.clone())]);
        let steps =
            vec![Step::Write { segment, offset, bytes: Arc::new(bytes) }, Step::Sync { segment }];
        let command = Command::Commit { id: CommandId(id), steps, resume: id == 1 };
        let now_ms = member.now_ms;
        member.node.submit(0, command, now_ms);
    }

    fn deliver(&mut self, who: usize) {
        let member = &mut self.members[who];
        let Some(from) = member.follows_from else { return };
        let Some(body) = self.engine.messages.get(from as usize - 1) else { return };
        member.follows_from = Some(from + 1);
        let (body, now_ms) = (body.clone(), member.now_ms);
        member.node.on_message(0, from, &body, now_ms);
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
                    _ => self.engine.stream(&request),
                };
                let now_ms = self.members[who].now_ms;
                self.members[who].node.on_answer(0, id, answer, now_ms);
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
                Effect::Ask(_, id, request) => member.asked.push(Asked::Stream(id, request)),
                Effect::AskLease(id, request) => member.asked.push(Asked::Lease(id, request)),
                Effect::Follow(_, from) => member.follows_from = Some(from),
                Effect::Unfollow(_) => member.follows_from = None,
                Effect::Done(_, completion) => {
                    let Outcome::Committed { fault, .. } = completion.outcome else { panic!() };
                    let writes =
                        member.commits.remove(&completion.id.0).expect("a commit under way");
                    if fault.is_none() {
                        self.promised.extend(writes);
                    }
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

    /// A takeover: the journal goes on where the stream ends.
    fn begin(&mut self, who: usize) {
        self.takeovers += 1;
        let found = read(&self.engine.messages);
        let end =
            found.last().map(|(segment, offset, bytes)| (*segment, offset + bytes.len() as u32));
        self.members[who].at = end.unwrap_or((1, 0));
        self.check(&found);
    }

    fn check(&self, found: &[(u32, u32, Vec<u8>)]) {
        let mut journal: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (segment, offset, bytes) in found {
            let file = journal.entry(*segment).or_default();
            assert_eq!(file.len(), *offset as usize, "writes of segment {segment} are contiguous");
            file.extend_from_slice(bytes);
        }
        for (segment, offset, bytes) in &self.promised {
            let (from, to) = (*offset as usize, *offset as usize + bytes.len());
            let stored = journal.get(segment).and_then(|file| file.get(from..to));
            assert_eq!(stored, Some(&bytes[..]), "a promised write of {segment}:{offset} is there");
        }
    }
}

impl World {
    fn of(members: Vec<Member>) -> Self {
        Self { engine: Engine::default(), members, seed: 1, promised: Vec::new(), takeovers: 0 }
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
                    node.on_answer(0, id, self.engine.stream(&request), now_ms);
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

/// The writes that count.
fn read(messages: &[Body]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut sequencer = Sequencer::new(CLUSTER);
    let mut writes = Vec::new();
    for (place, body) in messages.iter().enumerate() {
        if sequencer.on_message(place as u64 + 1, body).expect("readable") != Verdict::Counts {
            continue;
        }
        let Content::Pieces(pieces) = decode(body).expect("a message").content else { panic!() };
        for piece in pieces {
            let Piece::Write { segment, offset, bytes } = piece else { continue };
            writes.push((segment, offset, bytes.to_vec()));
        }
    }
    writes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn what_was_promised_is_in_the_stream(seed: u64) {
        let members = vec![Member::new("a", 1), Member::new("b", 2)];
        let (promised, engine) = (Vec::new(), Engine::default());
        let mut world = World { engine, members, seed, promised, takeovers: 0 };
        for who in 0..2 {
            world.carry_out(who);
        }
        for _ in 0..6000 {
            world.step();
        }
        prop_assert!(world.takeovers > 0 && !world.promised.is_empty());
        world.check(&read(&world.engine.messages));
    }
}
