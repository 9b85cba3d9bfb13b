//! The members of a shared group, as one shard knows them.

use std::collections::HashMap;
use std::sync::Arc;

use codec::QoS;
use foldhash::fast::FixedState;

use crate::SessionKey;
use crate::clients::client::MemberLoad;
use crate::routing::deliver::options;

/// Members that are looked for one by one. The places of more are in a map.
const LISTED_MAX: usize = 16;

/// A member as all shards know it.
#[derive(Clone, Debug)]
pub struct Member {
    pub(crate) key: SessionKey,
    pub(crate) load: Arc<MemberLoad>,
    pub(crate) options: u8,
    pub(crate) identifier: u32,
    /// Outlives its connection: what the group cannot deliver is kept.
    pub(crate) is_persistent: bool,
    /// Its session is in the journal, and so is what the group keeps for it.
    pub(crate) is_durable: bool,
}

impl Member {
    /// May the group keep messages for this member?
    pub(crate) fn keeps(&self) -> bool {
        options::qos(self.options) != QoS::AtMostOnce
            && (self.is_persistent || self.load.is_online())
    }

    /// Does the journal keep messages for this member?
    fn is_kept_for(&self) -> bool {
        self.is_durable && options::qos(self.options) != QoS::AtMostOnce
    }
}

type Positions = HashMap<SessionKey, u32, FixedState>;

/// Members in the order in which messages go round, each once.
#[derive(Debug, Default)]
pub(crate) struct Members {
    list: Vec<Member>,
    /// By key, of a list that is long or has been.
    places: Option<Box<Positions>>,
    /// Those for whom the journal keeps messages.
    kept_for: u32,
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

    fn place_of(&self, key: SessionKey) -> Option<usize> {
        match &self.places {
            None => self.list.iter().position(|member| member.key == key),
            Some(places) => places.get(&key).map(|place| *place as usize),
        }
    }

    /// Adds a member, or takes the place of the one that it was. True: it is new.
    pub(crate) fn put(&mut self, member: Member) -> bool {
        self.kept_for += u32::from(member.is_kept_for());
        if let Some(place) = self.place_of(member.key) {
            let before = std::mem::replace(&mut self.list[place], member);
            self.kept_for -= u32::from(before.is_kept_for());
            return false;
        }
        if let Some(places) = &mut self.places {
            places.insert(member.key, self.list.len() as u32);
        }
        self.list.push(member);
        if self.places.is_none() && self.list.len() > LISTED_MAX {
            let keys = self.list.iter().map(|member| member.key);
            self.places = Some(Box::new(keys.zip(0..).collect()));
        }
        true
    }

    /// The last member takes the place of the one that leaves.
    pub(crate) fn remove(&mut self, key: SessionKey) {
        let Some(place) = self.place_of(key) else { return };
        let gone = self.list.swap_remove(place);
        self.kept_for -= u32::from(gone.is_kept_for());
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
    use proptest::prelude::*;

    use super::*;

    fn member(number: u64, is_durable: bool) -> Member {
        Member {
            key: SessionKey::from_u64(number),
            load: Arc::default(),
            options: QoS::AtLeastOnce as u8,
            identifier: 0,
            is_persistent: is_durable,
            is_durable,
        }
    }

    proptest! {
        #[test]
        fn members_are_those_of_a_list(
            steps in prop::collection::vec((0..60_u64, any::<bool>(), any::<bool>()), 0..400)
        ) {
            let (mut members, mut model) = (Members::default(), Vec::<(u64, bool)>::new());
            for (number, is_durable, joins) in steps {
                let known = model.iter().position(|(other, _)| *other == number);
                if joins {
                    prop_assert_eq!(members.put(member(number, is_durable)), known.is_none());
                    match known {
                        Some(place) => model[place].1 = is_durable,
                        None => model.push((number, is_durable)),
                    }
                } else {
                    members.remove(SessionKey::from_u64(number));
                    known.map(|place| model.swap_remove(place));
                }
                let found: Vec<_> =
                    members.iter().map(|it| (it.key.as_u64(), it.is_durable)).collect();
                prop_assert_eq!(&found, &model);
                let is_any = model.iter().any(|(_, durable)| *durable);
                prop_assert_eq!(members.keep_in_journal(), is_any);
                for number in 0..60 {
                    let key = SessionKey::from_u64(number);
                    let is_known = model.iter().any(|(other, _)| *other == number);
                    prop_assert_eq!(members.get(key).map(|it| it.key), is_known.then_some(key));
                }
            }
        }
    }
}
