//! Stands for another cell among the places of this one.
//!
//! What shards ask is kept until the other cell has answered. Should that have a new owner, all of
//! it is asked again, in the order of each shard: so nothing in a shard depends on which owner
//! answers. Two things cannot be asked twice. A message of QoS 0 is lost with its owner. One of QoS
//! 2 that no journal has taken on might be delivered twice: its publisher is disconnected.
//!
//! While the other cell has no owner, messages of QoS 1 and 2 wait. After [`PEER_WAIT_MS`] their
//! publishers are refused, except for what was taken on, which waits for ever. Nothing else waits
//! for a cell without an owner: SUBACKs do not, as a new owner takes this cell for one that wants
//! everything until it has its summary.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use codec::{QoS, Reason};
use foldhash::fast::FixedState;
use session::{Account, Message, Respondent};
use topic::interest::{Lanes, Snapshot};
use topic::{Cursor, has_wildcard};

use super::dealt::Dealt;
use super::frame::{Carried, Frame, PageEnd, Query};
use super::requests::{Request, Requests};
use super::summary::{Passed, Told};
use super::wire::fitting;
use crate::words::homes::Place;
use crate::words::ledger::NOBODY;
use crate::{BarrierKind, Confirm, Mail, Name, RetainedQuery, SessionKey, ShardId, Shared};

/// How long publishers wait for a cell without an owner, in ms.
pub const PEER_WAIT_MS: u64 = 30_000;

/// Accounts of the other cell's users whose names were seen lately.
const OWNERS_MAX: usize = 1024;

/// What follows from an input, in order. The driver of the gateway takes it out.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// To the other cell. The shard says in which order a frame is.
    pub frames: Vec<(ShardId, Frame)>,
    /// To shards of this cell.
    pub mail: Vec<(ShardId, Mail)>,
}

/// What no owner of a cell of this cluster sends. The link is to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misfit {
    #[error("a frame of shard {shard} of another cell: must be below {shards}")]
    Shard { shard: ShardId, shards: ShardId },
    #[error("a retained message, or a question for one, that has its home in cell {cell}")]
    Home { cell: u16 },
}

/// Who has the other cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Absent,
    Owner { epoch: u64 },
}

/// A fault that tests plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayFlaw {
    /// A new owner is not asked what the one before has not answered: messages.
    ForgetsMessages,
    /// Retained messages.
    ForgetsPages,
    /// Whether messages are dealt with.
    ForgetsGrants,
    /// SUBACKs wait for an owner that is gone.
    KeepsBarriers,
    /// A SUBACK does not wait for the other cell.
    PassesEarly,
    /// What is asked again comes behind what is newer.
    AsksAgainLate,
    /// QoS 2 without a serial is asked again.
    RepeatsExact,
    /// A cell counts as one that wants nothing until its summary is known.
    TakesUnknownForEmpty,
    /// An answer to an earlier owner may answer a question of the present one.
    ReusesNumbers,
    /// A message is answered before the shards have.
    AnswersEarly,
}

pub struct Gateway {
    shared: Arc<Shared>,
    place: Place,
    peer: Peer,
    /// Of the newest owner that the other cell had.
    last_epoch: u64,
    requests: Requests,
    dealt: Dealt,
    told: Told,
    /// Questions for the summary of the other cell.
    asks: u64,
    owners: HashMap<Box<str>, Arc<Account>, FixedState>,
    flaw: Option<GatewayFlaw>,
    /// What is asked again, if that flaw is planted.
    late: Vec<(ShardId, Frame)>,
}

impl Gateway {
    /// Nobody has the cell at `place` yet.
    pub fn new(shared: Arc<Shared>, place: Place) -> Self {
        shared.interest.set_unknown(place);
        Self {
            shared,
            place,
            peer: Peer::Absent,
            last_epoch: 0,
            requests: Requests::default(),
            dealt: Dealt::default(),
            told: Told::default(),
            asks: 0,
            owners: HashMap::default(),
            flaw: None,
            late: Vec::new(),
        }
    }

    /// The epoch of the other cell's owner, whose frames are taken.
    pub const fn epoch(&self) -> Option<u64> {
        match self.peer {
            Peer::Owner { epoch } => Some(epoch),
            Peer::Absent => None,
        }
    }

    /// Of the newest owner of which this gateway has heard.
    pub const fn last_epoch(&self) -> u64 {
        self.last_epoch
    }

