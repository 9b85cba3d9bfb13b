//! Who a connection is beyond its client id and user name: what its credential says of it.

use std::sync::Arc;

use crate::Number;
use crate::access::OrderedRule;

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
    pub rules: Arc<[OrderedRule]>,
}

/// The attribute that says where a client belongs.
pub const NAMESPACE: &str = "namespace";

/// Named values, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(Box<[(Box<str>, Attribute)]>);

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Text(Box<str>),
    Number(Number),
    List(Box<[Self]>),
}

impl Principal {
    /// Takes another credential of the same client. False: it says that it belongs elsewhere.
    pub(crate) fn renew(&mut self, fresh: Self) -> bool {
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
        Self(sorted.into_iter().collect())
    }

    pub fn get(&self, name: &str) -> Option<&Attribute> {
        let found = self.0.binary_search_by(|(own, _)| (**own).cmp(name));
        found.ok().map(|place| &self.0[place].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attribute)> {
        self.0.iter().map(|(name, value)| (&**name, value))
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
