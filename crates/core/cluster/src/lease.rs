//! The lease: who may be active.
//!
//! It is one key, written with compare-and-set only. Nothing depends on the engine's clock or on
//! expiry of the key:
//!
//! - The holder writes it each [`Timing::renew_ms`], and acts on it until [`Timing::lease_ms`] less
//!   [`Timing::guard_ms`] after the moment *before* it sent the last write that is known to have
//!   succeeded.
//! - Others take it when they have seen the same revision for [`Timing::lease_ms`] by their own
//!   clock. They saw it after the holder sent it. So the guard covers the drift of two clocks.
//! - A node with other cells waits [longer](Lease::set_delay), so one with fewer takes it.
//! - After an outage of the engine the holder is to go on, not the fastest poller: others wait
//!   until their polls have succeeded for [`Timing::settle_ms`], which is time for a renewal.
//!
//! All times are of a clock that never goes back and goes on while the machine is suspended.

use serde::{Deserialize, Serialize};

use crate::effect::{LeaseAnswer, LeaseRequest, RequestId};

/// How long things take, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    pub lease_ms: u64,
    /// How much earlier the holder stops than others may take over.
    pub guard_ms: u64,
    pub renew_ms: u64,
    /// Between two looks at a lease of somebody else, and between two tries.
    pub poll_ms: u64,
    pub settle_ms: u64,
    /// How long a lease that was given to a successor is left to it.
    pub successor_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_ms: 3000,
            guard_ms: 500,
            renew_ms: 1000,
            poll_ms: 300,
            settle_ms: 1300,
            successor_ms: 2000,
        }
    }
}

/// Who a node is for the others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Identity {
    /// `cluster.node`.
    pub node: String,
    /// Random for each start of the process.
    pub instance: u64,
    /// Where clients reach it: `cluster.advertise`. Empty: not stated.
    pub address: String,
}

/// What the key holds, as JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseValue {
    pub holder: Identity,
    /// Grows with each holder.
    pub epoch: u64,
    /// Writes of this holder, so that one of unknown fate is recognised when it is seen.
    pub count: u64,
    /// The holder has given it back.
    #[serde(default)]
    pub is_released: bool,
    /// To whom.
    #[serde(default)]
    pub successor: Option<String>,
}

/// The lease as one node sees it.
#[derive(Debug)]
pub struct Lease {
    own: Identity,
    timing: Timing,
    seen: Option<Seen>,
    /// Since when all polls have succeeded.
    settled_since_ms: Option<u64>,
    held: Option<HeldLease>,
    /// This node wants to be active.
    wants: bool,
    delay_ms: u64,
    /// No node may have an epoch below this: of the stream.
    epoch_min: u64,
    releasing: Option<Option<String>>,
    /// Writes that were begun, so that each is recognised when it is seen late.
    count: u64,
    /// A write is of unknown fate: what is there now has to be read before the next one.
    must_look: bool,
    under_way: Option<UnderWay>,
    next_at_ms: u64,
    next_request: u64,
    lost: Option<String>,
    unreachable: Option<String>,
}

#[derive(Debug)]
struct Seen {
    /// 0: there is no such key.
    revision: u64,
    value: Option<LeaseValue>,
    at_ms: u64,
}

#[derive(Debug)]
struct HeldLease {
    epoch: u64,
    revision: u64,
    /// When writes were begun that may be the one that is seen: count and time.
    begun: Vec<(u64, u64)>,
    until_ms: u64,
    /// At least one write has succeeded.
    is_sure: bool,
    is_released: bool,
}

#[derive(Debug)]
struct UnderWay {
    id: RequestId,
    is_write: bool,
    /// It gives the lease back.
    is_release: bool,
}

/// What became of the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Somebody else has it, or nobody.
    None,
    /// This node has it.
    Held { epoch: u64 },
    /// This node has given it back.
    Released,
    /// This node had it, and somebody else has it now.
    Lost,
}

impl Lease {
    pub fn new(own: Identity, timing: Timing) -> Self {
        Self {
            own,
            timing,
            seen: None,
            settled_since_ms: None,
            held: None,
            wants: false,
            delay_ms: 0,
            epoch_min: 0,
            releasing: None,
            count: 0,
            must_look: false,
            under_way: None,
            next_at_ms: 0,
            next_request: 0,
            lost: None,
            unreachable: None,
        }
    }