    /// Questions that wait for an answer, of shards here and of the other cell.
    pub fn waiting(&self) -> usize {
        self.requests.len() + self.dealt.len() + self.told.waiting()
    }

    /// The other cell has this owner.
    pub fn peer_changed(&mut self, epoch: u64, out: &mut Outgoing) {
        if epoch < self.last_epoch || self.peer == (Peer::Owner { epoch }) {
            return;
        }
        // The same owner may have seemed to be gone: it still waits for what it has asked.
        if epoch != self.last_epoch {
            self.forget_dealt();
        }
        (self.peer, self.last_epoch) = (Peer::Owner { epoch }, epoch);
        self.pass_all(out);
        self.ask_summary(out);
        self.disconnect_exact(out);
        self.ask_again(out);
    }

    /// The new owner gets all that is not answered, in the order of each shard.
    fn ask_again(&mut self, out: &mut Outgoing) {
        let flaw = self.flaw;
        self.requests.supersede();
        let is_asked =
            |(_, it): &(u64, &mut Request)| !it.is_superseded() && !is_forgotten(it, flaw);
        for (number, request) in self.requests.in_order().filter(is_asked) {
            request.was_sent = true;
            let frame = frame_of(number, (request.from, &request.mail), &self.shared)
                .map(|frame| (request.from, frame));
            match flaw {
                Some(GatewayFlaw::AsksAgainLate) => self.late.extend(frame),
                _ => out.frames.extend(frame),
            }
        }
    }

    fn forget_dealt(&mut self) {
        if self.flaw != Some(GatewayFlaw::ReusesNumbers) {
            self.dealt.forget();
        }
    }

    /// Plants a fault.
    #[cfg(feature = "testing")]
    pub const fn plant(&mut self, flaw: GatewayFlaw) {
        self.flaw = Some(flaw);
    }

    /// The owner of this epoch is gone.
    pub fn peer_lost(&mut self, epoch: u64, out: &mut Outgoing) {
        if self.peer != (Peer::Owner { epoch }) {
            return;
        }
        self.peer = Peer::Absent;
        self.pass_all(out);
        self.disconnect_exact(out);
        self.shared.interest.keep_promises_only(self.place);
    }

    /// The lease of this cell had run out, and its owner goes on: what it knows of others may have
    /// changed without it.
    pub fn on_lapse(&mut self, out: &mut Outgoing) {
        match self.peer {
            Peer::Owner { .. } => self.ask_summary(out),
            Peer::Absent => self.shared.interest.set_unknown(self.place),
        }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Outgoing) {
        self.shared.interest.release_clears(now_ms);
        out.frames.append(&mut self.late);
        if matches!(self.peer, Peer::Owner { .. }) {
            return self.told.tell(&self.shared.interest, &mut out.frames);
        }
        let is_over = |it: &Request| now_ms.saturating_sub(it.since_ms) >= PEER_WAIT_MS;
        let over = self.requests.take_if(|it| it.may_be_refused() && is_over(it));
        out.mail.extend(over.into_iter().filter_map(|it| it.answered(Reason::QUOTA_EXCEEDED)));
        self.grant_absent(now_ms, out);
    }

    /// Without an owner, windows are held by messages that wait for one, not by those that are
    /// dropped. Publishers behind messages that have waited long are read, to be refused as well.
    fn grant_absent(&mut self, now_ms: u64, out: &mut Outgoing) {
        for request in self.requests.take_free_grants(now_ms.saturating_sub(PEER_WAIT_MS)) {
            self.grant(&request, out);
        }
    }

    /// Mail of a shard for the other cell.
    pub fn on_mail(&mut self, from: ShardId, mail: Mail, now_ms: u64, out: &mut Outgoing) {
        match mail {
            Mail::Publish { .. } | Mail::Retain { .. } => self.on_message(from, mail, now_ms, out),
            Mail::QueryRetained(_) | Mail::AskGrant { .. } => self.ask(from, mail, now_ms, out),
            Mail::Ask { number, kind, .. } => self.on_barrier((from, number), kind, out),
            Mail::Passed { by, number, .. } => self.on_dealt_barrier(number, by, out),
            Mail::Confirmed { confirm, reason, .. } => {
                self.on_dealt_answer(confirm.connection, from, reason, out);
            }
            Mail::Retained { query, messages, is_last } => {
                self.on_page(from, *query, messages, is_last, out);
            }
            Mail::Grant { by, bytes } => {
                for number in self.dealt.on_grant(bytes, by) {
                    out.frames.push((by, Frame::Granted { number }));
                }
            }
            // Between cells it is the credit windows that pace publishers.
            Mail::Congested { .. } => {}
            other => debug_assert!(false, "no cell takes this: {other:?}"),
        }
    }

