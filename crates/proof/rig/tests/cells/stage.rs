//! A laboratory of cells, and its clients by their names.
//!
//! `reader@1` is a client whose ID has its home in cell 1. It connects when it is first named, with
//! a session that ends with its connection. In a packet, `t@1` is a topic whose retained message is
//! in cell 1. Packets are texts: see `notation.rs`.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use broker::cells::gateway::GatewayFlaw;
use broker::command::{Command, Publication};
use broker::{ConnectRequest, Durability, Figure, Metrics, RetainedFlaw, Settings, Waits};
use codec::{AckKind, Version};
use rig::{Cells, Conn, Got, Received, level, of_version, persistent, request};

use crate::notation::{text_of, with_packet};

/// Cells in the middle of a test.
pub(crate) struct Stage {
    pub(crate) cells: Cells,
    clients: HashMap<String, Client>,
}

#[derive(Clone, Copy)]
struct Client {
    cell: u16,
    conn: Conn,
}

/// Three cells do this, and it fails with each of these flaws in all gateways.
pub(crate) fn noticing<const N: usize>(flaws: [GatewayFlaw; N], does: impl Fn(&mut Stage)) {
    noticing_with(&Settings::default(), flaws, does);
}

pub(crate) fn noticing_with<const N: usize>(
    settings: &Settings,
    flaws: [GatewayFlaw; N],
    does: impl Fn(&mut Stage),
) {
    does(&mut Stage::new(settings, None));
    for flaw in flaws {
        let mut stage = Stage::new(settings, Some(flaw));
        let done = catch_unwind(AssertUnwindSafe(|| does(&mut stage)));
        assert!(done.is_err(), "{flaw:?} is not noticed");
    }
}

/// The same with a flaw in all shards.
pub(crate) fn noticing_retained(flaw: RetainedFlaw, does: impl Fn(&mut Stage)) {
    does(&mut Stage::new(&Settings::default(), None));
    let mut stage = Stage::new(&Settings::default(), None);
    let shards = stage.cells.labs.iter_mut().flat_map(|lab| &mut lab.shards);
    shards.for_each(|shard| shard.plant_retained_flaw(flaw));
    let done = catch_unwind(AssertUnwindSafe(|| does(&mut stage)));
    assert!(done.is_err(), "{flaw:?} is not noticed");
}

/// The ways between the first two cells.
pub(crate) const THERE: (u16, u16) = (0, 1);
pub(crate) const BACK: (u16, u16) = (1, 0);

impl Stage {
    /// Three cells with two shards each. All gateways have the flaw.
    pub(crate) fn new(settings: &Settings, flaw: Option<GatewayFlaw>) -> Self {
        let mut cells = Cells::of(CELLS, 2, settings);
        if let Some(flaw) = flaw {
            cells.prepare(move |gateway| gateway.plant(flaw));
        }
        Self { cells, clients: HashMap::new() }
    }

    // What clients do.

    /// The client has, or comes back to, a session that never expires.
    pub(crate) fn keeps(&mut self, name: &str) {
        self.opens(name, persistent);
    }

    /// The same, and its QoS 1 subscription; then it is away.
    pub(crate) fn leaves(&mut self, name: &str, filter: &str, qos: u8) {
        self.keeps(name);
        self.subscribes(name, filter, qos);
        self.cuts(name);
    }

    pub(crate) fn opens_v311(&mut self, name: &str) {
        self.opens(name, |id| of_version(Version::V311, id));
    }

    pub(crate) fn opens(&mut self, name: &str, with: impl Fn(&str) -> ConnectRequest) {
        let (word, cell) = split(name).expect("a name with a cell");
        let id = self.cells.id_in(cell, word);
        let lab = &mut self.cells.labs[usize::from(cell)];
        let conn = lab.connect(with(&id));
        lab.connack(conn).expect("an answer").expect("success");
        self.clients.insert(name.to_owned(), Client { cell, conn });
        self.cells.settle();
    }

