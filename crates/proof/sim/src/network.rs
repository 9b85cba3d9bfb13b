//! What moves between drivers, and what comes of their turns: mail, events, answers, commands for
//! disks.

use std::collections::VecDeque;

use broker::{Ended, Event, Mail, Shard, ShardId, Span};
use codec::{QoS, Reason};
use driver::Item;
use driver::testing::{PipeEnd, Reports};
use session::{Dropped, Message};
use storage::{AppendError, Status};

use crate::cluster::Cluster;
use crate::sabotage::Sabotage;
use crate::world::World;

impl World {
    /// One item of mail arrives, from any driver for any shard, in the order of these two.
    pub(crate) fn carry_mail(&mut self) -> Result<(), String> {
        let pairs: Vec<_> = self.node.mail.keys().copied().collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let pair = pairs[self.random.below(pairs.len())];
        self.carry_mail_of(pair);
        self.turn_if_awake(self.node.driver_of(pair.1))
    }

    fn carry_mail_of(&mut self, pair: (usize, ShardId)) {
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
        let mails = match sabotage {
            Some(Sabotage::LoseMail) => return,
            Some(Sabotage::LoseTaken) if matches!(mail, Mail::Grant { .. }) => return,
            Some(Sabotage::LoseGroupDone) if matches!(mail, Mail::GroupDone { .. }) => return,
            Some(Sabotage::DoubleMail) => vec![mail.clone(), mail],
            _ => vec![mail],
        };
        self.node.put(pair.1, Item::Mail(pair.1, mails));
    }

    /// A planted bug: what stands behind the news of a member goes first.
    fn keeps_back(&self, pair: (usize, ShardId)) -> bool {
        let next = self.node.mail.get(&pair).and_then(VecDeque::front);
        self.node.sabotage == Some(Sabotage::HearEarly) && matches!(next, Some(Mail::Join { .. }))
    }

    /// Mail that was sent before bytes came is there before them, so that what a client says
    /// because of what it has seen does not come before that.
    pub(crate) fn carry_mail_to(&mut self, index: usize) {
        let is_for = |(_, to): &&(usize, ShardId)| self.node.driver_of(*to) == index;
        let pairs: Vec<_> = self.node.mail.keys().filter(is_for).copied().collect();
        for pair in pairs {
            while self.node.mail.contains_key(&pair) && !self.keeps_back(pair) {
                self.carry_mail_of(pair);
            }
        }
    }

    /// A driver takes a turn if it is awake.
    pub(crate) fn turn(&mut self, index: usize) -> Result<bool, String> {
        self.node.shut(!self.may_write());
        self.clock.advance_to(self.now_ms);
        if !self.is_cell_up() || !self.node.is_awake(index)? {
            return Ok(false);
        }
        self.take_turn(index, None)?;
        Ok(true)
    }

    /// A driver takes a turn. `only`: it is told of this socket.
    pub(crate) fn take_turn(&mut self, index: usize, only: Option<&PipeEnd>) -> Result<(), String> {
        self.carry_mail_to(index);
        self.node.shut(!self.may_write());
        self.clock.advance_to(self.now_ms);
        self.node.turn(index, only, &mut self.random, &mut self.turns);
        self.end_turn(index)?;
        self.judge_syncs(index)
    }

    /// A turn without a look at the sockets, for what has come to a driver, or has come of what was
    /// asked of one of its shards.
    pub(crate) fn turn_for_mail(&mut self, index: usize) -> Result<(), String> {
        self.node.shut(!self.may_write());
        self.clock.advance_to(self.now_ms);
        self.node.turn_for_mail(index);
        self.end_turn(index)
    }

    /// For what was put into the mailbox of a driver, which wakes it.
    pub(crate) fn turn_if_awake(&mut self, index: usize) -> Result<(), String> {
        let is_awake = self.is_cell_up() && self.node.is_awake(index)?;
        if is_awake { self.turn_for_mail(index) } else { Ok(()) }
    }

