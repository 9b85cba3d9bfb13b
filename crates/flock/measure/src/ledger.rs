//! Integrity: who sent what, who received what, and what is missing.
//!
//! A **stream** is one publisher's messages on one topic; its messages are numbered 0, 1, 2, ... in
//! the payload. Each load thread keeps a [`Ledger`]: for its publishers what was sent on each
//! stream, for its subscribers a [`Track`] per stream. At the end all that was sent comes together
//! in a [`SentTable`], and every track is judged against it with [`judge`].
//!
//! A track is 48 bytes while nothing is amiss. Members of a shared group divide a stream among
//! them, so there the whole group has one bitmap per stream ([`SharedTrack`]), merged over threads
//! and agents. What is left of order there is that of each member's part of a stream.

mod marks;
mod repeats;
mod sent;
mod shared;
mod track;
mod verdict;
mod wills;

use codec::AckKind;
use hashbrown::HashMap;

pub use repeats::{Slot, slot};
pub use sent::{Published, Sent, SentTable, Unpromised};
pub use shared::{ShareKey, SharedTrack};
pub use track::{Receipt, Session, Track};
pub use verdict::{Heard, Verdict, Window, judge, judge_shared, judge_stored, settled_ns};
pub use wills::{Wills, WillsCame, judge_wills};

/// Number of a stream, unique in a run: the plan of the engine gives it out.
pub type StreamId = u32;

/// How a client came to hear a stream, found out at the first message and remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Plain {
        routed: bool,
        qos: Agreed,
    },
    Shared {
        key: ShareKey,
        routed: bool,
        qos: Agreed,
    },
    /// No subscription of the client's matches.
    Misrouted,
}

/// The QoS that deliveries may have: that of the publish, or that of the subscription if it is
/// lower. Where several subscriptions of a client match, each may bring a copy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub low: u8,
    pub high: u8,
}

impl Path {
    /// The same, where the broker granted no more than this.
    pub fn granted(mut self, granted: u8) -> Self {
        if let Self::Plain { qos, .. } | Self::Shared { qos, .. } = &mut self {
            *qos = Agreed { low: qos.low.min(granted), high: qos.high.min(granted) };
        }
        self
    }

    /// Whether a delivery may have this QoS. Where nobody asked, nothing was agreed.
    fn allows(self, found: u8) -> bool {
        match self {
            Self::Plain { qos, .. } | Self::Shared { qos, .. } => {
                (qos.low..=qos.high).contains(&found)
            }
            Self::Misrouted => true,
        }
    }
}

/// One thread's receipts.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By local client and stream.
    tracks: HashMap<(u32, StreamId), Entry>,
    pub shared: HashMap<(ShareKey, StreamId), SharedTrack>,
    /// By local client: the streams of which it got what the broker had retained, a bit each.
    stored: HashMap<u32, SharedTrack>,
    /// Their numbers, where they are not the first of their stream.
    stored_numbers: HashMap<(u32, StreamId), u32>,
    /// Retained messages that came again to who had asked once.
    pub repeated_stored: u64,
    pub lost_so_far: i64,
    pub duplicated_so_far: u64,
    pub misrouted: u64,
    /// Came with another QoS than was agreed.
    pub wrong_qos: u64,
    pub wrong_topic: u64,
    pub wrong_retain: u64,
    /// Marked DUP, and never sent before.
    pub wrong_dup: u64,
    pub repeated_pubacks: u64,
    pub repeated_pubrecs: u64,
    pub repeated_pubcomps: u64,
    pub repeated_pubrels: u64,
    /// Other properties than were published.
    pub wrong_properties: u64,
    /// Identifiers of subscriptions that do not match, or none.
    pub wrong_identifiers: u64,
    /// QoS 2 messages that came and were not released when their receiver left.
    pub unreleased: u64,
    /// Silent clients whose connection the broker kept.
    pub unnoticed: u64,
    /// Packets that no broker may send, or not then.
    pub breaches: u64,
    /// Sessions that the broker was to keep for a client, and had not when it came back.
    pub forgotten: u64,
    /// QoS 2 messages that were sent again on the connection on which they had come.
    pub repeated: u64,
    /// By subscriber and by client whose will it is, those that came live.
    pub wills: HashMap<(u32, u32), WillsCame>,
    /// Sent again on another connection, and not marked DUP.
    pub missing_dup: u64,
    /// QoS 2 messages of ours that the broker took, and whose exchange it did not end.
    pub uncompleted: u64,
    /// Not what was sent.
    pub damaged: u64,
    /// Came to a member of a shared group after a later message of the same stream.
    pub reordered_in_groups: u64,
    /// When connections of members of shared groups ended, by local client.
    pub ends: Vec<(u32, Slot)>,
}

