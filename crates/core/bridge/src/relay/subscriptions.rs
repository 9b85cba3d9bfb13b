//! The subscriptions of a bridge in both sessions.

use codec::{
    FilterBuf, Packet, Properties, Property, PropertyBuf, QoS, Reason, RetainHandling, Suback,
    Subscribe, SubscribeOptions, TopicBuf, Unsubscribe,
};

use super::{Action, Earlier, Refused, Relay, Side};
use crate::copies;
use crate::settings::covers;

impl Relay {
    pub(super) fn subscribe(&mut self) {
        self.subscribe_here();
        self.subscribe_at_remote();
        let remote = &self.sides[Side::Remote as usize];
        let was_up =
            |filter: &String| remote.earlier.iter().any(|it| it.was_up && it.filter == *filter);
        let has_met = remote.earlier.iter().any(|own| own.was_up);
        if has_met && !remote.subscribed.iter().all(was_up) {
            // Queued copies may lack that of a new subscription.
            self.copies.relay_all();
        }
        self.unsubscribe_earlier(Side::Remote);
        self.rise_if_answered();
    }

    /// In this broker.
    pub(super) fn subscribe_here(&mut self) {
        let settings = self.settings.clone();
        for map in settings.maps.iter().filter(|map| map.direction.has_out()) {
            let filter = map.local_filter();
            let handling = self.handling_of(&filter);
            let qos = map.qos.min(self.limits_of(Side::Remote).qos_max);
            self.subscribe_at(Side::Local, filter, qos, handling);
        }
        self.unsubscribe_earlier(Side::Local);
    }

    /// Retained messages go to a remote that does not know the bridge, or a new topic map.
    fn handling_of(&self, filter: &str) -> RetainHandling {
        let earlier = &self.sides[Side::Local as usize].earlier;
        let is_new = earlier.iter().any(|own| own.filter == filter && !own.was_up);
        match () {
            () if self.is_queueing => RetainHandling::Never,
            () if is_new || !self.limits_of(Side::Remote).session_present => RetainHandling::Always,
            () => RetainHandling::IfNew,
        }
    }

    fn unsubscribe_earlier(&mut self, side: Side) {
        for Earlier { filter, .. } in std::mem::take(&mut self.peer(side).earlier) {
            self.unsubscribe_at(side, filter);
        }
    }

    /// Subscribes to the filters that no other one covers: a remote may send a copy of a message
    /// for each subscription. A filter that was refused covers nothing.
    fn subscribe_at_remote(&mut self) {
        let settings = self.settings.clone();
        let maps = settings.maps.iter().filter(|map| map.direction.has_in());
        let refused = std::mem::take(&mut self.peer(Side::Remote).refused);
        for map in maps.clone() {
            let filter = map.remote_filter();
            let is_covered = maps.clone().any(|other| {
                let wide = other.remote_filter();
                wide != filter
                    && other.qos >= map.qos
                    && covers(&wide, &filter)
                    && !refused.contains(&wide)
            });
            if !is_covered && !refused.contains(&filter) {
                let qos_max = self.limits.iter().map(|limits| limits.qos_max).min();
                let qos = map.qos.min(qos_max.unwrap_or(QoS::ExactlyOnce));
                self.subscribe_at(Side::Remote, filter, qos, RetainHandling::IfNew);
            }
        }
        self.peer(Side::Remote).refused = refused;
    }

    fn subscribe_at(
        &mut self,
        side: Side,
        filter: String,
        qos: QoS,
        retain_handling: RetainHandling,
    ) {
        let version = self.version_of(side);
        let peer = self.peer(side);
        if peer.subscribed.contains(&filter) {
            return;
        }
        let mut properties = PropertyBuf::new();
        if side == Side::Remote && self.limits_of(side).has_subscription_ids {
            properties.push(Property::SubscriptionId(copies::id_of(&filter)));
            self.copies.add(&filter, qos);
        }
        let peer = &mut self.sides[side as usize];
        let packet_id = peer.take_id();
        let options =
            SubscribeOptions { qos, no_local: true, retain_as_published: true, retain_handling };
        let mut filters = FilterBuf::new();
        filters.push(&filter, options);
        let (properties, filters) = (properties.as_properties(), filters.as_filters());
        let packet = Packet::Subscribe(Subscribe { packet_id, properties, filters });
        packet.encode(version, &mut peer.out);
        peer.subscribed.insert(filter.clone());
        peer.asked.insert(packet_id, filter);
    }

    fn unsubscribe_at(&mut self, side: Side, filter: String) {
        let version = self.version_of(side);
        let peer = self.peer(side);
        if peer.subscribed.contains(&filter) {
            return;
        }
        let packet_id = peer.take_id();
        let mut filters = TopicBuf::new();
        filters.push(&filter);
        let (properties, filters) = (Properties::EMPTY, filters.as_topics());
        let packet = Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters });
        packet.encode(version, &mut peer.out);
        peer.asked.insert(packet_id, filter);
    }

    pub(super) fn on_suback(&mut self, side: Side, suback: &Suback<'_>) {
        let Some(filter) = self.peer(side).asked.remove(&suback.packet_id) else { return };
        let reason = suback.reasons.first().map_or(Reason::SUCCESS, |code| Reason(*code));
        if reason.is_error() {
            self.peer(side).refused.push(filter.clone());
            self.copies.remove(&filter);
            self.actions.push_back(Action::Refused(Refused { side, filter, reason }));
            if side == Side::Remote {
                self.subscribe_at_remote();
            }
        }
        self.rise_if_answered();
    }
}
