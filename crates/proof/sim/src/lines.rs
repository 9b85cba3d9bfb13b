//! The clients' ends of connections: how they come, send, take what has come, and go.

use broker::admission::{Admission, admit};
use driver::testing::{Flaws, Pipe, PipeEnd};
use driver::{Handover, Item};

use crate::dice::pick;
use crate::ledger::HONEST_ADDRESS;
use crate::node::Admitted;
use crate::sabotage::Sabotage;
use crate::world::World;

/// A client's end of a connection.
pub(crate) struct Line {
    pub(crate) arrival: u32,
    pub(crate) pipe: PipeEnd,
    /// Until the CONNECT is whole: what has come, and the end that the driver is to have.
    pub(crate) acceptor: Option<(Vec<u8>, Pipe)>,
    /// When the client last sent all that it had to say.
    pub(crate) sent_ms: u64,
    /// When the broker ended it.
    pub(crate) closed_ms: Option<u64>,
}

impl World {
    pub(crate) fn connect(&mut self, who: usize) {
        // Taking over a connection that works is rarer than coming back.
        let may_take_over = self.random.chance(15) && self.random.chance(self.unrest_percent);
        if self.clients[who].wire.is_none() || may_take_over {
            self.arrive(who);
        }
    }

    fn arrive(&mut self, who: usize) {
        self.switch_to_client(who);
        if let Some(old) = self.lose(who) {
            self.part_from(old);
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.clients[who].connect(arrival, &mut self.oracle);
        let (socket, pipe) = self.new_pipe();
        let acceptor = Some((Vec::new(), socket));
        let sent_ms = self.now_ms;
        self.lines.insert(who, Line { arrival, pipe, acceptor, sent_ms, closed_ms: None });
        self.note(|| format!("client {who} connects, arrival {arrival}"));
        self.choose_node_of(who);
    }

    pub(crate) fn new_pipe(&mut self) -> (Pipe, PipeEnd) {
        let room = pick(&[40, 400, 4_000, 1 << 20], &mut self.random);
        let portion = pick(&[0, 0, 0, 7, 1000], &mut self.random);
        Pipe::new(room, portion, self.flaws())
    }

    fn flaws(&self) -> Flaws {
        let is = |bug| self.node.sabotage == Some(bug);
        Flaws {
            forgets_rest: is(Sabotage::ForgetRest),
            hides_rest: is(Sabotage::HideRest),
            hides_own: is(Sabotage::HideOwn),
            stays_full: is(Sabotage::StayFull),
        }
    }

    /// A client has left its end. The broker sees it at once, later, or when it is taken over, as
    /// when an address changes.
    fn part_from(&mut self, line: Line) {
        match self.random.chance(50) {
            true => self.hang_up(&line.pipe),
            false => self.node.broken.push(line.pipe),
        }
    }

    /// An end is closed, in order or not. It takes whatever still comes.
    fn hang_up(&mut self, pipe: &PipeEnd) {
        if self.random.chance(50) {
            pipe.finish();
            pipe.widen(usize::MAX);
        } else {
            pipe.cut();
        }
    }

    /// The broker can see the end of a connection that its client has left.
    pub(crate) fn notice_broken(&mut self) {
        if self.node.broken.is_empty() {
            return;
        }
        let index = self.random.below(self.node.broken.len());
        let pipe = self.node.broken.swap_remove(index);
        self.hang_up(&pipe);
    }

    pub(crate) fn break_connection(&mut self, who: usize) {
        self.switch_to_client(who);
        if let Some(line) = self.lose(who) {
            self.note(|| format!("arrival {} of client {who} breaks", line.arrival));
            self.part_from(line);
        }
    }

    /// The client has its connection no more. If the broker has ended it, it has lost it by then.
    pub(crate) fn lose(&mut self, who: usize) -> Option<Line> {
        let line = self.lines.remove(&who);
        let closed_ms = line.as_ref().and_then(|line| line.closed_ms);
        self.oracle.now_ms = closed_ms.unwrap_or(self.now_ms);
        self.clients[who].lose_wire(&mut self.oracle);
        self.oracle.now_ms = self.now_ms;
        line
    }

    /// The process at the other end has gone: what was on its way still comes, in part.
    pub(crate) fn lose_process(&mut self, who: usize) -> Result<(), String> {
        if let (Some(wire), Some(line)) = (&mut self.clients[who].wire, self.lines.get(&who)) {
            let arrived = self.random.below(line.pipe.under_way().1 + 1);
            wire.to_client.extend(line.pipe.take(arrived));
        }
        self.clients[who].read(&mut self.oracle)?;
        self.judge_shown(who)?;
        self.lose(who);
        Ok(())
    }

    /// Some bytes of the client are on their way.
    pub(crate) fn send(&mut self, who: usize) {
        let is_silent = |wire: &crate::client::Wire| wire.to_broker.is_empty();
        if self.clients[who].wire.as_ref().is_none_or(is_silent) || !self.reach_node_of(who) {
            return;
        }
        let Some(wire) = &mut self.clients[who].wire else { return };
        let Some(line) = self.lines.get_mut(&who) else { return };
        let all = wire.to_broker.len();
        let count = if self.random.chance(30) { all } else { 1 + self.random.below(all) };
        let bytes: Vec<u8> = wire.to_broker.drain(..count).collect();
        if count == all {
            line.sent_ms = self.now_ms;
        }
        match &mut line.acceptor {
            None => line.pipe.send(&bytes),
            Some((waiting, _)) => {
                waiting.extend(bytes);
                self.on_first_packet(who);
            }
        }
    }

    pub(crate) fn send_all(&mut self, who: usize) {
        let has_more = |world: &Self| {
            let wire = world.clients[who].wire.as_ref();
            wire.is_some_and(|wire| !wire.to_broker.is_empty()) && world.may_reach_node_of(who)
        };
        while has_more(self) {
            self.send(who);
        }
    }

    /// Is the CONNECT whole? Then a driver gets the connection, in a turn to come.
    fn on_first_packet(&mut self, who: usize) {
        let Some(line) = self.lines.get_mut(&who) else { return };
        let arrival = line.arrival;
        let Some((mut waiting, socket)) = line.acceptor.take() else { return };
        let admission = admit(&waiting, &self.limits, &arrival.to_string(), || "assigned".into());
        let Admission::Connect(credentials, len) = admission else {
            line.acceptor = Some((waiting, socket));
            return;
        };
        let rest = waiting.split_off(len);
        let mut request = credentials.request;
        request.origin = HONEST_ADDRESS.into();
        if self.steering.is_banned(who) {
            self.note(|| format!("client {who} is banned, and not admitted"));
            self.lose(who);
            return;
        }
        let is_clean = request.clean_start;
        let (person, expires_ms) = self.show_credential(who, &mut request);
        let admitted = Admitted { who, is_clean, person, expires_ms, is_open: false };
        self.node.admitted.insert(arrival, admitted);
        if self.node.sabotage == Some(Sabotage::LoseSession) && self.random.chance(10) {
            request.clean_start = true;
        }
        let shard = self.node.shared.place_of_client(request.name());
        let handover = Handover { socket, shard, request, rest, permit: (), charge: () };
        self.node.put(shard, Item::Connection(Box::new(handover)));
    }

    /// Some bytes reach the client, which looks at them.
    pub(crate) fn receive(&mut self, who: usize) -> Result<(), String> {
        if self.clients[who].is_deaf {
            return Ok(());
        }
        let count = 1 + self.random.below(2000);
        self.take(who, count)
    }

    /// One that has just been told that its old session is gone may find it back if the power goes
    /// in this moment.
    pub(crate) fn take(&mut self, who: usize, count: usize) -> Result<(), String> {
        let Some(line) = self.lines.get(&who) else { return Ok(()) };
        let bytes = line.pipe.take(count);
        let is_over =
            line.acceptor.is_none() && line.pipe.is_over() && line.pipe.under_way().1 == 0;
        self.oracle.now_ms = self.now_ms;
        if let Some(wire) = &mut self.clients[who].wire {
            wire.to_client.extend(bytes);
        }
        let began_anew = self.clients[who].fate.begins_anew;
        self.clients[who].read(&mut self.oracle)?;
        self.judge_shown(who)?;
        if is_over {
            self.note(|| format!("client {who} sees the end of its connection"));
            if let Some(line) = self.lose(who) {
                line.pipe.finish();
            }
        }
        if began_anew && !self.clients[who].fate.begins_anew {
            return self.crash_at_once();
        }
        self.greet()
    }

    /// A client loses its connection and is back at once, with all that it has to say: what the
    /// connection before has asked for may still be on its way to a disk, or to another shard.
    pub(crate) fn come_back(&mut self, who: usize) -> Result<(), String> {
        self.break_connection(who);
        if self.random.chance(70) && self.is_current_running() {
            // Else the broker sees it when it is taken over.
            while !self.node.broken.is_empty() {
                self.notice_broken();
            }
            self.turn_all()?;
        }
        self.arrive(who);
        while self.clients[who].wire.as_ref().is_some_and(|wire| !wire.to_broker.is_empty()) {
            if !self.may_reach_node_of(who) {
                break;
            }
            self.send(who);
            self.turn_all()?;
            self.receive(who)?;
        }
        Ok(())
    }

    /// Those who would be silent for too long say something.
    pub(crate) fn keep_alive(&mut self, ms: u64) {
        for who in 0..self.clients.len() {
            let client = &self.clients[who];
            let limit_ms = u64::from(client.keep_alive_secs) * 1000;
            let Some(line) = self.lines.get(&who) else { continue };
            let is_due = line.sent_ms + limit_ms <= self.now_ms + ms;
            let is_silent = limit_ms == 0 || self.silent.contains(&who);
            if is_silent || !is_due || !client.may_ping() {
                continue;
            }
            self.clients[who].ping();
            self.send_all(who);
        }
    }
}