#[derive(Debug)]
struct Entry {
    path: Path,
    /// Of a member of a shared group only `next` is kept.
    track: Track,
}

const _: () = assert!(size_of::<Entry>() <= 48);

/// A received message, as far as integrity goes.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub client: u32,
    pub stream: StreamId,
    pub sequence: u32,
    pub dup: bool,
    /// An earlier connection of the session may have had it.
    pub may_be_dup: bool,
    pub qos: u8,
    /// When it was due, and when it came.
    pub times_ns: (u64, u64),
    /// The client's session, for messages that come at QoS 0 and for the others.
    pub sessions: (Session, Session),
}

impl Ledger {
    /// Notes a receipt and tells by which path it came. `find` is asked once per client and stream.
    #[inline]
    pub fn receive(&mut self, message: Received, find: impl FnOnce() -> Path) -> Path {
        let entry = self
            .tracks
            .entry((message.client, message.stream))
            .or_insert_with(|| Entry { path: find(), track: Track::default() });
        let is_agreed = entry.path.allows(message.qos);
        self.wrong_qos += u64::from(!is_agreed);
        let receipt = match entry.path {
            Path::Plain { qos, .. } => {
                let (fleeting, kept) = message.sessions;
                let session = if qos.high == 0 { fleeting } else { kept };
                let receipt = entry.track.receive(message.sequence, message.dup, session);
                let is_first = !message.may_be_dup && receipt != Receipt::Duplicate;
                self.wrong_dup += u64::from(message.dup && is_first);
                receipt
            }
            Path::Shared { key, .. } => {
                let track = self.shared.entry((key, message.stream)).or_default();
                let slots = (slot(message.times_ns.0), slot(message.times_ns.1));
                let receipt = track.receive(message.sequence, message.dup, slots);
                // A repeat, and what another member gave back, come when they may.
                let is_new = receipt != Receipt::Duplicate && !message.dup;
                let is_late = message.sequence < entry.track.next;
                self.reordered_in_groups += u64::from(is_new && is_late);
                entry.track.next = entry.track.next.max(message.sequence.saturating_add(1));
                receipt
            }
            Path::Misrouted => {
                self.misrouted += 1;
                Receipt::InOrder
            }
        };
        match receipt {
            Receipt::InOrder => {}
            Receipt::Gap(missing) => self.lost_so_far += i64::from(missing),
            Receipt::Late => self.lost_so_far -= 1,
            Receipt::Duplicate => self.duplicated_so_far += 1,
        }
        entry.path
    }

    /// Counts what came from a broker's store, or as a will, for whoever did not ask for it, or at
    /// another QoS.
    pub fn check_agreed(&mut self, path: Path, qos: u8) {
        self.misrouted += u64::from(path == Path::Misrouted);
        self.wrong_qos += u64::from(!path.allows(qos));
    }

    /// An answer came for which there was nothing left to answer.
    pub fn count_repeated_ack(&mut self, kind: AckKind) {
        match kind {
            AckKind::Puback => self.repeated_pubacks += 1,
            AckKind::Pubrec => self.repeated_pubrecs += 1,
            AckKind::Pubcomp => self.repeated_pubcomps += 1,
            AckKind::Pubrel => self.repeated_pubrels += 1,
        }
    }

    /// A retained message came because the client subscribed. `may_repeat`: it did more than once.
    pub fn receive_stored(
        &mut self,
        client: u32,
        stream: StreamId,
        sequence: u32,
        may_repeat: bool,
    ) {
        let is_new = self.stored.entry(client).or_default().add(stream);
        self.repeated_stored += u64::from(!is_new && !may_repeat);
        if sequence > 0 {
            let latest = self.stored_numbers.entry((client, stream)).or_default();
            *latest = sequence.max(*latest);
        }
    }

    /// The number of the retained message that came of a stream.
    pub fn stored(&self, client: u32, stream: StreamId) -> Option<u32> {
        let has_come = self.stored.get(&client).is_some_and(|streams| streams.has(stream));
        let number = || self.stored_numbers.get(&(client, stream)).copied().unwrap_or(0);
        has_come.then(number)
    }

    /// The connection of a member of a shared group ended: others may get what was under way.
    pub fn note_end(&mut self, client: u32, now_ns: u64) {
        let end = (client, slot(now_ns));
        if self.ends.last() != Some(&end) {
            self.ends.push(end);
        }
    }

    pub fn track(&self, client: u32, stream: StreamId) -> Option<&Track> {
        self.tracks.get(&(client, stream)).map(|entry| &entry.track)
    }

    /// Pairs known, for the estimate of memory.
    pub fn len(&self) -> usize {
        self.tracks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }
}
