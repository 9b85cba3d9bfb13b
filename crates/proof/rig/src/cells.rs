//! Several cells, and the frames between them.
//!
//! A frame arrives when the test says so. A cell ends and has a new owner when the test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broker::cells::frame::Frame;
use broker::cells::gateway::{Gateway, Outgoing};
use broker::{Homes, Settings, ShardId, Shared};
use policy::Access;
use storage::testing::Crash;

use crate::Lab;

/// All cells of a cluster, each with an owner or none.
pub struct Cells {
    pub labs: Vec<Lab>,
    /// How often each had a new owner.
    epochs: Vec<u64>,
    /// Cells without an owner.
    gone: BTreeSet<u16>,
    /// Of each cell, for each other.
    gateways: BTreeMap<Way, Gateway>,
    /// Frames under way, in their order.
    pub frames: BTreeMap<Way, VecDeque<Frame>>,
    /// Where nothing arrives.
    held: BTreeSet<Way>,
    /// Is done to each gateway of a new owner.
    prepares: Box<dyn Fn(&mut Gateway)>,
    /// A planted fault: serials do not depend on the epoch.
    pub same_serials: bool,
    pub now_ms: u64,
}

/// From a cell to another.
pub type Way = (u16, u16);

impl Cells {
    /// With journals on simulated disks.
    pub fn new(cells: u16, shards: ShardId) -> Self {
        Self::of(cells, shards, &Settings::default())
    }

    pub fn of(cells: u16, shards: ShardId, settings: &Settings) -> Self {
        let labs = (0..cells).map(|cell| {
            let homes = Homes::new(cells, cell, shards);
            let shared = Shared::of_cell(settings.clone(), homes, 1, SEED);
            let mut lab = Lab::of(shared, Access::open());
            lab.add_disks(crate::journal_settings());
            lab.open_journals();
            lab
        });
        let labs: Vec<Lab> = labs.collect();
        let now_ms = labs[0].now_ms;
        let mut own = Self {
            labs,
            epochs: vec![1; cells.into()],
            gone: BTreeSet::new(),
            gateways: BTreeMap::new(),
            frames: BTreeMap::new(),
            held: BTreeSet::new(),
            prepares: Box::new(|_| {}),
            same_serials: false,
            now_ms,
        };
        (0..cells).for_each(|cell| own.open(cell));
        own.settle();
        own
    }

    fn others(&self, cell: u16) -> impl Iterator<Item = u16> + use<> {
        (0..self.labs.len() as u16).filter(move |other| *other != cell)
    }

    /// The gateways of a cell, and the news of its owner for those of others.
    fn open(&mut self, cell: u16) {
        for other in self.others(cell) {
            let shared = self.labs[usize::from(cell)].shared.clone();
            let place = shared.homes.place_of_cell(other);
            let mut gateway = Gateway::new(shared, place);
            (self.prepares)(&mut gateway);
            self.gateways.insert((cell, other), gateway);
            for (one, peer) in [(cell, other), (other, cell)] {
                if self.gone.contains(&peer) || self.gone.contains(&one) {
                    continue;
                }
                let epoch = self.epochs[usize::from(peer)];
                self.with((one, peer), |gateway, out| gateway.peer_changed(epoch, out));
            }
        }
    }

    /// What a gateway does goes on its way.
    fn with(&mut self, way: Way, does: impl FnOnce(&mut Gateway, &mut Outgoing)) {
        let mut out = Outgoing::default();
        let Some(gateway) = self.gateways.get_mut(&way) else { return };
        does(gateway, &mut out);
        let Outgoing { frames, mail } = out;
        self.frames.entry(way).or_default().extend(frames.into_iter().map(|(_, frame)| frame));
        let lab = &mut self.labs[usize::from(way.0)];
        for (shard, mail) in mail {
            lab.shards[usize::from(shard)].on_mail(mail, self.now_ms);
        }
        lab.collect_closes();
    }

    /// Does this to all gateways, and to those of new owners before they do anything.
    pub fn prepare(&mut self, does: impl Fn(&mut Gateway) + 'static) {
        self.gateways.values_mut().for_each(&does);
        self.prepares = Box::new(does);
    }

    /// Nothing arrives on this way until [`Cells::release`].
    pub fn hold(&mut self, way: Way) {
        self.held.insert(way);
    }

    pub fn release(&mut self, way: Way) {
        self.held.remove(&way);
        self.settle();
    }

    /// The owner of a cell is gone, with its memory, and so are the frames from and to it.
    pub fn lose(&mut self, cell: u16) {
        self.gone.insert(cell);
        self.frames.retain(|(from, to), _| *from != cell && *to != cell);
        self.gateways.retain(|(own, _), _| *own != cell);
        for other in self.others(cell) {
            let epoch = self.epochs[usize::from(cell)];
            self.with((other, cell), |gateway, out| gateway.peer_lost(epoch, out));
        }
    }