    /// A frame of the other cell's present owner.
    ///
    /// # Errors
    ///
    /// No owner of a cell of this cluster sends it. Nothing has changed.
    pub fn on_frame(&mut self, frame: Frame, out: &mut Outgoing) -> Result<(), Misfit> {
        self.check(&frame)?;
        match frame {
            Frame::Publish(carried) => self.deal_publish(*carried, out),
            Frame::Retain(carried) => self.deal_retain(*carried, out),
            Frame::Query(query) => self.deal_query(*query, out),
            Frame::AskGrant { number, .. } => self.deal_grant(number, out),
            Frame::Answer { number, reason } => self.on_answer(number, reason, out),
            Frame::Page { number, messages, next } => {
                if let Some(request) = self.requests.take(number) {
                    out.mail.extend(page_of(request, messages, next));
                }
            }
            Frame::Granted { number } => {
                if let Some(request) = self.requests.take(number) {
                    self.grant(&request, out);
                }
            }
            Frame::AskSummary { ask } => {
                let frame = self.told.answer(&self.shared.interest, ask);
                out.frames.push((0, frame));
            }
            Frame::Summary { ask, snapshot } => {
                // One that was asked for before this cell forgot what it knew comes too late.
                if ask == self.asks && self.shared.interest.replace(self.place, &snapshot).is_ok() {
                    out.frames.push((0, Frame::Counts { through: snapshot.number() }));
                }
            }
            Frame::Changes { through, changes } => {
                match self.shared.interest.apply(self.place, &changes) {
                    Ok(()) => out.frames.push((0, Frame::Counts { through })),
                    // Of a table of another size: as if nothing were known of it.
                    Err(_) => self.ask_summary(out),
                }
            }
            Frame::Counts { through } => {
                let passed = self.told.on_counts(through);
                self.pass(passed, out);
            }
            Frame::Ask { number, from } => {
                let shards = self.shared.homes.shards();
                let own = self.dealt.barrier((from, number), u64::MAX >> (64 - shards));
                let kind = BarrierKind::Arrived;
                let mail = |shard| (shard, Mail::Ask { from: self.place, number: own, kind });
                out.mail.extend((0..shards).map(mail));
            }
            Frame::Passed { number, to, by } => {
                let passed = self.told.on_passed((to, number), by);
                self.pass(passed, out);
            }
        }
        Ok(())
    }

    /// All cells have the same shards, and agree on the homes of names.
    fn check(&self, frame: &Frame) -> Result<(), Misfit> {
        let homes = self.shared.homes;
        let shard = match frame {
            Frame::Publish(own) | Frame::Retain(own) => Some(own.from),
            Frame::AskGrant { from, .. } | Frame::Ask { from, .. } => Some(*from),
            Frame::Passed { to, by, .. } => Some((*to).max(*by)),
            Frame::Query(query) => query.after.as_ref().map(|end| end.shard),
            Frame::Page { next, .. } => next.as_ref().map(|end| end.shard),
            _ => None,
        };
        if let Some(shard) = shard.filter(|shard| *shard >= homes.shards()) {
            return Err(Misfit::Shard { shard, shards: homes.shards() });
        }
        let name = match frame {
            Frame::Retain(own) => Name::of(&own.message),
            Frame::Query(own) if !has_wildcard(&own.filter) => Name::new(own.scope, &*own.filter),
            _ => return Ok(()),
        };
        let home = name.home(homes);
        match homes.place_of(home) < homes.shards() {
            true => Ok(()),
            false => Err(Misfit::Home { cell: home.cell }),
        }
    }

    fn on_answer(&mut self, number: u64, reason: Reason, out: &mut Outgoing) {
        let answered = self.requests.take(number).and_then(|it| it.answered(reason));
        let behind = self.requests.behind(number);
        out.mail.extend(answered);
        for number in behind {
            if !reason.is_error() {
                let answered = self.requests.take(number).and_then(|it| it.answered(reason));
                out.mail.extend(answered);
            } else if let Some(request) = self.requests.stand_alone(number) {
                let frame = frame_of(number, (request.from, &request.mail), &self.shared);
                out.frames.extend(frame.map(|frame| (request.from, frame)));
            }
        }
    }

