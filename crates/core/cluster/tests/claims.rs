//! Nodes with a member for each of several cells: free cells are spread evenly, one claim of a node
//! at a time, and no cell has two owners.

use std::collections::VecDeque;

use cluster::{
    Answer, Body, Claims, Cursor, Effect, Identity, LeaseAnswer, LeaseRequest, MESSAGE_BYTES_MAX,
    Node, Request, RequestId, Role, Settings, Timing,
};
use proptest::prelude::*;

/// Of the world's clock.
const STEP_MS: u64 = 10;

/// The stream and the key of a cell.
#[derive(Default)]
struct Engine {
    messages: Vec<Body>,
    /// Revision and value.
    lease: Option<(u64, Vec<u8>)>,
    has_no_leader: bool,
}

impl Engine {
    fn stream(&mut self, request: &Request) -> Answer {
        let last = self.messages.len() as u64;
        match request {
            Request::Append { .. } if self.has_no_leader => {
                Answer::Unavailable("no leader".to_owned())
            }
            Request::Append { after, body } if *after == last => {
                self.messages.push(body.clone());
                Answer::Appended(last + 1)
            }
            Request::Append { .. } => Answer::WrongSequence,
            Request::Ends => Answer::Ends { first: 1, last },
            Request::Message { .. } | Request::Purge { .. } => panic!("nothing is written"),
        }
    }

    fn key(&mut self, request: &LeaseRequest) -> LeaseAnswer {
        let revision = self.lease.as_ref().map_or(0, |(revision, _)| *revision);
        match (request, &self.lease) {
            (LeaseRequest::Read, Some((_, value))) => {
                LeaseAnswer::Found { revision, value: value.clone() }
            }
            (LeaseRequest::Read, None) => LeaseAnswer::Missing,
            (LeaseRequest::Write { expected, value }, _) if *expected == revision => {
                self.lease = Some((revision + 1, value.clone()));
                LeaseAnswer::Written(revision + 1)
            }
            (LeaseRequest::Write { .. }, _) => LeaseAnswer::Conflict,
        }
    }
}

enum Heard {
    Stream(RequestId, Answer),
    Lease(RequestId, LeaseAnswer),
}

/// A node's member of a cell.
struct Member {
    node: Node,
    follows_from: Option<u64>,
    /// Answers that arrive in the next step.
    heard: VecDeque<Heard>,
}

struct Host {
    claims: Claims,
    members: Vec<Member>,
    starts_at_ms: u64,
    is_lost: bool,
}

impl Host {
    fn new(number: u64, cells: u16, starts_at_ms: u64) -> Self {
        let name = format!("broker{number}.example");
        let member = |cell: u16| {
            let settings = Settings {
                cluster: [cell as u8; 16],
                identity: Identity { node: name.clone(), instance: number, address: String::new() },
                seed: number << 32,
                timing: Timing::default(),
                message_bytes_max: MESSAGE_BYTES_MAX,
                span_bytes_min: 1 << 20,
                stream_bytes_max: u64::MAX,
                append_interval_ms: 0,
            };
            let node = Node::new(settings, vec![Cursor::default(); 2], starts_at_ms);
            Member { node, follows_from: None, heard: VecDeque::new() }
        };
        let members = (0..cells).map(member).collect();
        Self { claims: Claims::new(&name), members, starts_at_ms, is_lost: false }
    }

    fn step(&mut self, engines: &mut [Engine], now_ms: u64) {
        for (cell, (member, engine)) in self.members.iter_mut().zip(&mut *engines).enumerate() {
            member.take_in(engine, now_ms);
            let cell = cell as u16;
            self.claims.before_tick(cell, &mut member.node, false, now_ms);
            member.node.on_tick(now_ms, 0);
            self.claims.after_tick(cell, &mut member.node);
            member.carry_out(engine);
        }
        let takes = |(member, engine): (&Member, &Engine)| {
            member.node.is_claiming() && !engine.has_no_leader
        };
        let claims = self.members.iter().zip(&*engines).map(takes).filter(|takes| *takes).count();
        assert!(claims <= 1, "one claim at a time");
    }

    fn active(&self) -> usize {
        let is_active = |member: &&Member| matches!(member.node.role(), Role::Active { .. });
        self.members.iter().filter(is_active).count()
    }
}

impl Member {
    fn take_in(&mut self, engine: &Engine, now_ms: u64) {
        while let Some(heard) = self.heard.pop_front() {
            match heard {
                Heard::Stream(id, answer) => self.node.on_answer(id, answer, now_ms),
                Heard::Lease(id, answer) => self.node.on_lease_answer(id, answer, now_ms),
            }
        }
        while let Some(from) = self.follows_from
            && let Some(body) = engine.messages.get(from as usize - 1)
        {
            self.follows_from = Some(from + 1);
            self.node.on_message(from, body, now_ms);
        }
    }

