//! The retained messages of the topics that have their home in a shard.

use std::collections::VecDeque;
use std::sync::Arc;

use session::{Account, MemoryKind, Message, Pot};
use topic::{Child, Cursor, has_wildcard};

use crate::parts::effects::Effects;
use crate::parts::packed::Kept;
use crate::words::ledger::OwnerCharges;
use crate::words::name::is_of_broker;
use crate::words::record_location::RecordLocation;
use crate::{Mail, Name, Quota, RetainedQuery, Scope, ShardId};

/// Retained messages in one page.
pub(crate) const PAGE_MESSAGES: usize = 100;

/// Pages that a home gives in one turn, some 0.05 ms each; other subscribers wait for the next.
const PAGES_PER_TURN: usize = 32;

/// Retained messages looked at per tick for expiry.
const SWEEP_MESSAGES: usize = 1000;

#[derive(Debug)]
pub(crate) struct Retained {
    kept: topic::Retained<Kept>,
    /// For memory, and for the journal.
    charges: [OwnerCharges; 2],
    /// Pages that were asked for, and how many this turn has had.
    asked: VecDeque<Box<RetainedQuery>>,
    given: usize,
    /// The number of the last page that was asked for here, of whatever home.
    last_page: u64,
    /// Where the walk that looks for what has expired goes on.
    sweep: Option<Cursor>,
}

impl Retained {
    pub(crate) fn new(shard: ShardId) -> Self {
        let pots = [Pot::Memory(MemoryKind::Retained), Pot::Journal(shard.into())];
        Self {
            kept: topic::Retained::new(),
            charges: pots.map(OwnerCharges::of),
            asked: VecDeque::new(),
            given: 0,
            last_page: 0,
            sweep: None,
        }
    }

    /// Where the message of a topic stands in the journal, if there is one.
    pub(crate) fn place_of(&self, topic: Name<'_>) -> Option<RecordLocation> {
        self.kept.get(&topic.key()).map(|kept| kept.place)
    }

    pub(crate) fn set_place(&mut self, topic: Name<'_>, place: RecordLocation) {
        let charges = &mut self.charges[1];
        self.kept.change(&topic.key(), |kept| {
            charges.change(kept.owner, kept.place.bytes.into(), place.bytes.into());
            kept.place = place;
        });
    }

    /// False: it would go beyond the limit. What takes the place of an older one needs room for
    /// what it is larger by.
    pub(crate) fn has_room_for(
        &self,
        message: &Message,
        owner: Option<&Arc<Account>>,
        effects: &Effects,
    ) -> bool {
        if is_own(message.topic()) {
            return true;
        }
        let bytes = message.heap_bytes() as u64;
        let old = self.kept.get(&Name::of(message).key());
        if let Some(space) = effects.shared().spaces.of(Scope::of(message)) {
            let more_bytes = bytes.saturating_sub(old.map_or(0, |old| old.bytes() as u64));
            let lacks_messages = old.is_none() && space.lacks(Quota::RetainedMessages, 1);
            if lacks_messages || more_bytes > 0 && space.lacks(Quota::RetainedBytes, more_bytes) {
                return false;
            }
        }
        if let Some(owner) = owner {
            let old = old.filter(|old| old.owner == owner.number());
            let more = bytes.saturating_sub(old.map_or(0, |old| old.bytes() as u64));
            if more > 0 && effects.shared().lacks_room_to_retain_for(owner, more) {
                return false;
            }
        }
        match old {
            Some(old) => {
                let more = bytes.saturating_sub(old.bytes() as u64);
                !effects.shared().lacks_room_to_retain(0, more)
            }
            None => !effects.shared().lacks_room_to_retain(1, bytes),
        }
    }

    /// Keeps a message. Returns where the one stood that it replaces.
    pub(crate) fn insert(
        &mut self,
        message: &Message,
        place: RecordLocation,
        owner: Option<&Arc<Account>>,
        effects: &Effects,
    ) -> Option<RecordLocation> {
        let mut kept = Kept::new(message, place);
        let bytes = kept.bytes();
        if let Some(owner) = owner {
            for (charges, bytes) in self.charges.iter_mut().zip(charged(&kept)) {
                kept.owner = charges.charge(owner, bytes);
            }
        }
        let old = self.kept.insert(kept);
        if let Some(old) = &old {
            self.release(old);
        }
        let (more, more_bytes) = match &old {
            Some(old) => (0, bytes - old.bytes()),
            None => (1, bytes),
        };
        count(Name::of(message), more, more_bytes, effects);
        old.map(|old| old.place)
    }

    /// Forgets the message of a topic. Returns where it stood.
    pub(crate) fn remove(&mut self, topic: Name<'_>, effects: &Effects) -> Option<RecordLocation> {
        let old = self.kept.remove(&topic.key())?;
        self.release(&old);
        count(topic, -1, -old.bytes(), effects);
        Some(old.place)
    }

    fn release(&mut self, kept: &Kept) {
        for (charges, bytes) in self.charges.iter_mut().zip(charged(kept)) {
            charges.release(kept.owner, bytes);
        }
    }

