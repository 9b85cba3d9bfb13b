//! What waits for the members of a shared group, at its home: in memory, and in the log.

use session::{Amount, Expires, ExpiringQueue, Message, Overflow, QueueLimits};

/// Bytes of messages of the log that a group keeps in memory as well. Policy: later ones are read
/// back from the disk.
const MEMORY_BYTES_MAX: usize = 1024 * 1024;

/// So many places lie between two messages of the log, for what waits in memory only. Policy: if
/// more came, the next message of the log goes before some of them. Places end with serial 2^48,
/// 8 years of a million messages a second.
const PLACES_PER_SERIAL: u64 = 1 << 16;

/// A message that waits for a member.
#[derive(Debug)]
pub(crate) struct Item {
    /// Its place in the order. What was given to a member in vain keeps it.
    pub(crate) place: u64,
    /// In the log; 0: it is in memory only.
    pub(crate) serial: u64,
    expires_at_ms: u64,
    bytes: u64,
    /// None: the log has it.
    pub(crate) message: Option<Message>,
}

impl Expires for Item {
    fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Item {
    fn in_memory(place: u64, message: Message) -> Self {
        let (expires_at_ms, bytes) = (message.expires_at_ms(), message.heap_bytes() as u64);
        Self { place, serial: 0, expires_at_ms, bytes, message: Some(message) }
    }

    /// A message of the log, with what it counts for there.
    pub(crate) const fn in_log(serial: u64, bytes: u32, expires_at_ms: u64) -> Self {
        let place = serial.saturating_mul(PLACES_PER_SERIAL);
        Self { place, serial, expires_at_ms, bytes: bytes as u64, message: None }
    }

    /// Bytes of memory that the log could do without.
    fn spare_bytes(&self) -> usize {
        match &self.message {
            Some(message) if self.serial != 0 => message.heap_bytes(),
            _ => 0,
        }
    }
}

/// Both lists in one order.
#[derive(Debug, Default)]
pub(crate) struct GroupQueue {
    /// No member could take them.
    ready: ExpiringQueue<Item>,
    /// No member with room may have them (`share/denied.rs`).
    denied: ExpiringQueue<Item>,
    spare_bytes: usize,
    /// Of the latest that came.
    last_place: u64,
}

impl GroupQueue {
    /// Does nothing wait for a member that has room?
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    pub(crate) fn has_denied(&self) -> bool {
        !self.denied.is_empty()
    }

    /// How much waits, whatever for.
    pub(crate) const fn amount(&self) -> Amount {
        let mut waiting = self.ready.live();
        waiting.add(self.denied.live());
        waiting
    }

    /// Lets a message wait in memory. `place`: of one that has waited before, else 0. `is_denied`:
    /// for a member that may have it.
    pub(crate) fn wait(&mut self, place: u64, message: Message, is_denied: bool, now_ms: u64) {
        self.last_place += u64::from(place == 0);
        let place = if place == 0 { self.last_place } else { place };
        self.enter(Item::in_memory(place, message), is_denied, now_ms);
    }

    /// A message of the log waits that has come just now.
    pub(crate) fn push(&mut self, item: Item, message: Option<&Message>, now_ms: u64) {
        self.last_place = self.last_place.max(item.place);
        let message = message.filter(|_| self.spare_bytes < MEMORY_BYTES_MAX).cloned();
        self.enter(Item { message, ..item }, false, now_ms);
    }

    /// A message of the log comes back from a member.
    pub(crate) fn come_back(&mut self, item: Item, is_denied: bool, now_ms: u64) {
        self.enter(item, is_denied, now_ms);
    }

    fn enter(&mut self, item: Item, is_denied: bool, now_ms: u64) {
        self.spare_bytes += item.spare_bytes();
        let place = item.place;
        let queue = if is_denied { &mut self.denied } else { &mut self.ready };
        queue.insert(item, now_ms, |other| other.place < place);
    }

    pub(crate) fn front(&self) -> Option<&Item> {
        self.ready.front()
    }

    /// The oldest that waits for a member with room. False: it has expired, and counts no more.
    pub(crate) fn pop_front(&mut self) -> Option<(Item, bool)> {
        let popped = self.ready.pop_front();
        self.note_gone(popped.as_ref().map(|(item, _)| item));
        popped
    }

    fn note_gone(&mut self, item: Option<&Item>) {
        self.spare_bytes -= item.map_or(0, Item::spare_bytes);
    }

    /// What has not expired of the first that were denied waits for any member again. Returns how
    /// many were looked at, and which of the log have expired.
    pub(crate) fn readmit(&mut self, most: usize, now_ms: u64) -> (usize, Vec<u64>) {
        let (mut count, mut gone) = (0, Vec::new());
        while count < most
            && let Some((item, is_live)) = self.denied.pop_front()
        {
            self.note_gone(Some(&item));
            match is_live {
                true => self.enter(item, false, now_ms),
                false => gone.extend(Some(item.serial).filter(|serial| *serial != 0)),
            }
            count += 1;
        }
        (count, gone)
    }

