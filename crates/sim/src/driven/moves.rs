//! What happens in a step: clients send and read, drivers take turns, connections come and go.

use std::time::Duration;

use broker::admission::{Admission, admit};
use broker::{Ended, Event};
use codec::Reason;
use driver::testing::{Flaws, Pipe};
use driver::{Handover, Item};
use policy::Principal;

use super::{Admitted, DrivenWorld, Line};
use crate::client::Draft;
use crate::node::Place;
use crate::oracle::GROUP_KEEPER;
use crate::sabotage::Sabotage;
use crate::world::pick;

impl DrivenWorld {
    pub(super) fn step(&mut self) -> Result<(), String> {
        let who = self.random.below(self.clients.len());
        match self.random.below(100) {
            0..=21 => self.send(who),
            22..=39 => self.receive(who)?,
            40..=66 => {
                let index = self.random.below(self.crew.drivers.len());
                self.turn(index)?;
            }
            67..=69 => self.turn_for_mail()?,
            70..=76 => {
                let count = 1 + self.random.below(5);
                self.clients[who].acknowledge(count);
            }
            77..=87 => self.publish(who),
            88 => self.reconsider(who),
            89..=92 => self.connect(who),
            93..=94 => self.pass_time(3000)?,
            _ if !self.random.chance(self.unrest_percent) => {}
            95 if self.random.chance(20) => self.clients[who].leave_badly(),
            95 => self.clients[who].disconnect(),
            96 => self.break_connection(who),
            97 => {
                // Back at once, while the driver has yet to see the end of the one before.
                self.break_connection(who);
                self.arrive(who);
                self.send(who);
            }
            _ => self.clients[who].is_deaf = self.random.chance(50),
        }
        Ok(())
    }

    pub(super) fn connect(&mut self, who: usize) {
        let may_take_over = self.random.chance(15) && self.random.chance(self.unrest_percent);
        if self.clients[who].wire.is_none() || may_take_over {
            self.arrive(who);
        }
    }

