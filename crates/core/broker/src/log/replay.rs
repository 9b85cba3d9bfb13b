//! From the records of a journal to what holds at its end.
//!
//! Facts are taken in the order of the journal; a later one about the same thing replaces the
//! earlier. Because reclaiming copies old facts to the end, the facts of one session may come in
//! any order: what has no owner is only dropped when all have been read.
//!
//! A standby reads on while the journal grows, for months. What it keeps then is what it would have
//! read from the segments that are left ([`Replay::forget_before`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;

use foldhash::fast::FixedState;
use session::{Message, NEVER, Will};
use storage::{Ledger, Position, Record, weight};

use crate::log::facts::{
    Fact, GroupOpened, InFlight, Origin, Purpose, Sent, SessionOpened, Stage, StoredMessage,
    StoredWill, Streamed, Subscribed,
};
use crate::log::messages::CURSOR_SHARE;
use crate::log::messages::message_of;
use crate::log::stream_facts::StreamFacts;
use crate::log::texts::Texts;
use crate::words::queue_number::{QueueId, QueueNumber};
use crate::words::record_location::RecordLocation;
use crate::words::record_location::Shares;
use crate::words::record_location::release;
use crate::{Name, Scope};

/// What recovery read, collected until the shard can be rebuilt from it.
///
/// It is bounded by the journal: a fact of a segment that was given back is forgotten. For each
/// message in the journal, needed or not, it holds about 80 bytes, and each topic once; for each
/// session, group and retained message what the journal says of it. Only the numbers of namespaces
/// that ever had data stay, 4 bytes each.
#[derive(Debug, Default)]
pub struct Replay {
    /// Boxed, because half of a tree's places may be empty.
    pub(super) sessions: BTreeMap<QueueNumber, Box<SessionFacts>>,
    pub(super) groups: BTreeMap<QueueNumber, GroupFacts>,
    /// By serial.
    pub(super) messages: BTreeMap<u64, MessageFacts>,
    /// The serials of messages by the segment that they were read from.
    pub(super) by_segment: VecDeque<(u32, Vec<u64>)>,
    /// The topics of messages, and the names of their owners, each once.
    pub(super) texts: Texts,
    hasher: FixedState,
    pub(super) retained: HashMap<Box<str>, RetainedFacts, FixedState>,
    pub(super) progress: HashMap<QueueId, ProgressFacts, FixedState>,
    /// Serials that this shard took on, of whose session, and whether they are wills.
    pub(super) taken: BTreeMap<u64, (Option<QueueNumber>, bool)>,
    pub(super) seen: HashMap<u16, u64, FixedState>,
    pub(super) last_queue: Option<QueueNumber>,
    pub(super) last_serial: u64,
    pub(super) streams: StreamFacts,
    /// The newest time in the journal, in milliseconds since the Unix epoch.
    newest_ms: u64,
    /// That any record speaks of.
    scopes: BTreeSet<Scope>,
    pub(super) unreadable: Option<Unreadable>,
    /// Facts of segments before it are forgotten.
    pub(super) oldest: u32,
}

/// A record with a right checksum that says nothing this program understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub(crate) at: Position,
    pub(crate) why: Box<str>,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, why } = self;
        write!(
            f,
            "the record at {at} cannot be read: {why}; start the version of the program that \
             wrote it, or restore a backup (`quelea log dump` shows the record)"
        )
    }
}

impl std::error::Error for Unreadable {}

/// What was rebuilt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub sessions: u64,
    pub subscriptions: u64,
    pub retained: u64,
    /// Messages that are assigned to a session or group.
    pub messages: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SessionFacts {
    pub(crate) opened: Option<Opened>,
    pub(super) detached: Option<(u64, u32, RecordLocation)>,
    pub(crate) subscriptions: Subscriptions,
    pub(super) rare: Option<Box<RareFacts>>,
}

/// What only few sessions have.
#[derive(Debug, Default)]
pub(crate) struct RareFacts {
    pub(super) will: Option<(Box<Will>, RecordLocation)>,
    /// By packet id.
    pub(super) received: BTreeMap<u16, ReceivedFacts>,
    /// By packet id.
    pub(super) in_flight: BTreeMap<u16, (Sent, RecordLocation)>,
    pub(super) formerly: FormerFacts,
}

