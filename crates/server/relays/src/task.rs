//! What the thread of the links does for relays: streams, packets, and what other threads ask for.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::boot_ms;
use links::{Connected, Envelope, HANDLER_TOKENS, Violation};
use mio::event::{Event, Source as _};
use mio::{Interest, Registry, Token};
use net::{Read, Stream};
use slab::Slab;

use crate::link::{Known, Link, OPENS_MAX};
use crate::permits::{Counts, End};
use crate::queue::{Begin, Item, LinkId, Queue};
use crate::relay::Relay;
use crate::relays::{Client, Host, Refused};
use crate::wire::{self, ARRIVAL_BYTES_MAX, Arrival, CREDIT_BYTES_MIN, Ended, FRAME_COST, Frame};

/// How long a stream may take to accept what came before the end of its relay. Policy: dropped.
pub const LINGER_MS: u64 = 5000;

/// A relay, and what tells it from others with its key.
type Key = (usize, u64);

/// What the peer has done wrong.
type Wrong = &'static str;

/// The relays of a node. The handler of its links owns them, and passes on what happens.
pub struct Task {
    registry: Registry,
    host: Arc<dyn Host>,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    relays: Slab<Relay>,
    last_serial: u64,
    links: HashMap<LinkId, Link>,
    last_link: LinkId,
    /// The connections of each node, by lane.
    nodes: HashMap<String, BTreeMap<u8, LinkId>>,
    /// The least epoch that a relay to each cell may have.
    epochs: HashMap<u16, u64>,
    /// Relays whose streams may have something, each once.
    ready: VecDeque<Key>,
    /// Relays whose credit has grown, each once, and when they are looked at.
    grown: Vec<Key>,
    tick_ms: u64,
    /// Relays that are closing, and when they are dropped.
    lingering: VecDeque<(u64, Key)>,
    scratch: Box<[u8]>,
    is_stopped: bool,
}

impl Task {
    pub(crate) fn new(
        registry: Registry,
        host: Arc<dyn Host>,
        (queue, counts): (Arc<Queue>, Arc<Counts>),
    ) -> Self {
        Self {
            registry,
            host,
            queue,
            counts,
            relays: Slab::new(),
            last_serial: 0,
            links: HashMap::new(),
            last_link: 0,
            nodes: HashMap::new(),
            epochs: HashMap::new(),
            ready: VecDeque::new(),
            grown: Vec::new(),
            tick_ms: 0,
            lingering: VecDeque::new(),
            scratch: vec![0; DATA_BYTES_MAX].into(),
            is_stopped: false,
        }
    }

    /// The same of [`links::Handler`]. A connection that the link had before was lost.
    pub fn on_connected(&mut self, connected: &Connected) {
        let Connected { node, lane, version, sender, .. } = connected;
        self.last_link += 1;
        self.links.insert(self.last_link, Link::new(sender.clone(), *lane, *version));
        self.nodes.entry(node.clone()).or_default().insert(*lane, self.last_link);
        self.report_links(node);
    }

    /// The same of [`links::Handler`], of a packet whose `from_cell` is
    /// [`FRONT`](broker::cells::wire::FRONT).
    ///
    /// # Errors
    ///
    /// The node violates the protocol.
    pub fn on_envelope(
        &mut self,
        node: &str,
        lane: u8,
        envelope: &Envelope<'_>,
    ) -> Result<(), Violation> {
        let Some(id) = self.link_id(node, lane) else { return Ok(()) };
        let frame = wire::decode(&envelope.frame).map_err(|error| Violation(error.to_string()))?;
        let route = (envelope.route.to_cell, envelope.route.to_epoch);
        self.on_packet(id, envelope.number, route, frame).map_err(|what| {
            self.give_up(id);
            Violation(format!("{VIOLATION}: {what}"))
        })
    }

    /// The same of [`links::Handler`].
    pub fn on_room(&mut self, node: &str, lane: u8) {
        let Some(id) = self.link_id(node, lane) else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.send_backlog() {
            self.ready.extend(link.parked.drain(..));
            self.open_waiting(id);
        }
    }

