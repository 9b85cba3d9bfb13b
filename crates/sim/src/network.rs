//! What moves between clients and shards: bytes, mail, and the ends of connections.

use std::collections::VecDeque;

use broker::admission::{Admission, admit};
use broker::{Answer, Close, Ended, Event, Mail, Shard, ShardId};
use codec::{QoS, Reason};
use session::{Dropped, Message, NEVER};
use storage::{AppendError, Status};

use crate::ledger::HONEST_ADDRESS;
use crate::node::Place;
use crate::oracle::Payload;
use crate::sabotage::Sabotage;
use crate::world::World;

impl World {
    pub(crate) fn connect(&mut self, who: usize) {
        // Taking over a connection that works is rarer than coming back.
        let may_take_over = self.random.chance(15) && self.random.chance(self.unrest_percent);
        if self.clients[who].wire.is_some() && !may_take_over {
            return;
        }
        self.arrive(who);
    }

    fn arrive(&mut self, who: usize) {
        self.switch_to_client(who);
        if let Some(arrival) = self.clients[who].wire.as_ref().map(|wire| wire.arrival) {
            self.node.door.remove(&arrival);
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.clients[who].connect(arrival, &mut self.oracle);
        self.note(|| format!("client {who} connects, arrival {arrival}"));
        self.choose_node_of(who);
    }

    /// Some bytes of the client reach the broker.
    pub(crate) fn carry_to_broker(&mut self, who: usize) {
        let Some(wire) = &mut self.clients[who].wire else { return };
        if wire.to_broker.is_empty() || !self.reach_node_of(who) {
            return;
        }
        let Some(wire) = &mut self.clients[who].wire else { return };
        let count = 1 + self.random.below(wire.to_broker.len());
        let bytes: Vec<u8> = wire.to_broker.drain(..count).collect();
        let arrival = wire.arrival;
        match wire.place {
            Some(Place { shard, slot, connection }) => {
                self.carry_mail_to(shard);
                let core = &mut self.node.shards[usize::from(shard)];
                core.on_bytes(slot, connection, &bytes, self.now_ms);
                self.collect(shard);
            }
            None => self.knock(who, arrival, &bytes),
        }
    }

    /// Bytes of a connection that is not admitted.
    fn knock(&mut self, who: usize, arrival: u32, bytes: &[u8]) {
        let waiting = self.node.door.entry(arrival).or_default();
        waiting.extend_from_slice(bytes);
        let Admission::Connect(credentials, len) =
            admit(waiting, &self.limits, "sim", || "assigned".into())
        else {
            return;
        };
        let rest = waiting.split_off(len);
        self.node.door.remove(&arrival);
        let shard = self.node.shared.shard_of_client(credentials.request.name());
        let now_ms = self.now_ms;
        let mut request = credentials.request;
        request.origin = HONEST_ADDRESS.into();
        if self.steering.is_banned(who) {
            self.note(|| format!("client {who} is banned, and not admitted"));
            self.clients[who].lose_wire(&mut self.oracle);
            return;
        }
        self.show_credential(who, &mut request);
        let client = &mut self.clients[who];
        let is_clean = request.clean_start;
        client.fate.on_admitted(arrival, is_clean, client.expiry_secs, now_ms);
        self.oracle.on_will_admitted(client.number, arrival, is_clean);
        self.admitting_clean = Some(is_clean);
        if self.node.sabotage == Some(Sabotage::LoseSession) && self.random.chance(10) {
            request.clean_start = true;
        }
        let sabotage = self.options.sabotage;
        let worker = self.node.worker(shard);
        worker.close_some(&mut self.random);
        let connection = worker.open(sabotage);
        let core = &mut self.node.shards[usize::from(shard)];
        let refused = |core: &Shard| core.log_stats().map_or(0, |stats| stats.refused_full);
        let refused_before = refused(core);
        let Ok(slot) = core.on_connect(connection, request, now_ms) else {
            let rule = format!("client {who} is kept from its own session");
            self.broken_rule.get_or_insert(rule);
            return;
        };
        let is_unwritten = refused(core) > refused_before;
        if is_unwritten && self.clients[who].fate.expects_session() {
            self.toll.resumed_unwritten += 1;
        }
        core.on_bytes(slot, connection, &rest, now_ms);
        let place = Place { shard, slot, connection };
        self.node.connections.insert(place, arrival);
        if let Some(wire) = &mut self.clients[who].wire {
            wire.place = Some(place);
        }
        self.note(|| format!("arrival {arrival} of client {who} is connection {connection}"));
        self.collect(shard);
        self.admitting_clean = None;
        self.oracle.rights.settle();
    }

    /// Some bytes of the outbox reach the client, if the shard said that there are any.
    pub(crate) fn carry_to_client(&mut self, who: usize) {
        let Some(place) = self.place(who) else { return };
        if self.clients[who].is_deaf || !self.reach_node_of(who) {
            return;
        }
        if !self.node.dirty.contains(&place) {
            return;
        }
        let core = &mut self.node.shards[usize::from(place.shard)];
        let Some(outbox) = core.outbox(place.slot, place.connection) else { return };
        let bytes: Vec<u8> = outbox.slices().flatten().copied().collect();
        if bytes.is_empty() {
            self.node.dirty.remove(&place);
            return;
        }
        let count = 1 + self.random.below(bytes.len());
        if count == bytes.len() {
            self.node.dirty.remove(&place);
        }
        core.on_written(place.slot, place.connection, count, self.now_ms);
        if let Some(wire) = &mut self.clients[who].wire {
            wire.to_client.extend_from_slice(&bytes[..count]);
        }
        self.collect(place.shard);
    }

    fn place(&self, who: usize) -> Option<Place> {
        self.clients[who].wire.as_ref()?.place
    }

    /// A client reads what has come.
    ///
    /// One that has just been told that its old session is gone may find it back if the power
    /// goes in this moment.
    pub(crate) fn read(&mut self, who: usize) -> Result<(), String> {
        if self.clients[who].is_deaf {
            return Ok(());
        }
        let began_anew = self.clients[who].fate.begins_anew;
        self.clients[who].read(&mut self.oracle)?;
        if began_anew && !self.clients[who].fate.begins_anew {
            return self.crash_at_once();
        }
        Ok(())
    }

    /// One item of mail arrives, from any pair of shards, in the order of that pair.
    pub(crate) fn carry_mail(&mut self) {
        let pairs: Vec<_> = self.node.mail.keys().copied().collect();
        if pairs.is_empty() {
            return;
        }
        let pair = pairs[self.random.below(pairs.len())];
        self.carry_mail_of(pair);
    }

    fn carry_mail_of(&mut self, pair: (ShardId, ShardId)) {
        let keeps_back = self.keeps_back(pair);
        let Some(queue) = self.node.mail.get_mut(&pair) else { return };
        if keeps_back && self.random.chance(95) {
            queue.rotate_left(1);
            return;
        }
        let sabotage = self.node.sabotage.filter(|_| self.random.chance(20));
        if sabotage == Some(Sabotage::SwapMail) && queue.len() > 1 {
            queue.swap(0, 1);
        }
        if let Some(sabotage) = self.node.sabotage {
            overtake(sabotage, queue);
        }
        let Some(mail) = queue.pop_front() else { return };
        if self.node.sabotage == Some(Sabotage::AnswerTwice)
            && is_named_answer(&mail)
            && self.random.chance(60)
        {
            queue.insert(self.random.below(queue.len() + 1), mail.clone());
        }
        if queue.is_empty() {
            self.node.mail.remove(&pair);
        }
        if let Mail::Confirmed { refused: Some(message), .. } = &mail
            && let Some(payload) = Payload::from_bytes(message.payload())
        {
            self.oracle.on_place_refused(message.topic(), payload);
        }
        let core = &mut self.node.shards[usize::from(pair.1)];
        match sabotage {
            Some(Sabotage::LoseMail) => {}
            Some(Sabotage::LoseTaken) if matches!(mail, Mail::Grant { .. }) => {}
            Some(Sabotage::LoseGroupDone) if matches!(mail, Mail::GroupDone { .. }) => {}
            Some(Sabotage::DoubleMail) => {
                core.on_batch(vec![mail.clone(), mail], self.now_ms);
            }
            _ => core.on_batch(vec![mail], self.now_ms),
        }
        self.collect(pair.1);
    }

    /// A planted bug: what stands behind the news of a member goes first.
    fn keeps_back(&self, pair: (ShardId, ShardId)) -> bool {
        let next = self.node.mail.get(&pair).and_then(VecDeque::front);
        self.node.sabotage == Some(Sabotage::HearEarly) && matches!(next, Some(Mail::Join { .. }))
    }

    /// A driver's duty: mail that was sent before bytes came is delivered before them, so that what
    /// a client says because of what it has seen does not come before that.
    pub(crate) fn carry_mail_to(&mut self, shard: ShardId) {
        let pairs: Vec<_> = self.node.mail.keys().filter(|(_, to)| *to == shard).copied().collect();
        for pair in pairs {
            while self.node.mail.contains_key(&pair) && !self.keeps_back(pair) {
                self.carry_mail_of(pair);
            }
        }
    }

    /// The network connection breaks; the broker learns of it later, or when it is taken over.
    pub(crate) fn break_connection(&mut self, who: usize) {
        self.switch_to_client(who);
        if let Some(place) = self.place(who) {
            self.node.broken.push(place);
        }
        if let Some(wire) = self.clients[who].lose_wire(&mut self.oracle) {
            self.node.door.remove(&wire.arrival);
            self.note(|| format!("arrival {} of client {who} breaks", wire.arrival));
        }
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
        }
        self.arrive(who);
        while self.clients[who].wire.as_ref().is_some_and(|wire| !wire.to_broker.is_empty()) {
            self.carry_to_broker(who);
            self.carry_to_client(who);
            self.read(who)?;
            if !self.may_reach_node_of(who) {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn notice_broken(&mut self) {
        if self.node.broken.is_empty() {
            return;
        }
        let index = self.random.below(self.node.broken.len());
        let place = self.node.broken.swap_remove(index);
        let core = &mut self.node.shards[usize::from(place.shard)];
        core.on_closed(place.slot, place.connection, self.now_ms);
        self.collect(place.shard);
    }

    /// Publishers that had to wait for a slow subscriber are read on.
    pub(crate) fn read_on(&mut self) {
        for (shard, connection) in std::mem::take(&mut self.node.paused) {
            let mut places = self.node.connections.keys();
            let place = places.find(|p| p.shard == shard && p.connection == connection);
            if let Some(slot) = place.map(|place| place.slot) {
                self.carry_mail_to(shard);
                let core = &mut self.node.shards[usize::from(shard)];
                core.on_bytes(slot, connection, &[], self.now_ms);
                self.collect(shard);
            }
        }
    }

    /// A turn of a shard is over.
    pub(crate) fn end_turn(&mut self, shard: usize) {
        self.node.shards[shard].end_turn();
        self.collect(shard as ShardId);
        self.judge_waits(shard);
    }

    /// Nobody waits for what is over, whatever others wait for.
    fn judge_waits(&mut self, shard: usize) {
        // A shard hears of the end of its own holds by mail.
        let own = (shard as ShardId, shard as ShardId);
        let mut mail = self.node.mail.get(&own).into_iter().flatten();
        let knows = !mail.any(|mail| matches!(mail, Mail::Resume { .. }));
        if knows && self.node.shards[shard].overdue_waits() > 0 {
            let rule = format!("publishers of shard {shard} wait, and nothing is in their way");
            self.broken_rule.get_or_insert(rule);
        }
    }

    /// Carries out the effects of a shard.
    pub(crate) fn collect(&mut self, shard: ShardId) {
        let is_valid = self.is_current_valid();
        let core = &mut self.node.shards[usize::from(shard)];
        while let Some((slot, connection)) = core.take_dirty() {
            let forgets = self.node.sabotage == Some(Sabotage::ForgetDirty);
            if !forgets || !self.random.chance(20) {
                self.node.dirty.insert(Place { shard, slot, connection });
            }
        }
        for (to, mails) in core.effects_mut().mail.iter_mut().enumerate() {
            if !mails.is_empty() {
                let queue = self.node.mail.entry((shard, to as ShardId)).or_default();
                queue.extend(mails.drain(..));
            }
        }
        let (mut ends, mut refused, mut drops) = (Vec::new(), Vec::new(), Vec::new());
        for (_, event) in core.effects_mut().events.drain(..) {
            match event {
                Event::Disconnected { client_id, ended, .. } => ends.push((client_id, ended)),
                _ if !is_valid => {}
                Event::WillNotKept { client_id, .. } => {
                    let client = self.clients.iter().find(|client| *client.id == *client_id);
                    client.into_iter().for_each(|c| self.oracle.on_will_not_kept(c.number));
                }
                Event::NotKept { client_id, error } => refused.push((client_id, error)),
                Event::Refused { client_id, topic, .. } => {
                    self.oracle.trace.note(|| format!("{client_id} is refused on {topic}"));
                }
                Event::RetainedRefused { topic, count } => {
                    self.oracle.trace.note(|| format!("{count} not retained, as on {topic}"));
                }
                Event::Dropped { client_id, reason, count } => {
                    drops.push((client_id, reason, count));
                }
                Event::GroupDropped { group, count } if group.starts_with("$share/s/g/") => {
                    self.honest_dropped += count;
                }
                _ => {}
            }
        }
        for (connection, until_ms) in core.effects_mut().pauses.drain(..) {
            if until_ms == NEVER {
                self.node.held.insert((shard, connection));
            } else {
                self.node.held.remove(&(shard, connection));
                self.node.paused.push((shard, connection));
            }
        }
        let (closes, mut answers) = (std::mem::take(&mut core.effects_mut().closes), Vec::new());
        if self.steering.is_on() {
            let is_late = |(ticket, _): &(u32, Answer)| *ticket != self.asking;
            answers.extend(core.effects_mut().answers.extract_if(.., |a| is_late(a)));
        }
        let is_full = matches!(core.log_status(), Some(Status::Full(_)));
        refused.iter().for_each(|(client_id, error)| self.judge_refusal(client_id, error, is_full));
        drops.iter().for_each(|drop| self.judge_drop(drop));
        answers.iter().for_each(|(ticket, answer)| self.on_answer(*ticket, answer));
        for (close, (client_id, ended)) in closes.iter().zip(ends) {
            let place = Place { shard, slot: close.slot, connection: close.connection };
            let Some(arrival) = self.node.connections.remove(&place) else {
                self.broken_rule.get_or_insert(format!("{place:?} is closed, and is none"));
                continue;
            };
            if is_valid {
                self.judge_end(arrival, &client_id, &ended);
                self.end_will(arrival, &client_id, &ended);
            }
            self.on_close(place, arrival, close);
        }
    }

    /// A session that is kept takes no room that it has not, so only a log that is out of service
    /// is a reason to refuse it. A new one may be refused for a full disk, too.
    fn judge_refusal(&mut self, client_id: &str, error: &AppendError, is_full: bool) {
        let lacks_room = matches!(error, AppendError::Full(_) | AppendError::Backlog { .. });
        let mut clients = self.clients.iter();
        let client = clients.find(|client| *client.id == *client_id);
        let is_known = client.is_some_and(|client| client.fate.expects_session());
        if lacks_room && (is_known || !is_full) {
            let kind = if is_known { "that is kept" } else { "for which there is room" };
            let rule = format!("{client_id}: a session {kind} is refused: {error}");
            self.broken_rule.get_or_insert(rule);
        }
    }

    /// Of what is for honest ones only, and where nothing else has a limit, nothing is dropped
    /// because others have taken the room.
    fn judge_drop(&mut self, (client_id, reason, count): &(Box<str>, Dropped, u64)) {
        self.oracle.trace.note(|| format!("{count} for {client_id} dropped: {reason:?}"));
        let is_honest = self.clients.iter().any(|client| *client.id == **client_id);
        if !is_honest || !matches!(reason, Dropped::QueueFull | Dropped::Unlogged) {
            return;
        }
        self.honest_dropped += count;
        if *reason == Dropped::QueueFull && self.mob.is_there() {
            self.broken_rule.get_or_insert(format!("{count} messages of {client_id} find no room"));
        }
    }

    /// Who keeps to the rules and within its share is not cut.
    /// What is left of a connection that its client has lost cannot wait, and is sent again.
    fn judge_end(&mut self, arrival: u32, client_id: &str, ended: &Ended) {
        let terms = &self.oracle.terms;
        let is_wrong = match ended {
            Ended::Client(_) | Ended::Network | Ended::TakenOver | Ended::Shutdown => false,
            Ended::NotKept | Ended::LogFailed | Ended::Refused => !terms.may_refuse,
            Ended::QueueFull => !terms.is_lossy,
            _ => true,
        };
        let who = self.clients.iter().position(|client| *client.id == *client_id);
        let Some(who) = who.filter(|_| is_wrong && !self.is_over) else { return };
        let wire = self.clients[who].wire.as_ref();
        if wire.is_none_or(|wire| wire.arrival != arrival) {
            return;
        }
        if !self.steering.ends(who, ended, self.now_ms) {
            self.broken_rule.get_or_insert(format!("{client_id} is cut: {ended:?}"));
        }
    }

    /// What a connection's end is to its will.
    fn end_will(&mut self, arrival: u32, client_id: &str, ended: &Ended) {
        if *ended == Ended::NotKept {
            let client = self.clients.iter().find(|client| *client.id == *client_id);
            client.into_iter().for_each(|client| self.oracle.on_will_unsure(client.number));
            return;
        }
        let is_goodbye = *ended == Ended::Client(Reason::NORMAL_DISCONNECTION);
        let next = match self.purging {
            true => Some(true),
            false => self.admitting_clean.filter(|_| *ended == Ended::TakenOver),
        };
        self.oracle.on_will_ended(arrival, is_goodbye, next);
    }

    /// The broker has ended a connection.
    fn on_close(&mut self, place: Place, arrival: u32, close: &Close) {
        let Place { shard, connection, .. } = place;
        self.node.dirty.remove(&place);
        self.node.broken.retain(|broken| *broken != place);
        self.node.held.remove(&(shard, connection));
        self.node.paused.retain(|paused| *paused != (shard, connection));
        self.node.worker(shard).close_later(connection);
        self.on_close_of_hostile(arrival, close);
        let (is_valid, may_write) = (self.is_current_valid(), self.may_write());
        for client in &mut self.clients {
            if is_valid {
                client.fate.on_closed(arrival, self.now_ms);
            }
            let wire = client.wire.as_mut().filter(|wire| wire.arrival == arrival);
            let Some(wire) = wire else { continue };
            // What was written last may still be read, or be lost with the connection.
            if self.random.chance(70) && may_write {
                wire.to_client.extend(close.farewell.slices().flatten());
                if let Err(rule) = client.read(&mut self.oracle) {
                    self.broken_rule.get_or_insert(rule);
                }
            }
            client.lose_wire(&mut self.oracle);
        }
    }
}

/// Does it say what it answers, so that it may come again?
const fn is_named_answer(mail: &Mail) -> bool {
    matches!(
        mail,
        Mail::Confirmed { .. }
            | Mail::Retained { .. }
            | Mail::Passed { .. }
            | Mail::GroupDone { .. }
    )
}

/// A planted bug: what stands behind a QoS 2 message of the same publisher and topic goes first.
fn overtake(sabotage: Sabotage, queue: &mut VecDeque<Mail>) {
    let message_of = |mail: &Mail| match (mail, sabotage) {
        (Mail::Publish { message, .. }, Sabotage::OvertakeLive)
        | (Mail::Retain { message, .. }, Sabotage::OvertakeRetained) => Some(message.clone()),
        _ => None,
    };
    let Some(first) = queue.front().and_then(message_of) else { return };
    let is_next = |message: Message| {
        message.qos() < first.qos()
            && message.topic() == first.topic()
            && message.publisher() == first.publisher()
    };
    if first.qos() == QoS::ExactlyOnce
        && let Some(next) = queue.iter().position(|mail| message_of(mail).is_some_and(is_next))
    {
        queue.swap(0, next);
    }
}
