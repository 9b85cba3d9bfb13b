//! Packets of clients of which a part has come, and what has come and has to wait: charged to whose
//! they are, and asked for before it is buffered.
//!
//! A packet that is not complete asks for its whole length, so that who has begun can always end.
//! Who finds no room is not read until there is some.

use std::sync::Arc;

use broker::{Scope, Shard};

use super::{Connection, Driver};
use crate::allowance::{Allowance, Charge, Owner, Purpose, ScopedOwner};
use crate::host::Host;
use crate::origin::Origin;

/// Not charged: what any connection may have of a small packet that came in two pieces.
const FREE_BYTES: usize = 4 * 1024;

/// How long one that found no room waits before it asks again.
const ROOM_PAUSE_MS: u64 = 50;

/// While others wait for the room that it has, a packet may take so long to come.
const LATE_MS: u64 = 10_000;

/// While somebody waits who has nothing under way, a packet of which nothing comes for so
/// long goes, and so does one that is slower than `PACE_BYTES_PER_MS` since.
const STALL_MS: u64 = 1_000;

/// Some 16 KB/s.
const PACE_BYTES_PER_MS: u64 = 16;

/// The room that all connections of all workers share, in two halves.
#[derive(Clone, Debug)]
pub struct IncomingRoom {
    /// For whole packets. Those who have room here can always end.
    packets: Arc<Allowance<ScopedOwner>>,
    /// For what has come of those that wait for it, and of what has to wait for another reason.
    waiting: Arc<Allowance<ScopedOwner>>,
}

impl IncomingRoom {
    pub fn new(bytes_max: u64, share_bytes_max: u64) -> Self {
        let half = || Arc::new(Allowance::new(bytes_max / 2, share_bytes_max / 2));
        Self { packets: half(), waiting: half() }
    }
}

/// What one connection has waiting in the broker.
pub(super) struct Incoming {
    packet: Charge<ScopedOwner>,
    waiting: Charge<ScopedOwner>,
    /// Of its packet so much had come at the last look.
    arrived: usize,
    /// When the first part of that came, and the last. Pauses do not count.
    since_ms: u64,
    moved_ms: u64,
    /// The whole packet, for which there is no room yet. 0: it waits for none.
    lacks_room_for: u64,
    /// A part of it is still to come, and there is room for it.
    is_open: bool,
}

/// What follows from a look at it.
enum Verdict {
    GoOn,
    Wait,
    /// There is not even room for what has come.
    Cut,
}

impl Incoming {
    fn begin(room: &IncomingRoom, owner: &ScopedOwner, now_ms: u64) -> Self {
        Self {
            packet: room.packets.begin(owner.clone(), 0),
            waiting: room.waiting.begin(owner.clone(), 0),
            arrived: 0,
            since_ms: now_ms,
            moved_ms: now_ms,
            lacks_room_for: 0,
            is_open: false,
        }
    }

    /// What lies in the inbox of a connection is charged, and what it lacks of a packet.
    fn settle(&mut self, inbox: &mut Vec<u8>, now_ms: u64) -> Verdict {
        let arrived = inbox.len();
        if arrived < self.arrived {
            // Another packet.
            self.since_ms = now_ms;
        }
        if arrived != self.arrived {
            self.moved_ms = now_ms;
        }
        self.arrived = arrived;
        let packet_len = codec::packet_len(inbox).ok().flatten().unwrap_or_default();
        let lacks_some = packet_len > arrived;
        if self.has_room_for(inbox.capacity().max(packet_len), lacks_some) {
            return Verdict::GoOn;
        }
        // Of what lay before it the packet needs nothing.
        inbox.shrink_to_fit();
        let buffered = inbox.capacity() as u64;
        let wanted = buffered.max(packet_len as u64);
        if self.has_room_for(wanted as usize, lacks_some) {
            return Verdict::GoOn;
        }
        self.is_open = false;
        if !lacks_some {
            // It is complete, and waits for others: that is not its sender's doing.
            self.lacks_room_for = 0;
            self.waiting.force(buffered.saturating_sub(self.waiting.bytes()));
            return Verdict::GoOn;
        }
        self.packet.release();
        self.packet.stand_in_line(wanted);
        self.lacks_room_for = wanted;
        if reach(&mut self.waiting, buffered) { Verdict::Wait } else { Verdict::Cut }
    }

