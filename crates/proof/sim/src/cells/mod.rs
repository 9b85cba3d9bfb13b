//! Several cells, each with an owner that may end alone, and the frames between them.
//!
//! The world goes on with one cell at a time: what it does to `node` and `disks` it does to that
//! one. Clients connect to the cell of their client ID.

mod carry;
mod faults;
mod links;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use broker::cells::gateway::{Gateway, GatewayFlaw};
use broker::{Figure, Homes, Metrics, Settings, ShardId};
use codec::QoS;
use driver::testing::Clock;
use policy::Access;

use crate::client::Draft;
use crate::disks::Disks;
use crate::node::Node;
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::{Options, World};
use links::Links;

/// From a cell to another.
pub(crate) type Way = (u16, u16);

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    /// Ends of one cell while others went on.
    pub ends: u64,
    /// Of them, those after which others heard that there was no owner.
    pub absences: u64,
    /// Absences so long that publishers were refused.
    pub long_absences: u64,
    /// New owners that others found when they connected, before they had heard that the one before
    /// was gone.
    pub found_by_links: u64,
    /// Frames of lives that were over.
    pub frames_late: u64,
    /// Ways on which nothing arrived for a while.
    pub ways_held: u64,
    /// Connections that were cut.
    pub cuts: u64,
    pub frames: u64,
    /// Publishers that were disconnected, as nobody knew what an owner had done.
    pub disconnected: u64,
}

impl Toll {
    /// The sum of both.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            ends: self.ends + other.ends,
            absences: self.absences + other.absences,
            long_absences: self.long_absences + other.long_absences,
            found_by_links: self.found_by_links + other.found_by_links,
            frames_late: self.frames_late + other.frames_late,
            ways_held: self.ways_held + other.ways_held,
            cuts: self.cuts + other.cuts,
            frames: self.frames + other.frames,
            disconnected: self.disconnected + other.disconnected,
        }
    }

    /// Each with its name.
    pub fn counts(&self) -> [(&'static str, u64); 9] {
        [
            ("ends", self.ends),
            ("absences", self.absences),
            ("long_absences", self.long_absences),
            ("found_by_links", self.found_by_links),
            ("frames_late", self.frames_late),
            ("ways_held", self.ways_held),
            ("cuts", self.cuts),
            ("frames", self.frames),
            ("disconnected", self.disconnected),
        ]
    }
}

/// What a cell hears of the owner of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The owner of this epoch is gone.
    Lost(u64),
    Owner(u64),
}

pub(crate) struct Cells {
    pub(crate) current: u16,
    /// None: it is the current one.
    others: Vec<Option<(Node, Disks)>>,
    epochs: Vec<u64>,
    gateways: BTreeMap<Way, Gateway>,
    links: Links,
    /// What cells have yet to hear.
    news: BTreeMap<Way, VecDeque<News>>,
    /// A cell without an owner, and until when.
    down: Option<(u16, u64)>,
    /// Nothing goes wrong any more.
    is_calm: bool,
    ends_percent: usize,
    /// Connections that are cut, of a thousand steps.
    cuts_per_mille: usize,
    flaw: Option<GatewayFlaw>,
    /// A planted bug: serials do not depend on the epoch.
    same_serials: bool,
    random: Random,
    pub(crate) toll: Toll,
}

/// The seed of the buckets of all cells.
const BUCKETS_SEED: u64 = 5;

impl Cells {
    /// The first cell is the current one, and made by the caller.
    pub(crate) fn new(
        homes: Homes,
        (settings, access, clock): (&Settings, &Access, &Rc<Clock>),
        sabotage: Option<Sabotage>,
        random: &mut Random,
        crowd: &mut Random,
    ) -> Self {
        let flaw = match sabotage {
            Some(Sabotage::Gateway(flaw)) => Some(flaw),
            _ => None,
        };
        let mut own = Random::new(random.next());
        let (count, shards) = (homes.cells(), homes.shards());
        let others = (0..count).map(|cell| {
            let life = (Homes::new(count, cell, shards), 1, BUCKETS_SEED);
            (cell > 0).then(|| {
                let node = Node::of_cell(settings, life, own.next(), access, clock);
                (node, Disks::new(shards, sabotage, random, crowd))
            })
        });
        let others = others.collect();
        let lanes = 1 + own.below(2) as u8;
        let cuts_per_mille = [0, 2, 20][own.below(3)];
        Self {
            current: 0,
            others,
            epochs: vec![1; count.into()],
            gateways: BTreeMap::new(),
            links: Links::new(lanes, sabotage),
            cuts_per_mille,
            news: BTreeMap::new(),
            down: None,
            is_calm: false,
            ends_percent: [20, 100, 100][own.below(3)],
            flaw,
            same_serials: sabotage == Some(Sabotage::SameSerials),
            random: own,
            toll: Toll::default(),
        }
    }

    /// What an owner of the current cell is made of.
    pub(crate) fn life(&self, homes: Homes) -> (Homes, u64, u64) {
        let epoch = if self.same_serials { 0 } else { self.epoch(self.current) };
        (homes, epoch, BUCKETS_SEED)
    }

    pub(crate) fn count(&self) -> u16 {
        self.others.len() as u16
    }

    fn all(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.count()
    }

    fn others_of(&self, cell: u16) -> impl Iterator<Item = u16> + use<> {
        self.all().filter(move |other| *other != cell)
    }

    fn epoch(&self, cell: u16) -> u64 {
        self.epochs[usize::from(cell)]
    }