    fn on_message(&mut self, from: ShardId, mail: Mail, now_ms: u64, out: &mut Outgoing) {
        if is_answered(&mail) {
            return self.ask(from, mail, now_ms, out);
        }
        if self.epoch().is_some() {
            out.frames.extend(frame_of(0, (from, &mail), &self.shared).map(|frame| (from, frame)));
        } else {
            self.shared.metrics[usize::from(from)].mail_lost.add(1);
        }
    }

    fn ask(&mut self, from: ShardId, mail: Mail, now_ms: u64, out: &mut Outgoing) {
        let is_sent = self.epoch().is_some();
        let is_grant = matches!(mail, Mail::AskGrant { .. });
        let Some(number) = self.requests.push(from, mail, now_ms) else {
            return self.shared.metrics[usize::from(from)].mail_lost.add(1);
        };
        if is_sent && let Some(request) = self.requests.get_mut(number) {
            request.was_sent = true;
            out.frames.extend(
                frame_of(number, (request.from, &request.mail), &self.shared)
                    .map(|frame| (from, frame)),
            );
        }
        if !is_sent && is_grant {
            self.grant_absent(now_ms, out);
        }
    }

    fn on_barrier(
        &mut self,
        (from, number): (ShardId, u64),
        kind: BarrierKind,
        out: &mut Outgoing,
    ) {
        self.told.tell(&self.shared.interest, &mut out.frames);
        let is_early = self.flaw == Some(GatewayFlaw::PassesEarly);
        let passed = match kind {
            _ if is_early || self.epoch().is_none() => vec![(from, number, kind)],
            BarrierKind::Known => self.told.ask_known((from, number), &self.shared.interest),
            BarrierKind::Arrived => {
                let shards = u64::MAX >> (64 - self.shared.homes.shards());
                self.told.ask_arrived((from, number), shards);
                out.frames.push((from, Frame::Ask { number, from }));
                Vec::new()
            }
        };
        self.pass(passed, out);
    }

    /// A shard has answered a barrier of the other cell. The answer is behind all that the shard
    /// has sent before.
    fn on_dealt_barrier(&mut self, own: u64, by: ShardId, out: &mut Outgoing) {
        if let Some((to, number)) = self.dealt.on_barrier(own, by) {
            out.frames.push((by, Frame::Passed { number, to, by }));
        }
    }

    fn pass_all(&mut self, out: &mut Outgoing) {
        let mut waiting = self.told.restart();
        if self.flaw == Some(GatewayFlaw::KeepsBarriers) {
            waiting.clear();
        }
        self.pass(waiting, out);
    }

    fn pass(&self, questions: Vec<Passed>, out: &mut Outgoing) {
        out.mail.extend(
            questions.into_iter().map(|(shard, number, kind)| {
                (shard, Mail::Passed { by: self.place, number, kind })
            }),
        );
    }

    fn ask_summary(&mut self, out: &mut Outgoing) {
        self.shared.interest.set_unknown(self.place);
        if self.flaw == Some(GatewayFlaw::TakesUnknownForEmpty) {
            let empty = Snapshot::new(0, 0, Lanes::List(Vec::new()));
            let _ = empty.and_then(|empty| self.shared.interest.replace(self.place, &empty));
        }
        self.asks += 1;
        out.frames.push((0, Frame::AskSummary { ask: self.asks }));
    }

    /// Nobody knows whether the owner before has delivered them, nor will learn it. To refuse them
    /// later would say that it has not.
    fn disconnect_exact(&mut self, out: &mut Outgoing) {
        if self.flaw == Some(GatewayFlaw::RepeatsExact) {
            return;
        }
        let unknown = self.requests.take_if(Request::may_not_repeat);
        let reason = Reason::SERVER_SHUTTING_DOWN;
        out.mail.extend(unknown.into_iter().filter_map(|it| it.answered(reason)));
    }

    fn grant(&self, request: &Request, out: &mut Outgoing) {
        if let Mail::AskGrant { bytes, .. } = request.mail {
            out.mail.push((request.from, Mail::Grant { by: self.place, bytes }));
        }
    }

