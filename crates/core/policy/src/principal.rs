//! Who a connection is beyond its client id and user name: what its credential says of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Number;
use crate::access::{OwnRules, substitute};

/// What a credential says of its client. A connection that showed none, or one that says no more
/// than a user name, has no principal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Principal {
    pub attributes: Attributes,
    /// When the credential ends, in broker time, and the connection with it; None: never.
    pub expires_at_ms: Option<u64>,
    /// Of a session that an earlier process had: what it was is known when its client is back.
    /// Until then its messages are kept for it, and checked before they are sent; its will is not
    /// published where a rule may forbid that, or only an attribute might allow it.
    pub is_unknown: bool,
    /// Which provider has said so, by a number of the driver's.
    pub provider: Option<u32>,
    /// Access rules do not apply to it. Topics of the broker's own stay the broker's.
    pub is_superuser: bool,
    /// What it logged in as, where its user name is only a part of that.
    pub login: Option<Box<str>>,
    /// Its attribute [`NAMESPACE`] has put it where it is.
    pub is_placed: bool,
    /// Access rules of its own, which come before those that are for others, too.
    pub rules: OwnRules,
    /// Of all that have vouched for it, and may change their mind.
    pub revocations: Vec<Revocation>,
}

/// Whether somebody has taken back what it said of clients. All of them share it, also those that
/// are on their way to a shard: who revokes it does not have to know them.
#[derive(Clone, Debug, Default)]
pub struct Revocation(Arc<AtomicBool>);

/// The attribute that says where a client belongs.
pub const NAMESPACE: &str = "namespace";

/// Named values, in the order of their names. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(Arc<[Named]>);

#[derive(Debug, PartialEq)]
struct Named {
    name: Box<str>,
    value: Attribute,
    /// Of a list: the texts that can be a part of a level, in their order.
    texts: Box<[Box<str>]>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Text(Box<str>),
    Number(Number),
    List(Box<[Self]>),
}

impl Revocation {
    pub fn revoke(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_revoked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Does any other copy of it exist?
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl PartialEq for Revocation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Principal {
    /// Has any of those who vouched for it taken that back?
    pub fn is_revoked(&self) -> bool {
        self.revocations.iter().any(Revocation::is_revoked)
    }

    /// Bytes that it takes. Some may be shared with the answer that is remembered.
    pub fn bytes(&self) -> usize {
        let login = self.login.as_ref().map_or(0, |login| login.len());
        let revocations = size_of_val(&*self.revocations);
        size_of::<Self>() + login + self.attributes.bytes() + self.rules.bytes() + revocations
    }

    /// Takes another credential of the same client. False: it says that it belongs elsewhere.
    pub fn renew(&mut self, fresh: Self) -> bool {
        let (login, is_placed) = (self.login.take(), self.is_placed);
        let namespace = |of: &Self| of.attributes.get(NAMESPACE).cloned();
        let stays = !is_placed || namespace(self) == namespace(&fresh);
        *self = Self { login, is_placed, ..fresh };
        stays
    }
}

impl Attributes {
    /// Of values with the same name the last one counts.
    pub fn new(values: impl IntoIterator<Item = (Box<str>, Attribute)>) -> Self {
        let sorted: std::collections::BTreeMap<_, _> = values.into_iter().collect();
        Self(sorted.into_iter().map(|(name, value)| Named::new(name, value)).collect())
    }

    pub fn get(&self, name: &str) -> Option<&Attribute> {
        self.find(name).map(|named| &named.value)
    }

    /// What an attribute stands for in a filter.
    pub(crate) fn values(&self, name: &str) -> Values<'_> {
        match self.find(name) {
            None => Values::Many(&[]),
            Some(Named { value: Attribute::List(_), texts, .. }) => Values::Many(texts),
            Some(Named { value, .. }) => Values::One(value),
        }
    }

    fn find(&self, name: &str) -> Option<&Named> {
        let found = self.0.binary_search_by(|named| (*named.name).cmp(name));
        found.ok().map(|place| &self.0[place])
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Named::bytes).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attribute)> {
        self.0.iter().map(|named| (&*named.name, &named.value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Attribute {
    /// Its texts: those of a list are many. A number is written as people write it.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text.to_string()],
            Self::Number(number) => vec![number.to_string()],
            Self::List(items) => items.iter().flat_map(Self::texts).collect(),
        }
    }

    fn with_text<T>(&self, ask: impl FnOnce(&str) -> T) -> T {
        match self {
            Self::Text(text) => ask(text),
            Self::Number(number) => number.with_text(ask),
            Self::List(_) => ask(""),
        }
    }

    /// Beside those of its own size.
    fn inner_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(_) => 0,
            Self::List(items) => {
                size_of_val(&**items) + items.iter().map(Self::inner_bytes).sum::<usize>()
            }
        }
    }
}