    fn arrive(&mut self, who: usize) {
        if let Some(old) = self.lose(who) {
            match self.random.chance(50) {
                true => self.hang_up(&old),
                // Nobody tells the broker, as when an address changes.
                false => self.ghosts.push(old.pipe),
            }
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.clients[who].connect(arrival, &mut self.oracle);
        let room = pick(&[40, 400, 4_000, 1 << 20], &mut self.random);
        let portion = pick(&[0, 0, 0, 7, 1000], &mut self.random);
        let (socket, pipe) = Pipe::new(room, portion, self.flaws());
        let door = Some((Vec::new(), socket));
        let sent_ms = self.now_ms();
        self.lines.insert(who, Line { arrival, pipe, door, sent_ms, closed_ms: None });
        self.note(|| format!("client {who} connects, arrival {arrival}, room {room}"));
    }

    fn flaws(&self) -> Flaws {
        let is = |bug| self.sabotage == Some(bug);
        Flaws {
            forgets_rest: is(Sabotage::ForgetRest),
            hides_rest: is(Sabotage::HideRest),
            hides_own: is(Sabotage::HideOwn),
            stays_full: is(Sabotage::StayFull),
        }
    }

    /// A client closes its end, in order or not.
    fn hang_up(&mut self, line: &Line) {
        if self.random.chance(50) { line.pipe.finish() } else { line.pipe.cut() }
    }

    pub(super) fn break_connection(&mut self, who: usize) {
        if let Some(line) = self.lose(who) {
            self.hang_up(&line);
            self.note(|| format!("arrival {} of client {who} breaks", line.arrival));
        }
    }

    /// The client has its connection no more. If the broker has ended it, it has lost it by then.
    fn lose(&mut self, who: usize) -> Option<Line> {
        let line = self.lines.remove(&who);
        let closed_ms = line.as_ref().and_then(|line| line.closed_ms);
        self.oracle.now_ms = closed_ms.unwrap_or(self.now_ms());
        self.clients[who].lose_wire(&mut self.oracle);
        self.oracle.now_ms = self.now_ms();
        line
    }

    /// Some bytes of the client are on their way.
    pub(super) fn send(&mut self, who: usize) {
        let Some(wire) = &mut self.clients[who].wire else { return };
        let Some(line) = self.lines.get_mut(&who).filter(|_| !wire.to_broker.is_empty()) else {
            return;
        };
        let all = wire.to_broker.len();
        let count = if self.random.chance(30) { all } else { 1 + self.random.below(all) };
        let bytes: Vec<u8> = wire.to_broker.drain(..count).collect();
        if count == all {
            line.sent_ms = self.clock.now_ms();
        }
        match &mut line.door {
            None => line.pipe.send(&bytes),
            Some((waiting, _)) => {
                waiting.extend(bytes);
                self.knock(who);
            }
        }
    }

    /// Is the CONNECT whole? Then a driver gets the connection, in a turn to come.
    fn knock(&mut self, who: usize) {
        let Some(line) = self.lines.get_mut(&who) else { return };
        let arrival = line.arrival;
        let Some((mut waiting, socket)) = line.door.take() else { return };
        let admission = admit(&waiting, &self.limits, &arrival.to_string(), || "assigned".into());
        let Admission::Connect(credentials, len) = admission else {
            line.door = Some((waiting, socket));
            return;
        };
        let rest = waiting.split_off(len);
        let mut request = credentials.request;
        let person = self.choose_person(who);
        let attributes = person.attributes();
        request.principal = Some(Box::new(Principal { attributes, ..Principal::default() }));
        let shard = self.crew.shared.shard_of_client(request.name());
        let is_clean = request.clean_start;
        self.admitted.insert(arrival, Admitted { who, is_clean, person, is_open: false });
        let handover = Handover { socket, shard, request, rest, permit: (), charge: () };
        self.crew.put(shard, Item::Connection(Box::new(handover)));
    }

    /// Some bytes reach the client, which looks at them.
    pub(super) fn receive(&mut self, who: usize) -> Result<(), String> {
        if self.clients[who].is_deaf {
            return Ok(());
        }
        let count = 1 + self.random.below(2000);
        self.take(who, count)
    }

    pub(super) fn take(&mut self, who: usize, count: usize) -> Result<(), String> {
        let Some(line) = self.lines.get(&who) else { return Ok(()) };
        let bytes = line.pipe.take(count);
        let is_over = line.pipe.is_over() && line.pipe.under_way().1 == 0;
        self.oracle.now_ms = self.now_ms();
        if let Some(wire) = &mut self.clients[who].wire {
            wire.to_client.extend(bytes);
        }
        self.clients[who].read(&mut self.oracle)?;
        if is_over {
            self.note(|| format!("client {who} sees the end of its connection"));
            if let Some(line) = self.lose(who) {
                line.pipe.finish();
            }
        }
        Ok(())
    }

    fn publish(&mut self, who: usize) {
        if !self.clients[who].may_publish() {
            return;
        }
        let number = self.clients[who].number;
        let draft = Draft::any(number, false, self.padding_max, &mut self.random);
        self.oracle.now_ms = self.now_ms();
        self.clients[who].publish(draft, &mut self.oracle);
    }

    fn reconsider(&mut self, who: usize) {
        let number = self.random.next() as usize;
        let is_keeper = self.clients[who].number == GROUP_KEEPER;
        if self.clients[who].is_persistent() && !is_keeper && self.random.chance(10) {
            self.note(|| format!("client {who} begins anew"));
            self.break_connection(who);
            self.clients[who].fate.begin_anew();
            return;
        }
        self.clients[who].reconsider(number, false, &mut self.oracle);
    }

    /// A driver takes a turn if it is awake.
    pub(super) fn turn(&mut self, index: usize) -> Result<bool, String> {
        if !self.crew.is_awake(index, &mut self.random, self.sabotage)? {
            return Ok(false);
        }
        self.crew.turn(index, &mut self.random, self.sabotage);
        self.hear(index)?;
        Ok(true)
    }

    /// As the first thread does between two looks at the sockets: for who is awake, and has mail.
    fn turn_for_mail(&mut self) -> Result<(), String> {
        let index = self.random.below(self.crew.drivers.len());
        if self.crew.is_awake(index, &mut self.random, self.sabotage)?
            && self.crew.drivers[index].driver.has_mail()
        {
            self.crew.drivers[index].driver.turn_for_mail();
            self.hear(index)?;
        }
        Ok(())
    }

    /// Time passes, and those whose time comes take their turns. Who promised not to be silent is
    /// not.
    pub(super) fn pass_time(&mut self, ms_max: usize) -> Result<(), String> {
        let ms = self.random.below(ms_max) as u64;
        self.keep_alive(ms);
        self.clock.pass(Duration::from_millis(ms));
        for index in 0..self.crew.drivers.len() {
            self.turn(index)?;
        }
        Ok(())
    }

    /// Those who would be silent for too long say something.
    pub(super) fn keep_alive(&mut self, ms: u64) {
        for who in 0..self.clients.len() {
            let client = &self.clients[who];
            let limit_ms = u64::from(client.keep_alive_secs) * 1000;
            let Some(line) = self.lines.get(&who) else { continue };
            let is_due = line.sent_ms + limit_ms <= self.now_ms() + ms;
            let is_silent = limit_ms == 0 || self.silent.contains(&who);
            if is_silent || !is_due || !client.may_ping() {
                continue;
            }
            self.clients[who].ping();
            self.send_all(who);
        }
    }

    pub(super) fn send_all(&mut self, who: usize) {
        while self.clients[who].wire.as_ref().is_some_and(|wire| !wire.to_broker.is_empty()) {
            self.send(who);
        }
    }

    /// What a driver has told its host in a turn.
    pub(super) fn hear(&mut self, index: usize) -> Result<(), String> {
        let events = std::mem::take(&mut self.crew.drivers[index].told.borrow_mut().events);
        for (place, (now_ms, event)) in events.iter().enumerate() {
            self.oracle.now_ms = *now_ms;
            match event {
                Event::Connected { peer, .. } => {
                    self.on_open(peer, *now_ms);
                    self.oracle.rights.settle();
                }
                Event::Disconnected { client_id, peer, ended, .. } => {
                    let next = events[place..].iter().find_map(|(_, event)| match event {
                        Event::Connected { client_id: next, peer, .. } if next == client_id => {
                            Some(peer)
                        }
                        _ => None,
                    });
                    self.on_end(peer, ended, next.map(|peer| &**peer), *now_ms)?;
                }
                Event::Dropped { client_id, reason, count } => {
                    let (id, reason) = (client_id.clone(), *reason);
                    self.note(|| format!("{count} for {id} dropped: {reason:?}"));
                }
                _ => {}
            }
        }
        self.oracle.now_ms = self.now_ms();
        Ok(())
    }

    /// A shard has taken a connection on.
    fn on_open(&mut self, peer: &str, now_ms: u64) {
        let Ok(arrival) = peer.parse::<u32>() else { return };
        let Some(admitted) = self.admitted.get_mut(&arrival) else { return };
        if std::mem::replace(&mut admitted.is_open, true) {
            return;
        }
        let (who, is_clean, person) = (admitted.who, admitted.is_clean, admitted.person.clone());
        self.note(|| format!("arrival {arrival} of client {who} is open"));
        let client = &mut self.clients[who];
        let number = client.number;
        client.fate.on_admitted(arrival, is_clean, client.expiry_secs, now_ms);
        let wire = client.wire.as_mut().filter(|wire| wire.arrival == arrival);
        match wire {
            Some(wire) => wire.place = Some(Place { shard: 0, slot: 0, connection: 0 }),
            // It has gone meanwhile, and knows nothing of this.
            None => client.fate.on_lost(false, now_ms),
        }
        let shard = self.crew.shared.shard_of_client(broker::Name::first(&client.id));
        self.oracle.on_person(number, shard, person, true);
        self.oracle.on_will_admitted(number, arrival, is_clean);
    }

    /// A shard has ended a connection. `next`: who connected behind that.
    fn on_end(
        &mut self,
        peer: &str,
        ended: &Ended,
        next: Option<&str>,
        now_ms: u64,
    ) -> Result<(), String> {
        let Ok(arrival) = peer.parse::<u32>() else { return Ok(()) };
        self.note(|| format!("arrival {arrival} ends: {ended:?}"));
        let mut next_is_clean = None;
        if *ended == Ended::TakenOver
            && let Some(next) = next
        {
            self.on_open(next, now_ms);
            let next = next.parse().ok().and_then(|next: u32| self.admitted.get(&next));
            next_is_clean = next.map(|next| next.is_clean);
        }
        let is_goodbye = *ended == Ended::Client(Reason::NORMAL_DISCONNECTION);
        self.oracle.on_will_ended(arrival, is_goodbye, next_is_clean);
        self.oracle.rights.settle();
        let Some(admitted) = self.admitted.remove(&arrival) else { return Ok(()) };
        let client = &mut self.clients[admitted.who];
        client.fate.on_closed(arrival, now_ms);
        let line = self.lines.get_mut(&admitted.who).filter(|line| line.arrival == arrival);
        let has_unread = line.is_some_and(|line| {
            line.closed_ms = Some(now_ms);
            line.pipe.under_way().1 > 0
        });
        self.crew.toll.keep_alive_cuts += u64::from(*ended == Ended::KeepAlive);
        self.crew.toll.crowded += u64::from(*ended == Ended::Crowded);
        let is_wrong = match ended {
            Ended::Client(_) | Ended::Network | Ended::TakenOver | Ended::Shutdown => false,
            // It reads nothing, and so is not read; or it has left already.
            Ended::KeepAlive => {
                let is_excused = has_unread || self.silent.contains(&admitted.who);
                !client.is_deaf && client.is_ready() && !is_excused
            }
            Ended::Crowded => !self.room_is_tight,
            Ended::QueueFull => !self.oracle.terms.is_lossy,
            Ended::Refused => !self.oracle.terms.may_refuse,
            _ => true,
        };
        let is_there = client.wire.as_ref().is_some_and(|wire| wire.arrival == arrival);
        match is_wrong && is_there {
            true => Err(format!("{} is cut: {ended:?}", client.id)),
            false => Ok(()),
        }
    }
}