    fn deal_publish(&mut self, carried: Carried, out: &mut Outgoing) {
        let Carried { number, from, serial, is_will, owner, message } = carried;
        let key = Name::topic_of(&message).key();
        let interested = self.shared.interest.shards(&key);
        let local = u64::MAX >> (64 - self.shared.homes.shards());
        let wants = interested.wants & local;
        let asked = match (number, serial) {
            (0, _) => 0,
            _ if self.flaw == Some(GatewayFlaw::AnswersEarly) => 0,
            // All have to know it by its serial.
            (_, 1..) => wants,
            _ => wants & interested.promises,
        };
        if number != 0 && asked == 0 {
            let reason = if wants == 0 { Reason::NO_MATCHING_SUBSCRIBERS } else { Reason::SUCCESS };
            out.frames.push((from, Frame::Answer { number, reason }));
        }
        let own = if asked == 0 { 0 } else { self.dealt.message(number, asked) };
        let owner = self.owner(&owner).map_or(NOBODY, |account| account.number());
        for shard in shards_of(wants) {
            let is_asked = asked & 1 << shard != 0;
            let confirm = is_asked.then(|| Confirm {
                respondent: Respondent::shard(shard),
                ..self.confirm((own, from), (serial, is_will), owner)
            });
            out.mail.push((shard, Mail::Publish { message: message.clone(), confirm, owner }));
        }
    }

    fn deal_retain(&mut self, carried: Carried, out: &mut Outgoing) {
        let Carried { number, from, serial, is_will, owner, message } = carried;
        let home = Name::of(&message).home(self.shared.homes).shard;
        let owner = self.owner(&owner);
        let number_of = owner.as_ref().map_or(NOBODY, |account| account.number());
        let confirm = (number != 0).then(|| {
            let own = self.dealt.message(number, 1 << home);
            Confirm {
                respondent: Respondent::shard(home),
                ..self.confirm((own, from), (serial, is_will), number_of)
            }
        });
        out.mail.push((home, Mail::Retain { message, confirm, owner }));
    }

    /// What shards here answer to: the gateway, for a shard of the other cell.
    const fn confirm(
        &self,
        (own, from): (u64, ShardId),
        (serial, is_will): (u64, bool),
        owner: u32,
    ) -> Confirm {
        Confirm {
            publisher: SessionKey::new(self.place, from, 0),
            connection: own,
            ack_number: 0,
            packet_id: 0,
            respondent: Respondent::ASKING,
            serial,
            is_will,
            owner,
            is_again: false,
        }
    }

    fn deal_query(&mut self, query: Query, out: &mut Outgoing) {
        let Query { number, scope, filter, after } = query;
        let home = match has_wildcard(&filter) {
            true => after.as_ref().map_or(0, |end| end.shard),
            false => Name::new(scope, &*filter).home(self.shared.homes).shard,
        };
        let query = RetainedQuery {
            subscriber: SessionKey::new(self.place, 0, 0),
            home,
            scope,
            filter,
            ask: 0,
            page: self.dealt.page(number),
            // All that was on its way has come before the first page.
            is_settled: after.is_some(),
            after: after.and_then(|end| end.after),
            shard: 0,
        };
        out.mail.push((home, Mail::QueryRetained(Box::new(query))));
    }

    fn on_page(
        &mut self,
        by: ShardId,
        query: RetainedQuery,
        mut messages: Vec<Message>,
        is_last: bool,
        out: &mut Outgoing,
    ) {
        let Some(number) = self.dealt.on_page(query.page) else { return };
        let has_more = has_wildcard(&query.filter) && by + 1 < self.shared.homes.shards();
        // What no frame has room for is asked for again.
        let left_out = messages.split_off(fitting(&messages));
        let next = match (is_last, has_more) {
            _ if let Some(first) = left_out.first() => {
                let after = Some(Cursor::at(Name::of(first).key().as_bytes()));
                Some(PageEnd { shard: by, after })
            }
            (false, _) => Some(PageEnd { shard: by, after: query.after }),
            (true, true) => Some(PageEnd { shard: by + 1, after: None }),
            (true, false) => None,
        };
        out.frames.push((by, Frame::Page { number, messages, next }));
    }