/// Of earlier versions, by filter and serial: options and place.
pub(crate) type FormerFacts = BTreeMap<(Box<str>, u64), (u8, RecordLocation)>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedFacts {
    pub(super) serial: u64,
    /// If it is not that of the message.
    pub(super) place: RecordLocation,
    pub(super) is_undone: bool,
}

/// The subscriptions of a session by filter. Most have one, which needs no tree.
#[derive(Debug, Default)]
pub(crate) enum Subscriptions {
    #[default]
    None,
    One(Box<str>, SubscribedFacts),
    Many(BTreeMap<Box<str>, SubscribedFacts>),
}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) opened_at_ms: u64,
    pub(crate) expiry_secs: u32,
    pub(crate) client_id: Box<str>,
    pub(crate) username: Box<str>,
    pub(crate) place: RecordLocation,
}

#[derive(Debug)]
pub(crate) struct SubscribedFacts {
    pub(crate) options: u8,
    pub(crate) identifier: u32,
    pub(crate) from_serial: u64,
    pub(crate) place: RecordLocation,
}

#[derive(Debug)]
pub(crate) struct GroupFacts {
    pub(super) from_serial: u64,
    pub(crate) name: Box<str>,
    pub(crate) filter: Box<str>,
    pub(super) place: RecordLocation,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageFacts {
    pub(super) place: RecordLocation,
    pub(super) expires_at_ms: u64,
    pub(super) queue: Option<QueueNumber>,
    pub(super) topic: u32,
    pub(super) owner: Option<u32>,
    /// No session wants it.
    pub(super) is_of_streams: bool,
}

#[derive(Debug)]
pub(crate) struct RetainedFacts {
    pub(crate) message: Message,
    pub(crate) place: RecordLocation,
    pub(crate) owner: Option<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct ProgressFacts {
    pub(crate) floor: u64,
    pub(super) above: Vec<(u64, u64)>,
    pub(super) place: RecordLocation,
}

impl Replay {
    /// `seed`: a number that clients cannot guess, for tables of what they have named.
    pub fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        let retained = HashMap::with_hasher(hasher.clone());
        let texts = Texts::new(hasher.clone());
        Self { hasher, retained, texts, ..Self::default() }
    }

