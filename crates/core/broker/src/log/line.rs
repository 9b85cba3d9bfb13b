//! The line of a shard: publishes on their way to the retained store, the groups and the other
//! shards, in the order in which they came.
//!
//! A QoS 2 publish of a kept session goes on when it is committed. What its client publishes on the
//! same topic meanwhile, at whatever QoS, would overtake it. So it is delivered here, as the one
//! before it was, and goes on behind it. Publishes on other topics, and of clients that have no QoS
//! 2 publish under way, do not wait.

use std::collections::VecDeque;

use codec::{Publish, Reason};
use foldhash::fast::FixedState;
use session::{Message, Respondent};
use storage::{Journal, Level, Position};

use crate::deliver::copies::Routed;
use crate::log::{Durable, Kept};
use crate::parts::groups::Groups;
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::words::queue_number::QueueNumber;
use crate::{Confirm, Name};

/// Bytes of messages that wait behind others. Policy: above it, whoever sends more of them is not
/// read.
const BEHIND_BYTES_MAX: usize = 1024 * 1024;

/// What waits. Bounded by the receive maxima of the publishers, and by [`BEHIND_BYTES_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: VecDeque<PendingEntry>,
    behind_bytes: usize,
    wills: usize,
}

#[derive(Debug)]
pub(super) enum PendingEntry {
    /// It was taken on, and goes on when its record is committed.
    Taken {
        serial: u64,
        position: Position,
        level: Level,
    },
    Behind(Box<Behind>),
    /// A will, behind others of its client and topic, or behind such a will: their serials have to
    /// reach others in their order.
    Will {
        serial: u64,
    },
}

/// A publish that goes on behind others of its client and topic.
#[derive(Debug)]
pub(super) struct Behind {
    /// The queue number of its session.
    pub(crate) session: QueueNumber,
    pub(crate) message: Message,
    pub(crate) confirm: Option<Confirm>,
    /// All others have it.
    pub(super) is_for_store_only: bool,
}

impl Line {
    pub(super) fn push_taken(&mut self, serial: u64, position: Position, level: Level) {
        self.waiting.push_back(PendingEntry::Taken { serial, position, level });
    }

    fn push_behind(&mut self, behind: Behind) {
        self.behind_bytes += behind.message.heap_bytes();
        self.waiting.push_back(PendingEntry::Behind(Box::new(behind)));
    }

    /// The next one, if it can go on.
    pub(super) fn next(&mut self, journal: &Journal) -> Option<PendingEntry> {
        match self.waiting.front()? {
            PendingEntry::Taken { position, level, .. }
                if !journal.is_committed(*position, *level) =>
            {
                None
            }
            _ => self.pop(),
        }
    }

    pub(super) fn pop(&mut self) -> Option<PendingEntry> {
        let waiting = self.waiting.pop_front()?;
        match &waiting {
            PendingEntry::Taken { .. } => {}
            PendingEntry::Behind(behind) => self.behind_bytes -= behind.message.heap_bytes(),
            PendingEntry::Will { .. } => self.wills -= 1,
        }
        Some(waiting)
    }
}

impl Durable {
    /// Would this message overtake an older one of the same client and topic?
    #[inline(always)]
    pub(crate) fn would_overtake(&self, cx: &Context, slot: u32, message: &Message) -> bool {
        self.store.is_some() && self.kept.would_overtake(cx, slot, message)
    }
}

impl Kept {
    #[inline(never)]
    fn would_overtake(&self, cx: &Context, slot: u32, message: &Message) -> bool {
        let durable = self.get(slot);
        durable.and_then(|durable| durable.rare.as_ref()).is_some_and(|rare| {
            !rare.in_line.is_empty() && rare.in_line.contains(&cx.topic_mark(Name::of(message)))
        })
    }
}

impl Context {
    /// Stands for a topic. Should two have the same, one waits for the other.
    pub(super) fn topic_mark(&self, topic: Name<'_>) -> u64 {
        topic.hash(&FixedState::with_seed(self.shared.seed))
    }
}

impl Kept {
    /// Something of the session on this topic is in the line.
    pub(super) fn enter_line(&mut self, cx: &Context, slot: u32, topic: Name<'_>) {
        let mark = cx.topic_mark(topic);
        if let Some(durable) = self.get_mut(slot) {
            durable.rare().in_line.push_back(mark);
        }
    }

    /// What the session had in the line first goes on.
    pub(super) fn leave_line(&mut self, session: Option<QueueNumber>) {
        let durable = session.and_then(|session| self.of_queue(session));
        if let Some(rare) = durable.and_then(|durable| durable.rare.as_mut()) {
            rare.in_line.pop_front();
        }
    }
}