    /// Until when the node may act on it; 0: not at all.
    pub fn acting_until_ms(&self) -> u64 {
        match &self.held {
            Some(held) if held.is_sure && self.lost.is_none() => held.until_ms,
            _ => 0,
        }
    }

    pub fn standing(&self) -> Standing {
        match &self.held {
            _ if self.lost.is_some() => Standing::Lost,
            Some(held) if held.is_released => Standing::Released,
            Some(held) if held.is_sure => Standing::Held { epoch: held.epoch },
            _ => Standing::None,
        }
    }

    /// Why it was lost.
    pub fn loss(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Why the store does not answer, or its answer cannot be read, if so.
    pub fn unreachable(&self) -> Option<&str> {
        self.unreachable.as_deref()
    }

    /// The value as it was seen last.
    pub fn value(&self) -> Option<&LeaseValue> {
        self.seen.as_ref()?.value.as_ref()
    }

    /// Whether the node would be active if it could. `epoch_min`: the next epoch must be above.
    pub fn want(&mut self, wants: bool, epoch_min: u64) {
        self.wants = wants;
        self.epoch_min = self.epoch_min.max(epoch_min);
    }

    /// How much longer than needed a free lease is left to others. A lease that was given to this
    /// node is taken at once.
    pub const fn set_delay(&mut self, delay_ms: u64) {
        self.delay_ms = delay_ms;
    }

    /// Whether [`Lease::work`] would take the lease now if the node wanted it.
    pub fn would_take(&self, now_ms: u64) -> bool {
        let is_due = self.under_way.is_none() && self.next_at_ms <= now_ms && !self.must_look;
        is_due && self.held.is_none() && self.lost.is_none() && self.is_free(now_ms)
    }

    /// A write that takes the lease is under way or of unknown fate.
    pub fn is_taking(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.is_sure)
    }

    /// Gives the lease back, to a successor or to whoever comes. False: this node neither has it
    /// nor is about to take it.
    pub fn release(&mut self, successor: Option<String>) -> bool {
        if self.held.is_some() {
            self.releasing = Some(successor);
            self.next_at_ms = 0;
        }
        self.held.is_some()
    }

    /// Does what is due.
    pub fn work(&mut self, now_ms: u64, out: &mut Vec<(RequestId, LeaseRequest)>) {
        let is_over = matches!(self.standing(), Standing::Released | Standing::Lost);
        if self.under_way.is_some() || self.next_at_ms > now_ms || is_over {
            return;
        }
        let request = match &self.held {
            _ if self.must_look => LeaseRequest::Read,
            Some(held) if held.is_sure => self.write(now_ms),
            _ if self.may_take(now_ms) => self.taking(now_ms),
            _ => LeaseRequest::Read,
        };
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let is_write = matches!(request, LeaseRequest::Write { .. });
        let is_release = is_write && self.releasing.is_some();
        self.under_way = Some(UnderWay { id, is_write, is_release });
        self.next_at_ms =
            now_ms + if is_write { self.timing.renew_ms } else { self.timing.poll_ms };
        out.push((id, request));
    }