    /// The same of [`links::Handler`].
    pub fn on_lost(&mut self, node: &str, lane: u8) {
        let lost = self.nodes.get_mut(node).and_then(|lanes| lanes.remove(&lane));
        let Some(id) = lost else { return };
        self.report_links(node);
        self.give_up(id);
        self.links.remove(&id);
    }

    /// The same of [`links::Handler`].
    pub fn on_event(&mut self, event: &Event) {
        let index = event.token().0 - HANDLER_TOKENS;
        // One that was closed in this turn can have an event.
        let Some(relay) = self.relays.get_mut(index) else { return };
        relay.is_ending |= event.is_read_closed() || event.is_error();
        relay.is_readable |= event.is_readable() || relay.is_ending;
        self.on_ready(index, event.is_writable());
    }

    /// The same of [`links::Handler`].
    pub fn on_turn(&mut self) {
        for item in self.queue.take() {
            match item {
                Item::Begin(begin) => self.begin(begin),
                Item::Epoch { cell, epoch } => self.on_epoch(cell, epoch),
                Item::Stop => self.stop(),
            }
        }
        for _ in 0..self.ready.len().min(TURNS_MAX) {
            self.next_turn();
        }
        self.on_time();
    }

    /// The same of [`links::Handler`].
    pub fn wait(&self) -> Option<Duration> {
        if !self.ready.is_empty() || !self.queue.is_empty() {
            return Some(Duration::ZERO);
        }
        let tick_ms = (!self.grown.is_empty()).then_some(self.tick_ms);
        let linger_ms = self.lingering.front().map(|(at_ms, _)| *at_ms);
        let due_ms = tick_ms.into_iter().chain(linger_ms).min()?;
        Some(Duration::from_millis(due_ms.saturating_sub(boot_ms())))
    }

    fn link_id(&self, node: &str, lane: u8) -> Option<LinkId> {
        self.nodes.get(node)?.get(&lane).copied()
    }

    /// New relays use what connections there are.
    fn report_links(&self, node: &str) {
        let links = self.nodes.get(node).map(|lanes| lanes.values().copied().collect());
        self.queue.set_links(node, links.unwrap_or_default());
    }

    fn on_ready(&mut self, index: usize, is_writable: bool) {
        let relay = &self.relays[index];
        let key = (index, relay.serial);
        if is_writable && !relay.is_written() {
            let id = relay.id;
            if self.links.get(&id).is_none_or(|link| !link.is_alive()) {
                return self.give_up(id);
            }
            self.relays[index].write();
            self.after_write(index);
        }
        self.queue(key);
    }

    fn on_time(&mut self) {
        if self.grown.is_empty() && self.lingering.is_empty() {
            return;
        }
        let now_ms = boot_ms();
        while let Some((at_ms, key)) = self.lingering.front().copied()
            && at_ms <= now_ms
        {
            self.lingering.pop_front();
            if self.is_current(key) {
                self.remove(key.0);
            }
        }
        if !self.grown.is_empty() && self.tick_ms <= now_ms {
            self.give_back();
            self.tick_ms = now_ms + TICK_MS;
        }
    }

    /// Relays that were idle since the last tick give back what they were lent.
    fn give_back(&mut self) {
        for (index, serial) in std::mem::take(&mut self.grown) {
            let Some(relay) = self.relays.get_mut(index).filter(|it| it.serial == serial) else {
                continue;
            };
            let bytes = relay.give_back();
            relay.is_grown = relay.credit() > CREDIT_BYTES_MIN;
            if relay.is_grown {
                self.grown.push((index, serial));
            }
            let link = self.links.get_mut(&relay.id).filter(|_| bytes > 0 && !relay.is_closing);
            if let Some(link) = link {
                link.send(relay.number, relay.route, &Frame::Returned(bytes));
            }
        }
    }

