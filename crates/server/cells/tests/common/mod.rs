//! Nodes on loopback, each active for some cells, and clients of these cells.
//!
//! The shards of all cells are driven by the test. Gateways, links and their threads are real.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[path = "../../../links/tests/common/certificates.rs"]
pub(crate) mod certificates;
#[path = "../../../links/tests/common/proxy.rs"]
pub(crate) mod proxy;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Clock;
use broker::{Homes, Mail, Name, Settings, ShardId, Shared};
use cells::{Cells, Deliver, Facts, Figures, OwnCell, Owner, Task};
use codec::{AckKind, Reason};
use links::hello::Secret;
use links::{Connected, Envelope, Handler, Links, Member, Options, Poller, Violation};
use policy::Access;
use rig::{BEGIN_MS, Conn, Got, Lab, publish, read_all, request};

use certificates::Authority;

pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    /// By cell.
    pub(crate) cells: Vec<Cell>,
    pub(crate) lanes: u8,
    mail: Receiver<Delivered>,
    to_mail: Sender<Delivered>,
    authority: Authority,
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) links: Links,
    pub(crate) cells: Cells,
    /// Why links were lost.
    pub(crate) losses: Receiver<String>,
}

/// A cell, with an owner.
pub(crate) struct Cell {
    pub(crate) lab: Lab,
    pub(crate) clock: Clock,
    /// Index of the owner's node.
    pub(crate) node: usize,
    pub(crate) epoch: u64,
    pub(crate) is_held: Arc<AtomicBool>,
    /// Stops the thread of the links in its next delivery.
    pub(crate) stop: Arc<Mutex<Option<Stop>>>,
    /// Mail that gateways have delivered to it.
    pub(crate) delivered: usize,
}

pub(crate) struct Stop {
    pub(crate) entered: Sender<()>,
    pub(crate) go_on: Receiver<()>,
}

struct Delivered {
    cell: usize,
    epoch: u64,
    shard: ShardId,
    mails: Vec<Mail>,
}

/// Passes on what happens on the links of a node.
struct Joined(Task, Sender<String>);

impl Handler for Joined {
    fn on_connected(&mut self, connected: Connected) {
        let Connected { node, lane, version, sender, .. } = connected;
        self.0.on_connected(&node, lane, version, sender);
    }

    fn on_envelope(&mut self, node: &str, lane: u8, it: Envelope<'_>) -> Result<(), Violation> {
        self.0.on_envelope(node, lane, it)
    }

    fn on_room(&mut self, node: &str, lane: u8) {
        self.0.on_room(node, lane);
    }

    fn on_lost(&mut self, node: &str, lane: u8, why: &links::Reason) {
        self.0.on_lost(node, lane);
        let _ = self.1.send(why.to_string());
    }

    fn on_turn(&mut self) {
        self.0.on_turn();
    }

    fn wait(&self) -> Option<Duration> {
        Some(self.0.wait())
    }
}

impl World {
    /// `owners`: the node of each cell. Nodes are not linked yet, and nobody knows of owners.
    pub(crate) fn new(nodes: usize, owners: &[usize], lanes: u8) -> Self {
        let authority = Authority::new();
        let cells = owners.len() as u16;
        let (to_mail, mail) = mpsc::channel();
        let mut world =
            Self { nodes: Vec::new(), cells: Vec::new(), lanes, mail, to_mail, authority };
        for number in 0..nodes {
            let node = world.start_node(&name(number), cells);
            world.nodes.push(node);
        }
        for (cell, node) in owners.iter().enumerate() {
            let of_cell = Cell::new(Homes::new(cells, cell as u16, SHARDS), *node, 1);
            world.cells.push(of_cell);
            world.open(cell);
        }
        world
    }

    /// Linked, and all owners are known to all and have exchanged their summaries.
    pub(crate) fn joined(nodes: usize, owners: &[usize], lanes: u8) -> Self {
        let mut world = Self::new(nodes, owners, lanes);
        world.link_all();
        world.announce_all();
        world.until_known();
        world
    }

