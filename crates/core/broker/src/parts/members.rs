//! The members of a shared group, as one shard knows them.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::SessionKey;
use crate::words::member::Member;
use crate::words::options;

/// Members that are looked for one by one. The places of more are in a map.
const LISTED_MAX: usize = 16;

type Positions = HashMap<SessionKey, u32, FixedState>;

/// Members in the order in which messages go round, each once.
#[derive(Debug, Default)]
pub(crate) struct Members {
    list: Vec<Member>,
    /// By key, of a list that is long or has been.
    places: Option<Box<Positions>>,
    /// The places of those that may be online, growing. Whoever comes back is [put
    /// here](Self::note_online) by mail, and who is found to be away is taken out. So what it takes
    /// to find a member does not depend on how many are away.
    online: SmallVec<[u32; 2]>,
    /// Those for whom the journal keeps messages.
    kept_for: u32,
    /// Those who acknowledge what they are given.
    acknowledging: u32,
}

impl Members {
    pub(crate) const fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Member> {
        self.list.iter()
    }

    /// Those who may be online.
    pub(crate) fn online(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.online.iter().map(|place| &self.list[*place as usize])
    }

    /// The member at a place below [`Members::len`].
    pub(crate) fn at(&self, place: usize) -> Option<&Member> {
        self.list.get(place)
    }

    pub(crate) fn get(&self, key: SessionKey) -> Option<&Member> {
        self.list.get(self.place_of(key)?)
    }

    /// Is there one for whom the journal keeps messages?
    pub(crate) const fn keep_in_journal(&self) -> bool {
        self.kept_for > 0
    }

    /// May the group keep messages for any of them? One that does not come back leaves the group.
    pub(crate) const fn keep(&self) -> bool {
        self.acknowledging > 0
    }

    fn place_of(&self, key: SessionKey) -> Option<usize> {
        match &self.places {
            None => self.list.iter().position(|member| member.key == key),
            Some(places) => places.get(&key).map(|place| *place as usize),
        }
    }

    /// The first from a place on that can take a message, once round. `looks` counts members.
    #[inline]
    pub(crate) fn find_available(&mut self, from: usize, looks: &mut usize) -> Option<usize> {
        *looks += 1;
        if self.at(from).is_some_and(|member| member.load.is_available()) {
            return Some(from);
        }
        let (mut found, mut is_any_away) = (None, false);
        for place in self.round(from) {
            *looks += 1;
            let load = &self.list[place].load;
            if load.is_available() {
                found = Some(place);
                break;
            }
            is_any_away |= !load.is_online();
        }
        self.take_out_away(is_any_away, looks);
        found
    }

    /// Of those that can take a message, the first from a place on with the lowest load.
    pub(crate) fn find_idlest(&mut self, from: usize, looks: &mut usize) -> Option<usize> {
        let (mut idlest, mut is_any_away) = (None, false);
        for place in self.round(from) {
            *looks += 1;
            let load = &self.list[place].load;
            if load.is_available() {
                let in_flight = load.in_flight();
                if idlest.is_none_or(|(least, _)| in_flight < least) {
                    idlest = Some((in_flight, place));
                }
            }
            is_any_away |= !load.is_online();
        }
        self.take_out_away(is_any_away, looks);
        idlest.map(|(_, place)| place)
    }

    /// The places of those who may be online, once round from a place on.
    fn round(&self, from: usize) -> impl Iterator<Item = usize> {
        let begin = self.online.partition_point(|place| (*place as usize) < from);
        let (front, back) = self.online.split_at(begin);
        back.iter().chain(front).map(|place| *place as usize)
    }

    fn take_out_away(&mut self, is_any_away: bool, looks: &mut usize) {
        if is_any_away {
            *looks += self.online.len();
            let Self { online, list, .. } = self;
            online.retain(|place| list[*place as usize].load.is_online());
        }
    }

    /// A member is back. Its load says so before this is mailed, so whoever has found it away hears
    /// of it later.
    pub(crate) fn note_online(&mut self, key: SessionKey) {
        if let Some(place) = self.place_of(key) {
            self.set_online(place, true);
        }
    }

    fn set_online(&mut self, place: usize, is_online: bool) {
        match (self.online.binary_search(&(place as u32)), is_online) {
            (Err(index), true) => self.online.insert(index, place as u32),
            (Ok(index), false) => {
                self.online.remove(index);
            }
            _ => {}
        }
    }

    /// Adds a member, or takes the place of the one that it was. True: it is new.
    pub(crate) fn put(&mut self, member: Member) -> bool {
        self.kept_for += u32::from(member.is_kept_for());
        self.acknowledging += u32::from(member.acknowledges());
        let (key, is_online) = (member.key, member.load.is_online());
        let known = self.place_of(key);
        let place = known.unwrap_or(self.list.len());
        if let Some(known) = known {
            let before = std::mem::replace(&mut self.list[known], member);
            self.count_out(&before);
        } else {
            if let Some(places) = &mut self.places {
                places.insert(key, place as u32);
            }
            self.list.push(member);
            if self.places.is_none() && self.list.len() > LISTED_MAX {
                let keys = self.list.iter().map(|member| member.key);
                self.places = Some(Box::new(keys.zip(0..).collect()));
            }
        }
        if is_online {
            self.set_online(place, true);
        }
        known.is_none()
    }