    fn stop(&mut self) {
        self.is_stopped = true;
        let all: Vec<usize> = self.relays.iter().map(|(index, _)| index).collect();
        all.into_iter().for_each(|index| self.end(index, Ended::Stream));
    }
}

/// Relays begin.
impl Task {
    fn begin(&mut self, begin: Begin) {
        let least = self.epochs.get(&begin.cell);
        if least.is_some_and(|least| begin.epoch < *least) {
            return self.hand_back(begin, Refused::NotOwner);
        }
        let Some(link) = self.links.get_mut(&begin.id).filter(|link| link.is_alive()) else {
            return self.hand_back(begin, Refused::NoLink);
        };
        if link.is_full() || link.opening >= OPENS_MAX {
            return link.waiting.push_back(begin);
        }
        let arrival = &begin.client.arrival;
        let first = first_bytes(&arrival.bytes);
        let mut frame = Vec::new();
        wire::put_open(&mut frame, arrival, first);
        if frame.len() - 1 - first.len() > ARRIVAL_BYTES_MAX {
            return self.hand_back(begin, Refused::TooLong);
        }
        self.open(begin, &frame);
    }

    fn open(&mut self, begin: Begin, frame: &[u8]) {
        let Begin { id, cell, epoch, client, permit } = begin;
        let Client { mut stream, held, arrival } = client;
        let Some(link) = self.links.get_mut(&id) else { return };
        let entry = self.relays.vacant_entry();
        if watch(&self.registry, &mut stream, entry.key()).is_err() {
            // The system has no memory for it: the client is closed.
            return;
        }
        let (number, route) = (link.next_number(), (cell, epoch));
        self.last_serial += 1;
        let mut relay = Relay::new(stream, (id, number, self.last_serial), route, permit);
        relay.spend(first_bytes(&arrival.bytes).len() as u32);
        (relay.opening, relay.held) = (Some(arrival), held);
        link.relays.insert(number, entry.key());
        link.opening += 1;
        link.send_bytes(number, route, frame);
        entry.insert(relay);
    }

    /// Clients that wait for answers to others, or for room.
    fn open_waiting(&mut self, id: LinkId) {
        while let Some(link) = self.links.get_mut(&id)
            && !link.is_full()
            && link.opening < OPENS_MAX
            && let Some(begin) = link.waiting.pop_front()
        {
            self.begin(begin);
        }
    }

    fn hand_back(&self, begin: Begin, why: Refused) {
        let Begin { cell, epoch, client, permit, .. } = begin;
        drop(permit);
        self.counts.count_refused();
        self.host.refused(cell, epoch, client, why);
    }

    /// `number`: as this node writes it.
    fn arrive(&mut self, id: LinkId, number: u64, route: (u16, u64), arrival: Box<Arrival>) {
        let used = arrival.bytes.len() as u32;
        let answer = match self.try_arrive((id, number), route, arrival) {
            Ok(()) => Frame::Opened(used),
            Err(why) => {
                self.counts.count_refused();
                Frame::Refused(why)
            }
        };
        if let Some(link) = self.links.get_mut(&id) {
            link.send(number, route, &answer);
        }
    }

    fn try_arrive(
        &mut self,
        (id, number): (LinkId, u64),
        route: (u16, u64),
        arrival: Box<Arrival>,
    ) -> Result<(), Refused> {
        let permit = self.counts.permit(End::Home).ok_or(Refused::NoRoom)?;
        let [mut own, stream] = Stream::pair().map_err(|_| Refused::NoRoom)?;
        let entry = self.relays.vacant_entry();
        watch(&self.registry, &mut own, entry.key()).map_err(|_| Refused::NoRoom)?;
        self.host.arrive(route.0, route.1, Client { stream, held: Box::new(()), arrival })?;
        self.last_serial += 1;
        if let Some(link) = self.links.get_mut(&id) {
            link.relays.insert(number, entry.key());
        }
        entry.insert(Relay::new(own, (id, number, self.last_serial), route, permit));
        Ok(())
    }
}

