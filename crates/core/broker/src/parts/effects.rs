//! What a shard has its driver carry out, and its mail to the other shards.

use std::ops::Range;
use std::sync::Arc;

use codec::Reason;
use policy::Principal;
use session::Outbox;

use crate::parts::client::Pace;
use crate::parts::windows::CreditWindows;
use crate::words::homes::Place;
use crate::words::stream_set::StreamNews;
use crate::{
    AccessQuestion, Answer, Event, Mail, Metrics, SPANS_MAX, Scope, SessionKey, ShardId, Shared,
    Span, Traced,
};

/// Events kept per turn; more are only counted (`quelea_events_lost_total`).
const EVENTS_MAX: usize = 10_000;

/// Emptied batches of mail kept for reuse, and the items that one may have room for.
const SPARE_BATCHES_MAX: usize = 4;
const BATCH_ITEMS_MAX: usize = 4096;

/// A connection that the driver has to close, after writing `farewell`.
#[derive(Debug)]
pub struct Close {
    pub slot: u32,
    pub connection: u64,
    pub farewell: Outbox,
}

/// A client wants to authenticate anew (MQTT-4.12.1): ask the back-end, then answer with
/// [`crate::Shard::on_reauthenticated`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reauthenticate {
    pub slot: u32,
    pub connection: u64,
    /// False: the client goes on with an exchange under way.
    pub is_start: bool,
    pub client_id: Box<str>,
    /// Who it is now, and which provider has said so: it has to be the same again.
    pub username: Option<Box<str>>,
    pub provider: Option<u32>,
    pub method: Box<str>,
    pub data: Box<[u8]>,
}

/// The answer to [`Reauthenticate`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reauthenticated {
    Continue(Vec<u8>),
    Success(Vec<u8>),
    /// The same user with a new credential, which says this.
    Renewed(Box<Principal>),
    Failure(Reason),
}

/// What the driver has to carry out, besides writing outboxes ([`crate::Shard::take_dirty`]). It
/// drains these after each turn.
#[derive(Debug)]
pub struct Effects {
    pub closes: Vec<Close>,
    /// Mail per place, also for the sender itself, in order.
    pub mail: Vec<Vec<Mail>>,
    /// A bit for each shard that mail was sent to since it was taken.
    mailed: u64,
    /// Read nothing from the connection before the time; `NEVER`: before another word about it.
    /// The latest word about a connection counts.
    pub pauses: Vec<(u64, u64)>,
    /// Each with the scope that it is about.
    pub events: Vec<(Scope, Event)>,
    pub reauthentications: Vec<Reauthenticate>,
    /// For the authorization service.
    pub questions: Vec<AccessQuestion>,
    /// For the owner of streams, in their order.
    pub stream_news: Vec<StreamNews>,
    /// To commands of operators, by their tickets.
    pub answers: Vec<(u32, Answer)>,
    /// Packets that operators look at.
    pub traced: Vec<Traced>,
    /// Of messages, for OpenTelemetry.
    spans: Vec<Span>,
    /// Times that the spans were taken.
    spans_round: u64,
    /// Spans that were left out, since they were taken.
    spans_lost: u64,
    id: ShardId,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    windows: CreditWindows,
    /// The publisher that was slowed down last in this turn.
    slowed_last: SessionKey,
    /// Emptied batches of mail, for what is sent next.
    spare_batches: Vec<Vec<Mail>>,
}

impl Effects {
    pub(crate) fn new(id: ShardId, shared: &Arc<Shared>) -> Self {
        Self {
            closes: Vec::new(),
            mail: (0..shared.homes.places()).map(|_| Vec::new()).collect(),
            mailed: 0,
            pauses: Vec::new(),
            events: Vec::new(),
            reauthentications: Vec::new(),
            questions: Vec::new(),
            stream_news: Vec::new(),
            answers: Vec::new(),
            traced: Vec::new(),
            spans: Vec::new(),
            spans_round: 0,
            spans_lost: 0,
            id,
            shared: shared.clone(),
            metrics: Arc::clone(&shared.metrics[usize::from(id)]),
            windows: CreditWindows::new(shared),
            slowed_last: SessionKey::NOBODY,
            spare_batches: Vec::new(),
        }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) const fn windows_read(&self) -> &CreditWindows {
        &self.windows
    }

    pub(crate) const fn windows(&mut self) -> &mut CreditWindows {
        &mut self.windows
    }

    pub(crate) fn send(&mut self, shard: ShardId, mail: Mail) {
        let bytes = mail.message_bytes();
        self.metrics().mail_sent.add(1);
        self.mailed |= 1 << shard;
        self.mail[usize::from(shard)].push(mail);
        if bytes > 0
            && shard != self.id
            && let Some(bytes) = self.windows.add(shard, bytes as u64)
        {
            self.send(shard, Mail::AskGrant { from: self.id, bytes });
        }
    }

