//! Topic aliases, which live as long as the connection (MQTT-3.3.2-7).

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// The aliases a client has set towards us.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "8 bytes instead of 24 in every connection")]
pub struct InboundAliases {
    /// None until one is set.
    topics: Option<Box<Vec<Option<Box<str>>>>>,
}

impl InboundAliases {
    /// Sets `alias` (1-based, already checked against the maximum) to `topic`.
    pub fn set(&mut self, alias: u16, topic: &str) {
        let slot = usize::from(alias) - 1;
        let topics = self.topics.get_or_insert_default();
        if topics.len() <= slot {
            topics.resize_with(slot + 1, || None);
        }
        if topics[slot].as_deref() != Some(topic) {
            topics[slot] = Some(topic.into());
        }
    }

    pub fn topic(&self, alias: u16) -> Option<&str> {
        self.topics.as_ref()?.get(usize::from(alias).checked_sub(1)?)?.as_deref()
    }
}

/// The aliases we set towards a client: the first topics it is sent, up to its maximum.
///
/// At the limit new topics are sent by name: replacing aliases would cost a name each time too.
#[derive(Debug)]
pub struct OutboundAliases {
    aliases: HashMap<Box<[u8]>, u16, FixedState>,
    alias_max: u16,
}

/// How a topic is written into a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AliasUse {
    /// By name, without an alias.
    Name,
    /// By name, and from now on known under this alias.
    Set(u16),
    /// By alias alone.
    Known(u16),
}

impl OutboundAliases {
    /// `seed`: a number that those who choose the topics cannot guess.
    pub fn new(alias_max: u16, seed: u64) -> Self {
        Self { aliases: HashMap::with_hasher(FixedState::with_seed(seed)), alias_max }
    }

    /// Chooses how to send `topic`. A choice of `AliasUse::Set` holds once it is
    /// [remembered](Self::remember): a packet that is not sent after all sets nothing.
    pub fn choose(&self, topic: &[u8]) -> AliasUse {
        if let Some(alias) = self.aliases.get(topic) {
            return AliasUse::Known(*alias);
        }
        if self.aliases.len() >= usize::from(self.alias_max) {
            return AliasUse::Name;
        }
        AliasUse::Set(self.aliases.len() as u16 + 1)
    }

    /// The topic that an alias was set for. Looks at all of them.
    pub fn topic(&self, alias: u16) -> Option<&[u8]> {
        self.aliases.iter().find(|(_, own)| **own == alias).map(|(topic, _)| &**topic)
    }

    /// The client has been sent `topic` with `alias`.
    pub fn remember(&mut self, topic: &[u8], alias: u16) {
        self.aliases.insert(topic.into(), alias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mqtt_3_1_2_26_no_more_aliases_than_the_client_takes() {
        let mut aliases = OutboundAliases::new(2, 7);
        assert_eq!(aliases.choose(b"a"), AliasUse::Set(1));
        aliases.remember(b"a", 1);
        assert_eq!(aliases.choose(b"b"), AliasUse::Set(2));
        aliases.remember(b"b", 2);
        assert_eq!(aliases.choose(b"c"), AliasUse::Name);
        assert_eq!(aliases.choose(b"a"), AliasUse::Known(1));
        assert_eq!((aliases.topic(2), aliases.topic(3)), (Some(b"b".as_slice()), None));
    }

    #[test]
    fn an_alias_can_be_set_anew() {
        let mut aliases = InboundAliases::default();
        assert_eq!(aliases.topic(3), None);
        aliases.set(3, "a");
        aliases.set(3, "b");
        assert_eq!(aliases.topic(3), Some("b"));
        assert_eq!(aliases.topic(1), None);
        assert_eq!(aliases.topic(0), None);
    }
}