    /// Takes out the oldest or the newest message, whatever keeps it waiting. False: it has
    /// expired, and counts no more.
    pub(crate) fn drop_one(&mut self, limits: &QueueLimits) -> Option<(Item, bool)> {
        let place = |one: Option<&Item>| one.map(|one| one.place);
        // One that is too large by itself makes nobody else go.
        let newest_bytes = self.ready.back().map_or(0, Expires::bytes);
        let is_oldest = limits.overflow == Overflow::DropOldest && newest_bytes <= limits.bytes_max;
        // The group has no one publisher to refuse: only the end to drop from is a choice.
        let dropped = if is_oldest {
            let ends = (place(self.ready.front()), place(self.denied.front()));
            let is_ready =
                matches!(ends, (Some(ready), denied) if denied.is_none_or(|it| ready < it));
            if is_ready { self.ready.pop_front() } else { self.denied.pop_front() }
        } else {
            let is_denied = place(self.ready.back()) < place(self.denied.back());
            if is_denied { self.denied.pop_back() } else { self.ready.pop_back() }
        };
        self.note_gone(dropped.as_ref().map(|(item, _)| item));
        dropped
    }

    /// What has expired takes no room (MQTT-3.3.2-5). Returns how many they were, how many were
    /// looked at, and which of the log went.
    pub(crate) fn drop_expired(&mut self, now_ms: u64) -> (u64, usize, Vec<u64>) {
        let (mut expired, mut looked_at, mut gone) = (0, 0, Vec::new());
        for queue in [&mut self.ready, &mut self.denied] {
            let (more, count) = queue.expire(now_ms, |item| {
                self.spare_bytes -= item.spare_bytes();
                gone.extend(Some(item.serial).filter(|serial| *serial != 0));
            });
            expired += u64::from(more.messages);
            looked_at += count;
        }
        (expired, looked_at, gone)
    }

    /// The serial up to which messages of the log may wait, if any may before this one: then its
    /// turn has not come.
    pub(crate) fn waits_before(&self, serial: u64) -> Option<u64> {
        let is_first = self.front().is_none_or(|front| front.place / PLACES_PER_SERIAL >= serial);
        let last = self.ready.back().filter(|_| !is_first)?;
        Some(last.place / PLACES_PER_SERIAL)
    }

    /// The serials in the log, and the rest to be freed in portions.
    pub(crate) fn into_parts(self) -> (Vec<u64>, [ExpiringQueue<Item>; 2]) {
        let all = self.ready.iter().chain(self.denied.iter());
        let serials = all.map(|item| item.serial).filter(|serial| *serial != 0).collect();
        (serials, [self.ready, self.denied])
    }
}

#[cfg(test)]
mod tests {
    use session::{MessageParts, NEVER};

    use super::*;

    fn message(payload: &[u8]) -> Message {
        Message::new(&MessageParts {
            topic: "t",
            properties: &[],
            payload,
            qos: codec::QoS::AtLeastOnce,
            retain: false,
            expires_at_ms: NEVER,
            publisher: 0,
            author: 0,
            level: 0,
            scope: 0,
        })
    }

    fn places(queue: &mut GroupQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop_front().map(|(item, _)| item.place)).collect()
    }

    #[test]
    fn memory_and_log_share_one_order_and_what_comes_back_keeps_its_place() {
        let mut queue = GroupQueue::default();
        let in_log = |serial| Item::in_log(serial, 10, NEVER);
        queue.push(in_log(7), Some(&message(b"a")), 0);
        queue.wait(0, message(b"b"), false, 0);
        queue.push(in_log(9), None, 0);
        let (first, _) = queue.pop_front().unwrap();
        let (second, _) = queue.pop_front().unwrap();
        assert_eq!((first.serial, second.serial), (7, 0));
        queue.wait(second.place, message(b"b"), false, 0);
        queue.come_back(in_log(7), false, 0);
        assert_eq!((queue.waits_before(9), queue.waits_before(7)), (Some(9), None));
        let (seven, nine) = (7 * PLACES_PER_SERIAL, 9 * PLACES_PER_SERIAL);
        assert_eq!(places(&mut queue), [seven, seven + 1, nine]);
        assert_eq!((queue.spare_bytes, queue.amount()), (0, Amount::default()));
    }

    #[test]
    fn limits_take_from_the_end_of_both_lists() {
        let limits =
            |overflow| QueueLimits { messages_max: 1, bytes_max: 100, overflow, keeps_qos0: false };
        let mut queue = GroupQueue::default();
        queue.wait(0, message(b"a"), true, 0);
        queue.push(Item::in_log(3, 10, NEVER), None, 0);
        queue.wait(0, message(b"c"), true, 0);
        let newest = queue.drop_one(&limits(Overflow::DropNewest)).unwrap();
        let oldest = queue.drop_one(&limits(Overflow::DropOldest)).unwrap();
        assert_eq!((newest.0.place, oldest.0.place), (3 * PLACES_PER_SERIAL + 1, 1));
        assert_eq!((queue.amount().messages, queue.has_denied()), (1, false));
    }
}