    fn deal_grant(&mut self, number: u64, out: &mut Outgoing) {
        let shards = self.shared.homes.shards();
        let own = self.dealt.grant(number, u64::MAX >> (64 - shards));
        let mail = |shard| (shard, Mail::AskGrant { from: self.place, bytes: own });
        out.mail.extend((0..shards).map(mail));
    }

    fn on_dealt_answer(&mut self, own: u64, by: ShardId, reason: Reason, out: &mut Outgoing) {
        if let Some((number, reason)) = self.dealt.on_answer(own, by, reason) {
            out.frames.push((by, Frame::Answer { number, reason }));
        }
    }

    /// The account of somebody who is known by this name.
    fn owner(&mut self, name: &str) -> Option<Arc<Account>> {
        if name.is_empty() {
            return None;
        }
        if let Some(known) = self.owners.get(name) {
            return Some(Arc::clone(known));
        }
        if self.owners.len() >= OWNERS_MAX {
            self.owners.clear();
        }
        let account = self.shared.account(name);
        self.owners.insert(name.into(), Arc::clone(&account));
        Some(account)
    }
}

/// QoS 0 is not, but for what a journal has taken on.
fn is_answered(mail: &Mail) -> bool {
    let (Mail::Publish { message, confirm, .. } | Mail::Retain { message, confirm, .. }) = mail
    else {
        return true;
    };
    confirm.is_some() || message.qos() != QoS::AtMostOnce
}

/// By a planted fault.
fn is_forgotten(request: &Request, flaw: Option<GatewayFlaw>) -> bool {
    match flaw {
        Some(GatewayFlaw::ForgetsMessages) => request.mail.message().is_some(),
        Some(GatewayFlaw::ForgetsPages) => matches!(request.mail, Mail::QueryRetained(_)),
        Some(GatewayFlaw::ForgetsGrants) => matches!(request.mail, Mail::AskGrant { .. }),
        _ => false,
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, peer, requests, dealt, told, .. } = self;
        write!(f, "place {place}, {peer:?}, {requests:?}, {dealt:?}, {told:?}")
    }
}

/// What the other cell is sent of a request.
fn frame_of(number: u64, (from, mail): (ShardId, &Mail), shared: &Shared) -> Option<Frame> {
    let carried = |message: &Message, confirm: Option<&Confirm>, owner: Arc<str>| {
        let serial = confirm.map_or(0, |confirm| confirm.serial);
        let is_will = confirm.is_some_and(|confirm| confirm.is_will);
        let message = message.clone();
        Box::new(Carried { number, from, serial, is_will, owner, message })
    };
    let name =
        |account: Option<Arc<Account>>| account.map_or_else(Arc::default, |it| it.name().into());
    match mail {
        Mail::Publish { message, confirm, owner } => {
            let owner = if *owner == NOBODY { None } else { shared.ledger.by_number(*owner) };
            Some(Frame::Publish(carried(message, confirm.as_ref(), name(owner))))
        }
        Mail::Retain { message, confirm, owner } => {
            Some(Frame::Retain(carried(message, confirm.as_ref(), name(owner.clone()))))
        }
        Mail::QueryRetained(query) => {
            let RetainedQuery { scope, filter, after, shard, .. } = &**query;
            let after = (*shard > 0 || after.is_some())
                .then(|| PageEnd { shard: *shard, after: after.clone() });
            let (scope, filter) = (*scope, Arc::clone(filter));
            Some(Frame::Query(Box::new(Query { number, scope, filter, after })))
        }
        Mail::AskGrant { .. } => Some(Frame::AskGrant { number, from }),
        _ => None,
    }
}

/// A page for the shard that has asked for it.
fn page_of(
    request: Request,
    messages: Vec<Message>,
    next: Option<PageEnd>,
) -> Option<(ShardId, Mail)> {
    let Mail::QueryRetained(mut query) = request.mail else { return None };
    let is_last = next.is_none();
    (query.shard, query.after) = next.map_or((0, None), |end| (end.shard, end.after));
    Some((request.from, Mail::Retained { query, messages, is_last }))
}

fn shards_of(mut bits: u64) -> impl Iterator<Item = ShardId> {
    std::iter::from_fn(move || {
        let shard = (bits != 0).then(|| bits.trailing_zeros() as ShardId)?;
        bits &= bits - 1;
        Some(shard)
    })
}

#[cfg(test)]
mod tests {
    use session::{MessageParts, NEVER};

