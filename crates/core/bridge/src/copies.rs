//! Copies of one message that a remote sends for several subscriptions.
//!
//! A remote of MQTT 5 may send a message once for each subscription that matches it (section
//! 3.3.4), each with the subscription's identifier. One of these copies is relayed: that of the
//! subscription with the highest QoS. A copy is dropped only if all its identifiers are known, so
//! that a remote that sends one copy, or none of our identifiers, loses nothing.

use codec::{Properties, Property, QoS};

/// The subscriptions at the remote.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    subscriptions: Vec<Subscription>,
    are_all_relayed: bool,
}

#[derive(Debug)]
struct Subscription {
    filter: String,
    qos: QoS,
    id: u32,
}

impl Copies {
    /// Notes a subscription.
    pub(crate) fn add(&mut self, filter: &str, qos: QoS) {
        self.subscriptions.push(Subscription { filter: filter.into(), qos, id: id_of(filter) });
    }

    /// The remote has refused it.
    pub(crate) fn remove(&mut self, filter: &str) {
        self.subscriptions.retain(|own| own.filter != filter);
    }

    /// From now on no copy is surplus.
    pub(crate) fn relay_all(&mut self) {
        self.are_all_relayed = true;
    }

    /// Whether another copy of this message is the one to relay.
    pub(crate) fn is_surplus(&self, topic: &str, properties: Properties<'_>) -> bool {
        if self.subscriptions.len() < 2 || self.are_all_relayed {
            return false;
        }
        let ids = || {
            properties.iter().filter_map(|property| match property {
                Property::SubscriptionId(id) => Some(id),
                _ => None,
            })
        };
        let matching =
            || self.subscriptions.iter().filter(|own| topic::matches(&own.filter, topic));
        // The first of those with the highest QoS.
        let Some(chosen) = matching().rev().max_by_key(|own| own.qos) else { return false };
        ids().next().is_some()
            && ids().all(|id| id != chosen.id && matching().any(|own| own.id == id))
    }
}

/// The identifier of a subscription: the same in each configuration, because queued copies have
/// those of an earlier one. If two filters had the same one, both copies would be relayed.
pub(crate) fn id_of(filter: &str) -> u32 {
    // FNV-1a: its values never change, unlike those of the standard library.
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    filter.bytes().fold(0x811C_9DC5, step) % ID_MAX + 1
}

/// The largest identifier (section 3.8.2.1.2).
const ID_MAX: u32 = 268_435_455;

#[cfg(test)]
mod tests {
    use codec::PropertyBuf;

    use super::*;

    #[test]
    fn one_copy_of_each_message_is_relayed() {
        let mut copies = Copies::default();
        copies.add("a/+", QoS::AtLeastOnce);
        copies.add("+/b", QoS::ExactlyOnce);
        copies.add("+/+", QoS::ExactlyOnce);
        let is_surplus = |copies: &Copies, topic: &str, filters: &[&str]| {
            let mut properties = PropertyBuf::new();
            for filter in filters {
                properties.push(Property::SubscriptionId(id_of(filter)));
            }
            copies.is_surplus(topic, properties.as_properties())
        };
        for (topic, filters, expected) in [
            ("a/b", &["a/+"][..], true),
            ("a/b", &["+/b"], false),
            ("a/b", &["+/+"], true),
            ("a/b", &["a/+", "+/+"], true),
            // A remote that sends one copy names all subscriptions.
            ("a/b", &["a/+", "+/b", "+/+"], false),
            ("a/c", &["a/+"], true),
            ("a/c", &["+/+"], false),
            // It has no identifiers, or was queued for an earlier configuration.
            ("a/b", &[], false),
            ("a/b", &["#"], false),
            ("a/b", &["a/+", "#"], false),
            ("a", &["a/+"], false),
        ] {
            assert_eq!(is_surplus(&copies, topic, filters), expected, "{topic} {filters:?}");
        }
        copies.add("a/#", QoS::ExactlyOnce);
        copies.relay_all();
        assert!(!is_surplus(&copies, "a/b", &["a/+"]));
        copies.are_all_relayed = false;
        assert!(is_surplus(&copies, "a/b", &["a/+"]));
        copies.remove("a/#");
        copies.remove("+/b");
        copies.remove("+/+");
        assert!(!is_surplus(&copies, "a/b", &["a/+"]));
    }

    #[test]
    fn the_identifier_of_a_filter_never_changes() {
        assert_eq!([id_of("a/+"), id_of("+/b")], [26_084_070, 222_808_083]);
    }
}
