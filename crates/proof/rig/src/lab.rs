//! Shards, and the mail, time and writes between them.
//!
//! Mail is delivered when the test says so, time passes when the test says so, and a client reads
//! only when it is asked to.

use std::collections::HashMap;
use std::sync::Arc;

use broker::{
    Event, Figure, Homes, Mail, Metrics, Name, Reauthenticate, Scope, Settings, Shard, Shared,
};
use codec::Version;
use policy::Access;
use storage::testing::SimDisk;

use crate::journals::journal_settings;

/// A broker without threads and sockets, and the clients of it.
pub struct Lab {
    pub shards: Vec<Shard>,
    pub shared: Arc<Shared>,
    pub now_ms: u64,
    pub(crate) peers: HashMap<Conn, Peer>,
    pub(crate) next_conn: Conn,
    pub events: Vec<Event>,
    pub pauses: Vec<(Conn, u64)>,
    /// Whose pause is over.
    due: Vec<Conn>,
    pub asked: Vec<Reauthenticate>,
    pub journal_settings: storage::Settings,
    /// One per shard, if the laboratory has journals.
    pub disks: Vec<SimDisk>,
    /// The disks do nothing, whatever they are told.
    pub disks_stand_still: bool,
    /// Each answer to a publish, and each page of retained messages, comes several times.
    pub repeats_answers: bool,
}

/// A connection of the laboratory.
pub type Conn = u64;

impl Lab {
    pub fn new(shard_count: u16) -> Self {
        Self::with(shard_count, Settings::default(), Access::open())
    }

    pub fn with(shard_count: u16, settings: Settings, access: Access) -> Self {
        Self::of(Shared::new(settings, Homes::of_one_cell(shard_count), 7), access)
    }

    /// The shards of a cell.
    pub fn of(shared: Arc<Shared>, access: Access) -> Self {
        let shard_count = shared.homes.shards();
        open_scopes(&shared);
        let shards =
            (0..shard_count).map(|id| Shard::new(id, shared.clone(), access.clone())).collect();
        Self {
            shards,
            shared,
            now_ms: BEGIN_MS,
            peers: HashMap::new(),
            next_conn: 0,
            events: Vec::new(),
            pauses: Vec::new(),
            due: Vec::new(),
            asked: Vec::new(),
            journal_settings: journal_settings(),
            disks: Vec::new(),
            disks_stand_still: false,
            repeats_answers: false,
        }
    }

    pub fn total<T: Figure>(&self, figure: impl Fn(&Metrics) -> &T) -> u64 {
        self.shared.total(figure)
    }

    /// A client id that lives on a shard.
    pub fn id_on(&self, shard: u16, name: &str) -> String {
        id_on(&self.shared, shard, name)
    }

    /// A topic whose retained message lives on a shard.
    pub fn topic_on(&self, shard: u16, name: &str) -> String {
        (0..10_000)
            .map(|number| format!("{name}/{number}"))
            .find(|topic| self.shared.place_of_topic(Name::first(topic)) == shard)
            .expect("some topic hashes to the shard")
    }