    use super::super::requests::UNAWAITED_MAX;
    use super::*;
    use crate::{Homes, Scope, Settings};

    /// Of cell 0, for cell 1 behind two shards.
    fn gateway() -> Gateway {
        let mut gateway =
            Gateway::new(Shared::of_cell(Settings::default(), Homes::new(2, 0, 2), 1, 7), 2);
        gateway.peer_changed(1, &mut Outgoing::default());
        gateway
    }

    fn message(topic: &str, payload: &[u8]) -> Message {
        Message::new(&MessageParts {
            topic,
            properties: &[],
            payload,
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at_ms: NEVER,
            publisher: 0,
            author: 0,
            level: 0,
            scope: 0,
        })
    }

    fn retain(topic: &str, from: ShardId) -> Frame {
        let (number, serial, is_will, owner) = (1, 0, false, Arc::default());
        let message = message(topic, b"1");
        Frame::Retain(Box::new(Carried { number, from, serial, is_will, owner, message }))
    }

    fn topic_of(cell: u16) -> String {
        let is_there =
            |topic: &String| Name::first(topic.as_str()).home(Homes::new(2, 0, 2)).cell == cell;
        (0..).map(|number| format!("t/{number}")).find(is_there).expect("names spread over cells")
    }

    #[test]
    fn frames_that_no_cell_of_the_cluster_sends_are_refused() {
        let (mut gateway, mut out) = (gateway(), Outgoing::default());
        let (own, others) = (topic_of(0), topic_of(1));
        let refused = Err(Misfit::Shard { shard: 2, shards: 2 });
        let asks = Frame::AskGrant { number: 1, from: 2 };
        assert_eq!(gateway.on_frame(asks, &mut out), refused);
        assert_eq!(gateway.on_frame(retain(&own, 2), &mut out), refused);
        let elsewhere = Err(Misfit::Home { cell: 1 });
        assert_eq!(gateway.on_frame(retain(&others, 0), &mut out), elsewhere);
        assert!(out.mail.is_empty() && out.frames.is_empty());
        assert_eq!(gateway.on_frame(retain(&own, 1), &mut out), Ok(()));
        assert_eq!(out.mail.len(), 1);
    }

    #[test]
    fn a_page_that_no_frame_has_room_for_is_cut() {
        let (mut gateway, mut out) = (gateway(), Outgoing::default());
        let (scope, filter, after) = (Scope::FIRST, "#".into(), None);
        let query = Frame::Query(Box::new(Query { number: 5, scope, filter, after }));
        assert_eq!(gateway.on_frame(query, &mut out), Ok(()));
        let Some((0, Mail::QueryRetained(query))) = out.mail.pop() else {
            panic!("shard 0 is asked first: {out:?}");
        };
        let large = vec![0; 600 * 1024];
        let messages = ["a", "b", "c"].map(|topic| message(topic, &large)).to_vec();
        gateway.on_mail(0, Mail::Retained { query, messages, is_last: true }, 0, &mut out);
        let Some((_, Frame::Page { number: 5, messages, next })) = out.frames.pop() else {
            panic!("the page is answered: {out:?}");
        };
        assert_eq!(messages.len(), 1);
        assert_eq!(next, Some(PageEnd { shard: 0, after: Some(Cursor::at(b"b")) }));
    }

    #[test]
    fn wills_without_number_wait_for_an_owner_until_there_are_too_many() {
        let shared = Shared::of_cell(Settings::default(), Homes::new(2, 0, 2), 1, 7);
        let (mut gateway, mut out) = (Gateway::new(shared, 2), Outgoing::default());
        let will = || Mail::Publish { message: message("w", b"1"), confirm: None, owner: NOBODY };
        let lost = |gateway: &Gateway| gateway.shared.metrics[0].mail_lost.value();
        for _ in 0..UNAWAITED_MAX {
            gateway.on_mail(0, will(), 0, &mut out);
        }
        gateway.on_tick(10 * PEER_WAIT_MS, &mut out);
        assert_eq!(lost(&gateway), 0);
        gateway.on_mail(0, will(), 0, &mut out);
        assert_eq!(lost(&gateway), 1);
        gateway.peer_changed(1, &mut out);
        let is_will = |(_, frame): &&(ShardId, Frame)| matches!(frame, Frame::Publish(_));
        assert_eq!(out.frames.iter().filter(is_will).count(), UNAWAITED_MAX);
    }
}