    /// Takes the next record of the journal, in order.
    pub fn on_record(&mut self, record: Record<'_>, ledger: &mut Ledger) {
        if let Some(oldest) = ledger.oldest() {
            self.forget_before(oldest);
        }
        let place = RecordLocation::new(record.position, weight(record.bytes.len()) as u32);
        match Fact::decode(record.kind.get(), record.bytes) {
            Ok(fact) => self.on_fact(&fact, place, ledger),
            Err(malformed) => {
                let (at, why) = (record.position, malformed.to_string().into());
                self.unreadable.get_or_insert(Unreadable { at, why });
            }
        }
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn take_sessions(
        &mut self,
    ) -> impl Iterator<Item = (QueueNumber, SessionFacts)> + use<> {
        std::mem::take(&mut self.sessions).into_iter().map(|(queue, facts)| (queue, *facts))
    }

    pub(crate) fn take_groups(&mut self) -> BTreeMap<QueueNumber, GroupFacts> {
        std::mem::take(&mut self.groups)
    }

    pub(crate) fn take_messages(&mut self) -> BTreeMap<u64, MessageFacts> {
        std::mem::take(&mut self.messages)
    }

    pub(crate) fn take_retained(&mut self) -> impl Iterator<Item = RetainedFacts> + use<> {
        std::mem::take(&mut self.retained).into_values()
    }

    pub(crate) fn take_progress(&mut self, queue: QueueId) -> ProgressFacts {
        self.progress.remove(&queue).unwrap_or_default()
    }

    /// A topic, or the name of an owner.
    pub(crate) fn text(&self, number: u32) -> &str {
        self.texts.get(number)
    }

    /// The numbers of all are below.
    pub(crate) fn text_count(&self) -> usize {
        self.texts.len()
    }

    /// The first record that could not be read.
    pub(super) fn check(&mut self) -> Result<(), Unreadable> {
        self.unreadable.take().map_or(Ok(()), Err)
    }

    /// Drops what was said of sessions that were never opened, or have ended.
    pub(super) fn drop_unopened(&mut self, ledger: &mut Ledger) {
        let progress = &mut self.progress;
        self.sessions.retain(|queue, facts| {
            if facts.opened.is_none() {
                std::mem::take(&mut **facts).release(ledger);
                release(
                    ledger,
                    progress.remove(&QueueId::Owned(*queue)).map(|progress| progress.place),
                );
                return false;
            }
            true
        });
    }

    /// Of several sessions of one client id the last opened is the one: the end of the others found
    /// no room in the journal. Returns those that have to be ended.
    pub(super) fn drop_namesakes(&mut self, ledger: &mut Ledger) -> Vec<QueueNumber> {
        let mut newest: HashMap<Box<str>, QueueNumber, FixedState> =
            HashMap::with_hasher(self.hasher.clone());
        let mut namesakes = Vec::new();
        for (queue, facts) in &self.sessions {
            if let Some(opened) = &facts.opened {
                namesakes.extend(newest.insert(opened.client_id.clone(), *queue));
            }
        }
        for queue in &namesakes {
            if let Some(facts) = self.sessions.remove(queue) {
                facts.release(ledger);
            }
            release(
                ledger,
                self.progress.remove(&QueueId::Owned(*queue)).map(|progress| progress.place),
            );
        }
        namesakes
    }

    /// Of several queues of one group the last opened is the one: the end of the others found no
    /// room in the journal. Returns those that have to be closed.
    pub(super) fn drop_group_namesakes(&mut self, ledger: &mut Ledger) -> Vec<QueueNumber> {
        let mut newest = HashMap::with_hasher(self.hasher.clone());
        let name = |facts: &GroupFacts| (facts.name.clone(), facts.filter.clone());
        let groups = self.groups.iter();
        let namesakes: Vec<QueueNumber> =
            groups.filter_map(|(queue, facts)| newest.insert(name(facts), *queue)).collect();
        for queue in &namesakes {
            let progress = self.progress.remove(&QueueId::Owned(*queue));
            release(ledger, self.groups.remove(queue).map(|facts| facts.place));
            release(ledger, progress.map(|progress| progress.place));
        }
        namesakes
    }

    /// The newest time in a record, in milliseconds since the Unix epoch: a clock that is
    /// behind it was set back.
    pub fn newest_ms(&self) -> u64 {
        self.newest_ms
    }

    /// The scopes that it has data of.
    pub fn scopes(&self) -> &BTreeSet<Scope> {
        &self.scopes
    }

    fn note_scope(&mut self, key: &str) {
        let scope = Name::of_key(key).scope();
        if !scope.is_first() {
            self.scopes.insert(scope);
        }
    }

    fn on_fact(&mut self, fact: &Fact<'_>, place: RecordLocation, ledger: &mut Ledger) {
        match *fact {
            Fact::SessionOpened(opened) => self.on_opened(opened, place, ledger),
            Fact::SessionDetached { session, at_ms, expiry_secs } => {
                self.newest_ms = self.newest_ms.max(at_ms);
                let facts = self.session(session);
                let detached = (at_ms, expiry_secs, place);
                release(ledger, facts.detached.replace(detached).map(|(_, _, place)| place));
            }
            Fact::Subscribed(subscribed) => self.on_subscribed(subscribed, place, ledger),
            Fact::Formerly(formerly) => self.on_formerly(formerly, place, ledger),
            Fact::Message(message) => self.on_message(message, place, false, ledger),
            Fact::Taken { session, packet_id, message } => {
                self.on_message(message, place, false, ledger);
                self.on_taken(session, packet_id, message.serial, ledger);
            }
            Fact::WillTaken { session, message } => {
                self.on_message(message, place, false, ledger);
                self.on_will_taken(session, message.serial, ledger);
            }
            Fact::Streamed(streamed) => self.on_streamed(&streamed, place, ledger),
            Fact::Archived(archived) => self.streams.on_archived(archived, place, ledger),
            Fact::Cursor { consumer, cursor } => {
                self.streams.on_cursor(consumer, cursor, place, ledger);
            }
            Fact::Received { session, packet_id, serial }
            | Fact::Undone { session, packet_id, serial } => {
                let is_undone = matches!(fact, Fact::Undone { .. });
                let received = ReceivedFacts { serial, place, is_undone };
                self.on_received(session, packet_id, received, ledger);
            }
            Fact::Retained(message) => {
                self.note_origin(message.origin);
                self.note_scope(message.topic);
                let owner = self.owner_number(message.owner);
                let kept = RetainedFacts { message: message_of(&message), place, owner };
                let old = self.retained.insert(message.topic.into(), kept);
                self.drop_retained(old, ledger);
            }
            Fact::Will(will) => self.on_will(will, place, ledger),
            Fact::GroupOpened(group) => self.on_group(group, place, ledger),
            Fact::Progress(progress) => {
                let mut shares = Shares::new(place, progress.iter().count());
                for entry in progress.iter() {
                    let above: Vec<(u64, u64)> = entry.above.iter().collect();
                    if let QueueId::Owned(queue) = entry.queue {
                        self.note_queue(queue);
                    }
                    if !matches!(entry.queue, QueueId::Seen(_)) {
                        let last = above.last().map_or(entry.floor, |(_, through)| *through);
                        self.last_serial = self.last_serial.max(last);
                    }
                    let facts = ProgressFacts { floor: entry.floor, above, place: shares.next() };
                    let old = self.progress.insert(entry.queue, facts);
                    release(ledger, old.map(|old| old.place));
                }
            }
            Fact::InFlight(in_flight) => self.on_in_flight(in_flight, place, ledger),
            // Each fact has a name here: one that is forgotten does not compile.
            Fact::SessionEnded { .. }
            | Fact::Unsubscribed { .. }
            | Fact::Released { .. }
            | Fact::RetainedCleared { .. }
            | Fact::WillCleared { .. }
            | Fact::GroupClosed { .. } => {
                self.on_deletion(fact, ledger);
                release(ledger, Some(place));
            }
        }
    }

    fn on_taken(&mut self, session: QueueNumber, packet_id: u16, serial: u64, ledger: &mut Ledger) {
        self.taken.insert(serial, (Some(session), false));
        let (place, is_undone) = (RecordLocation::default(), false);
        let received = ReceivedFacts { serial, place, is_undone };
        self.on_received(session, packet_id, received, ledger);
    }

    fn on_will_taken(&mut self, session: Option<QueueNumber>, serial: u64, ledger: &mut Ledger) {
        self.taken.insert(serial, (session, true));
        if let Some(session) = session {
            self.clear_will(session, ledger);
        }
    }

    fn on_streamed(
        &mut self,
        streamed: &Streamed<'_>,
        mut place: RecordLocation,
        ledger: &mut Ledger,
    ) {
        let Some(message) = streamed.message() else { return };
        if let Purpose::DeadLetter { consumer, cursor } = streamed.purpose {
            let share = RecordLocation::new(place.position(), CURSOR_SHARE);
            place.bytes -= CURSOR_SHARE;
            self.streams.on_cursor(consumer, cursor, share, ledger);
        }
        let is_of_streams =
            matches!(streamed.purpose, Purpose::Streams | Purpose::DeadLetter { .. });
        self.on_message(message, place, is_of_streams, ledger);
        match streamed.purpose {
            Purpose::Taken { session, packet_id } => {
                self.on_taken(session, packet_id, message.serial, ledger);
            }
            Purpose::WillTaken { session } => self.on_will_taken(session, message.serial, ledger),
            Purpose::Streams | Purpose::Message | Purpose::DeadLetter { .. } => {}
        }
        self.streams.on_streamed(streamed, place);
    }

    fn on_in_flight(
        &mut self,
        in_flight: InFlight<'_>,
        place: RecordLocation,
        ledger: &mut Ledger,
    ) {
        let mut shares = Shares::new(place, in_flight.iter().count());
        for sent in in_flight.iter() {
            self.last_serial = self.last_serial.max(sent.serial);
            let (facts, share) = (self.session(sent.session).rare(), shares.next());
            let old = match sent.stage {
                Stage::Over => {
                    release(ledger, Some(share));
                    facts.in_flight.remove(&sent.packet_id)
                }
                _ => facts.in_flight.insert(sent.packet_id, (sent, share)),
            };
            release(ledger, old.map(|(_, place)| place));
        }
    }

    fn on_deletion(&mut self, fact: &Fact<'_>, ledger: &mut Ledger) {
        match *fact {
            Fact::SessionEnded { session } => {
                self.note_queue(session);
                if let Some(facts) = self.sessions.remove(&session) {
                    facts.release(ledger);
                }
            }
            Fact::Unsubscribed { session, filter } => {
                let facts = self.session(session);
                release(ledger, facts.subscriptions.remove(filter).map(|facts| facts.place));
                if let Some(rare) = &mut facts.rare {
                    rare.formerly.retain(|(of, _), (.., place)| {
                        let is_over = **of == *filter;
                        release(ledger, is_over.then_some(*place));
                        !is_over
                    });
                }
            }
            Fact::Released { session, packet_id } => {
                let received = self
                    .session(session)
                    .rare
                    .as_mut()
                    .and_then(|rare| rare.received.remove(&packet_id));
                release(ledger, received.map(|received| received.place));
            }
            Fact::RetainedCleared { topic } => {
                let old = self.retained.remove(topic);
                self.drop_retained(old, ledger);
            }
            Fact::WillCleared { session } => self.clear_will(session, ledger),
            Fact::GroupClosed { queue } => {
                self.note_queue(queue);
                release(ledger, self.groups.remove(&queue).map(|facts| facts.place));
            }
            _ => {}
        }
    }

    fn session(&mut self, queue: QueueNumber) -> &mut SessionFacts {
        self.note_queue(queue);
        self.sessions.entry(queue).or_default()
    }

    fn note_queue(&mut self, queue: QueueNumber) {
        self.last_queue = self.last_queue.max(Some(queue));
    }

    fn on_opened(&mut self, opened: SessionOpened<'_>, place: RecordLocation, ledger: &mut Ledger) {
        self.newest_ms = self.newest_ms.max(opened.opened_at_ms);
        self.note_scope(opened.client_id);
        let facts = self.session(opened.session);
        let opened = Opened {
            opened_at_ms: opened.opened_at_ms,
            expiry_secs: opened.expiry_secs,
            client_id: opened.client_id.into(),
            username: opened.username.into(),
            place,
        };
        release(ledger, facts.opened.replace(opened).map(|opened| opened.place));
    }

    fn on_subscribed(
        &mut self,
        subscribed: Subscribed<'_>,
        place: RecordLocation,
        ledger: &mut Ledger,
    ) {
        self.last_serial = self.last_serial.max(subscribed.serial);
        let facts = self.session(subscribed.session);
        let subscription = SubscribedFacts {
            options: subscribed.options,
            identifier: subscribed.identifier,
            from_serial: subscribed.serial,
            place,
        };
        let old = facts.subscriptions.insert(subscribed.filter, subscription);
        release(ledger, old.map(|old| old.place));
    }

    fn on_formerly(
        &mut self,
        formerly: Subscribed<'_>,
        place: RecordLocation,
        ledger: &mut Ledger,
    ) {
        let Subscribed { session, options, serial, filter, .. } = formerly;
        self.last_serial = self.last_serial.max(serial);
        let known = &mut self.session(session).rare().formerly;
        let old = known.insert((filter.into(), serial), (options, place));
        release(ledger, old.map(|(.., place)| place));
    }

    fn on_received(
        &mut self,
        session: QueueNumber,
        packet_id: u16,
        received: ReceivedFacts,
        ledger: &mut Ledger,
    ) {
        self.last_serial = self.last_serial.max(received.serial);
        let old = self.session(session).rare().received.insert(packet_id, received);
        release(ledger, old.map(|old| old.place));
    }

    fn on_message(
        &mut self,
        message: StoredMessage<'_>,
        place: RecordLocation,
        is_of_streams: bool,
        ledger: &mut Ledger,
    ) {
        self.last_serial = self.last_serial.max(message.serial);
        self.note_origin(message.origin);
        self.note_scope(message.topic);
        let topic = self.texts.enter(message.topic);
        let owner = self.owner_number(message.owner);
        let StoredMessage { expires_at_ms, queue, .. } = message;
        let facts = MessageFacts { place, expires_at_ms, queue, topic, owner, is_of_streams };
        let segment = place.position().segment();
        match self.by_segment.back_mut() {
            Some((of, serials)) if *of == segment => serials.push(message.serial),
            _ => self.by_segment.push_back((segment, vec![message.serial])),
        }
        if let Some(old) = self.messages.insert(message.serial, facts) {
            self.leave_texts(&old);
            release(ledger, Some(old.place));
        }
    }

    pub(super) fn leave_texts(&mut self, message: &MessageFacts) {
        self.texts.leave(message.topic);
        if let Some(owner) = message.owner {
            self.texts.leave(owner);
        }
    }

    fn drop_retained(&mut self, old: Option<RetainedFacts>, ledger: &mut Ledger) {
        let Some(RetainedFacts { place, owner, .. }) = old else { return };
        if let Some(owner) = owner {
            self.texts.leave(owner);
        }
        release(ledger, Some(place));
    }

    fn note_origin(&mut self, origin: Option<Origin>) {
        if let Some(origin) = origin {
            let seen = self.seen.entry(origin.source).or_default();
            *seen = (*seen).max(origin.serial);
        }
    }

    fn owner_number(&mut self, owner: &str) -> Option<u32> {
        (!owner.is_empty()).then(|| self.texts.enter(owner))
    }

    fn on_will(&mut self, stored: StoredWill<'_>, place: RecordLocation, ledger: &mut Ledger) {
        let will = Box::new(Will {
            topic: stored.topic.into(),
            properties: stored.properties.into(),
            payload: stored.payload.into(),
            qos: stored.qos,
            retain: stored.retain,
            delay_secs: stored.delay_secs,
            message_expiry_secs: stored.message_expiry_secs,
            due_ms: NEVER,
        });
        let old = self.session(stored.session).rare().will.replace((will, place));
        release(ledger, old.map(|(_, place)| place));
    }

    fn clear_will(&mut self, session: QueueNumber, ledger: &mut Ledger) {
        self.note_queue(session);
        let rare = self.sessions.get_mut(&session).and_then(|facts| facts.rare.as_mut());
        release(ledger, rare.and_then(|rare| rare.will.take()).map(|(_, place)| place));
    }

    fn on_group(&mut self, group: GroupOpened<'_>, place: RecordLocation, ledger: &mut Ledger) {
        self.note_queue(group.queue);
        self.last_serial = self.last_serial.max(group.from_serial);
        let facts = GroupFacts {
            from_serial: group.from_serial,
            name: group.name.into(),
            filter: group.filter.into(),
            place,
        };
        release(ledger, self.groups.insert(group.queue, facts).map(|old| old.place));
    }
}

impl SessionFacts {
    /// All that is written of the session is needed no more.
    fn release(self, ledger: &mut Ledger) {
        release(ledger, self.opened.map(|opened| opened.place));
        release(ledger, self.detached.map(|(_, _, place)| place));
        self.subscriptions.into_iter().for_each(|(_, facts)| release(ledger, Some(facts.place)));
        let rare = self.rare.map(|rare| *rare).unwrap_or_default();
        release(ledger, rare.will.map(|(_, place)| place));
        for received in rare.received.into_values() {
            release(ledger, Some(received.place));
        }
        for (.., place) in rare.formerly.into_values() {
            release(ledger, Some(place));
        }
        for (_, place) in rare.in_flight.into_values() {
            release(ledger, Some(place));
        }
    }