    pub(crate) fn is_up(&self, cell: u16) -> bool {
        self.down.is_none_or(|(down, _)| down != cell)
    }

    /// Nobody waits for another cell, and nothing is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.down.is_none()
            && self.gateways.values().all(|gateway| gateway.waiting() == 0)
            && self.links.is_idle()
            && self.news.values().all(VecDeque::is_empty)
    }

    pub(crate) fn unrest(&self) -> String {
        let waiting = |(way, gateway): (&Way, &Gateway)| {
            (gateway.waiting() > 0).then(|| format!("{way:?}: {gateway:?}"))
        };
        self.gateways.iter().filter_map(waiting).collect::<Vec<_>>().join("; ")
    }

    /// Nodes of other cells than the current one.
    pub(crate) fn other_nodes(&self) -> impl Iterator<Item = &Node> {
        self.others.iter().flatten().map(|(node, _)| node)
    }
}

/// Of the topic, if the filter has no wildcard.
fn publisher_of(filter: &str) -> Option<u32> {
    let (publisher, number) = filter.strip_prefix("t/")?.split_once('/')?;
    number.parse::<u32>().ok()?;
    publisher.parse().ok()
}

/// The node of the first cell, and the others if there are any.
pub(crate) fn first_nodes(
    options: Options,
    shards: ShardId,
    parts: (&Settings, &Access, &Rc<Clock>),
    (random, crowd): (&mut Random, &mut Random),
) -> (Node, Option<Cells>) {
    let count = if options.cells { 2 + random.below(2) as u16 } else { 1 };
    let life = (Homes::new(count, 0, shards), u64::from(options.cells), BUCKETS_SEED);
    let (settings, access, clock) = parts;
    let node = Node::of_cell(settings, life, random.next(), access, clock);
    let cells = options.cells.then(|| Cells::new(life.0, parts, options.sabotage, random, crowd));
    (node, cells)
}

impl World {
    /// The world goes on with this cell.
    pub(crate) fn switch_to_cell(&mut self, cell: u16) {
        let Some(cells) = &mut self.cells else { return };
        let Some(disks) = self.disks.as_mut().filter(|_| cells.current != cell) else { return };
        let Some((mut node, mut other_disks)) = cells.others[usize::from(cell)].take() else {
            return;
        };
        std::mem::swap(&mut self.node, &mut node);
        std::mem::swap(disks, &mut other_disks);
        cells.others[usize::from(cells.current)] = Some((node, other_disks));
        cells.current = cell;
    }

    /// Any that has an owner.
    pub(crate) fn choose_cell(&mut self) -> bool {
        let Some(cells) = &mut self.cells else { return true };
        let up: Vec<u16> = cells.all().filter(|cell| cells.is_up(*cell)).collect();
        let cell = up[cells.random.below(up.len())];
        self.switch_to_cell(cell);
        true
    }

    /// Those of the current cell.
    pub(crate) fn clients_of_current(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|who| self.is_of_current(*who)).collect()
    }

    /// Until nothing moves in any cell and between them.
    pub(crate) fn let_all_move(&mut self) -> Result<(), String> {
        let mut moves = true;
        while moves {
            moves = false;
            for cell in self.cell_numbers() {
                self.switch_to_cell(cell);
                moves |= self.let_move()? && self.cells.is_some();
            }
            moves |= self.work_links()?;
        }
        Ok(())
    }

    /// Of all cells.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        let others = self.cells.iter().flat_map(Cells::other_nodes);
        std::iter::once(&self.node).chain(others)
    }

    /// Of all cells.
    pub(crate) fn total<T: Figure>(&self, figure: impl Fn(&Metrics) -> &T) -> u64 {
        self.nodes().map(|node| node.shared.total(&figure)).sum()
    }

    /// Who may publish on a topic does so as soon as somebody has subscribed to it: what follows a
    /// SUBACK finds the subscription, in whichever cell.
    pub(crate) fn greet(&mut self) -> Result<(), String> {
        for filter in std::mem::take(&mut self.oracle.fresh) {
            let Some(cells) = self.cells.as_mut().filter(|cells| !cells.is_calm) else { continue };
            if !cells.random.chance(50) {
                continue;
            }
            let (qos, retain, is_clear) = (QoS::AtLeastOnce, false, false);
            let (expiry_secs, padding) = (None, 0);
            let Some(number) = publisher_of(&filter) else { continue };
            let Some(who) = self.clients.iter().position(|client| client.number == number) else {
                continue;
            };
            let draft = Draft { topic: filter, qos, retain, is_clear, expiry_secs, padding };
            if self.clients[who].may_publish() {
                self.clients[who].publish(draft, &mut self.oracle);
                self.send_all(who);
                self.turn_all()?;
            }
        }
        Ok(())
    }

    /// That of a client.
    pub(crate) fn cell_of(&self, who: usize) -> u16 {
        self.node.shared.cell_of_client(&self.clients[who].id)
    }

    /// Whether the current cell has an owner.
    pub(crate) fn is_cell_up(&self) -> bool {
        self.cells.as_ref().is_none_or(|cells| cells.is_up(cells.current))
    }

    /// The cells of the world, one after the other.
    pub(crate) fn cell_numbers(&self) -> std::ops::Range<u16> {
        0..self.cells.as_ref().map_or(1, Cells::count)
    }

    /// Is the client one of the current cell?
    pub(crate) fn is_of_current(&self, who: usize) -> bool {
        self.cells.as_ref().is_none_or(|cells| cells.current == self.cell_of(who))
    }
}