    fn start_node(&self, name: &str, cells: u16) -> Node {
        let facts = Facts { node: name.to_owned(), cells, lanes: self.lanes };
        let poller = Poller::new().expect("files");
        let (own, task) = Cells::new(facts, poller.bell());
        let (to_losses, losses) = mpsc::channel();
        let handler = Box::new(Joined(task, to_losses));
        let links = Links::start_on(poller, self.options(name), &[], handler).expect("links");
        Node { name: name.to_owned(), links, cells: own, losses }
    }

    pub(crate) fn options(&self, name: &str) -> Options {
        let (listen, files) = (SocketAddr::from(([127, 0, 0, 1], 0)), self.authority.issue(name));
        let identity = (*b"0123456789abcdef", Secret::new(*b"secret of the cluster"));
        let (lanes, link_ms) = (self.lanes, 30_000);
        Options { lanes, link_ms, ..Options::new(name, identity, listen, files) }
    }

    /// A cell is active on its node.
    pub(crate) fn open(&self, cell: usize) {
        let own = &self.cells[cell];
        let (epoch, stop, to_mail) = (own.epoch, Arc::clone(&own.stop), self.to_mail.clone());
        let deliver: Deliver = Arc::new(move |shard, mails| {
            if let Some(Stop { entered, go_on }) = stop.lock().expect("sound").take() {
                entered.send(()).expect("the test waits");
                go_on.recv().expect("the test goes on");
            }
            let _ = to_mail.send(Delivered { cell, epoch, shard, mails });
        });
        let is_held = Arc::clone(&own.is_held);
        self.nodes[own.node].cells.open(OwnCell {
            cell: cell as u16,
            epoch,
            shared: Arc::clone(&own.lab.shared),
            clock: own.clock,
            deliver,
            is_held: Arc::new(move || is_held.load(Ordering::SeqCst)),
        });
    }

    pub(crate) fn close(&self, cell: usize) {
        let own = &self.cells[cell];
        self.nodes[own.node].cells.close(cell as u16, own.epoch);
    }

    /// The owner of a cell ends, and a new one without its state begins. Nobody has heard of it.
    pub(crate) fn take_over(&mut self, cell: usize, node: usize) {
        self.close(cell);
        let before = &self.cells[cell];
        let homes = before.lab.shared.homes;
        self.cells[cell] = Cell::new(homes, node, before.epoch + 1);
        self.open(cell);
    }

    pub(crate) fn link_all(&self) {
        for one in 0..self.nodes.len() {
            for other in (0..self.nodes.len()).filter(|other| *other != one) {
                self.link(one, other, self.nodes[other].links.local_address());
            }
        }
    }

    pub(crate) fn link(&self, one: usize, other: usize, address: SocketAddr) {
        let member = Member { name: name(other), address: address.to_string() };
        self.nodes[one].links.add(member);
    }

    pub(crate) fn announce_all(&self) {
        (0..self.cells.len()).for_each(|cell| self.announce(cell));
    }

    /// All nodes hear who has a cell.
    pub(crate) fn announce(&self, cell: usize) {
        (0..self.nodes.len()).for_each(|node| self.announce_to(node, cell));
    }

    pub(crate) fn announce_to(&self, node: usize, cell: usize) {
        let of_cell = &self.cells[cell];
        let owner = Owner { node: name(of_cell.node), epoch: of_cell.epoch };
        self.nodes[node].cells.owner_changed(cell as u16, Some(owner));
    }