    /// Some of those that have expired.
    pub(crate) fn look_for_expired(&mut self, now_ms: u64) -> Vec<Message> {
        let mut expired: Vec<Message> = Vec::new();
        let after = self.sweep.take();
        self.sweep = self.kept.walk_all(after, SWEEP_MESSAGES, &mut |kept| {
            if kept.expires_at_ms() <= now_ms {
                expired.push(kept.message());
            }
        });
        expired
    }

    /// A page for an operator, and where the next one begins.
    pub(crate) fn page(
        &self,
        filter: Name<'_>,
        after: Option<Cursor>,
        max: usize,
    ) -> (Vec<Message>, Option<Cursor>) {
        let mut messages = Vec::new();
        let next = self.kept.walk(&filter.key(), after, max, &mut |kept| {
            messages.push(kept.message());
        });
        (messages, next)
    }

    /// The levels below a topic, or of the root, behind one of them. True: there are more.
    pub(crate) fn levels(
        &self,
        parent: Option<Name<'_>>,
        scope: Scope,
        after: Option<&[u8]>,
        max: usize,
    ) -> (Vec<Child>, bool) {
        let Some(parent) = parent else { return self.root_levels(scope, after, max) };
        let front = parent.key().into_owned() + "/";
        self.kept.children(front.as_bytes(), after, &[], max)
    }

    /// Names that begin with `$` have another front than the others, unless the scope is the first.
    fn root_levels(&self, scope: Scope, after: Option<&[u8]>, max: usize) -> (Vec<Child>, bool) {
        if scope.is_first() {
            return self.kept.children(b"", after, Scope::KEY_FRONT.as_bytes(), max);
        }
        let mut rows = Vec::new();
        for (front, is_of_server) in scope.fronts().into_iter().zip([false, true]) {
            // One of the server's comes behind the others, whatever its text is.
            let is_behind = after.is_some_and(|after| after.starts_with(b"$"));
            if is_behind && !is_of_server {
                continue;
            }
            let after = after.filter(|_| is_behind == is_of_server);
            let rest = max - rows.len();
            let (some, has_more) = self.kept.children(front.as_bytes(), after, &[], rest.max(1));
            if rest == 0 {
                return (rows, !some.is_empty());
            }
            rows.extend(some);
            if has_more {
                return (rows, true);
            }
        }
        (rows, false)
    }

    /// The first of those whose keys a filter matches.
    pub(crate) fn page_of_key(&self, filter: &str, max: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        self.kept.walk(filter, None, max, &mut |kept| messages.push(kept.message()));
        messages
    }

    /// A number that no page has had.
    pub(crate) const fn next_page(&mut self) -> u64 {
        self.last_page += 1;
        self.last_page
    }

    /// A page, now or in a later turn.
    pub(crate) fn on_query(&mut self, query: Box<RetainedQuery>, effects: &mut Effects) {
        if !has_wildcard(&query.filter) {
            return self.give_page(query, effects);
        }
        self.asked.push_back(query);
        self.give_pages(effects);
    }

    pub(crate) fn has_pages_to_give(&self) -> bool {
        !self.asked.is_empty()
    }

    /// A turn is over, and there may be more pages.
    pub(crate) fn give_more_pages(&mut self, effects: &mut Effects) {
        self.given = 0;
        self.give_pages(effects);
    }

    fn give_pages(&mut self, effects: &mut Effects) {
        while self.given < PAGES_PER_TURN
            && let Some(query) = self.asked.pop_front()
        {
            self.given += 1;
            self.give_page(query, effects);
        }
    }

    fn give_page(&mut self, mut query: Box<RetainedQuery>, effects: &mut Effects) {
        let mut messages = Vec::new();
        let after = query.after.take();
        let key = Name::new(query.scope, &*query.filter).key();
        if has_wildcard(&key) {
            query.after = self.kept.walk(&key, after, PAGE_MESSAGES, &mut |kept| {
                messages.push(kept.message());
            });
        } else {
            messages.extend(self.kept.get(&key).map(Kept::message));
        }
        let is_last = query.after.is_none();
        let subscriber = query.subscriber.shard();
        effects.send(subscriber, Mail::Retained { query, messages, is_last });
    }
}

/// What the owner of a retained message is charged for: memory, and bytes of the journal.
fn charged(kept: &Kept) -> [u64; 2] {
    [kept.bytes() as u64, kept.place.bytes.into()]
}

/// What the broker says of itself is nobody's, and counts to no limit.
fn count(topic: Name<'_>, messages: i64, bytes: i64, effects: &Effects) {
    if is_own(topic.text()) {
        return;
    }
    if let Some(space) = effects.shared().spaces.of(topic.scope()) {
        space.add(Quota::RetainedMessages, messages);
        space.add(Quota::RetainedBytes, bytes);
    }
    effects.shared().add_retained(messages, bytes);
    let metrics = effects.metrics();
    metrics.retained.set(metrics.retained.value().wrapping_add(messages as u64));
    metrics.retained_bytes.set(metrics.retained_bytes.value().wrapping_add(bytes as u64));
}

fn is_own(topic: &str) -> bool {
    is_of_broker(topic.as_bytes())
}
