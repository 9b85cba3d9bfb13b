//! What lies before other shards: messages that were mailed and not yet dealt with.
//!
//! Into its mail to each other shard a sender puts a mark now and then. The other answers with the
//! last one when the turn is over in which it came, and what that led to is written. A sender that
//! has too much before another shard takes no more publishes for it until such an answer comes:
//! their publishers wait, and are read on in their order. Mail itself waits for nobody.
//!
//! So a shard never has more to deliver in one turn than half an outbox takes, and what it tells
//! the publishers of a slow subscriber reaches them before they have sent more than that.

use std::collections::VecDeque;

use codec::Publish;
use session::Wait;

use crate::clients::Sessions;
use crate::routing::capacity::topic_of;
use crate::shard::context::Context;
use crate::sure::Sure;
use crate::{Name, ShardId, Shared};

/// Marks within what may lie before a shard.
const MARKS: u64 = 4;

/// Messages that a shard may send in a turn past those that wait, and the largest of them.
const PASSING_MAX: usize = 64;
const PASSING_BYTES_MAX: usize = 4 * 1024;

/// All ways from one shard to the others.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Box<[Lane]>,
    /// A bit per shard before which lies as much as may.
    full: u64,
    /// Of one lane.
    bytes_max: u64,
    /// Those who have sent something past others that wait, in this turn.
    passed: Vec<u32>,
    /// The latest marks in the mail of this turn, and whose they are.
    marks: Vec<(ShardId, u64)>,
}

/// Bytes since the start, and who waits.
#[derive(Debug, Default)]
struct Lane {
    sent_bytes: u64,
    marked_bytes: u64,
    taken_bytes: u64,
    /// Slots and connections. One entry for each connection, and for some that have ended.
    waiting: VecDeque<(u32, u64)>,
}

impl Lanes {
    pub(crate) fn new(shared: &Shared) -> Self {
        let lanes = (0..shared.shard_count).map(|_| Lane::default()).collect();
        let others = u64::from(shared.shard_count).saturating_sub(1).max(1);
        let bytes_max = shared.settings.mail_bytes_max / others;
        Self { lanes, full: 0, bytes_max, passed: Vec::new(), marks: Vec::new() }
    }

    /// Counts a message. Some: it is time for this mark.
    pub(crate) fn add(&mut self, shard: ShardId, bytes: u64) -> Option<u64> {
        let lane = &mut self.lanes[usize::from(shard)];
        lane.sent_bytes += bytes;
        if lane.sent_bytes - lane.taken_bytes >= self.bytes_max {
            self.full |= 1 << shard;
        }
        if lane.sent_bytes - lane.marked_bytes < self.bytes_max / MARKS {
            return None;
        }
        lane.marked_bytes = lane.sent_bytes;
        Some(lane.sent_bytes)
    }

    /// The first `bytes` that were sent to the shard are dealt with.
    pub(crate) fn take(&mut self, shard: ShardId, bytes: u64) {
        let lane = &mut self.lanes[usize::from(shard)];
        lane.taken_bytes = lane.taken_bytes.max(bytes);
        if lane.sent_bytes - lane.taken_bytes < self.bytes_max {
            self.full &= !(1 << shard);
        }
    }

    /// May a client that has brought one small message and nothing else send it, though so much
    /// lies before these shards? One in each turn: so who sends little does not wait for those who
    /// send much.
    fn lets_pass(&mut self, full: u64, slot: u32) -> bool {
        let is_over = |shard: usize| {
            let lane = &self.lanes[shard];
            full & 1 << shard != 0 && lane.sent_bytes - lane.taken_bytes >= 2 * self.bytes_max
        };
        let may = self.passed.len() < PASSING_MAX
            && !self.passed.contains(&slot)
            && !(0..self.lanes.len()).any(is_over);
        if may {
            self.passed.push(slot);
        }
        may
    }

    /// A mark has come in the mail of another shard.
    pub(crate) fn note_mark(&mut self, from: ShardId, bytes: u64) {
        match self.marks.iter_mut().find(|(shard, _)| *shard == from) {
            Some((_, latest)) => *latest = bytes,
            None => self.marks.push((from, bytes)),
        }
    }

    pub(crate) fn end_turn(&mut self) {
        self.passed.clear();
    }

    /// A shard that has to be told that its mail up to this mark is dealt with.
    pub(crate) fn next_mark(&mut self) -> Option<(ShardId, u64)> {
        self.marks.pop()
    }

    fn wait(&mut self, shard: ShardId, slot: u32, connection: u64) {
        self.lanes[usize::from(shard)].waiting.push_back((slot, connection));
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    /// Those in lines of lanes that have room.
    pub(crate) fn overdue(&self) -> impl Iterator<Item = (u32, u64)> {
        let has_room = |shard: &usize| self.full & 1 << shard == 0;
        let lanes = (0..self.lanes.len()).filter(has_room).map(|shard| &self.lanes[shard]);
        lanes.flat_map(|lane| lane.waiting.iter().copied())
    }

    pub(crate) fn next_waiting(&mut self, shard: ShardId) -> Option<(u32, u64)> {
        if self.full & (1 << shard) != 0 {
            return None;
        }
        self.lanes[usize::from(shard)].waiting.pop_front()
    }
}

impl Sessions {
    /// A shard with a full lane that this publish may go to. Of a group that matches, it is not
    /// known before which shard has the member that is chosen: any shard with a full lane is.
    pub(crate) fn full_lane_of(
        &mut self,
        cx: &mut Context,
        slot: u32,
        (publish, is_alone): (&Publish<'_>, bool),
    ) -> Option<ShardId> {
        let mut full = cx.effects.lanes().full;
        if full == 0 {
            return None;
        }
        let (client, router) = self.with_index(slot)?;
        let topic = Name::new(client.scope, topic_of(client, publish));
        let home = if publish.retain { 1 << cx.shared.shard_of_topic(topic) } else { 0 };
        let audience = router.audience(topic.as_bytes(), &mut cx.flow.work);
        if audience.groups().is_empty() {
            full &= audience.interested().wants | home;
        }
        router.keep(audience);
        let passes = full != 0
            && is_alone
            && publish.payload.len() <= PASSING_BYTES_MAX
            && cx.effects.lanes().lets_pass(full, slot);
        (full != 0 && !passes).then(|| full.trailing_zeros() as ShardId)
    }

    /// Reads nothing from a publisher before the shard has dealt with more of its mail.
    pub(crate) fn wait_for_mail(&mut self, cx: &mut Context, slot: u32, shard: ShardId) {
        if let Some(connection) = self.stand_in_line(cx, slot) {
            cx.effects.lanes().wait(shard, slot, connection);
            cx.metrics.mail_waits.add(1);
        }
    }

    /// Reads nothing from a connection before it is [read on](Shard::read_on). Some: it is to be
    /// put into the line; None: it stands in one.
    pub(crate) fn stand_in_line(&mut self, cx: &mut Context, slot: u32) -> Option<u64> {
        let connection = self.get(slot).sure()?.connection;
        self.change_gate(cx, slot, |gate| gate.shut(Wait::InLine)).then_some(connection)
    }
}
