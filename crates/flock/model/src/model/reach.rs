//! Who hears a message: the expected fan-out, from the subscriptions in the model alone.

use super::{Command, Filters, GroupId, Members, QoS, Scenario, SubscriptionId, TopicsId, Who};

/// A group that subscribes somewhere in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub group: GroupId,
    pub subscription: SubscriptionId,
    pub qos: QoS,
    /// Whether it answers requests.
    pub responds: bool,
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
                    let (qos, responds) = (subscribe.qos, subscribe.respond.is_some());
                    found.push(Listener { group, subscription, qos, responds });
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
                one_filter(members, prefix.starts_with(SHARE))
            }
            filters => {
                let topic = self.topic_name(topics, index);
                let mut found = Vec::new();
                let count = self.filters_in(filters);
                self.each_filter_of(filters, &topic, &mut |filter, shared| {
                    found
                        .push((subscription.assign.clients_of(filter, group.count, count), shared));
                });
                match found.as_slice() {
                    [] => Hears::Nothing,
                    [(members, shared)] => one_filter(*members, *shared),
                    _ => Hears::Several(found),
                }
            }
        }
    }

    /// How many filters there are.
    pub fn filters_in(&self, filters: &Filters) -> u64 {
        match filters {
            Filters::Topics { topics, .. } => self.topic_group(*topics).count,
            Filters::Pattern { count, .. } => *count,
        }
    }

    /// Calls `visit` with the position and sharedness of each filter that matches the topic.
    pub fn each_filter_of(&self, filters: &Filters, topic: &str, visit: &mut dyn FnMut(u64, bool)) {
        match filters {
            // Exact names, behind a share name or none.
            Filters::Topics { topics, prefix } => {
                let group = self.topic_group(*topics);
                let shared = prefix.starts_with(SHARE);
                let mut found = |filter, _| visit(filter, shared);
                group.names.each_match(group.offset, group.count, topic, &mut found);
            }
            Filters::Pattern { pattern, offset, count, .. } => {
                pattern.each_match(*offset, *count, topic, visit);
            }
        }
    }

    /// The name of topic `index` of the group.
    pub fn topic_name(&self, topics: TopicsId, index: u64) -> String {
        let group = self.topic_group(topics);
        group.names.name(group.offset + index)
    }
}

fn one_filter(members: Members, shared: bool) -> Hears {
    match (members.is_empty(), shared) {
        (true, _) => Hears::Nothing,
        (false, true) => Hears::OneOf(members),
        (false, false) => Hears::Each(members),
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

const SHARE: &str = "$share/";

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
}