/// Bytes of links.
impl Task {
    fn on_packet(
        &mut self,
        id: LinkId,
        number: u64,
        route: (u16, u64),
        frame: Frame,
    ) -> Result<(), Wrong> {
        let link = self.links.get_mut(&id).filter(|link| !link.is_over && !self.is_stopped);
        let Some(link) = link else { return Ok(()) };
        // The process may have been paused since it was received.
        if !link.is_alive() {
            self.give_up(id);
            return Ok(());
        }
        let number = number ^ 1;
        match (link.known(number), frame) {
            (Known::New, Frame::Open(arrival)) => {
                link.on_begun();
                self.arrive(id, number, route, arrival);
                Ok(())
            }
            (Known::Relay(_) | Known::Closed, Frame::Open(_)) => {
                Err("a relay was opened twice or out of order")
            }
            (Known::Closed, _) => Ok(()),
            (Known::New | Known::Never, _) => Err("a relay that was never opened"),
            (Known::Relay(index), frame) => self.on_frame(index, frame),
        }
    }

    fn on_frame(&mut self, index: usize, frame: Frame) -> Result<(), Wrong> {
        let relay = &mut self.relays[index];
        match frame {
            Frame::Opened(bytes) => self.on_opened(index, bytes)?,
            Frame::Refused(_) if relay.opening.is_none() => return Err(ANSWERED),
            Frame::Refused(why) => self.on_refused(index, why),
            Frame::Close(why) => self.on_close(index, why),
            _ if relay.opening.is_some() => return Err("a frame before the answer to an open"),
            Frame::Open(_) => return Err("a relay was opened twice or out of order"),
            Frame::Data(data) if cost(&data) > relay.lent.granted as usize => {
                return Err("more data than the credit of the relay");
            }
            Frame::Data(data) => {
                relay.on_data(&data);
                self.after_write(index);
            }
            Frame::Credit(bytes) => self.on_credit(index, bytes)?,
            Frame::Returned(bytes) => {
                let shrunk = relay.lent.shrink(bytes).ok_or("more is given back than was lent")?;
                self.counts.take_back(shrunk);
                self.after_write(index);
            }
        }
        Ok(())
    }

    fn on_opened(&mut self, index: usize, bytes: u32) -> Result<(), Wrong> {
        let relay = &mut self.relays[index];
        let arrival = relay.opening.take_if(|arrival| {
            // The first bytes have been read, and no others.
            first_bytes(&arrival.bytes).len() == bytes as usize
        });
        let Some(mut arrival) = arrival else { return Err(ANSWERED) };
        relay.earn(bytes);
        relay.unsent = arrival.bytes.split_off(bytes as usize).into();
        let (id, key) = (relay.id, (index, relay.serial));
        self.queue(key);
        self.on_answer(id);
        Ok(())
    }

    fn on_refused(&mut self, index: usize, why: Refused) {
        let relay = self.remove(index);
        let Relay { mut stream, held, id, opening, permit, route: (cell, epoch), .. } = relay;
        let Some(arrival) = opening else { return };
        // One that cannot be taken from the poll is lost.
        if stream.deregister(&self.registry).is_ok() {
            let client = Client { stream, held, arrival };
            self.hand_back(Begin { id, cell, epoch, client, permit }, why);
        }
    }

    fn on_credit(&mut self, index: usize, bytes: u32) -> Result<(), Wrong> {
        let relay = &mut self.relays[index];
        if bytes == 0 || !relay.earn(bytes) {
            return Err("a credit that no relay can have");
        }
        let key = (index, relay.serial);
        if relay.credit() > CREDIT_BYTES_MIN && !std::mem::replace(&mut relay.is_grown, true) {
            if self.grown.is_empty() {
                self.tick_ms = boot_ms() + TICK_MS;
            }
            self.grown.push(key);
        }
        self.queue(key);
        Ok(())
    }