    pub(crate) fn turn_for(&mut self, shard: ShardId) -> Result<(), String> {
        self.turn_for_mail(self.node.driver_of(shard))
    }

    /// All drivers that are awake take a turn. True: there were some.
    pub(crate) fn turn_all(&mut self) -> Result<bool, String> {
        let mut has_moved = false;
        for index in 0..self.node.drivers.len() {
            has_moved |= self.turn(index)?;
        }
        Ok(has_moved)
    }

    fn end_turn(&mut self, index: usize) -> Result<(), String> {
        self.now_ms = self.clock.now_ms();
        self.hear(index)?;
        self.judge_marks(index)?;
        self.judge_waits(index)
    }

    /// At level `disk` a loss of power takes the last second, however busy the disk is.
    fn judge_syncs(&self, index: usize) -> Result<(), String> {
        let Some(driven) = self.node.drivers.get(index) else { return Ok(()) };
        let overdue =
            |shard: &&Shard| shard.journal().is_some_and(|it| it.is_sync_overdue(self.now_ms));
        match driven.driver.shards().iter().find(overdue) {
            Some(shard) => Err(format!("nobody asks for a sync of shard {}", shard.id())),
            None => Ok(()),
        }
    }

    /// The next turn passes by no shard that has something to do.
    fn judge_marks(&self, index: usize) -> Result<(), String> {
        let missed = self.node.drivers.get(index).and_then(|driven| driven.driver.missed());
        missed.map_or(Ok(()), Err)
    }

    /// Nobody waits for what is over, whatever others wait for.
    fn judge_waits(&mut self, index: usize) -> Result<(), String> {
        let Some(driven) = self.node.drivers.get(index) else { return Ok(()) };
        // A shard hears of the end of its own holds by mail.
        if driven.driver.has_local_mail() {
            return Ok(());
        }
        let mut shards = driven.driver.shards().iter();
        match shards.find(|shard| shard.overdue_waits() > 0) {
            Some(shard) => {
                Err(format!("publishers of shard {} wait, and nothing is in their way", shard.id()))
            }
            None => Ok(()),
        }
    }

    /// What has come of a turn. What a broker says that serves nobody any more counts for nothing.
    fn hear(&mut self, index: usize) -> Result<(), String> {
        let reports = std::mem::take(&mut *self.node.drivers[index].reports.borrow_mut());
        let Reports { events, answers, commands, asks, questions, streams, .. } = reports;
        self.send_to_cells(reports.for_cells);
        self.judge_traced(&reports.traced)?;
        self.hear_spans(&reports.spans, reports.spans_lost);
        self.judge_asks(&asks)?;
        self.submit(commands);
        self.hear_streams(streams)?;
        if self.is_current_valid() {
            self.service.hear(questions);
            self.hear_of_connections(index, &events)?;
            for (now_ms, event) in &events {
                self.oracle.now_ms = *now_ms;
                self.hear_of(event)?;
            }
        }
        self.oracle.now_ms = self.now_ms;
        for (asker, answer) in answers {
            match self.asking.now == Some(asker) {
                true => self.asking.answer = Some(answer),
                false => self.on_answer(asker, &answer),
            }
        }
        Ok(())
    }

    fn hear_spans(&mut self, spans: &[Span], lost: u64) {
        self.oracle.spans.on_lost(lost);
        for span in spans {
            let hides = self.node.sabotage == Some(Sabotage::LoseSpans) && self.random.chance(5);
            let client = self.clients.iter().find(|client| *client.id == *span.client_id);
            if !hides {
                self.oracle.spans.on_span(span, client.map(|client| client.number));
            }
        }
    }