    fn rare(&mut self) -> &mut RareFacts {
        self.rare.get_or_insert_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.opened.is_none()
            && self.detached.is_none()
            && self.rare.is_none()
            && matches!(self.subscriptions, Subscriptions::None)
    }

    /// What earlier versions have written of its filters.
    pub(crate) fn take_formerly(&mut self) -> FormerFacts {
        self.rare.as_mut().map(|rare| std::mem::take(&mut rare.formerly)).unwrap_or_default()
    }

    /// Its will, and where that stands.
    pub(crate) fn take_will(&mut self) -> Option<(Box<Will>, RecordLocation)> {
        self.rare.as_mut()?.will.take()
    }

    pub(super) fn take_rare(&mut self) -> RareFacts {
        self.rare.take().map(|rare| *rare).unwrap_or_default()
    }
}

impl RareFacts {
    pub(super) fn is_empty(&self) -> bool {
        self.will.is_none()
            && self.received.is_empty()
            && self.in_flight.is_empty()
            && self.formerly.is_empty()
    }

    /// What is in flight, in the order in which it was sent.
    pub(super) fn take_in_flight(&mut self) -> Vec<(Sent, RecordLocation)> {
        let mut in_flight: Vec<(Sent, RecordLocation)> =
            std::mem::take(&mut self.in_flight).into_values().collect();
        in_flight.sort_unstable_by_key(|(sent, _)| sent.serial);
        in_flight
    }
}

impl MessageFacts {
    /// Does it wait for sessions or for a group?
    pub(super) const fn waits(&self, now_ms: u64) -> bool {
        self.expires_at_ms > now_ms && !self.is_of_streams
    }