    fn on_close(&mut self, index: usize, why: Ended) {
        let relay = &mut self.relays[index];
        if why == Ended::Epoch || relay.opening.is_some() {
            return drop(self.remove(index));
        }
        relay.is_closing = true;
        self.lingering.push_back((boot_ms() + LINGER_MS, (index, relay.serial)));
        if let Some(link) = self.links.get_mut(&relay.id) {
            link.relays.remove(&relay.number);
        }
        self.after_write(index);
    }

    /// After bytes of the link were written, or failed to be.
    fn after_write(&mut self, index: usize) {
        let Self { relays, links, counts, .. } = self;
        let relay = &mut relays[index];
        if relay.is_closing {
            return self.say_farewell(index);
        }
        let bytes = relay.refill(|more| counts.lend(more));
        if bytes > 0
            && let Some(link) = links.get_mut(&relay.id)
        {
            link.send(relay.number, relay.route, &Frame::Credit(bytes));
        }
        if relay.is_deaf {
            let key = (index, relay.serial);
            self.queue(key);
        }
    }
}

/// Bytes of streams.
impl Task {
    /// The relay has a turn, once, if it is not among those already.
    fn queue(&mut self, key: Key) {
        let Some(relay) = self.relays.get_mut(key.0).filter(|relay| relay.serial == key.1) else {
            return;
        };
        let has_cause = relay.is_readable || !relay.unsent.is_empty();
        let may = relay.is_closing || relay.room() > 0 && relay.opening.is_none();
        if has_cause && may && !std::mem::replace(&mut relay.is_queued, true) {
            self.ready.push_back(key);
        }
    }

    /// Sends one frame of one relay.
    fn next_turn(&mut self) {
        let Some(key) = self.ready.pop_front() else { return };
        if !self.is_current(key) {
            return;
        }
        let relay = &mut self.relays[key.0];
        if relay.is_closing {
            relay.is_queued = false;
            return self.read_away(key);
        }
        let Some(link) = self.links.get_mut(&relay.id).filter(|link| link.is_alive()) else {
            let id = relay.id;
            return self.give_up(id);
        };
        if link.is_full() {
            return link.parked.push(key);
        }
        relay.is_queued = false;
        match next_data(relay, &mut self.scratch) {
            Some(0) => {}
            Some(count) => {
                relay.spend(count as u32 + FRAME_COST);
                let mut frame = Vec::with_capacity(1 + count);
                wire::put_data(&mut frame, &self.scratch[..count]);
                link.send_bytes(relay.number, relay.route, &frame);
            }
            None => return self.end(key.0, Ended::Stream),
        }
        self.queue(key);
    }
}

/// Relays end.
impl Task {
    fn is_current(&self, (index, serial): Key) -> bool {
        self.relays.get(index).is_some_and(|relay| relay.serial == serial)
    }

    /// Forgets a relay.
    fn remove(&mut self, index: usize) -> Relay {
        let relay = self.relays.remove(index);
        self.counts.take_back(relay.lent.beyond());
        if let Some(link) = self.links.get_mut(&relay.id) {
            link.relays.remove(&relay.number);
        }
        if relay.opening.is_some() {
            self.on_answer(relay.id);
        }
        relay
    }