    fn carry_out(&mut self, engine: &mut Engine) {
        let mut effects = Vec::new();
        self.node.take_effects(&mut effects);
        for effect in effects {
            match effect {
                Effect::Ask(id, request) => {
                    self.heard.push_back(Heard::Stream(id, engine.stream(&request)));
                }
                Effect::AskLease(id, request) => {
                    self.heard.push_back(Heard::Lease(id, engine.key(&request)));
                }
                Effect::Follow(from) => self.follows_from = Some(from),
                Effect::Unfollow => self.follows_from = None,
                Effect::Role(Role::Ended(why)) => panic!("{why}"),
                _ => {}
            }
        }
    }
}

struct World {
    hosts: Vec<Host>,
    engines: Vec<Engine>,
    now_ms: u64,
}

impl World {
    fn new(cells: u16, starts_at_ms: &[u64]) -> Self {
        let host = |(number, at_ms): (u64, &u64)| Host::new(number, cells, *at_ms);
        let hosts = (1..).zip(starts_at_ms).map(host).collect();
        let engines = (0..cells).map(|_| Engine::default()).collect();
        Self { hosts, engines, now_ms: 0 }
    }

    fn run(&mut self, for_ms: u64) {
        for _ in 0..for_ms / STEP_MS {
            self.now_ms += STEP_MS;
            let now_ms = self.now_ms;
            let runs = |host: &&mut Host| !host.is_lost && host.starts_at_ms <= now_ms;
            self.hosts
                .iter_mut()
                .filter(runs)
                .for_each(|host| host.step(&mut self.engines, now_ms));
            for cell in 0..self.engines.len() {
                let acts = |host: &&Host| host.members[cell].node.acting_until_ms() > now_ms;
                assert!(self.hosts.iter().filter(acts).count() <= 1, "cell {cell}");
            }
        }
    }

    /// The fewest and the most cells of a host, and all of them.
    fn spread(&self) -> (usize, usize, usize) {
        let live = self.hosts.iter().filter(|host| !host.is_lost).map(Host::active);
        let active: Vec<usize> = live.collect();
        let (fewest, most) = (active.iter().min(), active.iter().max());
        (*fewest.expect("a live host"), *most.expect("a live host"), active.iter().sum())
    }
}

/// Time for all cells: each one that a node has already delays the next.
fn enough_ms(cells: u16) -> u64 {
    8000 + u64::from(cells) * cluster::CLAIM_STEP_MS
}

#[test]
fn a_node_that_is_alone_takes_all_cells() {
    let mut world = World::new(12, &[0]);
    world.run(1000);
    let (_, some, _) = world.spread();
    assert!((1..12).contains(&some), "one after the other: {some}");
    world.run(enough_ms(12));
    assert_eq!(world.spread(), (12, 12, 12));
}

#[test]
fn a_node_that_comes_late_finds_nothing_to_take() {
    let mut world = World::new(3, &[0, 20_000]);
    world.run(40_000);
    assert_eq!(world.spread(), (0, 3, 3));
    world.hosts[0].is_lost = true;
    world.run(enough_ms(3));
    assert_eq!(world.spread(), (3, 3, 3));
}

#[test]
fn a_cell_that_cannot_be_claimed_does_not_keep_the_node_from_others() {
    let mut world = World::new(3, &[0]);
    world.engines.iter_mut().for_each(|engine| engine.has_no_leader = true);
    world.run(1000);
    assert_eq!(world.spread(), (0, 0, 0));
    let claims = |member: &&Member| member.node.is_claiming();
    assert_eq!(world.hosts[0].members.iter().filter(claims).count(), 1);
    let stuck = world.hosts[0].members.iter().position(|member| member.node.is_claiming()).unwrap();
    for (cell, engine) in world.engines.iter_mut().enumerate() {
        engine.has_no_leader = cell == stuck;
    }
    world.run(enough_ms(3));
    assert_eq!(world.spread(), (2, 2, 2));
    world.engines[stuck].has_no_leader = false;
    world.run(1000);
    assert_eq!(world.spread(), (3, 3, 3));
}

/// Nodes start one after the other and look at leases at their own times: one that is early may get
/// a cell more than its share.
const SPREAD_MAX: usize = 2;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn free_cells_are_spread_evenly(
        cells in 2_u16..=12,
        starts_at_ms in prop::collection::vec(0_u64..300, 2..=4),
        lost: prop::sample::Index,
    ) {
        let mut world = World::new(cells, &starts_at_ms);
        world.run(enough_ms(cells));
        let (fewest, most, all) = world.spread();
        prop_assert_eq!(all, usize::from(cells));
        prop_assert!(most - fewest <= SPREAD_MAX, "{} to {}", fewest, most);
        let lost = lost.index(world.hosts.len());
        world.hosts[lost].is_lost = true;
        world.run(enough_ms(cells));
        let (fewest, most, all) = world.spread();
        prop_assert_eq!(all, usize::from(cells), "after the loss of a node");
        prop_assert!(most - fewest <= SPREAD_MAX, "after the loss: {} to {}", fewest, most);
    }
}