    /// The number of its topic, if it waits for the sessions that subscribe to that.
    pub(crate) fn topic_of_waiting(&self, now_ms: u64) -> Option<u32> {
        (self.queue.is_none() && self.waits(now_ms)).then_some(self.topic)
    }

    /// The queue of the group that it waits for, and what the group has of it.
    pub(crate) fn group_of_waiting(&self, now_ms: u64) -> Option<(QueueNumber, (u32, u64))> {
        let queue = self.queue.filter(|_| self.waits(now_ms))?;
        Some((queue, (self.place.bytes, self.expires_at_ms)))
    }

    /// The number of the name of its owner.
    pub(crate) const fn owner(&self) -> Option<u32> {
        self.owner
    }
}

impl Subscriptions {
    /// Returns what it replaces.
    fn insert(&mut self, filter: &str, facts: SubscribedFacts) -> Option<SubscribedFacts> {
        match self {
            Self::None => {
                *self = Self::One(filter.into(), facts);
                None
            }
            Self::One(only, old) if **only == *filter => Some(std::mem::replace(old, facts)),
            Self::One(..) => {
                let mut many: BTreeMap<_, _> = std::mem::take(self).into_iter().collect();
                many.insert(filter.into(), facts);
                *self = Self::Many(many);
                None
            }
            Self::Many(many) => many.insert(filter.into(), facts),
        }
    }