    fn count_out(&mut self, gone: &Member) {
        self.kept_for -= u32::from(gone.is_kept_for());
        self.acknowledging -= u32::from(gone.acknowledges());
    }

    /// The last member takes the place of the one that leaves.
    pub(crate) fn remove(&mut self, key: SessionKey) {
        let Some(place) = self.place_of(key) else { return };
        let gone = self.list.swap_remove(place);
        self.count_out(&gone);
        // The last comes to its place.
        let last = self.list.len();
        let is_last_online = self.online.last() == Some(&(last as u32));
        self.set_online(last, false);
        if place < last {
            self.set_online(place, is_last_online);
        }
        let Some(places) = &mut self.places else { return };
        places.remove(&key);
        if let Some(moved) = self.list.get(place) {
            places.insert(moved.key, place as u32);
        }
    }

    /// Must each message be checked against the access rules for this member? False: there is no
    /// such member.
    pub(crate) fn set_check_receive(&mut self, key: SessionKey, checks: bool) -> bool {
        let Some(place) = self.place_of(key) else { return false };
        let bits = &mut self.list[place].options;
        *bits = *bits & !options::CHECK_RECEIVE | if checks { options::CHECK_RECEIVE } else { 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use codec::QoS;
    use proptest::prelude::*;

    use super::*;
    use crate::words::member::MemberLoad;

    fn member(number: u64, is_durable: bool, is_online: bool) -> Member {
        let load = Arc::<MemberLoad>::default();
        load.set(is_online, 0, number as u16 % 2);
        Member {
            key: SessionKey::from_u64(number),
            load,
            options: QoS::AtLeastOnce as u8,
            identifier: 0,
            is_durable,
        }
    }

    fn keys(members: &Members, places: impl Iterator<Item = usize>) -> Vec<u64> {
        places.filter_map(|place| members.at(place)).map(|it| it.key.as_u64()).collect()
    }

    proptest! {
        #[test]
        fn members_are_those_of_a_list(
            steps in prop::collection::vec((0..60_u64, any::<bool>(), 0..4_u8), 0..400)
        ) {
            let (mut members, mut model) = (Members::default(), Vec::<(u64, bool, bool)>::new());
            for (number, flag, step) in steps {
                let known = model.iter().position(|(other, ..)| *other == number);
                let key = SessionKey::from_u64(number);
                match (step, known) {
                    (0 | 1, _) => {
                        let is_new = members.put(member(number, flag, step == 0));
                        prop_assert_eq!(is_new, known.is_none());
                        let entry = (number, flag, step == 0);
                        match known {
                            Some(place) => model[place] = entry,
                            None => model.push(entry),
                        }
                    }
                    (2, Some(place)) => {
                        // It comes back, or goes without a word.
                        members.get(key).unwrap().load.set(flag, 0, number as u16 % 2);
                        if flag {
                            members.note_online(key);
                        }
                        model[place].2 = flag;
                    }
                    _ => {
                        members.remove(key);
                        known.map(|place| model.swap_remove(place));
                    }
                }
                let found: Vec<_> =
                    members.iter().map(|it| (it.key.as_u64(), it.is_durable)).collect();
                let expected: Vec<_> = model.iter().map(|(key, kept, _)| (*key, *kept)).collect();
                prop_assert_eq!(&found, &expected);
                let is_any = model.iter().any(|(_, durable, _)| *durable);
                prop_assert_eq!(members.keep_in_journal(), is_any);
                prop_assert_eq!(members.keep(), !model.is_empty());
                for number in 0..60 {
                    let key = SessionKey::from_u64(number);
                    let is_known = model.iter().any(|(other, ..)| *other == number);
                    prop_assert_eq!(members.get(key).map(|it| it.key), is_known.then_some(key));
                }
                // Those of an odd number have room, if they are there.
                let can_take = |entry: &&(u64, bool, bool)| entry.2 && entry.0 % 2 == 1;
                let from = number as usize % (model.len() + 1);
                let round = model.iter().skip(from).chain(&model[..from]);
                let first = round.clone().find(can_take).map(|(key, ..)| *key);
                let mut looks = 0;
                let place = members.find_available(from, &mut looks);
                prop_assert_eq!(keys(&members, place.into_iter()).first().copied(), first);
                let place = members.find_idlest(from, &mut looks);
                prop_assert_eq!(keys(&members, place.into_iter()).first().copied(), first);
                let online = members.online().map(|it| it.key.as_u64());
                let expected = model.iter().filter(|(.., online)| *online).map(|(key, ..)| *key);
                prop_assert_eq!(online.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn members_that_are_away_are_looked_at_once() {
        let mut members = Members::default();
        for number in 0..8000 {
            members.put(member(2 * number, true, number < 4000));
        }
        members.put(member(7, true, true));
        members.iter().take(4000).for_each(|member| member.load.set(false, 0, 0));
        let mut looks = 0;
        assert_eq!(members.find_available(0, &mut looks), Some(8000));
        assert!(looks < 9_000, "{looks}: who was there until now is looked at");
        for from in [0, 4000, 8000, 9000] {
            let mut looks = 0;
            assert_eq!(members.find_available(from, &mut looks), Some(8000));
            assert_eq!(members.find_idlest(from, &mut looks), Some(8000));
            assert!(looks <= 3, "{looks}");
        }
    }
}