    /// To the other shards of this cell.
    pub(crate) fn send_to_shards(&mut self, mail: &Mail) {
        self.send_to(0..self.shared.homes.shards(), mail);
    }

    /// To those, and to the other cells.
    pub(crate) fn send_to_others(&mut self, mail: &Mail) {
        self.send_to(0..self.shared.homes.places(), mail);
    }

    fn send_to(&mut self, places: Range<Place>, mail: &Mail) {
        for place in places {
            if place != self.id {
                self.send(place, mail.clone());
            }
        }
    }

    /// Tells the shard of a publisher that it is too fast: once per turn and publisher, as far as
    /// they come in a row.
    pub(crate) fn slow_down(&mut self, publisher: SessionKey, pace: Pace) {
        if publisher != SessionKey::NOBODY && publisher != self.slowed_last {
            self.slowed_last = publisher;
            let Pace { pause_ms, is_urgent, .. } = pace;
            self.send(publisher.shard(), Mail::Congested { publisher, pause_ms, is_urgent });
        }
    }

    /// All mail of this turn is dealt with: who waits for that is notified.
    pub(crate) fn end_turn(&mut self) {
        self.slowed_last = SessionKey::NOBODY;
        self.windows.end_turn();
        while let Some((from, bytes)) = self.windows.next_grant() {
            self.send(from, Mail::Grant { by: self.id, bytes });
        }
    }

    pub(crate) fn report(&mut self, scope: Scope, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push((scope, event));
        } else {
            self.metrics().events_lost.add(1);
        }
    }

    /// Is there anything for those who look at messages?
    pub fn has_traced(&self) -> bool {
        !self.traced.is_empty() || !self.spans.is_empty() || self.spans_lost > 0
    }

    /// Spans for the driver to hand on, and how many more there would have been.
    pub fn take_spans(&mut self) -> (Vec<Span>, u64) {
        self.spans_round += 1;
        (std::mem::take(&mut self.spans), std::mem::take(&mut self.spans_lost))
    }

    pub(crate) const fn spans_mut(&mut self) -> &mut [Span] {
        self.spans.as_mut_slice()
    }

    /// Which one the next span will be.
    pub(crate) const fn next_span(&self) -> (u64, usize) {
        (self.spans_round, self.spans.len())
    }

    pub(crate) fn note_span(&mut self, span: Span) {
        if self.spans.len() < SPANS_MAX {
            self.spans.push(span);
        } else {
            self.lose_span();
        }
    }

    pub(crate) const fn lose_span(&mut self) {
        self.spans_lost += 1;
    }

    pub(crate) fn count_left_out(&mut self, place: usize) {
        match self.spans.get_mut(place) {
            Some(span) => span.left_out += 1,
            None => self.lose_span(),
        }
    }

    /// Reads nothing from a connection until then.
    pub(crate) fn pause(&mut self, connection: u64, until_ms: u64) {
        self.pauses.push((connection, until_ms));
    }

    /// Is there nothing for the driver, but writes?
    pub(crate) fn is_empty(&self) -> bool {
        self.mailed == 0 && self.is_mail_only()
    }

    /// Is there nothing for the driver, but writes and mail?
    pub fn is_mail_only(&self) -> bool {
        self.pauses.is_empty()
            && self.closes.is_empty()
            && self.events.is_empty()
            && self.answers.is_empty()
            && self.questions.is_empty()
            && self.stream_news.is_empty()
            && self.reauthentications.is_empty()
            && !self.has_traced()
    }

    /// Takes the mail for the next shard that there is some for.
    pub fn next_batch(&mut self) -> Option<(ShardId, Vec<Mail>)> {
        while self.mailed != 0 {
            let shard = self.mailed.trailing_zeros() as ShardId;
            let mails = self.take_batch(shard);
            if !mails.is_empty() {
                return Some((shard, mails));
            }
        }
        None
    }

    /// Takes the mail for a shard, to be handed to its [`crate::Shard::on_batch`].
    pub fn take_batch(&mut self, shard: ShardId) -> Vec<Mail> {
        self.mailed &= !(1 << shard);
        let mails = &mut self.mail[usize::from(shard)];
        if mails.is_empty() {
            return Vec::new();
        }
        // What comes in a turn is many messages: a batch that grew anew each time would be moved
        // and given back over and over.
        std::mem::replace(mails, self.spare_batches.pop().unwrap_or_default())
    }

    pub(crate) fn keep_batch(&mut self, mails: Vec<Mail>) {
        if self.spare_batches.len() < SPARE_BATCHES_MAX && mails.capacity() <= BATCH_ITEMS_MAX {
            self.spare_batches.push(mails);
        }
    }
}