    /// The shards do what they can, and their mail for other cells is posted.
    pub(crate) fn work(&mut self) {
        let count = self.cells.len() as u16;
        for (number, own) in self.cells.iter_mut().enumerate() {
            own.read_on();
            own.lab.settle();
            let node = &self.nodes[own.node].cells;
            for shard in 0..SHARDS {
                for other in (0..count).filter(|other| usize::from(*other) != number) {
                    let place = own.lab.shared.homes.place_of_cell(other);
                    let shard_of = &mut own.lab.shards[usize::from(shard)];
                    let mails = shard_of.effects_mut().take_batch(place);
                    if !mails.is_empty() {
                        node.post(number as u16, own.epoch, shard, place, mails);
                    }
                }
            }
        }
    }

    fn take_mail(&mut self, wait: Duration) {
        let mut next = self.mail.recv_timeout(wait).ok();
        while let Some(Delivered { cell, epoch, shard, mails }) = next {
            let own = &mut self.cells[cell];
            if own.epoch == epoch {
                own.delivered += mails.len();
                let now_ms = own.lab.now_ms;
                for mail in mails {
                    own.lab.shards[usize::from(shard)].on_mail(mail, now_ms);
                }
            }
            next = self.mail.try_recv().ok();
        }
    }

    /// Takes mail that gateways have delivered. False: there was none.
    pub(crate) fn has_mail(&mut self) -> bool {
        let count = |world: &Self| world.cells.iter().map(|own| own.delivered).sum::<usize>();
        let before = count(self);
        self.take_mail(Duration::ZERO);
        count(self) > before
    }

    /// Everything goes on until it is so.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        loop {
            self.work();
            if is_so(self) {
                return;
            }
            let figures: Vec<_> = self.nodes.iter().map(|node| node.cells.figures()).collect();
            assert!(began.elapsed() < PATIENCE, "{what}: {figures:#?}");
            self.take_mail(STEP);
        }
    }

    /// Each cell knows what each other one wants: nothing.
    pub(crate) fn until_known(&mut self) {
        self.until("summaries are known", |world| {
            let count = world.cells.len();
            let mut pairs = (0..count).flat_map(|one| (0..count).map(move |other| (one, other)));
            pairs.all(|(one, other)| one == other || !world.thinks_wants(one, other, "nobody"))
        });
    }

    /// Does one cell take another for one that wants a topic?
    pub(crate) fn thinks_wants(&self, one: usize, other: usize, topic: &str) -> bool {
        let shared = &self.cells[one].lab.shared;
        let place = shared.homes.place_of_cell(other as u16);
        shared.interest.shards(Name::first(topic).key().as_bytes()).wants & 1 << place != 0
    }

    pub(crate) fn figures(&self, cell: usize, other: usize) -> Option<Figures> {
        let figures = self.nodes[self.cells[cell].node].cells.figures();
        let is_it = |it: &Figures| usize::from(it.cell) == cell && usize::from(it.other) == other;
        figures.into_iter().find(is_it)
    }

    /// A client of a cell, with this number.
    pub(crate) fn connect(&mut self, cell: usize, label: &str) -> Conn {
        let lab = &mut self.cells[cell].lab;
        let id = id_in(&lab.shared, cell, label);
        lab.open(request(&id))
    }

    /// SUBSCRIBE and its SUBACK, which other cells may delay.
    pub(crate) fn subscribe(&mut self, cell: usize, client: Conn, filter: &str, qos: u8) {
        self.cells[cell].lab.subscribe_all(client, &[filter], qos);
        self.until("SUBACK", |world| world.has_suback(cell, client));
    }

    pub(crate) fn has_suback(&mut self, cell: usize, client: Conn) -> bool {
        match self.cells[cell].lab.take(client) {
            Some(Got::Suback(1, reasons)) => {
                assert!(reasons.iter().all(|reason| *reason < 0x80), "{reasons:?}");
                true
            }
            Some(other) => panic!("expected a SUBACK, got {other:?}"),
            None => false,
        }
    }

    /// Publishes with QoS 1 and these packet ids.
    pub(crate) fn publish(&mut self, cell: usize, client: Conn, topic: &str, texts: &[String]) {
        for (id, text) in (1..).zip(texts) {
            self.cells[cell].lab.send(client, &publish(topic, text.as_bytes(), 1, id));
        }
    }

    /// Reasons of the PUBACKs that have come since.
    pub(crate) fn pubacks(&mut self, cell: usize, client: Conn) -> Vec<Reason> {
        let acks = self.cells[cell].lab.acks(client).into_iter();
        acks.filter(|(kind, ..)| *kind == AckKind::Puback).map(|(.., reason)| reason).collect()
    }

    /// Payloads that have come since, acknowledged.
    pub(crate) fn read(&mut self, cell: usize, client: Conn) -> Vec<String> {
        read_all(&mut self.cells[cell].lab, client)
    }

    /// Publishes in rounds and waits for the PUBACKs of each. Each subscriber gets all of them
    /// once, in order.
    pub(crate) fn exchange(
        &mut self,
        (cell, publisher): (usize, Conn),
        topic: &str,
        texts: &[String],
        subscribers: &[(usize, Conn)],
    ) {
        let mut got = vec![Vec::new(); subscribers.len()];
        for round in texts.chunks(ROUND) {
            self.publish(cell, publisher, topic, round);
            let mut acks = Vec::new();
            self.until("PUBACKs", |world| {
                acks.extend(world.pubacks(cell, publisher));
                for (got, (cell, client)) in got.iter_mut().zip(subscribers) {
                    got.extend(world.read(*cell, *client));
                }
                acks.len() >= round.len()
            });
            assert_eq!(acks, vec![Reason::SUCCESS; round.len()], "each is answered once");
        }
        self.until("messages", |world| {
            for (got, (cell, client)) in got.iter_mut().zip(subscribers) {
                got.extend(world.read(*cell, *client));
            }
            got.iter().all(|got| got.len() >= texts.len())
        });
        for got in got {
            assert!(got == texts, "once and in order: {got:?}");
        }
    }
}