    fn has_room_for(&mut self, wanted: usize, lacks_some: bool) -> bool {
        let wanted = wanted as u64;
        let has_room =
            self.packet.bytes() >= wanted || lacks_some && reach(&mut self.packet, wanted);
        if has_room {
            self.waiting.release();
            (self.is_open, self.lacks_room_for) = (lacks_some, 0);
        }
        has_room
    }

    /// May it be read on?
    fn finds_room(&mut self) -> bool {
        let finds_room = reach(&mut self.packet, self.lacks_room_for);
        if !finds_room {
            self.packet.stand_in_line(self.lacks_room_for);
        }
        finds_room
    }

    /// Nothing was read for a while, which is not its sender's doing.
    fn resume(&mut self, now_ms: u64) {
        self.since_ms += now_ms.saturating_sub(self.moved_ms);
        self.moved_ms = now_ms;
    }

    fn is_late(&self, now_ms: u64) -> bool {
        self.is_open
            && (self.since_ms + LATE_MS <= now_ms && self.packet.is_in_the_way()
                || self.is_slow(now_ms) && self.packet.keeps_others_waiting())
    }

    fn is_slow(&self, now_ms: u64) -> bool {
        let at_pace = self.arrived as u64 / PACE_BYTES_PER_MS;
        self.moved_ms.min(self.since_ms + at_pace) + STALL_MS <= now_ms
    }
}

fn reach(charge: &mut Charge<ScopedOwner>, bytes: u64) -> bool {
    let more = bytes.saturating_sub(charge.bytes());
    more == 0 || charge.raise(more, Purpose::Whole).is_ok()
}

impl<H: Host> Driver<H> {
    /// After bytes were given to the shard of a connection: some of them lie there, or did before.
    #[inline(never)]
    pub(super) fn settle_incoming(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let shard = &mut self.shards[usize::from(connection.shard)];
        let (slot, number) = (connection.slot, connection.number);
        let wanted = shard.inbox(slot, number).map_or(0, |inbox| {
            let packet_len = codec::packet_len(inbox).ok().flatten();
            packet_len.unwrap_or_default().max(inbox.capacity())
        });
        if wanted <= FREE_BYTES {
            connection.incoming = None;
            return;
        }
        let incoming = connection.incoming.get_or_insert_with(|| {
            let owner = owner(shard, slot, number);
            Box::new(Incoming::begin(&self.incoming_room, &owner, self.now_ms))
        });
        let Some(inbox) = shard.inbox(slot, number) else { return };
        match incoming.settle(inbox, self.now_ms) {
            Verdict::GoOn => {}
            Verdict::Wait => {
                shard.metrics().incoming_waits.add(1);
                self.wait_for_room(key);
            }
            Verdict::Cut => self.cut_for_room(key),
        }
    }

    /// Reads nothing from a connection until there may be room for its packet. Nobody is silent
    /// while nothing is read from it.
    fn wait_for_room(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let until_ms = self.now_ms + ROOM_PAUSE_MS;
        let shard = &mut self.shards[usize::from(connection.shard)];
        shard.pause_until(connection.slot, connection.number, until_ms);
        let place = usize::from(connection.shard);
        self.take_pauses(place);
    }

    /// The pause of a connection is over: may it be read? Else it waits on.
    pub(super) fn may_be_read(&mut self, key: usize) -> bool {
        let incoming = self.connections.get_mut(key).and_then(|c| c.incoming.as_mut());
        let finds_room = incoming.is_none_or(|incoming| incoming.finds_room());
        if !finds_room {
            self.wait_for_room(key);
        } else if let Some(incoming) =
            self.connections.get_mut(key).and_then(|c| c.incoming.as_mut())
        {
            incoming.resume(self.now_ms);
        }
        finds_room
    }