    fn remove(&mut self, filter: &str) -> Option<SubscribedFacts> {
        match self {
            Self::Many(many) => many.remove(filter),
            Self::One(only, _) if **only == *filter => {
                std::mem::take(self).into_iter().next().map(|(_, facts)| facts)
            }
            Self::None | Self::One(..) => None,
        }
    }

    pub(super) fn forget_before(&mut self, oldest: u32) {
        let is_over = match self {
            Self::None => false,
            Self::One(_, facts) => facts.place.is_before(oldest),
            Self::Many(many) => {
                many.retain(|_, facts| !facts.place.is_before(oldest));
                many.is_empty()
            }
        };
        if is_over {
            *self = Self::None;
        }
    }

    /// In the order of the filters.
    pub(crate) fn into_iter(self) -> impl Iterator<Item = (Box<str>, SubscribedFacts)> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(filter, facts) => (Some((filter, facts)), None),
            Self::Many(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(identifier: u32) -> SubscribedFacts {
        SubscribedFacts { options: 1, identifier, from_serial: 0, place: RecordLocation::default() }
    }

    fn listed(subscriptions: Subscriptions) -> Vec<(String, u32)> {
        let listed = subscriptions.into_iter();
        listed.map(|(filter, facts)| (filter.into(), facts.identifier)).collect()
    }

    #[test]
    fn subscriptions_are_replaced_and_removed_by_filter_however_many_they_are() {
        let mut subscriptions = Subscriptions::default();
        assert!(subscriptions.remove("a").is_none());
        assert!(subscriptions.insert("b", facts(1)).is_none());
        assert!(subscriptions.remove("a").is_none());
        assert_eq!(subscriptions.insert("b", facts(2)).map(|old| old.identifier), Some(1));
        assert!(subscriptions.insert("a", facts(3)).is_none());
        assert_eq!(subscriptions.insert("b", facts(4)).map(|old| old.identifier), Some(2));
        assert_eq!(subscriptions.remove("b").map(|gone| gone.identifier), Some(4));
        assert!(subscriptions.insert("c", facts(5)).is_none());
        assert_eq!(listed(subscriptions), [("a".to_owned(), 3), ("c".to_owned(), 5)]);
        let mut single = Subscriptions::default();
        single.insert("a", facts(6));
        assert_eq!(single.remove("a").map(|gone| gone.identifier), Some(6));
        assert_eq!(listed(single), []);
    }
}