    /// When [`Lease::work`] has something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<u64> {
        let is_over = matches!(self.standing(), Standing::Released | Standing::Lost);
        (self.under_way.is_none() && !is_over).then_some(self.next_at_ms)
    }

    /// It has been read, or found not to be there.
    pub const fn is_seen(&self) -> bool {
        self.seen.is_some()
    }

    /// Who has the lease, as far as this node knows. None: nobody, or its holder has not renewed it
    /// in time.
    pub fn owner(&self, now_ms: u64) -> Option<&LeaseValue> {
        let seen = self.seen.as_ref()?;
        let value = seen.value.as_ref().filter(|value| !value.is_released)?;
        let is_own = matches!(self.standing(), Standing::Held { .. });
        (is_own || !self.has_expired(seen, now_ms)).then_some(value)
    }

    /// While the store does not answer, nobody's lease is seen to expire.
    fn has_expired(&self, seen: &Seen, now_ms: u64) -> bool {
        let settled = self
            .settled_since_ms
            .is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= self.timing.settle_ms);
        now_ms.saturating_sub(seen.at_ms) >= self.timing.lease_ms && settled
    }

    fn may_take(&self, now_ms: u64) -> bool {
        self.wants && self.is_free(now_ms)
    }

    /// Whether this node may take the lease.
    fn is_free(&self, now_ms: u64) -> bool {
        let (Some(seen), Some(free_at_ms)) = (&self.seen, self.free_at_ms()) else { return false };
        let has_holder = seen.value.as_ref().is_some_and(|value| !value.is_released);
        now_ms >= free_at_ms && (!has_holder || self.has_expired(seen, now_ms))
    }

    /// When this node may take the lease, unless it is renewed. None: never as it was seen.
    fn free_at_ms(&self) -> Option<u64> {
        let seen = self.seen.as_ref()?;
        let after_ms = match &seen.value {
            // A lease that cannot be read may be held by a newer program.
            None if seen.revision > 0 => return None,
            None => self.delay_ms,
            Some(LeaseValue { is_released: false, .. }) => {
                self.timing.lease_ms.saturating_add(self.delay_ms)
            }
            Some(LeaseValue { successor: None, .. }) => self.delay_ms,
            Some(LeaseValue { successor: Some(to), .. }) if *to == self.own.node => 0,
            Some(_) => self.timing.successor_ms.saturating_add(self.delay_ms),
        };
        Some(seen.at_ms.saturating_add(after_ms))
    }

    fn taking(&mut self, now_ms: u64) -> LeaseRequest {
        let seen = self.seen.as_ref();
        let known = seen.and_then(|seen| seen.value.as_ref()).map_or(0, |value| value.epoch);
        let epoch = known.max(self.epoch_min).saturating_add(1);
        let revision = seen.map_or(0, |seen| seen.revision);
        self.held = Some(HeldLease {
            epoch,
            revision,
            begun: Vec::new(),
            until_ms: 0,
            is_sure: false,
            is_released: false,
        });
        self.write(now_ms)
    }

    fn write(&mut self, now_ms: u64) -> LeaseRequest {
        let Some(held) = self.held.as_mut() else { return LeaseRequest::Read };
        self.count += 1;
        if held.begun.len() == BEGUN_MAX {
            held.begun.remove(0);
        }
        held.begun.push((self.count, now_ms));
        let value = LeaseValue {
            holder: self.own.clone(),
            epoch: held.epoch,
            count: self.count,
            is_released: self.releasing.is_some(),
            successor: self.releasing.clone().flatten(),
        };
        let value = serde_json::to_vec(&value).unwrap_or_default();
        LeaseRequest::Write { expected: held.revision, value }
    }

    /// Takes the answer to a request.
    pub fn on_answer(&mut self, id: RequestId, answer: LeaseAnswer, now_ms: u64) {
        let Some(UnderWay { is_write, is_release, .. }) = self.under_way.take_if(|it| it.id == id)
        else {
            return;
        };
        self.unreachable = None;
        match answer {
            LeaseAnswer::Unknown(why) => {
                self.unreachable = Some(why);
                self.settled_since_ms = None;
                // It may have been written. What is there now shows it.
                self.must_look |= is_write;
                self.next_at_ms = now_ms + self.timing.poll_ms;
                return;
            }
            LeaseAnswer::Written(revision) if is_write => {
                self.on_written(revision, is_release, now_ms)
            }
            LeaseAnswer::Found { revision, value } => self.on_found(revision, &value, now_ms),
            LeaseAnswer::Missing => self.on_missing(now_ms),
            LeaseAnswer::Conflict | LeaseAnswer::Written(_) => self.look(now_ms),
        }
        self.settled_since_ms.get_or_insert(now_ms);
        self.be_in_time(now_ms);
    }

    /// Delays of nodes may differ by less than the time between two looks.
    fn be_in_time(&mut self, now_ms: u64) {
        let waits = self.delay_ms > 0 && self.held.is_none();
        if let Some(free_at_ms) = self.free_at_ms().filter(|at_ms| waits && *at_ms > now_ms) {
            self.next_at_ms = self.next_at_ms.min(free_at_ms);
        }
    }

    /// The next request reads.
    fn look(&mut self, now_ms: u64) {
        self.must_look = true;
        self.next_at_ms = now_ms;
    }

    fn on_written(&mut self, revision: u64, is_release: bool, now_ms: u64) {
        let Some(held) = self.held.as_mut() else { return };
        let begun = held.begun.last().map_or(0, |(_, begun_ms)| *begun_ms);
        held.revision = revision;
        held.until_ms = begun + self.timing.lease_ms - self.timing.guard_ms;
        held.begun.clear();
        held.is_sure = true;
        held.is_released = is_release;
        let value = LeaseValue {
            holder: self.own.clone(),
            epoch: held.epoch,
            count: self.count,
            is_released: is_release,
            successor: self.releasing.clone().flatten(),
        };
        self.seen = Some(Seen { revision, value: Some(value), at_ms: now_ms });
    }

    fn on_missing(&mut self, now_ms: u64) {
        self.must_look = false;
        if self.held.as_ref().is_some_and(|held| held.revision > 0) {
            self.lost = Some("the key with the lease was removed".to_owned());
        }
        self.held = None;
        if self.seen.as_ref().is_none_or(|seen| seen.revision != 0) {
            self.seen = Some(Seen { revision: 0, value: None, at_ms: now_ms });
        }
    }

    fn on_found(&mut self, revision: u64, value: &[u8], now_ms: u64) {
        self.must_look = false;
        let value: Option<LeaseValue> = serde_json::from_slice(value).ok();
        if value.is_none() {
            self.unreachable = Some(UNREADABLE.to_owned());
        }
        if self.seen.as_ref().is_none_or(|seen| seen.revision != revision) {
            self.seen = Some(Seen { revision, value: value.clone(), at_ms: now_ms });
        }
        let Some(held) = self.held.as_mut() else { return };
        let is_own = value.as_ref().is_some_and(|value| {
            value.holder.instance == self.own.instance && value.epoch == held.epoch
        });
        match value {
            Some(value) if is_own => {
                let begun = held.begun.iter().find(|(count, _)| *count == value.count);
                if let Some((_, begun_ms)) = begun {
                    let until_ms = begun_ms + self.timing.lease_ms - self.timing.guard_ms;
                    held.until_ms = held.until_ms.max(until_ms);
                }
                held.begun.retain(|(count, _)| *count > value.count);
                held.revision = revision;
                held.is_sure = true;
                held.is_released = value.is_released;
                self.next_at_ms = now_ms;
            }
            // Not taken: somebody else was faster, or the write was lost.
            _ if held.revision == revision || held.until_ms == 0 => self.held = None,
            // The answer to the release was lost, and the successor has taken it since.
            Some(value) if self.releasing.is_some() && value.epoch > held.epoch => {
                held.is_released = true;
            }
            Some(value) => {
                let LeaseValue { holder, epoch, .. } = value;
                self.lost =
                    Some(format!("node '{}' has the lease with epoch {epoch}", holder.node));
            }
            None => self.lost = Some("the key of the lease is malformed".to_owned()),
        }
    }
}