    fn client(&mut self, name: &str) -> Client {
        if !self.clients.contains_key(name) {
            self.opens(name, request);
        }
        self.clients[name]
    }

    /// Sends a packet; the mail between shards stays where it is.
    pub(crate) fn posts(&mut self, name: &str, packet: &str) {
        let (Client { cell, conn }, packet) = (self.client(name), self.placed(packet));
        let lab = &mut self.cells.labs[usize::from(cell)];
        with_packet(&packet, |packet| lab.send_only(conn, packet));
    }

    /// Sends a packet; all that may arrive does.
    pub(crate) fn sends(&mut self, name: &str, packet: &str) {
        self.posts(name, packet);
        self.cells.settle();
    }

    /// Subscribes, until it has asked for a page of retained messages. From then on nothing arrives
    /// from cell 1.
    pub(crate) fn asks_pages(&mut self, name: &str, packet: &str) {
        let Client { cell, .. } = self.client(name);
        self.release(BACK);
        self.posts(name, packet);
        for _ in 0..100 {
            self.cells.go_round();
            if self.waits(cell, |waits| waits.pages) > 0 {
                break;
            }
        }
        self.hold(BACK);
        self.cells.settle();
    }

    /// Subscribes, and reads the SUBACK away.
    pub(crate) fn subscribes(&mut self, name: &str, filter: &str, qos: u8) {
        self.sends(name, &format!("subscribe {filter} qos{qos}"));
        self.gets(name, [&format!("suback 1: {qos}")]);
    }

    /// The network connection breaks.
    pub(crate) fn cuts(&mut self, name: &str) {
        let Client { cell, conn } = self.client(name);
        self.clients.remove(name);
        self.cells.labs[usize::from(cell)].cut(conn);
        self.cells.settle();
    }

    /// An operator publishes on the first shard of cell 0.
    pub(crate) fn publishes_as_operator(&mut self, topic: &str, qos: u8) {
        let publication = Publication {
            topic: topic.into(),
            properties: Box::default(),
            payload: b"1".as_slice().into(),
            qos: level(qos),
            retain: false,
            expiry_secs: None,
            durability: Durability::Fsync,
        };
        self.cells.labs[0].order(0, &Command::Publish(publication));
        self.cells.settle();
    }

    /// The broker says something of itself, in a cell.
    pub(crate) fn says(&mut self, cell: u16, topic: &str, payload: &str) {
        let message = broker::sys::message(topic, payload.as_bytes(), true);
        let lab = &mut self.cells.labs[usize::from(cell)];
        lab.shards[0].on_publish_command(&message, lab.now_ms);
        self.cells.settle();
    }

    // What they get.

    /// Packets that came since the last look, and `closed` if that is the end.
    pub(crate) fn texts(&mut self, name: &str) -> Vec<String> {
        if name == OPERATOR {
            let reason = self.cells.labs[0].published(0);
            return reason
                .map(|reason| format!("published {}", reason.word()))
                .into_iter()
                .collect();
        }
        let Client { cell, conn } = self.client(name);
        let lab = &mut self.cells.labs[usize::from(cell)];
        let mut texts: Vec<String> = lab.take_all(conn).iter().map(text_of).collect();
        texts.extend(lab.is_closed(conn).then(|| "closed".to_owned()));
        texts
    }

    #[track_caller]
    pub(crate) fn gets<const N: usize>(&mut self, name: &str, packets: [&str; N]) {
        let expected = packets.map(|packet| self.placed(packet));
        assert_eq!(self.texts(name), expected, "{name}");
    }

