//! Who has yet to answer for a publish.
//!
//! They have names, and are not counted: a message that is mailed again is answered again, and the
//! second answer of one must not stand for the first of another.

/// One that answers for a publish: a shard, or what has to happen first on the publisher's own.
/// Within one publish no two have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Respondent(u32);

/// Shards are numbered from 0, those that are one of a kind from here, and groups behind them.
const KINDS_FROM: u32 = 64;
const GROUPS_FROM: u32 = KINDS_FROM + 8;

impl Respondent {
    /// None: the question is still being asked.
    pub const ASKING: Self = Self(KINDS_FROM);
    /// The journal of the publisher's shard, for the sessions there.
    pub const OWN_JOURNAL: Self = Self(KINDS_FROM + 1);
    /// The home of the topic, for the retained message.
    pub const RETAINED: Self = Self(KINDS_FROM + 2);
    /// The journal, for what a retained message that comes again has replaced.
    pub const UNDONE: Self = Self(KINDS_FROM + 3);
    /// The publishes before it in the line.
    pub const LINE: Self = Self(KINDS_FROM + 4);
    /// All that a message which was taken on is handed over to.
    pub const HANDOVER: Self = Self(KINDS_FROM + 5);
    /// The answers to the same publish on an earlier connection.
    pub const FIRST: Self = Self(KINDS_FROM + 6);

    /// A shard that was mailed the message, of 64 at most.
    pub const fn shard(shard: u16) -> Self {
        debug_assert!((shard as u32) < KINDS_FROM, "the name of something else");
        Self(shard as u32)
    }

    /// The home of the shared group that was asked as the `nth` for this publish. Several may have
    /// their home on one shard.
    pub const fn group(nth: u32) -> Self {
        Self(GROUPS_FROM + nth)
    }
}

/// A set of them. It has no memory of its own, unless more than 56 groups are asked.
#[derive(Clone, Debug, Default)]
pub struct Awaited {
    /// A bit for each name.
    names: [u64; 2],
    /// The names behind those. Some: it has a bit that is set.
    more: Option<Box<More>>,
}

#[derive(Clone, Debug)]
struct More(Vec<u64>);

impl Awaited {
    pub fn insert(&mut self, respondent: Respondent) {
        let (word, bit) = word_and_bit(respondent);
        match self.names.get_mut(word) {
            Some(names) => *names |= bit,
            None => self.insert_more(word - 2, bit),
        }
    }

    #[cold]
    fn insert_more(&mut self, word: usize, bit: u64) {
        let More(words) = &mut **self.more.get_or_insert_with(|| Box::new(More(Vec::new())));
        words.resize(words.len().max(word + 1), 0);
        words[word] |= bit;
    }

    /// One has answered. False: it was not asked, or has answered already.
    pub fn remove(&mut self, respondent: Respondent) -> bool {
        let (word, bit) = word_and_bit(respondent);
        let more = self.more.as_mut().and_then(|more| more.0.get_mut(word.wrapping_sub(2)));
        let Some(names) = self.names.get_mut(word).or(more).filter(|names| **names & bit != 0)
        else {
            return false;
        };
        *names &= !bit;
        if self.more.as_ref().is_some_and(|more| more.0.iter().all(|names| *names == 0)) {
            self.more = None;
        }
        true
    }

    /// Awaits these, too.
    pub fn extend(&mut self, other: &Self) {
        self.names[0] |= other.names[0];
        self.names[1] |= other.names[1];
        for (word, bits) in other.more.iter().flat_map(|more| &more.0).enumerate() {
            self.insert_more(word, *bits);
        }
    }

    /// All that were asked have answered.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.names[0] | self.names[1] == 0 && self.more.is_none()
    }
}

const fn word_and_bit(respondent: Respondent) -> (usize, u64) {
    ((respondent.0 / u64::BITS) as usize, 1 << (respondent.0 % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respondents() -> Vec<Respondent> {
        let kinds = [
            Respondent::ASKING,
            Respondent::OWN_JOURNAL,
            Respondent::RETAINED,
            Respondent::UNDONE,
            Respondent::LINE,
            Respondent::HANDOVER,
            Respondent::FIRST,
        ];
        let groups = [0, 1, 55, 56, 57, 119, 120, 1_000].map(Respondent::group);
        (0..64).map(Respondent::shard).chain(kinds).chain(groups).collect()
    }

    #[test]
    fn each_is_another_and_answers_once() {
        let mut awaited = Awaited::default();
        for respondent in respondents() {
            assert!(!awaited.remove(respondent), "{respondent:?} was not asked");
            awaited.insert(respondent);
            awaited.insert(respondent);
        }
        for respondent in respondents() {
            assert!(!awaited.is_empty() && awaited.remove(respondent), "{respondent:?}");
            assert!(!awaited.remove(respondent), "{respondent:?} has answered");
        }
        assert!(awaited.is_empty() && awaited.more.is_none());
    }

    #[test]
    fn one_that_has_yet_to_answer_is_enough() {
        for respondent in respondents() {
            let (mut one, mut other) = (Awaited::default(), Awaited::default());
            one.insert(respondent);
            assert!(!one.is_empty(), "{respondent:?}");
            other.insert(Respondent::LINE);
            other.extend(&one);
            assert!(other.remove(Respondent::LINE));
            assert_eq!(other.is_empty(), respondent == Respondent::LINE, "{respondent:?}");
            assert_eq!(other.remove(respondent), respondent != Respondent::LINE);
            assert!(other.is_empty() && !one.is_empty());
        }
    }

    #[test]
    fn few_groups_need_no_memory() {
        let mut awaited = Awaited::default();
        (0..56).for_each(|nth| awaited.insert(Respondent::group(nth)));
        assert!(awaited.more.is_none());
        awaited.insert(Respondent::group(56));
        assert!(awaited.more.is_some());
        assert!(size_of::<Awaited>() <= 24);
    }
}