    /// Until nobody has anything to say: mail and sockets.
    ///
    /// # Panics
    ///
    /// When shards write to each other without an end.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.flush();
            let has_read_on = self.read_on();
            if !self.deliver_mail() && !has_read_on {
                self.flush();
                let did_work = !self.disks.is_empty() && self.work_disks();
                if !did_work && self.due.is_empty() && !self.shards.iter().any(has_mail) {
                    return;
                }
            }
        }
        panic!("mail goes round in circles");
    }

    /// Until nobody has anything to say but to one shard, which hears nothing.
    pub fn settle_but(&mut self, deaf: u16) {
        for _ in 0..ROUNDS_MAX {
            let has_delivered = self.deliver_mail_but(Some(deaf));
            self.flush();
            if !self.work_disks() && !has_delivered {
                return;
            }
        }
        panic!("mail goes round in circles");
    }

    /// Mail until there is none, but sockets take nothing.
    pub fn settle_mail(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if !self.deliver_mail() {
                self.collect_closes();
                return;
            }
        }
        panic!("mail goes round in circles");
    }

    /// Delivers one batch of mail from each shard to each other; false if there was none.
    pub fn deliver_mail(&mut self) -> bool {
        self.deliver_mail_but(None)
    }

    /// The same, but to one shard that hears nothing.
    fn deliver_mail_but(&mut self, deaf: Option<u16>) -> bool {
        let (mut batches, shard_count) = (Vec::new(), self.shards.len());
        for shard in &mut self.shards {
            for (to, mail) in shard.effects_mut().mail.iter_mut().enumerate() {
                // Mail for other cells waits for who carries it.
                if !mail.is_empty() && deaf != Some(to as u16) && to < shard_count {
                    batches.push((to, std::mem::take(mail)));
                }
            }
        }
        let any = !batches.is_empty();
        for (to, mail) in batches {
            for item in mail {
                let is_answer = matches!(item, Mail::Confirmed { .. } | Mail::Retained { .. });
                let repeats = if self.repeats_answers && is_answer { 3 } else { 0 };
                for again in std::iter::repeat_n(item.clone(), repeats) {
                    self.shards[to].on_mail(again, self.now_ms);
                }
                self.shards[to].on_mail(item, self.now_ms);
            }
        }
        any
    }

    /// Reads those on whose pause is over; false if there is nobody.
    pub fn read_on(&mut self) -> bool {
        let due = std::mem::take(&mut self.due);
        for conn in &due {
            let Some(peer) = self.peers.get(conn).filter(|peer| !peer.is_closed) else { continue };
            self.shards[peer.shard].on_bytes(peer.slot, *conn, &[], self.now_ms);
        }
        let mut any = !due.is_empty();
        for shard in &mut self.shards {
            any |= shard.read_line_on(self.now_ms);
        }
        self.collect_closes();
        any
    }

    /// Is a connection to be read, by the latest of [`Lab::pauses`]?
    pub fn is_read(&self, conn: Conn) -> bool {
        let latest = self.pauses.iter().rev().find(|(paused, _)| *paused == conn);
        latest.is_none_or(|(_, until_ms)| *until_ms <= self.now_ms)
    }

    /// Writes the outboxes of connections, as far as sockets take everything; the turn is over.
    pub fn flush(&mut self) {
        for shard in 0..self.shards.len() {
            while let Some((slot, conn)) = self.shards[shard].take_dirty() {
                self.write(shard, slot, conn, usize::MAX);
            }
            self.shards[shard].end_turn();
        }
        self.collect_closes();
    }

    /// Writes at most so many bytes to one connection.
    pub fn write_some(&mut self, conn: Conn, bytes_max: usize) {
        let (shard, slot) = self.place(conn);
        self.write(shard, slot, conn, bytes_max);
    }

    fn write(&mut self, shard: usize, slot: u32, conn: Conn, bytes_max: usize) {
        let Some(outbox) = self.shards[shard].outbox(slot, conn) else { return };
        let mut bytes: Vec<u8> = outbox.slices().flatten().copied().collect();
        bytes.truncate(bytes_max);
        self.shards[shard].on_written(slot, conn, bytes.len(), self.now_ms);
        self.peers.get_mut(&conn).expect("a known connection").unread.extend(bytes);
    }

    pub fn collect_closes(&mut self) {
        for shard in &mut self.shards {
            for close in shard.effects_mut().closes.drain(..) {
                let Some(peer) = self.peers.get_mut(&close.connection) else { continue };
                peer.unread.extend(close.farewell.slices().flatten());
                peer.is_closed = true;
            }
            self.events.extend(shard.effects_mut().events.drain(..).map(|(_, event)| event));
            let pauses = &mut shard.effects_mut().pauses;
            let is_due = |(_, until_ms): &&(Conn, u64)| *until_ms <= self.now_ms;
            self.due.extend(pauses.iter().filter(is_due).map(|(conn, _)| *conn));
            self.pauses.append(pauses);
            self.asked.append(&mut shard.effects_mut().reauthentications);
        }
    }

    /// Time passes, second by second.
    pub fn pass_secs(&mut self, secs: u64) {
        for _ in 0..secs {
            self.now_ms += 1000;
            for shard in &mut self.shards {
                shard.on_tick(self.now_ms);
            }
            self.settle();
        }
    }

    pub fn place(&self, conn: Conn) -> (usize, u32) {
        let peer = &self.peers[&conn];
        (peer.shard, peer.slot)
    }
}

/// A client id that lives on a shard.
pub fn id_on(shared: &Shared, shard: u16, name: &str) -> String {
    (0..10_000)
        .map(|number| format!("{name}-{number}"))
        .find(|id| shared.place_of_client(Name::first(id)) == shard)
        .expect("some name hashes to the shard")
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) shard: usize,
    pub(crate) slot: u32,
    pub(crate) version: Version,
    /// Bytes that were written to it and that it has not decoded.
    pub(crate) unread: Vec<u8>,
    pub(crate) is_closed: bool,
}

pub(crate) fn open_scopes(shared: &Shared) {
    for scope in SCOPES {
        shared.spaces.open(scope);
    }
}

/// For shards of its own cell.
fn has_mail(shard: &Shard) -> bool {
    let shards = usize::from(shard.shared().homes.shards());
    shard.effects().mail.iter().take(shards).any(|mail| !mail.is_empty())
}

/// When the time of a laboratory begins.
pub const BEGIN_MS: u64 = 1_000_000_000;

/// Scopes that every laboratory has, in addition to the first.
pub const SCOPES: [Scope; 2] = [Scope::new(1), Scope::new(300)];

/// Rounds of mail after which shards that still write to each other are taken to go in circles.
const ROUNDS_MAX: usize = 10_000;