impl Cell {
    fn new(homes: Homes, node: usize, epoch: u64) -> Self {
        let shared = Shared::of_cell(Settings::default(), homes, epoch, SEED);
        let mut lab = Lab::of(shared, Access::open());
        // Each cell has its own time.
        lab.now_ms = BEGIN_MS + epoch * 1_000_000 + cell_offset_ms(homes);
        let clock = Clock::start();
        clock.go_on_at(lab.now_ms);
        Self {
            lab,
            clock,
            node,
            epoch,
            is_held: Arc::new(AtomicBool::new(true)),
            stop: Arc::default(),
            delivered: 0,
        }
    }

    /// Reads publishers whose pause is over.
    fn read_on(&mut self) {
        let now_ms = self.clock.now_ms();
        self.lab.now_ms = now_ms;
        let over: Vec<_> = self.lab.pauses.extract_if(.., |(_, until)| *until <= now_ms).collect();
        over.into_iter().for_each(|(client, _)| self.lab.bytes(client, &[]));
    }

    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
    }
}

fn cell_offset_ms(homes: Homes) -> u64 {
    // The place of cell 0 is lower for all but that cell.
    let others = (0..homes.cells()).filter(|cell| homes.place_of_cell(*cell) >= homes.shards());
    others.map(|cell| u64::from(cell) * 7_000_000).sum()
}

/// A client id that has its home in a cell.
fn id_in(shared: &Shared, cell: usize, label: &str) -> String {
    let mut ids = (0..10_000).map(|number| format!("{label}-{number}"));
    ids.find(|id| usize::from(shared.cell_of_client(id)) == cell).expect("some id hashes to it")
}

pub(crate) fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

pub(crate) fn texts(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number} {}", "x".repeat(number * 37 % 700))).collect()
}

pub(crate) const SHARDS: ShardId = 2;

const SEED: u64 = 7;

/// Messages of a publisher under way.
const ROUND: usize = 20;

/// How long a test waits for what has to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// Between two looks at what is not delivered as mail.
const STEP: Duration = Duration::from_millis(20);