    /// Once a second: those whose packets take too long, while others wait for their room, go.
    pub(super) fn close_late(&mut self) {
        if !self.incoming_room.packets.has_any() {
            return;
        }
        let is_late = |connection: &Connection<H>| {
            connection.incoming.as_ref().is_some_and(|incoming| incoming.is_late(self.now_ms))
        };
        let open = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_read() && is_late(connection));
        for key in open.map(|(key, _)| key).collect::<Vec<_>>() {
            self.cut_for_room(key);
        }
    }

    fn cut_for_room(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let shard = &mut self.shards[usize::from(connection.shard)];
        shard.metrics().incoming_cuts.add(1);
        shard.on_crowded(connection.slot, connection.number, self.now_ms);
        connection.incoming = None;
    }
}

/// The user of a client in its namespace, or its address where it has no proved name.
fn owner(shard: &Shard, slot: u32, number: u64) -> ScopedOwner {
    let nobody = ScopedOwner { scope: Scope::FIRST, owner: Owner::Origin(Origin::Local) };
    shard.who(slot, number).map_or(nobody, |who| {
        let origin = || who.peer.parse().map_or(Origin::Local, Origin::of_socket);
        let user = who.username.map(|name| Owner::User(name.into()));
        let owner = user.unwrap_or_else(|| Owner::Origin(origin()));
        ScopedOwner { scope: who.client.scope(), owner }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    /// 64 KiB of packets for each, and as much for what waits.
    fn room() -> IncomingRoom {
        IncomingRoom::new(512 * KIB as u64, 128 * KIB as u64)
    }

    fn incoming(room: &IncomingRoom, user: &str) -> Incoming {
        incoming_in(room, 0, user)
    }

    fn incoming_in(room: &IncomingRoom, scope: u16, user: &str) -> Incoming {
        let owner = Owner::User(user.into());
        Incoming::begin(room, &ScopedOwner { scope: Scope::new(scope), owner }, 0)
    }

    /// So much of a PUBLISH of 64 KiB.
    fn part(bytes: usize) -> Vec<u8> {
        let mut packet = vec![0x30];
        codec::varint::write(&mut packet, (64 * KIB - 4) as u32);
        packet.resize(bytes, 0);
        packet
    }

    fn goes_on(client: &mut Incoming, inbox: &mut Vec<u8>, now_ms: u64) -> bool {
        matches!(client.settle(inbox, now_ms), Verdict::GoOn)
    }

    #[test]
    fn a_packet_asks_for_its_whole_length_and_waits_where_there_is_no_room() {
        let room = room();
        let mut first = incoming(&room, "one");
        let mut second = incoming(&room, "one");
        let mut other = incoming(&room, "other");
        assert!(goes_on(&mut first, &mut part(5 * KIB), 0));
        assert_eq!(first.packet.bytes(), 64 * KIB as u64);
        let mut inbox = part(5 * KIB);
        inbox.reserve_exact(59 * KIB);
        assert!(matches!(second.settle(&mut inbox, 0), Verdict::Wait));
        assert!(inbox.capacity() < 10 * KIB, "room that nobody has granted goes back");
        assert!(!second.finds_room());
        assert!(goes_on(&mut other, &mut part(5 * KIB), 0));
        drop(first);
        assert!(second.finds_room());
        assert!(goes_on(&mut second, &mut inbox, 0));
    }

    #[test]
    fn users_of_one_name_in_two_namespaces_are_two() {
        let room = room();
        let mut client: Vec<_> = (0..3).map(|scope| incoming_in(&room, scope, "one")).collect();
        for client in &mut client {
            assert!(goes_on(client, &mut part(5 * KIB), 0));
        }
        let mut second = incoming_in(&room, 1, "one");
        assert!(matches!(second.settle(&mut part(5 * KIB), 0), Verdict::Wait));
    }

    #[test]
    fn many_users_of_a_namespace_leave_room_to_others() {
        let room = room();
        let mut crowd: Vec<_> =
            (0..50).map(|n| incoming_in(&room, 1, &format!("user {n}"))).collect();
        let open = crowd.iter_mut().map(|client| goes_on(client, &mut part(5 * KIB), 0));
        let open = open.filter(|has_room| *has_room).count();
        assert_eq!(open, 2, "as much as is left of 256 KiB");
        for scope in [0, 2] {
            let mut other = incoming_in(&room, scope, "other");
            assert!(goes_on(&mut other, &mut part(5 * KIB), 0), "of namespace {scope}");
        }
    }

    #[test]
    fn a_packet_does_not_wait_for_the_room_of_what_lay_before_it() {
        let room = room();
        let mut client = incoming(&room, "one");
        let mut inbox = part(5 * KIB);
        // Many small packets have been in it, more than a user may ever have.
        inbox.reserve_exact(100 * KIB);
        assert!(goes_on(&mut client, &mut inbox, 0));
        assert_eq!(client.packet.bytes(), 64 * KIB as u64);
        assert!(inbox.capacity() < 10 * KIB);
    }

    #[test]
    fn where_there_is_no_room_for_what_has_come_the_connection_goes() {
        let room = room();
        let mut client: Vec<_> = (0..2).map(|_| incoming(&room, "one")).collect();
        assert!(goes_on(&mut client[0], &mut part(60 * KIB), 0));
        assert!(matches!(client[1].settle(&mut part(60 * KIB), 0), Verdict::Wait));
        let mut third = incoming(&room, "one");
        assert!(matches!(third.settle(&mut part(10 * KIB), 0), Verdict::Cut));
        // What is complete waits for others, and is not cut.
        let mut whole = incoming(&room, "one");
        assert!(goes_on(&mut whole, &mut [0x30, 3, 0, 1, 65].repeat(4 * KIB), 0));
        drop(client.swap_remove(0));
        assert!(client[0].finds_room(), "what waits takes nothing of the room for packets");
    }

    #[test]
    fn a_slow_client_is_closed_if_others_wait_for_its_memory() {
        let room = room();
        let mut slow = incoming(&room, "one");
        assert!(goes_on(&mut slow, &mut part(5 * KIB), 0));
        assert!(goes_on(&mut slow, &mut part(6 * KIB), LATE_MS));
        assert!(!slow.is_late(LATE_MS), "nobody waits");
        let mut waits = incoming(&room, "one");
        assert!(matches!(waits.settle(&mut part(5 * KIB), LATE_MS), Verdict::Wait));
        assert!(slow.is_late(LATE_MS) && !waits.is_late(2 * LATE_MS));
        assert!(!slow.is_late(LATE_MS - 1));
        // The next packet has its own time.
        assert!(goes_on(&mut slow, &mut part(5 * KIB), LATE_MS));
        assert!(!slow.is_late(LATE_MS));
    }

    #[test]
    fn who_has_nothing_is_not_kept_waiting_by_packets_that_do_not_come() {
        let room = room();
        let mut stalled: Vec<_> = (0..4).map(|n| incoming(&room, &format!("user {n}"))).collect();
        for client in &mut stalled[..2] {
            assert!(goes_on(client, &mut part(60 * KIB), 0));
        }
        assert!(goes_on(&mut stalled[2], &mut part(5 * KIB), 0));
        assert!(goes_on(&mut stalled[3], &mut part(5 * KIB), 0));
        let late = 2 * STALL_MS;
        assert!(goes_on(&mut stalled[1], &mut part(61 * KIB), late - 1), "it moves");
        assert!(goes_on(&mut stalled[2], &mut part(6 * KIB), late - 1), "too slowly");
        assert!(stalled.iter().all(|client| !client.is_late(late)), "nobody waits");
        let mut waits = incoming(&room, "other");
        assert!(matches!(waits.settle(&mut part(5 * KIB), late), Verdict::Wait));
        let late_ones: Vec<bool> = stalled.iter().map(|client| client.is_late(late)).collect();
        assert_eq!(late_ones, [true, false, true, true]);
        // A pause is not its sender's doing.
        stalled[0].resume(late);
        assert!(!stalled[0].is_late(late) && stalled[0].is_late(late + STALL_MS));
        drop(stalled.swap_remove(3));
        assert!(waits.finds_room());
        assert!(!stalled[0].is_late(late + STALL_MS), "nobody waits any more");
    }
}