impl Durable {
    /// The message goes on behind older ones; so much of its way is left.
    pub(crate) fn wait_in_line(
        &mut self,
        cx: &Context,
        slot: u32,
        message: &Message,
        asked: Option<&mut Asked>,
        is_for_store_only: bool,
    ) {
        let durable = self.kept.get(slot);
        let Some(session) = durable.map(|durable| durable.queue).expected() else { return };
        self.kept.enter_line(cx, slot, Name::of(message));
        let Some(store) = self.store.as_mut().expected() else { return };
        let message = message.clone();
        let confirm = asked.map(|asked| asked.ask(Respondent::LINE));
        store.line.push_behind(Behind { session, message, confirm, is_for_store_only });
    }

    /// What can go on does.
    pub(crate) fn pass_on_line(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
    ) {
        while let Some(store) = self.store.as_mut().filter(|s| !s.handovers.is_resuming)
            && let Some(waiting) = store.line.next(&store.journal)
        {
            match waiting {
                PendingEntry::Taken { serial, .. } | PendingEntry::Will { serial } => {
                    self.pass_on_taken(cx, sessions, groups, retained, serial);
                }
                PendingEntry::Behind(behind) => {
                    self.pass_on_behind(cx, sessions, groups, retained, *behind)
                }
            }
        }
    }

    /// The journal is out of service: what it should have kept is refused, and delays nothing.
    pub(super) fn break_line(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
    ) {
        while let Some(store) = &mut self.store
            && let Some(waiting) = store.line.pop()
        {
            match waiting {
                PendingEntry::Taken { serial, .. } => self.refuse_taken(cx, sessions, serial),
                PendingEntry::Will { serial } => {
                    self.pass_on_taken(cx, sessions, groups, retained, serial)
                }
                PendingEntry::Behind(behind) => {
                    self.pass_on_behind(cx, sessions, groups, retained, *behind)
                }
            }
        }
    }

    fn pass_on_behind(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
        behind: Behind,
    ) {
        let Behind { session, message, confirm, is_for_store_only } = behind;
        self.kept.leave_line(Some(session));
        let mut routed = Routed::default();
        let mut asked = confirm.map(Asked::new);
        if message.retain() {
            retained.retain_or_wait(cx, sessions, self, &message, asked.as_mut(), &mut routed);
        }
        let is_refused = routed.refused.is_some() && confirm.is_some();
        if !is_for_store_only && !is_refused {
            sessions.route_onward(cx, self, groups, &message, asked.as_mut(), &mut routed);
        }
        let (Some(confirm), Some(mut asked)) = (confirm, asked) else { return };
        if let Some(reason) = routed.refused {
            sessions.on_confirmed(cx, self, confirm, reason, Some(&message));
            return;
        }
        // It waits for these, and for the line no more. If its connection has ended, what comes
        // again on the next one does.
        if let Some(slot) = sessions.slot_of(confirm.publisher) {
            let (awaited, number) = (asked.take_awaited().unwrap_or_default(), confirm.ack_number);
            let is_current = sessions.link(slot, confirm.connection).is_some();
            let Some(client) = sessions.get_mut(slot).expected() else { return };
            let session = &mut client.session;
            match is_current {
                true => session.await_more(number, &awaited),
                false => session.incoming.await_more((confirm.connection, number), &awaited),
            }
        }
        // Says nothing of whether anybody subscribes.
        sessions.on_confirmed(cx, self, confirm, Reason::NO_MATCHING_SUBSCRIBERS, None);
    }

    /// Lines a will up, if it would overtake anything. Subscribers here have it.
    pub(super) fn will_waits_in_line(
        &mut self,
        cx: &Context,
        session: QueueNumber,
        serial: u64,
        message: &Message,
    ) -> bool {
        let slot = self.kept.find(session);
        let waits = self.store.as_ref().is_some_and(|store| store.line.wills > 0)
            || slot.is_some_and(|slot| self.would_overtake(cx, slot, message));
        let Some(store) = self.store.as_mut().filter(|_| waits) else { return false };
        store.line.waiting.push_back(PendingEntry::Will { serial });
        store.line.wills += 1;
        if let Some(slot) = slot {
            store.handovers.note_in_line(serial);
            self.kept.enter_line(cx, slot, Name::of(message));
        }
        true
    }

    /// Does too much wait behind others, and may this publish be more of it?
    pub(crate) fn line_is_full(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.line.behind_bytes > BEHIND_BYTES_MAX)
    }
}

impl Kept {
    /// Would a publish of the session join a line that is full?
    pub(crate) fn waits_for_line(&self, slot: u32, publish: &Publish<'_>) -> bool {
        let rare = self.get(slot).and_then(|durable| durable.rare.as_ref());
        let has_any = rare.is_some_and(|rare| !rare.in_line.is_empty());
        has_any && publish.qos != codec::QoS::ExactlyOnce
    }
}
