//! Who hears a message: the expected fan-out, from the subscriptions in the model alone.

use super::{
    ClientGroup, Command, Filters, GroupId, Members, QoS, Scenario, SubscriptionId, TopicsId, Who,
};

/// A group that subscribes somewhere in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub group: GroupId,
    pub subscription: SubscriptionId,
    pub qos: QoS,
}

/// What a listener gets of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hears {
    Nothing,
    /// Each of these clients gets a copy of its own.
    Each(Members),
    /// One of these clients gets it: they share the subscription.
    OneOf(Members),
    /// Several filters of the listener match: one entry for each, `true` for a shared one. A client
    /// that stands in several plain ones gets one copy or several, as the broker likes
    /// (MQTT-3.3.4-2).
    Several(Vec<(Members, bool)>),
}

impl Hears {
    /// Copies that one message makes.
    pub fn copies(&self) -> u64 {
        let one = |members: &Members, shared: bool| {
            if shared { u64::from(!members.is_empty()) } else { members.len() }
        };
        match self {
            Self::Nothing => 0,
            Self::Each(members) => one(members, false),
            Self::OneOf(members) => one(members, true),
            Self::Several(all) => all.iter().map(|(members, shared)| one(members, *shared)).sum(),
        }
    }
}

impl Scenario {
    /// Every group and subscription that are joined by a subscribe command, each pair once.
    pub fn listeners(&self) -> Vec<Listener> {
        let mut found: Vec<Listener> = Vec::new();
        self.each_command(&mut |_, cycle, command| {
            let (Who::Clients(group), Command::Subscribe(subscribe)) = (cycle.who, command) else {
                return;
            };
            for &subscription in &subscribe.to {
                let known = |l: &Listener| (l.group, l.subscription) == (group, subscription);
                if !found.iter().any(known) {
                    found.push(Listener { group, subscription, qos: subscribe.qos });
                }
            }
        });
        found
    }

    /// What `listener` gets of topic `index` of `topics`, once all its clients have subscribed.
    pub fn hears(&self, listener: &Listener, topics: TopicsId, index: u64) -> Hears {
        let subscription = self.subscription(listener.subscription);
        let group = self.group(listener.group);
        match &subscription.filters {
            Filters::Topics { topics: own, prefix } if *own == topics => {
                let count = self.topic_group(topics).count;
                let members = subscription.assign.clients_of(index, group.count, count);
                one_filter(members, prefix.starts_with("$share/"))
            }
            Filters::Topics { topics: own, prefix } => {
                let own_group = self.topic_group(*own);
                let (a, b) = (
                    own_group.names.literal_prefix(),
                    self.topic_group(topics).names.literal_prefix(),
                );
                if !a.starts_with(b) && !b.starts_with(a) {
                    return Hears::Nothing;
                }
                let topic = self.topic_name(topics, index);
                // Two topic groups overlap only where names are equal; look among the own names.
                let filters = (0..own_group.count)
                    .map(|i| format!("{prefix}{}", own_group.names.name(own_group.offset + i)));
                self.several(listener, group, filters, own_group.count, &topic)
            }
            Filters::Pattern { pattern, offset, count, .. } => {
                let topic = self.topic_name(topics, index);
                let filters = (0..*count).map(|i| pattern.name(offset + i));
                self.several(listener, group, filters, *count, &topic)
            }
        }
    }

    /// The name of topic `index` of the group.
    pub fn topic_name(&self, topics: TopicsId, index: u64) -> String {
        let group = self.topic_group(topics);
        group.names.name(group.offset + index)
    }

    fn several(
        &self,
        listener: &Listener,
        group: &ClientGroup,
        filters: impl Iterator<Item = String>,
        count: u64,
        topic: &str,
    ) -> Hears {
        let assign = self.subscription(listener.subscription).assign;
        let mut found = Vec::new();
        for (i, filter) in filters.enumerate() {
            let (shared, plain) = unshared(&filter);
            if matches(plain, topic) {
                found.push((assign.clients_of(i as u64, group.count, count), shared));
            }
        }
        match found.len() {
            0 => Hears::Nothing,
            1 => one_filter(found[0].0, found[0].1),
            _ => Hears::Several(found),
        }
    }
}

fn one_filter(members: Members, shared: bool) -> Hears {
    match (members.is_empty(), shared) {
        (true, _) => Hears::Nothing,
        (false, true) => Hears::OneOf(members),
        (false, false) => Hears::Each(members),
    }
}

/// Whether the filter is a shared one, and what it filters.
fn unshared(filter: &str) -> (bool, &str) {
    match filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/')) {
        Some((_, plain)) => (true, plain),
        None => (false, filter),
    }
}

/// The standard's matching rule (MQTT-4.7.1 and, for topics that start with `$`, MQTT-4.7.2-1).
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matching_rule() {
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/+", "a/b", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("#", "$SYS/x", false),
            ("+/x", "$SYS/x", false),
            ("$SYS/#", "$SYS/x", true),
            ("a/+", "a/b/c", false),
            ("a/b/c", "a/b", false),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn a_share_name_is_no_part_of_the_filter() {
        assert_eq!(unshared("$share/perf/test/#"), (true, "test/#"));
        assert_eq!(unshared("test/#"), (false, "test/#"));
    }
}