    fn hear_of_connections(&mut self, index: usize, events: &[(u64, Event)]) -> Result<(), String> {
        let shards = self.node.drivers[index].driver.shards().iter();
        let refused =
            shards.filter_map(|shard| Some(shard.journal()?.stats().refused_full)).sum::<u64>();
        self.node.is_unwritten = refused > self.node.refused_full[index];
        self.node.refused_full[index] = refused;
        for (place, (now_ms, event)) in events.iter().enumerate() {
            self.oracle.now_ms = *now_ms;
            match event {
                Event::Connected { peer, .. } => self.on_open(peer, *now_ms),
                Event::Disconnected { client_id, peer, ended, .. } => {
                    let next = events[place..].iter().find_map(|(_, event)| match event {
                        Event::Connected { client_id: next, peer, .. } if next == client_id => {
                            Some(peer)
                        }
                        _ => None,
                    });
                    self.on_end(peer, ended, next.map(|peer| &**peer), *now_ms)?;
                }
                _ => {}
            }
            self.oracle.rights.settle();
        }
        Ok(())
    }

    fn hear_of(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::WillNotKept { client_id, .. } => {
                let client = self.clients.iter().find(|client| *client.id == **client_id);
                client.into_iter().for_each(|c| self.oracle.on_will_not_kept(c.number));
            }
            Event::NotKept { client_id, error } => return self.judge_refusal(client_id, error),
            Event::Refused { client_id, topic, .. } => {
                self.oracle.trace.note(|| format!("{client_id} is refused on {topic}"));
            }
            Event::RetainedRefused { topic, count } => {
                self.oracle.trace.note(|| format!("{count} not retained, as on {topic}"));
            }
            Event::Dropped { client_id, reason, count } => {
                return self.judge_drop(client_id, *reason, *count);
            }
            Event::GroupDropped { group, count, .. } if group.starts_with("$share/s/g/") => {
                self.honest_dropped += count;
            }
            _ => {}
        }
        Ok(())
    }

    /// A session that is kept takes no room that it has not, so only a journal that is out of
    /// service is a reason to refuse it. A new one may be refused for a full disk, too.
    fn judge_refusal(&mut self, client_id: &str, error: &AppendError) -> Result<(), String> {
        let lacks_room = matches!(error, AppendError::Full(_) | AppendError::Backlog { .. });
        let Some(client) = self.clients.iter().find(|client| *client.id == *client_id) else {
            return Ok(());
        };
        let is_known = client.fate.expects_session();
        let shard = self.node.shared.place_of_client(broker::Name::first(client_id));
        let is_full = matches!(self.node.shard(shard).journal_status(), Some(Status::Full(_)));
        if !lacks_room || (!is_known && is_full) {
            return Ok(());
        }
        let kind = if is_known { "that is kept" } else { "for which there is room" };
        Err(format!("{client_id}: a session {kind} is refused: {error}"))
    }

    /// Of what is for honest ones only, and where nothing else has a limit, nothing is dropped
    /// because others have taken the room.
    fn judge_drop(&mut self, client_id: &str, reason: Dropped, count: u64) -> Result<(), String> {
        self.oracle.trace.note(|| format!("{count} for {client_id} dropped: {reason:?}"));
        let is_honest = self.clients.iter().any(|client| *client.id == *client_id);
        let is_full = matches!(reason, Dropped::QueueFull(_));
        if !is_honest || !is_full && reason != Dropped::Unlogged {
            return Ok(());
        }
        self.honest_dropped += count;
        match is_full && self.mob.is_there() {
            true => Err(format!("{count} messages of {client_id} find no room")),
            false => Ok(()),
        }
    }

    /// A shard has taken a connection on.
    fn on_open(&mut self, peer: &str, now_ms: u64) {
        let Ok(arrival) = peer.parse::<u32>() else { return };
        let Some(admitted) = self.node.admitted.get_mut(&arrival) else { return };
        if std::mem::replace(&mut admitted.is_open, true) {
            return;
        }
        let (who, is_clean, expires_ms) = (admitted.who, admitted.is_clean, admitted.expires_ms);
        let person = admitted.person.clone();
        self.note(|| format!("arrival {arrival} of client {who} is open"));
        let place = self.node.place_of(broker::Name::first(&self.clients[who].id));
        let client = &mut self.clients[who];
        let number = client.number;
        client.fate.on_admitted(arrival, is_clean, client.expiry_secs, now_ms);
        let resumes = client.fate.expects_session();
        self.toll.resumed_unwritten += u64::from(self.node.is_unwritten && resumes);
        match client.wire.as_mut().filter(|wire| wire.arrival == arrival) {
            Some(wire) => wire.place = Some(place),
            // It has gone meanwhile, and knows nothing of this.
            None => client.fate.on_lost(false, now_ms),
        }
        if let Some(person) = person {
            self.note_expiry(who, expires_ms);
            self.oracle.on_person(number, place.shard, person, true);
        }
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
        let who = self.node.admitted.get(&arrival).map(|admitted| admitted.who);
        let mut next_is_clean = who.filter(|_| self.purging == who).map(|_| true);
        if *ended == Ended::TakenOver
            && let Some(next) = next
        {
            self.on_open(next, now_ms);
            let next = next.parse().ok().and_then(|next: u32| self.node.admitted.get(&next));
            next_is_clean = next_is_clean.or(next.map(|next| next.is_clean));
        }
        self.end_will(arrival, ended, next_is_clean);
        self.turns.keep_alive_cuts += u64::from(*ended == Ended::KeepAlive);
        self.turns.crowded += u64::from(*ended == Ended::Crowded);
        if let Some(cells) = &mut self.cells {
            cells.toll.disconnected += u64::from(*ended == Ended::CellLost);
        }
        let Some(admitted) = self.node.admitted.remove(&arrival) else { return Ok(()) };
        self.clients[admitted.who].fate.on_closed(arrival, now_ms);
        let rightly = self.may_end(admitted.who, arrival, ended);
        if let Some(line) = self.lines.get_mut(&admitted.who).filter(|it| it.arrival == arrival) {
            line.closed_ms = Some(now_ms);
        }
        match rightly {
            true => Ok(()),
            false => Err(format!("{} is cut: {ended:?}", self.clients[admitted.who].id)),
        }
    }

    /// Who keeps to the rules and within its share is not cut.
    fn may_end(&self, who: usize, arrival: u32, ended: &Ended) -> bool {
        let (terms, client) = (&self.oracle.terms, &self.clients[who]);
        let may = match ended {
            Ended::Client(_) | Ended::Network | Ended::TakenOver | Ended::Shutdown => true,
            Ended::NotKept | Ended::JournalFailed | Ended::Refused => {
                terms.may_refuse || self.cluster.as_ref().is_some_and(Cluster::has_superseded)
            }
            Ended::CellLost => self.cells.is_some(),
            Ended::QueueFull => terms.is_lossy,
            Ended::Crowded => self.room_is_tight,
            Ended::KeepAlive => self.has_been_silent(who),
            _ => false,
        };
        let is_there = client.wire.as_ref().is_some_and(|wire| wire.arrival == arrival);
        may || self.is_over || !is_there || self.steering.ends(who, ended, self.now_ms)
    }

    /// What a connection's end is to its will.
    fn end_will(&mut self, arrival: u32, ended: &Ended, next_is_clean: Option<bool>) {
        if *ended == Ended::NotKept {
            if let Some(admitted) = self.node.admitted.get(&arrival) {
                self.oracle.on_will_unsure(self.clients[admitted.who].number);
            }
            return;
        }
        if *ended == Ended::Shutdown {
            return self.oracle.on_will_stopped(arrival);
        }
        let is_goodbye = *ended == Ended::Client(Reason::NORMAL_DISCONNECTION);
        self.oracle.on_will_ended(arrival, is_goodbye, next_is_clean);
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