    /// Payloads that the client is sent, each of which it acknowledges.
    pub(crate) fn reads_all(&mut self, name: &str) -> Vec<String> {
        let (mut payloads, Client { cell, conn }) = (Vec::new(), self.client(name));
        loop {
            let received: Vec<Received> = self.cells.labs[usize::from(cell)].received(conn);
            if received.is_empty() {
                return payloads;
            }
            for own in received {
                let kinds: &[AckKind] = match own.qos {
                    0 => &[],
                    1 => &[AckKind::Puback],
                    _ => &[AckKind::Pubrec, AckKind::Pubcomp],
                };
                for kind in kinds {
                    self.cells.labs[usize::from(cell)].ack(conn, *kind, own.packet_id);
                    self.cells.settle();
                }
                payloads.push(String::from_utf8(own.payload).expect("text"));
            }
        }
    }

    /// The same of a kept session, which connects for it.
    pub(crate) fn finds(&mut self, name: &str) -> Vec<String> {
        self.keeps(name);
        let payloads = self.reads_all(name);
        self.cuts(name);
        payloads
    }

    /// Retained messages for a new subscription, as [`Stage::topics`].
    pub(crate) fn retained_for(&mut self, name: &str, filter: &str) -> Vec<String> {
        self.sends(name, &format!("subscribe {filter} qos0"));
        let topics = self.topics(name);
        self.cuts(name);
        topics
    }

    /// Messages that the client got, in the order of their topics, as `topic payload`.
    pub(crate) fn topics(&mut self, name: &str) -> Vec<String> {
        let Client { cell, conn } = self.client(name);
        let got = self.cells.labs[usize::from(cell)].take_all(conn);
        let text = |own: &Got| match own {
            Got::Publish(own) => {
                Some(format!("{} {}", own.topic, String::from_utf8_lossy(&own.payload)))
            }
            _ => None,
        };
        let mut texts: Vec<String> = got.iter().filter_map(text).collect();
        texts.sort_unstable();
        texts
    }

    // What becomes of the other cell.

    pub(crate) fn hold(&mut self, way: (u16, u16)) {
        self.cells.hold(way);
    }

    pub(crate) fn release(&mut self, way: (u16, u16)) {
        self.cells.release(way);
    }

    /// All hear that the cell has no owner.
    pub(crate) fn lose(&mut self, cell: u16) {
        self.clients.retain(|_, client| client.cell != cell);
        self.cells.lose(cell);
        self.cells.settle();
    }

    /// A new owner comes. If the one before was not lost, nobody has heard of its end.
    pub(crate) fn take_over(&mut self, cell: u16) {
        self.clients.retain(|_, client| client.cell != cell);
        self.cells.take_over(cell, false);
        self.cells.settle();
    }

    pub(crate) fn pass_secs(&mut self, secs: u64) {
        self.cells.pass_secs(secs);
    }

    // What is seen from outside.

    /// How much of a kind waits in a cell.
    pub(crate) fn waits(&self, cell: u16, kind: impl Fn(&Waits) -> usize) -> usize {
        self.cells.labs[usize::from(cell)].shards.iter().map(|shard| kind(&shard.waits())).sum()
    }

    /// Nothing waits anywhere.
    pub(crate) fn is_over(&self) {
        for shard in self.cells.labs.iter().flat_map(|lab| &lab.shards) {
            assert!(shard.waits().are_over(), "{:?}", shard.waits());
        }
        assert_eq!(self.cells.waiting(), 0);
    }

    pub(crate) fn total<T: Figure>(&self, cell: u16, figure: impl Fn(&Metrics) -> &T) -> u64 {
        self.cells.labs[usize::from(cell)].total(figure)
    }

    /// Topics in the place of `t@1`.
    pub(crate) fn placed(&self, packet: &str) -> String {
        let words = packet.split(' ').map(|word| match split(word) {
            Some((name, cell)) => self.cells.topic_in(cell, name),
            None => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Of `name@1` the name and the number.
fn split(word: &str) -> Option<(&str, u16)> {
    let (name, cell) = word.split_once('@')?;
    Some((name, cell.parse().ok()?))
}

const CELLS: u16 = 3;

/// Whose answers [`Stage::texts`] has as those of a client.
pub(crate) const OPERATOR: &str = "operator";