    /// A cell has a new owner, with what the disks have. `was_noticed`: others have heard that
    /// there was none for a while.
    pub fn take_over(&mut self, cell: u16, was_noticed: bool) {
        if was_noticed {
            self.lose(cell);
            self.settle();
        }
        self.gone.remove(&cell);
        self.frames.retain(|(from, to), _| *from != cell && *to != cell);
        let own = usize::from(cell);
        self.epochs[own] += 1;
        self.labs[own].now_ms = self.now_ms;
        let epoch = if self.same_serials { 1 } else { self.epochs[own] };
        self.labs[own].crash_as(Crash::Kill, epoch);
        self.open(cell);
    }

    /// The lease of a cell had run out, and its owner goes on.
    pub fn lapse(&mut self, cell: u16) {
        for other in self.others(cell) {
            self.with((cell, other), |gateway, out| gateway.on_lapse(out));
        }
    }

    /// Until nobody has anything to say, but where nothing arrives.
    ///
    /// # Panics
    ///
    /// When cells write to each other without an end.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if !self.go_round() {
                return;
            }
        }
        panic!("frames go round in circles");
    }

    /// All cells do what they can, and frames arrive that may. False: nobody had anything to say.
    pub fn go_round(&mut self) -> bool {
        let mut any = false;
        for cell in 0..self.labs.len() as u16 {
            if !self.gone.contains(&cell) {
                self.labs[usize::from(cell)].settle();
                any |= self.collect_mail(cell);
            }
        }
        self.deliver() || any
    }

    /// Mail of a cell for others goes to its gateways, which may answer. False: there was none.
    fn collect_mail(&mut self, cell: u16) -> bool {
        let (now_ms, mut any) = (self.now_ms, false);
        for shard in 0..self.labs[usize::from(cell)].shards.len() {
            for other in self.others(cell) {
                let lab = &mut self.labs[usize::from(cell)];
                let place = lab.shared.homes.place_of_cell(other);
                let mails = lab.shards[shard].effects_mut().take_batch(place);
                for mail in mails {
                    any = true;
                    self.with((cell, other), |gateway, out| {
                        gateway.on_mail(shard as ShardId, mail, now_ms, out);
                    });
                }
            }
        }
        any
    }

    /// All frames arrive that may. False: there were none.
    pub fn deliver(&mut self) -> bool {
        let ways: Vec<Way> =
            self.frames.keys().filter(|way| !self.held.contains(way)).copied().collect();
        let mut any = false;
        for way @ (from, to) in ways {
            for frame in self.frames.remove(&way).unwrap_or_default() {
                any = true;
                let place = self.labs[usize::from(to)].shared.homes.place_of_cell(from);
                let arrived = frame.arrived(place);
                self.with((to, from), |gateway, out| {
                    gateway.on_frame(arrived, out).expect("a frame of a gateway");
                });
            }
        }
        any
    }

    /// Time passes, second by second.
    pub fn pass_secs(&mut self, secs: u64) {
        for _ in 0..secs {
            self.now_ms += 1000;
            for cell in 0..self.labs.len() as u16 {
                if !self.gone.contains(&cell) {
                    self.labs[usize::from(cell)].pass_secs(1);
                }
            }
            let (ways, now_ms): (Vec<Way>, _) =
                (self.gateways.keys().copied().collect(), self.now_ms);
            for way in ways {
                self.with(way, |gateway, out| gateway.on_tick(now_ms, out));
            }
            self.settle();
        }
    }

    /// Questions between cells that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.gateways.values().map(Gateway::waiting).sum()
    }

    pub fn gateway(&mut self, way: Way) -> &mut Gateway {
        self.gateways.get_mut(&way).expect("a cell with an owner")
    }

    /// A client id that has its home in a cell.
    pub fn id_in(&self, cell: u16, name: &str) -> String {
        let shared = &self.labs[usize::from(cell)].shared;
        (0..10_000)
            .map(|number| format!("{name}-{number}"))
            .find(|id| shared.cell_of_client(id) == cell)
            .expect("some name hashes to the cell")
    }

    /// A topic whose retained message has its home in a cell.
    pub fn topic_in(&self, cell: u16, name: &str) -> String {
        let shared = &self.labs[usize::from(cell)].shared;
        (0..10_000)
            .map(|number| format!("{name}/{number}"))
            .find(|topic| shared.place_of_topic(broker::Name::first(topic)) < shared.homes.shards())
            .expect("some topic hashes to the cell")
    }
}

/// Of all cells.
const SEED: u64 = 7;

const ROUNDS_MAX: usize = 10_000;
