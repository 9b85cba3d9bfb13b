//! Topic aliases of one connection, in both directions.

use std::collections::BTreeMap;

use codec::Publish;

#[derive(Debug, Default)]
pub(super) struct Aliases {
    /// What the broker has been told, and how many it may be.
    known: BTreeMap<String, u16>,
    told_max: u16,
    given: u16,
    /// What the broker has told.
    heard: BTreeMap<u16, String>,
}

impl Aliases {
    pub(super) const fn allow(&mut self, aliases_max: u16) {
        self.told_max = aliases_max;
    }

    /// What stands for a topic, and whether the broker knows that already. Where there is none left
    /// one is given another meaning.
    pub(super) fn of_topic(&mut self, topic: &str) -> Option<(u16, bool)> {
        if let Some(alias) = self.known.get(topic) {
            return Some((*alias, true));
        }
        if self.told_max == 0 {
            return None;
        }
        let alias = self.given % self.told_max + 1;
        self.given += 1;
        self.known.retain(|_, other| *other != alias);
        self.known.insert(topic.to_owned(), alias);
        Some((alias, false))
    }

    /// The topic of a publish of the broker. Err: it breaks MQTT-3.1.2-26 or MQTT-3.3.2-8.
    pub(super) fn topic_of(
        &mut self,
        publish: &Publish<'_>,
        aliases_max: u16,
    ) -> Result<String, String> {
        let Some(alias) = publish.properties.topic_alias() else {
            return Ok(publish.topic.to_owned());
        };
        if alias > aliases_max {
            return Err(format!("topic alias {alias} of {aliases_max}"));
        }
        if !publish.topic.is_empty() {
            self.heard.insert(alias, publish.topic.to_owned());
        }
        let known = self.heard.get(&alias).cloned();
        known.ok_or_else(|| format!("topic alias {alias}, which means nothing"))
    }
}