    /// An open is answered, or over.
    fn on_answer(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.opening -= 1;
        }
        self.open_waiting(id);
    }

    /// The peer has closed. Once all that came before is written, the sending side ends. Closing
    /// now, with bytes of the client unread, would make the kernel throw the last ones away at the
    /// client's end. So they are read away until the client closes.
    fn say_farewell(&mut self, index: usize) {
        let relay = &mut self.relays[index];
        if relay.is_deaf || relay.is_written() && !relay.is_leaving && !relay.leave() {
            return drop(self.remove(index));
        }
        let key = (index, relay.serial);
        self.queue(key);
    }

    fn read_away(&mut self, key: Key) {
        let relay = &mut self.relays[key.0];
        match relay.stream.read(&mut self.scratch) {
            Ok(Read::Bytes(count)) => relay.on_read(count, self.scratch.len()),
            Ok(Read::WouldBlock) => relay.is_readable = false,
            // It may still read.
            Ok(Read::Closed) if !relay.is_leaving => relay.is_readable = false,
            Ok(Read::Closed) | Err(_) => return drop(self.remove(key.0)),
        }
        self.queue(key);
    }

    /// Ends a relay, and reports it to the peer.
    fn end(&mut self, index: usize, why: Ended) {
        let relay = self.remove(index);
        if let Some(link) = self.links.get_mut(&relay.id)
            && !relay.is_closing
            && !link.is_over
        {
            link.send(relay.number, relay.route, &Frame::Close(why));
        }
    }

    fn on_epoch(&mut self, cell: u16, epoch: Option<u64>) {
        let is_over = |of: u16, its: u64| of == cell && epoch.is_none_or(|epoch| its < epoch);
        if let Some(epoch) = epoch {
            self.epochs.insert(cell, epoch);
        }
        let over = self.relays.iter().filter(|(_, relay)| is_over(relay.route.0, relay.route.1));
        let over: Vec<usize> = over.map(|(index, _)| index).collect();
        let mut waiting = Vec::new();
        for link in self.links.values_mut() {
            let all = std::mem::take(&mut link.waiting);
            let (ended, others) = all.into_iter().partition(|it| is_over(it.cell, it.epoch));
            link.waiting = others;
            waiting.extend::<VecDeque<Begin>>(ended);
        }
        over.into_iter().for_each(|index| self.end(index, Ended::Epoch));
        waiting.into_iter().for_each(|begin| self.hand_back(begin, Refused::NotOwner));
    }

    /// The link is dead: no more bytes move over it, and none that have come are written.
    fn give_up(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.is_over = true;
        let waiting = std::mem::take(&mut link.waiting);
        let of_link = self.relays.iter().filter(|(_, relay)| relay.id == id);
        let of_link: Vec<usize> = of_link.map(|(index, _)| index).collect();
        of_link.into_iter().for_each(|index| drop(self.remove(index)));
        waiting.into_iter().for_each(|begin| self.hand_back(begin, Refused::NoLink));
    }
}

fn watch(registry: &Registry, stream: &mut Stream, index: usize) -> io::Result<()> {
    let token = Token(HANDLER_TOKENS + index);
    stream.register(registry, token, Interest::READABLE | Interest::WRITABLE)
}

/// What a frame of data uses of a credit.
const fn cost(data: &[u8]) -> usize {
    data.len() + FRAME_COST as usize
}

/// What travels with the open.
fn first_bytes(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(CREDIT_BYTES_MIN as usize)]
}

/// Fills the front of `scratch`, within the credit. 0: there is nothing now. None: the stream has
/// ended.
fn next_data(relay: &mut Relay, scratch: &mut [u8]) -> Option<usize> {
    let room = scratch.len().min(relay.room() as usize);
    if room == 0 {
        return Some(0);
    }
    let scratch = &mut scratch[..room];
    if !relay.unsent.is_empty() {
        let count = room.min(relay.unsent.len());
        for (to, from) in scratch.iter_mut().zip(relay.unsent.drain(..count)) {
            *to = from;
        }
        if relay.unsent.is_empty() {
            relay.unsent = VecDeque::new();
        }
        return Some(count);
    }
    if !relay.is_readable {
        return Some(0);
    }
    match relay.stream.read(scratch) {
        Ok(Read::Bytes(count)) => {
            relay.on_read(count, room);
            Some(count)
        }
        Ok(Read::WouldBlock) => {
            relay.is_readable = false;
            (!relay.is_deaf).then_some(0)
        }
        Ok(Read::Closed) | Err(_) => None,
    }
}

const VIOLATION: &str = "the node violates the protocol of relays";
const ANSWERED: Wrong = "an answer to no open";

/// Bytes of one frame of data.
const DATA_BYTES_MAX: usize = 16 * 1024;
/// Frames that are sent before links and events are looked at again.
const TURNS_MAX: usize = 64;
/// How often idle relays give back what they were lent.
const TICK_MS: u64 = 1000;