impl Named {
    fn new(name: Box<str>, value: Attribute) -> Self {
        let mut texts = match &value {
            Attribute::List(_) => value.texts(),
            Attribute::Text(_) | Attribute::Number(_) => Vec::new(),
        };
        texts.retain(|text| fits_level(text));
        texts.sort_unstable();
        texts.dedup();
        let texts = texts.into_iter().map(Into::into).collect();
        Self { name, value, texts }
    }

    fn bytes(&self) -> usize {
        let texts: usize = self.texts.iter().map(|text| size_of_val(text) + text.len()).sum();
        size_of::<Self>() + self.name.len() + self.value.inner_bytes() + texts
    }
}

/// What an attribute stands for in a filter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a> {
    One(&'a Attribute),
    Many(&'a [Box<str>]),
}

impl Values<'_> {
    pub(crate) fn have(self, wanted: &str) -> bool {
        match self {
            Self::One(value) => value.with_text(|own| own == wanted && fits_level(own)),
            Self::Many(texts) => texts.binary_search_by(|own| (**own).cmp(wanted)).is_ok(),
        }
    }

    /// Does the text begin with one of them so that what is behind it is wanted?
    pub(crate) fn begin(self, text: &str, mut is_wanted: impl FnMut(&str) -> bool) -> bool {
        let texts = match self {
            Self::One(value) => {
                return value.with_text(|own| {
                    fits_level(own) && text.strip_prefix(own).is_some_and(is_wanted)
                });
            }
            Self::Many(texts) => texts,
        };
        let (mut end, mut count) = (text.len(), texts.len());
        // Whatever a part of the text begins with is also what the last one up to that part begins
        // with, in their order.
        while end > 0 {
            let part = &text.as_bytes()[..end];
            count = texts[..count].partition_point(|own| own.as_bytes() <= part);
            let Some(last) = count.checked_sub(1).map(|place| &texts[place]) else { return false };
            let common = common_len(last.as_bytes(), part);
            let is_whole = common == last.len();
            if is_whole && is_wanted(&text[common..]) {
                return true;
            }
            end = if is_whole { common - 1 } else { common };
        }
        false
    }

    /// Is the first or the last one so? Where those that are not are together, that says whether
    /// any is.
    pub(crate) fn ends_are(self, so: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::One(value) => value.with_text(|own| fits_level(own) && so(own)),
            Self::Many(texts) => texts.first().into_iter().chain(texts.last()).any(|own| so(own)),
        }
    }
}

fn common_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// A per cent sign stands for nothing in a value, as it does in a filter.
fn fits_level(text: &str) -> bool {
    substitute(text).is_some() && !text.contains('%')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_by_name_and_the_last_of_a_name_counts() {
        let text = |text: &str| Attribute::Text(text.into());
        let list = Attribute::List(
            ["3", "2.5"].map(|text| Attribute::Number(Number::parse(text).unwrap())).into(),
        );
        let attributes = Attributes::new([
            ("site".into(), text("a")),
            ("floors".into(), list),
            ("site".into(), text("b")),
        ]);
        assert_eq!(attributes.get("site"), Some(&text("b")));
        assert_eq!(
            attributes.get("floors").map(Attribute::texts),
            Some(vec!["3".into(), "2.5".into()])
        );
        assert_eq!(attributes.get("floor"), None);
        assert_eq!(attributes.iter().count(), 2);
    }
}