const UNREADABLE: &str = "the key of the lease has an unknown format: use a newer one, or \
remove the key if no node is active";

/// Writes of unknown fate that are remembered. Of older ones the time is not known any more; should
/// one be seen, the lease counts from the next write on.
const BEGUN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as the engine has it.
    #[derive(Default)]
    struct Key(Option<(u64, Vec<u8>)>);

    impl Key {
        fn answer(&mut self, request: &LeaseRequest) -> LeaseAnswer {
            let revision = self.0.as_ref().map_or(0, |(revision, _)| *revision);
            match (request, &self.0) {
                (LeaseRequest::Read, Some((revision, value))) => {
                    LeaseAnswer::Found { revision: *revision, value: value.clone() }
                }
                (LeaseRequest::Read, None) => LeaseAnswer::Missing,
                (LeaseRequest::Write { expected, value }, _) if *expected == revision => {
                    self.0 = Some((revision + 1, value.clone()));
                    LeaseAnswer::Written(revision + 1)
                }
                _ => LeaseAnswer::Conflict,
            }
        }
    }

    fn lease(node: &str, instance: u64) -> Lease {
        let own = Identity { node: node.into(), instance, address: String::new() };
        let mut lease = Lease::new(own, Timing::default());
        lease.want(true, 0);
        lease
    }

    /// Lets time pass in steps of 100 ms, with an engine that answers at once.
    fn pass(lease: &mut Lease, key: &mut Key, times_ms: std::ops::RangeInclusive<u64>) {
        for now_ms in times_ms.step_by(100) {
            let mut asked = Vec::new();
            lease.work(now_ms, &mut asked);
            for (id, request) in asked {
                lease.on_answer(id, key.answer(&request), now_ms);
            }
        }
    }

    #[test]
    fn a_free_lease_is_taken_and_renewed() {
        let (mut own, mut key) = (lease("a", 1), Key::default());
        pass(&mut own, &mut key, 0..=5000);
        assert_eq!(own.standing(), Standing::Held { epoch: 1 });
        assert!((5000..=7500).contains(&own.acting_until_ms()));
        assert_eq!(own.value().map(|value| value.holder.node.as_str()), Some("a"));
    }

    #[test]
    fn nobody_takes_it_while_it_is_renewed_and_somebody_does_when_it_is_not() {
        let (mut own, mut other, mut key) = (lease("a", 1), lease("b", 2), Key::default());
        pass(&mut own, &mut key, 0..=1000);
        for at_ms in (1000..20_000).step_by(1000) {
            pass(&mut own, &mut key, at_ms..=at_ms + 900);
            pass(&mut other, &mut key, at_ms..=at_ms + 900);
        }
        assert_eq!(other.standing(), Standing::None);
        let until_ms = own.acting_until_ms();
        pass(&mut other, &mut key, 20_000..=30_000);
        assert_eq!(other.standing(), Standing::Held { epoch: 2 });
        assert!(until_ms < 23_000);
        pass(&mut own, &mut key, 30_000..=30_500);
        assert_eq!(own.standing(), Standing::Lost);
    }

    #[test]
    fn it_ends_when_the_engine_is_silent_and_goes_on_when_nobody_took_it() {
        let (mut own, mut key) = (lease("a", 1), Key::default());
        pass(&mut own, &mut key, 0..=1000);
        let until_ms = own.acting_until_ms();
        for now_ms in (1100..9000).step_by(100) {
            let mut asked = Vec::new();
            own.work(now_ms, &mut asked);
            for (id, _) in asked {
                own.on_answer(id, LeaseAnswer::Unknown("down".into()), now_ms);
            }
        }
        assert!(own.acting_until_ms() <= until_ms);
        pass(&mut own, &mut key, 9000..=10_000);
        assert_eq!(own.standing(), Standing::Held { epoch: 1 });
        assert!(own.acting_until_ms() > 9000);
    }

    #[test]
    fn a_write_whose_answer_was_lost_counts_from_when_it_was_begun() {
        let (mut own, mut key, mut asked) = (lease("a", 1), Key::default(), Vec::new());
        pass(&mut own, &mut key, 0..=0);
        own.work(1000, &mut asked);
        let (id, write) = asked.pop().unwrap();
        assert!(matches!(write, LeaseRequest::Write { .. }));
        key.answer(&write);
        own.on_answer(id, LeaseAnswer::Unknown("lost".into()), 1900);
        pass(&mut own, &mut key, 2200..=2200);
        assert_eq!(own.standing(), Standing::Held { epoch: 1 });
        assert_eq!(own.acting_until_ms(), 3500);
    }

    #[test]
    fn a_renewal_under_way_is_no_release() {
        let (mut own, mut key, mut asked) = (lease("a", 1), Key::default(), Vec::new());
        pass(&mut own, &mut key, 0..=0);
        own.work(1000, &mut asked);
        let (id, renewal) = asked.pop().unwrap();
        own.release(Some("b".into()));
        own.on_answer(id, key.answer(&renewal), 1000);
        assert_eq!(own.standing(), Standing::Held { epoch: 1 });
        pass(&mut own, &mut key, 1000..=1100);
        assert_eq!(own.standing(), Standing::Released);
        let written: LeaseValue = serde_json::from_slice(&key.0.unwrap().1).unwrap();
        assert!(written.is_released);
    }

    #[test]
    fn a_released_lease_is_left_to_the_successor_for_a_while() {
        let (mut own, mut key) = (lease("a", 1), Key::default());
        pass(&mut own, &mut key, 0..=1000);
        own.release(Some("b".into()));
        pass(&mut own, &mut key, 1100..=1100);
        assert_eq!(own.standing(), Standing::Released);
        let (mut successor, mut other) = (lease("b", 2), lease("c", 3));
        pass(&mut other, &mut key, 1100..=2900);
        assert_eq!(other.standing(), Standing::None);
        pass(&mut successor, &mut key, 3000..=3500);
        assert_eq!(successor.standing(), Standing::Held { epoch: 2 });
    }

    #[test]
    fn a_release_whose_answer_is_lost_is_one_when_the_successor_has_it() {
        let (mut own, mut key) = (lease("a", 1), Key::default());
        pass(&mut own, &mut key, 0..=1000);
        own.release(Some("b".into()));
        let mut asked = Vec::new();
        own.work(1100, &mut asked);
        let [(id, request)] = &asked[..] else { panic!("{asked:?}") };
        key.answer(request);
        let mut successor = lease("b", 2);
        pass(&mut successor, &mut key, 1100..=1500);
        assert_eq!(successor.standing(), Standing::Held { epoch: 2 });
        own.on_answer(*id, LeaseAnswer::Unknown("lost".into()), 1600);
        pass(&mut own, &mut key, 1600..=2500);
        assert_eq!(own.standing(), Standing::Released);
    }

    /// When a node takes a lease that it looks at from a time on, in steps of 10 ms.
    fn taken_at(lease: &mut Lease, key: &mut Key, from_ms: u64) -> u64 {
        for now_ms in (from_ms..from_ms + 20_000).step_by(10) {
            pass(lease, key, now_ms..=now_ms);
            if let Standing::Held { .. } = lease.standing() {
                return now_ms - from_ms;
            }
        }
        panic!("not taken")
    }

    #[test]
    fn a_free_lease_is_taken_later_by_a_node_with_a_delay_and_then_in_time() {
        for delay_ms in [0, 10, 130, 1130] {
            let slow = |node| {
                let mut lease = lease(node, 2);
                lease.set_delay(delay_ms);
                lease
            };
            let mut key = Key::default();
            // The first look finds that there is none.
            let first_ms = if delay_ms == 0 { 300 } else { delay_ms };
            assert_eq!(taken_at(&mut slow("b"), &mut key, 0), first_ms, "no key");
            let (mut other, from_ms) = (slow("c"), 20_000);
            // One at 0, 300 and so on sees it at once.
            let expired_ms = if delay_ms == 0 { 3000 } else { 3000 + delay_ms };
            assert_eq!(taken_at(&mut other, &mut key, from_ms), expired_ms, "not renewed");
            other.release(None);
            pass(&mut other, &mut key, 50_000..=50_000);
            assert_eq!(other.standing(), Standing::Released);
            assert_eq!(taken_at(&mut slow("d"), &mut key, 60_000), first_ms, "released");
        }
    }

    #[test]
    fn the_successor_takes_a_released_lease_whatever_its_delay_is() {
        let (mut own, mut key) = (lease("a", 1), Key::default());
        pass(&mut own, &mut key, 0..=1000);
        own.release(Some("b".into()));
        pass(&mut own, &mut key, 1100..=1100);
        let (mut successor, mut other) = (lease("b", 2), lease("c", 3));
        successor.set_delay(60_000);
        other.set_delay(500);
        let mut before = Key(key.0.clone());
        assert_eq!(taken_at(&mut successor, &mut key, 2000), 300);
        assert_eq!(taken_at(&mut other, &mut before, 2000), 2500, "when the successor does not");
    }

    #[test]
    fn a_node_that_would_take_the_lease_does_so_only_if_it_wants() {
        let (mut own, mut key) = (lease("a", 1), Key::default());
        own.want(false, 0);
        pass(&mut own, &mut key, 0..=1100);
        assert!(!own.would_take(1100), "not due");
        assert!(own.would_take(1200));
        pass(&mut own, &mut key, 1200..=1200);
        assert_eq!((own.standing(), own.is_taking()), (Standing::None, false));
        own.want(true, 0);
        let mut asked = Vec::new();
        own.work(1500, &mut asked);
        assert!(own.is_taking() && !own.would_take(1500));
        let [(id, request)] = &asked[..] else { panic!("{asked:?}") };
        own.on_answer(*id, key.answer(request), 1500);
        assert_eq!((own.standing(), own.is_taking()), (Standing::Held { epoch: 1 }, false));
        assert!(!own.would_take(9000));
    }

    #[test]
    fn a_lease_that_this_version_cannot_read_is_not_taken() {
        let (mut own, mut key) = (lease("a", 1), Key::default());
        key.0 = Some((7, br#"{"format":2,"by":"a newer program"}"#.to_vec()));
        pass(&mut own, &mut key, 0..=20_000);
        assert_eq!((own.standing(), own.acting_until_ms()), (Standing::None, 0));
        assert!(own.unreachable().is_some_and(|why| why.contains("use a newer one")));
        key.0 = None;
        pass(&mut own, &mut key, 20_000..=21_000);
        assert_eq!((own.standing(), own.unreachable()), (Standing::Held { epoch: 1 }, None));
    }
}
